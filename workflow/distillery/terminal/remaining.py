"""How long a call of Snakemake still takes, by what its jobs have taken; None where nobody knows.

Passes tell how much a job computes, and nothing of how long it loads: of a small run that is nearly
all of its time. So seconds are measured: of jobs of the same rule, of a pass, and of a job's start.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from distillery.pipeline import STAGES
from distillery.stage import short_rules
from distillery.terminal.jobs import Job

MIN_SHARE = 0.3
"""Of the expected time that has gone before time left is told; a plan with rates needs none."""
SHORT = short_rules(STAGES)
"""Rules whose jobs load nothing: they tell nothing of how long others load."""
MIN_ITEMS = 0.1
"""Of a job's items that are done before their speed is taken for its own."""
LATE = 0.2
"""A job that takes longer than expected still takes so much of its time."""


@dataclass
class Seconds:
    """What is measured of the jobs that ended, and planned of all.

    Attributes:
        ended: seconds of the jobs that ended, by rule.
        planned: seconds of one job of a rule, by the plan's rates; empty without a probe.
        most_at_once: jobs that ran together.
    """

    ended: dict[str, list[float]] = field(default_factory=dict)
    planned: Mapping[str, float] = field(default_factory=dict)
    most_at_once: int = 1

    def add(self, job: Job, now_s: float) -> None:
        """A job has ended."""
        self.ended.setdefault(job.rule, []).append(max(0.0, now_s - job.begin_s))

    def left_s(
        self,
        waiting: Counter[str],
        running: Sequence[Job],
        passes_of: Callable[[str], float],
        begin_s: float,
        now_s: float,
    ) -> float | None:
        """Seconds to the end; None where a rule's time is not known, or too little has gone.

        Args:
            waiting: jobs that have not begun, by rule.
            passes_of: network passes of a job of a rule.
            begin_s, now_s: when it all began, and now.
        """
        rules = {*waiting, *(job.rule for job in running)}
        pass_s = self._pass_s(running, passes_of)
        expected = {rule: self._expected_s(rule, passes_of(rule), pass_s) for rule in rules}
        known = {rule: seconds for rule, seconds in expected.items() if seconds is not None}
        if len(known) < len(expected):
            return None
        left = sum(
            known[rule] * number / min(number, self.most_at_once)
            for rule, number in waiting.items()
            if number
        )
        left += max((_rest_s(job, known[job.rule], now_s) for job in running), default=0.0)
        gone = now_s - begin_s
        is_planned = all(rule in self.planned for rule in rules if passes_of(rule))
        if (self.planned and is_planned) or gone >= MIN_SHARE * (gone + left):
            return left
        return None

    def _start_s(self) -> float | None:
        """Seconds in which a job loads, and does little besides."""
        means = [_mean(spans) for rule, spans in self.ended.items() if rule not in SHORT]
        return min(means, default=None)

    def _pass_s(self, running: Sequence[Job], passes_of: Callable[[str], float]) -> float | None:
        """Seconds of one network pass: of the ended jobs that have most, whose start counts least,
        else of those that count items."""
        most = max(self.ended, key=passes_of, default="")
        if passes_of(most):
            # The shortest of all jobs has no time beyond its start: it tells nothing of passes.
            computing_s = _mean(self.ended[most]) - (self._start_s() or 0.0)
            if computing_s > 0:
                return computing_s / passes_of(most)
        rates = [
            (job.note["total"] / passes_of(job.rule)) / job.items_per_s
            for job in running
            if job.items_per_s and job.share >= MIN_ITEMS and passes_of(job.rule)
        ]
        return _mean(rates) if rates else None

    def _expected_s(self, rule: str, passes: float, pass_s: float | None) -> float | None:
        """Seconds of one job: measured, planned, or by its passes."""
        if rule in self.ended:
            return _mean(self.ended[rule])
        if rule in self.planned:
            return self.planned[rule]
        if rule in SHORT:
            return 0.0
        start_s = self._start_s()
        if start_s is None or (passes and pass_s is None):
            return None
        return start_s + passes * (pass_s or 0.0)


def _rest_s(job: Job, expected_s: float, now_s: float) -> float:
    """Of a running job: as its items say, else of what is expected."""
    if job.left_s is not None and job.share >= MIN_ITEMS:
        return job.left_s
    gone = now_s - job.begin_s
    return max(expected_s - gone, LATE * gone if gone > expected_s else 0.0)


def _mean(spans: Sequence[float]) -> float:
    return sum(spans) / len(spans)


def planned_seconds(time: Mapping[str, object]) -> dict[str, float]:
    """Seconds of one job of each rule that the plan has a rate of.

    Args:
        time: of plan.json; empty without a probe.
    """
    stages = time.get("stages", [])
    assert isinstance(stages, list)
    return {
        row["stage"]: row["wall_s"] if row["num_jobs"] == 1 else row["busy_s"] / row["num_jobs"]
        for row in stages
        if row["num_jobs"]
    }
