"""Is the student good enough? The thresholds, and a plain answer to each."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from distillery.config.jobs import resolve_sampling
from distillery.config.run import Config
from distillery.evaluation.manifests import ModelSamples
from distillery.evaluation.metrics import Interval

MIN_CLIP_RATIO = 0.97
"""Share of the reference's CLIP score that a student must keep."""


@dataclass(frozen=True)
class Check:
    """One threshold.

    Attributes:
        question: what is asked.
        passed: the answer by the means; None if it was not measured.
        finding: the numbers behind it, or why there are none.
    """

    question: str
    passed: bool | None
    finding: str


@dataclass(frozen=True)
class Roles:
    """Which sampled model plays which part.

    Attributes:
        student: the student at the steps it was trained for.
        reference: the model that the others are held to.
        rival: the teacher at the student's number of steps, with the targets' guidance.
    """

    student: str | None
    reference: str
    rival: str | None


def find_roles(config: Config) -> Roles:
    """Find the parts by how the models sample, whatever they are called."""
    student = rival = None
    for name, chosen in config.samples.models.items():
        sampling = resolve_sampling(config, name)
        if sampling.steps != config.student.steps:
            continue
        if chosen.source == "student" and (sampling.guidance_scale or 1.0) == 1.0:
            student = student or name
        elif (
            chosen.source == "teacher"
            and sampling.guidance_scale == config.targets.guidance_scale
            and name != config.evaluation.reference
        ):
            rival = rival or name
    return Roles(student, config.evaluation.reference, rival)


def order_models(samples: Mapping[str, ModelSamples], reference: str) -> list[str]:
    """The reference first, then by falling cost; the student's place does not hang on its name."""

    def cost(name: str) -> tuple[bool, int, str]:
        return name != reference, -samples[name].network_calls, name

    return sorted(samples, key=cost)


def check_student(quality: Mapping[str, Any], roles: Roles) -> list[Check]:
    """Hold the student against every threshold; empty without a student."""
    if roles.student is None or roles.student not in quality["models"]:
        return []
    against = quality["models"][roles.student]["against"]
    return [
        _keeps_quality(against.get(roles.reference, {}), roles.reference),
        *_beats_rival(against.get(roles.rival, {}), roles),
    ]


def _keeps_quality(against: Mapping[str, Any], reference: str) -> Check:
    """CLIP score against the reference."""
    question = f"CLIP score at least {100 * MIN_CLIP_RATIO:.0f} % of that of {reference}"
    ratio = read_interval(against.get("clip_score_ratio"))
    if ratio is None:
        return Check(question, None, "the ratio is not defined: scores near zero, or not scored")
    finding = f"{percent(ratio.mean)}{_range(ratio, percent)}"
    if ratio.mean >= MIN_CLIP_RATIO and ratio.low is not None and ratio.low < MIN_CLIP_RATIO:
        finding += "; the interval reaches below the threshold"
    return Check(question, ratio.mean >= MIN_CLIP_RATIO, finding)


def _beats_rival(against: Mapping[str, Any], roles: Roles) -> list[Check]:
    """CLIP score and distance to the reference's images against the teacher at as few steps."""
    rival = roles.rival or "the teacher at as many steps with guidance"
    questions = {
        "clip_score": f"CLIP score not below that of {rival}",
        "latents_mse": f"Closer to {roles.reference} than {rival} is, in latents",
        "psnr_db": f"Closer to {roles.reference} than {rival} is, in pixels",
    }
    if not against:
        missing = "not measured: no such model in samples.models"
        return [Check(question, None, missing) for question in questions.values()]
    return [
        _compare(question, metric, read_interval(against.get(f"{metric}_difference")))
        for metric, question in questions.items()
    ]


def _compare(question: str, metric: str, difference: Interval | None) -> Check:
    """One paired difference, student minus rival."""
    if difference is None:
        return Check(question, None, "not measured")
    form = {"clip_score": "{:+.4f}", "latents_mse": "{:+.4f}", "psnr_db": "{:+.2f} dB"}[
        metric
    ].format
    passed = {
        "clip_score": difference.mean >= 0,
        "latents_mse": difference.mean < 0,
        "psnr_db": difference.mean > 0,
    }[metric]
    finding = f"difference {form(difference.mean)}{_range(difference, form)}"
    low, high = difference.low, difference.high
    if low is not None and high is not None and low <= 0 <= high:
        finding += "; the interval holds zero"
    return Check(question, passed, finding)


def _range(interval: Interval, form: Callable[[float], str]) -> str:
    """The interval in brackets, or nothing for a single prompt."""
    if interval.low is None or interval.high is None:
        return ""
    return f" ({form(interval.low)} to {form(interval.high)})"


def percent(share: float) -> str:
    """A share as text: 0.989 is 98.9 %, on one line."""
    return f"{100 * share:.1f}\N{NO-BREAK SPACE}%"


def read_interval(raw: Mapping[str, float | None] | None) -> Interval | None:
    """An interval as quality.json holds it."""
    if raw is None or raw["mean"] is None:
        return None
    return Interval(raw["mean"], raw["low"], raw["high"])


def summarise_checks(checks: list[Check]) -> str:
    """One sentence about all thresholds."""
    num_passed = sum(check.passed is True for check in checks)
    num_failed = sum(check.passed is False for check in checks)
    num_open = len(checks) - num_passed - num_failed
    if num_failed:
        text = f"The student fails {num_failed} of {len(checks)} thresholds"
        return text + (f"; {num_open} could not be measured." if num_open else ".")
    if num_open:
        return (
            f"The student passes {num_passed} of {len(checks)} thresholds; {num_open} could not be "
            "measured."
        )
    return f"The student passes all {len(checks)} thresholds."
