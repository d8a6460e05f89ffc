"""An any-step student begins as its teacher, learns all pairs of knots, and is stock AnyFlow."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from diffusers import AnyFlowPipeline, DiffusionPipeline, WanTransformer3DModel
from PIL import Image
from safetensors.torch import load_file

import tiny
from distillery.config.jobs import TrainingJob
from distillery.config.training import Training
from distillery.families import Setting, Size, family_named, flow_map_of
from distillery.families.any_flow import AnyFlow
from distillery.files import read_json
from distillery.model_folder import load_denoiser
from distillery.student.build import plan_student
from distillery.student.flow_map import pairs_of
from distillery.student.schedule import student_scheduler
from distillery.teacher.folder import PipelineFolder, find_teacher
from distillery.training.data import SegmentDataset
from distillery.training.loop import train
from distillery.training.objectives import roll_out, sample_losses
from distillery.training.update import output_of
from families import CASES
from runs import CPU, Run, family_run, make_run
from training_phases import phases

STEPS = 4
SIZE = Size(tiny.HEIGHT, tiny.WIDTH)
STUDENT = {"init": "flow_map", "steps": STEPS}
TRAINING: dict[str, Any] = {
    "phases": phases(stored=1800),
    "global_batch_size": 12,
    "log_every_samples": 360,
    "save_every_samples": 1800,
    "learning_rate": 3e-3,
}
ONE_STEP = {"source": "untrained", "steps": 1}
MODELS = {name: {"source": name} for name in ("teacher", "student", "untrained")}


def make(folder: Path, teacher: Path, **changes: Any) -> Run:
    sections: dict[str, Any] = {
        "student": STUDENT,
        "targets": {"steps": 8, "num_segments": 8},
        "training": TRAINING,
        "samples": {"batch_size": 1, "models": MODELS, "student_steps": [1, 2]},
    }
    sections = {name: values | changes.pop(name, {}) for name, values in sections.items()}
    return make_run(folder, teacher, **sections, **changes)


@pytest.fixture(scope="module")
def made(teacher: Path, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A run that is trained and exported; tests must not change it."""
    run = make(tmp_path_factory.mktemp("flow-map"), teacher, previews={"every_samples": 1800})
    run.encode("train")
    run.encode("eval")
    run.all_targets()
    run.train_and_export(previews=True)
    return run


@pytest.fixture(scope="module")
def dataset(made: Run) -> SegmentDataset:
    return open_dataset(made)


def open_dataset(run: Run) -> SegmentDataset:
    stored = run.files.targets, run.embeddings("train"), run.prompts("train")
    return SegmentDataset(*stored, STEPS, any_step=True)


def networks(run: Run) -> Iterator[torch.nn.Module]:
    """The student before its training and after it."""
    for name in ("initial", "trained"):
        yield load_denoiser(run.files.student(name), torch.float32)


@pytest.mark.parametrize("num_frames", [1, 3])
def test_told_to_end_where_it_begins_the_student_is_its_teacher(num_frames: int) -> None:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        teacher = tiny.tiny_transformer()
        noisy = torch.randn(2, tiny.LATENT_CHANNELS, num_frames, 4, 8)
        prompts = {"prompt_embeds": torch.randn(2, tiny.MAX_TOKENS, tiny.TEXT_FEATURES)}
    wan, family = family_named("wan"), flow_map_of(family_named("wan"))
    timestep, setting = torch.tensor([999.0, 37.25]), Setting(SIZE, 1.0)
    with torch.no_grad():
        expected = wan.predict(teacher, noisy, timestep, prompts, setting)
        student = family.make(teacher)
        given = student, noisy, timestep
        found = family.predict_until(*given, timestep, prompts, setting)
        elsewhere = family.predict_until(*given, timestep / 2, prompts, setting)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
    assert float((elsewhere - expected).norm() / expected.norm()) > 1e-3, "the end counts"


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"patch_size": (1, 1, 2)}, r"patch_size \[1, 1, 2\]"),
        ({"patch_size": (2, 2, 2)}, r"patch_size \[2, 2, 2\]"),
        ({"image_dim": 8, "added_kv_proj_dim": 24}, "image_dim 8, added_kv_proj_dim 24"),
    ],
)
def test_parts_of_a_teacher_that_have_no_place_are_refused(
    change: dict[str, Any], told: str
) -> None:
    config = tiny.tiny_transformer().config
    own = {name: value for name, value in config.items() if not name.startswith("_")}
    teacher = WanTransformer3DModel(**(own | change))
    with pytest.raises(ValueError, match=f"has {told}, for which"):
        AnyFlow().make(teacher)


