"""A cell's images: drawn, compared with the teacher's own, and shown."""

from collections.abc import Iterator

import numpy as np
import pandas as pd
import torch
from lab_students import Cell, Json, Lab
from PIL import Image
from safetensors.torch import load_file, save_file

from distillery.families import Request, Setting, Size
from distillery.families.protocol import Pipeline
from distillery.generation.trajectory import record
from distillery.images import as_bytes
from distillery.measures.image_sets import find_left_out, measure_floor, measure_sets
from distillery.measures.intervals import FloatArray, Groups
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


def folder_of(lab: Lab, cell: Cell) -> PipelineFolder:
    """The folder that a cell draws with."""
    if cell.is_teacher:
        return find_teacher(lab.config().teacher)
    return PipelineFolder(lab.student(cell) / "pipeline")


def load(lab: Lab, cell: Cell) -> Pipeline:
    """A cell's pipeline without its text encoder."""
    teacher, folder = lab.config().teacher, folder_of(lab, cell)
    absent = folder.family.text_components
    loads = load_teacher if cell.is_teacher else load_student
    return loads(teacher, folder, lab.place, absent)


def draw(lab: Lab, cell: Cell, pipeline: Pipeline, steps: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Latents (n, *latent) and images (n, h, w, 3) uint8 of all held-out samples, on the CPU."""
    family = folder_of(lab, cell).family
    latents, images = [], []
    for request in requests(lab, cell, steps):
        with record(pipeline.scheduler, [steps]) as trajectory:
            made = family.generate(pipeline, request)
        assert made is not None
        latents.append(trajectory.states[steps].cpu())
        images.append(as_bytes(made).cpu())
    return torch.cat(latents), torch.cat(images)


def requests(lab: Lab, cell: Cell, steps: int) -> Iterator[Request]:
    """The stock calls for all held-out samples, with the same noise for every cell."""
    config, per_prompt = lab.config(), lab.plan.held_out.images
    teacher, targets = config.teacher, config.targets
    family = folder_of(lab, cell).family
    table = pd.read_parquet(lab.prompts("eval"))
    store = EmbeddingStore(lab.embeddings("eval"), table)
    samples = all_samples(table["prompt_id"], per_prompt)
    length = teacher.max_sequence_length or family.max_sequence_length
    scale = targets.guidance_scale if cell.name == "guided" and cell.is_teacher else 1.0
    size = config.samples.batch_size
    assert isinstance(size, int), "the lab sets it"
    for start in range(0, len(samples), size):
        rows = range(start, min(start + size, len(samples)))
        prompts = [store.row(row // per_prompt) for row in rows]
        yield Request(
            seeds=[noise_seed(config.seed, samples[row]) for row in rows],
            conditioning=family.pad(prompts, length),
            negative=family.pad([store.negative] * len(rows), length),
            steps=steps,
            setting=Setting(Size.of(teacher), scale),
            decode=True,
            dtype=torch_dtype(teacher.dtype),
        )


def keep_reference(lab: Lab, latents: torch.Tensor, images: torch.Tensor) -> None:
    """Write what all cells are compared with."""
    judge = load_judge(lab.config().evaluation.judge, lab.place)
    features = torch.from_numpy(embed_images(judge.vision, map(Image.fromarray, images.numpy())))
    save_file({"latents": latents, "images": images, "features": features}, lab.folder / REFERENCE)


def draw_strip(lab: Lab, name: str, images: torch.Tensor) -> None:
    """The first prompts' first images, below the teacher's from the same noise; a PNG."""
    reference = load_file(lab.folder / REFERENCE)["images"]
    rows = [part[:: lab.plan.held_out.images][:NUM_SHOWN] for part in (reference, images)]
    strip = np.concatenate([np.concatenate(list(row.numpy()), axis=1) for row in rows])
    path = lab.folder / "cells" / f"{name}.png"
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(strip).save(path)


def score(lab: Lab, latents: torch.Tensor, images: torch.Tensor) -> Json:
    """A cell's images (n, h, w, 3) against the teacher's own at the same noise, and the prompts.

    Returns:
        clip, clip_of_teacher: mean cosine of image and prompt, of the judge, for each prompt.
        spread, spread_of_teacher: mean distance of two images, for each prompt.
        detail: energy of high frequencies over that of the teacher's image, for each image.
        latent_mse: mean square of the difference of latents.
        frechet: distance of the judge's features to those of the teacher's images at other noises,
            over the teacher's own, with its 95 % interval over prompts.
        coverage: share of the teacher's images, at other noises, that have one of these near them.
    """
    held_out = lab.plan.held_out
    reference = load_file(lab.folder / REFERENCE)
    texts = pd.read_parquet(lab.prompts("eval"))["prompt"].tolist()
    judge = load_judge(lab.config().evaluation.judge, lab.place)
    embedded = embed_images(judge.vision, (Image.fromarray(image.numpy()) for image in images))
    prompts = np.repeat(embed_prompts(judge, texts), held_out.images, axis=0)
    groups = Groups(np.repeat(np.arange(held_out.prompts), held_out.images), held_out.prompts)
    features = reference["features"].numpy()
    cosines, theirs = (
        cosine_similarity(each, prompts).reshape(held_out.prompts, -1).mean(1)
        for each in (embedded, features)
    )
    pairs = zip(images.numpy(), reference["images"].numpy(), strict=True)
    return distances_to(lab, embedded, features, groups) | {
        "clip": cosines.tolist(),
        "clip_of_teacher": theirs.tolist(),
        "spread": spreads(images, held_out.images),
        "spread_of_teacher": spreads(reference["images"], held_out.images),
        "detail": [high_frequency_ratio(*pair) for pair in pairs],
        "latent_mse": float((latents - reference["latents"]).square().mean()),
    }


def distances_to(lab: Lab, own: FloatArray, reference: FloatArray, groups: Groups) -> Json:
    """Fréchet distance over its floor, and coverage; without those that lack images."""
    own, reference = normalise(own), normalise(reference)
    held_out = lab.plan.held_out
    left_out = find_left_out(own.shape[1], held_out.prompts, held_out.images)
    without = {"mmd", "diversity", *left_out}
    found = measure_sets(own, reference, groups, 1.0, without)
    floor = measure_floor(reference, groups, 1.0, without)
    numbers: Json = {"coverage": found["coverage"].value} if "coverage" in found else {}
    if "frechet" in found:
        ratio = found["frechet"].ratio_to(floor["frechet"], NUM_RESAMPLES)
        numbers["frechet"] = [ratio.mean, ratio.low, ratio.high] if ratio else None
    return numbers


def spreads(images: torch.Tensor, per_prompt: int) -> list[float]:
    """For each prompt, the mean root mean square of the difference of two of its images.

    images (n, h, w, 3), those of a prompt side by side.
    """
    by_prompt = images.float().flatten(1).view(-1, per_prompt, images[0].numel())
    pairs = [(i, j) for j in range(per_prompt) for i in range(j)]
    distances = [(by_prompt[:, i] - by_prompt[:, j]).square().mean(1).sqrt() for i, j in pairs]
    return torch.stack(distances).mean(0).tolist()
