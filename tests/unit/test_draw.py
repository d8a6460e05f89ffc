"""Own prompts from a finished student: the run that draws, and what is no student."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from distillery.config.run import GeneratingConfig, parse_config
from distillery.draw import INDEX, METADATA, draw
from distillery.files import hash_file, write_json, write_sealed
from runs import settings

CALL: dict[str, Any] = {
    "arguments": {
        "num_inference_steps": 2,
        "guidance_scale": 0.0,
        "height": 96,
        "width": 64,
        "num_frames": 9,
        "max_sequence_length": 32,
        "output_type": "pil",
    },
    "dtypes": {"default": "float16", "vae": "float32"},
    "fps": 4,
}


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def student(call: dict[str, Any] | None = CALL, **more: Any) -> Path:
    """The pipeline of results/demo; with no call it is only a trained network."""
    folder = Path("results/demo/student/pipeline")
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / INDEX, {"_class_name": "WanPipeline"})
    about: dict[str, Any] = {"files": {INDEX: hash_file(folder / INDEX)}}
    about |= {"call": call} if call else {}
    write_sealed(folder / METADATA, about | {"recipe": {}} | more)
    return folder


def drawn(*texts: str, **settings: Any) -> GeneratingConfig:
    """The configuration that is written for a drawing."""
    written, _ = draw(str(student()), texts, None, **settings)
    config = parse_config(yaml.safe_load(written.read_text()), "drawn")
    assert isinstance(config, GeneratingConfig)
    return config


def test_a_drawing_is_called_as_the_student_was_exported() -> None:
    written, sheet = draw(str(student()), ["ein Kreis, grün", 'a "red" dog'], None, images=20)
    assert sheet == Path("results/demo-drawn/samples/student/sheet.png")
    config = parse_config(yaml.safe_load(written.read_text()), "drawn")
    teacher, samples = config.teacher, config.samples
    assert teacher.path == "results/demo/student/pipeline"
    assert (teacher.dtype, teacher.height, teacher.width) == ("float16", 96, 64)
    assert (teacher.num_frames, teacher.fps, teacher.max_sequence_length) == (9, 4, 32)
    model = samples.models["student"]
    assert (model.steps, model.guidance_scale) == (2, 1.0)
    assert (samples.images_per_prompt, samples.batch_size, samples.num_shards) == (20, 4, 2)
    lines = Path(str(config.prompts.eval)).read_text(encoding="utf-8").splitlines()
    assert lines == ["prompt", '"ein Kreis, grün"', '"a ""red"" dog"']


def test_a_network_that_takes_the_scale_is_given_it() -> None:
    call = CALL | {"arguments": CALL["arguments"] | {"guidance_scale": 3.5}}
    written, _ = draw(str(student(call)), ["a"], None)
    settings = yaml.safe_load(written.read_text())
    assert settings["samples"]["models"]["student"]["guidance_scale"] == 3.5


def test_prompts_may_be_a_file_and_the_run_has_a_name() -> None:
    Path("mine.txt").write_text("a\nb\n")
    written, sheet = draw(str(student()), [], "mine.txt", run="other", seed=5)
    assert sheet.parts[:2] == ("results", "other")
    settings = yaml.safe_load(written.read_text())
    assert (settings["seed"], settings["prompts"]) == (5, {"eval": "mine.txt"})
    assert drawn("a", run="again").run == "again"


def test_a_traced_student_is_traced_as_its_teacher_was(tmp_path: Path) -> None:
    traced = {"trace": {"unguided": {"guidance_scale": 1.0}}}
    raw = settings(tmp_path / "inputs", tmp_path, teacher=traced)
    folder = student()
    write_json(Path("results/demo/config/run.json"), raw | {"run": "demo"})
    written, _ = draw(str(folder), ["a"], None)
    config = parse_config(yaml.safe_load(written.read_text()), "drawn")
    assert config.teacher.trace is not None


def test_what_is_no_student_is_refused_with_what_it_lacks() -> None:
    folder = student()
    (folder / METADATA).unlink()
    with pytest.raises(ValueError, match=r"student's pipeline, it has no distillery\.json: give"):
        draw(str(folder), ["a"], None)
    (folder / INDEX).unlink()
    with pytest.raises(ValueError, match=r"it has no model_index\.json and no distillery\.json"):
        draw(str(folder), ["a"], None)
    with pytest.raises(ValueError, match="does not say how it is called"):
        draw(str(student(call=None)), ["a"], None)
    with pytest.raises(ValueError, match="is no folder and no hub id"):
        draw("results/none/student/pipeline", ["a"], None)
    write_json(student() / INDEX, {"_class_name": "FluxPipeline"})
    with pytest.raises(ValueError, match=r"changed after its export: model_index\.json"):
        draw("results/demo/student/pipeline", ["a"], None)
    with pytest.raises(ValueError, match="was not trained: give results/RUN/student/pipeline"):
        draw(str(student(recipe=None)), ["a"], None)
    with pytest.raises(ValueError, match=r"of any number of steps.*code of its README\.md"):
        draw(str(student(student={"init": "flow_map"})), ["a"], None)
    assert not Path("results/demo-drawn").exists()


def test_a_drawing_takes_no_run_that_trains() -> None:
    write_json(Path("results/demo/config/run.json"), {"training": {}})
    with pytest.raises(ValueError, match="results/demo is a run that trains: give the drawing"):
        drawn("a", run="demo")
