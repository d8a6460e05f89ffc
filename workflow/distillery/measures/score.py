"""Score the samples of every model and compare the models on the same prompts and noise.

A manifest's model is the name of its folder. The judge and other vision models run on a GPU where
there is one.
"""

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from PIL import Image

from distillery.config.jobs import EvaluationJob
from distillery.files import hash_file, write_sealed
from distillery.images import frames_of, thin_out
from distillery.measures import image_sets, intervals
from distillery.measures.intervals import ConfidenceInterval, FloatArray, Groups, IntArray
from distillery.measures.judge import Judge, Readings, embed_prompts, load_judge, read_prompts
from distillery.measures.lists import MEANS, MEASURES, measures_of
from distillery.measures.manifests import ModelSamples, check_pairs, read_samples
from distillery.measures.measure import (
    PIXELS,
    OfClip,
    OfJudge,
    OfPair,
    OfPreference,
    Reading,
)
from distillery.measures.of_judge import pool_frames
from distillery.measures.of_preference import own_logits
from distillery.measures.vision import VisionModel, embed_images, in_batches, load_vision_model
from distillery.store.tables import write_table
from distillery.telemetry import Reporter

READ_AHEAD = 64
"""Images, or frames of clips, that are decoded at once, by threads, ahead of the judge."""
MAX_FRAMES = 16
"""Of each clip that the judge and vision models look at, at equal distances: neighbours are nearly
alike, and time grows with frames. Three per second of a clip of 5 s; CLIP4Clip takes 12 of clips of
10 to 32 s."""
Features = Mapping[str, FloatArray]
"""Of each model's images (b, d), in one vision model."""
JUDGE = "judge"
"""The name of the judge's image features, where no vision model is named."""
PREFERENCE_MODEL = "preference_model"
"""The key of the configuration, and of what was scored by it."""


def evaluate(
    job: EvaluationJob,
    manifests: Sequence[Path],
    quality: Path,
    scores: Path,
    reporter: Reporter,
    device: torch.device,
) -> None:
    """Write quality.json and scores.parquet; equal inputs give equal bytes on one machine.

    Args:
        manifests: samples/{model}/manifest.parquet of each model of the run.
        quality: means with intervals and paired comparisons, as JSON.
        scores: one row per sample and model: prompt_id, index, model, and a column of each of
            `measures_of` its frames; those of pairs are null for the reference itself.
        reporter: gets one work event for each model, in the judge and in each vision model.

    Raises:
        ValueError: the manifests cannot be compared, or an image, the judge or a vision model is
            missing.
    """
    samples = _read_all(job, {path.parent.name: path for path in manifests})
    judge = load_judge(job.evaluation.judge, device)
    reference = samples[job.evaluation.reference]
    readings = read_prompts(judge, reference.table["prompt"])
    _warn_of_cut(readings, judge, JUDGE, reporter)
    _warn_of_twins(readings, reporter)
    of_judge = _embed_all(samples, judge.vision, JUDGE, reporter)
    prompts_pd = embed_prompts(judge, readings.distinct)
    preferences = _score_preference(job, samples, device, reporter)
    tables = {
        name: score_model(model, reference, of_judge[name], readings, prompts_pd, preferences)
        for name, model in samples.items()
    }
    write_table(pd.concat(tables.values(), ignore_index=True), scores)
    features = _embed_in_others(job, samples, device, reporter) or {JUDGE: of_judge}
    summary = summarise(job, samples, tables, features, len(readings.distinct))
    write_sealed(quality, {"scores": hash_file(scores), **summary})


def _read_all(job: EvaluationJob, manifests: Mapping[str, Path]) -> dict[str, ModelSamples]:
    """Read the manifests and refuse what cannot be paired."""
    if set(manifests) != set(job.models):
        raise ValueError(
            f"manifests of {', '.join(manifests)} are given, samples.models has "
            f"{', '.join(job.models)}: give one manifest for each model"
        )
    samples = {model: read_samples(model, manifests[model]) for model in job.models}
    reference = samples[job.evaluation.reference]
    for other in samples.values():
        check_pairs(reference, other)
    return samples


def _warn_of_cut(readings: Readings, judge: Judge, name: str, reporter: Reporter) -> None:
    """Say how many prompts a CLIP model does not read whole."""
    if readings.num_cut:
        reporter.warning(
            f"{readings.num_cut} of {len(readings.row_of)} prompts are longer than the {name}'s "
            f"{judge.max_tokens} tokens: it reads their beginning only"
        )


def _warn_of_twins(readings: Readings, reporter: Reporter) -> None:
    """Say how many prompts the judge cannot tell apart."""
    num_prompts = len(readings.row_of)
    num_twins = num_prompts - len(readings.distinct)
    if num_twins:
        reporter.warning(
            f"{num_twins} of {num_prompts} prompts read to the judge like another one: R@1 counts "
            "them as one"
        )


