"""Score every sample, and compare every model with every other on the same prompts and noise."""

from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from PIL import Image

from distillery.config.jobs import EvaluationJob
from distillery.evaluation import metrics
from distillery.evaluation.judge import (
    Judge,
    count_cut_prompts,
    embed_images,
    embed_prompts,
    in_batches,
    load_judge,
)
from distillery.evaluation.manifests import ModelSamples, check_pairs, read_samples
from distillery.evaluation.metrics import FloatArray, Groups, Interval
from distillery.files import write_sealed
from distillery.store.tables import write_table
from distillery.telemetry import Reporter

READ_AHEAD = 64
"""Pictures that are decoded at once, by threads, ahead of the judge."""
SCORES = ("clip_score", "latents_mse", "psnr_db")
"""Columns of the scores that are averaged; the last two are against the reference model."""


def evaluate(
    job: EvaluationJob,
    manifests: Mapping[str, Path],
    output_quality: Path,
    output_scores: Path,
    reporter: Reporter,
    device: torch.device,
) -> None:
    """Write quality.json and scores.parquet; equal inputs give equal bytes on one machine.

    Args:
        job: the frozen configuration.
        manifests: samples/{model}/manifest.parquet of each model of `job.models`.
        output_quality: means with intervals and paired comparisons.
        output_scores: one row per image and model: prompt_id, index, model, clip_score, rank,
            latents_mse, psnr_db. The last two are null for the reference itself.
        reporter: gets one work event a model.
        device: where the judge runs.

    Raises:
        ValueError: the manifests cannot be compared, a picture or the judge is missing.
    """
    samples = _read_all(job, manifests)
    judge = load_judge(job.evaluation.judge, device)
    scores = _score_all(samples, samples[job.evaluation.reference], judge, reporter)
    table = pd.concat(scores.values(), ignore_index=True)
    write_table(table, output_scores)
    write_sealed(output_quality, summarise(job, samples, scores))


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


def _score_all(
    samples: Mapping[str, ModelSamples],
    reference: ModelSamples,
    judge: Judge,
    reporter: Reporter,
) -> dict[str, pd.DataFrame]:
    """Score each model's images; prompts are embedded once."""
    prompts = list(dict.fromkeys(reference.table["prompt"]))
    num_cut = count_cut_prompts(judge, prompts)
    if num_cut:
        reporter.warning(
            f"{num_cut} of {len(prompts)} prompts are longer than the judge's {judge.max_tokens} "
            "tokens: it reads their beginning only"
        )
    embedded = embed_prompts(judge, prompts)
    scores = {}
    with reporter.progress(total=len(samples), unit="model") as bar:
        for name, model in samples.items():
            with reporter.work(len(model.table), model=name):
                scores[name] = score_model(model, reference, judge, prompts, embedded)
            bar.update()
    return scores


def score_model(
    model: ModelSamples,
    reference: ModelSamples,
    judge: Judge,
    prompts: list[str],
    prompts_pd: FloatArray,
) -> pd.DataFrame:
    """The rows of scores.parquet of one model.

    Args:
        model, reference: samples of the same prompts and noise.
        judge: scores the pictures.
        prompts: distinct prompts; `prompts_pd`: their embeddings.
    """
    images_bd = embed_images(judge, _read_images(model))
    rows = {prompt: row for row, prompt in enumerate(prompts)}
    own_b = np.array([rows[prompt] for prompt in model.table["prompt"]], dtype=np.int64)
    scores = model.table[["prompt_id", "index"]].assign(
        model=model.model,
        clip_score=metrics.cosine_similarity(images_bd, prompts_pd[own_b]),
        rank=metrics.retrieval_ranks(images_bd, prompts_pd, own_b),
        latents_mse=np.nan,
        psnr_db=np.nan,
    )
    if model.model != reference.model:
        scores["latents_mse"] = _compare(
            model, reference, lambda samples, row: samples.read_latents(row), metrics.latents_mse
        )
        scores["psnr_db"] = _compare(
            model, reference, lambda samples, row: samples.read_pixels(row), metrics.psnr_db
        )
    return scores


