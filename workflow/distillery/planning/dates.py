"""Make Snakemake see what its dates hide: results that are not of what lies before them.

Snakemake compares dates first, and hashes only to leave out what is newer and yet the same. So an
input of another content gets a date that is later than that of what was made from it. A clock that
was set back, a copy or a backup then hides nothing, and what fits is made again by no one.
"""

import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path

from distillery.config.run import RunConfig
from distillery.files import hash_file
from distillery.run_folder import RunFolder
from distillery.store.belonging import Foreign, find_foreign, is_frozen, why_not_samples

MADE = (
    "prompts/*.parquet", "embeddings/*/manifest.json", "targets/*.json", "rounds/*/*.json",
    "rounds/*/states/*.json", "student/*", "samples/*/*.parquet", "dataset/*", "evaluation/*",
    "report/*", "gallery",
)  # fmt: skip
"""All that rules make of other files of a run, in its folder."""
STAMP = ".snakemake_timestamp"
SECOND_NS = 10**9


def mend_dates(
    config: RunConfig,
    run: RunFolder,
    noted_inputs: Callable[[str], Mapping[str, str]],
    forget: Callable[[str], None],
) -> list[str]:
    """Date what Snakemake would overlook later than what was made from something else.

    Args:
        config: of the run.
        run: its folder.
        noted_inputs: the hashes of what a file was made from, by Snakemake's note of it.
        forget: drops that note.

    Returns:
        Nothing, as the inputs that a rule has by it.

    Raises:
        ValueError: the file cannot be dated, since it is another user's.
    """
    made = [path for pattern in MADE for path in run.path.glob(pattern)]
    if not made:
        return []
    latest = max(max(map(date_of, made)) + SECOND_NS, time.time_ns())
    changed = set(_changed_inputs(run, made, noted_inputs))
    for foreign in [*find_foreign(config, run), *_samples_without_note(config, run, noted_inputs)]:
        frozen = run.config(foreign.stage)
        if date_of(frozen) > date_of(foreign.path) and not noted_inputs(str(foreign.path)):
            continue  # which Snakemake sees
        for output in foreign.outputs:
            forget(str(output))
        changed.add(frozen)
    for path in sorted(changed):
        _date(path, latest)
    return []


def date_of(path: Path) -> int:
    """When a file was made, or a folder that a rule makes, in ns; 0 for none."""
    stamp = path / STAMP
    try:
        return (stamp if stamp.is_file() else path).stat().st_mtime_ns
    except OSError:
        return 0


def _changed_inputs(
    run: RunFolder, made: Iterable[Path], noted_inputs: Callable[[str], Mapping[str, str]]
) -> Iterator[Path]:
    """Files of the run that are no longer what something later was made from."""
    digest = cache(hash_file)
    for output in made:
        for name, expected in noted_inputs(str(output)).items():
            path = Path(name)
            if not path.is_relative_to(run.path) or not path.is_file():
                continue
            if date_of(path) <= date_of(output) and digest(path) != expected:
                yield path


def _samples_without_note(
    config: RunConfig, run: RunFolder, noted_inputs: Callable[[str], Mapping[str, str]]
) -> Iterator[Foreign]:
    """Images of another configuration whose making Snakemake has not noted."""
    for model in config.samples.models:
        manifest, stage = run.samples(model), f"samples-{model}"
        if not manifest.is_file() or noted_inputs(str(manifest)):
            continue
        why = why_not_samples(config, run, model) if is_frozen(config, run, stage) else ""
        if why:
            shards = tuple(manifest.parent.glob("shard-*.parquet"))
            yield Foreign(manifest, stage, why, shards)


def _date(path: Path, when_ns: int) -> None:
    """Set a file's date."""
    try:
        os.utime(path, ns=(when_ns, when_ns))
    except OSError as error:
        raise ValueError(
            f"{path} has another content than what was made from it, and an older date, which "
            f"Snakemake overlooks; its date cannot be set ({error.strerror}): let its owner run "
            "the same command"
        ) from error
