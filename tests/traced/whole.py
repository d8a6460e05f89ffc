"""A whole run of a traced teacher, and how far it comes from the calls of the stock pipeline."""

from pathlib import Path
from typing import Any

import diffusers
import numpy as np
import torch
from PIL import Image

from distillery.config.jobs import TargetsJob
from distillery.families import Size
from distillery.files import read_json
from distillery.generation.trajectory import record
from distillery.images import read_png
from distillery.noise import SampleId, noise_seed
from distillery.store.tables import read_table
from distillery.store.trajectories import TrajectoryStore
from distillery.student.usage import CAST
from distillery.teacher.folder import find_teacher
from distillery.teacher.solver import load_scheduler
from families.calls import generators
from runs import Run, make_run
from traced import few_spacings
from traced.teachers import save_teacher
from training_phases import phases

STEPS, SCALE = 4, 3.0
ROUND = {"phases": phases(stored=8, rounds={"count": 1, "samples": 8})}
"""A section `training`."""


def traced_run(name: str, folder: Path, **changes: Any) -> Run:
    """A run whose teacher is learnt."""
    teacher = save_teacher(name, folder / "teacher") | changes.pop("teacher", {})
    run = make_run(folder, folder / "teacher", teacher=teacher, **changes)
    with few_spacings():
        run.sign()
    return run


def made_with_a_round(run: Run, previews: bool = False) -> Run:
    """A signed run with targets, a round, a trained student and images."""
    run.ready_to_train()
    run.visited(1, run.train_and_export_before(1))
    run.encode("eval")
    run.samples()
    run.samples(model="student", pipeline=run.train_and_export(previews))
    return run


def stock(folder: Path, dtype: str = "float32") -> Any:
    """A pipeline as Diffusers loads it; its VAE in float32, with the lines of a student's card that
    cast to it."""
    index = read_json(folder / "model_index.json")
    absent: dict[str, Any] = {name: None for name, kind in index.items() if kind == [None, None]}
    pipeline = diffusers.DiffusionPipeline.from_pretrained(
        folder, dtype={"default": getattr(torch, dtype), "vae": torch.float32}, **absent
    )
    pipeline.set_progress_bar_config(disable=True)
    exec("\n".join(CAST), {"pipeline": pipeline})
    return pipeline


def stock_teacher(run: Run) -> Any:
    """The teacher's, with the scheduler that the run gives it and as its VAE decodes."""
    teacher = run.config.teacher
    pipeline = stock(Path(teacher.path), teacher.dtype)
    pipeline.scheduler = load_scheduler(find_teacher(teacher), teacher)
    if teacher.vae_tiling:
        pipeline.vae.enable_tiling()
    return pipeline


def negative(run: Run) -> dict[str, str]:
    """The negative prompt as an argument, where the run has one."""
    given = run.config.teacher.negative_prompt
    return {} if given is None else {"negative_prompt": given}


def arguments(run: Run, prompt: str, seed: int, scale: float, steps: int) -> dict[str, Any]:
    """Of a stock call for one image; the guidance scale under the name that the trace gives it."""
    teacher = run.job("targets", TargetsJob).teacher
    family, length = find_teacher(teacher).family, teacher.max_sequence_length
    assert teacher.trace is not None
    guidance = {family.guidance_argument: scale} if family.guidance_argument else {}
    return {
        "prompt": prompt,
        **guidance,
        "num_inference_steps": steps,
        "height": teacher.height,
        "width": teacher.width,
        **family.frames(Size.of(teacher)),
        **({"max_sequence_length": length} if length else {}),
        **teacher.trace.always,
        "generator": generators([seed]),
    }


def seed_of(run: Run, prompt_id: str) -> int:
    """Of the noise of a prompt's first sample."""
    return noise_seed(run.config.seed, SampleId(prompt_id, 0))


def off_trajectories(run: Run) -> float:
    """The largest distance of a trajectory's end from the stock call's, relative to its largest
    number."""
    store, table = TrajectoryStore(run.files.targets), read_table(run.prompts("train"))
    pipeline, off = stock_teacher(run), []
    for row in (0, 5, 8):
        prompt, seed = table["prompt"][row], seed_of(run, table["prompt_id"][row])
        called = arguments(run, prompt, seed, SCALE, STEPS) | negative(run)
        with record(pipeline.scheduler, [STEPS]) as trajectory, torch.no_grad():
            pipeline(**called, output_type="latent")
        expected = trajectory.states[STEPS][0].float()
        found = store.states(row, 0, store.num_knots - 1)[1]
        off.append(float((found - expected).abs().max() / expected.abs().max()))
    return max(off)


def off_images(run: Run, model: str) -> int:
    """The largest distance of an image's pixels from the stock call's, in levels of 255.

    Args:
        model: `teacher`, which is called with guidance, or `student`, as its card calls it.
    """
    table, off = read_table(run.prompts("eval")), []
    if model == "teacher":
        pipeline, card = stock_teacher(run), {}
    else:
        folder = run.files.student("pipeline")
        pipeline = stock(folder, run.config.teacher.dtype)
        call = read_json(folder / "distillery.json")["call"]
        card = call["arguments"]
        if "vae_tiling" in call:
            pipeline.vae.enable_tiling()
    for row in (0, 4):
        prompt, prompt_id = table["prompt"][row], table["prompt_id"][row]
        seed = seed_of(run, prompt_id)
        called = (
            card | {"prompt": prompt, "generator": generators([seed])}
            if card
            else arguments(run, prompt, seed, SCALE, STEPS) | negative(run)
        )
        expected = pipeline(**called | {"output_type": "pil"})[0][0]
        drawn = read_png(Image.open(run.files.sample_folder / model / prompt_id / "0.png"))
        stacked = np.stack(expected) if isinstance(expected, list) else np.asarray(expected)
        off.append(int(abs(drawn.astype(np.int16) - stacked.astype(np.int16)).max()))
    return max(off)
