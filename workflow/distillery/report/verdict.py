"""Is the student good enough? The thresholds, a plain answer to each, and all that is claimed.

The sentences are the same on the page, the terminal, the card and in the files.
"""

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

from distillery.measures.intervals import MIN_RESAMPLED, ConfidenceInterval
from distillery.measures.lists import MEANS, MEASURES
from distillery.measures.measure import PERCENT, Measure, Need, Watch
from distillery.measures.of_judge import CLIP_SCORE
from distillery.measures.of_sets import OF_SETS
from distillery.report.roles import Roles
from distillery.report.worth import Worth
from distillery.words import listed, noun_of, times

Outcome = Literal["passed", "failed", "undecided", "not measured"]
NO_INTERVAL = f"; fewer than {MIN_RESAMPLED} prompts give no interval, which nothing is decided by"
MIN_R1 = 0.95
"""A reference is weak where its whole interval of R@1 is below."""
WEAK = "the reference is weak: its steps or guidance seem too few; percentages of it say little"


@dataclass(frozen=True)
class Check:
    """One threshold.

    Attributes:
        outcome: passed where the whole 95 % interval is on the good side of the threshold, failed
            where none of it is, undecided where it holds the threshold.
        finding: the numbers behind it, or why there are none.
    """

    question: str
    outcome: Outcome
    finding: str


def check_student(quality: Mapping[str, Any], roles: Roles, min_clip_ratio: float) -> list[Check]:
    """Hold the student against every threshold; empty without a student.

    Args:
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
    ratio = read_interval(against.get(CLIP_SCORE.ratio_key))
    if ratio is None:
        unclear = "the ratio is not defined: scores near zero, or not scored"
        return Check(question, "not measured", unclear)
    if _is_all(against[CLIP_SCORE.ratio_key], 1.0):
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
    raw = (against or {}).get(measure.difference_key)
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


# ---- claims -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Watched:
    """A measure that sets no threshold, and that nobody should overlook.

    Attributes:
        name: what is measured, and in which vision model.
        finding: its number with the interval, or why there is none.
        is_flagged: whether the whole interval is on the bad side of 1.
        meaning: of a flag; empty without one.
    """

    name: str
    finding: str
    is_flagged: bool
    meaning: str


@dataclass(frozen=True)
class Claims:
    """All sentences on a student.

    Attributes:
        headline: the answer to the user's question.
        worth: the student in network calls of the teacher; empty where that cannot be said.
        weakness: why percentages of the reference say little; empty where they do not.
        summary: the thresholds and the watched measures in short; None where there are none.
    """

    headline: str
    worth: str
    weakness: str
    summary: str | None
    watched: Sequence[Watched]

    def as_json(self) -> dict[str, Any]:
        """The keys of metrics.json."""
        return asdict(self)

    @property
    def flags(self) -> list[Watched]:
        """The watched measures that are flagged."""
        return [it for it in self.watched if it.is_flagged]


def make_claims(
    roles: Roles,
    quality: Mapping[str, Any] | None,
    speed: Mapping[str, Any] | None,
    checks: list[Check],
    worth: Worth | None = None,
) -> Claims:
    """All that is claimed.

    Args:
        quality: quality.json; None where nothing was scored.
        speed: see `speeds.summarise_speed`; None without a student.
        worth: None without a curve of the teacher.
    """
    reasons = why_weak(roles, quality) if quality else []
    weakness = f"The reference is weak: {listed(reasons)}." if reasons else ""
    watched = find_watched(roles, quality) if quality else []
    return Claims(
        headline(roles, quality, speed),
        worth.text if worth else "",
        weakness,
        _summary(checks, watched),
        watched,
    )


def headline(
    roles: Roles, quality: Mapping[str, Any] | None, speed: Mapping[str, Any] | None
) -> str:
    """The answer to the user's question; where the reference is weak it says so."""
    if roles.student is None or speed is None:
        return "No student was compared with its teacher in this run."
    calls = f"network calls{roles.than_reference}"
    fewer = times(
        speed["network_calls_ratio"] or 1.0,
        "{:.3g} times",
        (f"fewer {calls}", f"as many {calls}", f"more {calls}"),
    )
    if quality is None:
        return f"The student needs {fewer}; its quality was not scored."
    ratio = ratio_of(quality, roles.student, roles)
    if ratio is None:
        return f"The student needs {fewer}; how much quality it keeps is not defined."
    weak = f"; {WEAK}" if why_weak(roles, quality) else ""
    before = ratio_of(quality, roles.untrained, roles)
    if ratio.mean <= 1 and not weak:
        kept = f"The student keeps {PERCENT(ratio.mean)} of {roles.whose} CLIP score with {fewer}"
        return kept + (f"; before its training it kept {PERCENT(before.mean)}." if before else ".")
    bounds = describe_bounds(ratio, "{:.2f}".format)
    scored = f"{ratio.mean:.2f} times {roles.whose} CLIP score" + (f" ({bounds})" if bounds else "")
    earlier = f", before its training {before.mean:.2f} times" if before else ""
    return f"The student scores {scored} with {fewer}{earlier}{weak}."


