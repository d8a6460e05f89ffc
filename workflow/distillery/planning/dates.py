"""Find what Snakemake's dates hide: results that are not of what lies before them.

Snakemake compares dates first, and hashes only to leave out what is newer and yet the same. So it
is told which outputs to make again. A clock that was set back, a copy or a backup then hides
nothing, and what fits is made again by no one.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path

from distillery.config.run import RunConfig
from distillery.files import hash_file
from distillery.input_images import has_changed_images
from distillery.run_folder import RunFolder
from distillery.store.belonging import (
    find_foreign,
    foreign_frozen,
    foreign_pages,
    foreign_samples,
)
from distillery.store.tables import read_table

WILDCARD = re.compile(r"\{[^{}]*\}")
"""In a declared output, maybe with what it may stand for: {shard}, {split,train|eval}."""
STAMP = ".snakemake_timestamp"


def hidden_outputs(
    config: RunConfig,
    run: RunFolder,
    declared: Iterable[str],
    noted_inputs: Callable[[str], Mapping[str, str]],
) -> set[Path]:
    """What was made from something else than what is there, which Snakemake would overlook.

    Nothing is written, so that a dry run may ask.

    Args:
        declared: outputs of all rules, with wildcards in braces.
        noted_inputs: the hashes of what a file was made from, by Snakemake's note of it.
    """
    found = set(_of_changed_inputs(run, declared, noted_inputs)) | set(_of_changed_images(run))
    # By their settings alone Snakemake takes one for its own that was copied from another run.
    found |= foreign_frozen(config, run).keys()
    for foreign in (
        *find_foreign(config, run),
        *foreign_samples(config, run),
        *foreign_pages(config, run),
    ):
        found |= set(foreign.outputs)
    return found


def date_of(path: Path) -> int:
    """When a file was made, or a folder that a rule makes, in ns; 0 for none."""
    stamp = path / STAMP
    try:
        return (stamp if stamp.is_file() else path).stat().st_mtime_ns
    except OSError:
        return 0


def _of_changed_inputs(
    run: RunFolder, declared: Iterable[str], noted_inputs: Callable[[str], Mapping[str, str]]
) -> Iterator[Path]:
    """What was made from files of the run that are older and no longer what they were then."""
    digest = cache(hash_file)
    patterns = {Path(WILDCARD.sub("*", output)) for output in declared}
    inside = [str(it.relative_to(run.path)) for it in patterns if it.is_relative_to(run.path)]
    for output in (path for pattern in inside for path in run.path.glob(pattern)):
        for name, expected in noted_inputs(str(output)).items():
            path = Path(name)
            if not path.is_relative_to(run.path) or not path.is_file():
                continue
            if date_of(path) <= date_of(output) and digest(path) != expected:
                yield output


def _of_changed_images(run: RunFolder) -> Iterator[Path]:
    """Prompt tables of images that have changed since; no rule names these files."""
    for table in (run.prompts(split) for split in ("train", "eval")):
        with suppress(OSError, ValueError):  # none yet, or the job that reads it says what is wrong
            if has_changed_images(read_table(table), date_of(table)):
                yield table
