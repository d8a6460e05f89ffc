"""Recipes: everything that the bytes of stored files depend on, by the stage that writes them.

A recipe's hash names the folder of its files, and each file carries it. Settings that change no
byte beyond rounding are in none (`config.section.NoResult`).
"""

from collections.abc import Mapping
from typing import Any, Literal, Self, get_args

from pydantic import BaseModel, ConfigDict, ValidationError

from distillery.config.section import Dtype
from distillery.config.training import Training
from distillery.files import hash_json
from distillery.schedule import PredictionType, Schedule


class Recipe(BaseModel):
    """Base of all: frozen, no unknown keys. A field with a default is written only where it
    differs, so that a later field leaves the hashes of earlier files as they are."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    def to_json(self) -> dict[str, Any]:
        """As a manifest holds it."""
        return self.model_dump(mode="json", exclude_defaults=True)

    @classmethod
    def from_json(cls, raw: Mapping[str, Any]) -> Self:
        """The inverse of `to_json`; raises ValueError for what another version wrote."""
        try:
            return cls.model_validate(dict(raw))
        except ValidationError as error:
            where = ", ".join(".".join(map(str, each["loc"])) for each in error.errors())
            raise ValueError(
                f"this is no {cls.__name__} of this version, see its {where}: make it again"
            ) from error

    @classmethod
    def settings_of(cls, *sections: BaseModel) -> dict[str, Any]:
        """Its fields that are settings, each of the first section that has it, and its kind.

        A setting that is left open (None where the recipe needs a value) is not among them: what it
        becomes is the family's. One that has its default is None, as it is not written.
        """
        found: dict[str, Any] = {"kind": get_args(cls.model_fields["kind"].annotation)[0]}
        for name, field in cls.model_fields.items():
            owner = next((each for each in sections if name in type(each).model_fields), None)
            value = getattr(owner, name, None)
            value = list(value) if isinstance(value, tuple) else value
            is_plain = value is None or isinstance(value, (str, int, float, dict, list))
            may_be_none = type(None) in get_args(field.annotation)
            if owner is not None and is_plain and (value is not None or may_be_none):
                found[name] = None if value == field.default else value
        return found

    @property
    def hash(self) -> str:
        """SHA-256 of the JSON."""
        return hash_json(self.to_json())


class EmbeddingsRecipe(Recipe):
    """What an embedding depends on beside its text."""

    kind: Literal["embeddings"]
    version: int
    family: str
    teacher: str
    """Hash of the text encoders, `teacher.adapters.text_hash`."""
    dtype: Dtype
    negative_prompt: str | None
    max_sequence_length: int
    long_prompts: str
    signature: str | None = None
    """Hash of how a traced pipeline encodes prompts."""
    images: str | None = None
    """Hash of what encodes the images beside prompts."""


class Scheduled(Recipe):
    """A recipe with a scheduler's grid."""

    schedule: Schedule
    latent_shape: tuple[int, ...]


class TargetsRecipe(Scheduled):
    """What a trajectory depends on beside its sample's identity; `schedule` is at the knots."""

    kind: Literal["targets"]
    version: int
    family: str
    teacher: str
    """Hash of the teacher, `teacher.adapters.teacher_hash`."""
    embeddings: str
    """Hash of the embeddings' recipe."""
    scheduler: dict[str, Any]
    """The teacher's, as `schedulers.plain_config` gives it."""
    prediction_type: PredictionType
    steps: int
    guidance_scale: float
    guidance_scale_2: float | None = None
    guidance_interval: tuple[float, float] | None = None
    """Shares of the steps that are guided."""
    call: dict[str, Any] | None = None
    """`teacher.call`."""
    signature: dict[str, Any] | None = None
    """What was learnt of a traced pipeline, `families.learnt`: all that training knows of it."""
    in_float32: list[str] | None = None
    """What its network is given in float32 though it computes in less; once it was rounded."""
    knots: tuple[int, ...]
    """Steps whose states are stored, the clean end included."""
    height: int
    width: int
    num_frames: int = 1
    max_sequence_length: int
    negative_prompt: str | None
    dtype: Dtype
    stored_dtype: Dtype
    seed: int
    samples_per_prompt: int
    batch_size: int | Literal["auto"]
    chunk_size: int


class TrainingRecipe(Scheduled):
    """What trained weights depend on, beyond rounding; `schedule` is the student's."""

    kind: Literal["training"]
    version: int
    seed: int
    steps: int
    guidance_scale: float
    """Of the targets; a network with a guidance embedding receives it."""
    initial: str
    """Hash of the untrained student, `model_folder.hash_model`."""
    targets: str
    """Hash of the targets' recipe."""
    samples: str = ""
    """Hash of the targets' samples: prompts' ids and texts, in order."""
    rounds: tuple[str, ...] = ()
    """Hashes of the rounds' recipes, `VisitedRecipe`, as far as they are learned from."""
    training: dict[str, Any]
    """Settings of the section `training` that change a result."""

    def first_parts(self, training: Training) -> list[Self]:
        """The recipes of the trainings that do a first part of this one, the longest first.

        Args:
            training: the settings of this one.
        """
        return [
            self.model_copy(
                update={
                    "training": part.of_recipe,
                    "rounds": self.rounds[: len(part.round_numbers)],
                }
            )
            for part in training.first_parts
        ]


class StatesRecipe(Recipe):
    """What the states depend on that a student visits, beside their samples' identity."""

    kind: Literal["states"]
    version: int
    number: int
    """Of the round, from 1."""
    targets: str
    """Hash of the trajectories' recipe, at whose noise the student begins."""
    pipeline: str
    """Hash of the student's pipeline."""
    steps: int
    """Of the student."""
    dtype: Dtype
    stored_dtype: Dtype
    batch_size: int | Literal["auto"]
    chunk_size: int


class VisitedRecipe(Recipe):
    """What depends on visited states: where the teacher goes from them."""

    kind: Literal["visited"]
    version: int
    states: str
    """Hash of their recipe."""
    targets: str
    """Hash of the trajectories' recipe, which names the teacher and how it walks."""
    steps: int
    """Of the student: the teacher walks to the next of its knots."""
