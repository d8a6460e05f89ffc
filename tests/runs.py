"""A tiny run whose stages are called in this process, as their scripts call them."""

import copy
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

import pandas as pd
import torch
from safetensors.torch import load_file

from distillery.config.jobs import (
    RUNTIME,
    EmbeddingsJob,
    ExportJob,
    PreviewsJob,
    PromptsJob,
    RoundsJob,
    SamplesJob,
    SignatureJob,
    TargetsJob,
    TrainingJob,
    freeze,
    read_job,
)
from distillery.config.run import Config, parse_config
from distillery.config.section import Section, Split
from distillery.config.teacher import Teacher
from distillery.config.training import Training
from distillery.files import read_json, write_json
from distillery.generation.embeddings import make_embeddings
from distillery.generation.sample_tables import merge_samples
from distillery.generation.samples import Inputs, make_samples
from distillery.generation.targets import make_targets
from distillery.pipeline import STAGES
from distillery.planning.first import write_frozen
from distillery.planning.page import page_of
from distillery.planning.plan import make_plan
from distillery.planning.prompt_tables import make_prompt_table
from distillery.planning.signature import make_signature
from distillery.planning.text import text_of
from distillery.run_folder import RunFolder
from distillery.store.shards import merge_targets
from distillery.student.build import build_student
from distillery.student.export import export_student
from distillery.teacher.folder import find_teacher
from distillery.teacher.loading import load_exact_teacher
from distillery.telemetry import Reporter
from distillery.training.distributed import RankInfo, detect_rank
from distillery.training.health import StopRequest, Watchdog
from distillery.training.loop import train
from distillery.training.run import Paths, PreviewPaths, prepare
from distillery.training.run import Run as TrainingRun
from distillery.training.ways.rounds import make_round_states, make_round_targets
from families.case import FamilyCase
from tiny import HEIGHT, MAX_TOKENS, WIDTH, tiny_prompts, write_training_job
from training_phases import phases

CPU = torch.device("cpu")
SETTINGS: dict[str, Any] = {
    "run": "tiny",
    "teacher": {
        "dtype": "float32",
        "height": HEIGHT,
        "width": WIDTH,
        "max_sequence_length": MAX_TOKENS,
        "negative_prompt": "the house",
    },
    "embeddings": {"batch_size": 3, "chunk_size": 4},
    "targets": {
        "steps": 4,
        "guidance_scale": 3.0,
        "num_segments": 2,
        "batch_size": 2,
        "chunk_size": 4,
        "num_shards": 2,
    },
    "student": {"steps": 2},
    "training": {
        "phases": phases(stored=8),
        "global_batch_size": 8,
        "dtype": "float32",
        "log_every_samples": 8,
        "save_every_samples": 8,
    },
    "samples": {
        "num_shards": 2,
        "batch_size": 2,
        "models": {name: {"source": name} for name in ("teacher", "student", "untrained")},
    },
}


def loaded(teacher: Teacher, device: torch.device = CPU, leave_out: tuple[str, ...] = ()) -> Any:
    """The teacher's pipeline, as the targets stage loads it."""
    return load_exact_teacher(teacher, find_teacher(teacher), device, leave_out)


def settings(folder: Path, teacher: Path, /, **changes: Mapping[str, Any]) -> dict[str, Any]:
    """A whole configuration; `changes` update sections, e.g. targets={"steps": 8}.

    Writes the prompt files and a judge's config.json to `folder`.
    """
    folder.mkdir(parents=True, exist_ok=True)
    table = tiny_prompts(9)
    table["style"] = [f"style {row}" for row in range(len(table))]
    table.to_csv(folder / "train.csv", index=False)
    table.head(5).to_csv(folder / "eval.csv", index=False)
    write_json(folder / "judge" / "config.json", {"model_type": "clip"})
    raw = copy.deepcopy(SETTINGS)
    raw["teacher"]["path"] = str(teacher)
    raw["prompts"] = {"train": str(folder / "train.csv"), "eval": str(folder / "eval.csv")}
    raw["evaluation"] = {"judge": str(folder / "judge")}
    for section, values in changes.items():
        raw[section] = raw.get(section, {}) | dict(values)
    return raw


