"""A student that begins as another: whole, cut smaller, and what it may not begin as."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import diffusers
import pytest
import torch

from distillery.config.jobs import TrainingJob
from distillery.config.run import parse_config
from distillery.config.student import Student
from distillery.files import read_json, write_json
from distillery.model_folder import METADATA, hash_model, read_metadata, write_metadata
from distillery.planning.first import on_start, sources_of
from distillery.store.belonging import why_not_initial
from distillery.student.build import build_student, plan_student
from distillery.student.info import describe_student, read_student_info
from distillery.teacher.folder import find_teacher
from families import CASES
from families.made import made_run, made_teacher
from runs import Run, planned, settings, summary
from training_phases import phases

WAN = next(case for case in CASES if case.name == "wan")
TRAINING = {"phases": phases(stored=16), "learning_rate": 0.01}
WEIGHTS = "diffusion_pytorch_model.safetensors"


@pytest.fixture(scope="module")
def half(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A finished training of the teacher's second block of two, and its pipeline."""
    student = {"steps": 4, "init": "layers", "layers": [1]}
    run = made_run(tmp_path_factory, WAN, student=student, training=TRAINING)
    run.train_and_export()
    return run


def build(run: Run, folder: Path, start: Path, **student: Any) -> Path:
    """Another student that begins as the one in `start`; returns its folder."""
    job = run.job("training", TrainingJob)
    section = Student.model_validate_json(
        json.dumps({"steps": 4, "start_from": str(start)} | student)
    )
    build_student(job.model_copy(update={"student": section}), folder / "initial")
    return folder / "initial"


def weights(folder: Path) -> dict[str, torch.Tensor]:
    found: dict[str, torch.Tensor] = diffusers.AutoModel.from_pretrained(str(folder)).state_dict()
    return found


@pytest.mark.parametrize("source", ["trained", "pipeline"])
def test_it_begins_with_the_trained_weights(half: Run, source: str, tmp_path: Path) -> None:
    """Its size and blocks are told of the teacher's."""
    start = half.files.student(source)
    made = build(half, tmp_path, start)
    network = start / "transformer" if source == "pipeline" else start
    theirs, ours = weights(network), weights(made)
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name].float()) for name in theirs)
    untrained = weights(half.files.student("initial"))
    assert any(not torch.equal(ours[name], untrained[name]) for name in ours)
    info, before = read_student_info(made), read_student_info(half.files.student("initial"))
    assert info is not None
    assert before is not None
    assert info.layers == (1,)
    assert info.teacher_parameters == before.teacher_parameters > info.num_parameters
    assert "65.7% of the teacher's; blocks 1" in describe_student(info)
    assert read_metadata(made)["origin"]["start"] == hash_model(start)
    section = Student(steps=4, start_from=str(start))
    assert plan_student(section, find_teacher(half.config.teacher)) == info


def test_it_may_be_cut_smaller(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Blocks are counted in the student that it begins as, and told as the teacher's."""
    run = made_run(tmp_path_factory, WAN, training=TRAINING)
    run.train_and_export()
    made = build(run, tmp_path, run.files.student("trained"), init="layers", layers=[1])
    kept = weights(run.files.student("trained"))
    for name, value in weights(made).items():
        source = name.replace("blocks.0.", "blocks.1.")
        assert torch.equal(value, kept[source]), name
    info = read_student_info(made)
    assert info is not None
    assert info.layers == (1,)
    with pytest.raises(ValueError, match=r"num_layers is 3: the student in .* has 2 blocks"):
        build(run, tmp_path / "no", run.files.student("trained"), init="layers", num_layers=3)


def test_blocks_of_blocks_are_the_teachers(half: Run, tmp_path: Path) -> None:
    made = build(half, tmp_path, half.files.student("trained"), init="layers", layers=[0])
    info = read_student_info(made)
    assert info is not None
    assert info.layers == (1,)


def truncate(folder: Path) -> None:
    content = (folder / WEIGHTS).read_bytes()
    (folder / WEIGHTS).write_bytes(content[:-1])


def change_config(**changes: Any) -> Callable[[Path], None]:
    """Another network's configuration, as if a run had made it."""

    def change(folder: Path) -> None:
        write_json(folder / "config.json", read_json(folder / "config.json") | changes)
        write_metadata(folder, read_metadata(folder))

    return change


def forget_training(folder: Path) -> None:
    about = read_metadata(folder)
    del about["recipe"]
    write_metadata(folder, about)


def break_seal(folder: Path) -> None:
    about = json.loads((folder / METADATA).read_text())
    (folder / METADATA).write_text(json.dumps(about | {"samples_seen": 1}))


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (shutil.rmtree, "there is no distillery.json, which a finished student's folder has"),
        (lambda folder: (folder / METADATA).unlink(), "there is no distillery.json"),
        (truncate, rf"it is damaged, or was changed after it was written \({WEIGHTS}\)"),
        (break_seal, r"it is damaged, .* \(distillery.json\)"),
        (forget_training, "it was not trained; give student/trained of its run"),
        (change_config(_class_name="UNet2DConditionModel"), "the teacher's network is a WanT"),
        (change_config(text_dim=64), "it has text_dim 64, the teacher's network has 32"),
        (lambda folder: (folder / "base").mkdir(), "give its pipeline, student/pipeline of its"),
    ],
)
def test_what_no_student_begins_as(
    half: Run, change: Callable[[Path], None], problem: str, tmp_path: Path
) -> None:
    start = tmp_path / "start"
    shutil.copytree(half.files.student("trained"), start)
    change(start)
    with pytest.raises((ValueError, FileNotFoundError), match=problem) as raised:
        build(half, tmp_path, start)
    assert str(raised.value).startswith(f"student.start_from is '{start}'")
    assert not (tmp_path / "initial").exists()


