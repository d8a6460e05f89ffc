"""Fail unless the demo's student passes every threshold of its report.

python .ci/check_demo.py results/demo
"""

import json
import sys
from pathlib import Path


def main(run: Path) -> int:
    """Print every threshold with its finding; 1 if one was missed or not measured."""
    metrics = json.loads((run / "report/metrics.json").read_text())
    checks = metrics["verdict"]
    for check in checks:
        print(
            f"{'passed' if check['passed'] else 'MISSED'}: {check['question']}: {check['finding']}"
        )
    return 0 if checks and all(check["passed"] for check in checks) else 1


if __name__ == "__main__":
    raise SystemExit(main(Path(sys.argv[1])))
