"""Two runs side by side: which settings differ, and how far their models' images do."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from distillery.config.jobs import read_frozen
from distillery.config.parsing import flatten
from distillery.files import read_json, read_sealed
from distillery.measures.intervals import ConfidenceInterval, FloatArray, Groups, draw_weights
from distillery.measures.lists import MEASURES
from distillery.measures.manifests import KEY, ModelSamples, check_scored, read_samples
from distillery.measures.measure import PIXELS, Measure, OfPair, OfPreference
from distillery.measures.of_judge import CLIP_SCORE, OF_JUDGE, RETRIEVAL
from distillery.measures.of_preference import OF_PREFERENCE
from distillery.prompts import made_of_rows
from distillery.run_folder import RunFolder
from distillery.store.tables import read_table
from distillery.words import listed, noun_of

REFERENCES_DIFFER = "not comparable: the references differ"
NUM_RESAMPLES = 2000
VALUE = "value"
"""The column with a measure's number of each sample."""


@dataclass(frozen=True)
class RunPieces:
    """What there is of a run.

    Attributes:
        config: frozen; None where the run was not planned.
        scores: None where nothing was scored.
        samples: by model, those that are there.
        judge: by which it was scored; None where it was not.
        preference_model: that scored it, too; None without one.
        reference: the model that it was scored against; None where it was not scored.
        gaps: what is not there, in words.
        report: its page; None where it is not there.
    """

    name: str
    config: Mapping[str, Any] | None
    scores: pd.DataFrame | None
    samples: Mapping[str, ModelSamples]
    judge: str | None
    preference_model: str | None
    reference: str | None
    gaps: Sequence[str]
    report: Path | None


@dataclass(frozen=True)
class Difference:
    """One metric of one model in both runs.

    Attributes:
        model: its name in `samples.models`.
        metric: the name of a measure.
        first, second: means with intervals: over the pairs where there is a paired difference, so
            that it is theirs; else over all images that each run has.
        paired: of the second less the first over samples of the same prompt and noise; None
            without such.
        num_pairs: how many those are.
        num_images: how many `first` and `second` are of.
        reason: why nothing is paired although there are pairs; else empty.
    """

    model: str
    metric: str
    first: ConfidenceInterval
    second: ConfidenceInterval
    paired: ConfidenceInterval | None
    num_pairs: int
    num_images: tuple[int, int]
    reason: str = ""


@dataclass(frozen=True)
class Pairs:
    """The samples of the same prompt and noise of one model in two runs, row by row."""

    first: ModelSamples
    second: ModelSamples

    @property
    def are_same(self) -> bool:
        """Whether every image is the same."""
        return bool((self.first.table["sha256"] == self.second.table["sha256"]).all())


def read_pieces(run: RunFolder) -> RunPieces:
    """Read what there is of a run; damage is an error, absence is a gap.

    Raises ValueError for a file that is there and damaged, or for scores of other images.
    """
    name = run.path.name
    scores = read_table(run.scores) if run.scores.is_file() else None
    quality = read_sealed(run.quality) if run.quality.is_file() else None
    config, gaps = _settings(run, quality)
    samples = {
        path.parent.name: read_samples(path.parent.name, path)
        for path in sorted(run.sample_folder.glob("*/manifest.parquet"))
    }
    if quality is not None:
        check_scored(run, quality, samples)
    if scores is None or quality is None:
        gaps.append(_no_scores(run, config))
    if not samples:
        gaps.append(f"{name} has no images")
    judge = str(quality["judge"]) if quality else None
    preference_model = quality.get("preference_model") if quality else None
    reference = quality.get("reference") if quality else None
    report = run.report if run.report.is_file() else None
    return RunPieces(
        name, config, scores, samples, judge, preference_model, reference, gaps, report
    )


def _settings(
    run: RunFolder, quality: Mapping[str, Any] | None
) -> tuple[Mapping[str, Any] | None, list[str]]:
    """The settings that a run's images were made with, and what is to be said of them.

    Those of its report, where that is of the same scores; the frozen ones may be those of a stage
    that was asked for since. None where there are none.
    """
    name, frozen, made = run.path.name, run.config("run"), run.made_images
    facts = read_json(run.metrics, run.metrics) if run.metrics.is_file() else None
    if facts is not None and facts["quality"] == quality:
        return facts["provenance"]["config"], []
    if not frozen.is_file():
        return None, [f"{name} has no configuration: its settings are not compared"]
    notes = []
    is_later = bool(made) and _last([frozen]) > _last(made)  # a copy may have lost the dates
    if is_later or facts is not None:
        notes.append(
            f"there is no report of the images of {name} as they are scored now: its settings are "
            f"told as they are now, and {'have' if is_later else 'may have'} changed since"
        )
    return read_frozen(frozen), notes


