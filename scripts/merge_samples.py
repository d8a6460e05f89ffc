"""Merge the shards of one model's samples to one manifest, after looking at every file.

python -m distillery.stages.merge_samples --output results/demo/samples/student/manifest.parquet \\
    --shards results/demo/samples/student/shard-*-of-2.parquet
"""

from distillery.stage import Stage, models

STAGE: Stage = Stage(
    name="merge_samples",
    makes="distillery.generation.sample_tables:merge_samples",
    keys=models,
    writes=lambda config, run, key: [run.samples(key["model"])],
    is_short=True,
)


if __name__ == "__main__":
    from distillery.cli import main

    raise SystemExit(main(STAGE, __doc__))
