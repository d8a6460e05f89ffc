"""What the plan says of the teacher's solver, and the samples on another grid than the stock's."""

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image

from distillery.config.jobs import freeze
from distillery.config.run import parse_config
from distillery.files import read_json, write_json
from distillery.noise import SampleId, noise_seed
from distillery.planning.solver import on_walks
from distillery.teacher.folder import PipelineFolder
from families.case import FamilyCase
from families.flux_schnell import CASE as SCHNELL
from families.qwen_image import CASE as QWEN
from families.sd3 import CASE as SD3
from families.sdxl import CASE as SDXL
from runs import Run, generating_settings, loaded, planned, summary

TEACHER = {"source": "teacher", "steps": 4, "guidance_scale": 3.0}
EVEN = TEACHER | {"grid": "even"}
TRAILING = {"timestep_spacing": "trailing"}


@pytest.fixture(scope="module")
def teachers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for the families' tiny teachers."""
    return tmp_path_factory.mktemp("teachers")


class Planning:
    """Plans of runs that only generate, in one folder."""

    def __init__(self, folder: Path, teachers: Path) -> None:
        self.folder, self.teachers = folder, teachers

    def raw(self, case: FamilyCase, models: Mapping[str, Any], **teacher: Any) -> dict[str, Any]:
        """A run of a family's tiny teacher, which is made once."""
        path = self.teachers / case.name
        if not path.exists():
            case.make(path)
        size = {"height": case.height, "width": case.width, "max_sequence_length": case.max_tokens}
        section = size | {"negative_prompt": None} | teacher
        samples = {"models": models, "num_shards": 1}
        return generating_settings(self.folder, path, teacher=section, samples=samples)

    def told(self, case: FamilyCase, models: Mapping[str, Any], **teacher: Any) -> str:
        """The plan's page, on one line."""
        plan = planned(self.raw(case, models, **teacher), self.folder)
        return " ".join(summary(plan).split())


@pytest.fixture
def planning(tmp_path: Path, teachers: Path) -> Planning:
    return Planning(tmp_path, teachers)


def notes(raw: Mapping[str, Any]) -> str:
    """What the plan says of the steps of a tiny SDXL."""
    folder = PipelineFolder(Path(raw["teacher"]["path"]))
    return " ".join(map(str, on_walks(parse_config(raw, "t"), folder, (4, 8, 8))))


def test_the_plan_tells_the_solver_and_an_idle_step(planning: Planning) -> None:
    text = planning.told(SD3, {"teacher": TEACHER})
    assert "FlowMatchEulerDiscreteScheduler, the folder's own; network predicts flow" in text
    assert "shift 3" in text
    assert "4 steps (teacher): timesteps 1000" in text, text
    assert "0.008929, 0" in text
    assert "guidance off 1.0, without the second network call" in text
    assert "step 4 of 4 covers 0.9% of the noise's range" in text
    assert "{source: teacher, steps: 4, grid: even}" in text
    beside = planning.told(SD3, {"teacher": TEACHER, "even": EVEN})
    assert "4 even steps (even): timesteps 1000, 900, 750, 500" in beside
    assert "covers" not in beside
    carried = {"class": "UniPCMultistepScheduler", "use_flow_sigmas": True}
    other = carried | {"prediction_type": "flow_prediction"}
    changed = planning.told(SD3, {"teacher": TEACHER}, scheduler=other)
    assert "flow_shift 3.0 taken over from the folder's" in changed


def test_a_few_steps_that_begin_low_are_a_doubt(planning: Planning) -> None:
    raw = planning.raw(SDXL, {"teacher": TEACHER})
    assert "begins at timestep 751 of 1000, not at pure noise" in notes(raw)
    assert "covers" not in notes(planning.raw(SDXL, {"teacher": TEACHER}, scheduler=TRAILING))


def test_a_walk_that_ends_in_noise_is_a_doubt(planning: Planning) -> None:
    solver = {"class": "UniPCMultistepScheduler", "use_flow_sigmas": True, "flow_shift": 3.0,
              "prediction_type": "flow_prediction"}  # fmt: skip
    for ends, is_told in (("sigma_min", True), ("zero", False)):
        scheduler = solver | {"final_sigmas_type": ends}
        told = planning.told(SD3, {"teacher": TEACHER | {"steps": 12}}, scheduler=scheduler)
        assert ("of the noise, not at a clean image" in told) == is_told, told