def test_of_a_pipeline_the_network_alone_is_read(half: Run, tmp_path: Path) -> None:
    """A page of scores and a strip of images are laid over it before it is published."""
    start = tmp_path / "start"
    shutil.copytree(half.files.student("pipeline"), start)
    (start / "strip.png").write_bytes(b"an image")
    build(half, tmp_path, start)
    truncate(start / "transformer")
    with pytest.raises(ValueError, match=rf"\(transformer/{WEIGHTS}\)"):
        build(half, tmp_path / "again", start)


def test_sections_that_contradict_themselves() -> None:
    with pytest.raises(ValueError, match=r"is 'a' and student\.init is 'lora', which is stored"):
        Student(start_from="a", init="lora", lora={})  # type: ignore[arg-type]


def of_start(folder: Path, start: str, factory: pytest.TempPathFactory) -> dict[str, Any]:
    return settings(folder, made_teacher(factory, WAN), student={"steps": 2, "start_from": start})


def test_a_run_does_not_begin_as_what_it_makes(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    raw = of_start(tmp_path, "results/tiny/student/trained", tmp_path_factory)
    with pytest.raises(ValueError, match=r"start_from is .*, which this run itself makes"):
        parse_config(raw | {"run": "tiny"}, "tiny")
    parse_config(raw | {"run": "tiny-2"}, "tiny")


def test_the_plan_says_what_it_begins_as(
    half: Run, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    start = half.files.student("trained")
    raw = of_start(tmp_path, str(start), tmp_path_factory)
    plan = planned(raw, tmp_path)
    assert f"init: teacher, from the student in {start}" in summary(plan)
    assert str(start / METADATA) in plan["sources"]
    assert plan["student"]["num_parameters"] < plan["student"]["teacher_parameters"]


def test_a_start_that_is_not_there_is_told_before_the_first_job(
    half: Run, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    config = parse_config(of_start(tmp_path, str(tmp_path / "a"), tmp_path_factory), "tiny")
    (note,) = on_start(config)
    assert "there is no distillery.json" in str(note)
    assert str(tmp_path / "a" / METADATA) in sources_of(config)
    there = str(half.files.student("trained"))
    config = parse_config(of_start(tmp_path, there, tmp_path_factory), "tiny")
    assert not list(on_start(config))


def test_it_belongs_to_what_it_began_as(half: Run, tmp_path: Path) -> None:
    """By content: the folder may be moved, and not be trained again."""
    start = tmp_path / "start"
    shutil.copytree(half.files.student("trained"), start)
    student = half.config.student.model_copy(
        update={"init": "teacher", "layers": None, "start_from": str(start)}
    )
    config = half.config.model_copy(update={"student": student})
    run = Run(tmp_path / "results", config)
    build_student(run.job("training", TrainingJob), run.files.student("initial"))
    assert not why_not_initial(config, run.files, run.files.student("initial"))
    moved = tmp_path / "moved"
    start.rename(moved)
    elsewhere = student.model_copy(update={"start_from": str(moved)})
    config = config.model_copy(update={"student": elsewhere})
    assert not why_not_initial(config, run.files, run.files.student("initial"))
    from_teacher = student.model_copy(update={"start_from": None})
    plain = config.model_copy(update={"student": from_teacher})
    assert "is another now" in why_not_initial(plain, run.files, run.files.student("initial"))
    change_config(eps=1e-3)(moved)
    why = why_not_initial(config, run.files, run.files.student("initial"))
    assert why == "the student that it starts from is another now"
