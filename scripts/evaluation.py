"""Score the samples of every model and compare the models on the same prompts and noise.

    python -m distillery.stages.evaluation --config results/demo/config/evaluation.json \\
        --manifests results/demo/samples/teacher/manifest.parquet \\
                    results/demo/samples/student/manifest.parquet \\
        --quality results/demo/evaluation/quality.json \\
        --scores results/demo/evaluation/scores.parquet

A manifest's model is the name of its folder. The judge and other vision models run on a GPU where
there is one.
"""

from distillery.stage import Stage, named, to_judge

STAGE: Stage = Stage(
    name="evaluation",
    makes="distillery.measures.score:evaluate",
    job="evaluation",
    keys=to_judge,
    writes=lambda config, run, key: [run.quality, run.scores],
    frozen=named("evaluation"),
    gpus="one",
    # The judge sees each image, and so does each other vision model, and that of preference.
    items=lambda config, counts, key: (
        counts.images(config)
        * len(config.samples.models)
        * (
            1
            + len(config.evaluation.vision_models)
            + (config.evaluation.preference_model is not None)
        )
    ),
    colour=3,
)


if __name__ == "__main__":
    from distillery.cli import main

    raise SystemExit(main(STAGE, __doc__))
