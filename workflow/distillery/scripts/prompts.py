"""Check a prompt file and write it as a table.

python -m distillery.scripts.prompts --config results/demo/config/prompts.json --split train \\
    --output results/demo/prompts/train.parquet
"""

from pathlib import Path

from distillery.command import add_planned, logged_parser, plan_run, run_folder
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
    add_planned(parser)
    arguments = parser.parse_args(argv)

    def body() -> None:
        plan_run(arguments, run_folder(arguments.config))
        job = read_job(arguments.config, PromptsJob)
        make_prompt_table(job, arguments.split, arguments.output)

    return explain_errors(body, arguments.log)


if __name__ == "__main__":
    raise SystemExit(main())
