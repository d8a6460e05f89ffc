"""Export a student as a Diffusers pipeline, the trained one with a model card."""

import inspect
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from distillery.config.jobs import ExportJob
from distillery.families import Family, Size, flow_map_of
from distillery.families.protocol import Denoiser
from distillery.files import atomic_path, write_json, write_text
from distillery.model_folder import (
    copy_permissions,
    full_disk_as_os_error,
    hash_model,
    read_metadata,
    save_denoiser,
    write_metadata,
)
from distillery.run_folder import RunFolder
from distillery.schedulers import Scheduler
from distillery.store.belonging import check_student_of
from distillery.store.recipes import TrainingRecipe
from distillery.student.info import TIME_FILE
from distillery.student.lora import LORA_FILE, has_lora
from distillery.student.lora_names import write_other_names
from distillery.student.on_disk import load_student
from distillery.student.schedule import check_exported, few_step_scheduler
from distillery.student.time_embeddings import has_time_embeddings
from distillery.student.usage import lora_code, noise_levels, student_code, time_code
from distillery.teacher.components import INDEX
from distillery.teacher.folder import PipelineFolder, find_teacher
from distillery.teacher.loading import is_in_folder, load_changed, torch_dtype
from distillery.teacher.origin import find_origin
from distillery.teacher.skeleton import load_skeleton
from distillery.teacher.solver import load_scheduler
from distillery.teacher.weights import link_or_copy, plain_name, weights_in, weights_of
from distillery.words import alternatives, listed

TEMPLATES = Path(__file__).resolve().parents[1] / "student"
CARD = "README.md"
"""Of a pipeline."""
CARD_TEMPLATE = "model_card.md.j2"
INITIAL = "initial"
"""Folder of the student before its training."""
LORA = "lora"
"""Folder of the additions alone, in the pipeline of a student that was trained by them."""
UNTRAINED = """# The student before its training

It has learned nothing. It is sampled beside the student, to show what the training changed.
"""


def export_student(
    job: ExportJob, student: Path, output: Path, run_folder: RunFolder | None = None
) -> None:
    """Write the student's pipeline folder: `DiffusionPipeline.from_pretrained(output)` loads it.

    The teacher's components are taken over as files, byte for byte, but for text encoders that its
    adapters change and for weights from files of their own; the denoiser is the student's in the
    teacher's dtype, and the scheduler takes the steps that it was trained for.

    Args:
        student: folder of the trained student, or of the one before training.
        output: pipeline folder to write.
        run_folder: that the student has to belong to; None: to any.

    Raises:
        ValueError: the trained student is damaged, not of this run, or was trained for another
            number of steps, or the written scheduler does not take the steps it was trained on.
    """
    folder, any_step = find_teacher(job.teacher), job.student.is_flow_map
    family = flow_map_of(folder.family) if any_step else folder.family
    if run_folder is not None:
        check_student_of(run_folder, student, is_trained=student.name != INITIAL)
    about = {**read_metadata(student), "of": hash_model(student)}
    about.pop("origin", None)
    trained = TrainingRecipe.from_json(about["recipe"]) if "recipe" in about else None
    if trained:
        _check_steps(job, trained, student)
    shape = family.latent_shape(load_skeleton(folder), Size.of(job.teacher))
    scheduler = few_step_scheduler(
        folder.family,
        load_scheduler(folder, job.teacher),
        job.targets.steps,
        job.student.steps,
        shape,
        any_step,
    )
    denoiser = load_student(student, torch_dtype(job.teacher.dtype))
    with atomic_path(output) as temporary:
        index = take_over(folder, temporary, denoiser, scheduler)
        if any_step:
            index = _in_class(index, family.pipeline_classes[0])
        _write_changed(job, folder, temporary)
        save_denoiser(denoiser, temporary / family.denoisers[0])
        scheduler.save_pretrained(temporary / "scheduler")
        write_json(temporary / INDEX, index)
        exported = PipelineFolder(temporary)
        if trained:
            check_exported(family, load_scheduler(exported), trained)
        absent = dict.fromkeys(exported.components_left_out)
        if folder.signature is not None:
            about["signature"] = folder.signature
        about["call"] = right_call(job, family, denoiser) | {"absent": absent}
        if trained:
            about |= _learned_alone(job, folder, student, temporary, denoiser, scheduler)
        write_metadata(temporary, about)
        card = model_card(job, about, find_origin(job.teacher, folder)) if trained else UNTRAINED
        write_text(temporary / CARD, card)


