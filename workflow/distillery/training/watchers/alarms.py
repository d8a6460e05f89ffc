"""Signs that a training goes wrong, each with what it means and what to do about it.

What a judge says depends only on what was measured; `Alarms` reports each finding once, when it
begins. Nothing here changes a weight. Thresholds were chosen on the demo: see docs/design.md.
"""

import time
from bisect import bisect_left
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from math import inf, isfinite, log, nan
from statistics import fmean, median

import numpy as np
import numpy.typing as npt

from distillery.telemetry import Reporter

Row = Mapping[str, float]
"""A row of loss.parquet."""

MIN_VARIATION = 0.02
"""Healthy demo: 0.2 and more; with zeroed prompts or a constant output: below 1e-3."""
MAX_OF_BASELINE = 0.9
"""Healthy demo: below 0.1; with targets of other trajectories, or after divergence: about 1."""
MAX_GROWTH = 2.0
"""Healthy demo: at most 1.14 of the lowest window."""
MAX_SPIKE = 5.0
"""Healthy demo: at most 1.04 of the median of the rows before."""
NUM_BEFORE_SPIKE = 8
"""Rows that a spike is held against; half of them must be there."""
MIN_DEVIATION = 2.0
"""Of 255. An image of one colour has below 1; the demo's flattest has 5.3."""

WINDOW_SAMPLES = 128
"""Samples of a segment whose mean loss is judged; single rows are noisy."""
FIRST_SHARE = 0.25
"""Of the training, before losses are held against the baseline: a random student is no better."""
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
    """Reports each alarm once, when it begins; an alarm that ended may ring again."""

    def __init__(self, reporter: Reporter, recipe_hash: str) -> None:
        """`recipe_hash` names the training; `reporter` is of the process that measures."""
        self._reporter = reporter
        self._recipe_hash = recipe_hash
        self._ringing: set[tuple[str, str]] = set()

    def tell(
        self,
        names: Sequence[str],
        alarms: Sequence[Alarm],
        samples_seen: int,
        subject: str | None = None,
    ) -> list[Alarm]:
        """Report the alarms of one measurement that did not ring yet, and return them.

        Args:
            names: the kinds of alarms that the measurement could have found.
            subject: the only one that was measured; None: all of them were.
        """
        before = {
            (name, about)
            for name, about in self._ringing
            if name in names and subject in (None, about)
        }
        now = {(alarm.name, alarm.subject) for alarm in alarms}
        new = [alarm for alarm in alarms if (alarm.name, alarm.subject) not in before]
        self._ringing = self._ringing - before | now
        for alarm in new:
            self._reporter.warning(f"after {samples_seen} samples: {alarm.text}")
            now_s = time.time()
            facts = asdict(alarm) | {"samples_seen": samples_seen, "recipe": self._recipe_hash}
            self._reporter.emit("alarm", now_s, now_s, **facts)
        return new


# ---- loss --------------------------------------------------------------------------------------

LOSS_ALARMS = (
    "loss_spike", "loss_growth", "no_better_than_constant", "heads_always_right", "heads_guess",
    "held_out_loss_rises",
)  # fmt: skip
COMPANIONS = ("copy", "heads")
"""What may learn beside the student in a finish: the ends of two columns."""
HEADS = "loss_heads"
HELD_OUT = "held_out_loss"
KNOT = "held_out_error_knot_"
"""Columns of the history."""
MAX_HELD_OUT = 1.1
"""The held-out loss over its lowest: above, the student learns the other trajectories by heart."""
GUESSING = 2 * log(2)
"""The loss of heads that cannot tell images apart; see `adversarial`."""
MIN_HEADS = 0.1
MAX_HEADS = 0.99
"""Shares of `GUESSING`."""


class Course:
    """One loss over the rows: its last window, and the lowest of the windows before it.

    Attributes:
        size: rows in a window.
        lowest: mean of a window that has ended; infinite before.
    """

    def __init__(self, size: int) -> None:
        """No row yet."""
        self.size = size
        self._rows: deque[float] = deque(maxlen=max(2 * size, 1 + NUM_BEFORE_SPIKE))
        self.lowest = inf

    def add(self, loss: float) -> None:
        """Add the next row."""
        self._rows.append(loss)
        if len(self._rows) >= 2 * self.size:
            mean = fmean(self.last(2 * self.size)[: self.size])
            self.lowest = min(self.lowest, mean) if isfinite(mean) else self.lowest

    def last(self, count: int) -> list[float]:
        """Up to `count` of the last rows; no more are kept than two windows, or a spike needs."""
        return list(self._rows)[-count:]

    @property
    def window(self) -> list[float]:
        """The last one; shorter where there are fewer rows."""
        return self.last(self.size)

    @property
    def growth(self) -> float:
        """The mean of the last window over the lowest mean of those that ended before it.

        NaN where there are fewer than two windows, or a window without a number.
        """
        if not 0 < self.lowest < inf:
            return nan
        return fmean(self.window) / self.lowest


