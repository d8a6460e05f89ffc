"""Change the code in small ways, one at a time, and see whether a test notices.

    PYTHONPATH=tests python -m mutation [--count 150] [--seed 2026] [--only training/] [--jobs 2]

The first run notes which test runs which function (as long as `make test`, or twice). Each mutant
then meets the tests that run its function, the quickest first, in a copy of the tree. A line tells
what killed it, or that it survived; lines below it name tests that fail without it too, and do not
count. The last line is the score without the mutants that `equivalent_mutants.txt` lists. Started
again, it continues: what was killed stays killed while its module is as it was, survivors are tried
again.
"""

import argparse
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path

from mutation import equivalent, find, running
from mutation.covering import Coverage, collect, note_coverage
from mutation.find import Mutant

ROOT = Path(__file__).parents[2]
PACKAGE = Path("workflow/distillery")
DRAWINGS = {"report/charts.py", "report/score_charts.py"}
"""Their numbers are sizes on a page: eyes judge them."""


def main() -> int:
    """0 if nothing survived that is not listed."""
    options = _parse()
    options.folder.mkdir(parents=True, exist_ok=True)
    found = list(_find_all(options.only))
    mutants = find.pick(found, options.count, options.seed)
    listed = equivalent.read()
    for module, function, text in listed.keys() - {mutant.name for mutant in found}:
        if module.startswith(options.only):
            print(f"listed as equivalent, but no mutant any more: {module} {function}: {text}")
    results = options.folder / "results.jsonl"
    known = _known(results)
    left = [mutant for mutant in mutants if mutant.name not in listed and _key(mutant) not in known]
    print(f"{len(mutants)} mutants, {len(known)} killed before, {len(left)} to try")
    notes = note_coverage(ROOT, options.folder, options.tests, options.jobs)
    coverage = Coverage(notes, collect(ROOT))
    done = dict(known)
    for result in running.run_all(left, coverage, options.folder, options.jobs):
        print(result.line, flush=True)
        if result.is_killed:
            done[_key(result.mutant)] = result.killer
            with results.open("a", encoding="utf-8") as file:
                file.write(json.dumps([*_key(result.mutant), result.killer]) + "\n")
    return _tell(mutants, listed, done)


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m mutation", description=__doc__)
    parser.add_argument("--count", type=int, default=150, help="mutants to pick")
    parser.add_argument("--seed", type=int, default=2026, help="which ones")
    parser.add_argument("--only", default="", help="begin of the modules' paths, e.g. training/")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="mutants at a time")
    parser.add_argument("--folder", type=Path, default=ROOT / ".mutants", help="for all it writes")
    parser.add_argument("--tests", nargs="+", default=["tests"], help="what may kill them")
    options = parser.parse_args()
    options.folder = options.folder.resolve()
    return options


def _find_all(only: str) -> Iterator[Mutant]:
    package = ROOT / PACKAGE
    for path in sorted(package.rglob("*.py")):
        module = path.relative_to(package).as_posix()
        if module.startswith(only) and module not in DRAWINGS:
            yield from find.find(path.read_bytes(), module)


def _key(mutant: Mutant) -> tuple[str, str, str, str]:
    """Its name, and the state of its module."""
    return *mutant.name, running.digest(ROOT / PACKAGE / mutant.module)


def _known(results: Path) -> dict[tuple[str, ...], str]:
    if not results.exists():
        return {}
    records = map(json.loads, results.read_text(encoding="utf-8").splitlines())
    return {tuple(key): killer for *key, killer in records}


def _tell(
    mutants: list[Mutant], listed: dict[tuple[str, str, str], str], done: dict[tuple[str, ...], str]
) -> int:
    counted = [mutant for mutant in mutants if mutant.name not in listed]
    survivors = [mutant for mutant in counted if _key(mutant) not in done]
    if survivors:
        print("\nsurvivors, in the form of tests/mutation/equivalent_mutants.txt:\n")
        print("\n\n".join(equivalent.write(mutant) for mutant in survivors))
    killed = len(counted) - len(survivors)
    share = killed / len(counted) if counted else 1.0
    print(
        f"\n{killed} of {len(counted)} killed: {share:.1%}; {len(mutants) - len(counted)} more are "
        "listed as equivalent"
    )
    return 1 if survivors else 0


if __name__ == "__main__":
    sys.exit(main())
