"""Build the student before training, from the teacher's denoiser alone."""

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import torch
from diffusers import UNet2DConditionModel

from distillery.config.jobs import StudentJob, hash_origin
from distillery.config.student import OF_TEACHER, Student
from distillery.families import Family, flow_map_of
from distillery.families.protocol import Denoiser
from distillery.files import atomic_path
from distillery.model_folder import (
    load_denoiser,
    load_denoiser_skeleton,
    save_denoiser,
    write_metadata,
)
from distillery.student.custom_shape import copy_weights, make_shape, read_shape
from distillery.student.info import StudentInfo
from distillery.student.layers import average_dropped, blocks_of, keep_blocks, resolve_layers
from distillery.student.lora import add_lora, check_lora, count_lora, save_lora
from distillery.student.start import find_start, told_of_teacher
from distillery.student.time_embeddings import save_time_embeddings, time_embeddings_of
from distillery.student.unet import shrink_unet
from distillery.teacher.adapters import denoiser_hash
from distillery.teacher.folder import PipelineFolder, find_teacher
from distillery.teacher.loading import is_in_folder, load_adapted
from distillery.teacher.weights import link_network


def plan_student(student: Student, folder: PipelineFolder) -> StudentInfo:
    """What the student will be made of, found in a second by building it without weights.

    Raises:
        FileNotFoundError, ValueError: as `build_student`.
    """
    network = choose_expert(folder.denoisers, student.expert)
    teacher = load_denoiser_skeleton(folder.path / network)
    if student.start_from is None:
        return make_student(student, teacher, folder.family, network, seed=0)[1]
    start = find_start(Path(student.start_from), teacher, folder.family)
    begun = load_denoiser_skeleton(start.network)
    info = make_student(student, begun, folder.family, network, seed=0)[1]
    return told_of_teacher(info, start, _count(teacher))


def make_student(
    student: Student, teacher: Denoiser, family: Family, network: str, seed: int
) -> tuple[Denoiser, StudentInfo]:
    """The student as configured, and what it is made of; the teacher, or the student that it begins
    as, is used up.

    Args:
        teacher: its network, in float32 or on the meta device.
        network: the teacher's name for it.
        seed: of what begins at random.

    Raises:
        FileNotFoundError, ValueError: as `build_student`.
    """
    teacher_parameters = _count(teacher)
    denoiser, layers, not_copied = teacher, None, list[str]()
    if student.config is not None:
        denoiser = make_shape(teacher, read_shape(Path(student.config), teacher, family), seed)
        not_copied = copy_weights(denoiser, teacher)
    elif student.is_flow_map:
        denoiser = flow_map_of(family).make(teacher)
    elif student.init == "layers":
        layers = _drop(student, teacher, family, network)
    num_parameters = num_trained = _count(denoiser)
    if student.lora is not None:
        check_lora(teacher, student.lora, family)
        num_trained = count_lora(denoiser, student.lora)
    elif student.init == "time_embeddings":
        learns = time_embeddings_of(denoiser, family).values()
        num_trained = sum(parameter.numel() for parameter in learns)
    sizes = {name: parameter.numel() for name, parameter in denoiser.named_parameters()}
    return denoiser, StudentInfo(
        init=student.init,
        network=network,
        layers=layers,
        num_parameters=num_parameters,
        teacher_parameters=teacher_parameters,
        copied_parameters=num_parameters - sum(sizes.get(name, 0) for name in not_copied),
        trained_parameters=num_trained,
        not_copied=tuple(not_copied),
    )


def _drop(
    student: Student, teacher: Denoiser, family: Family, network: str
) -> tuple[int, ...] | None:
    """Drop what is not kept of the teacher, in place; returns the blocks kept of a transformer."""
    if student.unet is None:
        blocks = blocks_of(teacher)
        layers = resolve_layers(student, teacher, family, blocks)
        if student.dropped == "average":
            average_dropped(teacher, blocks, layers)
        keep_blocks(teacher, family, blocks, layers)
        return layers
    if not isinstance(teacher, UNet2DConditionModel):
        raise ValueError(
            f"student.unet is given, but the teacher's {network} is a {type(teacher).__name__}: "
            "use student.num_layers or student.layers"
        )
    shrink_unet(teacher, student.unet, student.layers_rule)
    return None


def _count(network: Denoiser) -> int:
    return sum(parameter.numel() for parameter in network.parameters())


def choose_expert(present: Sequence[str], chosen: str | None) -> str:
    """The teacher's network that the student starts from; with several, one must be chosen."""
    if chosen in present:
        return str(chosen)
    if chosen is None and len(present) == 1:
        return present[0]
    shown = "null" if chosen is None else repr(chosen)
    raise ValueError(
        f"student.expert is {shown}: the teacher has the networks {', '.join(present)}, the "
        "student is one network for all steps; say which of them it starts from"
    )


def build_student(job: StudentJob, output: Path) -> None:
    """Write the untrained student, a Diffusers model folder, and what it is made of.

    Reads the teacher's denoiser, with its adapters fused, and no other component of it; or, in its
    place, the student of another run that `student.start_from` names. The weights
    are float32; beside additions, links to the teacher's files where it has these numbers.

    Args:
        output: folder to write, e.g. results/{run}/student/initial.

    Raises:
        FileNotFoundError: no such teacher, no such file as `student.config`, or no student in
            `student.start_from`.
        ValueError: something in the section `student` that the teacher does not have, an adapter
            that does not fit, or a student that another cannot begin as.
    """
    folder = find_teacher(job.teacher)
    network = choose_expert(folder.denoisers, job.student.expert)
    origin = {
        "settings": hash_origin(job.model_dump(mode="json")),
        "teacher": denoiser_hash(job.teacher, folder),
    }
    if job.student.start_from is None:
        teacher = load_adapted(job.teacher, folder, network)
        student, student_info = make_student(job.student, teacher, folder.family, network, job.seed)
    else:
        skeleton = load_denoiser_skeleton(folder.path / network)
        start = find_start(Path(job.student.start_from), skeleton, folder.family)
        begun = load_denoiser(start.network, torch.float32)
        student, student_info = make_student(job.student, begun, folder.family, network, job.seed)
        student_info = told_of_teacher(student_info, start, _count(skeleton))
        origin["start"] = start.hash
    with atomic_path(output) as temporary:
        lora = job.student.lora
        is_beside = job.student.init in OF_TEACHER
        if is_beside and is_in_folder(job.teacher, folder, network):
            link_network(folder.path / network, temporary, folder.chosen_variant(network))
        else:
            save_denoiser(student, temporary)
        if lora is not None:
            add_lora(student, lora, job.seed)
            save_lora(student, temporary, folder.family)
        elif is_beside:
            save_time_embeddings(student, temporary, folder.family)
        write_metadata(temporary, {"student": asdict(student_info), "origin": origin})