def generating_settings(
    folder: Path, teacher: Path, /, **changes: Mapping[str, Any]
) -> dict[str, Any]:
    """A configuration without training, two images of each prompt; `changes` as in `settings`."""
    samples = {
        "images_per_prompt": 2,
        "models": {"teacher": {"source": "teacher", "steps": 4, "guidance_scale": 3.0}},
    }
    changes = {"dataset": {"pairs": "all"}} | changes
    changes["samples"] = samples | dict(changes.get("samples", {}))
    raw = settings(folder, teacher, **changes)
    del raw["prompts"]["train"]
    kept = ("run", "teacher", "embeddings", "prompts", "samples", "dataset")
    return {key: raw[key] for key in kept}


@dataclass
class Run:
    """One run's folder and configuration, and its stages."""

    folder: Path
    config: Config

    def job(self, stage: str, model: type[Section]) -> Any:
        """The frozen configuration of a stage, through its file."""
        path = self.files.config(stage)
        write_frozen(freeze(self.config, stage), path)
        write_json(self.files.config(RUNTIME), freeze(self.config, RUNTIME))
        return read_job(path, model)

    @property
    def files(self) -> RunFolder:
        """Where they are."""
        return RunFolder(self.folder)

    def reporter(self, job: str = "job") -> Reporter:
        return Reporter(self.files.telemetry, "stage", job, "cpu")

    def prompts(self, split: str) -> Path:
        return self.files.prompts(split)

    def embeddings(self, split: str) -> Path:
        return self.files.embeddings(split)

    def sign(self) -> Path:
        """What is learnt of a traced teacher."""
        job = self.job("signature", SignatureJob)
        make_signature(job, self.files.signature, CPU, self.reporter("signature"))
        return self.files.signature

    def encode(self, split: Split) -> Path:
        """Prompts and their embeddings; returns the manifest."""
        job = self.job("prompts", PromptsJob)
        make_prompt_table(job, split, self.files, self.prompts(split))
        make_embeddings(
            self.job("embeddings", EmbeddingsJob),
            self.prompts(split),
            self.embeddings(split),
            CPU,
            self.reporter(),
        )
        return self.embeddings(split)

    def targets(self, part: int = 0, num_shards: int = 1) -> Path:
        """One shard of trajectories; returns its manifest."""
        output = self.files.targets_shard(f"{part}-of-{num_shards}")
        make_targets(
            self.job("targets", TargetsJob),
            self.prompts("train"),
            self.embeddings("train"),
            (part, num_shards),
            output,
            CPU,
            self.reporter(f"targets-{part}-of-{num_shards}"),
        )
        return output

    def all_targets(self, num_shards: int = 1) -> Path:
        """All shards, merged; returns the manifest."""
        shards = [self.targets(part, num_shards) for part in range(num_shards)]
        merge_targets(shards, self.files.targets)
        return self.files.targets

    def chunks(self) -> dict[str, bytes]:
        """Every chunk of trajectories by its name."""
        paths = self.files.target_folder.glob("*/chunk-*.safetensors")
        return {path.name: path.read_bytes() for path in paths}

    def samples(
        self,
        part: int = 0,
        num_shards: int = 1,
        model: str = "teacher",
        pipeline: Path | None = None,
    ) -> Path:
        """One shard of images; returns its table."""
        output = self.files.samples_shard(model, f"{part}-of-{num_shards}")
        make_samples(
            self.job(f"samples-{model}", SamplesJob),
            model,
            Inputs(self.prompts("eval"), self.embeddings("eval"), pipeline),
            (part, num_shards),
            output,
            CPU,
            self.reporter(f"samples-{model}-{part}-of-{num_shards}"),
        )
        return output

    def all_samples(self, num_shards: int = 1) -> Path:
        """All shards of the teacher's images, merged; returns the manifest."""
        shards = [self.samples(part, num_shards) for part in range(num_shards)]
        merge_samples(shards, self.files.samples("teacher"))
        return self.files.samples("teacher")

    def build(self) -> TrainingJob:
        """Build the untrained student; returns the training's configuration."""
        job: TrainingJob = self.job("training", TrainingJob)
        build_student(job, self.files.student("initial"))
        return job

    def ready_to_train(self) -> Self:
        """Make all that a training of the train split takes: embeddings, targets, a student."""
        self.encode("train")
        self.all_targets()
        self.build()
        return self

    def train_and_export(self, previews: bool = False) -> Path:
        """Train for `SETTINGS["training"]`, export; returns the pipeline's folder."""
        files = self.files
        job = self.build()
        paths = replace(
            self.training_paths(self.folder), previews=self.preview_paths() if previews else None
        )
        assert train(self.open_training(job, paths), paths)
        pipeline = files.student("pipeline")
        export_student(self.job("export", ExportJob), files.student("trained"), pipeline)
        return pipeline

    def train_and_export_before(self, number: int) -> Path:
        """The same before a round, counted from 1; returns the pipeline's folder."""
        files, done = self.files, number - 1
        job = self.job(f"training-{done}-rounds", TrainingJob)
        trained, pipeline = (files.student(f"{part}{done}-rounds") for part in ("trained-", ""))
        paths = replace(self.training_paths(self.folder), trained=trained)
        assert train(self.open_training(job, paths), paths)
        export_student(self.job("export", ExportJob), trained, pipeline)
        return pipeline

    def training_paths(self, output: Path) -> Paths:
        """What a training takes from this run and where it writes, without previews."""
        files, written = self.files, RunFolder(output)
        return Paths(
            student=files.student("initial"),
            targets=files.targets if self.config.training.reads_trajectories else None,
            embeddings=self.embeddings("train"),
            prompts=self.prompts("train"),
            trained=written.student("trained"),
            losses=written.loss,
            checkpoints=written.checkpoints,
            rounds=files.rounds if self.config.training.round_numbers else None,
        )

    def states(self, number: int, pipeline: Path, part: int = 0, num_shards: int = 1) -> Path:
        """One shard of a round's states of the student; returns its manifest."""
        output = self.files.states_shard(str(number), f"{part}-of-{num_shards}")
        make_round_states(
            self.job("rounds", RoundsJob),
            self.prompts("train"),
            self.embeddings("train"),
            pipeline,
            number,
            (part, num_shards),
            output,
            CPU,
            self.reporter(f"round-states-{number}-{part}-of-{num_shards}"),
        )
        return output

    def visited(self, number: int, pipeline: Path, num_shards: int = 1) -> Path:
        """A round: the student's states, and the teacher's answers; returns the manifest."""
        shards = []
        for part in range(num_shards):
            shards.append(self.files.visited_shard(str(number), f"{part}-of-{num_shards}"))
            make_round_targets(
                self.job("rounds", RoundsJob),
                self.prompts("train"),
                self.embeddings("train"),
                self.states(number, pipeline, part, num_shards),
                number,
                (part, num_shards),
                shards[-1],
                CPU,
                self.reporter(f"round-targets-{number}-{part}-of-{num_shards}"),
            )
        merge_targets(shards, self.files.visited(number))
        return self.files.visited(number)

    def open_training(self, job: TrainingJob, paths: Paths) -> TrainingRun:
        """What a process that trains alone works with."""
        reporter, watchdog = self.reporter("training"), Watchdog(0, 0)
        return prepare(job, paths, detect_rank({}), CPU, reporter, StopRequest(), watchdog)

    def opened_with(
        self, output: Path, training: Mapping[str, Any], **changes: Any
    ) -> tuple[TrainingRun, Paths]:
        """A training with another section, which writes to `output`; `changes` are other paths."""
        job = self.job("training", TrainingJob)
        job = job.model_copy(update={"training": Training(**training)})
        paths = replace(self.training_paths(output), **changes)
        return self.open_training(job, paths), paths

    def learn(
        self, output: Path, training: Mapping[str, Any], **changes: Any
    ) -> tuple[dict[str, torch.Tensor], pd.DataFrame]:
        """The weights and the losses of a training as `opened_with` opens it."""
        opened, paths = self.opened_with(output, training, **changes)
        assert train(opened, paths)
        weights = load_file(paths.trained / "diffusion_pytorch_model.safetensors")
        return weights, pd.read_parquet(paths.losses)

    def export_untrained(self) -> Path:
        """Export the student as it was built; returns the pipeline's folder."""
        initial, untrained = map(self.files.student, ("initial", "untrained"))
        export_student(self.job("export", ExportJob), initial, untrained)
        return untrained

    def preview_paths(self) -> PreviewPaths:
        """What previews of the eval prompts need."""
        self.job("previews", PreviewsJob)
        return PreviewPaths(
            previews=self.files.previews,
            previews_config=self.files.config("previews"),
            eval_prompts=self.prompts("eval"),
            eval_embeddings=self.embeddings("eval"),
        )

    def images(self) -> dict[str, bytes]:
        """Every image and its latents, by path."""
        folder = self.files.sample_folder
        paths = [*folder.glob("*/*/*.png"), *folder.glob("*/*/*.safetensors")]
        return {path.relative_to(folder).as_posix(): path.read_bytes() for path in paths}


