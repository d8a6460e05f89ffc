"""Make one shard of the teacher's trajectories; finished chunks are kept, whatever happens.

python -m distillery.stages.targets --config results/demo/config/targets.json \\
    --prompts results/demo/prompts/train.parquet \\
    --embeddings results/demo/embeddings/train/manifest.json \\
    --shard 0/4 --output results/demo/targets/shard-0-of-4.json
"""

from distillery.stage import Passes, Stage, named, share, target_shards, to_train

STAGE: Stage = Stage(
    name="targets",
    makes="distillery.generation.targets:make_targets",
    job="targets-{shard[0]}-of-{shard[1]}",
    keys=to_train(target_shards),
    writes=lambda config, run, key: [run.targets_shard(key["shard"])],
    frozen=named("targets"),
    gpus="teacher",
    loads="drawing",
    items=lambda config, counts, key: share(counts.trajectories(config), key),
    passes=lambda config, calls, key: Passes(teacher=config.targets.steps * calls.per_step),
    colour=0,
)


if __name__ == "__main__":
    from distillery.cli import main

    raise SystemExit(main(STAGE, __doc__))
