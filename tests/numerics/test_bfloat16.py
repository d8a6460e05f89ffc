"""Every family in the default types: bfloat16 networks beside a VAE in float32.

One run per family: targets, a training with previews, the export and its samples. The code that a
user is given, in the model card and in the report, is then run where nothing of ours is known.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from diffusers import DiffusionPipeline
from diffusers.models.embeddings import Timesteps
from PIL import Image, ImageSequence
from safetensors.torch import load_file
from torch.nn.modules.module import register_module_forward_pre_hook

from distillery.families import family_named, grid_of
from distillery.families.image_tokens import network_timestep
from distillery.files import read_json
from distillery.images import read_png
from distillery.measures.manifests import ModelSamples, read_samples
from distillery.model_folder import METADATA
from distillery.report.findings import loading_code
from distillery.run_folder import RunFolder
from distillery.store.trajectories import TrajectoryStore
from distillery.student.usage import CAST
from distillery.teacher.folder import find_teacher
from distillery.teacher.loading import load_scheduler
from families import CASES
from families.case import FamilyCase
from families.made import made_run, made_teacher
from runs import Run, family_run
from stranger import Stranger, code_in, filled_in

NUM_PROMPTS = 3
"""Of the 9 that the runs in float32 have: a CPU is slow in bfloat16."""
CLOSE = 0.05
"""Of trajectories in bfloat16 to those in float32: the tiny teachers' end 0.3 % to 2.2 % apart."""
ALIKE = 3
"""Of 255: a LoRA beside the weights rounds as one added to them does not."""


@dataclass
class Subject:
    """A family's runs in bfloat16 and in float32.

    Attributes:
        told: which timesteps networks were told in the stages of the first.
        samples: its table of the student's images. Prompts and images are made one at a time,
            as in a user's call: the last bits of a matrix product depend on its size.
    """

    case: FamilyCase
    run: Run
    exact: Run
    told: dict[str, set[float]] = field(default_factory=dict)
    samples: Path = Path()


def run_of(case: FamilyCase, folder: Path, teacher: Path, **student: Any) -> Run:
    """A run in bfloat16 of few prompts, of as many student's steps as the teacher's."""
    run = family_run(
        case,
        folder,
        teacher,
        teacher={"dtype": "bfloat16"},
        embeddings={"batch_size": 1, "chunk_size": 99},
        targets={
            "num_segments": case.steps,
            "batch_size": NUM_PROMPTS,
            "chunk_size": NUM_PROMPTS,
        },
        training={"dtype": "bfloat16"},
        previews={"every_samples": 8, "num_prompts": 2},
        student={"steps": case.steps, **student},
        samples={"num_prompts": 1, "batch_size": 1},
    )
    table = pd.read_csv(run.config.prompts.train)
    table.head(NUM_PROMPTS).to_csv(run.config.prompts.train, index=False)
    return run


@pytest.fixture(scope="module", params=CASES, ids=lambda case: case.name)
def subject(request: Any, tmp_path_factory: pytest.TempPathFactory) -> Subject:
    case: FamilyCase = request.param
    run = run_of(case, tmp_path_factory.mktemp(case.name), made_teacher(tmp_path_factory, case))
    made = Subject(case, run, made_run(tmp_path_factory, case))
    for split in ("train", "eval"):
        run.encode(split)
    with timesteps_told() as made.told["targets"]:
        run.all_targets()
    with timesteps_told() as made.told["training and previews"]:
        made.run.train_and_export(previews=True)
    with timesteps_told() as made.told["samples"]:
        made.samples = student_samples(made.run)
    return made


def student_samples(run: Run) -> Path:
    """Draw with the exported student; returns their table."""
    return run.samples(model="student", pipeline=run.folder / "student/pipeline")


@pytest.fixture(scope="module")
def stranger() -> Iterator[Stranger]:
    with Stranger() as started:
        yield started


@contextmanager
def timesteps_told() -> Iterator[set[float]]:
    """What arrives at the sinusoidal embeddings of any network meanwhile."""
    told: set[float] = set()

    def note(module: torch.nn.Module, args: tuple[Any, ...]) -> None:
        if isinstance(module, Timesteps):
            told.update(args[0].float().flatten().tolist())

    hook = register_module_forward_pre_hook(note)
    try:
        yield told
    finally:
        hook.remove()


def test_targets_are_finite_and_near_those_of_float32(subject: Subject) -> None:
    stores = [
        TrajectoryStore(run.folder / "targets" / "manifest.json")
        for run in (subject.run, subject.exact)
    ]
    for knot in range(1, subject.case.steps + 1):
        low, exact = (
            torch.stack([store.states(row, 0, knot)[1] for row in range(NUM_PROMPTS)])
            for store in stores
        )
        assert low.isfinite().all()
        distance = float((low - exact).norm() / exact.norm())
        assert 0 < distance < CLOSE, f"knot {knot}: {distance}"


def test_previews_are_drawn_beside_a_vae_of_another_type(subject: Subject) -> None:
    drawn = (subject.run.folder / "student/previews/samples-000000000008").glob("p*.png")
    assert len(list(drawn)) == 2


def test_networks_are_told_the_timesteps_of_a_stock_call_in_bfloat16(subject: Subject) -> None:
    """Stock pipelines of FLUX and Qwen-Image round a timestep before they divide it."""
    folder, settings = subject.run.folder / "student/pipeline", subject.run.config.teacher
    call = read_json(folder / METADATA)["call"]
    found = find_teacher(settings)
    teacher = stock(found.path, call)
    teacher.scheduler = load_scheduler(found, settings)
    with timesteps_told() as stock_teacher:
        teacher("a red dog", **latents_only(call) | subject.case.guidance)
    student = stock(folder, call)
    with timesteps_told() as stock_student:
        student("a red dog", **latents_only(call))
    assert subject.told == {
        "targets": stock_teacher,
        "training and previews": stock_student,
        "samples": stock_student,
    }
    schedule = read_json(folder / METADATA)["recipe"]["schedule"]
    shape = TrajectoryStore(subject.run.files.targets).recipe.latent_shape
    grid = grid_of(family_named(subject.case.family), student.scheduler, subject.case.steps, shape)
    assert grid.timesteps == tuple(schedule["timesteps"])


