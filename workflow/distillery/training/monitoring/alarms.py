"""Signs that a training goes wrong, each with what it means and what to do about it.

Every judge is a pure function of what was measured; `Alarms` tells each finding once, when it
begins. Nothing here changes a weight. Thresholds were chosen on the demo: see docs/design.md.
"""

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from math import isfinite, nan
from statistics import fmean, median

import numpy as np
import numpy.typing as npt

from distillery.telemetry import Reporter

History = Sequence[dict[str, float]]
"""Rows of loss.parquet."""

MIN_VARIATION = 0.02
"""Healthy demo: 0.2 and more; with zeroed prompts or a constant output: below 1e-3."""
MAX_OF_IGNORANT = 0.9
"""Healthy demo: below 0.1; with targets of other trajectories, or after divergence: about 1."""
MAX_GROWTH = 2.0
"""Healthy demo: at most 1.14 of the lowest window."""
MAX_SPIKE = 5.0
"""Healthy demo: at most 1.04 of the median of the rows before."""
MIN_DEVIATION = 2.0
"""Of 255. A picture of one colour has below 1; the demo's flattest has 5.3."""

WINDOW_SAMPLES = 128
"""Samples of a segment whose mean loss is judged; single rows are noisy."""
NUM_BEFORE_SPIKE = 8
"""Rows that a spike is held against; half of them must be there."""
FIRST_SHARE = 0.25
"""Of the training, before a student may be called ignorant: one that begins at random is."""
SEGMENT = "loss_segment_"
ROLLOUT = "loss_rollout"


@dataclass(frozen=True)
class Alarm:
    """One sign.

    Attributes:
        name: what kind of sign it is.
        subject: what it was seen on, e.g. "segment 2" or a prompt's id; "" for the whole training.
        value: what was measured.
        threshold: what it may be at least, or at most.
        meaning: of the value, in words.
        advice: what to look at first.
    """

    name: str
    subject: str
    value: float
    threshold: float
    meaning: str
    advice: str

    @property
    def text(self) -> str:
        """One line for the log."""
        where = f" of {self.subject}" if self.subject else ""
        return (
            f"{self.name}{where}: {self.value:.3g}, threshold {self.threshold:.3g}: "
            f"{self.meaning}; {self.advice}"
        )


class Alarms:
    """Tells each alarm once, when it begins; an alarm that ended may ring again."""

    def __init__(self, reporter: Reporter, recipe_hash: str) -> None:
        """`recipe_hash` says of which training the alarms are; `reporter` is of who measures."""
        self._reporter = reporter
        self._recipe_hash = recipe_hash
        self._ringing: set[tuple[str, str]] = set()

    def tell(
        self,
        names: Sequence[str],
        found: Sequence[Alarm],
        samples_seen: int,
        subject: str | None = None,
    ) -> list[Alarm]:
        """Report the alarms of one measurement that did not ring yet, and return them.

        Args:
            names: the kinds of alarms that the measurement could have found.
            found: those that it has found.
            samples_seen: position in the training.
            subject: the only one that was measured; None: all of them were.
        """
        before = {
            (name, about)
            for name, about in self._ringing
            if name in names and subject in (None, about)
        }
        now = {(alarm.name, alarm.subject) for alarm in found}
        new = [alarm for alarm in found if (alarm.name, alarm.subject) not in before]
        self._ringing = self._ringing - before | now
        for alarm in new:
            self._reporter.warning(f"after {samples_seen} samples: {alarm.text}")
            now_s = time.time()
            facts = asdict(alarm) | {"samples_seen": samples_seen, "recipe": self._recipe_hash}
            self._reporter.emit("alarm", now_s, now_s, **facts)
        return new


# ---- loss --------------------------------------------------------------------------------------

OF_LOSSES = ("loss_spike", "loss_growth", "no_better_than_ignorant")