def _score_preference(
    job: EvaluationJob,
    samples: Mapping[str, ModelSamples],
    device: torch.device,
    reporter: Reporter,
) -> dict[str, FloatArray]:
    """The model of preference's score of each model's images (b,); empty without one."""
    path = job.evaluation.preference_model
    if path is None:
        return {}
    model = load_judge(path, device, f"evaluation.{PREFERENCE_MODEL}")
    readings = read_prompts(model, samples[job.evaluation.reference].table["prompt"])
    _warn_of_cut(readings, model, "preference model", reporter)
    prompts_pd = embed_prompts(model, readings.distinct)
    features = _embed_all(samples, model.vision, PREFERENCE_MODEL, reporter)
    return {
        name: own_logits(features[name], prompts_pd, _own(readings, found), model.scale)
        for name, found in samples.items()
    }


def _own(readings: Readings, model: ModelSamples) -> IntArray:
    """The row of each image's own prompt among the distinct ones, shape (b,)."""
    return np.array([readings.row_of[prompt] for prompt in model.table["prompt"]], dtype=np.int64)


def _embed_in_others(
    job: EvaluationJob,
    samples: Mapping[str, ModelSamples],
    device: torch.device,
    reporter: Reporter,
) -> dict[str, Features]:
    """Features of all images in each vision model but the judge, one loaded at a time."""
    return {
        name: _embed_all(
            samples,
            load_vision_model(f"evaluation.vision_models.{name}", path, device),
            name,
            reporter,
        )
        for name, path in job.evaluation.vision_models.items()
    }


def _embed_all(
    samples: Mapping[str, ModelSamples], vision: VisionModel, name: str, reporter: Reporter
) -> Features:
    """Features of each model's images in one vision model."""
    features = {}
    with reporter.progress(total=len(samples), unit=" models") as bar:
        for model, found in samples.items():
            with reporter.work(len(found.table), model=model, vision_model=name):
                features[model] = _embed(vision, found)
            bar.update()
    return features


def _embed(vision: VisionModel, model: ModelSamples) -> FloatArray:
    """Features of each image or clip (b, d), those of images not normalised."""
    features = embed_images(vision, _read_images(model))
    if model.num_frames == 1:
        return features
    return pool_frames(features, min(model.num_frames, MAX_FRAMES))


def score_model(
    model: ModelSamples,
    reference: ModelSamples,
    images_bd: FloatArray,
    readings: Readings,
    prompts_pd: FloatArray,
    preferences: Mapping[str, FloatArray] | None = None,
) -> pd.DataFrame:
    """The rows of scores.parquet of one model.

    Args:
        model, reference: samples of the same prompts and noise.
        readings: the prompts as the judge reads them; `prompts_pd`: embeddings of the distinct.
        preferences: scores of each model's images by the model of preference; none without one.
    """
    own_b = _own(readings, model)
    scores = model.table[["prompt_id", "index"]].assign(model=model.model)
    of_files = _measure_files(model, reference)
    for measure in measures_of(model.num_frames):
        if isinstance(measure, OfJudge):
            scores[measure.in_scores] = measure.of(images_bd, prompts_pd, own_b)
        elif not isinstance(measure, OfPreference):
            scores[measure.in_scores] = of_files.get(measure.in_scores, np.nan)
        elif preferences:
            is_defined = not measure.is_of_pairs or model.model != reference.model
            pair = preferences[model.model], preferences[reference.model]
            scores[measure.in_scores] = measure.of(*pair) if is_defined else np.nan
    return scores


