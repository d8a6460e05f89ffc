"""Draw previews from a kept checkpoint of the training, with the weights that it would export.

python -m distillery.stages.previews --config results/demo/config/training.json \\
    --student results/demo/student/initial --targets results/demo/targets/manifest.json \\
    --embeddings results/demo/embeddings/train/manifest.json \\
    --prompts results/demo/prompts/train.parquet --checkpoints results/demo/student/checkpoints \\
    --samples-seen 3200 --previews results/demo/student/previews \\
    --previews-config results/demo/config/previews.json \\
    --eval-prompts results/demo/prompts/eval.parquet \\
    --eval-embeddings results/demo/embeddings/eval/manifest.json

Writes samples-000000003200/{prompt_id}.png and sheet.png there, and the sheet over time. What is
there already of this training is kept.
"""

from distillery.stage import Stage, asked_for

STAGE: Stage = Stage(
    name="previews",
    makes="distillery.training.previews:draw_kept",
    job="previews-{samples_seen:012d}",
    keys=asked_for,
)


if __name__ == "__main__":
    from distillery.cli import main

    raise SystemExit(main(STAGE, __doc__))
