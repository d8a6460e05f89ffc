"""What is known of all jobs of one call of Snakemake: the only state that is drawn from."""

import time
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from distillery.files import read_json
from distillery.pipeline import STAGES
from distillery.run_folder import RunFolder
from distillery.stage import asked_for
from distillery.terminal.jobs import Job
from distillery.terminal.remaining import Seconds, planned_seconds

BESIDE = 0.1
"""What jobs do beside network passes, by all passes: as much in each job, whatever it is for."""
LOOKING = {stage.name for stage in STAGES if stage.keys is asked_for}
"""Rules that make nothing of a run: what it has may be of another configuration than they are."""
MAX_LOOKS = 50
"""Jobs that one look reads of, twice a second."""
A_RUN = {"probe": 1.0}
"""Passes of a job that is a run of its own, which no plan tells: more than the jobs before it."""


@dataclass(frozen=True)
class Failure:
    """A job that ended without success.

    Attributes:
        message: how it ended, maybe in several lines.
        is_told: whether the job has said so on the terminal itself.
    """

    message: str
    log: Path | None
    is_told: bool = False


@dataclass
class Board:
    """All jobs.

    Attributes:
        running: by Snakemake's number.
        numbers: of the jobs to be done, by rule.
        finished: by rule.
        failures: of jobs that failed and were not tried again.
        run: folder of the run; None before a job has named it.
        seconds: what the jobs that ended have taken.
        made: the first output of the job that ended last, which a call was asked for; None where
            it has none, as `all` and `verify`.
    """

    running: dict[int, Job] = field(default_factory=dict)
    numbers: Counter[str] = field(default_factory=Counter)
    finished: Counter[str] = field(default_factory=Counter)
    failures: dict[int, Failure] = field(default_factory=dict)
    names: dict[int, str] = field(default_factory=dict)
    run: RunFolder | None = None
    made: Path | None = None
    begin_s: float = field(default_factory=time.time)
    seconds: Seconds = field(default_factory=Seconds)
    _passes: Mapping[str, float] = field(default_factory=dict)
    _passes_done: float = 0.0
    _looked: int = 0

    def plan(self, numbers: Mapping[str, int]) -> None:
        """So many jobs of each rule are to be done."""
        self.numbers = Counter({rule: int(number) for rule, number in numbers.items()})
        del self.numbers["total"]

    def begin(
        self, number: int, rule: str, log: Path | None, begin_s: float, output: Path | None = None
    ) -> None:
        """A job begins, perhaps once more; `output` is the first that it makes."""
        self.failures.pop(number, None)
        self.running[number] = Job(rule, log, begin_s, output)
        self.names[number] = self.running[number].name
        if log is not None and log.parent.name == "logs":
            self.run = RunFolder(log.parent.parent)
        if self.run is not None and not self._passes:
            self._passes, self.seconds.planned = _read_plan(self.run)
        self.seconds.most_at_once = max(self.seconds.most_at_once, len(self.running))

    def end(self, number: int) -> Job | None:
        """A job is done; None for one that never began here."""
        job = self.running.pop(number, None)
        if job is not None:
            self.finished[job.rule] += 1
            self._passes_done += self._passes_of(job.rule, job.name)
            self.seconds.add(job, time.time())
            self.made = job.output
        return job

    def fail(self, number: int, is_stopped: bool = False) -> Failure | None:
        """A job has failed, perhaps since Ctrl-C was pressed."""
        job = self.running.pop(number, None)
        if job is None:
            return None
        failure = Failure(job.last_words(is_stopped), job.log, job.has_told)
        self.failures[number] = failure
        return failure

    def look(self) -> list[str]:
        """Read how far the running jobs are; returns their new warnings.

        Each look reads two files of a job: of very many jobs, which a cluster runs, only
        `MAX_LOOKS` are looked at, one after another.
        """
        jobs = self.at_work
        first = self._looked % max(len(jobs), 1)
        self._looked = first + MAX_LOOKS
        turn = (jobs[first:] + jobs[:first])[:MAX_LOOKS]
        return [warning for job in turn for warning in job.look()]

    @property
    def counts(self) -> str:
        """17 of 45 jobs."""
        return f"{self.finished.total():,} of {max(self.numbers.total(), 1):,} jobs"

    @property
    def share(self) -> float:
        """Of the planned work that is done, from 0 to 1."""
        passes = sum(self._passes_of(rule) * jobs for rule, jobs in self.numbers.items())
        beside = BESIDE * (passes or 1.0) / max(self.numbers.total(), 1)
        done = beside * self.finished.total() + self._passes_done
        done += sum(self._passes_of(job.rule, job.name) * job.share for job in self.at_work)
        whole = passes + beside * self.numbers.total()
        return min(1.0, done / whole) if whole else 0.0

    def _passes_of(self, rule: str, name: str = "") -> float:
        """Network passes of one job, by its name where the rule's jobs are unlike each other."""
        return self._passes.get(name, self._passes.get(rule, A_RUN.get(rule, 0.0)))

    @property
    def left_s(self) -> float | None:
        """Seconds to the end; None where too little is known to say, and during a job that is a
        run: its jobs are unlike each other."""
        running = self.at_work
        if any(job.rule in A_RUN for job in running):
            return None
        waiting = self.numbers - self.finished - Counter(job.rule for job in running)
        return self.seconds.left_s(waiting, running, self._passes_of, self.begin_s, time.time())

    @property
    def at_work(self) -> list[Job]:
        """The running jobs; the other thread may change them meanwhile."""
        return list(self.running.values())

    @property
    def all_is_told(self) -> bool:
        """Whether all jobs that began have failed and said why: the terminal ends with that."""
        is_all = self.names.keys() == self.failures.keys() != set()
        return is_all and all(failure.is_told for failure in self.failures.values())

    def closing_lines(self) -> list[str]:
        """How it all ended, where it ended well: the verdict, and where to look.

        A call that only looks tells the place of its own page alone, and one for a single file
        only what it has made: the rest may be of earlier settings.
        """
        if self.run is None or {*self.finished} <= LOOKING:
            return self._lines_of_made()
        places = {
            "report": self.run.report,
            "images": self.run.gallery / "index.html",
            "student": self.run.student("pipeline"),
            "data set": self.run.dataset,
        }
        there = {name: path for name, path in places.items() if self._is_current(path)}
        lines = [f"{name}: {path}" for name, path in there.items()]
        verdict = _verdict_lines(self.run) if "report" in there else []
        return verdict + lines + self._lines_of_made(there.values())

    def _is_current(self, path: Path) -> bool:
        """Whether a result is there, and made by this call where that was not for all of it."""
        return path.exists() and (self.made is None or path.stat().st_mtime >= self.begin_s)

    def _lines_of_made(self, others: Collection[Path] = ()) -> list[str]:
        """Where that is which was asked for, or its page, unless it is told already."""
        if self.made is None:
            return []
        pages = (self.made / "index.html", self.made.with_suffix(".html"))
        place = next((page for page in pages if page.is_file()), self.made)
        return [] if place in others else [f"made: {place}"]