def _last(paths: Sequence[Path]) -> int:
    """When the last of some files was written, in ns; 0 where there are none."""
    return max((path.stat().st_mtime_ns for path in paths), default=0)


def _no_scores(run: RunFolder, config: Mapping[str, Any] | None) -> str:
    """That a run has none, and how it gets them; one that only generates is never scored."""
    gap = f"{run.path.name} has no scores: its metrics are not compared"
    if config is not None and "evaluation" not in config:
        return f"{gap}. It only generates images, which are not scored"
    return (
        f"{gap}. To make them: snakemake --cores all {run.quality} --configfile FILE, where FILE "
        f"says run: {run.path.name}"
    )


def differing_settings(
    first: Mapping[str, Any] | None, second: Mapping[str, Any] | None
) -> list[tuple[str, str, str]]:
    """Key, value in the first and in the second run, of what differs; dots lead into sections."""
    if first is None or second is None:
        return []
    flat = [flatten(config) for config in (first, second)]
    keys = [key for key in {**flat[0], **flat[1]} if key != "run"]
    values = [(key, *(_value(each.get(key)) for each in flat)) for key in keys]
    return [(key, one, other) for key, one, other in values if one != other]


def _value(value: object) -> str:
    return "not set" if value is None else str(value)


def pair_up(first: ModelSamples, second: ModelSamples) -> Pairs | None:
    """The samples of the same prompt, size, input image and noise in both; None where there is
    none."""
    key = [*KEY, "made_of_", "noise_seed"]
    tables = [
        it.table.assign(
            made_of_=[json.dumps(row) for row in made_of_rows(it.table, guided=False)],
            row_=np.arange(len(it.table)),
        )
        for it in (first, second)
    ]
    merged = tables[0][[*key, "row_"]].merge(tables[1][[*key, "row_"]], on=key)
    if merged.empty:
        return None
    parts = [
        ModelSamples(it.model, it.folder, it.table.iloc[merged[rows]].reset_index(drop=True))
        for it, rows in ((first, "row__x"), (second, "row__y"))
    ]
    return Pairs(*parts)


def differences(first: RunPieces, second: RunPieces) -> tuple[list[Difference], list[str]]:
    """The metrics of models of the same name; and what keeps some from being compared."""
    if first.scores is None or second.scores is None:
        return [], []
    notes, measures = list[str](), list(MEASURES)
    for what, one, other, scored in (
        ("judges", first.judge, second.judge, OF_JUDGE),
        ("models of preference", first.preference_model, second.preference_model, OF_PREFERENCE),
    ):
        if one != other and one and other:
            measures = [measure for measure in measures if measure not in scored]
            titles = listed([measure.title for measure in scored])
            notes.append(f"the {what} differ, {one} and {other}: {titles} are not compared")
    found: list[Difference] = []
    facts: dict[str, list[str]] = {}
    models = [name for name in first.samples if name in second.samples]
    if not models:
        notes.append("no model has a name in both runs")
    for model in models:
        pairs = pair_up(first.samples[model], second.samples[model])
        num_all = max(len(run.samples[model].table) for run in (first, second))
        for fact in _facts(pairs, num_all):
            facts.setdefault(fact, []).append(model)
        if pairs is not None and pairs.are_same and len(pairs.first.table) == num_all:
            continue
        for measure in measures:
            found += _difference(first, second, model, measure, pairs)
    return found, [*notes, *(f"{listed(names)}: {fact}" for fact, names in facts.items())]


def _facts(pairs: Pairs | None, num_all: int) -> list[str]:
    """What is to be known of one model's pairs."""
    num_pairs = len(pairs.first.table) if pairs else 0
    if pairs is not None and pairs.are_same and num_pairs == num_all:
        return [f"all {num_all:,} {noun_of(pairs.first.num_frames)}s are the same in both"]
    facts = []
    if num_pairs < num_all:
        use = "; differences are of these" if num_pairs else ", so no difference is paired"
        facts.append(f"{num_pairs:,} of {num_all:,} samples are of the same prompt and noise{use}")
    if pairs is not None and pairs.are_same:
        noun = noun_of(pairs.first.num_frames)
        facts.append(f"the {noun}s of these pairs are the same in both")
    return facts


