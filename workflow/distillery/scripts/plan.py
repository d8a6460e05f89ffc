"""Check a run before it starts, and say what it will do.

python -m distillery.scripts.plan --config results/demo/config/run.json \\
    --output results/demo/plan.json
"""

import logging
import sys
from pathlib import Path

from distillery.command import logged_parser
from distillery.config.jobs import read_config
from distillery.files import read_json
from distillery.stages.plan import make_plan, summary
from distillery.telemetry import explain_errors


def main(argv: list[str] | None = None) -> int:
    """Parse, plan, print the plan."""
    parser = logged_parser(__doc__)
    parser.add_argument("--config", type=Path, required=True, help="the whole configuration")
    parser.add_argument("--output", type=Path, required=True, help="plan.json")
    parser.add_argument("--num-gpus", type=int, help="that Snakemake gives the training")
    arguments = parser.parse_args(argv)
    # On the terminal, as the plan itself: reading a large teacher takes minutes.
    logging.basicConfig(format="%(message)s")
    logging.getLogger("distillery").setLevel(logging.INFO)
    status = explain_errors(
        lambda: make_plan(read_config(arguments.config), arguments.output, arguments.num_gpus),
        arguments.log,
    )
    if status == 0:
        print(summary(read_json(arguments.output)), file=sys.stderr)
    return status


if __name__ == "__main__":
    raise SystemExit(main())
