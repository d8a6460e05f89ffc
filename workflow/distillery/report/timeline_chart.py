"""The timeline as a chart: rows of each worker, one bar per job, its work inside.

A page must stay small whatever the run: of many jobs each is one bar, as solid as the share of it
that was worked, and of still more the neighbours in a row are one bar.
"""

import csv
import io
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from distillery.report.charts import NUM_COLOURS, ZOOM, Chart, Spec
from distillery.report.timeline import Attempt, RunClock, Spans, StageTime, Worker, length
from distillery.stage import Stage
from distillery.words import counted, duration

LANE_PX = 16
PARSED = {"x": "number", "end": "number", "share": "number"}
MAX_LANES = 200
"""Rows in the chart; a larger run shows its first workers."""
MAX_BARS = 10_000
"""Bars that are drawn: some 60 bytes of the page each, and half a second in a browser for all."""
MAX_STILL_BARS = 1_500
"""Of the drawing for readers without scripts, where a bar takes some 120 bytes."""
MAX_PIECES = 300
"""Pieces of work drawn for one job; more are merged to as many."""
LEAST_SHARE = 0.15
"""Opacity of a bar in which no work was done."""
UNITS = (("days", 172_800.0, 86_400.0), ("hours", 7_200.0, 3_600.0), ("minutes", 120.0, 60.0))
"""Unit of the axis, from how many seconds on, and its length."""

Row = tuple[str | float, ...]
"""Lane, begin, end, share, stage and job: a bar's row, place, opacity, colour and name."""


@dataclass(frozen=True)
class Timeline:
    """The chart and what the page says of it.

    Attributes:
        classes: of each stage's colour in the style sheet.
        num_shown: workers in it, the first ones.
        bars: as they are drawn where scripts run.
    """

    chart: Chart
    classes: Mapping[str, str]
    num_shown: int
    bars: "Bars"


def timeline(
    workers: Sequence[Worker],
    clock: RunClock,
    times: Sequence[StageTime],
    stages: Iterable[Stage],
) -> Timeline | None:
    """The workers' timeline, each stage in its colour; None without telemetry."""
    if not workers:
        return None
    own = {stage.name: stage.colour for stage in stages if stage.colour is not None}
    numbers = {it.stage: own.get(it.stage, at) for at, it in enumerate(times)}
    classes = {stage: f"c{number % NUM_COLOURS}" for stage, number in numbers.items()}
    shown = _fitting(workers)
    frame = _Frame(_names(shown), clock, {it: f"var(--{name})" for it, name in classes.items()})
    lanes = [lane for worker in shown for lane in worker.lanes]
    live, still = (Bars.of(lanes, clock, frame.unit_s, most) for most in (MAX_BARS, MAX_STILL_BARS))
    title = f"Timeline of {counted(len(shown), 'worker')} over {duration(clock.total_s)}"
    spec = frame.spec(live.rows)
    bars, *others = spec["layer"]
    spec["layer"] = [bars | {"params": [ZOOM]}, *others]
    chart = Chart(title, spec, frame.spec(still.rows), is_wide=True)
    return Timeline(chart, classes, len(shown), live)


def _names(workers: Sequence[Worker]) -> list[str]:
    """Of all rows: a worker's first has its name, with its host where there are several."""
    with_host = len({worker.host for worker in workers}) > 1
    return [
        shorten(worker, with_host=with_host) if number == 0 else ""
        for worker in workers
        for number in range(len(worker.lanes))
    ]


def _fitting(workers: Sequence[Worker]) -> list[Worker]:
    """The first workers, up to `MAX_LANES` rows and at least one worker."""
    shown: list[Worker] = []
    for worker in workers:
        if shown and sum(len(other.lanes) for other in shown) + len(worker.lanes) > MAX_LANES:
            break
        shown.append(worker)
    return shown


