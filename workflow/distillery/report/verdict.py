"""Is the student good enough? The thresholds, and a plain answer to each."""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from distillery.config.jobs import Sampling, resolve_sampling
from distillery.config.run import Config
from distillery.measures.intervals import MIN_RESAMPLED, ConfidenceInterval
from distillery.measures.lists import MEANS
from distillery.measures.manifests import ModelSamples
from distillery.measures.measure import PERCENT, Measure
from distillery.report.same import SameImages

Outcome = Literal["passed", "failed", "undecided", "not measured"]
NO_INTERVAL = f"; fewer than {MIN_RESAMPLED} prompts give no interval, which nothing is decided by"
TEACHER = "teacher"
"""The usual name of the reference: the teacher as the targets were made."""


@dataclass(frozen=True)
class Check:
    """One threshold.

    Attributes:
        question: what is asked.
        outcome: passed where the whole 95 % interval is on the good side of the threshold, failed
            where none of it is, undecided where it holds the threshold.
        finding: the numbers behind it, or why there are none.
    """

    question: str
    outcome: Outcome
    finding: str


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
    """Find the roles by how the models sample, whatever they are called.

    Args:
        config: of the run.
        quality: quality.json; without scores there is no rival.
    """
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


def check_student(quality: Mapping[str, Any], roles: Roles, min_clip_ratio: float) -> list[Check]:
    """Hold the student against every threshold; empty without a student.

    Args:
        quality: quality.json.
        roles: the parts of its models.
        min_clip_ratio: share of the reference's CLIP score that the student must exceed.
    """
    if roles.student not in quality["models"]:
        return []
    against = quality["models"][roles.student]["against"]
    unnamed = ("the teacher at as few network calls", "the untrained student")
    others = zip(roles.rivals, unnamed[-len(roles.rivals) :], strict=True)
    checks = [_keeps_quality(against.get(roles.reference, {}), roles.reference, min_clip_ratio)]
    for name, words in others:
        checks += _beats(against.get(name), name or words, roles.reference)
    if quality.get("num_prompts", MIN_RESAMPLED) >= MIN_RESAMPLED:
        return checks
    return [replace(it, finding=it.finding + NO_INTERVAL) for it in checks]


def _keeps_quality(against: Mapping[str, Any], reference: str, least: float) -> Check:
    """CLIP score against the reference."""
    question = f"CLIP score above {100 * least:g} % of that of {reference}"
    ratio = read_interval(against.get("clip_score_ratio"))
    if ratio is None:
        unclear = "the ratio is not defined: scores near zero, or not scored"
        return Check(question, "not measured", unclear)
    if _is_all(against["clip_score_ratio"], 1.0):
        return Check(question, "passed" if least < 1 else "failed", "every score is the same")
    return Check(question, decide(ratio, least, +1), describe_interval(ratio, PERCENT))


def _beats(against: Mapping[str, Any] | None, other: str, reference: str) -> list[Check]:
    """The measures against one model of at most the student's cost, by paired differences."""
    return [
        _beats_in(measure, measure.question.format(other=other, reference=reference), against)
        for measure in MEANS
        if measure.question is not None
    ]


def _beats_in(measure: Measure, question: str, against: Mapping[str, Any] | None) -> Check:
    """One measure against one model."""
    raw = (against or {}).get(f"{measure.name}_difference")
    difference = read_interval(raw)
    if difference is None:
        why = "no such model in samples.models" if against is None else "no score"
        return Check(question, "not measured", why)
    if _is_all(raw, 0.0):
        return Check(question, "failed", "no difference in any image")
    finding = f"difference {describe_interval(difference, measure.form.signed)}"
    return Check(question, decide(difference, 0.0, measure.direction), finding)


def _is_all(raw: Mapping[str, float | None] | None, value: float) -> bool:
    """Whether a number is the same of every image: so is the mean, and there is no spread."""
    return raw is not None and raw["mean"] == value and raw["low"] == raw["high"]


def decide(interval: ConfidenceInterval, threshold: float, direction: int) -> Outcome:
    """Whether an interval lies beyond a threshold; equal to it is not beyond.

    Args:
        interval: of a mean; a bound of None is unlimited.
        threshold: what must be exceeded.
        direction: +1 if more is better, -1 if less is.
    """
    low = -math.inf if interval.low is None else interval.low
    high = math.inf if interval.high is None else interval.high
    worst, best = sorted((direction * (low - threshold), direction * (high - threshold)))
    if worst > 0:
        return "passed"
    return "undecided" if best > 0 else "failed"


def describe_interval(interval: ConfidenceInterval, form: Callable[[float], str]) -> str:
    """A mean, with its interval in brackets where there is one."""
    bounds = describe_bounds(interval, form)
    return form(interval.mean) + (f" ({bounds})" if bounds else "")


def describe_bounds(interval: ConfidenceInterval, form: Callable[[float], str]) -> str:
    """From where to where an interval goes; empty where too few prompts give none."""
    if interval.low is None and interval.high is None:
        return ""
    low = "-\N{INFINITY}" if interval.low is None else form(interval.low)
    high = "\N{INFINITY}" if interval.high is None else form(interval.high)
    return f"{low} to {high}"


def read_interval(raw: Mapping[str, float | None] | None) -> ConfidenceInterval | None:
    """An interval as quality.json holds it; older ones may be without a width, which is none."""
    if raw is None or raw["mean"] is None:
        return None
    return ConfidenceInterval.of(raw["mean"], raw["low"], raw["high"])


def summarise_checks(checks: list[Check]) -> str:
    """One sentence about all thresholds."""
    counts = Counter(check.outcome for check in checks)
    if counts["passed"] == len(checks):
        return f"The student passes all {len(checks)} thresholds."
    words: dict[Outcome, str] = {
        "failed": "fails {}",
        "undecided": "leaves {} undecided",
        "not measured": "{} could not be measured",
    }
    parts = [f"The student passes {counts['passed']} of {len(checks)} thresholds"]
    parts += [text.format(counts[key]) for key, text in words.items() if counts[key]]
    return "; ".join(parts) + "."
