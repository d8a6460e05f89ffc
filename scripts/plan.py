"""Check a run before it starts, and say what it will do.

python -m distillery.stages.plan --config results/demo/config/run.json \\
    --output results/demo/plan.json
"""

import json
import logging
from pathlib import Path

from distillery.config.jobs import read_config
from distillery.config.run import parse_config
from distillery.files import read_json
from distillery.importing import importing
from distillery.stage import Stage, asked_for

STAGE: Stage = Stage(name="plan", keys=asked_for)


def main(argv: list[str] | None = None) -> int:
    """Plan, and print the plan."""
    from distillery.cli import logged_parser
    from distillery.pipeline import STAGES
    from distillery.planning.page import page_of
    from distillery.planning.text import print_page
    from distillery.telemetry import explain_errors

    with importing():
        from distillery.planning.plan import make_plan

    parser = logged_parser(__doc__)
    given = parser.add_mutually_exclusive_group(required=True)
    given.add_argument("--config", type=Path, help="the whole configuration")
    given.add_argument("--content", help="the same as JSON, in the place of a file")
    parser.add_argument("--output", type=Path, required=True, help="plan.json")
    parser.add_argument("--num-gpus", type=int, help="that Snakemake gives the training")
    parser.add_argument("--num-nodes", type=int, default=1, help="that these are on")
    parser.add_argument(
        "--requests", type=json.loads, default={}, help="JSON: what jobs ask a cluster for"
    )
    arguments = parser.parse_args(argv)
    # On the terminal, as the plan itself: reading a large teacher takes minutes.
    logging.basicConfig(format="%(message)s")
    logging.getLogger("distillery").setLevel(logging.INFO)

    def plan() -> None:
        config = (
            parse_config(json.loads(arguments.content), "the configuration")
            if arguments.content
            else read_config(arguments.config)
        )
        machine = arguments.num_gpus, arguments.num_nodes, arguments.requests
        make_plan(STAGES, config, arguments.output, *machine)

    status = explain_errors(plan, arguments.log)
    if status == 0:
        print_page(page_of(read_json(arguments.output)))
    return status


if __name__ == "__main__":
    raise SystemExit(main())
