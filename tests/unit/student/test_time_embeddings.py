"""A student of which the time embeddings alone learn: all other weights stay its teacher's."""

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from diffusers import DiffusionPipeline
from safetensors.torch import load_file

from adapters import make_adapter
from distillery.config.jobs import ExportJob, TrainingJob
from distillery.config.student import Student
from distillery.config.teacher import Adapter
from distillery.families import family_named
from distillery.families.wan import Wan
from distillery.files import read_json
from distillery.model_folder import METADATA, find_changes, load_denoiser_skeleton
from distillery.student.build import build_student, plan_student
from distillery.student.export import export_student
from distillery.student.info import TIME_FILE, describe_student
from distillery.student.on_disk import BASE, load_trainable
from distillery.student.time_embeddings import time_embeddings_of
from distillery.teacher import weights
from distillery.teacher.folder import find_teacher
from families import CASES
from families.case import FamilyCase
from families.made import made_run, made_teacher
from runs import Run
from stranger import code_in
from training_phases import phases

CASE_OF = {case.name: case for case in CASES}
WEIGHTS = "diffusion_pytorch_model.safetensors"
TRAINING = {
    "phases": phases(stored=32),
    "learning_rate": 0.03,
    "schedule": "constant",
    "save_every_samples": 16,
    "keep_checkpoints": 2,
}
LEARNED = 1e-3
"""Training must have moved the image by more than this, or equality would say nothing."""


def time_run(factory: pytest.TempPathFactory, case: FamilyCase, **training: Any) -> Run:
    """A run with its targets, whose student learns its time embeddings."""
    student = {"steps": case.steps, "init": "time_embeddings"}
    return made_run(factory, case, student=student, training=TRAINING | training)


