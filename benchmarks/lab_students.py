"""What the lab trains: its file, and the configuration of each student."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
import yaml
from pydantic import Field

from distillery.config.jobs import complete, freeze
from distillery.config.parsing import Model, parse
from distillery.config.run import Config, parse_config
from distillery.config.section import Count, Section, Small
from distillery.telemetry import Reporter

Json = dict[str, Any]
EVERY = 20
"""Rows of a training's log."""


class Store(Section):
    """Stored trajectories: the first so many prompts, with so many noises each."""

    prompts: Count
    noises: Small


class HeldOut(Section):
    """What all are drawn with: the first so many of the other prompts, so many images of each."""

    prompts: Count
    images: Small


class Student(Section):
    """One row of the lab's file."""

    steps: Small
    phases: tuple[Json, ...]
    student: Json = Field(default_factory=dict)
    training: Json = Field(default_factory=dict)
    after: str | None = None
    against: str | None = None
    draw: tuple[Small, ...] | None = None


class Plan(Section):
    """The lab's file."""

    store: Store
    held_out: HeldOut
    seeds: Small
    teacher_steps: tuple[Small, ...]
    training: Json
    students: dict[str, Student]


@dataclass(frozen=True)
class Cell:
    """A student with one seed, or the teacher.

    Attributes:
        name: of the student; `guided` or `unguided` for the teacher.
        seed: of the training, from 1; 0 for the teacher.
        steps: of the teacher; a student's are its own.
    """

    name: str
    seed: int = 0
    steps: int = 0

    @property
    def is_teacher(self) -> bool:
        """Whether nothing is trained."""
        return not self.seed

    @property
    def key(self) -> str:
        """Of its files."""
        return f"{self.name}-seed-{self.seed}" if self.seed else f"teacher-{self.name}-{self.steps}"


@dataclass(frozen=True)
class Lab:
    """What all cells share; it goes to the workers.

    Attributes:
        folder: of the store, students and results.
        plan: what is trained.
        raw: the run's configuration as loaded.
        shrink: all samples are divided by it, to try whether all works.
        device: cuda or cpu.
    """

    folder: Path
    plan: Plan
    raw: Json
    shrink: int
    device: str

    @classmethod
    def read(
        cls,
        file: Path,
        config: Path,
        prompts: Path | None,
        folder: Path,
        shrink: int,
        device: str,
    ) -> "Lab":
        """The lab of a file.

        Args:
            config: of the run whose teacher, targets and images these are.
            prompts: folder of demo-train.csv and demo-eval.csv; None takes the configuration's.

        Raises:
            ValueError: the file says something else.
        """
        plan = parse(Plan, yaml.safe_load(file.read_text(encoding="utf-8")), str(file))
        for name, student in plan.students.items():
            for other in (student.after, student.against):
                if other is not None and other not in plan.students:
                    raise ValueError(f"{file}: {name} names {other}, which is no student there")
        raw = yaml.safe_load(config.read_text(encoding="utf-8"))
        if prompts:
            tables = {split: str(prompts / f"demo-{split}.csv") for split in ("train", "eval")}
            raw["prompts"] = raw["prompts"] | tables
        return cls(folder, plan, raw, shrink, device)

    @cached_property
    def teacher_cells(self) -> list[Cell]:
        """The teacher at fewer steps; the first is what all are compared with."""
        full = self.config().targets.steps
        steps = [full, *(it for it in sorted(self.plan.teacher_steps, reverse=True) if it != full)]
        return [Cell(name, 0, number) for number in steps for name in ("guided", "unguided")]

    def cells(self, names: Sequence[str]) -> list[Cell]:
        """All trainings of these students."""
        return [Cell(name, seed) for seed in range(1, self.plan.seeds + 1) for name in names]

    def student_of(self, cell: Cell) -> Student:
        """What the file says of it."""
        return self.plan.students[cell.name]

    def drawn_at(self, cell: Cell) -> tuple[int, ...]:
        """Numbers of steps that its images are drawn with."""
        if cell.is_teacher:
            return (cell.steps,)
        student = self.student_of(cell)
        return student.draw or (student.steps,)

    def config(self, cell: Cell | None = None) -> Config:
        """The configuration of a cell; without one, of the store."""
        on_gpu = self.device == "cuda"
        raw = {key: value for key, value in self.raw.items() if key != "previews"}
        raw["targets"] = raw["targets"] | {
            "samples_per_prompt": self.plan.store.noises,
            "num_segments": max(student.steps for student in self.plan.students.values()),
            "batch_size": 1024 if on_gpu else 16,
            "chunk_size": 1024 if on_gpu else 64,
        }
        raw["samples"] = raw["samples"] | {"batch_size": 128 if on_gpu else 16}
        if cell is not None and not cell.is_teacher:
            raw |= self._learning(cell)
        config = parse_config(raw, f"the lab's {cell.key if cell else 'store'}")
        assert isinstance(config, Config)
        return config

    def _learning(self, cell: Cell) -> Json:
        """The sections `student` and `training` of a student."""
        student = self.student_of(cell)
        settings = self.plan.training | student.training
        size = settings["global_batch_size"]
        phases = [
            phase | {"samples": max(phase["samples"] // self.shrink // size, 1) * size}
            for phase in student.phases
        ]
        total = sum(phase["samples"] * phase.get("count", 1) for phase in phases)
        defaults = {
            "micro_batch_size": size,
            "warmup_samples": total // EVERY,
            "ema_half_life_samples": total // 10,
            "log_every_samples": size * max(1, total // size // EVERY),
            "save_every_samples": total,
            "keep_checkpoints": 1,
            "compile": "always" if self.device == "cuda" else "never",
        }
        shape = {key: self._filled(value, cell) for key, value in student.student.items()}
        return {
            "student": shape | {"steps": student.steps},
            "training": defaults | settings | {"phases": phases, "seed": cell.seed},
        }

    def _filled(self, value: Any, cell: Cell) -> Any:
        """With the folder of the student before it in the place of its name."""
        before = self.student_of(cell).after
        if before is None or value != f"{{{before}}}":
            return value
        return str(self.student(Cell(before, cell.seed)) / "trained")

    def job(self, stage: str, model: type[Model], cell: Cell | None = None) -> Model:
        """A stage's frozen configuration."""
        config = self.config(cell)
        raw = complete(freeze(config, stage), freeze(config, "runtime"))
        return parse(model, raw, f"the lab's {stage}")

    def reporter(self, name: str) -> Reporter:
        """Events go to the folder, lines to the log of `logging`."""
        return Reporter(self.folder / "telemetry", "lab", name, self.device)

    def prompts(self, split: str) -> Path:
        """The table of a split's prompts."""
        return self.folder / split / "prompts.parquet"

    def embeddings(self, split: str) -> Path:
        """Their manifest."""
        return self.folder / split / "embeddings" / "manifest.json"

    @property
    def targets(self) -> Path:
        """Manifest of the stored trajectories."""
        return self.folder / "train" / "targets" / "manifest.json"

    def student(self, cell: Cell) -> Path:
        """Where a cell's student lies."""
        return self.folder / "students" / cell.key

    @property
    def place(self) -> torch.device:
        """The worker's GPU, or the CPU."""
        on_gpu = self.device == "cuda"
        return torch.device("cuda", torch.cuda.current_device()) if on_gpu else torch.device("cpu")
