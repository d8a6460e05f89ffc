"""What `verify` finds that is whole and yet belongs to another configuration or another student."""

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import torch

from distillery.config.jobs import SamplesJob, read_job
from distillery.config.run import Config, RunConfig
from distillery.files import read_json, read_sealed
from distillery.generation.sample_maker import SampleMaker
from distillery.measures.manifests import read_samples, why_not_scored
from distillery.model_folder import METADATA, read_metadata
from distillery.planning.overlooked import another_teacher, hash_settings, made_by_another
from distillery.planning.prompt_tables import read_splits
from distillery.planning.there import has_changed
from distillery.run_folder import RunFolder
from distillery.store.belonging import (
    find_foreign,
    foreign_frozen,
    foreign_pages,
    is_frozen,
    pipeline_of,
    why_not_losses,
)
from distillery.store.embeddings import holds_texts
from distillery.store.tables import read_table
from distillery.teacher.adapters import teacher_hash
from distillery.teacher.folder import find_teacher
from distillery.telemetry import Reporter


@dataclass(frozen=True)
class Item:
    """One file or folder of a run.

    Attributes:
        find_problem: reads it; returns why it is damaged, or None.
        manifests: finds what goes with it, so that Snakemake makes it again.
        is_asked_for: whether the rule `all` asks for it, or for what is made of it.
        is_listed: whether it is a result, or the file of one that a manifest lists.
        is_removed: whether it is made again only where it is gone; not so a tar, in which a job
            makes again what is damaged.
    """

    path: Path
    find_problem: Callable[[], str | None]
    manifests: Callable[[], list[Path]] = list
    is_asked_for: bool = True
    is_listed: bool = True
    is_removed: bool = True


@dataclass(frozen=True)
class Damage:
    """A damaged item, and why it is."""

    item: Item
    why: str


def strangers(
    config: RunConfig, run: RunFolder, reporter: Reporter, is_whole: bool = True
) -> list[Damage]:
    """What is there of a run and not of its configuration, with what is made again for it.

    Args:
        reporter: for what it takes to know the images' recipe.
        is_whole: whether nothing is damaged, so that pages can be told from those of other results.
    """
    found = list(_of_results(config, run, reporter))
    if is_whole and not found:
        pages = foreign_pages(config, run)
        found += [_stranger(each.path, each.why, *each.made_with) for each in pages]
    if isinstance(config, Config):
        found += _foreign_card(config, run)
    return found


def _of_results(config: RunConfig, run: RunFolder, reporter: Reporter) -> Iterator[Damage]:
    replaced = list(_of_another_teacher(config, run))
    if replaced:  # all of it is made again
        yield from replaced
        return
    for each in find_foreign(config, run):
        why = f"it is whole, but does not follow from {run.config(each.stage)}: {each.why}"
        yield _stranger(each.path, why, *each.made_with)
    yield from _foreign_texts(config, run)
    for model in config.samples.models:
        yield from _foreign_images(config, run, model, reporter)
    if isinstance(config, Config):
        yield from _foreign_losses(config, run)
        yield from _foreign_scores(config, run)


def other_settings(config: RunConfig, run: RunFolder) -> list[str]:
    """A line for each stage that was frozen with other settings than the run's configuration has:
    what follows from it is whole, and the next call makes it again."""
    return [
        f"{path} is of other settings than {run.config('run')} ({how}): the next call of the "
        "workflow makes again what follows from it"
        for path, how in foreign_frozen(config, run).items()
    ]


def _stranger(path: Path, why: str, *made_with: Path) -> Damage:
    there = [each for each in made_with if each.exists()]
    return Damage(Item(path, lambda: why, lambda: there), why)


def _of_another_teacher(config: RunConfig, run: RunFolder) -> Iterator[Damage]:
    """All that was made by a teacher whose files were exchanged since; nothing without it."""
    if not Path(config.teacher.path).exists():
        return
    with suppress(OSError, ValueError):  # told by whoever reads the teacher
        folder = find_teacher(config.teacher)
        teacher = {
            "hash": teacher_hash(config.teacher, folder),
            "settings": hash_settings(config.teacher),
        }
        for path in made_by_another(teacher, run):
            yield _stranger(path, another_teacher(folder), run.plan)