@pytest.mark.parametrize(
    ("steps", "first"), [(150, 895), (400, 799), (600, 600), (20, 0), (25, 0), (28, 0), (50, 0)]
)
def test_so_are_many_steps_that_begin_low(planning: Planning, steps: int, first: int) -> None:
    """Leading spacing rounds its stride down; what is usual begins at 946 or above."""
    text = notes(planning.raw(SDXL, {"teacher": TEACHER | {"steps": steps}}))
    assert (f"the first begins at timestep {first} of 1000" in text) == bool(first)
    assert ("not at pure noise" in text) == bool(first)
    assert (f"steps: {steps}, grid: even" in text) == bool(first)


def test_steps_that_are_told_as_log_sigmas_are_not(planning: Planning) -> None:
    raw = planning.raw(SDXL, {"teacher": TEACHER | {"steps": 20}})
    folder = Path(shutil.copytree(raw["teacher"]["path"], planning.folder / "continuous"))
    path = folder / "scheduler" / "scheduler_config.json"
    log_sigmas = {"timestep_type": "continuous", "prediction_type": "v_prediction"}
    write_json(path, read_json(path) | log_sigmas)
    raw["teacher"]["path"] = str(folder)
    assert "not at pure noise" not in notes(raw)


@pytest.mark.parametrize(
    ("case", "used"), [(SCHNELL, "''"), (QWEN, "' '")], ids=["flux-schnell", "qwen-image"]
)
def test_guidance_that_the_stock_call_would_not_give_is_told(
    planning: Planning, case: FamilyCase, used: str
) -> None:
    doubt = "few-step student, to be used with 1 to 4 steps and guidance 1, which is off"
    text = planning.told(case, {"teacher": TEACHER})
    assert f"{used} for all, as none is set: the teacher is guided by it, where the stock" in text
    assert text.count(doubt) == (case is SCHNELL)
    unguided = planning.told(case, {"teacher": TEACHER | {"guidance_scale": 1.0}})
    assert "not used: no network is guided" in unguided
    assert doubt not in unguided


def test_a_random_scheduler_is_refused_before_anything_is_generated(planning: Planning) -> None:
    random = {"class": "EulerAncestralDiscreteScheduler"}
    with pytest.raises(ValueError, match=r"teacher\.scheduler.*adds noise while it samples"):
        planning.told(SDXL, {"teacher": TEACHER}, scheduler=random)
    raw = planning.raw(SDXL, {"teacher": TEACHER}, scheduler=random)
    run = Run(planning.folder / "run", parse_config(raw, "t"))
    run.encode("eval")
    with pytest.raises(ValueError, match="adds noise while it samples"):
        run.samples()


def test_even_steps_that_the_stock_call_takes_are_refused(planning: Planning) -> None:
    with pytest.raises(ValueError, match=r"models\.even\.grid is 'even', .*are even already"):
        planning.told(SCHNELL, {"even": EVEN})


def test_a_grid_is_written_only_where_it_is_set(planning: Planning) -> None:
    models = {"teacher": TEACHER, "even": EVEN}
    config = parse_config(planning.raw(SD3, models), "t")
    assert "grid" not in freeze(config, "samples-teacher")["sampling"]
    assert freeze(config, "samples-even")["sampling"]["grid"] == "even"


@pytest.mark.parametrize("case", [SD3, SDXL], ids=["flow", "diffusion"])
def test_even_samples_are_those_of_a_stock_call_on_that_grid(
    planning: Planning, case: FamilyCase
) -> None:
    raw = planning.raw(case, {"even": EVEN})
    raw["samples"] |= {"num_prompts": 1}
    run = Run(planning.folder / "run", parse_config(raw, "t"))
    run.encode("eval")
    run.samples(model="even")
    table = pd.read_parquet(run.prompts("eval"))
    row = table.iloc[0]
    pipeline, grid = loaded(run.config.teacher), dict[str, Any]()
    if case.family == "sdxl":
        scheduler = pipeline.scheduler
        pipeline.scheduler = type(scheduler).from_config(scheduler.config, **TRAILING)
    else:
        grid = {"sigmas": list(np.linspace(1, 1 / 4, 4))}
    length = {} if case.family == "sdxl" else {"max_sequence_length": case.max_tokens}
    seed = noise_seed(run.config.seed, SampleId(row["prompt_id"], 0))
    image = pipeline(
        row["prompt"],
        generator=torch.Generator().manual_seed(seed),
        height=case.height,
        width=case.width,
        num_inference_steps=4,
        guidance_scale=3.0,
        **length,
        **grid,
    ).images[0]
    (made,) = run.folder.rglob(f"{row['prompt_id']}/0.png")
    assert np.abs(np.asarray(image).astype(int) - np.asarray(Image.open(made))).max() <= 1
