"""Encode every distinct prompt of a table once.

python -m distillery.stages.embeddings --config results/demo/config/embeddings.json \\
    --prompts results/demo/prompts/train.parquet \\
    --output results/demo/embeddings/train/manifest.json
"""

from distillery.stage import Stage, encoded_splits, named

STAGE: Stage = Stage(
    name="embeddings",
    makes="distillery.generation.embeddings:make_embeddings",
    job="embeddings-{prompts.stem}",
    keys=encoded_splits,
    writes=lambda config, run, key: [run.embeddings(key["split"])],
    frozen=named("embeddings"),
    gpus="teacher",
    loads="texts",
    items=lambda config, counts, key: counts.texts[key["split"]],
    colour=1,
)


if __name__ == "__main__":
    from distillery.cli import main

    raise SystemExit(main(STAGE, __doc__))
