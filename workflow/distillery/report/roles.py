"""Which model plays which part, which models are one under several names, how each is drawn."""

import re
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from distillery.config.run import Config
from distillery.config.samples import SampledModel
from distillery.config.sampling import Sampling, resolve_sampling
from distillery.measures.manifests import ModelSamples
from distillery.words import counted

TEACHER = "teacher"
"""The usual name of the reference: the teacher as the targets were made."""
OF_STEPS = re.compile(r"teacher-\d+-steps(-unguided)?")
"""The names that `samples.steps` gives."""
READ_AHEAD = 64
"""Images that are compared at once."""
FIRST = ("student", "untrained")
"""The usual names of the models that keep their own where another one has the same images."""
Part = Literal[
    "student", "reference", "teacher, guided", "teacher, no guidance", "untrained", "other"
]


@dataclass(frozen=True)
class SameImages:
    """Which names stand for one model.

    Attributes:
        kept: of each further name, the one that all are shown under.
        labels: of the names that are shown for several: all of them, in words.
    """

    kept: Mapping[str, str] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)

    def are_same(self, one: str | None, other: str | None) -> bool:
        """Whether two names, neither of them None, stand for one model."""
        known = one is not None and other is not None
        return known and self.kept.get(one or "", one) == self.kept.get(other or "", other)

    def label(self, name: str) -> str:
        """What a model is called on a page."""
        return self.labels.get(name, name)

    @property
    def names(self) -> dict[str, list[str]]:
        """Of each name that several models are shown under, the further ones."""
        found: dict[str, list[str]] = {}
        for further, kept in self.kept.items():
            found.setdefault(kept, []).append(further)
        return found

    def shown(self, names: Iterable[str]) -> list[str]:
        """Without the further names."""
        return [name for name in names if name not in self.kept]


def find_same(samples: Mapping[str, ModelSamples], first: Sequence[str | None] = ()) -> SameImages:
    """Compare the images of all models that sample alike.

    Args:
        samples: of the same prompts and noises, by the models' names.
        first: names that are kept, before all others.
    """
    order = [name for name in (*first, *FIRST) if name in samples]
    groups: list[list[str]] = []
    for name in dict.fromkeys((*order, *samples)):
        assert name is not None, "None is in no samples"
        equal = (it for it in groups if _are_equal(samples[it[0]], samples[name]))
        group = next(equal, None)
        if group is None:
            groups.append([name])
        else:
            group.append(name)
    several = [names for names in groups if len(names) > 1]
    return SameImages(
        {further: names[0] for names in several for further in names[1:]},
        {
            names[0]: " = ".join([names[0], *(_in_words(samples[it]) for it in names[1:])])
            for names in several
        },
    )


def _are_equal(one: ModelSamples, other: ModelSamples) -> bool:
    """Whether all images are; a file's bytes also hold which model drew it.

    Models that differ do so in the first image, so few are read. What is not there is not equal.
    """
    if (one.steps, one.network_calls) != (other.steps, other.network_calls):
        return False
    if one.table["sha256"].tolist() == other.table["sha256"].tolist():
        return True
    rows = range(len(one.table))
    with ThreadPoolExecutor() as pool:
        return all(
            all(pool.map(lambda row: _is_equal(one, other, row), part))
            for part in (rows[:1], *(rows[at : at + READ_AHEAD] for at in rows[1::READ_AHEAD]))
        )


def _is_equal(one: ModelSamples, other: ModelSamples, row: int) -> bool:
    """Whether one image is."""
    if not (one.image(row).path.is_file() and other.image(row).path.is_file()):
        return False
    return np.array_equal(one.read_pixels(row), other.read_pixels(row))


def _in_words(model: ModelSamples) -> str:
    """A name that the user did not give says how the model samples."""
    if not OF_STEPS.fullmatch(model.model):
        return model.model
    guidance = f"guidance {model.guidance_scale:g}" if model.guidance_scale > 1 else "no guidance"
    return f"teacher, {counted(model.steps, 'step')}, {guidance}"