def _read_plan(run: RunFolder) -> tuple[Mapping[str, float], Mapping[str, float]]:
    """Network passes and seconds of a job of each rule; none where there is no plan, or no rate."""
    try:
        plan = read_json(run.plan)
        return plan["passes_per_job"], planned_seconds(plan.get("time", {}))
    except (OSError, ValueError, KeyError):
        return {}, {}


def _verdict_lines(run: RunFolder) -> list[str]:
    """The report's claims: headline, thresholds, those that did not pass in full, what is watched.

    A report of an older version has thresholds only.
    """
    try:
        metrics = read_json(run.metrics)
        checks: list[dict[str, Any]] = metrics["verdict"]
    except (OSError, ValueError, KeyError):
        return []
    claims = metrics.get("claims", {})
    said = [claims.get(name) for name in ("headline", "worth", "weakness")] if checks else []
    passed = [check for check in checks if check["outcome"] == "passed"]
    counts = [f"passed {len(passed)} of {len(checks)} checks"] if checks else []
    failed = [
        f"  {check['outcome']}: {check['question']}: {check['finding']}"
        for check in checks
        if check["outcome"] != "passed"
    ]
    watched = [
        f"  {'flagged' if it['is_flagged'] else 'watched'}: {it['name']}: {it['finding']}"
        + (f", {it['meaning']}" if it["meaning"] else "")
        for it in claims.get("watched", ())
    ]
    return [*filter(None, said), *counts, *failed, *watched]
