"""Two runs beside each other: their settings, their metrics by sample, their images."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from distillery.files import write_text
from distillery.measures.intervals import ConfidenceInterval
from distillery.measures.lists import BY_NAME
from distillery.measures.manifests import ModelSamples
from distillery.report.comparison import (
    Difference,
    Pairs,
    RunPieces,
    differences,
    differing_settings,
    gains,
    pair_up,
    read_pieces,
)
from distillery.report.html import ICON, link_to, own_file, page_environment
from distillery.report.image_grid import NUM_LEADING, Lead, make_lead, spread
from distillery.report.roles import MARKS, usual_part
from distillery.report.verdict import describe_interval
from distillery.run_folder import RunFolder
from distillery.store.tables import write_table
from distillery.words import counted, listed, noun_of


@dataclass(frozen=True)
class Strip:
    """Images of one model in both runs, and why these were chosen."""

    title: str
    lead: Lead


def compare_runs(first: Path, second: Path, output: Path) -> None:
    """Write the page, and beside it all its numbers as metrics.parquet.

    What a run lacks is named on the page, not guessed; models are compared by their names.

    Args:
        first, second: folders of the runs, results/{run}.
        output: one self-contained HTML file; its links are relative to it.

    Raises:
        FileNotFoundError: one of the runs has no folder.
        ValueError: a file that is there is damaged.
    """
    for folder in (first, second):
        if not folder.is_dir():
            raise FileNotFoundError(f"{folder} is not there: a comparison needs two runs' results")
    one, other = (read_pieces(RunFolder(folder)) for folder in (first, second))
    found, notes = differences(one, other)
    environment = page_environment()
    models = {name: _rows(found, name) for name in dict.fromkeys(it.model for it in found)}
    environment.filters |= {"counted": counted, "interval": _shown}
    text = environment.get_template("compare.html.j2").render(
        style=own_file("report.css"),
        reports=_links([one, other], output.parent),
        first=one,
        second=other,
        noun=noun_of(max((it.num_frames for it in one.samples.values()), default=1)),
        gaps=[*one.gaps, *other.gaps, *notes],
        settings=differing_settings(one.config, other.config),
        marks={name: MARKS[usual_part(it)] for name, it in one.samples.items()},
        models=models,
        results=[_result(name, rows, other.name) for name, rows in models.items()],
        icon=ICON,
        strips=[it for name in one.samples for it in strips(one, other, name, output.parent)],
    )
    output.parent.mkdir(parents=True, exist_ok=True)
    write_text(output, text)
    write_table(as_table(found, one.name, other.name), output.with_name("metrics.parquet"))


def _links(runs: Sequence[RunPieces], folder: Path) -> dict[str, str]:
    """Where the reports are, seen from the page, by the run's name; only those that are there."""
    return {run.name: link_to(run.report, folder) for run in runs if run.report is not None}


def strips(first: RunPieces, second: RunPieces, model: str, folder: Path) -> list[Strip]:
    """Images of one model in both runs, of the same prompt and noise; nothing without such."""
    if model not in second.samples:
        return []
    pairs = pair_up(first.samples[model], second.samples[model])
    if pairs is None or pairs.are_same:
        return []
    gained = gains(first, second, model, pairs)
    scored = np.flatnonzero(np.isfinite(gained) & (gained != 0))
    order = scored[np.argsort(gained[scored], kind="stable")]
    chosen: dict[str, Sequence[int]] = {
        "at equal distances": spread(range(len(pairs.first.table)), NUM_LEADING),
        f"where {second.name} loses most CLIP score": list(order[gained[order] < 0][:NUM_LEADING]),
        f"where {second.name} gains most CLIP score": list(
            order[gained[order] > 0][::-1][:NUM_LEADING]
        ),
    }
    return [
        Strip(f"{model}: {title}", _lead(first, second, pairs, rows, folder))
        for title, rows in chosen.items()
        if rows
    ]


def _lead(
    first: RunPieces, second: RunPieces, pairs: Pairs, rows: Sequence[int], folder: Path
) -> Lead:
    """A row of images for each run."""
    named = {
        run.name: ModelSamples(run.name, part.folder, part.table)
        for run, part in ((first, pairs.first), (second, pairs.second))
    }
    lead = make_lead(named, list(named), folder, [int(row) for row in rows])
    assert lead is not None, "there are two"
    return lead


def _rows(found: Sequence[Difference], model: str) -> list[dict[str, object]]:
    """The lines of one model's table."""
    rows: list[dict[str, object]] = []
    for it in found:
        if it.model == model:
            measure = BY_NAME[it.metric]
            word = _word(it.paired, measure.direction)
            rows.append(vars(it) | {"title": measure.full, "word": word})
    return rows


def _result(model: str, rows: Sequence[Mapping[str, object]], second: str) -> str:
    """What a model's table says, in a sentence."""
    paired = [row for row in rows if row["paired"] is not None]
    if not paired:
        return f"{model}: nothing can be paired."
    said = [
        f"{word} in {listed([str(row['title']) for row in paired if row['word'] == word])}"
        for word in ("better", "worse")
        if any(row["word"] == word for row in paired)
    ]
    level = sum(not row["word"] for row in paired)
    if not said:
        return f"{model}: no difference beyond the intervals, in {counted(level, 'measure')}."
    rest = f"; {counted(level, 'measure')} cannot be told apart" if level else ""
    return f"{model}: {second} is {' and '.join(said)}{rest}."


def _word(paired: ConfidenceInterval | None, direction: int) -> str:
    """Better or worse, where the whole interval says so."""
    if paired is None or not direction:
        return ""
    is_above = paired.low is not None and paired.low > 0
    is_below = paired.high is not None and paired.high < 0
    if is_above or is_below:
        return "better" if is_above == (direction > 0) else "worse"
    return ""


def _shown(interval: ConfidenceInterval | None) -> str:
    """A mean and its bounds."""
    return "" if interval is None else describe_interval(interval, "{:.4g}".format)


def as_table(found: Sequence[Difference], first: str, second: str) -> pd.DataFrame:
    """All numbers: a row for each model, metric and run, and one for each paired difference."""
    rows = [
        {"model": it.model, "metric": it.metric, "of": name, **vars(value), "num_pairs": pairs}
        for it in found
        for name, value, pairs in (
            (first, it.first, it.num_pairs or None),
            (second, it.second, it.num_pairs or None),
            ("difference", it.paired, it.num_pairs),
        )
        if value is not None
    ]
    columns = ["model", "metric", "of", "mean", "low", "high", "num_pairs"]
    table = pd.DataFrame(rows, columns=columns)
    return table.astype({"mean": float, "low": float, "high": float, "num_pairs": "Int64"})
