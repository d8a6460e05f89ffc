"""`teacher.call`: the teacher draws as the stock call does with its arguments, the student not."""

import inspect
from pathlib import Path
from typing import Any

import diffusers
import pandas as pd
import pytest
import torch

from distillery.config.jobs import SamplesJob, freeze
from distillery.config.teacher import Teacher
from distillery.families import FAMILIES
from distillery.files import write_json
from distillery.generation.sample_maker import SampleMaker
from distillery.generation.trajectory import record
from distillery.noise import SampleId, noise_seed
from distillery.planning.call import arguments_of, on_call
from distillery.store.trajectories import TrajectoryStore
from distillery.teacher.components import INDEX
from distillery.teacher.folder import PipelineFolder
from families import CASES
from families.calls import generators
from families.made import made_teacher
from runs import CPU, Run, family_run, loaded

CALL: dict[str, Any] = {"guidance_rescale": 0.7, "crops_coords_top_left": [4, 8]}
SDXL = next(case for case in CASES if case.name == "sdxl")
MODELS = {name: {"source": name} for name in ("teacher", "untrained")}
TAKEN = {
    "wan": [],
    "sdxl": [
        "guidance_rescale", "original_size", "crops_coords_top_left",
        "target_size", "negative_original_size", "negative_crops_coords_top_left",
        "negative_target_size",
    ],
    "sd": ["guidance_rescale"],
    "pixart": [],
    "sana": [],
    "sd3": [
        "skip_guidance_layers", "skip_layer_guidance_scale",
        "skip_layer_guidance_stop", "skip_layer_guidance_start",
    ],
    "flux": [],
    "qwen_image": [],
}  # fmt: skip


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Run, Run]:
    """With trajectories: one with further arguments, one without."""
    teacher = made_teacher(tmp_path_factory, SDXL)
    made = []
    for name, call in (("with", CALL), ("without", None)):
        run = family_run(
            SDXL,
            tmp_path_factory.mktemp(name),
            teacher,
            teacher={"call": call},
            samples={"models": MODELS},
        )
        for split in ("train", "eval"):
            run.encode(split)
        run.all_targets()
        made.append(run)
    return made[0], made[1]


def test_trajectories_end_where_the_stock_call_does(runs: tuple[Run, Run]) -> None:
    run, plain = runs
    end, other = (states_of(each) for each in runs)
    assert not end.allclose(other, atol=1e-3)
    pipeline = loaded(run.config.teacher)
    table = pd.read_parquet(run.prompts("train"))
    first = table["prompt_id"][0]
    stored = TrajectoryStore(run.folder / "targets" / "manifest.json")
    with record(pipeline.scheduler, [SDXL.steps]) as trajectory:
        pipeline(
            prompt=table["prompt"][0],
            generator=generators([noise_seed(0, SampleId(first, 0))]),
            height=SDXL.height,
            width=SDXL.width,
            num_inference_steps=SDXL.steps,
            guidance_scale=SDXL.guidance_scale,
            output_type="latent",
            **(CALL | {"crops_coords_top_left": (4, 8)}),
        )
    torch.testing.assert_close(end[None], trajectory.states[SDXL.steps], rtol=1e-4, atol=1e-4)
    assert stored.recipe.call == CALL
    assert "call" not in TrajectoryStore(plain.folder / "targets/manifest.json").recipe.to_json()


def states_of(run: Run) -> torch.Tensor:
    """Where the first trajectory ends."""
    store = TrajectoryStore(run.folder / "targets" / "manifest.json")
    return store.states(0, 0, len(store.recipe.knots) - 1)[1]


def test_the_teachers_images_are_drawn_so_and_the_students_are_not(runs: tuple[Run, Run]) -> None:
    makers = {
        (source, has_call): maker_of(run, source)
        for has_call, run in zip((True, False), runs, strict=True)
        for source in ("teacher", "untrained")
    }
    assert makers["teacher", True]._recipe()["call"] == CALL
    assert "call" not in makers["teacher", False]._recipe()
    assert "call" not in makers["untrained", True]._recipe()
    with_call, without = (makers["teacher", has]._calls().request([0]) for has in (True, False))
    assert (with_call.further, without.further) == (CALL, {})
    assert makers["untrained", True]._calls().further == {}


def maker_of(run: Run, source: str) -> SampleMaker:
    pipeline = None
    if source == "untrained":
        run.build()
        pipeline = run.export_untrained()
    return SampleMaker(
        run.job(f"samples-{source}", SamplesJob),
        pd.read_parquet(run.prompts("eval")),
        run.embeddings("eval"),
        pipeline,
        run.folder / "samples" / source,
        CPU,
        run.reporter(),
    )


def test_only_what_draws_with_the_teacher_depends_on_it(runs: tuple[Run, Run]) -> None:
    configs = [run.config for run in runs]
    for stage in ("targets", "samples-teacher"):
        assert freeze(configs[0], stage) != freeze(configs[1], stage), stage
        assert "call" not in freeze(configs[1], stage)["teacher"], stage
    for stage in ("student", "training", "previews", "export"):
        assert freeze(configs[0], stage)["student"] == freeze(configs[1], stage)["student"], stage
        assert "call" not in freeze(configs[0], stage)["teacher"], stage


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
def test_every_argument_of_a_stock_call_is_taken_or_refused(family: Any, tmp_path: Path) -> None:
    """A new argument of Diffusers appears here, and somebody decides."""
    write_json(tmp_path / INDEX, {"_class_name": family.pipeline_classes[0]})
    folder = PipelineFolder(tmp_path)
    assert arguments_of(folder) == TAKEN[family.name]
    call = getattr(diffusers, family.pipeline_classes[0]).__call__
    others = set(inspect.signature(call).parameters) - {"self", *TAKEN[family.name]}
    for name in (*others, "no_such_argument"):
        teacher = Teacher(path="x", height=8, width=8, call={name: 1})
        (note,) = on_call(teacher, folder)
        assert str(note).startswith(f"teacher.call.{name} is 1: "), name
        assert note.cure, name


def test_a_word_that_is_nearly_right_is_named(tmp_path: Path) -> None:
    write_json(tmp_path / INDEX, {"_class_name": "StableDiffusionXLPipeline"})
    teacher = Teacher(path="x", height=8, width=8, call={"guidance_rescal": 0.7})
    (note,) = on_call(teacher, PipelineFolder(tmp_path))
    assert note.cure == "did you mean guidance_rescale?"