def make_run(folder: Path, teacher: Path, /, **changes: Mapping[str, Any]) -> Run:
    """A run that has nothing yet; `changes` as in `settings`."""
    config = parse_config(settings(folder, teacher, **changes), "tiny")
    assert isinstance(config, Config)
    return Run(folder / "results", config)


def family_run(case: FamilyCase, folder: Path, teacher: Path, /, **changes: Any) -> Run:
    """A run of a family's tiny teacher, which lies in `teacher`; `changes` as in `settings`."""
    sections: dict[str, dict[str, Any]] = {
        "teacher": {
            "num_frames": case.num_frames,
            "height": case.height,
            "width": case.width,
            "max_sequence_length": case.max_tokens,
            "negative_prompt": None,
            **case.teacher,
        },
        "targets": {
            "steps": case.steps,
            "guidance_scale": case.guidance_scale,
            "guidance_scale_2": case.guidance_scale_2,
        },
        "student": dict(case.student),
    }
    merged = {name: values | changes.pop(name, {}) for name, values in sections.items()}
    return make_run(folder, teacher, **merged, **changes)


def summary(plan: Mapping[str, Any]) -> str:
    """A plan's page as text, so wide that no line is broken."""
    return text_of(page_of(plan), width=1000)


def planned(raw: dict[str, Any], folder: Path) -> dict[str, Any]:
    """The plan of a run's settings."""
    output = folder / "results" / "plan.json"
    make_plan(STAGES, parse_config(raw, "tiny"), output)
    return read_json(output)


