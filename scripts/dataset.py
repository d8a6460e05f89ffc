"""Make a data set of the sampled images: metadata beside them, one manifest, a list of pairs.

python -m distillery.stages.dataset --config results/shapes/config/dataset.json \\
    --output results/shapes/dataset/manifest.parquet \\
    results/shapes/samples/*/manifest.parquet
"""

from distillery.stage import Stage, named, to_generate

STAGE: Stage = Stage(
    name="dataset",
    makes="distillery.generation.dataset:make_dataset",
    keys=to_generate,
    writes=lambda config, run, key: [
        run.dataset,
        *map(run.metadata, config.samples.models),
        *[run.pairs] * (config.dataset.pairs != "none"),
    ],
    frozen=named("dataset"),
    is_short=True,
)


if __name__ == "__main__":
    from distillery.cli import main

    raise SystemExit(main(STAGE, __doc__))