def test_the_plan_counts_what_is_built(made: Run) -> None:
    planned = plan_student(made.config.student, find_teacher(made.config.teacher))
    built = load_denoiser(made.files.student("initial"), torch.float32)
    assert planned.num_parameters == sum(each.numel() for each in built.parameters())
    assert planned.num_parameters > planned.teacher_parameters
    assert not planned.not_copied


def test_a_step_with_its_target_lands_on_the_stored_state(dataset: SegmentDataset) -> None:
    """From every knot to every knot that is a step's end, with the exported scheduler."""
    scheduler = student_scheduler(dataset.recipe, STEPS, any_step=True)
    trajectories = range(dataset.num_trajectories)
    states = dataset.states_at_knots(trajectories)
    for number, (first, last) in enumerate(pairs_of(STEPS)):
        batch = dataset.__getitems__([dataset.item(row, number) for row in trajectories])
        assert torch.equal(batch.noisy, states[:, first])
        scheduler.set_timesteps(STEPS // (last - first))
        (landed,) = scheduler.step(batch.target, batch.timestep[0], batch.noisy, return_dict=False)
        torch.testing.assert_close(landed, states[:, last], rtol=1e-5, atol=1e-5)
        assert batch.until is not None
        place = first // (last - first)
        levels = scheduler.sigmas[place : place + 2].float() * 1000
        assert torch.equal(torch.stack([batch.timestep[0], batch.until[0]]), levels)


def test_every_pair_is_learned(made: Run, dataset: SegmentDataset) -> None:
    before, after = (
        [pair_loss(network, dataset, number) for number in range(len(pairs_of(STEPS)))]
        for network in networks(made)
    )
    assert all(late < 0.5 * early for early, late in zip(before, after, strict=True)), (
        before,
        after,
    )


def pair_loss(network: torch.nn.Module, dataset: SegmentDataset, number: int) -> float:
    """Over all trajectories."""
    items = [dataset.item(row, number) for row in range(dataset.num_trajectories)]
    batch = dataset.__getitems__(items)
    given = batch.noisy, batch.timestep, batch.until, batch.conditioning
    with torch.no_grad():
        output = output_of(network, *given, dataset.usual.setting, dataset.family)
    return float(sample_losses(output, batch.target).mean())


def test_an_epoch_has_each_number_of_steps_equally_often(made: Run) -> None:
    job = made.job("training", TrainingJob)
    run = made.open_training(job, made.training_paths(made.folder))
    items = run.batches.segments(0, run.dataset.num_items)
    assert sorted(items) == list(range(run.dataset.num_items))
    lengths = [last - first for first, last in (pairs_of(STEPS)[_segment(run, it)] for it in items)]
    each = run.dataset.num_trajectories * STEPS
    assert {length: lengths.count(length) for length in (1, 2, 4)} == dict.fromkeys((1, 2, 4), each)
    assert run.dataset.name(items[0]).count("knots") == 1


def test_the_log_has_a_column_for_each_pair(made: Run) -> None:
    loss = pd.read_parquet(made.files.loss)
    columns = [name for name in loss.columns if name.startswith("loss_segment_")]
    assert len(columns) == len(pairs_of(STEPS))
    assert loss[columns].notna().all().all()


def _segment(run: Any, item: int) -> int:
    return int(run.dataset.__getitems__([item]).segment)


@pytest.mark.parametrize("steps", [1, 2, 4])
def test_stock_diffusers_draws_the_samples_with_any_number_of_steps(made: Run, steps: int) -> None:
    """Bit for bit in float32, by the call of the card with another number of steps."""
    folder = made.files.student("pipeline")
    model = "student" if steps == STEPS else f"student-{steps}-steps"
    table = pd.read_parquet(made.samples(model=model, pipeline=folder))
    assert set(table["steps"]) == set(table["network_calls"]) == {steps}
    pipeline = DiffusionPipeline.from_pretrained(folder)
    assert type(pipeline) is AnyFlowPipeline
    pipeline.set_progress_bar_config(disable=True)
    arguments = read_json(folder / "distillery.json")["call"]["arguments"]
    assert arguments["num_inference_steps"] == STEPS
    row = table.iloc[0]
    generator = torch.Generator().manual_seed(int(row["noise_seed"]))
    call = arguments | {"num_inference_steps": steps, "generator": generator}
    image = pipeline(prompt=row["prompt"], **call).frames[0][0]
    file = made.files.sample_folder / model / row["file"]
    assert np.array_equal(np.asarray(image), np.asarray(Image.open(file)))


def test_the_trainings_own_walk_ends_where_the_stock_call_does(
    made: Run, dataset: SegmentDataset
) -> None:
    """And with few steps it really takes few: the ends differ."""
    student = load_denoiser(made.files.student("trained"), torch.float32)
    batch = dataset.__getitems__([dataset.first_rollout + row for row in range(2)])

    def predict(noisy: torch.Tensor, timestep: torch.Tensor, until: torch.Tensor) -> torch.Tensor:
        given = noisy, timestep, until, batch.conditioning
        return output_of(student, *given, dataset.usual.setting, dataset.family)

    stock = DiffusionPipeline.from_pretrained(made.files.student("pipeline"))
    stock.set_progress_bar_config(disable=True)
    ends = []
    for steps in (1, 2, 4):
        grid = dataset.usual.grid.subset(range(0, STEPS + 1, STEPS // steps))
        with torch.no_grad():
            ours = roll_out(predict, batch.noisy, grid, "flow_prediction")
        (theirs,) = stock(
            prompt_embeds=batch.conditioning["prompt_embeds"],
            latents=batch.noisy,
            height=tiny.HEIGHT,
            width=tiny.WIDTH,
            num_frames=1,
            num_inference_steps=steps,
            guidance_scale=1.0,
            output_type="latent",
            return_dict=False,
        )
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)
        ends.append(ours)
    assert not torch.allclose(ends[0], ends[1], atol=1e-3)
    assert not torch.allclose(ends[1], ends[2], atol=1e-3)


def test_latents_are_kept_in_the_teachers_layout(made: Run) -> None:
    """Their distance to the teacher's is measured."""
    made.samples(model="student", pipeline=made.files.student("pipeline"))
    file = next((made.files.sample_folder / "student").glob("*/*.safetensors"))
    assert load_file(file)["latents"].shape == tiny.LATENT_SHAPE


def test_previews_are_drawn_by_the_student(made: Run) -> None:
    assert len([*made.files.previews.glob("samples-*1800/p*.png")]) > 0


def test_the_untrained_student_is_sampled_with_the_same_scheduler(made: Run) -> None:
    untrained = made.export_untrained()
    file = "scheduler/scheduler_config.json"
    assert (untrained / file).read_bytes() == (made.files.student("pipeline") / file).read_bytes()
    assert len(pd.read_parquet(made.samples(model="untrained", pipeline=untrained)))


def test_the_card_says_which_numbers_of_steps_were_learned(made: Run) -> None:
    card = (made.files.student("pipeline") / "README.md").read_text()
    assert "# A student of 1, 2 or 4 steps of " in card
    assert "`num_inference_steps` may be 1, 2 or 4:" in card
    assert "no\nothers" not in card


def test_a_pipeline_of_any_steps_is_no_teacher(made: Run) -> None:
    path = made.files.student("pipeline")
    section = made.config.teacher.model_copy(update={"path": str(path)})
    with pytest.raises(ValueError, match="it can be a student and no teacher"):
        find_teacher(section)
    assert PipelineFolder(path).family.name == "any_flow"


def test_it_trains_in_bfloat16(made: Run, tmp_path: Path) -> None:
    short = TRAINING | {"phases": phases(stored=24), "dtype": "bfloat16", "learning_rate": 1e-3}
    short |= {"log_every_samples": 24, "save_every_samples": 24}
    opened, paths = made.opened_with(tmp_path, Training.model_validate(short).model_dump())
    assert opened.device == CPU
    assert train(opened, paths)
    assert pd.read_parquet(paths.losses)["loss"].notna().all()


@pytest.mark.parametrize("name", ["wan-clip", "wan-two-experts"])
def test_clips_and_one_of_two_experts_are_exported_too(name: str, tmp_path: Path) -> None:
    """As it was built: stock Diffusers draws what the samples are."""
    case = next(each for each in CASES if each.name == name)
    case.make(tmp_path / "teacher")
    run = family_run(
        case,
        tmp_path / "run",
        tmp_path / "teacher",
        student={**case.student, "init": "flow_map", "steps": 2},
        samples={"batch_size": 1, "num_prompts": 1, "models": {**MODELS, "one": ONE_STEP}},
    )
    run.encode("eval")
    run.build()
    folder = run.export_untrained()
    pipeline = DiffusionPipeline.from_pretrained(folder)
    assert type(pipeline) is AnyFlowPipeline
    pipeline.set_progress_bar_config(disable=True)
    (row,) = pd.read_parquet(run.samples(model="one", pipeline=folder)).to_dict("records")
    arguments = read_json(folder / "distillery.json")["call"]["arguments"]
    arguments |= {"num_inference_steps": 1, "output_type": "latent"}
    generator = torch.Generator().manual_seed(int(row["noise_seed"]))
    latents = pipeline(prompt=row["prompt"], generator=generator, **arguments).frames[0]
    kept = load_file(run.files.sample_folder / "one" / row["latents_file"])["latents"]
    assert kept.shape[1] == (2 if name == "wan-clip" else 1)
    assert torch.equal(kept, latents)
