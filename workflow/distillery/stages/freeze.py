"""Write one stage's frozen configuration, as the workflow resolved it.

python -m distillery.stages.freeze --content '{"seed": 0, ...}' \\
    --output results/demo/config/targets.json
"""

from pathlib import Path
from typing import Any

from distillery import cli
from distillery.config.jobs import save_frozen
from distillery.planning.first import plan_as_asked
from distillery.run_folder import RunFolder


def write_frozen(
    content: dict[str, Any], output: Path, planned: dict[str, Any] | None = None
) -> None:
    """Write what a stage depends on.

    Args:
        content: see `config.jobs.freeze`.
        output: results/{run}/config/{stage}.json.
        planned: the run to plan first, see `planning.first.plan_as_asked`.
    """
    plan_as_asked(planned, RunFolder.of_config(output))
    save_frozen(output, content)


def main(argv: list[str] | None = None) -> int:
    """The command line of this stage."""
    return cli.run(write_frozen, __doc__, argv)


if __name__ == "__main__":
    raise SystemExit(main())
