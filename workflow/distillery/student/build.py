"""Build the student before training, from the teacher's denoiser alone."""

from collections.abc import Sequence
from pathlib import Path

from diffusers import UNet2DConditionModel

from distillery.config.student import Student
from distillery.families import Family
from distillery.families.protocol import Denoiser
from distillery.model_folder import load_denoiser_skeleton
from distillery.student.custom_shape import copy_weights, make_shape, read_shape
from distillery.student.info import StudentInfo
from distillery.student.layers import keep_blocks, resolve_layers
from distillery.student.lora import check_lora, count_lora
from distillery.student.unet import shrink_unet
from distillery.teacher.folder import PipelineFolder


def plan_student(student: Student, folder: PipelineFolder) -> StudentInfo:
    """What the student will be made of, found in a second by building it without weights.

    Args:
        student: section of the configuration.
        folder: of the teacher.

    Raises:
        FileNotFoundError, ValueError: as `build_student`.
    """
    network = choose_expert(folder.denoisers, student.expert)
    teacher = load_denoiser_skeleton(folder.path / network)
    return make_student(student, teacher, folder.family, network, seed=0)[1]


def make_student(
    student: Student, teacher: Denoiser, family: Family, network: str, seed: int
) -> tuple[Denoiser, StudentInfo]:
    """The student as configured, and what it is made of; the teacher is used up.

    Args:
        student: section of the configuration.
        teacher: its network, in float32 or on the meta device.
        family: of the teacher.
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
    elif student.init == "layers":
        layers = _drop(student, teacher, family, network)
    elif student.lora is not None:
        check_lora(teacher, student.lora, family)
    num_parameters = _count(denoiser)
    sizes = {name: parameter.numel() for name, parameter in denoiser.named_parameters()}
    return denoiser, StudentInfo(
        init=student.init,
        network=network,
        layers=layers,
        num_parameters=num_parameters,
        teacher_parameters=teacher_parameters,
        copied_parameters=num_parameters - sum(sizes.get(name, 0) for name in not_copied),
        trained_parameters=num_parameters
        if student.lora is None
        else count_lora(denoiser, student.lora),
        not_copied=tuple(not_copied),
    )


def _drop(
    student: Student, teacher: Denoiser, family: Family, network: str
) -> tuple[int, ...] | None:
    """Drop what is not kept of the teacher, in place; returns the blocks kept of a transformer."""
    if student.unet is None:
        layers = resolve_layers(student, teacher, family)
        keep_blocks(teacher, family, layers)
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
