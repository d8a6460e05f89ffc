"""Make one shard of a model's images; only what is missing or damaged is made.

python -m distillery.stages.samples --config results/demo/config/samples-teacher.json \\
    --model teacher --prompts results/demo/prompts/eval.parquet \\
    --embeddings results/demo/embeddings/eval/manifest.json \\
    --shard 0/2 --output results/demo/samples/teacher/shard-0-of-2.parquet

For the student add --pipeline results/demo/student/pipeline, for the untrained one
--pipeline results/demo/student/untrained.
"""

from distillery.stage import Stage, in_shards, models, named, share

STAGE: Stage = Stage(
    name="samples",
    makes="distillery.generation.samples:make_samples",
    job="samples-{model}-{shard[0]}-of-{shard[1]}",
    keys=lambda config: in_shards(models(config), config.samples.num_shards),
    writes=lambda config, run, key: [run.samples_shard(key["model"], key["shard"])],
    frozen=named("samples-{model}"),
    gpus="teacher",
    loads="drawing",
    items=lambda config, counts, key: share(counts.images(config), key),
    passes=lambda config, calls, key: calls.per_image[key["model"]],
    colour=4,
)


if __name__ == "__main__":
    from distillery.cli import main

    raise SystemExit(main(STAGE, __doc__))
