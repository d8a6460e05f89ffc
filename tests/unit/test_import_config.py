"""Old flags and student_config.json: what they become, and that nothing is dropped in silence."""

import json
import shlex
from pathlib import Path

import pytest
import yaml

from distillery.config.run import GeneratingConfig, parse_config
from distillery.import_config import REFUSED, SWITCHES, TAKEN, import_run, main, read_flags

OLD = shlex.split(
    "--model_id owner/model --prompts-file prompts.csv --num_inference_steps 30 "
    "--guidance_scale=5 --resolution 1024 --images_per_prompt 4 --dtype bf16 --gpu_ids 0 2 "
    "--max_workers 2 --teacher_on_cpu"
)


def test_flags_in_all_their_spellings() -> None:
    words = ["--a", "1", "--b-c=x y", "--d", "--e", "0", "1", "--f="]
    assert read_flags(words) == {"a": "1", "b_c": "x y", "d": "true", "e": "0,1", "f": ""}
    with pytest.raises(ValueError, match="'30' follows no flag"):
        read_flags(["30"])


def test_an_old_generator_becomes_a_generating_run() -> None:
    imported = import_run("mine", read_flags(OLD), None)
    config = parse_config(imported.config, "mine.yaml")
    assert isinstance(config, GeneratingConfig)
    teacher = config.teacher
    assert (teacher.height, teacher.width, teacher.dtype) == (1024, 1024, "bfloat16")
    assert teacher.offload == "model"
    assert config.samples.images_per_prompt == 4
    assert config.samples.models["teacher"].steps == 30
    assert "num_inference_steps -> samples.models.teacher.steps: 30" in imported.lines
    assert any("CUDA_VISIBLE_DEVICES=0,2 snakemake" in line for line in imported.lines)
    assert any("--resources gpu=2" in line for line in imported.lines)


def test_seeds_are_counted() -> None:
    for seeds, number in (("1,2,3", 3), ([4, 5], 2), ("7", 1)):
        imported = import_run("mine", {"seeds": seeds}, None)
        assert imported.config["samples"]["images_per_prompt"] == number


@pytest.mark.parametrize(
    "flag", [*REFUSED, *SWITCHES, *" ".join(TAKEN.values()).split(), "nonsense"]
)
@pytest.mark.parametrize("value", ["true", "false", "3"])
def test_every_flag_has_its_line(flag: str, value: str) -> None:
    lines = import_run("mine", {flag: value}, None).lines
    assert lines[0].startswith((f"{flag} -> ", f"{flag}: left out, "))


def test_a_student_config_makes_a_run_that_trains() -> None:
    student = {"_class_name": "X", "num_layers": 4, "hidden_size": 64, "student_steps": 4}
    old = "--num_inference_steps 28 --guidance 4 --guidance_scale_2 3 --prompts p.csv"
    flags = read_flags(shlex.split(old))
    imported = import_run("mine", flags, student)
    scales = {"guidance_scale": 4, "guidance_scale_2": 3}
    assert imported.config["targets"] == {"steps": 28, **scales}
    assert imported.config["prompts"] == {"train": "p.csv"}
    assert imported.config["student"] == {"steps": 4}
    assert any(
        line.startswith("num_layers: left out, write student.init: layers")
        for line in imported.lines
    )
    for key in ("_class_name", "hidden_size"):
        assert any(line.startswith(f"{key}: left out, a shape") for line in imported.lines)


@pytest.mark.parametrize(
    ("flags", "residence"),
    [
        ({"teacher_rank": "1"}, {"teacher_residence": "one_rank", "teacher_rank": 1}),
        ({"teacher_on_cpu": "true"}, {"teacher_residence": "cpu"}),
        ({"share_teacher": "true"}, {"teacher_residence": "shared"}),
    ],
)
def test_an_old_trainers_place_of_its_teacher_is_kept(
    flags: dict[str, str], residence: dict[str, object]
) -> None:
    imported = import_run("mine", flags, {"student_steps": 4})
    assert imported.config["training"] == {"phases": [{"learn": "online"}]} | residence
    assert any("stored targets need no teacher" in line for line in imported.lines)
    assert "training" not in import_run("mine", flags, None).config


def test_a_teacher_over_the_gpus_that_train_is_explained() -> None:
    imported = import_run("mine", {"balance_teacher": "true"}, {"student_steps": 4})
    assert imported.config["teacher"] == {"num_gpus": 2}
    assert any("each has a rank of its own" in line for line in imported.lines)


def test_the_script_writes_a_file_that_can_be_used(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """In the order of a configuration, as a person reads it; a file that is there is left alone."""
    output = tmp_path / "mine.yaml"
    assert main(["--run", "mine", "--output", str(output), "--", *OLD]) == 0
    assert f"complete: snakemake -n --configfile {output}" in capsys.readouterr().err
    written = output.read_text()
    config = yaml.safe_load(written)
    assert parse_config(config, "mine.yaml").run == "mine"
    assert list(config) == list(import_run("mine", read_flags(OLD), None).config)
    assert list(config) != sorted(config)
    assert main(["--run", "mine", "--output", str(output), "--", *OLD]) == 1
    assert f"{output} exists already" in capsys.readouterr().err
    assert output.read_text() == written


def test_the_script_says_what_is_missing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    student, output = tmp_path / "student_config.json", tmp_path / "x.yaml"
    student.write_text(json.dumps({"learning_rate": 0.001}))
    options = ["--run", "x", "--student", str(student), "--output", str(output)]
    assert main([*options, "--", "--model", "a/b"]) == 0
    said = capsys.readouterr().err
    assert "learning_rate -> training.learning_rate: 0.001" in said
    assert "still to do" in said
    assert "targets is missing" in said