def _read_images(model: ModelSamples) -> Iterator[Image.Image]:
    """All pictures in order; threads decode a batch at a time, so that memory stays bounded."""
    with ThreadPoolExecutor() as pool:
        for rows in in_batches(range(len(model.table)), READ_AHEAD):
            yield from pool.map(model.read_image, rows)


def _compare(
    model: ModelSamples,
    reference: ModelSamples,
    read: Callable[[ModelSamples, int], Any],
    measure: Callable[[Any, Any], float],
) -> list[float]:
    """A measure between each image of two models at the same row, hence of the same sample."""

    def compare_row(row: int) -> float:
        try:
            return measure(read(model, row), read(reference, row))
        except ValueError as error:
            raise ValueError(f"{model.model!r} against {reference.model!r}: {error}") from error

    with ThreadPoolExecutor() as pool:
        return list(pool.map(compare_row, range(len(model.table))))


# ---- the summary -------------------------------------------------------------------------------


def summarise(
    job: EvaluationJob,
    samples: Mapping[str, ModelSamples],
    scores: Mapping[str, pd.DataFrame],
) -> dict[str, Any]:
    """The content of quality.json."""
    reference = job.evaluation.reference
    groups = Groups.of([str(name) for name in scores[reference]["prompt_id"]])
    weights_rp = metrics.draw_weights(groups.num_groups, job.evaluation.num_resamples)
    return {
        "judge": job.evaluation.judge,
        "reference": reference,
        "num_prompts": groups.num_groups,
        "num_resamples": job.evaluation.num_resamples,
        "confidence": metrics.CONFIDENCE,
        "models": {
            name: {
                "num_images": len(model.table),
                "num_black": model.num_black,
                "steps": model.steps,
                "guidance_scale": model.guidance_scale,
                "guidance_scale_2": model.guidance_scale_2,
                "network_calls": model.network_calls,
                **_means(scores[name], groups, weights_rp),
                "against": {
                    other: _paired(scores[name], scores[other], groups, weights_rp)
                    for other in samples
                    if other != name
                },
            }
            for name, model in samples.items()
        },
    }


def _means(scores: pd.DataFrame, groups: Groups, weights_rp: FloatArray) -> dict[str, Any]:
    """Each metric's mean with its interval; None where it is not defined (the reference itself)."""
    values = {column: _values(scores, column) for column in SCORES}
    values["retrieval_r1"] = (_values(scores, "rank") == 1).astype(np.float64)
    return {name: _mean(column, groups, weights_rp) for name, column in values.items()}


def _paired(
    own: pd.DataFrame, other: pd.DataFrame, groups: Groups, weights_rp: FloatArray
) -> dict[str, Any]:
    """One model against another on the same samples: own minus other, own over other."""
    ratio = metrics.bootstrap_ratio(
        _values(own, "clip_score"), _values(other, "clip_score"), groups, weights_rp
    )
    differences = {
        f"{column}_difference": _mean(
            _values(own, column) - _values(other, column), groups, weights_rp
        )
        for column in SCORES
    }
    return {"clip_score_ratio": _as_json(ratio)} | differences


def _mean(
    values_b: FloatArray, groups: Groups, weights_rp: FloatArray
) -> dict[str, float | None] | None:
    """Mean with interval as JSON; None if an image has no value."""
    if np.any(np.isnan(values_b)):
        return None
    return _as_json(metrics.bootstrap_mean(values_b, groups, weights_rp))


def _values(scores: pd.DataFrame, column: str) -> FloatArray:
    """A column of the scores, shape (b,)."""
    return scores[column].to_numpy(dtype=np.float64)


def _as_json(interval: Interval | None) -> dict[str, float | None] | None:
    """An interval as a JSON object."""
    return None if interval is None else asdict(interval)