def ratio_of(
    quality: Mapping[str, Any], name: str | None, roles: Roles
) -> ConfidenceInterval | None:
    """A model's CLIP score over the reference's; None where it was not scored."""
    against = quality["models"].get(name, {}).get("against", {}).get(roles.reference, {})
    return read_interval(against.get(CLIP_SCORE.ratio_key))


def why_weak(roles: Roles, quality: Mapping[str, Any]) -> list[str]:
    """What speaks against the reference as a measure of others; empty where nothing does."""
    reasons = []
    retrieval = read_interval(quality["models"].get(roles.reference, {}).get("retrieval_r1"))
    if retrieval and retrieval.high is not None and retrieval.high < MIN_R1:
        found = describe_interval(retrieval, PERCENT)
        own = noun_of(quality.get("num_frames", 1))
        reasons.append(f"of its own {own}s only {found} find their prompt first (R@1)")
    for name in roles.same.shown(quality["models"]):
        ratio = ratio_of(quality, name, roles)
        if ratio and ratio.low is not None and ratio.low > 1:
            found = describe_interval(ratio, "{:.2f}".format)
            who = "the student" if name == roles.student else roles.label(name)
            reasons.append(f"{who} scores {found} times its CLIP score")
    return reasons


def find_watched(roles: Roles, quality: Mapping[str, Any]) -> list[Watched]:
    """The student's ratios that have a line of their own; those of sets in each vision model."""
    facts = quality["models"].get(roles.student, {})
    visions, sets = quality.get("vision_models", {}), facts.get("sets", {})
    against = facts.get("against", {}).get(roles.reference, {})
    undefined = "a number is not above 0"
    lines = [
        _line(it.watch, roles, read_interval(against[it.ratio_key]), undefined)
        for it in MEASURES
        if it.watch and it.ratio_key in against
    ]
    for vision in (name for name in visions if name in sets):
        left_out = {name: Need(**need) for name, need in visions[vision]["left_out"].items()}
        where = f", in {vision}" if len(visions) > 1 else ""
        for measure in OF_SETS:
            if measure.watch:
                value = read_interval(sets[vision].get(measure.ratio_key))
                need = left_out.get(measure.name)
                why = _lacking(need, quality) if need else undefined
                lines.append(_line(measure.watch, roles, value, why, where))
    return lines


def _lacking(need: Need, quality: Mapping[str, Any]) -> str:
    noun = noun_of(quality.get("num_frames", 1))
    return f"needs {need.images} {noun}s, {need.per_prompt} of each prompt"


def _line(
    watch: Watch, roles: Roles, value: ConfidenceInterval | None, why_none: str, where: str = ""
) -> Watched:
    """One measure, flagged where its whole interval is beyond 1.

    Args:
        why_none: why it has no value, if it has none.
        where: in which vision model, if there are several.
    """
    title = watch.name.format(whose=roles.whose) + where
    if value is None:
        return Watched(title, f"not measured: {why_none}", False, "")
    near = value.low if watch.bad > 0 else value.high
    is_flagged = near is not None and watch.bad * (near - 1) > 0
    finding = describe_interval(value, "{:.2f}".format)
    return Watched(title, finding, is_flagged, watch.meaning if is_flagged else "")


def speed_words(speed: Mapping[str, Any]) -> str:
    """How many times faster the student is, where the batches suffice to say so."""
    ratio, low, high = (speed[f"seconds_ratio{end}"] for end in ("", "_low", "_high"))
    if ratio is None:
        return "too few batches to say how many times faster or slower,"
    if low is not None and low <= 1 <= high:
        return f"no difference beyond the interval ({low:.2f} to {high:.2f} times as fast)"
    words = times(ratio, "{:.1f}\N{MULTIPLICATION SIGN}", ("faster", "as fast", "slower"))
    if low is None:
        return words
    low, high = (low, high) if ratio > 1 else (1 / high, 1 / low)
    return f"{words} ({low:.1f} to {high:.1f})"


def _summary(checks: list[Check], watched: Sequence[Watched]) -> str | None:
    """The thresholds, then what is watched beside them; None if there was nothing to check."""
    if not checks:
        return None
    told = [f"{it.name} {it.finding}" + (f", {it.meaning}" if it.meaning else "") for it in watched]
    more = f" Watched, without a threshold: {'; '.join(told)}." if told else ""
    return summarise_checks(checks) + more
