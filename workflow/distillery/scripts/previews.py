"""Draw previews from a kept checkpoint of the training, with the weights that it would export.

python -m distillery.scripts.previews --config results/demo/config/training.json \\
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

from pathlib import Path

from distillery.command import run_stage, stage_parser
from distillery.config.jobs import TrainingJob
from distillery.training.inputs import add_inputs, read_inputs
from distillery.training.previews.kept import draw_kept
from distillery.training.previews.pictures import PreviewPaths


def main(argv: list[str] | None = None) -> int:
    """Parse, draw."""
    parser = stage_parser(__doc__)
    add_inputs(parser)
    parser.add_argument("--samples-seen", type=int, required=True, help="of the checkpoint")
    parser.add_argument("--previews", type=Path, required=True, help="folder to write")
    parser.add_argument(
        "--previews-config", type=Path, required=True, help="results/{run}/config/previews.json"
    )
    parser.add_argument("--eval-prompts", type=Path, required=True, help="table of the eval split")
    parser.add_argument(
        "--eval-embeddings", type=Path, required=True, help="manifest of the eval split"
    )
    arguments = parser.parse_args(argv)
    previews = PreviewPaths(
        config=arguments.previews_config,
        prompts=arguments.eval_prompts,
        embeddings=arguments.eval_embeddings,
        folder=arguments.previews,
    )
    return run_stage(
        arguments,
        "previews",
        f"previews-{arguments.samples_seen:012d}",
        TrainingJob,
        lambda job, device, reporter: draw_kept(
            job, read_inputs(arguments), arguments.samples_seen, previews, device, reporter
        ),
    )


if __name__ == "__main__":
    raise SystemExit(main())
