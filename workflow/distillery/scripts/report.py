"""Write the report of a run: one HTML file that opens offline, and its numbers as JSON.

    python -m distillery.scripts.report --config results/demo/config/run.json --run results/demo \\
        --output results/demo/report/index.html --metrics results/demo/report/metrics.json

What the run does not have (no training, no scores) is left out.
"""

import sys
from collections.abc import Sequence
from pathlib import Path

from distillery.command import logged_parser
from distillery.config.jobs import read_job
from distillery.config.run import Config
from distillery.evaluation.report import write_report
from distillery.telemetry import explain_errors, reporting


def main(argv: Sequence[str] | None = None) -> int:
    """Run the stage; returns the exit status."""
    parser = logged_parser(__doc__)
    parser.add_argument("--config", type=Path, required=True, help="results/{run}/config/run.json")
    parser.add_argument("--run", type=Path, required=True, help="results/{run}")
    parser.add_argument("--output", type=Path, required=True, help="the HTML file")
    parser.add_argument("--metrics", type=Path, required=True, help="the JSON file")
    args = parser.parse_args(argv)

    def body() -> None:
        config = read_job(args.config, Config)
        with reporting(args.run / "telemetry", "report", "report", "cpu", args.log):
            write_report(config, args.run, args.output, args.metrics)

    return explain_errors(body, args.log)


if __name__ == "__main__":
    sys.exit(main())
