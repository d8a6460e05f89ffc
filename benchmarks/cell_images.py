"""A cell's images: drawn, compared with the teacher's own, shown, and timed."""

import time
from collections.abc import Iterator

import numpy as np
import pandas as pd
import torch
from lab import Bench, Cell, Json, device_of, student_folder
from PIL import Image
from safetensors.torch import load_file, save_file

from distillery.families import Request, Setting, Size
from distillery.families.protocol import Pipeline
from distillery.generation.trajectory import record
from distillery.images import as_bytes
from distillery.measures.image_sets import find_left_out, measure_floor, measure_sets
from distillery.measures.intervals import (
    ConfidenceInterval,
    FloatArray,
    Groups,
    bootstrap_ratio,
    draw_weights,
)
from distillery.measures.judge import embed_prompts, load_judge
from distillery.measures.of_judge import cosine_similarity, normalise
from distillery.measures.of_pairs import high_frequency_ratio
from distillery.measures.vision import embed_images
from distillery.noise import all_samples, noise_seed
from distillery.store.embeddings import EmbeddingStore
from distillery.teacher.folder import PipelineFolder, find_teacher
from distillery.teacher.loading import load_student, load_teacher, torch_dtype

REFERENCE = "reference.safetensors"
NUM_RESAMPLES = 2000
NUM_SHOWN = 12
"""Held-out prompts on a strip."""


def load(bench: Bench, cell: Cell) -> Pipeline:
    """A cell's pipeline without its text encoder."""
    config = bench.config()
    folder = find_teacher(config.teacher)
    absent = folder.family.text_components
    if cell.is_teacher:
        return load_teacher(config.teacher, folder, device_of(bench), absent)
    pipeline = PipelineFolder(student_folder(bench, cell) / "pipeline")
    return load_student(config.teacher, pipeline, device_of(bench), absent)


def draw(bench: Bench, cell: Cell, pipeline: Pipeline) -> tuple[torch.Tensor, torch.Tensor]:
    """Latents (n, *latent) and images (n, h, w, 3) uint8 of all held-out samples, on the CPU."""
    family = find_teacher(bench.config().teacher).family
    latents, images = [], []
    for request in requests(bench, cell, pipeline):
        with record(pipeline.scheduler, [cell.steps]) as trajectory:
            made = family.generate(pipeline, request)
        assert made is not None
        latents.append(trajectory.states[cell.steps].cpu())
        images.append(as_bytes(made).cpu())
    return torch.cat(latents), torch.cat(images)


