"""Write one stage's frozen configuration, as the workflow resolved it.

python -m distillery.scripts.freeze --content '{"seed": 0, ...}' \\
    --output results/demo/config/targets.json
"""

import json
from pathlib import Path

from distillery.command import add_planned, logged_parser, plan_run, run_folder
from distillery.files import write_json
from distillery.telemetry import explain_errors


def main(argv: list[str] | None = None) -> int:
    """Parse, plan, write."""
    parser = logged_parser(__doc__)
    parser.add_argument("--content", type=json.loads, required=True, help="a JSON object")
    parser.add_argument("--output", type=Path, required=True, help="the JSON file to write")
    add_planned(parser)
    arguments = parser.parse_args(argv)

    def body() -> None:
        plan_run(arguments, run_folder(arguments.output))
        write_json(arguments.output, arguments.content)

    return explain_errors(body, arguments.log)


if __name__ == "__main__":
    raise SystemExit(main())
