"""What people chose blindly: files that the gallery's page `blind.html` saves, counted.

A line is one pair of images and what was chosen of it. Each names the digests of both models'
images, so that choices among the images of an earlier training are not counted as those of this.
"""

import csv
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from distillery.measures.intervals import ConfidenceInterval, wilson
from distillery.measures.manifests import ModelSamples
from distillery.measures.measure import PERCENT
from distillery.report.roles import Roles
from distillery.report.verdict import describe_interval
from distillery.words import counted, noun_of

COLUMNS = (
    "prompt_id", "prompt", "file_a", "file_b", "model_a", "model_b", "images_a", "images_b",
    "chosen",
)  # fmt: skip
ANSWERS = ("a", "b", "neither")


@dataclass(frozen=True)
class Preference:
    """How often the images of one model were chosen over those of another.

    Attributes:
        share: of the pairs of which one was chosen, with Wilson's interval; None without such.
    """

    model: str
    over: str
    num_chosen: int
    num_decided: int
    num_neither: int
    share: ConfidenceInterval | None


@dataclass(frozen=True)
class Choices:
    """All that was chosen.

    Attributes:
        preferences: the student's before others.
        refused: files that are not counted, and why.
    """

    preferences: Sequence[Preference]
    refused: Sequence[str]
    noun: str

    def as_json(self) -> dict[str, Any]:
        """The keys of metrics.json."""
        return asdict(self)

    @property
    def sentences(self) -> list[str]:
        """What the page says."""
        said = []
        for it in self.preferences:
            share = f": {describe_interval(it.share, PERCENT)}" if it.share else ""
            neither = f"; {it.num_neither:,} could not be told apart" if it.num_neither else ""
            said.append(
                f"Of {counted(it.num_decided, 'blind pair')} the {self.noun} of {it.model} was "
                f"chosen over that of {it.over} in {it.num_chosen:,}{share}{neither}."
            )
        return said + [f"Not counted: {it}." for it in self.refused]


def read_choices(
    files: Sequence[Path], samples: Mapping[str, ModelSamples], roles: Roles
) -> Choices | None:
    """Count the choices of some files; None without a file.

    A file is counted whole or not at all. The results of later trainings stay beside it, so one of
    other images is no error.
    """
    if not files:
        return None
    counts: dict[tuple[str, str], Counter[str]] = {}
    refused = []
    for path in files:
        rows, why = _read(path, samples)
        if why:
            refused.append(f"{path.name}, {why}")
        for row in rows:
            model, over, chosen = row["model_a"], row["model_b"], row["chosen"]
            if model == over:
                continue  # two noises of one model
            if (model == roles.reference) or over == roles.student:
                model, over = over, model
                chosen = {"a": "b", "b": "a"}.get(chosen, chosen)
            counts.setdefault((model, over), Counter())[chosen] += 1
    order = sorted(counts, key=lambda pair: (pair[0] != roles.student, pair))
    noun = noun_of(next((it.num_frames for it in samples.values()), 1))
    return Choices([_preference(*pair, counts[pair]) for pair in order], refused, noun)


def _preference(model: str, over: str, counts: Counter[str]) -> Preference:
    chosen, decided = counts["a"], counts["a"] + counts["b"]
    share = None
    if decided:
        share = ConfidenceInterval.of(chosen / decided, *wilson(chosen / decided, decided))
    return Preference(model, over, chosen, decided, counts["neither"], share)


def _read(path: Path, samples: Mapping[str, ModelSamples]) -> tuple[list[dict[str, str]], str]:
    """The lines of a file, or none and why."""
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            reader = csv.DictReader(file)
            if tuple(reader.fieldnames or ()) != COLUMNS:
                return [], f"its columns are not {', '.join(COLUMNS)}"
            rows = list(reader)
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        return [], f"it cannot be read: {error}"
    digests = {name: it.digest for name, it in samples.items()}
    for number, row in enumerate(rows, 2):
        if row["chosen"] not in ANSWERS:
            return [], f"line {number} chooses {row['chosen']!r}, which is none of a, b and neither"
        for side in "ab":
            if digests.get(row[f"model_{side}"]) != row[f"images_{side}"]:
                return [], f"it is of other images of {row[f'model_{side}']} than this run's"
    return rows, ""
