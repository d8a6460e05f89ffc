"""What a student is made of: how much of it is its teacher, and how much of it learns."""

from dataclasses import dataclass
from pathlib import Path

from distillery.model_folder import METADATA, read_metadata

TIME_FILE = "time_embeddings.safetensors"
"""In a student's folder: what learns of one that trains its time embeddings alone, in float32."""


@dataclass(frozen=True)
class StudentInfo:
    """What a student is made of; `student` in the distillery.json beside it.

    Attributes:
        network: the teacher's component that it starts from.
        layers: blocks kept of a transformer, else None.
        num_parameters: of the student, without low-rank additions.
        teacher_parameters: of the network that it starts from.
        copied_parameters: numbers that are the teacher's.
        trained_parameters: numbers that learn.
        not_copied: names of the tensors that begin at random.
    """

    init: str
    network: str
    layers: tuple[int, ...] | None
    num_parameters: int
    teacher_parameters: int
    copied_parameters: int
    trained_parameters: int
    not_copied: tuple[str, ...] = ()


def describe_student(info: StudentInfo) -> str:
    """One line: how large the student is, and where its weights come from."""
    share = info.num_parameters / info.teacher_parameters
    text = f"{info.num_parameters:,} parameters, {share:.1%} of the teacher's"
    if info.layers is not None:
        text += f"; blocks {', '.join(map(str, info.layers))}"
    if info.not_copied:
        copied = info.copied_parameters / info.num_parameters
        text += f"; {copied:.1%} of them copied, {len(info.not_copied)} tensors begin at random"
    if info.trained_parameters != info.num_parameters:
        where = "low-rank additions" if info.init == "lora" else "time embeddings"
        text += f"; {info.trained_parameters:,} in {where} are trained"
    return text


def read_student_info(folder: Path) -> StudentInfo | None:
    """What the student in a model folder is made of; None where it was not written down."""
    about = read_metadata(folder).get("student") if (folder / METADATA).is_file() else None
    if about is None:
        return None
    layers = about["layers"]
    lists = {
        "layers": None if layers is None else tuple(layers),
        "not_copied": tuple(about["not_copied"]),
    }
    return StudentInfo(**(about | lists))
