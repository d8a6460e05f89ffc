"""The exported pipeline: stock Diffusers loads it, and it takes the steps it was trained for."""

import shutil

import pytest
import torch
from diffusers import DiffusionPipeline, UniPCMultistepScheduler
from safetensors.torch import load_file

import tiny
from distillery.config.jobs import ExportJob
from distillery.config.run import Targets
from distillery.config.student import Student
from distillery.config.teacher import Teacher
from distillery.families import family_named, grid_of
from distillery.files import hash_file, read_json, write_json
from distillery.model_folder import write_metadata
from distillery.noise import SampleId, draw_noise, noise_seed
from distillery.store.recipes import TrainingRecipe
from distillery.store.trajectories import TrajectoryStore
from distillery.student.export import export_student
from distillery.student.schedule import student_scheduler
from distillery.teacher import weights

STEPS = 4
SEED = noise_seed(0, SampleId("p000", 0))


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """The teacher itself, exported as a student that was never trained."""
    folder = tmp_path_factory.mktemp("data")
    tiny.make_tiny_run(folder)
    recipe = TrajectoryStore(folder / "targets/manifest.json").recipe
    shape = recipe.latent_shape
    grid = grid_of(family_named("wan"), student_scheduler(recipe, STEPS), STEPS, shape)
    trained = TrainingRecipe(
        kind="training",
        version=1,
        steps=STEPS,
        schedule=grid,
        latent_shape=shape,
        guidance_scale=1.0,
        initial="i" * 64,
        targets="t" * 64,
        seed=0,
        training={"betas": [0.9, 0.95], "learning_rate": 1e-3},
    )
    shutil.copytree(folder / "student/initial", folder / "student/trained")
    write_metadata(
        folder / "student/trained",
        {
            "recipe": trained.to_json(),
            "recipe_hash": "r" * 64,
            "samples_seen": 64,
        },
    )
    export_student(job(folder), folder / "student/trained", folder / "student/pipeline")
    return folder


def job(folder, steps=STEPS, dtype="float32"):
    return ExportJob(
        teacher=Teacher(
            path=str(folder / "teacher"),
            dtype=dtype,
            height=tiny.HEIGHT,
            width=tiny.WIDTH,
            max_sequence_length=tiny.MAX_TOKENS,
        ),
        targets=Targets(steps=8, guidance_scale=4.0),
        student=Student(steps=steps),
    )


def generate(pipeline, **changes):
    """One call of a stock pipeline, as (1, f, 3, h, w)."""
    pipeline.set_progress_bar_config(disable=True)
    call = {
        "num_inference_steps": STEPS,
        "guidance_scale": 1.0,
        "height": tiny.HEIGHT,
        "width": tiny.WIDTH,
        "num_frames": 1,
        "max_sequence_length": tiny.MAX_TOKENS,
        "generator": torch.Generator().manual_seed(SEED),
        "output_type": "pt",
    }
    return pipeline("a red dog", **(call | changes))[0]


def test_the_exported_teacher_repeats_its_own_first_order_samples(data):
    """Trap 2: whoever samples with the student gets what its training was about."""
    student = DiffusionPipeline.from_pretrained(data / "student/pipeline")
    teacher = DiffusionPipeline.from_pretrained(data / "teacher")
    second_order = generate(teacher)
    teacher.scheduler = UniPCMultistepScheduler.from_config(
        teacher.scheduler.config, solver_order=1, disable_corrector=list(range(STEPS))
    )
    first_order = generate(teacher)
    assert torch.equal(generate(student), first_order)
    assert not torch.equal(second_order, first_order)


def test_a_seed_is_the_noise_of_a_sample(data):
    """What the model card says of `noise_seed`."""
    student = DiffusionPipeline.from_pretrained(data / "student/pipeline")
    noise = draw_noise([SEED], tiny.LATENT_SHAPE)
    assert torch.equal(generate(student), generate(student, latents=noise))


def test_the_card_names_recipe_teacher_and_settings(data):
    card = (data / "student/pipeline/README.md").read_text()
    for text in ("r" * 64, "t" * 64, str(data / "teacher"), "999, 900, 750, 500", "| betas | 0.9"):
        assert text in card
    assert card.endswith("other components are the teacher's; the teacher's licence applies.\n")


def test_other_components_are_the_teachers_files(data):
    for name in ("text_encoder", "tokenizer", "vae"):
        theirs = {path.name: hash_file(path) for path in (data / "teacher" / name).iterdir()}
        ours = {path.name: hash_file(path) for path in (data / "student/pipeline" / name).iterdir()}
        assert ours == theirs


def test_large_files_are_linked_and_small_ones_copied(data, tmp_path, monkeypatch):
    monkeypatch.setattr(weights, "LINKED_BYTES", 40_000)
    export_student(job(data), data / "student/trained", tmp_path / "pipeline")
    for name, linked in (
        ("vae/diffusion_pytorch_model.safetensors", True),
        ("vae/config.json", False),
    ):
        assert (tmp_path / "pipeline" / name).samefile(data / "teacher" / name) is linked


def test_weights_are_stored_in_the_teachers_dtype(data, tmp_path):
    export_student(job(data, dtype="bfloat16"), data / "student/trained", tmp_path / "pipeline")
    weights = load_file(tmp_path / "pipeline/transformer/diffusion_pytorch_model.safetensors")
    assert weights["patch_embedding.weight"].dtype == torch.bfloat16
    # What the model's class keeps in float32 when it is loaded is not rounded here either.
    assert weights["scale_shift_table"].dtype == torch.float32


def test_a_student_of_other_steps_is_refused(data, tmp_path):
    with pytest.raises(ValueError, match=r"student.steps is 2, .* was trained for 4"):
        export_student(job(data, steps=2), data / "student/trained", tmp_path / "pipeline")
    assert not (tmp_path / "pipeline").exists()


def test_a_scheduler_that_was_changed_since_is_refused(data, tmp_path):
    shutil.copytree(data / "teacher", tmp_path / "teacher")
    path = tmp_path / "teacher/scheduler/scheduler_config.json"
    write_json(path, read_json(path) | {"flow_shift": 5.0})
    with pytest.raises(ValueError, match="scheduler changed since"):
        export_student(job(tmp_path), data / "student/trained", tmp_path / "pipeline")
    assert not (tmp_path / "pipeline").exists()
