"""What all cells of the table of objectives share: which there are, and their configurations."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from distillery.config.jobs import complete, freeze
from distillery.config.parsing import Model, parse
from distillery.config.run import Config, parse_config
from distillery.files import read_json, write_json
from distillery.teacher.folder import find_teacher
from distillery.telemetry import Reporter

OBJECTIVES: Mapping[str, str] = {
    "segment": "segment",
    "direct": "direct",
    "reflow": "reflow",
    "segment+rollout": "segment",
    "segment+online": "segment",
    "segment+matching": "segment",
    "segment+adversarial": "segment",
    "segment+rounds": "segment",
}
"""Name in the table to `training.objective`."""
SHAPES: Mapping[str, float] = {"same": 1.0, "half": 0.5, "quarter": 0.25, "lora": 1.0}
"""Name in the table to the share of the teacher's blocks that are kept, rounded up."""
LORA_RANK = 16
"""Of the shape `lora`, whose additions alone are trained."""
Json = dict[str, Any]


@dataclass(frozen=True)
class Cell:
    """One row of the table: a student, or the teacher itself, at a number of steps.

    Attributes:
        objective: a key of `OBJECTIVES`; `guided` or `unguided` for the teacher.
        shape: a key of `SHAPES`, or `teacher`.
        steps: of the sampler.
        store: name of the `Store` that it learns from; empty for the teacher.
    """

    objective: str
    shape: str
    steps: int
    store: str = ""

    @property
    def name(self) -> str:
        """Of its file and its folder."""
        return f"{self.shape}-{self.objective}-{self.steps}{f'-{self.store}' * bool(self.store)}"

    @property
    def is_teacher(self) -> bool:
        """Whether nothing is trained."""
        return self.shape == "teacher"


@dataclass(frozen=True)
class Store:
    """Stored trajectories: the first so many prompts, with so many noises each."""

    num_prompts: int
    per_prompt: int

    @classmethod
    def named(cls, name: str) -> "Store":
        """The one that is called PROMPTSxNOISES."""
        prompts, _, noises = name.partition("x")
        if not (prompts.isdecimal() and noises.isdecimal() and int(prompts) and int(noises)):
            raise ValueError(f"{name!r} is no store: write PROMPTSxNOISES, e.g. 1024x2")
        return cls(int(prompts), int(noises))

    @property
    def name(self) -> str:
        """Of its folder."""
        return f"{self.num_prompts}x{self.per_prompt}"


@dataclass(frozen=True)
class Bench:
    """What all cells share; it goes to the workers.

    Attributes:
        folder: of stores, students and results.
        raw: the run's configuration as loaded, with what all cells' targets have.
        rollout_share: of num_samples, for the finishing phase, whichever the objective has.
        rounds: of `segment+rounds`.
        rounds_share: of num_samples, for all of them.
        matching_weight: of `segment+matching`'s distribution matching.
        adversarial_weight: of `segment+adversarial`'s second loss.
        images_per_prompt: noises of each held-out prompt.
        num_prompts: held-out ones.
        device: cuda or cpu.
    """

    folder: Path
    raw: Json
    rollout_share: float
    rounds: int
    rounds_share: float
    matching_weight: float
    adversarial_weight: float
    images_per_prompt: int
    num_prompts: int
    device: str

    def config(self, cell: Cell | None = None) -> Config:
        """The configuration of a cell's student."""
        raw = self.raw
        if cell is not None and cell.store:
            per_prompt = Store.named(cell.store).per_prompt
            raw = raw | {"targets": raw["targets"] | {"samples_per_prompt": per_prompt}}
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
        shape: Json = {"init": "teacher"}
        if cell.shape == "lora":
            shape = {"init": "lora", "lora": {"rank": LORA_RANK}}
        elif kept < num_blocks:
            shape = {"init": "layers", "num_layers": kept}
        return shape | {"steps": cell.steps}

    def _training(self, cell: Cell) -> Json:
        training = dict(self.raw["training"])
        (plain,) = training["phases"]
        finish = self._whole_batches(plain["samples"] * self.rollout_share)
        of_round = self._whole_batches(plain["samples"] * self.rounds_share / self.rounds)
        online = {"learn": "online", "samples": finish}
        matching = {"weight": self.matching_weight}
        finishes: Mapping[str, Json] = {
            "segment+rollout": {"learn": "rollouts", "samples": finish},
            "segment+online": online,
            "segment+matching": online | {"distribution_matching": matching},
            "segment+adversarial": {
                "learn": "adversarial",
                "samples": finish,
                "weight": self.adversarial_weight,
            },
            "segment+rounds": {"learn": "rounds", "count": self.rounds, "samples": of_round},
        }
        last = finishes.get(cell.objective)
        phases = [plain]
        if last:
            rest = plain["samples"] - last["samples"] * last.get("count", 1)
            phases = [plain | {"samples": rest}] * (rest > 0) + [last]
        return training | {"objective": OBJECTIVES[cell.objective], "phases": phases}

    def _whole_batches(self, num_samples: float) -> int:
        """So many samples in whole batches, one at least."""
        size = int(self.raw["training"]["global_batch_size"])
        return max(int(num_samples) // size * size, size)

    def job(self, stage: str, model: type[Model], cell: Cell | None = None) -> Model:
        """A stage's frozen configuration."""
        config = self.config(cell)
        raw = complete(freeze(config, stage), freeze(config, "runtime"))
        return parse(model, raw, f"the benchmark's {stage}")

    def reporter(self, name: str) -> Reporter:
        """Events go to the folder, lines to the log of `logging`."""
        return Reporter(self.folder / "telemetry", "benchmark", name, self.device)

    def prompts(self, store: str = "") -> Path:
        """The table of a store's prompts; without one, of those held out."""
        return self._of(store) / "prompts.parquet"

    def embeddings(self, store: str = "") -> Path:
        """Their manifest."""
        return self._of(store) / "embeddings" / "manifest.json"

    def targets(self, store: str) -> Path:
        """Manifest of the stored trajectories."""
        return self._of(store) / "targets" / "manifest.json"

    def _of(self, store: str) -> Path:
        return self.folder / "stores" / (store or "held-out")


def student_folder(bench: Bench, cell: Cell) -> Path:
    """Where a cell's student lies."""
    return bench.folder / "students" / cell.name


def device_of(bench: Bench) -> torch.device:
    """The one GPU that all workers share, or the CPU."""
    return torch.device("cuda", 0) if bench.device == "cuda" else torch.device("cpu")


def cached(path: Path, settings: Json) -> Json | None:
    """A result that is there and was made with these settings."""
    if not path.is_file():
        return None
    found: Json = read_json(path)
    return found["row"] if found["settings"] == settings else None


def keep(path: Path, settings: Json, row: Json) -> None:
    """Write a result with what it depends on."""
    write_json(path, {"settings": settings, "row": row})