def _read_images(model: ModelSamples) -> Iterator[Image.Image]:
    """All images in order, or `MAX_FRAMES` of each clip.

    Threads decode a batch at a time, so that memory stays bounded.
    """
    frames = thin_out(range(model.num_frames), MAX_FRAMES)

    def read(row: int) -> list[Image.Image]:
        pixels = frames_of(model.read_pixels(row))
        return [Image.fromarray(pixels[frame]) for frame in frames]

    with ThreadPoolExecutor() as pool:
        for rows in in_batches(range(len(model.table)), max(1, READ_AHEAD // len(frames))):
            for images in pool.map(read, rows):
                yield from images


def _measure_files(model: ModelSamples, reference: ModelSamples) -> dict[str, list[float]]:
    """Measures of pairs and of clips by column; of the reference itself those of clips only.

    Two models' samples at the same row are of the same prompt and noise. A row's files are read
    once for all measures: of two clips of 17 frames of 448 × 256 px decoding takes 0.29 s of a
    core, and all measures 0.19 s.
    """
    is_reference = model.model == reference.model
    of_files = (it for it in measures_of(model.num_frames) if isinstance(it, OfPair | OfClip))
    measures = [it for it in of_files if isinstance(it, OfClip) or not is_reference]

    def measure_row(row: int) -> list[float]:
        @cache
        def read(reads: Reading, *, of_reference: bool = False) -> Any:
            return reads.read(reference if of_reference else model, row)

        try:
            return [
                it.of(read(PIXELS))
                if isinstance(it, OfClip)
                else it.of(read(it.reads), read(it.reads, of_reference=True))
                for it in measures
            ]
        except ValueError as error:
            raise ValueError(f"{model.model!r} against {reference.model!r}: {error}") from error

    if not measures:
        return {}
    with ThreadPoolExecutor() as pool:
        batches = in_batches(range(len(model.table)), READ_AHEAD)
        rows = [row for batch in batches for row in pool.map(measure_row, batch)]
    columns = (it.in_scores for it in measures)
    return dict(zip(columns, map(list, zip(*rows, strict=True)), strict=True))


# ---- the summary -------------------------------------------------------------------------------


def summarise(
    job: EvaluationJob,
    samples: Mapping[str, ModelSamples],
    scores: Mapping[str, pd.DataFrame],
    features: Mapping[str, Features],
    num_distinct_prompts: int,
) -> dict[str, Any]:
    """The content of quality.json.

    Args:
        features: of each vision model, those of each model's images.
        num_distinct_prompts: that the judge can tell apart, among which R@1 searches.
    """
    reference = job.evaluation.reference
    num_frames = samples[reference].num_frames
    groups = Groups.of([str(name) for name in scores[reference]["prompt_id"]])
    weights_rp = intervals.draw_weights(groups.num_groups, job.evaluation.num_resamples)
    visions = {
        name: _about_vision(of_models[reference].shape[1], groups)
        for name, of_models in features.items()
    }
    sets = {
        name: image_sets.summarise_sets(
            of_models, reference, groups, visions[name]["left_out"], weights_rp
        )
        for name, of_models in features.items()
    }
    paths = job.evaluation.vision_models
    return {
        "judge": job.evaluation.judge,
        "vision_models": {
            name: {"path": paths.get(name, job.evaluation.judge), **about}
            for name, about in visions.items()
        },
        "reference": reference,
        **(
            {PREFERENCE_MODEL: job.evaluation.preference_model}
            if job.evaluation.preference_model
            else {}
        ),
        **({"num_frames": num_frames} if num_frames > 1 else {}),
        "num_prompts": groups.num_groups,
        "num_distinct_prompts": num_distinct_prompts,
        "num_resamples": job.evaluation.num_resamples,
        "confidence": intervals.CONFIDENCE,
        "models": {
            name: {
                **_about_images(model),
                **_means(scores[name], groups, weights_rp),
                "sets": {
                    vision: {key: _as_json(interval) for key, interval in found[name].items()}
                    for vision, found in sets.items()
                },
                "against": {
                    other: _paired(scores[name], scores[other], groups, weights_rp)
                    for other in samples
                    if other != name
                },
            }
            for name, model in samples.items()
        },
    }


def _about_vision(num_features: int, groups: Groups) -> dict[str, Any]:
    """How many images a vision model compares, and what these do not suffice for."""
    per_prompt = int(groups.sizes().min())
    left_out = image_sets.find_left_out(num_features, groups.num_groups, per_prompt)
    return {
        "num_features": num_features,
        "num_prompts": image_sets.count_prompts(groups.num_groups, per_prompt),
        "left_out": {measure: asdict(need) for measure, need in left_out.items()},
    }


def _about_images(model: ModelSamples) -> dict[str, Any]:
    """Which images are scored, and how they were made."""
    return {
        "images": model.digest,
        "num_images": len(model.table),
        "num_black": model.num_black,
        "steps": model.steps,
        "guidance_scale": model.guidance_scale,
        "guidance_scale_2": model.guidance_scale_2,
        "network_calls": model.network_calls,
    }


def _means(scores: pd.DataFrame, groups: Groups, weights_rp: FloatArray) -> dict[str, Any]:
    """Each measure with its interval; None where it is not defined (the reference itself)."""
    found = {}
    for measure in (it for it in MEASURES if it.in_scores in scores):
        values_b = measure.values(scores)
        is_defined = not np.any(np.isnan(values_b))
        summary = measure.summarise(values_b, groups, weights_rp) if is_defined else None
        found[measure.name] = _as_json(summary)
    return found


def _paired(
    own: pd.DataFrame, other: pd.DataFrame, groups: Groups, weights_rp: FloatArray
) -> dict[str, Any]:
    """One model against another on the same samples: own minus other, own over other."""
    found: dict[str, Any] = {}
    for measure in (it for it in MEANS if it.in_scores in own):
        own_b, other_b = measure.values(own), measure.values(other)
        if measure.ratio:
            ratio = intervals.bootstrap_ratio(own_b, other_b, groups, weights_rp)
            found[measure.ratio_key] = _as_json(ratio)
        is_defined = not np.any(np.isnan(own_b - other_b))
        difference = measure.difference(other_b, own_b, groups, weights_rp) if is_defined else None
        found[measure.difference_key] = _as_json(difference)
    return found


def _as_json(interval: ConfidenceInterval | None) -> dict[str, float | None] | None:
    """An interval as a JSON object."""
    return None if interval is None else asdict(interval)
