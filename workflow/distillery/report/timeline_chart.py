"""The timeline as a chart: one block of rows per worker, one bar per job, its work inside.

A page must stay small whatever the run: beyond `MAX_BARS` jobs, rows are cut into equal pieces of
time instead, each with the share of it that was worked.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from distillery.report.charts import NUM_COLOURS, ZOOM, Chart, Spec
from distillery.report.timeline import Attempt, RunClock, Spans, StageTime, Worker, union
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
MAX_BINS = 400
"""Pieces of time in a row: two or three pixels each."""
LEAST_SHARE = 0.15
"""Opacity of a piece of time in which a job ran and did no work."""
UNITS = (("days", 172_800.0, 86_400.0), ("hours", 7_200.0, 3_600.0), ("minutes", 120.0, 60.0))
"""Unit of the axis, from how many seconds on, and its length."""
Row = tuple[str | float, ...]


@dataclass(frozen=True)
class Timeline:
    """The chart and what the page says of it.

    Attributes:
        chart: to be drawn.
        num_shown: workers in it, the first ones.
        is_binned: whether it has pieces of time instead of jobs.
        has_work: whether jobs are told from the work in them.
        bin_s: length of a piece of time.
    """

    chart: Chart
    num_shown: int
    is_binned: bool
    has_work: bool
    bin_s: float


def timeline_chart(
    workers: Sequence[Worker], clock: RunClock, colours: Mapping[str, str]
) -> Timeline:
    """The chart.

    Args:
        workers: by name; at least one.
        clock: the horizontal axis, pauses cut out.
        colours: of each stage.
    """
    shown = _fitting(workers)
    num_jobs = sum(len(lane) for worker in shown for lane in worker.lanes)
    names = _names(shown)
    bins = _Frame(names, clock, colours)
    binned = bins.spec(bin_rows(shown, clock, bins.unit_s, MAX_STILL_BARS))
    if num_jobs > MAX_BARS:
        rows = bin_rows(shown, clock, bins.unit_s, MAX_BARS)
        chart = _chart(bins, rows, binned)
        return Timeline(chart, len(shown), True, True, clock.total_s / _num_bins(shown, MAX_BARS))
    by_lane = [name for one, name in zip(shown, names, strict=True) for name in _rows(one, name)]
    jobs = _Frame(by_lane, clock, colours)
    rows = job_rows(shown, clock, jobs.unit_s)
    chart = _chart(jobs, rows, binned if len(rows) > MAX_STILL_BARS else jobs.spec(rows))
    return Timeline(chart, len(shown), False, 2 * num_jobs <= MAX_BARS, 0.0)


def _names(workers: Sequence[Worker]) -> list[str]:
    """A name for each worker, with its host where there are several."""
    with_host = len({worker.host for worker in workers}) > 1
    return [shorten(worker, with_host=with_host) for worker in workers]


def _rows(worker: Worker, name: str) -> list[str]:
    """Names of a worker's rows: its own, then none."""
    return [name] + [""] * (len(worker.lanes) - 1)


def _fitting(workers: Sequence[Worker]) -> list[Worker]:
    """The first workers, up to `MAX_LANES` rows and at least one worker."""
    shown: list[Worker] = []
    for worker in workers:
        if shown and sum(len(other.lanes) for other in shown) + len(worker.lanes) > MAX_LANES:
            break
        shown.append(worker)
    return shown