def judge_losses(
    history: History, ignorant: Sequence[float], log_every_samples: int, num_samples: int
) -> list[Alarm]:
    """What the loss says, overall and by segment.

    Args:
        history: rows so far, the last one new.
        ignorant: see `variation.ignorant_losses`, one a segment.
        log_every_samples: samples in a row.
        num_samples: of the whole training.
    """
    history = same_phase(history)
    size = -(-WINDOW_SAMPLES * len(ignorant) // log_every_samples)
    columns = [f"{SEGMENT}{number}" for number in range(len(ignorant))]
    growing = {column: growth(_column(history, column), size) for column in ("loss", *columns)}
    found = spikes(_column(history, "loss"))
    for column, ratio in growing.items():
        if ratio > MAX_GROWTH:
            others = [growing[other] for other in columns if other != column]
            found.append(_growth_alarm(column, ratio, others))
    if history[-1]["samples_seen"] >= FIRST_SHARE * num_samples:
        found += _ignorance(history, ignorant, columns, size)
    return found


def same_phase(history: History) -> History:
    """The rows of the last one's phase: a rollout's loss is of another size than a segment's."""
    is_rollout = [isfinite(row.get(ROLLOUT, nan)) for row in history]
    return [row for row, rolls in zip(history, is_rollout, strict=True) if rolls == is_rollout[-1]]


def spikes(losses: Sequence[float]) -> list[Alarm]:
    """Whether the last row's loss jumped out of those before it."""
    before = losses[-1 - NUM_BEFORE_SPIKE : -1]
    if len(before) < NUM_BEFORE_SPIKE // 2 or not median(before):
        return []
    ratio = losses[-1] / median(before)
    if not ratio > MAX_SPIKE:
        return []
    return [
        Alarm(
            "loss_spike", "", ratio, MAX_SPIKE,
            f"the last row's loss is so many times the median of the {len(before)} before",
            "if it comes back, lower training.learning_rate or training.max_grad_norm",
        )
    ]  # fmt: skip


def growth(losses: Sequence[float], size: int) -> float:
    """The mean of the last `size` rows over the lowest mean of as many rows before them.

    NaN where there are fewer than two windows, or a window without a number.
    """
    if len(losses) < 2 * size:
        return nan
    last = fmean(losses[-size:])
    starts = range(len(losses) - 2 * size + 1)
    means = [fmean(losses[start : start + size]) for start in starts]
    lowest = min((mean for mean in means if isfinite(mean)), default=nan)
    return last / lowest if lowest else nan


def _growth_alarm(column: str, ratio: float, others: Sequence[float]) -> Alarm:
    """A loss that has left its lowest window far behind."""
    steady = sum(1 for other in others if not other > MAX_GROWTH)
    alone = f", while {steady} other segments hold" if column != "loss" and steady else ""
    return Alarm(
        "loss_growth", _subject(column), ratio, MAX_GROWTH,
        f"the loss is so many times its lowest so far{alone}: the training diverges",
        "lower training.learning_rate, lengthen training.warmup_samples, or go back to an earlier "
        "checkpoint",
    )  # fmt: skip


def _ignorance(
    history: History, ignorant: Sequence[float], columns: Sequence[str], size: int
) -> list[Alarm]:
    """Segments whose loss is no better than that of a student which looks at nothing."""
    ratios = {}
    for column, worst in zip(columns, ignorant, strict=True):
        values = [value for value in _column(history, column)[-size:] if isfinite(value)]
        if values and worst and fmean(values) >= MAX_OF_IGNORANT * worst:
            ratios[_subject(column)] = fmean(values) / worst
    if len(ratios) == len(columns) > 1:
        ratios = {"all segments": min(ratios.values())}
    return [
        Alarm(
            "no_better_than_ignorant", subject, ratio, MAX_OF_IGNORANT,
            "the loss is so many times that of one answer to everything: the student has learned "
            "a mean, or nothing",
            "check that states, targets and prompts belong together; lower training.learning_rate "
            "if the loss was lower before",
        )
        for subject, ratio in ratios.items()
    ]  # fmt: skip


def _column(history: History, name: str) -> list[float]:
    return [row.get(name, nan) for row in history]


def _subject(column: str) -> str:
    return f"segment {column.removeprefix(SEGMENT)}" if column.startswith(SEGMENT) else ""


# ---- variation ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Variation:
    """How much the student's answers vary, 1 where they vary as their targets do.

    Attributes:
        state: over the states at the last segment's beginning, with the same prompt.
        prompt: over prompts at the first, with the same noise; None where the store has one prompt.
    """

    state: float
    prompt: float | None


OF_VARIATION = ("state_ignored", "prompt_ignored")


def judge_variation(variation: Variation) -> list[Alarm]:
    """Whether the student still answers to its states and to its prompts."""
    found = []
    if not variation.state >= MIN_VARIATION:
        found.append(
            Alarm(
                "state_ignored", "", variation.state, MIN_VARIATION,
                "with one prompt the student's answers to different states vary by this share of "
                "what the targets vary: it draws the same from every noise",
                "check that targets belong to their noise; lower training.learning_rate",
            )
        )  # fmt: skip
    if variation.prompt is not None and not variation.prompt >= MIN_VARIATION:
        found.append(
            Alarm(
                "prompt_ignored", "", variation.prompt, MIN_VARIATION,
                "with one noise the student's answers to different prompts vary by this share of "
                "what the targets vary: it draws the same for every prompt",
                "check the train split's embeddings, and that no layer that reads them was left "
                "out or is zero",
            )
        )  # fmt: skip
    return found


# ---- pictures ----------------------------------------------------------------------------------

OF_PICTURES = ("solid_picture",)


def judge_picture(prompt_id: str, picture: npt.NDArray[np.uint8]) -> list[Alarm]:
    """Whether a preview (h, w, 3) shows anything; what was not finite is black by now."""
    deviation = float(picture.reshape(-1, picture.shape[-1]).std(axis=0).mean())
    if deviation >= MIN_DEVIATION:
        return []
    kind = "black, or not finite" if not picture.any() else "of one colour"
    return [
        Alarm(
            "solid_picture", prompt_id, deviation, MIN_DEVIATION,
            f"the standard deviation of its pixels, of 255: the preview is {kind}",
            "if all previews are, the student has collapsed: go back to an earlier checkpoint and "
            "lower training.learning_rate; if only this is, look at its prompt",
        )
    ]  # fmt: skip
