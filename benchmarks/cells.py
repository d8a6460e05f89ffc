"""One cell of the table of objectives: train a student, export it, draw, compare with the teacher.

Everything is done by the product's own stages, called in this process. benchmarks/objectives.py
says which cells there are.
"""

import math
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from PIL import Image
from safetensors.torch import load_file, save_file

from distillery.config.jobs import (
    EmbeddingsJob,
    ExportJob,
    TargetsJob,
    TrainingJob,
    complete,
    freeze,
)
from distillery.config.parsing import Model, parse
from distillery.config.run import Config, parse_config
from distillery.evaluation.image_sets import find_left_out, measure_floor, measure_sets
from distillery.evaluation.judge import embed_prompts, load_judge
from distillery.evaluation.metrics import FloatArray, Groups, cosine_similarity, normalise
from distillery.evaluation.vision import embed_images
from distillery.families import Request, Setting
from distillery.families.protocol import Pipeline
from distillery.files import read_json, write_json
from distillery.generation.trajectory import record
from distillery.images import as_bytes
from distillery.noise import all_samples, noise_seed
from distillery.stages.embeddings import make_embeddings
from distillery.stages.export import export_student
from distillery.stages.merge_targets import merge_targets
from distillery.stages.prompts import read_splits
from distillery.stages.student import build_student
from distillery.stages.targets import make_targets
from distillery.store.embeddings import EmbeddingStore
from distillery.teacher.folder import PipelineFolder, find_teacher
from distillery.teacher.loading import load_student, load_teacher, torch_dtype
from distillery.telemetry import Reporter
from distillery.training.distributed import RankInfo
from distillery.training.health import StopRequest, Watchdog
from distillery.training.loop import train
from distillery.training.run import Paths
from distillery.training.run import prepare as prepare_training

OBJECTIVES: Mapping[str, str] = {
    "segment": "segment",
    "direct": "direct",
    "reflow": "reflow",
    "prediction": "prediction",
    "segment+rollout": "segment",
    "segment+online": "segment",
    "segment+matching": "segment",
    "segment+adversarial": "segment",
}
"""Name in the table to `training.objective`."""
SHAPES: Mapping[str, float] = {"same": 1.0, "half": 0.5, "quarter": 0.25}
"""Name in the table to the share of the teacher's blocks that are kept, rounded up."""
Json = dict[str, Any]
REFERENCE = "reference.safetensors"


@dataclass(frozen=True)
class Cell:
    """One row of the table: a student, or the teacher itself, at a number of steps.

    Attributes:
        objective: a key of `OBJECTIVES`; `guided` or `unguided` for the teacher.
        shape: a key of `SHAPES`, or `teacher`.
        steps: of the sampler.
    """

    objective: str
    shape: str
    steps: int

    @property
    def name(self) -> str:
        """Of its file and its folder."""
        return f"{self.shape}-{self.objective}-{self.steps}"

    @property
    def is_teacher(self) -> bool:
        """Whether nothing is trained."""
        return self.shape == "teacher"


