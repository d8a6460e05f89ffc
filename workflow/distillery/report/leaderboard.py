"""Any number of runs on one page, from what their reports wrote: scores, costs, settings, images.

A run without a report is named and left out; nothing is scored or made anew.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from distillery.config.parsing import flatten
from distillery.files import read_json, write_text
from distillery.measures.intervals import ConfidenceInterval
from distillery.measures.manifests import read_samples
from distillery.measures.measure import PERCENT
from distillery.report.charts import NUM_COLOURS, SOLID, Chart, Series, line_chart, runtime
from distillery.report.html import ICON, link_to, own_file, page_environment
from distillery.report.image_grid import LEADING_PX, GridInputs, spread
from distillery.report.image_grid import Cell as Picture
from distillery.report.score_charts import Line, Score, score_chart
from distillery.report.verdict import describe_bounds, describe_interval, read_interval
from distillery.run_folder import RunFolder
from distillery.store.tables import read_table
from distillery.training.watchers.alarms import HELD_OUT
from distillery.words import duration, listed, significant

NUM_IMAGES = 3
MAX_CHANGED = 4
"""Settings of a run that are in sight; further ones are folded."""
DASHES = (SOLID, (8, 3), (3, 3))
"""Of the runs' curves, one for each turn through the colours."""


@dataclass(frozen=True)
class Number:
    """A cell: what is sorted by, and how it reads; None where there is none."""

    value: float | None = None
    text: str = "\N{EN DASH}"
    bounds: str = ""


@dataclass(frozen=True)
class Entry:
    """One run.

    Attributes:
        report, gallery: links; empty where they are not there.
        claim: its report's headline.
        kept: the student's share of its reference's CLIP score.
        numbers: by column.
        settings: flat; None where its report tells none.
        images: of its student.
    """

    name: str
    report: str
    gallery: str
    claim: str
    passed: tuple[int, int]
    kept: ConfidenceInterval | None
    network_calls: int | None
    numbers: Mapping[str, Number]
    settings: Mapping[str, Any]
    curve: Sequence[tuple[float, float]] = ()
    images: Sequence[Picture] = field(default=())


def compare_all(results: Path, output: Path) -> None:
    """Write the page of all runs that have a report.

    Args:
        results: has the folders of all runs.
        output: one self-contained HTML file; its links are relative to it.

    Raises:
        FileNotFoundError: no run has a report.
        ValueError: a file that is there is damaged.
    """
    runs = [RunFolder(path) for path in sorted(results.iterdir()) if path.is_dir()]
    entries = [read_entry(run, output.parent) for run in runs if run.metrics.is_file()]
    if not entries:
        raise FileNotFoundError(f"no run in {results} has a report to compare")
    charts = [
        chart for chart in (_scores_chart(entries), _curves_chart(entries)) if chart is not None
    ]
    text = (
        page_environment()
        .get_template("leaderboard.html.j2")
        .render(
            style=own_file("report.css"),
            script=own_file("leaderboard.js"),
            icon=ICON,
            vega=runtime() if charts else "",
            charts=charts,
            finding=find_best(entries),
            entries=entries,
            columns=list(entries[0].numbers),
            changed=changed_settings({it.name: it.settings for it in entries}),
            max_changed=MAX_CHANGED,
            pairs=sorted(path.parent.name for path in output.parent.glob("*-vs-*/index.html")),
            without=[run.path.name for run in runs if run.compared and not run.metrics.is_file()],
        )
    )
    output.parent.mkdir(parents=True, exist_ok=True)
    write_text(output, text)


def read_entry(run: RunFolder, folder: Path) -> Entry:
    """What a run's report says, with images and curve of its student."""
    facts = read_json(run.metrics, run.metrics)
    config, quality = facts["provenance"]["config"], facts["quality"] or {"models": {}}
    student = find_student(config)
    scores = quality["models"].get(student, {})
    against = scores.get("against", {}).get(quality.get("reference"), {})
    kept = read_interval(against.get("clip_score_ratio"))
    sets: Mapping[str, Any] = next(iter(scores.get("sets", {}).values()), {})
    speed, origin = facts["speed"] or {}, facts["provenance"].get("origin") or {}
    seconds = facts["timings"]["seconds_per_image"].get(student)
    hours = origin.get("gpu_hours") if origin.get("gpus") else None
    outcomes = [check["outcome"] for check in facts["verdict"]]
    return Entry(
        name=run.path.name,
        report=link_to(run.report, folder) if run.report.is_file() else "",
        gallery=link_to(run.gallery / "index.html", folder) if run.gallery.is_dir() else "",
        claim=facts["claims"]["headline"],
        passed=(outcomes.count("passed"), len(outcomes)),
        kept=kept,
        network_calls=speed.get("student_network_calls"),
        numbers={
            "CLIP score kept": _number(kept, PERCENT),
            "Fréchet ÷ floor": _number(read_interval(sets.get("frechet_ratio")), "{:.2f}".format),
            "Diversity ÷ the reference's": _number(
                read_interval(sets.get("diversity_ratio")), "{:.2f}".format
            ),
            "Network calls": _plain(speed.get("student_network_calls"), "{:g}".format),
            "Seconds per image": _number(
                read_interval({"mean": seconds["seconds"]} | _ends(seconds)) if seconds else None,
                significant,
            ),
            "Hours": _plain(facts["timings"]["total_s"], duration),
            "GPU-hours": _plain(hours, "{:.3g}".format),
        },
        settings={key: it for key, it in flatten(config).items() if key != "run"},
        curve=_curve(run),
        images=_images(run, student, folder),
    )