def job_rows(workers: Sequence[Worker], clock: RunClock, unit_s: float) -> list[Row]:
    """(lane, begin, end, share, stage, job) of each job, and of its work with a share of 1.

    At most `MAX_BARS` rows: work is merged where there is much, and left out, its job's share
    being 1, where the jobs alone leave no room for it.
    """
    lanes = [lane for worker in workers for lane in worker.lanes]
    num_jobs = sum(map(len, lanes))
    num_pieces = min(MAX_PIECES, (MAX_BARS - num_jobs) // max(num_jobs, 1))
    rows: list[Row] = []
    for number, lane in enumerate(lanes):
        for attempt in lane:
            spans = [(attempt.begin_s, attempt.end_s), *_merged(attempt, num_pieces)]
            for part, (begin_s, end_s) in enumerate(spans):
                ends = (_tidy(clock.at(begin_s) / unit_s), _tidy(clock.at(end_s) / unit_s))
                share = 0.25 if part == 0 and num_pieces else 1
                rows.append((number, *ends, share, attempt.stage, _told(attempt)))
    return rows


def _told(attempt: Attempt) -> str:
    """The job's name beside the pointer."""
    return attempt.job + ("" if attempt.finished else ", not finished")


def _tidy(value: float) -> float:
    """Five digits: a hundredth of a pixel in the whole chart, a pixel where it is zoomed."""
    return float(f"{value:.5g}")


def _merged(attempt: Attempt, num_pieces: int) -> Spans:
    """At most so many pieces of work: neighbours become one where there are more."""
    busy = sorted(attempt.busy)
    if not num_pieces:
        return []
    size = max(-(-len(busy) // num_pieces), 1)
    return [
        (busy[start][0], max(end for _, end in busy[start : start + size]))
        for start in range(0, len(busy), size)
    ]


def bin_rows(workers: Sequence[Worker], clock: RunClock, unit_s: float, max_rows: int) -> list[Row]:
    """(worker, begin, end, share of it worked, stage that took most, jobs in it), empty ones not.

    Args:
        workers: one row each.
        clock: pauses cut out.
        unit_s: seconds of the axis's unit.
        max_rows: that may come out; a worker has as many pieces of time as that allows.
    """
    num_bins = _num_bins(workers, max_rows)
    bin_s = max(clock.total_s, 1e-3) / num_bins
    rows: list[Row] = []
    for number, worker in enumerate(workers):
        seconds = _worked(worker, clock, bin_s, num_bins)
        for index, attempts in sorted(_tried(worker, clock, bin_s, num_bins).items()):
            by_stage = seconds.get(index, {attempts[0].stage: 0.0})
            stage = max(by_stage, key=lambda it: by_stage[it])
            share = min(1.0, round(sum(by_stage.values()) / bin_s, 2))
            ends = (_tidy(index * bin_s / unit_s), _tidy((index + 1) * bin_s / unit_s))
            told = counted(len({attempt.job for attempt in attempts}), "job")
            rows.append((number, *ends, max(share, LEAST_SHARE), stage, told))
    return rows


def _num_bins(workers: Sequence[Worker], max_rows: int) -> int:
    """Pieces of time that each worker's row is cut into."""
    return max(1, min(MAX_BINS, max_rows // max(len(workers), 1)))


def _pieces(
    begin_s: float, end_s: float, bin_s: float, num_bins: int
) -> Iterator[tuple[int, float]]:
    """The bins that an interval touches, with its seconds in each."""
    for index in range(int(begin_s / bin_s), min(int(end_s / bin_s), num_bins - 1) + 1):
        yield index, min(end_s, (index + 1) * bin_s) - max(begin_s, index * bin_s)


def _worked(
    worker: Worker, clock: RunClock, bin_s: float, num_bins: int
) -> dict[int, dict[str, float]]:
    """Seconds of work by bin and stage; jobs of one stage at the same time count once."""
    spans: dict[str, list[tuple[float, float]]] = {}
    for lane in worker.lanes:
        for attempt in lane:
            spans.setdefault(attempt.stage, []).extend(attempt.busy)
    found: dict[int, dict[str, float]] = {}
    for stage, busy in spans.items():
        for begin_s, end_s in union(busy):
            ends = clock.at(begin_s), clock.at(end_s)
            for index, seconds in _pieces(*ends, bin_s, num_bins):
                by_stage = found.setdefault(index, {})
                by_stage[stage] = by_stage.get(stage, 0.0) + seconds
    return found


def _tried(
    worker: Worker, clock: RunClock, bin_s: float, num_bins: int
) -> dict[int, list[Attempt]]:
    """The attempts that were under way in each bin."""
    found: dict[int, list[Attempt]] = {}
    for lane in worker.lanes:
        for attempt in lane:
            ends = clock.at(attempt.begin_s), clock.at(attempt.end_s)
            for index, _ in _pieces(*ends, bin_s, num_bins):
                found.setdefault(index, []).append(attempt)
    return found


@dataclass(frozen=True)
class _Frame:
    """Axes, colours and names, the same for jobs and for pieces of time.

    Attributes:
        names: of the rows; empty for a worker's second row and those below.
        clock: pauses cut out.
        colours: of each stage.
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


def _chart(frame: _Frame, rows: Sequence[Row], still: Spec) -> Chart:
    """The chart, with `ZOOM` where scripts run."""
    spec = frame.spec(rows)
    bars, *others = spec["layer"]
    total = duration(frame.clock.total_s)
    num_workers = sum(1 for name in frame.names if name)
    title = f"Timeline of {counted(num_workers, 'worker')} over {total}"
    return Chart(title, spec | {"layer": [bars | {"params": [ZOOM]}, *others]}, still, is_wide=True)


def _csv(rows: Sequence[Row]) -> str:
    """Rows as CSV: a third of the bytes of JSON."""
    lines = (",".join(_cell(value) for value in row) for row in rows)
    return "\n".join(("lane,x,end,share,stage,job", *lines))


def _cell(value: str | float) -> str:
    """A number as it is, text in quotes where it has to be."""
    if not isinstance(value, str):
        return f"{value:g}" if isinstance(value, int) else repr(value)
    return '"' + value.replace('"', '""') + '"' if set(value) & set(',"\n\r') else value


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


@dataclass(frozen=True)
class StageTimeline:
    """The timeline, and the class of each stage in the style sheet."""

    timeline: Timeline
    colours: Mapping[str, str]


def stage_timeline(
    workers: Sequence[Worker],
    clock: RunClock,
    times: Sequence[StageTime],
    stages: Iterable[Stage],
) -> StageTimeline | None:
    """The workers' timeline, each stage in its colour; None without telemetry."""
    if not workers:
        return None
    own = {stage.name: stage.colour for stage in stages if stage.colour is not None}
    numbers = {it.stage: own.get(it.stage, at) for at, it in enumerate(times)}
    classes = {stage: f"c{number % NUM_COLOURS}" for stage, number in numbers.items()}
    colours = {stage: f"var(--{name})" for stage, name in classes.items()}
    return StageTimeline(timeline_chart(workers, clock, colours), classes)