def _learned_alone(
    job: ExportJob,
    folder: PipelineFolder,
    student: Path,
    output: Path,
    denoiser: Denoiser,
    scheduler: Scheduler,
) -> dict[str, Any]:
    """Write what alone was trained into the pipeline's folder, where that is not all.

    Returns:
        What the card says of it, under its name; nothing of a student that was trained whole.
    """
    if not has_lora(student) and not has_time_embeddings(student):
        return {}
    network = read_metadata(student)["student"]["network"]
    beside = lora_call(folder, network, scheduler)
    if has_lora(student):
        (output / LORA).mkdir()
        additions = output / LORA / LORA_FILE
        shutil.copyfile(student / LORA_FILE, additions)
        other_names = write_other_names(additions, type(denoiser).__name__)
        return {"lora": {**beside, "comfyui": other_names}}
    # With adapters or weights of a file, its folder alone would give another student.
    if is_in_folder(job.teacher, folder, network):
        shutil.copyfile(student / TIME_FILE, output / TIME_FILE)
        return {"time_embeddings": {**beside, "place": folder.family.denoisers[0]}}
    return {}


def _check_steps(job: ExportJob, recipe: TrainingRecipe, trained: Path) -> None:
    """Raise ValueError unless the student was trained for the steps it is exported with."""
    steps = recipe.steps
    if steps != job.student.steps:
        raise ValueError(
            f"student.steps is {job.student.steps}, the student in {trained} was trained for "
            f"{steps}: train it again, or restore the configuration it was trained with"
        )


def take_over(
    folder: PipelineFolder, output: Path, denoiser: Denoiser, scheduler: Scheduler
) -> dict[str, Any]:
    """Copy a pipeline's components but denoisers and scheduler; returns the new model_index.json.

    The weights files of the folder's variant become the plain ones.

    Args:
        denoiser, scheduler: the student's, which are not written here.
    """
    family, index = folder.family, dict(folder.index)
    index.pop("_name_or_path", None)
    output.mkdir()
    own = {family.denoisers[0]: denoiser, "scheduler": scheduler}
    for name in index:
        if name in own:
            index[name] = ["diffusers", type(own[name]).__name__]
        elif name in family.denoisers:
            index[name] = [None, None]
        elif name in folder.components and (folder.path / name).is_dir():
            _copy_tree(folder.path / name, output / name, folder.variant)
    return index | dict(family.single_network)


def _write_changed(job: ExportJob, folder: PipelineFolder, output: Path) -> None:
    """Write the networks beside the denoisers that are not as in the teacher's folder."""
    for name, network in load_changed(job.teacher, folder).items():
        # Hard links: writing over the copy would write over the teacher.
        shutil.rmtree(output / name)
        with full_disk_as_os_error(output / name):
            network.save_pretrained(output / name)
        copy_permissions(output / name)


def _in_class(index: Mapping[str, Any], pipeline_class: str) -> dict[str, Any]:
    """A model_index.json for another class, without what that does not take."""
    import diffusers

    taken = inspect.signature(getattr(diffusers, pipeline_class).__init__).parameters
    kept = {name: it for name, it in index.items() if name.startswith("_") or name in taken}
    return kept | {"_class_name": pipeline_class}


def _copy_tree(source: Path, target: Path, variant: str | None) -> None:
    """Copy a component's files; large ones become hard links, which take no space.

    Of its weights only the set that is read, under plain names.
    """
    left_out = set(weights_in(source)) - set(weights_of(source, variant))
    for path in sorted(set(source.rglob("*")) - left_out):
        if path.is_file() and not path.name.startswith("."):
            name = plain_name(path.name) if path in weights_in(source) else path.name
            copy = target / path.relative_to(source).with_name(name)
            copy.parent.mkdir(parents=True, exist_ok=True)
            link_or_copy(path, copy)


