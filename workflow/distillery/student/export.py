"""Export the trained student: a whole Diffusers pipeline that loads with nothing of ours."""

import os
import shutil
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from distillery.families import Family, Schedule
from distillery.files import atomic_path, read_json, write_json, write_text
from distillery.jobs import ExportJob
from distillery.student.model import ABOUT, load_denoiser, save_denoiser
from distillery.teacher import INDEX, family_in, find_teacher, load_scheduler, torch_dtype

TOLERANCE = 1e-6
LINKED_BYTES = 1 << 20
"""Files of this size or more become hard links where they can; people edit the small ones."""

CARD = "model_card.md.j2"


def export_student(job: ExportJob, trained: Path, output: Path) -> None:
    """Write the student's pipeline folder: `DiffusionPipeline.from_pretrained(output)` loads it.

    The teacher's components are taken over as files, byte for byte; the denoiser is the student's
    in the teacher's dtype, and the scheduler takes the steps that it was trained for.

    Args:
        job: frozen configuration.
        trained: folder that scripts/train.py wrote.
        output: folder to write.

    Raises:
        ValueError: the student was trained for another number of steps, or the written scheduler
            does not take the steps it was trained on.
    """
    folder = find_teacher(job.teacher)
    family = family_in(folder)
    about = read_json(trained / ABOUT)
    _check_steps(job, about, trained)
    scheduler = family.few_step_scheduler(load_scheduler(folder), job.student.steps)
    denoiser = load_denoiser(trained, torch_dtype(job.teacher.dtype))
    with atomic_path(output) as temporary:
        index = take_over(folder, temporary, {family.denoiser: denoiser, "scheduler": scheduler})
        save_denoiser(denoiser, temporary / family.denoiser)
        scheduler.save_pretrained(temporary / "scheduler")
        write_json(temporary / INDEX, index)
        check_schedule(family, temporary, about["recipe"]["schedule"])
        write_json(temporary / ABOUT, about)
        write_text(temporary / "README.md", model_card(job, family, about))


def _check_steps(job: ExportJob, about: Mapping[str, Any], trained: Path) -> None:
    """Raise ValueError unless the student was trained for the steps it is exported with."""
    steps = about["recipe"]["steps"]
    if steps != job.student.steps:
        raise ValueError(
            f"student.steps is {job.student.steps}, the student in {trained} was trained for "
            f"{steps}: train it again, or restore the configuration it was trained with"
        )


def take_over(folder: Path, output: Path, replaced: Mapping[str, object]) -> dict[str, Any]:
    """Copy a pipeline's components but those replaced; returns the new model_index.json.

    Args:
        folder: the teacher's.
        output: folder to make.
        replaced: component name to the object that takes its place; it is not written here.
    """
    index = read_json(folder / INDEX)
    index.pop("_name_or_path", None)
    output.mkdir()
    for name, value in index.items():
        if name in replaced:
            index[name] = [value[0], type(replaced[name]).__name__]
        elif isinstance(value, list) and None not in value and (folder / name).is_dir():
            _copy_tree(folder / name, output / name)
    return index


def _copy_tree(source: Path, target: Path) -> None:
    """Copy a folder's files; large ones become hard links, which take no space."""
    for path in sorted(source.rglob("*")):
        if path.is_file() and not path.name.startswith("."):
            copy = target / path.relative_to(source)
            copy.parent.mkdir(parents=True, exist_ok=True)
            _link_or_copy(path.resolve(), copy)


def _link_or_copy(path: Path, copy: Path) -> None:
    """Hard links do not cross file systems, and some have none."""
    if path.stat().st_size >= LINKED_BYTES:
        try:
            os.link(path, copy)
        except OSError:
            pass
        else:
            return
    shutil.copyfile(path, copy)


def check_schedule(family: Family, pipeline: Path, trained: Mapping[str, list[float]]) -> None:
    """Raise ValueError unless the written scheduler takes exactly the steps of the training."""
    steps = len(trained["timesteps"])
    written = family.schedule(load_scheduler(pipeline), steps)
    expected = Schedule(
        tuple(trained["timesteps"]), tuple(trained["alphas"]), tuple(trained["sigmas"])
    )
    error = max(
        abs(ours - theirs) for ours, theirs in zip(_levels(written), _levels(expected), strict=True)
    )
    if written.timesteps != expected.timesteps or error > TOLERANCE:
        raise ValueError(
            f"the exported scheduler takes {asdict(written)}, the student was trained on "
            f"{asdict(expected)}: was the teacher folder's scheduler changed since?"
        )


def _levels(schedule: Schedule) -> tuple[float, ...]:
    return (*schedule.alphas, *schedule.sigmas)


def model_card(job: ExportJob, family: Family, about: Mapping[str, Any]) -> str:
    """README.md of the pipeline: the right call, where the noise comes from, how it was trained."""
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,  # noqa: S701 - Markdown, not HTML
    )
    return environment.get_template(CARD).render(
        teacher=job.teacher,
        targets=job.targets,
        student=job.student,
        max_sequence_length=job.teacher.max_sequence_length or family.max_sequence_length,
        call_options=family.call_options,
        picture=family.picture,
        recipe=about["recipe"],
        recipe_hash=about["recipe_hash"],
        samples_seen=about["samples_seen"],
    )