def fresh(finished: Run, folder: Path) -> Run:
    """A run that has its embeddings, and no targets or samples."""
    for name in ("prompts", "embeddings"):
        shutil.copytree(finished.folder / name, folder / "results" / name)
    return Run(folder / "results", finished.config)


def times(run: Run) -> dict[Path, int]:
    """When every chunk, image and latents file was written."""
    kinds = ("targets/*/*.safetensors", "samples/*/*/*.png", "samples/*/*/*.safetensors")
    paths = [path for kind in kinds for path in run.folder.glob(kind)]
    return {path.relative_to(run.folder): path.stat().st_mtime_ns for path in paths}


def rewritten(before: Mapping[Path, int], after: Mapping[Path, int]) -> set[str]:
    """The names of files that are new or were written again."""
    return {path.name for path, time in after.items() if before.get(path) != time}


def open_run(
    data: Path,
    output: Path,
    ranks: RankInfo | None = None,
    device: torch.device = CPU,
    **settings: Any,
) -> TrainingRun:
    """What a process of a training works with; `settings` are keys of the section `training`."""
    ranks = ranks or RankInfo()
    write_training_job(output, **settings)
    job = read_job(output / "config/training.json", TrainingJob)
    paths = Paths(
        student=data / "student/initial",
        targets=data / "targets/manifest.json",
        embeddings=data / "embeddings/train/manifest.json",
        prompts=data / "prompts/train.parquet",
        trained=output / "trained",
        losses=output / "loss.parquet",
        checkpoints=output / "checkpoints",
    )
    reporter = Reporter(output / "telemetry", "training", "training", "cpu")
    return prepare(job, paths, ranks, device, reporter, StopRequest(), Watchdog(ranks.rank, 0))