@dataclass(frozen=True)
class Bench:
    """What all cells share; it goes to the workers.

    Attributes:
        folder: of stores, students and results.
        raw: the run's configuration as loaded, with targets of 8 segments and predictions.
        rollout_share: of num_samples, for the finishing phase, whichever the objective has.
        matching_weight: of `segment+matching`'s distribution matching.
        adversarial_weight: of `segment+adversarial`'s second loss.
        images_per_prompt: noises of each held-out prompt.
        num_prompts: held-out ones.
        device: cuda or cpu.
    """

    folder: Path
    raw: Json
    rollout_share: float
    matching_weight: float
    adversarial_weight: float
    images_per_prompt: int
    num_prompts: int
    device: str

    def config(self, cell: Cell | None = None) -> Config:
        """The configuration of a cell's student."""
        raw = self.raw
        if cell is not None and not cell.is_teacher:
            raw = raw | {"student": self._student(cell), "training": self._training(cell)}
        config = parse_config(raw, "the benchmark's configuration")
        assert isinstance(config, Config)
        return config

    def _student(self, cell: Cell) -> Json:
        teacher = find_teacher(self.config().teacher)
        config = teacher.denoiser_config
        num_blocks = sum(config[key] for key in teacher.family.blocks.values())
        kept = math.ceil(SHAPES[cell.shape] * num_blocks)
        shape = {"init": "layers", "num_layers": kept} if kept < num_blocks else {"init": "teacher"}
        return shape | {"steps": cell.steps}

    def _training(self, cell: Cell) -> Json:
        training = dict(self.raw["training"])
        batch_size = int(training["global_batch_size"])
        share = int(training["num_samples"] * self.rollout_share) // batch_size * batch_size
        finish = max(share, batch_size)
        online = {"targets": "online", "finish_samples": finish}
        finishes: Mapping[str, Json] = {
            "segment+rollout": {"rollout_samples": finish},
            "segment+online": online,
            "segment+matching": online
            | {"distribution_matching": {"weight": self.matching_weight}},
            "segment+adversarial": {
                "adversarial": {"samples": finish, "weight": self.adversarial_weight}
            },
        }
        objective = {"objective": OBJECTIVES[cell.objective]}
        return training | objective | finishes.get(cell.objective, {})

    def job(self, stage: str, model: type[Model], cell: Cell | None = None) -> Model:
        """A stage's frozen configuration."""
        config = self.config(cell)
        raw = complete(freeze(config, stage), freeze(config, "runtime"))
        return parse(model, raw, f"the benchmark's {stage}")

    def reporter(self, name: str) -> Reporter:
        """Events go to the folder, lines to the log of `logging`."""
        return Reporter(self.folder / "telemetry", "benchmark", name, self.device)

    def prompts(self, split: str) -> Path:
        """A split's table."""
        return self.folder / "prompts" / f"{split}.parquet"

    def embeddings(self, split: str) -> Path:
        """A split's manifest."""
        return self.folder / "embeddings" / split / "manifest.json"

    @property
    def targets(self) -> Path:
        """Manifest of the stored trajectories."""
        return self.folder / "targets" / "manifest.json"


def prepare(bench: Bench, num_train_prompts: int | None) -> None:
    """Prompts, embeddings, the one store of targets, and the teacher's own images."""
    config, device = bench.config(), torch.device(bench.device)
    counts = {"train": num_train_prompts, "eval": bench.num_prompts}
    for split, table in read_splits(config.prompts).items():
        count = counts[split]
        bench.prompts(split).parent.mkdir(parents=True, exist_ok=True)
        table.head(count or len(table)).to_parquet(bench.prompts(split), index=False)
        make_embeddings(
            bench.job("embeddings", EmbeddingsJob),
            bench.prompts(split),
            bench.embeddings(split),
            device,
            bench.reporter(f"embeddings-{split}"),
        )
    shard = bench.targets.parent / "shard-0-of-1.json"
    make_targets(
        bench.job("targets", TargetsJob),
        bench.prompts("train"),
        bench.embeddings("train"),
        (0, 1),
        shard,
        device,
        bench.reporter("targets"),
    )
    merge_targets([shard], bench.targets)
    reference = Cell("guided", "teacher", config.targets.steps)
    latents, images = draw(bench, reference, load(bench, reference))
    judge = load_judge(config.evaluation.judge, device)
    features = torch.from_numpy(embed_images(judge.vision, map(Image.fromarray, images.numpy())))
    save_file(
        {"latents": latents, "images": images, "features": features}, bench.folder / REFERENCE
    )


def run_cell(bench: Bench, cell: Cell) -> Json:
    """Train, export, draw and score one cell; its row of the table."""
    training_s = 0.0 if cell.is_teacher else train_student(bench, cell)
    latents, images = draw(bench, cell, load(bench, cell))
    return {**asdict(cell), "training_s": training_s, **score(bench, latents, images)}