# ---- the data ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Bars:
    """The rows, and what they are of.

    Attributes:
        has_work: whether each job is drawn pale, with its work inside.
        piece_s: jobs of a row that begin within this time are one bar; 0: each is its own.
    """

    rows: list[Row]
    has_work: bool
    piece_s: float

    @classmethod
    def of(
        cls, lanes: Sequence[Sequence[Attempt]], clock: RunClock, unit_s: float, most: int
    ) -> "Bars":
        """As much as so many rows can show; times are in units of `unit_s`."""
        num_jobs = sum(map(len, lanes))
        has_work = 2 * num_jobs <= most
        per_lane = max(most // len(lanes), 2)
        piece_s = clock.total_s / (per_lane - 1) if num_jobs > most else 0.0
        spans: list[tuple[int, tuple[float, float], float, str, str]] = []
        for number, lane in enumerate(lanes):
            for jobs in _together(lane, clock, piece_s):
                whole, share, stage, name = _bar(jobs, clock)
                spans.append((number, whole, 0.25 if has_work else share, stage, name))
                work = _merged(jobs[0], most // num_jobs - 1) if has_work else ()
                spans += [(number, span, 1, stage, name) for span in work]
        rows: list[Row] = [
            (number, *(_tidy(clock.at(end) / unit_s) for end in span), share, stage, name)
            for number, span, share, stage, name in spans
        ]
        return cls(rows, has_work, piece_s)


def _together(lane: Sequence[Attempt], clock: RunClock, piece_s: float) -> list[list[Attempt]]:
    """The jobs of a row in groups that begin within a piece of time, each alone if that is 0."""
    groups: list[list[Attempt]] = []
    first_s = 0.0
    for attempt in lane:
        begin_s = clock.at(attempt.begin_s)
        if groups and begin_s - first_s < piece_s:
            groups[-1].append(attempt)
        else:
            groups.append([attempt])
            first_s = begin_s
    return groups


def _bar(jobs: Sequence[Attempt], clock: RunClock) -> tuple[tuple[float, float], float, str, str]:
    """Begin and end, share of it that was worked, the stage that took most, what it is."""
    busy: dict[str, list[tuple[float, float]]] = {job.stage: [] for job in jobs}
    for job in jobs:
        busy[job.stage] += job.busy
    worked_s = {stage: length(spans) for stage, spans in busy.items()}
    begin_s, end_s = jobs[0].begin_s, max(job.end_s for job in jobs)
    share = sum(worked_s.values()) / max(clock.at(end_s) - clock.at(begin_s), 1e-3)
    name = jobs[0].job + ("" if jobs[0].finished else ", not finished")
    told = name if len(jobs) == 1 else counted(len({job.job for job in jobs}), "job")
    stage = max(worked_s, key=lambda it: worked_s[it])
    return (begin_s, end_s), min(1.0, max(round(share, 2), LEAST_SHARE)), stage, told


def _tidy(value: float) -> float:
    """Five digits: a hundredth of a pixel in the whole chart, a pixel where it is zoomed."""
    return float(f"{value:.5g}")


def _merged(attempt: Attempt, most: int) -> Spans:
    """At most so many pieces of work: neighbours become one where there are more."""
    busy = sorted(attempt.busy)
    size = max(-(-len(busy) // min(most, MAX_PIECES)), 1)
    return [
        (busy[start][0], max(end for _, end in busy[start : start + size]))
        for start in range(0, len(busy), size)
    ]


# ---- the chart ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Frame:
    """Axes, colours and names, the same for jobs and for pieces of time.

    Attributes:
        names: of the rows; empty for a worker's second row and those below.
    """

    names: Sequence[str]
    clock: RunClock
    colours: Mapping[str, str]

    @property
    def unit(self) -> str:
        """Of the horizontal axis."""
        return unit_of(self.clock.total_s)[0]

    @property
    def unit_s(self) -> float:
        """Its length."""
        return unit_of(self.clock.total_s)[1]

    def spec(self, rows: Sequence[Row]) -> Spec:
        """The chart without what needs a pointer."""
        bars: Spec = {
            "data": {"values": _csv(rows), "format": {"type": "csv", "parse": PARSED}},
            "transform": [{"calculate": _length_in_words(self.unit_s), "as": "length"}],
            "mark": {"type": "bar", "minBandSize": 3, "cursor": "default"},
            "encoding": {
                "x": {"field": "x", "type": "quantitative", **self._x()},
                "x2": {"field": "end"},
                "y": {"field": "lane", "type": "ordinal", **self._y()},
                "color": self._colour(),
                "opacity": {"field": "share", "type": "quantitative", "scale": None},
                "tooltip": [
                    {"field": "job"},
                    {"field": "stage"},
                    {"field": "x", "type": "quantitative", "title": f"began after {self.unit}"},
                    {"field": "length"},
                ],
            },
        }
        return {"height": LANE_PX * len(self.names), "layer": [bars, *self._pauses()]}

    def _x(self) -> Spec:
        total = max(self.clock.total_s, 1e-3) / self.unit_s
        scale = {"domain": [0, total], "nice": False}
        axis = {"format": "~g", "tickCount": {"expr": "width / 90"}}
        return {"title": f"{self.unit} with a job running", "scale": scale, "axis": axis}

    def _y(self) -> Spec:
        label = f"{json.dumps(self.names)}[+datum.value]"
        axis = {"labelExpr": label, "ticks": False, "labelLimit": 200, "labelOverlap": False}
        return {
            "title": None,
            "axis": axis,
            "scale": {"domain": [str(number) for number in range(len(self.names))]},
        }

    def _colour(self) -> Spec:
        scale = {"domain": list(self.colours), "range": list(self.colours.values())}
        columns = {"expr": "max(1, floor(width / 130))"}
        legend = {"title": None, "columns": columns, "symbolOpacity": 1}
        return {"field": "stage", "type": "nominal", "scale": scale, "legend": legend}

    def _pauses(self) -> list[Spec]:
        """Dashed lines where time without any job was cut out."""
        values = [
            {"x": _tidy(at_s / self.unit_s), "pause": f"no job for {duration(length_s)}"}
            for at_s, length_s in self.clock.pauses
        ]
        if not values:
            return []
        rule = {"type": "rule", "color": "var(--muted)", "strokeDash": [3, 3], "strokeWidth": 1.5}
        x = {"field": "x", "type": "quantitative"}
        encoding = {"x": x, "tooltip": {"field": "pause"}}
        return [{"data": {"values": values}, "mark": rule, "encoding": encoding}]


def _csv(rows: Sequence[Row]) -> str:
    """Rows as CSV: a third of the bytes of JSON."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(
        [("lane", "x", "end", "share", "stage", "job"), *rows]
    )
    return text.getvalue().removesuffix("\n")


def unit_of(total_s: float) -> tuple[str, float]:
    """The unit of the axis, and its seconds."""
    found = ((name, unit_s) for name, from_s, unit_s in UNITS if total_s >= from_s)
    return next(found, ("seconds", 1.0))


def _length_in_words(unit_s: float) -> str:
    """Vega's expression for the length of a bar, as `words.duration` writes it."""
    length = f"(datum.end - datum.x) * {unit_s:g}"
    short = f"format({length}, '.2~r') + ' s'"
    minutes = f"floor({length} / 60) + ' min ' + floor({length} % 60) + ' s'"
    hours = f"floor({length} / 3600) + ' h ' + floor({length} % 3600 / 60) + ' min'"
    return f"{length} < 60 ? {short} : {length} < 3600 ? {minutes} : {hours}"


def shorten(worker: Worker, *, with_host: bool) -> str:
    """A worker's name that fits beside its rows."""
    device = worker.device.removeprefix("cuda:")
    device = device if len(device) <= 12 else device[:11] + "…"
    host = worker.host if len(worker.host) <= 14 else worker.host[:13] + "…"
    return f"{host} {device}" if with_host else device
