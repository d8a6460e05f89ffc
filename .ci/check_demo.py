"""Fail unless the demo's student passes every threshold of its report, and an untrained one not.

python .ci/check_demo.py results/demo
"""

import json
import sys
from dataclasses import replace
from pathlib import Path

from distillery.config.run import Config, parse_config
from distillery.report.roles import find_roles
from distillery.report.verdict import Check, check_student


def main(run: Path) -> int:
    """Print every threshold with its finding, for both; 1 if one does not come out as it should."""
    metrics = json.loads((run / "report/metrics.json").read_text())
    checks = [Check(**check) for check in metrics["verdict"]]
    show("the student", checks)
    untrained = check_untrained(metrics)
    show("the untrained student in its place", untrained)
    is_told_apart = any(check.outcome in ("failed", "undecided") for check in untrained)
    return 0 if checks and all(it.outcome == "passed" for it in checks) and is_told_apart else 1


def check_untrained(metrics: dict) -> list[Check]:
    """The thresholds as they would be answered had the training done nothing."""
    config = parse_config(metrics["provenance"]["config"], "metrics.json")
    assert isinstance(config, Config)
    roles = find_roles(config, metrics["quality"])
    as_student = replace(roles, student=roles.untrained, untrained=None)
    return check_student(metrics["quality"], as_student, config.evaluation.min_clip_ratio)


def show(who: str, checks: list[Check]) -> None:
    """One line a threshold."""
    print(f"{who}:")
    for check in checks:
        print(f"  {check.outcome}: {check.question}: {check.finding}")


if __name__ == "__main__":
    raise SystemExit(main(Path(sys.argv[1])))