def requests(bench: Bench, cell: Cell, pipeline: Pipeline) -> Iterator[Request]:
    """The stock calls for all held-out samples, with the same noise for every cell."""
    config = bench.config()
    teacher, targets = config.teacher, config.targets
    family = find_teacher(teacher).family
    table = pd.read_parquet(bench.prompts())
    store = EmbeddingStore(bench.embeddings(), table)
    samples = all_samples(table["prompt_id"], bench.images_per_prompt)
    length = teacher.max_sequence_length or family.max_sequence_length
    scale = targets.guidance_scale if cell.objective == "guided" else 1.0
    size = config.samples.batch_size
    assert isinstance(size, int), "the benchmark sets it"
    for start in range(0, len(samples), size):
        rows = range(start, min(start + size, len(samples)))
        prompts = [store.row(row // bench.images_per_prompt) for row in rows]
        yield Request(
            seeds=[noise_seed(config.seed, samples[row]) for row in rows],
            conditioning=family.pad(prompts, length),
            negative=family.pad([store.negative] * len(rows), length),
            steps=cell.steps,
            setting=Setting(Size.of(teacher), scale),
            decode=True,
            dtype=torch_dtype(teacher.dtype),
        )


def keep_reference(bench: Bench, latents: torch.Tensor, images: torch.Tensor) -> None:
    """Write what all cells are compared with."""
    judge = load_judge(bench.config().evaluation.judge, device_of(bench))
    features = torch.from_numpy(embed_images(judge.vision, map(Image.fromarray, images.numpy())))
    save_file(
        {"latents": latents, "images": images, "features": features}, bench.folder / REFERENCE
    )


def draw_strip(bench: Bench, cell: Cell, images: torch.Tensor) -> None:
    """The first prompts' first images, below the teacher's from the same noise; a PNG."""
    reference = load_file(bench.folder / REFERENCE)["images"]
    rows = [part[:: bench.images_per_prompt][:NUM_SHOWN] for part in (reference, images)]
    strip = np.concatenate([np.concatenate(list(row.numpy()), axis=1) for row in rows])
    path = bench.folder / "cells" / f"{cell.name}.png"
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(strip).save(path)


def score(bench: Bench, latents: torch.Tensor, images: torch.Tensor) -> Json:
    """A cell's images (n, h, w, 3) against the teacher's own at the same noise, and the prompts.

    Returns:
        clip_score: mean cosine of image and prompt, of the judge.
        clip_ratio: that over the teacher's, with its 95 % interval.
        latent_mse: mean square of the difference of latents.
        pixel_rms: root of the mean square of the difference of pixels, of 255.
        diversity: mean distance between two images of a prompt, over that of the teacher's.
        detail: median of the energy of high frequencies over that of the teacher's image.
        frechet: distance of the judge's features to those of the teacher's images at other noises,
            over the teacher's own, with its 95 % interval.
        coverage: share of the teacher's images, at other noises, that have one of these near them.
    """
    reference = load_file(bench.folder / REFERENCE)
    texts = pd.read_parquet(bench.prompts())["prompt"].tolist()
    judge = load_judge(bench.config().evaluation.judge, device_of(bench))
    embedded = embed_images(judge.vision, (Image.fromarray(image.numpy()) for image in images))
    prompts = np.repeat(embed_prompts(judge, texts), bench.images_per_prompt, axis=0)
    groups = Groups(
        np.repeat(np.arange(bench.num_prompts), bench.images_per_prompt), bench.num_prompts
    )
    features = reference["features"].numpy()
    cosines, theirs = (cosine_similarity(each, prompts) for each in (embedded, features))
    weights = draw_weights(bench.num_prompts, NUM_RESAMPLES)
    difference = images.float() - reference["images"].float()
    pairs = zip(images.numpy(), reference["images"].numpy(), strict=True)
    spread = pairwise_rms(images, bench.images_per_prompt)
    return distances_to(bench, embedded, features, groups) | {
        "clip_score": float(cosines.mean()),
        "clip_ratio": listed(bootstrap_ratio(cosines, theirs, groups, weights)),
        "detail": float(np.median([high_frequency_ratio(*pair) for pair in pairs])),
        "latent_mse": float((latents - reference["latents"]).square().mean()),
        "pixel_rms": float(difference.square().mean().sqrt()),
        "diversity": spread / pairwise_rms(reference["images"], bench.images_per_prompt),
    }


def distances_to(bench: Bench, own: FloatArray, reference: FloatArray, groups: Groups) -> Json:
    """Fréchet distance over its floor, and coverage; without those that lack images."""
    own, reference = normalise(own), normalise(reference)
    left_out = find_left_out(own.shape[1], bench.num_prompts, bench.images_per_prompt)
    without = {"mmd", "diversity", *left_out}
    found = measure_sets(own, reference, groups, 1.0, without)
    floor = measure_floor(reference, groups, 1.0, without)
    numbers: Json = {"coverage": found["coverage"].value} if "coverage" in found else {}
    if "frechet" in found:
        numbers["frechet"] = listed(found["frechet"].ratio_to(floor["frechet"], NUM_RESAMPLES))
    return numbers


def listed(interval: ConfidenceInterval | None) -> list[float | None] | None:
    """A mean and its interval, as JSON."""
    return [interval.mean, interval.low, interval.high] if interval else None


def pairwise_rms(images: torch.Tensor, per_prompt: int) -> float:
    """Mean root mean square of the difference of two images of a prompt, over all such pairs.

    images (n, h, w, 3), those of a prompt side by side.
    """
    by_prompt = images.float().flatten(1).view(-1, per_prompt, images[0].numel())
    pairs = [(i, j) for j in range(per_prompt) for i in range(j)]
    distances = [(by_prompt[:, i] - by_prompt[:, j]).square().mean(1).sqrt() for i, j in pairs]
    return float(torch.stack(distances).mean())


def time_sampling(bench: Bench, cell: Cell, repeats: int) -> float:
    """Seconds for 100 images in the run's batches, decoding included; the median of repeats.

    Call it while nothing else runs. A first pass warms up.
    """
    pipeline = load(bench, cell)
    seconds = []
    for _ in range(repeats + 1):
        begin = time.perf_counter()
        _, images = draw(bench, cell, pipeline)  # ends on the CPU, so the GPU is done
        seconds.append((time.perf_counter() - begin) * 100 / len(images))
    return float(np.median(seconds[1:]))
