"""Two runs that are asked for by the name of their comparison."""

import re
from collections.abc import Sequence
from difflib import get_close_matches
from pathlib import Path

from distillery.notes import error, refuse
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
        ValueError: a run is not there or has no results, both are the same, or it may be of
            several pairs.
    """
    names = _ways_to_read(pair)
    there = [each for each in names if not _missing(each, results)]
    if not there:
        nearest = min((_missing(each, results) for each in names), key=len)
        raise ValueError(_explain_missing(nearest, results))
    if len(there) > 1:
        ways = " or ".join(f"{first} with {second}" for first, second in there)
        raise ValueError(
            f"{pair} may compare {ways}: link a folder in {results} under a name without {BETWEEN} "
            "and ask for that"
        )
    first, second = there[0]
    if first == second:
        raise ValueError(f"{pair} compares {first} with itself: name two runs")
    runs = RunFolder(results / first), RunFolder(results / second)
    refuse(
        error(
            str(run),
            " holds no results of a run, neither config/run.json nor samples/*/manifest.parquet "
            "nor evaluation/scores.parquet",
            "make the run first, by snakemake --cores all --configfile FILE, where FILE says run: "
            f"{run.path.name}",
        )
        for run in runs
        if not run.compared
    )
    return runs


def compared_files(pair: str) -> list[str]:
    """What a comparison reads, with times of change: by it Snakemake sees what is new.

    As input files they would be made again by a configuration that has changed since.
    """
    runs = two_runs(pair)
    reports = [run.report for run in runs if run.report.is_file()]  # linked if they are there
    files = [*(path for run in runs for path in run.compared), *reports]
    return [f"{path} {path.stat().st_mtime_ns}" for path in files]


def reported_files(results: Path = Path("results")) -> list[str]:
    """The numbers of all runs' reports, with times of change: what the page of all runs is of."""
    files = sorted(results.glob("*/report/metrics.json"))
    return [f"{path} {path.stat().st_mtime_ns}" for path in files]


def _missing(names: Sequence[str], results: Path) -> list[str]:
    """Which of the runs have no folder."""
    return [name for name in names if not (results / name).is_dir()]


def _explain_missing(missing: Sequence[str], results: Path) -> str:
    """What is not there, what may be meant, and what there is."""
    folders = sorted(results.iterdir()) if results.is_dir() else []
    runs = [path.name for path in folders if path.is_dir() and RunFolder(path).compared]
    near = [name for each in missing for name in get_close_matches(each, runs, n=1)]
    meant = f", did you mean {listed(near)}" if near else ""
    paths = listed([str(results / name) for name in missing])
    return (
        f"{paths} {'are' if len(missing) > 1 else 'is'} not there{meant}: a comparison needs two "
        f"runs' results; {results} has {', '.join(runs) or 'none'}"
    )


def _ways_to_read(pair: str) -> list[tuple[str, str]]:
    """All pairs of names that it may stand for."""
    places = (found.start() for found in re.finditer(f"(?={BETWEEN})", pair))
    ways = ((pair[:place], pair[place + len(BETWEEN) :]) for place in places)
    return [way for way in ways if all(way)]