def train_student(bench: Bench, cell: Cell) -> float:
    """Build, train and export a student; returns the seconds of the training alone."""
    folder = student_folder(bench, cell)
    job = bench.job("training", TrainingJob, cell)
    build_student(job, folder / "initial")
    paths = Paths(
        student=folder / "initial",
        targets=bench.targets,
        embeddings=bench.embeddings("train"),
        prompts=bench.prompts("train"),
        trained=folder / "trained",
        losses=folder / "loss.parquet",
        checkpoints=folder / "checkpoints",
    )
    begin = time.perf_counter()
    reporter = bench.reporter(cell.name)
    run = prepare_training(
        job, paths, RankInfo(), device_of(bench), reporter, StopRequest(), Watchdog(0, 0)
    )
    finished = train(run, paths)
    seconds = time.perf_counter() - begin
    assert finished, "nobody asks it to stop"
    export_student(bench.job("export", ExportJob, cell), folder / "trained", folder / "pipeline")
    return seconds


def student_folder(bench: Bench, cell: Cell) -> Path:
    """Where a cell's student lies."""
    return bench.folder / "students" / cell.name


def device_of(bench: Bench) -> torch.device:
    """The one GPU that all workers share, or the CPU."""
    return torch.device("cuda", 0) if bench.device == "cuda" else torch.device("cpu")


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
    table = pd.read_parquet(bench.prompts("eval"))
    store = EmbeddingStore(bench.embeddings("eval"), table)
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
            setting=Setting(teacher.height, teacher.width, scale),
            decode=True,
            dtype=torch_dtype(teacher.dtype),
        )


def score(bench: Bench, latents: torch.Tensor, images: torch.Tensor) -> Json:
    """A cell's images (n, h, w, 3) against the teacher's own at the same noise, and the prompts.

    Returns:
        clip_score: mean cosine of image and prompt, of the judge.
        latent_mse: mean square of the difference of latents.
        pixel_rms: root of the mean square of the difference of pixels, of 255.
        diversity: mean distance between two images of a prompt, over that of the teacher's.
        frechet: distance of the judge's features to those of the teacher's images at other noises,
            over the teacher's own.
        coverage: share of the teacher's images, at other noises, that have one of these near them.
    """
    reference = load_file(bench.folder / REFERENCE)
    texts = pd.read_parquet(bench.prompts("eval"))["prompt"].tolist()
    judge = load_judge(bench.config().evaluation.judge, device_of(bench))
    embedded = embed_images(judge.vision, (Image.fromarray(image.numpy()) for image in images))
    prompts = np.repeat(embed_prompts(judge, texts), bench.images_per_prompt, axis=0)
    difference = images.float() - reference["images"].float()
    spread = pairwise_rms(images, bench.images_per_prompt)
    near = distances_to(bench, embedded, reference["features"].numpy())
    return near | {
        "clip_score": float(cosine_similarity(embedded, prompts).mean()),
        "latent_mse": float((latents - reference["latents"]).square().mean()),
        "pixel_rms": float(difference.square().mean().sqrt()),
        "diversity": spread / pairwise_rms(reference["images"], bench.images_per_prompt),
    }


def distances_to(bench: Bench, own: FloatArray, reference: FloatArray) -> Json:
    """Fréchet distance over its floor, and coverage; without those that lack images."""
    rows = np.repeat(np.arange(bench.num_prompts), bench.images_per_prompt)
    groups = Groups(rows, bench.num_prompts)
    own, reference = normalise(own), normalise(reference)
    left_out = find_left_out(own.shape[1], bench.num_prompts, bench.images_per_prompt)
    without = {"mmd", "diversity", *left_out}
    found = measure_sets(own, reference, groups, 1.0, without)
    floor = measure_floor(reference, groups, 1.0, without)
    numbers = {"coverage": float(found["coverage"].value)} if "coverage" in found else {}
    if "frechet" in found:
        numbers["frechet"] = found["frechet"].value / floor["frechet"].value
    return numbers


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


def cached(path: Path, settings: Json) -> Json | None:
    """A result that is there and was made with these settings."""
    if not path.is_file():
        return None
    found: Json = read_json(path)
    return found["row"] if found["settings"] == settings else None


def keep(path: Path, settings: Json, row: Json) -> None:
    """Write a result with what it depends on."""
    write_json(path, {"settings": settings, "row": row})
