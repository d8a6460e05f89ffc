"""Models whose images are equal, pixel by pixel, are one model under several names."""

import re
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import numpy as np

from distillery.measures.manifests import ModelSamples
from distillery.words import counted

OF_STEPS = re.compile(r"teacher-\d+-steps(-unguided)?")
"""The names that `samples.steps` gives."""
READ_AHEAD = 64
"""Images that are compared at once."""
FIRST = ("student", "untrained")
"""The usual names of the models that keep their own where another one has the same images."""


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
    if not (one.image_path(row).is_file() and other.image_path(row).is_file()):
        return False
    return np.array_equal(one.read_pixels(row), other.read_pixels(row))


def _in_words(model: ModelSamples) -> str:
    """A name that the user did not give says how the model samples."""
    if not OF_STEPS.fullmatch(model.model):
        return model.model
    guidance = f"guidance {model.guidance_scale:g}" if model.guidance_scale > 1 else "no guidance"
    return f"teacher, {counted(model.steps, 'step')}, {guidance}"
