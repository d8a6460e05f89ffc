"""The plan stops what cannot work, and its numbers are right."""

import json
import logging
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from distillery.config.run import parse_config
from distillery.files import read_json
from distillery.pipeline import STAGES
from distillery.planning.page import page_of
from distillery.planning.plan import make_plan
from distillery.planning.solver import on_num_steps
from distillery.planning.text import text_of
from distillery.stages.plan import main
from distillery.teacher.folder import PipelineFolder
from judging import make_dino
from runs import make_run, settings, summary
from tiny import tiny_prompts
from training_phases import phases


def plan(folder: Path, teacher: Path, /, **changes: Any) -> dict[str, Any]:
    output = folder / "results" / "plan.json"
    make_plan(STAGES, parse_config(settings(folder, teacher, **changes), "tiny"), output)
    found: dict[str, Any] = json.loads(output.read_text())
    return found


@pytest.fixture(scope="module")
def plain(teacher: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The plan of the settings as they are; tests must not change it."""
    return plan(tmp_path_factory.mktemp("plain"), teacher)


def test_the_numbers(teacher: Path, tmp_path: Path) -> None:
    found = plan(tmp_path, teacher, targets={"samples_per_prompt": 3, "num_shards": 9})
    assert found["work"] == {
        "num_prompts": {"train": 9, "eval": 5},
        "num_trajectories": 27,
        "num_chunks": 7,
        "trajectory_bytes": 3 * 64 * 4,
        "teacher_calls": 27 * 4 * 2,
        "round_bytes": 0,
        "round_calls": 0,
    }
    assert found["latent_shape"] == [4, 1, 4, 4]
    numbers = {row["stage"]: row["jobs"] for row in found["stages"]}
    assert numbers == {
        "embeddings": 2, "targets": 9, "student": 1, "training": 1, "export": 2, "samples": 6,
        "evaluation": 1, "report": 1,
    }  # fmt: skip
    assert found["disk"]["stages"]["targets"] == 27 * 3 * 64 * 4
    assert found["disk"]["present_bytes"] == 0
    assert found["teacher"]["family"] == "wan"
    assert any("num_shards is 9 for 7 chunks" in line for line in found["advice"])
    assert any("27 trajectories" in line for line in found["advice"])


def test_rounds_are_counted_and_need_their_disk(
    teacher: Path, tmp_path: Path, plain: dict[str, Any]
) -> None:
    training = {"phases": phases(stored=16, rounds={"count": 2, "samples": 8})}
    found = plan(tmp_path, teacher, targets={"samples_per_prompt": 3}, training=training)
    # A state, it again beside where the teacher goes, in two of its four guided steps.
    assert found["work"]["round_bytes"] == 27 * 3 * 64 * 4
    assert found["work"]["round_calls"] == 27 * (2 * 2 + 2)
    assert found["disk"]["stages"]["rounds"] == 2 * 27 * 3 * 64 * 4
    numbers = {row["stage"]: row["jobs"] for row in found["stages"]}
    assert numbers["round_states"] == numbers["round_targets"] == 2 * 2
    assert "27 states of the student, 162 network calls" in summary(found)
    assert "rounds" not in plain["disk"]["stages"]
    student = found["disk"]["stages"]["student"]
    assert student > 1.9 * plain["disk"]["stages"]["student"], "before each round it is written"


def test_prompts_that_are_held_out_are_told_and_some_must_be_left(
    teacher: Path, tmp_path: Path
) -> None:
    found = plan(tmp_path, teacher, training={"held_out_prompts": 2})
    assert "held out          2 prompts that the training is measured on" in summary(found)
    assert "7 to learn from, 2 of the training held out, 5 to evaluate" in summary(found)
    fewer = plan(tmp_path, teacher, samples={"num_prompts": 2})
    assert "9 to learn from, 2 of 5 to evaluate" in summary(fewer)
    with pytest.raises(ValueError, match="held_out_prompts is 9 and there are 9 prompts"):
        plan(tmp_path, teacher, training={"held_out_prompts": 9})


def test_guidance_off_and_half_precision_cost_half(teacher: Path, tmp_path: Path) -> None:
    work = plan(tmp_path, teacher, targets={"guidance_scale": 1.0, "dtype": "bfloat16"})["work"]
    assert work["teacher_calls"] == 9 * 4
    assert work["trajectory_bytes"] == 3 * 64 * 2


def test_the_page_is_one_page_and_knows_the_machine(plain: dict[str, Any]) -> None:
    text = summary(plain)
    assert "9 to learn from, 5 to evaluate" in text
    assert "9 in 3 chunks, 72 network calls" in text
    assert "? cores" not in text
    assert len(text.splitlines()) < 62


@pytest.fixture
def as_quiet_as_before() -> Iterator[None]:
    """The command raises the level of the library's log."""
    log = logging.getLogger("distillery")
    before = log.level
    yield
    log.setLevel(before)


@pytest.mark.usefixtures("as_quiet_as_before")
def test_the_command_prints_the_plan_or_what_is_wrong(
    teacher: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    frozen, output = tmp_path / "run.json", tmp_path / "plan.json"
    arguments = ["--config", str(frozen), "--output", str(output)]
    frozen.write_text(json.dumps(settings(tmp_path, teacher)))
    assert main(arguments) == 0
    told = capsys.readouterr().err
    assert told.endswith(f"{text_of(page_of(read_json(output)))}\n")
    assert "\x1b" not in told, "colours are for terminals"
    frozen.write_text(json.dumps(settings(tmp_path, tmp_path / "nowhere")))
    assert main(arguments) == 1
    told = capsys.readouterr().err
    assert "no such folder" in told
    assert "network calls" not in told, "of the plan before"


def refused(folder: Path, teacher: Path, /, **changes: Any) -> str:
    with pytest.raises((ValueError, FileNotFoundError)) as caught:
        plan(folder, teacher, **changes)
    assert not (folder / "results" / "plan.json").exists()
    return str(caught.value)


def test_damaged_weights(teacher: Path, tmp_path: Path) -> None:
    shutil.copytree(teacher, tmp_path / "teacher")
    (path,) = (tmp_path / "teacher" / "transformer").glob("*.safetensors")
    path.write_bytes(path.read_bytes()[:1000])
    assert "is damaged" in refused(tmp_path, tmp_path / "teacher")


def test_faults_are_told_together(teacher: Path, tmp_path: Path) -> None:
    models = settings(tmp_path, teacher)["samples"]["models"]
    told = refused(
        tmp_path,
        teacher,
        targets={"guidance_scale_2": 3.0},
        samples={"models": models | {"slow": {"source": "teacher", "steps": 1001}}},
        evaluation={"judge": "nowhere/at/all"},
    )
    lines = [line.split(" is ")[0] for line in told.split("\n  ")]
    first = [key for key in lines if key.endswith(".guidance_scale_2")]
    assert "targets.guidance_scale_2" in first
    assert lines == [*first, "samples.models.slow.steps", "evaluation.judge"]


def test_all_that_is_missing_is_told_together(teacher: Path, tmp_path: Path) -> None:
    raw = settings(tmp_path, teacher, teacher={"path": str(tmp_path / "gone")})
    raw["prompts"] = {"train": "lost.csv", "eval": "away.csv"}
    with pytest.raises(ValueError, match=r"lost\.csv .*\n  .*away\.csv .*\n  .*/gone"):
        make_plan(STAGES, parse_config(raw, "tiny"), tmp_path / "results" / "plan.json")


def test_a_size_that_does_not_fit(teacher: Path, tmp_path: Path) -> None:
    message = refused(tmp_path, teacher, teacher={"height": 40, "width": 40})
    assert re.search(r"teacher\.height is 40.*use 32\n.*teacher\.width is 40.*use 32", message)


@pytest.mark.parametrize(
    ("scheduler", "problem"),
    [
        ({"class": "PNDMScheduler"}, "walks the states of a diffusion"),
        ({"class": "Euler"}, "Diffusers has no scheduler 'Euler'"),
        ({"final_sigmas_type": "sigma_min"}, "must lie on the teacher's grid"),
        ({"prediction_type": "epsilon"}, "prediction_type is 'epsilon', and the teacher's own"),
        ({"flow_shfit": 5.0}, "has no setting flow_shfit; it has .*flow_shift"),
    ],
)
def test_a_scheduler_that_does_not_fit(
    teacher: Path, tmp_path: Path, scheduler: dict[str, Any], problem: str
) -> None:
    assert re.search(problem, refused(tmp_path, teacher, teacher={"scheduler": scheduler}))


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({"targets": {"steps": 1002}}, "targets.steps is 1002"),
        (
            {"samples": {"models": {"teacher": {"source": "teacher", "steps": 1001}}}},
            "samples.models.teacher.steps is 1001",
        ),
    ],
)
def test_more_steps_than_the_scheduler_has(
    teacher: Path, tmp_path: Path, changes: dict[str, Any], key: str
) -> None:
    message = refused(tmp_path, teacher, **changes)
    assert f"{key}, the teacher's scheduler has 1000 timesteps: use fewer steps" in message


