"""What is said of a measure, once, beside its function in `of_judge`, `of_pairs` or others.

Scores, tables, charts, gallery, comparison, verdict and card fold over the lists there.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pandas as pd

from distillery.images import Pixels
from distillery.measures.intervals import (
    NO_ENDS,
    ConfidenceInterval,
    Ends,
    FloatArray,
    Groups,
    IntArray,
    bootstrap_mean,
    difference_ends,
    median_difference,
    median_interval,
    share_difference,
    wilson_share,
)
from distillery.measures.manifests import ModelSamples

Direction = Literal[-1, 0, 1]
"""+1: more is better. -1: less is. 0: neither, and nothing is marked as the best."""


@dataclass(frozen=True)
class Form:
    """How a value is written: its digits, its unit, and what it is multiplied by."""

    digits: int
    unit: str = ""
    times: float = 1.0

    def __call__(self, value: float) -> str:
        """A value as text."""
        return f"{self.times * value:.{self.digits}f}{self.unit}"

    def signed(self, value: float) -> str:
        """A difference of two values as text."""
        return f"{self.times * value:+.{self.digits}f}{self.unit}"


PERCENT = Form(1, "\N{NO-BREAK SPACE}%", 100.0)
"""0.989 is 98.9 %, on one line."""


@dataclass(frozen=True, kw_only=True)
class Column:
    """A column of a table: its head, how it is written, and which way is better."""

    title: str
    hint: str
    form: Callable[[float], str]
    direction: Direction = 0


@dataclass(frozen=True)
class Watch:
    """That a ratio has a line of its own in all summaries, flagged where it is bad.

    Attributes:
        name: in the line; it gets `whose`, the reference as an owner.
        bad: +1 where above 1 is bad, -1 where below is.
        meaning: of a flag.
    """

    name: str
    bad: Direction
    meaning: str


@dataclass(frozen=True, kw_only=True)
class Named(Column):
    """What is measured of a model: a column with a key in quality.json.

    Attributes:
        ends: the least and the largest value; no interval goes beyond.
        ratio: to the reference's, where that says something.
        watch: of that ratio.
        is_over_steps: whether it is drawn over network calls, with curves of the teacher's.
    """

    name: str
    ends: Ends = NO_ENDS
    ratio: Column | None = None
    watch: Watch | None = None
    is_over_steps: bool = False

    @property
    def ratio_key(self) -> str:
        """The ratio's key in quality.json."""
        return f"{self.name}_ratio"


@dataclass(frozen=True, kw_only=True)
class Measure(Named):
    """A number of each image, or clip.

    Attributes:
        full: its title where two runs are compared.
        form: of a value and of a difference.
        column: of the scores; `value` makes the number from it.
        summary: of all images of a model. Only a mean has a difference to another model's.
        question: what a student must be to pass; it gets the `reference` and the `other`. None:
            the difference is shown, and nothing is asked of it.
        sorts: its name where a gallery sorts by it; empty where it does not.
        is_in_card: whether the model card lists it as a result.
        min_frames: that a sample must have; 1: images and clips alike.
        is_optional: whether it is scored only where the configuration names what scores it.
    """

    full: str
    form: Form
    column: str = ""
    value: Callable[[FloatArray], FloatArray] = np.asarray
    summary: Literal["mean", "median", "share"] = "mean"
    question: str | None = None
    sorts: str = ""
    is_in_card: bool = False
    min_frames: int = 1
    is_optional: bool = False

    @property
    def difference_key(self) -> str:
        """The key in quality.json of its difference to another model's."""
        return f"{self.name}_difference"

    @property
    def in_scores(self) -> str:
        """Its column in scores.parquet."""
        return self.column or self.name

    def values(self, scores: pd.DataFrame) -> FloatArray:
        """The numbers of some rows of the scores, shape (b,); NaN where there is none."""
        return self.value(scores[self.in_scores].to_numpy(dtype=np.float64))

    def summarise(
        self, values_b: FloatArray, groups: Groups, weights_rp: FloatArray
    ) -> ConfidenceInterval:
        """The number of a model, with its interval over prompts; see `intervals.draw_weights`."""
        match self.summary:
            case "share":
                return wilson_share(values_b, groups)
            case "median":
                return median_interval(values_b, groups)
        return bootstrap_mean(values_b, groups, weights_rp, self.ends)

    def difference(
        self, before_b: FloatArray, after_b: FloatArray, groups: Groups, weights_rp: FloatArray
    ) -> ConfidenceInterval:
        """Of two models' numbers of the same samples: after less before."""
        match self.summary:
            case "share":
                return share_difference(after_b - before_b, groups)
            case "median":
                return median_difference(before_b, after_b, groups, weights_rp)
        ends = difference_ends(self.ends)
        return bootstrap_mean(after_b - before_b, groups, weights_rp, ends)


@dataclass(frozen=True, kw_only=True)
class OfJudge(Measure):
    """A number that the judge's embeddings give.

    Attributes:
        of: takes embeddings of b images (b, d), of the distinct prompts (p, d), and each image's
            own row of them (b,); gives the column of the scores (b,).
    """

    of: Callable[[FloatArray, FloatArray, IntArray], npt.NDArray[Any]]


@dataclass(frozen=True, kw_only=True)
class OfPreference(Measure):
    """A number that the model of preference gives.

    Attributes:
        of: takes its scores of a model's images (b,) and of the reference's (b,).
        is_of_pairs: whether it compares with the reference, which then has none itself.
    """

    of: Callable[[FloatArray, FloatArray], FloatArray]
    is_of_pairs: bool = False
    is_optional: bool = True


@dataclass(frozen=True)
class Reading:
    """What is read of a sample, and the column of the manifest with its hash."""

    read: Callable[[ModelSamples, int], Any]
    sha256: str


PIXELS = Reading(ModelSamples.read_pixels, "sha256")
LATENTS = Reading(ModelSamples.read_latents, "latents_sha256")


@dataclass(frozen=True, kw_only=True)
class OfPair(Measure):
    """A number of an image against the reference model's at the same noise.

    Attributes:
        reads: of each of the two.
        of: takes what was read, of the image and of the reference's.
    """

    reads: Reading
    of: Callable[[Any, Any], float]


@dataclass(frozen=True, kw_only=True)
class OfClip(Measure):
    """A number of a clip by itself, from its pixels (f, h, w, 3)."""

    of: Callable[[Pixels], float]
    min_frames: int = 2


@dataclass(frozen=True)
class Need:
    """The least that a measure takes: images in all, images of each prompt, and prompts."""

    images: int
    per_prompt: int = 2
    prompts: int = 1


@dataclass(frozen=True, kw_only=True)
class OfSet(Named):
    """A number of a model's images together, in one vision model.

    Attributes:
        words: its name where it is left out.
        needs: the least that it takes, by the number of the vision model's features.
        is_share: of prompts' images; its interval has a width at 0 and at 1 too.
    """

    words: str
    needs: Callable[[int], Need]
    is_share: bool = False
