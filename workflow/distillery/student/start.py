"""A student that begins as another one, which was trained before: cut smaller, or trained on."""

from dataclasses import dataclass, replace
from pathlib import Path

from distillery.families import Family
from distillery.families.protocol import Denoiser
from distillery.files import hash_json, read_json, read_sealed
from distillery.model_folder import CONFIG, FILES, METADATA, find_changes
from distillery.student.custom_shape import other_interface
from distillery.student.info import StudentInfo, read_student_info
from distillery.student.on_disk import BASE
from distillery.teacher.components import INDEX


@dataclass(frozen=True)
class Start:
    """A trained student, whole and fed as the teacher is.

    Attributes:
        network: folder of its network.
        hash: of all files of its folder, as `model_folder.hash_model` gives it.
        info: what it is made of; None where it was not written down.
    """

    network: Path
    hash: str
    info: StudentInfo | None


def find_start(folder: Path, teacher: Denoiser, family: Family) -> Start:
    """The student in a folder that another is to begin as.

    Args:
        folder: value of `student.start_from`, a trained student or its pipeline.
        teacher: its network, on any device.

    Raises:
        FileNotFoundError: no student is there.
        ValueError: it is not trained, damaged, kept as additions to its teacher, or a network that
            the teacher's inputs do not fit.
    """
    where = f"student.start_from is {str(folder)!r}"
    if not (folder / METADATA).is_file():
        raise FileNotFoundError(
            f"{where}: there is no {METADATA}, which a finished student's folder has; give "
            "results/RUN/student/trained or results/RUN/student/pipeline of another run"
        )
    network = folder / family.denoisers[0] if (folder / INDEX).is_file() else folder
    changes = [
        name
        for name in find_changes(folder)
        if name == METADATA or (folder / name).is_relative_to(network)
    ]
    if changes:
        raise ValueError(
            f"{where}: it is damaged, or was changed after it was written ({', '.join(changes)}); "
            "make it again in its own run, or copy it again"
        )
    about = read_sealed(folder / METADATA)
    if "recipe" not in about:
        raise ValueError(f"{where}: it was not trained; give student/trained of its run")
    if (folder / BASE).is_dir():
        raise ValueError(
            f"{where}: its weights lie apart, its teacher's and what it has learned; give its "
            "pipeline, student/pipeline of its run, whose network has both in one"
        )
    _check_network(where, network, teacher, family)
    return Start(network, hash_json(about[FILES]), read_student_info(folder))


def _check_network(where: str, network: Path, teacher: Denoiser, family: Family) -> None:
    """Raise ValueError unless a network is of the teacher's class, and takes and gives the same."""
    shape, name = read_json(network / CONFIG), type(teacher).__name__
    if shape["_class_name"] != name:
        raise ValueError(
            f"{where}: it is a {shape['_class_name']}, the teacher's network is a {name}; start "
            "from a student of the same class"
        )
    for key, value, wanted in other_interface(shape, teacher, family):
        raise ValueError(
            f"{where}: it has {key} {value}, the teacher's network has {wanted}; start from a "
            "student that sees the same latents and prompts"
        )


def told_of_teacher(info: StudentInfo, start: Start, teacher_parameters: int) -> StudentInfo:
    """What a student is made of, its size and blocks compared with the teacher's.

    Args:
        info: compared with the student that it begins as.
    """
    layers, before = info.layers, start.info.layers if start.info else None
    if before is not None:
        layers = before if layers is None else tuple(before[layer] for layer in layers)
    return replace(info, teacher_parameters=teacher_parameters, layers=layers)