class LossJudge:
    """Takes in one row after another, and says what the last one means.

    A row costs the same however long the training is: only the last windows and the lowest mean of
    the rows before it are kept.
    """

    def __init__(
        self,
        baseline: Sequence[float],
        log_every_samples: int,
        num_samples: int,
        restarts: Sequence[int] = (),
    ) -> None:
        """No row yet.

        Args:
            baseline: see `variation.constant_baseline_losses`, one per segment.
            log_every_samples: samples in a row.
            restarts: samples after which the learning rate begins anew, with other states.
        """
        self._ignorant = baseline
        self._first_judged = FIRST_SHARE * num_samples
        size = -(-WINDOW_SAMPLES * len(baseline) // log_every_samples)
        self._segments = [f"{SEGMENT}{number}" for number in range(len(baseline))]
        # The trajectories, rounds, a finish and rollouts apart, whose losses are of other sizes.
        self._restarts = restarts
        self._phases = [
            {column: Course(size) for column in ("loss", *self._segments)}
            for _ in range(len(restarts) + 2)
        ]
        self._number, self._samples_seen = 0, 0.0
        self._heads = Course(size)
        self._held_out: list[list[Row]] = [[] for _ in self._phases]

    def add(self, row: Row) -> None:
        """Add the next row."""
        self._samples_seen = row["samples_seen"]
        is_rollout = isfinite(row.get(ROLLOUT, nan))
        number = bisect_left(self._restarts, self._samples_seen)
        self._number = len(self._phases) - 1 if is_rollout else number
        for column, course in self._phase.items():
            course.add(row.get(column, nan))
        if isfinite(row.get(HEADS, nan)):
            self._heads.add(row[HEADS])
        if isfinite(row.get(HELD_OUT, nan)):
            self._held_out[self._number].append(row)

    @property
    def _phase(self) -> dict[str, Course]:
        """The losses of the present phase, by column."""
        return self._phases[self._number]

    def judge(self) -> list[Alarm]:
        """The alarms of the loss, overall and by segment."""
        growing = {column: course.growth for column, course in self._phase.items()}
        alarms = spikes(self._phase["loss"].last(1 + NUM_BEFORE_SPIKE))
        for column, ratio in growing.items():
            if ratio > MAX_GROWTH:
                others = [growing[other] for other in self._segments if other != column]
                alarms.append(_growth_alarm(column, ratio, others))
        if self._samples_seen >= self._first_judged:
            windows = {column: self._phase[column].window for column in self._segments}
            alarms += _ignorance(windows, self._ignorant)
        return alarms + judge_heads(self._heads) + judge_held_out(self._held_out[self._number])


def judge_heads(course: Course) -> list[Alarm]:
    """Heads of an adversarial finish that teach the student nothing, once they had two windows."""
    if not course.lowest < inf:
        return []
    share, meaning = fmean(course.window) / GUESSING, "the heads' loss over that of guessing"
    if share < MIN_HEADS:
        return [
            Alarm(
                "heads_always_right", "", share, MIN_HEADS,
                f"{meaning}: they tell all of the student's images, which then learns little",
                "lower the learning_rate of the phase adversarial, or raise its smoothness",
            )
        ]  # fmt: skip
    if share > MAX_HEADS:
        return [
            Alarm(
                "heads_guess", "", share, MAX_HEADS,
                f"{meaning}: they tell nothing apart, so the finish teaches nothing",
                "raise the learning_rate of the phase adversarial or the global batch, or lower "
                "its smoothness",
            )
        ]  # fmt: skip
    return []


def judge_held_out(rows: Sequence[Row]) -> list[Alarm]:
    """Whether the held-out loss has risen from its lowest, while the loss went on falling.

    Args:
        rows: of one phase, that have one.
    """
    if not rows:
        return []
    last, best = rows[-1], min(rows, key=lambda row: row[HELD_OUT])
    if not (last[HELD_OUT] > MAX_HELD_OUT * best[HELD_OUT] and last["loss"] < best["loss"]):
        return []
    return [
        Alarm(
            "held_out_loss_rises", "", last[HELD_OUT] / best[HELD_OUT], MAX_HELD_OUT,
            f"ratio of the held-out loss to its lowest, after {best['samples_seen']:.0f} samples, "
            "while the loss went on falling: the student learns its trajectories by heart",
            "make more trajectories, of more prompts first, or train for fewer samples",
        )
    ]  # fmt: skip


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
            f"ratio of the last row's loss to the median of the {len(before)} rows before",
            "if it comes back, lower training.learning_rate or training.max_grad_norm",
        )
    ]  # fmt: skip


