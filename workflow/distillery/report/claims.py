"""What is claimed of a student, in words: the same on the page, terminal, card and in the files."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from distillery.measures.intervals import ConfidenceInterval
from distillery.measures.measure import PERCENT, Need, Watch
from distillery.measures.of_sets import OF_SETS
from distillery.report.verdict import (
    Check,
    Roles,
    describe_bounds,
    describe_interval,
    read_interval,
    summarise_checks,
)
from distillery.words import listed, times

MIN_R1 = 0.95
"""A reference is weak where its whole interval of R@1 is below."""
WEAK = "the reference is weak: its steps or guidance seem too few; percentages of it say little"


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
        weakness: why percentages of the reference say little; empty where they do not.
        summary: the thresholds and the watched measures in short; None where there are none.
        watched: see `Watched`.
    """

    headline: str
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
) -> Claims:
    """All that is claimed.

    Args:
        roles: the parts of the models.
        quality: quality.json; None where nothing was scored.
        speed: see `summaries.summarise_speed`; None without a student.
        checks: the thresholds.
    """
    reasons = why_weak(roles, quality) if quality else []
    weakness = f"The reference is weak: {listed(reasons)}." if reasons else ""
    watched = find_watched(roles, quality) if quality else []
    return Claims(headline(roles, quality, speed), weakness, _summary(checks, watched), watched)


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
    return read_interval(against.get("clip_score_ratio"))


def why_weak(roles: Roles, quality: Mapping[str, Any]) -> list[str]:
    """What speaks against the reference as a measure of others; empty where nothing does."""
    reasons = []
    retrieval = read_interval(quality["models"].get(roles.reference, {}).get("retrieval_r1"))
    if retrieval and retrieval.high is not None and retrieval.high < MIN_R1:
        found = describe_interval(retrieval, PERCENT)
        reasons.append(f"of its own images only {found} find their prompt first (R@1)")
    for name in roles.same.shown(quality["models"]):
        ratio = ratio_of(quality, name, roles)
        if ratio and ratio.low is not None and ratio.low > 1:
            found = describe_interval(ratio, "{:.2f}".format)
            who = "the student" if name == roles.student else roles.label(name)
            reasons.append(f"{who} scores {found} times its CLIP score")
    return reasons


def find_watched(roles: Roles, quality: Mapping[str, Any]) -> list[Watched]:
    """The student's ratios that have a line of their own, in each vision model."""
    visions = quality.get("vision_models", {})
    sets = quality["models"].get(roles.student, {}).get("sets", {})
    lines = []
    for vision in (name for name in visions if name in sets):
        left_out = {name: Need(**need) for name, need in visions[vision]["left_out"].items()}
        where = f", in {vision}" if len(visions) > 1 else ""
        for measure in OF_SETS:
            if measure.watch:
                value = read_interval(sets[vision].get(f"{measure.name}_ratio"))
                title = measure.watch.name.format(whose=roles.whose) + where
                lines.append(_line(title, value, measure.watch, left_out.get(measure.name)))
    return lines


def _line(title: str, value: ConfidenceInterval | None, watch: Watch, need: Need | None) -> Watched:
    """One measure, flagged where its whole interval is beyond 1."""
    if value is None:
        why = (
            f"needs {need.images} images, {need.per_prompt} of each prompt"
            if need
            else "a number is not above 0"
        )
        return Watched(title, f"not measured: {why}", False, "")
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