def right_call(job: ExportJob, family: Family, denoiser: Denoiser) -> dict[str, Any]:
    """How the student's pipeline is called: `arguments`, and where the result has its `image`, or
    its `clip` and how many frames of it are played in a second, `fps`; `takes_image` is the
    argument that takes the prompt's image, where there is one.

    `dtypes` are the samples' number types by component, `cast_latents` says whether they need what
    the stock call does not do, and `absent`, which is added where the folder is known, are
    components that `from_pretrained` is to leave out.
    """
    teacher = job.teacher
    is_guided_by_input = family.has_guidance_embedding(denoiser.config)  # type: ignore[arg-type]
    length = teacher.max_sequence_length or family.max_sequence_length
    scale = job.targets.guidance_scale if is_guided_by_input else family.no_guidance
    arguments = {
        "num_inference_steps": job.student.steps,
        **({family.guidance_argument: scale} if family.guidance_argument else {}),
        "height": teacher.height,
        "width": teacher.width,
        **family.frames(Size.of(teacher)),
        **family.call_options(length),
        "output_type": "pil",
    }
    return {
        "arguments": arguments,
        "dtypes": {"default": teacher.dtype, "vae": teacher.vae_dtype},
        **({"vae_tiling": True} if teacher.vae_tiling else {}),
        "cast_latents": teacher.vae_dtype != teacher.dtype and not family.casts_latents,
        "image": family.image,
        **({"clip": family.clip, "fps": teacher.fps} if teacher.num_frames > 1 else {}),
        **({"takes_image": teacher.image_argument} if teacher.image_argument else {}),
    }


def lora_call(folder: PipelineFolder, network: str, scheduler: Scheduler) -> dict[str, Any]:
    """What the teacher's pipeline needs beside a student's additions or time embeddings.

    Args:
        network: the one of its networks that they belong to.
        scheduler: of the student, which replaces the teacher's.

    Returns:
        `scheduler`, its class; for a teacher of several networks also the `modules` that its
        pipeline gets, each the name of one that it has or None, and the `settings` it gets.
    """
    family, several = folder.family, len(folder.denoisers) > 1
    place, *others = family.denoisers
    return {
        "scheduler": type(scheduler).__name__,
        "modules": {place: network} | dict.fromkeys(others) if several else {},
        "settings": dict(family.single_network) if several else {},
    }


def model_card(job: ExportJob, about: Mapping[str, Any], origin: Mapping[str, str]) -> str:
    """README.md of the pipeline: the right call, where the noise comes from, how it was trained.

    Args:
        origin: of the teacher, see `find_origin`.
    """
    # A student of an earlier release does not say which sizes it has learnt.
    sizes = about.get("sizes", [(job.teacher.height, job.teacher.width)])
    environment = Environment(
        loader=FileSystemLoader(TEMPLATES),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,  # noqa: S701 - Markdown, not HTML
    )
    return environment.get_template(CARD_TEMPLATE).render(
        teacher=job.teacher,
        targets=job.targets,
        student=job.student,
        numbers=alternatives(job.student.numbers_of_steps),
        call=about["call"],
        code=student_code(about["call"]),
        lora_code=lora_code(about["lora"], about["call"], job.teacher) if "lora" in about else None,
        time_code=time_code(about["time_embeddings"], about["call"], job.teacher)
        if "time_embeddings" in about
        else None,
        comfyui=about.get("lora", {}).get("comfyui"),
        student_info=about.get("student"),
        recipe=about["recipe"],
        levels=[] if job.student.is_flow_map else noise_levels(about["recipe"]["schedule"]),
        recipe_hash=about["recipe_hash"],
        samples_seen=about["samples_seen"],
        sizes=listed([f"{width} \N{MULTIPLICATION SIGN} {height}" for height, width in sizes]),
        header=card_header(
            origin,
            "lora" in about,
            job.teacher.num_frames > 1,
            job.teacher.image_argument is not None,
        ),
        license=origin.get("license_name") or origin.get("license"),
    )


def card_header(
    origin: Mapping[str, str], is_lora: bool, is_of_clips: bool = False, takes_image: bool = False
) -> str:
    """The header of a model card, as the hub reads it: YAML, without its marks."""
    from huggingface_hub import ModelCardData

    relation = "adapter" if is_lora else "finetune"
    source = "image" if takes_image else "text"
    known: dict[str, Any] = dict(origin)
    if "base_model" in known:
        known["base_model_relation"] = relation
    data = ModelCardData(
        library_name="diffusers",
        pipeline_tag=f"{source}-to-{'video' if is_of_clips else 'image'}",
        tags=["distillation", "few-step", *["lora"] * is_lora],
        **known,
    )
    return str(data.to_yaml())