def _growth_alarm(column: str, ratio: float, others: Sequence[float]) -> Alarm:
    """A loss that has left its lowest window far behind."""
    steady = sum(1 for other in others if not other > MAX_GROWTH)
    alone = f", while {steady} other segments hold" if column != "loss" and steady else ""
    return Alarm(
        "loss_growth", _subject(column), ratio, MAX_GROWTH,
        f"ratio of the loss to its lowest so far{alone}: the training diverges",
        "lower training.learning_rate, lengthen training.warmup_samples, or go back to an earlier "
        "checkpoint",
    )  # fmt: skip


def _ignorance(windows: Mapping[str, Sequence[float]], baseline: Sequence[float]) -> list[Alarm]:
    """Segments whose loss is no better than the constant-output baseline."""
    ratios = {}
    for (column, window), worst in zip(windows.items(), baseline, strict=True):
        values = [value for value in window if isfinite(value)]
        if values and worst and fmean(values) >= MAX_OF_BASELINE * worst:
            ratios[_subject(column)] = fmean(values) / worst
    if len(ratios) == len(windows) > 1:
        ratios = {"all segments": min(ratios.values())}
    return [
        Alarm(
            "no_better_than_constant", subject, ratio, MAX_OF_BASELINE,
            "ratio of the loss to that of one answer to everything: the student has learned a "
            "mean, or nothing",
            "check that states, targets and prompts belong together; lower training.learning_rate "
            "if the loss was lower before",
        )
        for subject, ratio in ratios.items()
    ]  # fmt: skip


def _subject(column: str) -> str:
    return f"segment {column.removeprefix(SEGMENT)}" if column.startswith(SEGMENT) else ""


# ---- variation ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Variation:
    """How much the student's answers vary, 1 where they vary as their targets do.

    Attributes:
        state: over the states at the last segment's beginning, with the same prompt; None where
            the targets do not vary, as in a store of one trajectory.
        prompt: over prompts at the first, with the same noise; None where the store has one prompt,
            or the targets do not vary.
    """

    state: float | None
    prompt: float | None


VARIATION_ALARMS = ("state_ignored", "prompt_ignored")


def judge_variation(variation: Variation) -> list[Alarm]:
    """Whether the student still answers to its states and to its prompts."""
    alarms = []
    if variation.state is not None and not variation.state >= MIN_VARIATION:
        alarms.append(
            Alarm(
                "state_ignored", "", variation.state, MIN_VARIATION,
                "with one prompt the student's answers to different states vary by this share of "
                "what the targets vary: it draws the same from every noise",
                "check that targets belong to their noise; lower training.learning_rate",
            )
        )  # fmt: skip
    if variation.prompt is not None and not variation.prompt >= MIN_VARIATION:
        alarms.append(
            Alarm(
                "prompt_ignored", "", variation.prompt, MIN_VARIATION,
                "with one noise the student's answers to different prompts vary by this share of "
                "what the targets vary: it draws the same for every prompt",
                "check the train split's embeddings, and that no layer that reads them was left "
                "out or is zero",
            )
        )  # fmt: skip
    return alarms


# ---- images ----------------------------------------------------------------------------------

IMAGE_ALARMS = ("solid_image",)


def judge_image(prompt_id: str, image: npt.NDArray[np.uint8]) -> list[Alarm]:
    """Whether a preview (..., 3) shows anything; what was not finite is black by now."""
    deviation = float(image.reshape(-1, image.shape[-1]).std(axis=0).mean())
    if deviation >= MIN_DEVIATION:
        return []
    kind = "black, or not finite" if not image.any() else "of one colour"
    return [
        Alarm(
            "solid_image", prompt_id, deviation, MIN_DEVIATION,
            f"the standard deviation of its pixels, of 255: the preview is {kind}",
            "if all previews are, the student has collapsed: go back to an earlier checkpoint and "
            "lower training.learning_rate; if only this is, look at its prompt",
        )
    ]  # fmt: skip