def test_as_many_steps_as_the_scheduler_has_are_not_refused(teacher: Path, tmp_path: Path) -> None:
    config = parse_config(settings(tmp_path, teacher, targets={"steps": 1000}), "tiny")
    assert not list(on_num_steps(config, PipelineFolder(teacher)))


def test_prompts_in_both_files_are_pointed_out(plain: dict[str, Any]) -> None:
    advice = plain["advice"]
    assert any(line.startswith("5 prompts of prompts.eval are also in") for line in advice)
    assert any(line.startswith("5 prompt ids of prompts.eval are also in") for line in advice)


def test_attention_kernels_that_cannot_be_used_here_are_doubted(
    teacher: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from diffusers.models import attention_dispatch

    monkeypatch.setattr(attention_dispatch, "_CAN_USE_FLASH_ATTN", False)
    flash = {"attention": "flash", "dtype": "bfloat16"}
    doubts = plan(tmp_path, teacher, teacher=settings(tmp_path, teacher)["teacher"] | flash)
    assert any(line.startswith("teacher.attention is 'flash'") for line in doubts["advice"])


def test_numbers_of_prompts_are_doubted(teacher: Path, tmp_path: Path) -> None:
    """There are 5 held-out prompts, which are too few for an interval too."""
    many = plan(tmp_path, teacher, samples={"num_prompts": 500})["advice"]
    assert any("num_prompts is 500, and" in line and "5 prompts: all" in line for line in many)
    assert any("thresholds of evaluation cannot be decided" in line for line in many)


def test_no_disk_space(teacher: Path, tmp_path: Path) -> None:
    message = refused(tmp_path, teacher, targets={"samples_per_prompt": 10**9})
    assert "the run needs" in message
    assert "targets 6437" in message
    lacking = re.search(r"\), ([\d.,]+ \w+) more than there is: ", message)
    assert lacking is not None
    assert "GiB free and holds 0.0 KiB of it; free some space, lower targets.samples_per" in message


def test_chunks_of_this_recipe_alone_count_as_there(teacher: Path, tmp_path: Path) -> None:
    run = make_run(tmp_path, teacher)
    run.encode("train")
    run.all_targets()
    embeddings = plan(tmp_path, teacher, targets={"guidance_scale": 2.0})["disk"]["present_bytes"]
    found = plan(tmp_path, teacher)["disk"]
    assert found["present_bytes"] == embeddings + found["stages"]["targets"]


@pytest.mark.parametrize(
    ("config", "what"),
    [
        ('{"model_type": "clip_text_model"}', "a model of the type 'clip_text_model'"),
        ('{"_class_name": "AutoencoderKL"}', "no model in transformers format"),
        (None, "no model in transformers format"),
    ],
)
def test_a_judge_that_is_no_clip(
    teacher: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    config: str | None,
    what: str,
) -> None:
    """Of a name that could be the hub's, since there is such a folder."""
    monkeypatch.chdir(tmp_path)
    judge = Path("models/other")
    judge.mkdir(parents=True)
    if config:
        (judge / "config.json").write_text(config)
    message = refused(tmp_path, teacher, evaluation={"judge": str(judge)})
    assert f"evaluation.judge is 'models/other', which is {what}; give a folder with" in message


def test_a_vision_model_that_cannot_be_used(teacher: Path, tmp_path: Path) -> None:
    reasons = {"/nowhere": "there is no such folder", str(tmp_path): "cannot be loaded"}
    for path, what in reasons.items():
        message = refused(tmp_path, teacher, evaluation={"vision_models": {"other": path}})
        assert f"evaluation.vision_models.other is '{path}'" in message
        assert what in message


def test_measures_that_lack_images_are_told_with_what_they_need(
    teacher: Path, tmp_path: Path
) -> None:
    """5 held-out prompts; the judge has CLIP's 512 features, the tiny DINOv2 8."""
    make_dino(tmp_path / "dino")
    vision: dict[str, Any] = {"vision_models": {"dino": str(tmp_path / "dino")}}
    of_judge = plan(tmp_path, teacher, samples={"images_per_prompt": 12})
    assert of_judge["num_features"] == {"judge": 512}
    (note,) = (line for line in of_judge["advice"] if "images_per_prompt" in line)
    assert note == (
        "samples.images_per_prompt is 12, of 5 prompts: too few images for some measures in the "
        "512 features of judge, which are left out (Fréchet distance: at least 1026 images of each "
        "model, 2 of each prompt)"
    )
    enough = plan(tmp_path, teacher, samples={"images_per_prompt": 12}, evaluation=vision)
    assert enough["num_features"] == {"dino": 8}
    assert not any("images_per_prompt" in line for line in enough["advice"])
    fewer = {"images_per_prompt": 12, "num_prompts": 1}
    cut = plan(tmp_path, teacher, samples=fewer, evaluation=vision)["advice"]
    assert any("of 1 prompts" in line and "MMD: " in line for line in cut)


def test_bad_prompts_of_either_split(teacher: Path, tmp_path: Path) -> None:
    raw = settings(tmp_path, teacher)
    for split in ("train", "eval"):
        path = Path(raw["prompts"][split])
        good = path.read_text()
        tiny_prompts(3).assign(prompt=" ").to_csv(path, index=False)
        with pytest.raises(ValueError, match=f"{split}.csv has bad rows"):
            make_plan(STAGES, parse_config(raw, "tiny"), tmp_path / "plan.json")
        path.write_text(good)


def test_weights_of_timesteps_that_leave_a_step_out_are_found_before_the_targets(
    teacher: Path, tmp_path: Path
) -> None:
    message = refused(tmp_path, teacher, training={"timestep_weights": "min_snr"})
    assert "'min_snr', which gives segment 0 of this student's 2 less than" in message


def test_a_student_of_fewer_steps_than_segments_is_checked_too(
    teacher: Path, tmp_path: Path
) -> None:
    found = plan(tmp_path, teacher, targets={"num_segments": 4}, student={"steps": 2})
    assert found["work"]["trajectory_bytes"] == 5 * 64 * 4


def test_a_student_that_would_be_guided_again_is_pointed_out(
    teacher: Path, tmp_path: Path, plain: dict[str, Any]
) -> None:
    """One of the models alone: the teacher's guidance is its own."""
    scales = {"teacher": 3.0, "student": 3.0, "untrained": 1.0}
    models = {name: {"source": name, "guidance_scale": scale} for name, scale in scales.items()}
    found = plan(tmp_path, teacher, samples={"models": models})
    (advice,) = (line for line in found["advice"] if ".guidance_scale is " in line)
    assert advice.startswith("samples.models.student.guidance_scale is 3: the student learns")
    assert not any(".guidance_scale is " in line for line in plain["advice"])


def test_online_targets_have_a_table_of_places(
    teacher: Path, tmp_path: Path, plain: dict[str, Any]
) -> None:
    assert plain["training"]["teacher"] is None
    assert "the faster way" not in summary(plain)
    beside = plan(tmp_path, teacher, training={"phases": phases(online=8)})
    places = beside["training"]["teacher"]["places"]
    parameters = beside["teacher"]["parameters"]
    weights = 4 * (parameters["transformer"] + parameters["vae"])
    student = beside["training"]["bytes_per_device"]
    both = student + weights
    assert places["every_rank"] == {
        "gpu": both, "other_gpus": both, "host": 0, "cost": 1 + (0.5 + 4) / 3
    }  # fmt: skip
    assert places["one_rank"]["other_gpus"] == student
    assert places["one_rank"]["cost"] == 1 + (0.5 + 8) / 3, "two processes ask it"
    assert places["cpu"] == {
        "gpu": student, "other_gpus": student, "host": weights, "cost": None
    }  # fmt: skip
    assert student < places["shared"]["gpu"] < student + weights
    told = summary(beside)
    assert "of online targets is: every_rank (no GPU)" in told
    assert all(re.search(rf"^  {name} ", told, re.MULTILINE) for name in ("stored", *places))
    # 4 guided steps of a trajectory, of which 2 segments walk half a step and ask for 2.
    assert beside["training"]["teacher"]["epochs_until_storing_pays"] == 8 / (2 * (0.5 + 4))

    # One of two segments: two passes to draw and to look, one update of the copy, a guided look.
    matching = {"phases": phases(online={"samples": 8, "distribution_matching": {"updates": 1}})}
    matched = plan(tmp_path, teacher, training=matching)["training"]
    assert matched["bytes_per_device"] > student
    table = matched["teacher"]
    assert table["stored"] == beside["training"]["teacher"]["stored"], "there it has no copy"
    assert table["places"]["every_rank"]["cost"] == 1 + (0.5 + 5 / 2 + 4 + 1) / 3
    assert table["epochs_until_storing_pays"] == 8 / (2 * (0.5 + 5 / 2 + 4 + 1))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"training": {"phases": phases(online={"samples": 8, "steps": 3})}},
            "use 1 or 2, or null for all",
        ),
        (
            {"training": {"teacher_residence": "one_rank", "teacher_rank": 9}},
            r"training.teacher_rank is 9 and there are \d processes: use a number up to",
        ),
        (
            {"teacher": {"num_gpus": 2}, "training": {"teacher_residence": "shared"}},
            "teacher.num_gpus is 2 and training.teacher_residence is shared: each GPU has a rank",
        ),
    ],
)
def test_online_targets_that_cannot_be_made_are_refused(
    teacher: Path, tmp_path: Path, changes: dict[str, dict[str, Any]], message: str
) -> None:
    training = {"phases": phases(online=8)} | changes.get("training", {})
    with pytest.raises(ValueError, match=message):
        plan(tmp_path, teacher, **changes | {"training": training})


def test_the_vae_beside_the_student_is_told(
    teacher: Path, tmp_path: Path, plain: dict[str, Any]
) -> None:
    assert plain["training"]["vae_bytes"] == 0
    assert "VAE" not in summary(plain).partition("Costs")[2]
    both = plan(
        tmp_path,
        teacher,
        teacher={"vae_dtype": "bfloat16"},
        previews={"every_samples": 8},
        training={"phases": phases(rollouts={"samples": 8, "perceptual_weight": 0.1})},
    )
    assert both["training"]["vae_bytes"] == both["teacher"]["parameters"]["vae"] * (2 + 4)
    assert re.search(r"VAE \d+\.\d KiB more", summary(both))