# ---- roles ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Roles:
    """Which sampled model plays which part.

    Attributes:
        student: the student at the steps it was trained for.
        reference: the model that the others are held to.
        rival: of the teacher's models with at most the student's network calls, guided or not, the
            one with the highest CLIP score; it is the rival for every metric.
        untrained: the student before its training, sampled as the student is.
        same: which names stand for one model.
    """

    student: str | None
    reference: str
    rival: str | None = None
    untrained: str | None = None
    same: SameImages = field(default_factory=SameImages)

    @property
    def rivals(self) -> list[str | None]:
        """Rival and untrained student; one, where their images are the same."""
        is_one = self.same.are_same(self.rival, self.untrained)
        return [self.untrained] if is_one else [self.rival, self.untrained]

    def label(self, name: str) -> str:
        """What a model is called on a page."""
        return self.same.label(name)

    @property
    def whose(self) -> str:
        """The reference as an owner, for "of the teacher's CLIP score"."""
        return "the teacher's" if self.reference == TEACHER else f"{self.reference}'s"

    @property
    def than_reference(self) -> str:
        """Words after "fewer network calls"; none where the reference is the teacher, as usual."""
        return "" if self.reference == TEACHER else f" than {self.reference}"


def find_roles(config: Config, quality: Mapping[str, Any] | None) -> Roles:
    """Find the roles by how models sample, whatever they are called; without scores no rival."""
    unguided: dict[str, str] = {}
    for name in config.samples.models:
        sampling = resolve_sampling(config, name)
        if sampling.source != "teacher" and _is_as_trained(sampling, config):
            unguided.setdefault(sampling.source, name)
    student, reference = unguided.get("student"), config.evaluation.reference
    teachers = [
        name
        for name, chosen in config.samples.models.items()
        if chosen.source == "teacher" and name != reference
    ]
    rival = _find_rival(teachers, quality["models"], student) if quality else None
    return Roles(student, reference, rival, unguided.get("untrained"))


def _is_as_trained(sampling: Sampling, config: Config) -> bool:
    """Whether a student's model takes the steps and the guidance of its training."""
    return sampling.steps == config.student.steps and (sampling.guidance_scale or 1.0) == 1.0


def _find_rival(
    teachers: Iterable[str], models: Mapping[str, Any], student: str | None
) -> str | None:
    """The teacher's model with the highest CLIP score of those that cost no more."""
    if student is None or student not in models:
        return None
    num_calls = models[student]["network_calls"]
    affordable = [
        name for name in teachers if name in models and models[name]["network_calls"] <= num_calls
    ]
    return max(affordable, key=lambda name: models[name]["clip_score"]["mean"], default=None)


def order_models(samples: Mapping[str, ModelSamples], reference: str) -> list[str]:
    """The reference first, then by falling cost; a name does not change the student's place."""

    def cost(name: str) -> tuple[bool, int, str]:
        return name != reference, -samples[name].network_calls, name

    return sorted(samples, key=cost)


# ---- colours and shapes -------------------------------------------------------------------------


@dataclass(frozen=True)
class Mark:
    """How a part is drawn.

    Attributes:
        colour: the class of the style sheet, and its variable with two dashes before.
        glyph: the same shape in text.
        dash: of its line, lengths drawn and left out.
    """

    colour: str
    shape: str
    glyph: str
    dash: tuple[int, ...]


MARKS: Mapping[Part, Mark] = {
    "student": Mark("c0", "diamond", "\N{BLACK DIAMOND}", (1, 0)),
    "reference": Mark("c3", "square", "\N{BLACK SQUARE}", (1, 0)),
    "teacher, guided": Mark("c7", "triangle-up", "\N{BLACK UP-POINTING TRIANGLE}", (8, 3)),
    "teacher, no guidance": Mark("c4", "triangle-down", "\N{BLACK DOWN-POINTING TRIANGLE}", (3, 3)),
    "untrained": Mark("c1", "cross", "\N{HEAVY GREEK CROSS}", (8, 3, 2, 3)),
    "other": Mark("c6", "circle", "\N{BLACK CIRCLE}", (2, 6)),
}


def usual_part(model: ModelSamples) -> Part:
    """What a model is by its usual name, where no configuration tells its role."""
    by_name: Mapping[str, Part] = {
        "student": "student", "untrained": "untrained", TEACHER: "reference"
    }  # fmt: skip
    if model.model in by_name:
        return by_name[model.model]
    if not model.model.startswith(TEACHER):
        return "other"
    return teacher_part(model.guidance_scale)


def teacher_part(guidance_scale: float) -> Part:
    """What a model of the teacher's is."""
    return "teacher, guided" if guidance_scale > 1 else "teacher, no guidance"


def part_of(
    name: str, models: Mapping[str, SampledModel], quality: Mapping[str, Any], roles: Roles
) -> Part:
    """What a scored model is: by its role, else by how the teacher samples."""
    by_role: Mapping[str | None, Part] = {
        roles.untrained: "untrained", roles.reference: "reference", roles.student: "student"
    }  # fmt: skip
    if name in by_role:
        return by_role[name]
    if models[name].source != "teacher":
        return "other"
    return teacher_part(quality["models"][name]["guidance_scale"])
