"""What a student is made of: how much of it is its teacher, and how much of it learns."""

from dataclasses import dataclass
from pathlib import Path

from distillery.model_folder import ABOUT, read_about


@dataclass(frozen=True)
class Origin:
    """What a student is made of; `student` in the distillery.json beside it.

    Attributes:
        init: as configured.
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


def describe_origin(origin: Origin) -> str:
    """One line: how large the student is, and where its weights come from."""
    share = origin.num_parameters / origin.teacher_parameters
    text = f"{origin.num_parameters:,} parameters, {share:.1%} of the teacher's"
    if origin.layers is not None:
        text += f"; blocks {', '.join(map(str, origin.layers))}"
    if origin.not_copied:
        copied = origin.copied_parameters / origin.num_parameters
        text += f"; {copied:.1%} of them copied, {len(origin.not_copied)} tensors begin at random"
    if origin.trained_parameters != origin.num_parameters:
        text += f"; {origin.trained_parameters:,} in low-rank additions are trained"
    return text


def read_origin(folder: Path) -> Origin | None:
    """What the student in a model folder is made of; None where it was not written down."""
    about = read_about(folder).get("student") if (folder / ABOUT).is_file() else None
    if about is None:
        return None
    layers = about["layers"]
    lists = {
        "layers": None if layers is None else tuple(layers),
        "not_copied": tuple(about["not_copied"]),
    }
    return Origin(**(about | lists))
