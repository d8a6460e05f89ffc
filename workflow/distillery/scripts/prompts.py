"""Check a prompt file and write it as a table.

python -m distillery.scripts.prompts --config results/demo/config/prompts.json --split train \\
    --output results/demo/prompts/train.parquet
"""

from pathlib import Path

from distillery.command import logged_parser
from distillery.config.jobs import PromptsJob, read_job
from distillery.stages.prompts import make_prompt_table
from distillery.telemetry import explain_errors


def main(argv: list[str] | None = None) -> int:
    """Parse, make the table."""
    parser = logged_parser(__doc__)
    parser.add_argument(
        "--config", type=Path, required=True, help="results/{run}/config/prompts.json"
    )
    parser.add_argument(
        "--split", choices=("train", "eval"), required=True, help="whose prompt file is read"
    )
    parser.add_argument("--output", type=Path, required=True, help="the table to write")
    arguments = parser.parse_args(argv)
    return explain_errors(
        lambda: make_prompt_table(
            read_job(arguments.config, PromptsJob), arguments.split, arguments.output
        ),
        arguments.log,
    )


if __name__ == "__main__":
    raise SystemExit(main())