@pytest.fixture(scope="module", params=["wan", "sdxl", "wan-two-experts"])
def trained(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[FamilyCase, Run]:
    case = CASE_OF[request.param]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(weights, "LINKED_BYTES", 40_000)
        run = time_run(tmp_path_factory, case)
        run.train_and_export()
    return case, run


def base(case: FamilyCase, run: Run) -> Path:
    """The folder of the network that the student starts from."""
    name = case.student.get("expert", family_named(case.family).denoisers[0])
    return Path(run.config.teacher.path) / str(name)


def names_of(case: FamilyCase, run: Run) -> set[str]:
    skeleton = load_denoiser_skeleton(base(case, run))
    return set(time_embeddings_of(skeleton, family_named(case.family)))


def test_all_other_weights_stay_the_teachers(trained: tuple[FamilyCase, Run]) -> None:
    case, run = trained
    theirs, learns = load_file(base(case, run) / WEIGHTS), names_of(case, run)
    place = family_named(case.family).denoisers[0]
    ours = load_file(run.folder / "student/pipeline" / place / WEIGHTS)
    assert ours.keys() == theirs.keys()
    changed = {name for name in theirs if not torch.equal(ours[name], theirs[name])}
    assert changed == learns
    assert 0 < len(learns) < len(theirs)
    file = load_file(run.folder / "student/pipeline" / TIME_FILE)
    assert file.keys() == learns
    assert all(torch.equal(file[name], ours[name]) for name in learns)


def test_the_teachers_weights_lie_on_the_disk_once(trained: tuple[FamilyCase, Run]) -> None:
    case, run = trained
    initial, after = run.folder / "student/initial", run.folder / "student/trained"
    assert (initial / WEIGHTS).samefile(base(case, run) / WEIGHTS)
    assert (after / BASE / WEIGHTS).samefile(base(case, run) / WEIGHTS)
    assert {path.name for path in after.iterdir()} == {BASE, TIME_FILE, METADATA}
    assert find_changes(initial) == find_changes(after) == []
    (checkpoint,) = (run.folder / "student/checkpoints").glob("*/samples-000000000032")
    assert load_file(checkpoint / "weights.safetensors").keys() == names_of(case, run)


def draw(pipeline: Any, call: dict[str, Any]) -> torch.Tensor:
    """Latents of a stock call as the model card says, with one seed."""
    pipeline.set_progress_bar_config(disable=True)
    arguments = call["arguments"] | {"output_type": "latent"}
    found = pipeline("a red dog", generator=torch.Generator().manual_seed(3), **arguments)[0]
    assert isinstance(found, torch.Tensor)
    return found


def test_the_teacher_with_the_file_is_the_exported_student(
    trained: tuple[FamilyCase, Run], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The code of the model card, run as it stands."""
    monkeypatch.chdir(tmp_path)  # where it saves its image
    case, run = trained
    folder = run.folder / "student/pipeline"
    call = read_json(folder / METADATA)["call"]
    ours = draw(DiffusionPipeline.from_pretrained(folder), call)
    _, code = code_in(folder / "README.md")
    names: dict[str, Any] = {}
    exec(code.replace("path/to/this/folder", str(folder)), names)
    assert torch.equal(draw(names["pipeline"], call), ours)
    network = getattr(names["pipeline"], family_named(case.family).denoisers[0])
    network.load_state_dict(load_file(base(case, run) / WEIGHTS))
    assert (draw(names["pipeline"], call) - ours).abs().max() > LEARNED


def test_a_resumed_training_gives_the_same_bytes(trained: tuple[FamilyCase, Run]) -> None:
    _, run = trained
    after = run.folder / "student/trained"
    undisturbed = (after / TIME_FILE).read_bytes()
    (last,) = (run.folder / "student/checkpoints").glob("*/samples-000000000032")
    assert (last.parent / "samples-000000000016").is_dir()
    for path in (last, after, run.folder / "student/pipeline", run.folder / "student/initial"):
        shutil.rmtree(path)
    run.train_and_export()
    assert (after / TIME_FILE).read_bytes() == undisturbed


def test_the_plan_counts_what_learns(trained: tuple[FamilyCase, Run]) -> None:
    _, run = trained
    info = plan_student(run.config.student, find_teacher(run.config.teacher))
    assert run.config.student.init == "time_embeddings"
    file = load_file(run.folder / "student/trained" / TIME_FILE)
    assert info.trained_parameters == sum(value.numel() for value in file.values())
    assert info.num_parameters == info.teacher_parameters > 3 * info.trained_parameters
    assert f"{info.trained_parameters:,} in time embeddings are trained" in describe_student(info)
    assert read_json(run.folder / "student/initial" / METADATA)["student"]["init"] == info.init


def test_with_adapters_the_pipeline_alone_is_the_student(
    trained: tuple[FamilyCase, Run], tmp_path: Path
) -> None:
    """The teacher's folder with the file would lack them."""
    _, run = trained
    adapter = make_adapter(Path(run.config.teacher.path), tmp_path / "adapter")
    job = run.job("export", ExportJob)
    teacher = job.teacher.model_copy(update={"adapters": (Adapter(path=str(adapter)),)})
    after, output = run.folder / "student/trained", tmp_path / "pipeline"
    export_student(job.model_copy(update={"teacher": teacher}), after, output)
    assert not (output / TIME_FILE).exists()
    assert "As time embeddings" not in (output / "README.md").read_text(encoding="utf-8")


def test_frozen_weights_take_the_type_of_the_forward_pass(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    run = time_run(tmp_path_factory, CASE_OF["sdxl"])
    build_student(run.job("training", TrainingJob), tmp_path / "initial")
    student = load_trainable(tmp_path / "initial", torch.bfloat16)
    learns = names_of(CASE_OF["sdxl"], run)
    for name, parameter in student.named_parameters():
        assert parameter.requires_grad == (name in learns), name
        assert parameter.dtype == (torch.float32 if name in learns else torch.bfloat16), name


@pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])
def test_every_part_that_a_family_names_is_there(
    case: FamilyCase, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """And what learns is little: no matrix of a block but those of UNets' ResNets."""
    family = family_named(case.family)
    teacher = made_teacher(tmp_path_factory, case)
    found = time_embeddings_of(load_denoiser_skeleton(teacher / family.denoisers[0]), family)
    for part in family.time_embeddings:
        assert any(f".{part}." in f".{name}." for name in found), part
    matrices = [name for name, value in found.items() if "blocks." in name and name[-1] == "t"]
    assert all(name.endswith("time_emb_proj.weight") for name in matrices)


def test_a_family_that_names_none_is_refused(tmp_path_factory: pytest.TempPathFactory) -> None:
    class Unnamed(Wan):
        time_embeddings = ()

    teacher = made_teacher(tmp_path_factory, CASE_OF["wan"])
    network = load_denoiser_skeleton(teacher / "transformer")
    with pytest.raises(ValueError, match="of a WanTransformer3DModel of the family wan it is not"):
        time_embeddings_of(network, Unnamed())


def test_it_starts_from_the_teacher_alone() -> None:
    with pytest.raises(ValueError, match=r"init is 'time_embeddings', which is stored beside"):
        Student(init="time_embeddings", start_from="a")