def find_student(config: Mapping[str, Any]) -> str:
    """The model that samples as the student was trained; "student" where none is told apart."""
    for name, model in config["samples"]["models"].items():
        if model["source"] == "student" and model["steps"] in (None, config["student"]["steps"]):
            return str(name)
    return "student"


def _ends(seconds: Mapping[str, Any]) -> dict[str, Any]:
    return {"low": seconds.get("low"), "high": seconds.get("high")}


def _number(value: ConfidenceInterval | None, form: Any) -> Number:
    if value is None:
        return Number()
    return Number(value.mean, form(value.mean), describe_bounds(value, form))


def _plain(value: float | None, form: Any) -> Number:
    return Number() if value is None else Number(value, form(value))


def _curve(run: RunFolder) -> list[tuple[float, float]]:
    """Held-out losses over the samples seen."""
    if not run.loss.is_file():
        return []
    table = read_table(run.loss)
    if HELD_OUT not in table:
        return []
    kept = table[table[HELD_OUT].notna()]
    return list(zip(kept["samples_seen"].astype(float), kept[HELD_OUT].astype(float), strict=True))


def _images(run: RunFolder, student: str, folder: Path) -> list[Picture]:
    """A few of the student's, at equal distances."""
    manifest = run.samples(student)
    if not manifest.is_file():
        return []
    samples = read_samples(student, manifest)
    inputs = GridInputs({student: samples}, {}, folder, LEADING_PX)
    rows = spread(range(len(samples.table)), NUM_IMAGES)
    return [inputs.image(samples, row) for row in rows]


# ---- what the page says of all ------------------------------------------------------------------


def find_best(entries: Sequence[Entry]) -> str:
    """Which run keeps most of its reference's CLIP score, and which its interval overlaps."""
    scored = [(it.kept, it) for it in entries if it.kept is not None]
    if len(scored) < 2:
        return ""
    scored.sort(key=lambda pair: -pair[0].mean)
    (most, best), *others = scored
    said = f"{best.name} keeps most of its reference's CLIP score, "
    said += f"{describe_interval(most, PERCENT)}"
    level = [it.name for kept, it in others if _overlap(kept, most)]
    if not level:
        return f"{said}; its interval overlaps that of no other run."
    return f"{said}; by their intervals {listed(level)} may keep as much."


def _overlap(one: ConfidenceInterval, best: ConfidenceInterval) -> bool:
    """Whether one may reach as high; where an end is not known it may."""
    return one.high is None or best.low is None or one.high >= best.low


def changed_settings(
    settings: Mapping[str, Mapping[str, Any]],
) -> dict[str, list[tuple[str, str, str]]]:
    """Of each run: key, its value, and what most runs have, where they differ.

    Of equally many the first run's counts as usual.
    """
    keys = dict.fromkeys(key for flat in settings.values() for key in flat)
    changed: dict[str, list[tuple[str, str, str]]] = {name: [] for name in settings}
    for key in keys:
        found = {name: flat.get(key) for name, flat in settings.items()}
        values = {name: "not set" if it is None else str(it) for name, it in found.items()}
        ((usual, _),) = Counter(values.values()).most_common(1)
        for name, value in values.items():
            if value != usual:
                changed[name].append((key, value, usual))
    return changed


def _scores_chart(entries: Sequence[Entry]) -> Chart | None:
    """What each student keeps over what it costs."""
    scores = [
        Score(it.name, it.network_calls, it.kept.mean, it.kept.low, it.kept.high, "student")
        for it in entries
        if it.kept is not None and it.network_calls
    ]
    title = "CLIP score as a share of each run's reference"
    line = Line(1.0, "its reference")
    return score_chart(scores, title, f"{title}, over network calls", "image", ".0%", line)


def _curves_chart(entries: Sequence[Entry]) -> Chart | None:
    """The held-out losses of all runs; a fine-tune's are of its own trajectories."""
    curves = [it for it in entries if it.curve]
    lines = [
        Series(
            it.name,
            it.curve,
            colour=number % NUM_COLOURS,
            dash=DASHES[number // NUM_COLOURS % len(DASHES)],
        )
        for number, it in enumerate(curves)
    ]
    return line_chart(lines, "training samples seen", "held-out loss", "Held-out loss of each run")
