"""The timeline as SVG: one block of rows a worker, one bar a job, its pieces of work inside."""

from collections.abc import Mapping, Sequence

from markupsafe import Markup

from distillery.evaluation.plots import NUM_COLOURS, Scale, svg, tag
from distillery.evaluation.timeline import Attempt, RunClock, Worker
from distillery.evaluation.words import duration

WIDTH = 1260
LEFT_PX = 190.0
LANE_PX = 16.0
GAP_PX = 12.0
TOP_PX = 10.0
MAX_LANES = 200
"""Rows in the plot; a larger run shows its first ones."""
MAX_BARS = 300
"""Pieces of work drawn for one attempt; more are merged to as many intervals."""


def stage_colours(stages: Sequence[str]) -> dict[str, str]:
    """A class of the style sheet for each stage, in order of appearance."""
    return {stage: f"c{number % NUM_COLOURS}" for number, stage in enumerate(stages)}


def timeline_plot(
    workers: Sequence[Worker], clock: RunClock, colours: Mapping[str, str]
) -> tuple[Markup, int]:
    """The plot, and how many workers it shows.

    Args:
        workers: rows.
        clock: the horizontal axis; cut pauses are dashed lines.
        colours: class of each stage.
    """
    shown = _fitting(workers)
    lanes_px = sum(len(worker.lanes) * LANE_PX + GAP_PX for worker in shown)
    bottom = TOP_PX + lanes_px
    scale = Scale(0.0, max(clock.total_s, 1e-3), LEFT_PX, WIDTH - 20.0)
    parts = _draw_axis(scale, bottom)
    for at_s, length_s in clock.pauses:
        x = scale.at(at_s)
        hint = tag("title", f"no job for {duration(length_s)}")
        parts.append(tag("line", hint, x1=x, x2=x, y1=TOP_PX, y2=bottom, class_="mark"))
    y = TOP_PX + GAP_PX / 2
    for worker in shown:
        parts += _draw_worker(worker, y, clock, scale, colours)
        y += len(worker.lanes) * LANE_PX + GAP_PX
    label = f"Timeline of {len(shown)} workers over {duration(clock.total_s)}"
    return svg(WIDTH, round(bottom + 44), label, *parts), len(shown)


def _fitting(workers: Sequence[Worker]) -> list[Worker]:
    """The first workers, up to `MAX_LANES` rows and at least one worker."""
    shown: list[Worker] = []
    for worker in workers:
        if shown and sum(len(other.lanes) for other in shown) + len(worker.lanes) > MAX_LANES:
            break
        shown.append(worker)
    return shown


def _draw_axis(scale: Scale, bottom: float) -> list[Markup]:
    """Vertical grid lines with times."""
    parts = []
    for value in time_ticks(scale.high):
        x = scale.at(value)
        parts.append(tag("line", x1=x, x2=x, y1=TOP_PX, y2=bottom, class_="grid"))
        parts.append(tag("text", duration(value), x=x, y=bottom + 18, class_="tick middle"))
    centre = (scale.begin_px + scale.end_px) / 2
    parts.append(
        tag("text", "time with a job running", x=centre, y=bottom + 38, class_="label middle")
    )
    return parts


def time_ticks(total_s: float, count: int = 8) -> list[float]:
    """At most `count` + 1 times from zero at a distance that clocks and calendars know."""
    steps = (0.1, 0.2, 0.5, 1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800)
    hours = (1, 2, 3, 6, 12, 24, 48, 168, 720)
    for step in (*steps, *(3600 * hour for hour in hours)):
        if total_s / step <= count:
            break
    return [number * float(step) for number in range(int(total_s / step) + 1)]


def _draw_worker(
    worker: Worker, top: float, clock: RunClock, scale: Scale, colours: Mapping[str, str]
) -> list[Markup]:
    """A worker's name, its utilisation and its rows."""
    middle = top + len(worker.lanes) * LANE_PX / 2
    hint = tag("title", f"{worker.device} on {worker.host}")
    name = tag("text", hint, shorten(worker), x=LEFT_PX - 12, y=middle + 4, class_="name end")
    parts = [name]
    for number, lane in enumerate(worker.lanes):
        y = top + number * LANE_PX
        for attempt in lane:
            parts += _draw_attempt(attempt, y, clock, scale, colours[attempt.stage])
    return parts


def _draw_attempt(
    attempt: Attempt, y: float, clock: RunClock, scale: Scale, colour: str
) -> list[Markup]:
    """A pale bar for the attempt, solid ones for its work."""

    def bar(begin_s: float, end_s: float, style: str, hint: str) -> Markup:
        x, end = scale.at(clock.at(begin_s)), scale.at(clock.at(end_s))
        size = {"width": max(end - x, 0.75), "height": LANE_PX - 3}
        return tag("rect", tag("title", hint), x=x, y=y, class_=f"{style} {colour}", **size)

    seconds = attempt.end_s - attempt.begin_s
    state = "" if attempt.finished else ", not finished"
    hint = f"{attempt.job}: {duration(seconds)}{state}"
    parts = [bar(attempt.begin_s, attempt.end_s, "job", hint)]
    for begin_s, end_s in _merged(attempt):
        parts.append(bar(begin_s, end_s, "work", f"{attempt.job}: {duration(end_s - begin_s)}"))
    return parts


def _merged(attempt: Attempt) -> list[tuple[float, float]]:
    """At most `MAX_BARS` pieces of work: neighbours are drawn as one where there are more."""
    busy = sorted(attempt.busy)
    size = -(-len(busy) // MAX_BARS)
    return [
        (busy[start][0], busy[min(start + size, len(busy)) - 1][1])
        for start in range(0, len(busy), max(size, 1))
    ]


def shorten(worker: Worker) -> str:
    """A worker's name that fits beside its rows."""
    device = worker.device.removeprefix("cuda:")
    host = worker.host if len(worker.host) <= 14 else worker.host[:13] + "…"
    return f"{host} {device if len(device) <= 12 else device[:11] + '…'}"