def test_the_given_code_draws_the_samples_image(
    subject: Subject, stranger: Stranger, tmp_path: Path
) -> None:
    """Model card and report, run where Distillery is not, with the seed of the manifest."""
    samples = read_samples("student", subject.samples)
    (card,) = code_in(subject.run.folder / "student/pipeline/README.md")
    report = loading_code(RunFolder(subject.run.folder), samples)
    assert report is not None
    card = filled_in(card, **first_of(samples, subject.run))
    for code in (card, report):
        stranger.run(code, tmp_path)
        assert abs(difference(tmp_path, samples)).max() == 0
        assert (CAST[-1] in code) == (CAST[-1] in card)
    if CAST[-1] in card:
        with pytest.raises(AssertionError, match="should be the same"):
            stranger.run(card.replace(CAST[-1], ""), tmp_path)


@pytest.mark.parametrize("name", ["sdxl", "wan-two-experts"])
def test_the_additions_draw_it_too(
    name: str, stranger: Stranger, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """The card's second part: the teacher's pipeline, and the student's LoRA beside its weights."""
    (case,) = (case for case in CASES if case.name == name)
    teacher = made_teacher(tmp_path_factory, case)
    run = run_of(case, tmp_path, teacher, init="lora", lora={"rank": 3, "alpha": 5.0})
    for split in ("train", "eval"):
        run.encode(split)
    run.all_targets()
    run.train_and_export()
    samples = read_samples("student", student_samples(run))
    for code in code_in(run.folder / "student/pipeline/README.md"):
        stranger.run(filled_in(code, **first_of(samples, run)), tmp_path)
        assert abs(difference(tmp_path, samples)).max() <= ALIKE


def test_the_guided_teachers_image_is_the_stock_calls(subject: Subject) -> None:
    """Bit for bit, its states rounded as a stock call rounds them."""
    run = subject.run
    table = pd.read_parquet(run.samples())
    call = read_json(run.folder / "student/pipeline" / METADATA)["call"]
    found = find_teacher(run.config.teacher)
    teacher = stock(found.path, {"absent": dict.fromkeys(found.components_left_out)})
    teacher.scheduler = load_scheduler(found, run.config.teacher)
    latents, *_ = teacher(
        table["prompt"][0],
        generator=torch.Generator().manual_seed(int(table["noise_seed"][0])),
        **latents_only(call) | subject.case.guidance | {"num_inference_steps": subject.case.steps},
        return_dict=False,
    )
    path = run.folder / "samples/teacher" / table["prompt_id"][0] / "0.safetensors"
    ours = load_file(path)["latents"]
    assert ours.equal(latents[0].float())


def first_of(samples: ModelSamples, run: Run) -> dict[str, Any]:
    """What a user fills in for the first sample."""
    row = samples.table.iloc[0]
    folder = run.folder / "student/pipeline"
    return {"folder": folder, "prompt": row["prompt"], "seed": row["noise_seed"]}


def difference(folder: Path, samples: ModelSamples) -> np.ndarray:
    """Of an image or clip drawn by a script to the first sample; the file is deleted."""
    (path,) = [*folder.glob("image.png"), *folder.glob("clip.webp")]
    with Image.open(path) as opened:
        theirs = [np.asarray(it.convert("RGB"), int) for it in ImageSequence.Iterator(opened)]
    path.unlink()
    with Image.open(samples.image(0).path) as opened:
        ours = read_png(opened).astype(int)
    assert ours.std() > 1
    return ours - (np.stack(theirs) if len(theirs) > 1 else theirs[0])


def test_a_timestep_is_rounded_as_the_network_computes() -> None:
    """In its own type, or in that of autocast while it is on."""
    timestep = torch.tensor([997.3, 37.25])
    exact, rounded = timestep / 1000, timestep.bfloat16() / 1000
    network = torch.nn.Linear(1, 1)
    assert network_timestep(network, timestep).equal(exact)
    with torch.autocast("cpu", torch.bfloat16):
        assert network_timestep(network, timestep).equal(rounded)
    assert network_timestep(network.bfloat16(), timestep).equal(rounded)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_the_schedules_timestep_is_found_in_what_a_network_is_told(dtype: torch.dtype) -> None:
    """To its last bit: a whole number may lie in the middle between two numbers of `dtype`."""
    generator = torch.Generator().manual_seed(0)
    for schedule in (
        torch.arange(1, 1001).float(),
        1000 * torch.rand(100_000, generator=generator),
        *(torch.linspace(1, 1 / steps, steps) * 1000 for steps in range(1, 101)),
    ):
        found = family_named("flux").stock_timestep(schedule / 1000, dtype)
        assert found.equal(schedule.to(dtype) / 1000)


def stock(folder: Path, call: Mapping[str, Any]) -> Any:
    """A plain pipeline, all of it in bfloat16."""
    pipeline = DiffusionPipeline.from_pretrained(folder, dtype=torch.bfloat16, **call["absent"])
    pipeline.set_progress_bar_config(disable=True)
    return pipeline


def latents_only(call: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of the student's call, without decoding."""
    return call["arguments"] | {"output_type": "latent"}
