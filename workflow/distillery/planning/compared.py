"""Two runs that are asked for by the name of their comparison."""

import re
from pathlib import Path

from distillery.run_folder import RunFolder
from distillery.words import listed

BETWEEN = "-vs-"
"""Stands between the names, and may be part of one."""


def two_runs(pair: str, results: Path = Path("results")) -> tuple[RunFolder, RunFolder]:
    """The runs of a comparison.

    Args:
        pair: their names with -vs- between; where a name has it too, the folders tell.
        results: has the folders of all runs.

    Raises:
        ValueError: a run is not there, both are the same, or it may be of several pairs.
    """
    names = _ways_to_read(pair)
    there = [each for each in names if all((results / name).is_dir() for name in each)]
    if not there:
        missing = [results / name for name in names[0] if not (results / name).is_dir()]
        raise ValueError(
            f"{listed([str(path) for path in missing])} {'are' if len(missing) > 1 else 'is'} not "
            "there: a comparison needs two runs' results; make them first"
        )
    if len(there) > 1:
        ways = " or ".join(f"{first} with {second}" for first, second in there)
        raise ValueError(
            f"{pair} may compare {ways}: link a folder in {results} under a name without {BETWEEN} "
            "and ask for that"
        )
    first, second = there[0]
    if first == second:
        raise ValueError(f"{pair} compares {first} with itself: name two runs")
    return RunFolder(results / first), RunFolder(results / second)


def compared_files(pair: str) -> list[str]:
    """What a comparison reads, with times of change: by it Snakemake sees what is new.

    As input files they would be made again by a configuration that has changed since.
    """
    files = [path for run in two_runs(pair) for path in run.compared]
    return [f"{path} {path.stat().st_mtime_ns}" for path in files]


def _ways_to_read(pair: str) -> list[tuple[str, str]]:
    """All pairs of names that it may stand for."""
    places = (found.start() for found in re.finditer(f"(?={BETWEEN})", pair))
    ways = ((pair[:place], pair[place + len(BETWEEN) :]) for place in places)
    return [way for way in ways if all(way)]
