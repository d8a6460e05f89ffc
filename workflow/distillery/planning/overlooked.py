"""What Snakemake overlooks: other contents under old names and dates, results without its notes."""

import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from distillery.config.jobs import freeze, frozen_stages, read_frozen
from distillery.config.run import RunConfig
from distillery.config.samples import IMAGES_PER_SHARD
from distillery.config.section import without_result
from distillery.config.teacher import Teacher
from distillery.files import hash_json, read_json
from distillery.hash_cache import hash_large_files
from distillery.notes import Note, error
from distillery.run_folder import RunFolder
from distillery.store.tars import TARS
from distillery.typed import command

if TYPE_CHECKING:  # it imports torch, and a dry run asks here
    from distillery.teacher.folder import PipelineFolder


def on_noted(config: RunConfig, run: RunFolder, has_noted: Callable[[str], bool]) -> Iterator[Note]:
    """Where Snakemake would overlook that the configuration has changed: a stage's frozen one is
    another, or the report is of a run of another name, and there is no note of it.

    It compares settings with its notes in `.snakemake`; results that were moved without them would
    be taken for those of any configuration. `run.json` is written before the first job, and a
    damaged file is told by the job that reads it.

    Args:
        has_noted: whether Snakemake has a note of how a file was made.
    """
    stages = frozen_stages(config, run)
    for frozen in sorted(run.config("x").parent.glob("*.json")):
        if frozen.stem in stages and not has_noted(str(frozen)) and _is_other(frozen, config):
            yield error(
                str(frozen),
                " is of another configuration, and Snakemake has no note of how it was made, so it "
                f"would change nothing: was {run} moved without the folder .snakemake beside "
                f"results/? Bring that too, or run `{command('rm', '-r', frozen.parent)}` and "
                "start again: jobs run again and keep what fits",
            )
            break  # more of them have the same cause and cure
    whole = run.config("run")
    if run.report.is_file() and not has_noted(str(whole)) and _names_other(whole, config):
        yield error(
            str(run.report),
            " is of a run of another name, and Snakemake has no note of how it was made: was the "
            f"folder renamed? Run `{command('rm', whole)}` and start again: the report is made "
            "again, and what else is not up to date",
        )


def _names_other(frozen: Path, config: RunConfig) -> bool:
    """Whether the whole configuration of a run is there and has another name of it."""
    try:
        return bool(read_frozen(frozen)["run"] != config.run)
    except (FileNotFoundError, KeyError, ValueError):
        return False


def _is_other(frozen: Path, config: RunConfig) -> bool:
    """Whether a frozen configuration is whole and not what this one gives."""
    try:
        return read_frozen(frozen) != freeze(config, frozen.stem)
    except ValueError:  # damaged, or a stage that this kind of run has not
        return False


def on_contents(plan: Path, sources: Sequence[str]) -> Iterator[Note]:
    """Files that were exchanged for older ones since they were planned.

    Snakemake compares dates, so nothing would be made again.
    """
    try:
        planned, planned_ns = read_plan(plan).get("sources", {}), plan.stat().st_mtime_ns
    except FileNotFoundError:  # none, or one that a job beside this one is just making again
        return
    known = [source for source in sources if source in planned and Path(source).is_file()]
    for source, digest in hash_sources(known).items():
        is_older = Path(source).stat().st_mtime_ns <= planned_ns
        if is_older and digest != planned[source]:
            yield on_older(source, "when this run was planned")


def on_tars(config: RunConfig, run: RunFolder) -> Iterator[Note]:
    """Tars of images where files are asked for, or tars of another length: their images would be
    drawn again."""
    samples = config.samples
    for model in samples.models:
        folder = run.samples(model).parent
        if not any(folder.glob(TARS)):
            continue
        try:
            before = read_frozen(run.config(f"samples-{model}"))["sampling"]
        except (OSError, ValueError, KeyError):
            before = {}
        length = before.get("images_per_shard", IMAGES_PER_SHARD)
        if samples.store == "files":
            key = "samples.store is files"
        elif length != samples.images_per_shard:
            key = f"samples.images_per_shard is {samples.images_per_shard}, was {length}"
        else:
            continue
        each = f'for tar in {shlex.quote(str(run.sample_folder))}/*/{TARS}; do tar -xf "$tar" -C '
        yield error(
            key,
            f", and {folder} has its images in tar files, of which they would be drawn again",
            f'run `{each}"$(dirname "$tar")" && rm "$tar"; done`, which makes files of them that '
            "the jobs find, and start again",
        )
        break


def on_older(source: str, before: str) -> Note:
    """A file that Snakemake overlooks, and what to run."""
    return error(
        source,
        f" has another content than {before}, and an older date than what was made from it, which "
        "Snakemake overlooks",
        f"run `{command('touch', Path(source))}` and start again",
    )


def hash_sources(sources: Sequence[str]) -> dict[str, str]:
    """Hashes of files; those of large ones are remembered, since many jobs ask."""
    hashes = hash_large_files(map(Path, sources))
    return {source: hashes[Path(source)] for source in sources}


def read_plan(plan: Path) -> dict[str, Any]:
    """A plan, or nothing where there is none, or a damaged one."""
    try:
        return read_json(plan)
    except (FileNotFoundError, ValueError):
        return {}


def hash_settings(teacher: Teacher) -> str:
    """Of those that its results depend on."""
    return hash_json(teacher.model_dump(mode="json", exclude=set(without_result(Teacher))))


def on_same_teacher(
    teacher: Mapping[str, Any], folder: "PipelineFolder", run_folder: RunFolder
) -> Iterator[Note]:
    """A teacher that was exchanged under the same settings.

    Snakemake does not look at its files, so what was made before would stay, and what is made now
    would be of another teacher.
    """
    made = made_by_another(teacher, run_folder)
    if made:
        remove = command("rm", "-r", run_folder.plan, *made)
        yield error(another_teacher(folder), "", f"run `{remove}` and start again")


def made_by_another(teacher: Mapping[str, Any], run_folder: RunFolder) -> list[Path]:
    """The folders that were made by a teacher that was exchanged since under the same settings."""
    before = read_plan(run_folder.plan).get("teacher", {})
    if before.get("settings") != teacher["settings"] or before["hash"] == teacher["hash"]:
        return []
    folders = (run_folder.embedding_folder, run_folder.target_folder, run_folder.sample_folder)
    return [path for path in (*folders, run_folder.student("initial").parent) if path.exists()]


def another_teacher(folder: "PipelineFolder") -> str:
    """What a user is told of it, before the command."""
    files = sorted(set(map(str, folder.files.values())))
    weights = f" with teacher.weights from {' and '.join(files)}" if files else ""
    return (
        f"the teacher in {folder.path}{weights} is not the one that this run was planned with, "
        "though its settings are: put that one back, give this run another name (`run`), or make "
        "all of it again"
    )
