"""Encode every distinct prompt of a table once.

python -m distillery.scripts.embeddings --config results/demo/config/embeddings.json \\
    --prompts results/demo/prompts/train.parquet \\
    --output results/demo/embeddings/train/manifest.json
"""

from pathlib import Path

from distillery.command import run_stage, stage_parser
from distillery.config.jobs import EmbeddingsJob
from distillery.stages.embeddings import make_embeddings


def main(argv: list[str] | None = None) -> int:
    """Parse, encode."""
    parser = stage_parser(__doc__)
    parser.add_argument("--prompts", type=Path, required=True, help="table of a split")
    parser.add_argument("--output", type=Path, required=True, help="the manifest; chunks beside it")
    arguments = parser.parse_args(argv)
    return run_stage(
        arguments,
        "embeddings",
        f"embeddings-{arguments.prompts.stem}",
        EmbeddingsJob,
        lambda job, device, reporter: make_embeddings(
            job, arguments.prompts, arguments.output, device, reporter
        ),
    )


if __name__ == "__main__":
    raise SystemExit(main())