def _difference(
    first: RunPieces, second: RunPieces, model: str, measure: Measure, pairs: Pairs | None
) -> list[Difference]:
    """One measure, or nothing where a run has no value of it."""
    one, other = (_values(run, model, measure) for run in (first, second))
    if one.empty or other.empty:
        return []
    paired, num_pairs, reason = None, 0, ""
    if pairs is not None:
        keys = pairs.first.table[KEY].merge(one[KEY], on=KEY).merge(other[KEY], on=KEY)
        reason = _why_not_comparable(first, second, model, measure, pairs)
        num_pairs = 0 if reason else len(keys)
    if num_pairs:
        one, other = (keys.merge(each, on=KEY) for each in (one, other))
        before, after = (each[VALUE].to_numpy() for each in (one, other))
        groups = Groups.of(one["prompt_id"].tolist())
        paired = measure.difference(before, after, groups, _weights(groups.num_groups))
    means = _summary(one, measure), _summary(other, measure)
    num_images = len(one), len(other)
    return [Difference(model, measure.name, *means, paired, num_pairs, num_images, reason)]


def _why_not_comparable(
    first: RunPieces, second: RunPieces, model: str, measure: Measure, pairs: Pairs
) -> str:
    """Why a measure's difference would say nothing of the model; empty where it does."""
    if measure is RETRIEVAL:
        return _why_ranks_differ(first, second, model)
    if isinstance(measure, OfPair):
        column = measure.reads.sha256
    elif isinstance(measure, OfPreference) and measure.is_of_pairs:
        column = PIXELS.sha256
    else:
        return ""
    hashes = [_reference_hashes(run, pairs, column) for run in (first, second)]
    return "" if hashes[0] is not None and hashes[0] == hashes[1] else REFERENCES_DIFFER


def _reference_hashes(run: RunPieces, pairs: Pairs, column: str) -> list[str] | None:
    """Of the reference's samples that the pairs were scored against; None where one is gone."""
    samples = run.samples.get(run.reference or "")
    if samples is None:
        return None
    key = [*KEY, "prompt", "noise_seed"]
    found = pairs.first.table[key].merge(samples.table[[*key, column]], on=key)
    return found[column].tolist() if len(found) == len(pairs.first.table) else None


def _why_ranks_differ(first: RunPieces, second: RunPieces, model: str) -> str:
    """Why ranks cannot be compared: they are among a run's prompts; empty where these are equal."""
    one, other = (_gallery(run, model) for run in (first, second))
    if one == other:
        return ""
    if len(one) == len(other):
        return "not compared: the ranks are among other prompts"
    return f"not compared: the ranks are among {len(one):,} and among {len(other):,} prompts"


def _gallery(run: RunPieces, model: str) -> set[str]:
    """The scored prompts, among which a run's ranks are."""
    scored = _values(run, model, RETRIEVAL)[KEY]
    return set(scored.merge(run.samples[model].table, on=KEY, how="left")["prompt"])


def _values(run: RunPieces, model: str, measure: Measure) -> pd.DataFrame:
    """Key and value of each sample that has one."""
    assert run.scores is not None, "the caller looks"
    if measure.in_scores not in run.scores:
        return pd.DataFrame()
    mine = run.scores[run.scores["model"] == model]
    return mine[KEY].assign(**{VALUE: measure.values(mine)}).dropna()


def _summary(values: pd.DataFrame, measure: Measure) -> ConfidenceInterval:
    """Of one run's images, by the formula of its report."""
    groups = Groups.of(values["prompt_id"].tolist())
    return measure.summarise(values[VALUE].to_numpy(), groups, _weights(groups.num_groups))


@lru_cache(maxsize=1)
def _weights(num_groups: int) -> FloatArray:
    return draw_weights(num_groups, NUM_RESAMPLES)


def gains(first: RunPieces, second: RunPieces, model: str, pairs: Pairs) -> FloatArray:
    """CLIP score of the second less that of the first, by row of the pairs; NaN without one."""
    if first.scores is None or second.scores is None or first.judge != second.judge:
        return np.full(len(pairs.first.table), np.nan)
    table = pairs.first.table[KEY]
    for run in (first, second):
        table = table.merge(_values(run, model, CLIP_SCORE), on=KEY, how="left")
    difference = table[f"{VALUE}_y"] - table[f"{VALUE}_x"]
    return difference.to_numpy(dtype=np.float64)