def _foreign_texts(config: RunConfig, run: RunFolder) -> Iterator[Damage]:
    """Prompts that are not those of the prompt files, where these are here, and embeddings of
    others than the prompts."""
    tables = {}
    with suppress(OSError, ValueError):
        tables = read_splits(config.prompts, config.teacher)
    for split, table in tables.items():
        if has_changed(run.prompts(split), table):
            why = f"it is not what {config.prompts.file(split)} holds"
            yield _stranger(run.prompts(split), why)
    for split in ("train", "eval"):
        with suppress(OSError, ValueError):  # told by whoever reads what is damaged or gone
            if not holds_texts(run.embeddings(split), read_table(run.prompts(split))):
                why = f"it is whole, but of other texts than {run.prompts(split)}"
                yield _stranger(run.embeddings(split), why)


def _foreign_images(
    config: RunConfig, run: RunFolder, model: str, reporter: Reporter
) -> Iterator[Damage]:
    """A model's images of another recipe than its pipeline and its configuration give.

    Without a teacher on this machine nothing is told of the teacher's.
    """
    manifest, stage = run.samples(model), f"samples-{model}"
    source = config.samples.models[model].source
    if not manifest.is_file() or not is_frozen(config, run, stage):
        return
    if source == "teacher" and not Path(config.teacher.path).exists():
        return
    pipeline = pipeline_of(config, run, source)
    with suppress(OSError, ValueError):  # told by whoever reads what is damaged or gone
        job = read_job(run.config(stage), SamplesJob)
        prompts, embeddings = read_table(run.prompts("eval")), run.embeddings("eval")
        place = manifest.parent, torch.device("cpu"), reporter
        maker = SampleMaker(job, prompts, embeddings, pipeline, *place)
        found = set(read_table(manifest)["recipe"])
        if found != {maker.sample_store.recipe_hash}:
            made_by = pipeline or config.teacher.path
            why = f"its images are not those of {made_by} under {run.config(stage)}"
            yield _stranger(manifest, why, *manifest.parent.glob("shard-*.parquet"))


def _foreign_losses(config: Config, run: RunFolder) -> Iterator[Damage]:
    """The losses of another training than that of the student beside them."""
    pairs = {run.loss: "trained"}
    for rounds in range(len(config.training.round_numbers)):
        pairs[run.loss_after(str(rounds))] = f"trained-{rounds}-rounds"
    for losses, trained in pairs.items():
        if why := why_not_losses(losses, run.student(trained)):
            yield _stranger(losses, why)


def _foreign_scores(config: Config, run: RunFolder) -> Iterator[Damage]:
    """The scores, where they are of other images, as those of another run that were copied."""
    paths = {model: run.samples(model) for model in config.samples.models}
    with suppress(OSError, ValueError):  # told by whoever reads what is damaged or gone
        quality = read_sealed(run.quality)
        samples = {it: read_samples(it, path) for it, path in paths.items() if path.is_file()}
        if why := why_not_scored(run, quality, samples):
            yield _stranger(run.quality, why, run.scores)


def _foreign_card(config: Config, run: RunFolder) -> Iterator[Damage]:
    """The card beside the report, where it is of another student than the pipeline's folder, or
    what is gone of it though the report judges a student."""
    card, pipeline = run.card, config.student_run(run).student("pipeline")
    with suppress(OSError, ValueError, KeyError):
        if run.report.is_file() and read_json(run.metrics)["verdict"]:
            for path in (card, run.strip):
                if not path.is_file():
                    yield _stranger(path, "it is missing", run.report, run.metrics)
    if not card.is_file() or not (pipeline / METADATA).is_file():
        return
    with suppress(OSError, ValueError, KeyError):
        recipe = read_metadata(pipeline)["recipe_hash"]
        if f"`{recipe}`" not in card.read_text(encoding="utf-8"):
            why = f"it is of another student than {pipeline}, whose recipe is {recipe[:12]}"
            yield _stranger(card.parent, why, run.report, run.metrics)
