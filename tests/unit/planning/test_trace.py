"""The plan of a teacher that is traced: before it is learnt, and what a trace cannot serve."""

from pathlib import Path
from typing import Any

import diffusers
import pytest

from distillery.config.run import parse_config
from distillery.families.traced import frames_argument
from distillery.files import read_json, write_json
from distillery.pipeline import STAGES
from distillery.planning.plan import make_plan
from distillery.run_folder import RunFolder
from distillery.stage import everything
from runs import make_run, settings
from traced.pictured import add_images
from traced.walk import text_classes

OFF = {"unguided": {"guidance_scale": 1.0}}


@pytest.fixture
def unknown(teacher: Path, tmp_path: Path) -> Path:
    """A teacher of a class without an adapter: its components lie elsewhere, but for the index."""
    folder = tmp_path / "unknown"
    folder.mkdir()
    for part in teacher.iterdir():
        if part.is_dir():
            (folder / part.name).symlink_to(part)
    index = read_json(teacher / "model_index.json") | {"_class_name": "SkyReelsV2Pipeline"}
    write_json(folder / "model_index.json", index)
    return folder


def planned(folder: Path, teacher: Path, /, **changes: Any) -> dict[str, Any]:
    """A plan before anything is learnt."""
    raw = settings(folder, teacher, **changes)
    make_plan(STAGES, parse_config(raw, "tiny"), folder / "results/plan.json")
    return read_json(folder / "results/plan.json")


def test_a_class_without_an_adapter_is_told_what_to_set(unknown: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"no family for .*'SkyReelsV2Pipeline'.*teacher\.trace"):
        planned(tmp_path, unknown)


def test_before_it_is_learnt_the_plan_says_that_it_will_be(unknown: Path, tmp_path: Path) -> None:
    plan = planned(tmp_path, unknown, teacher={"trace": OFF})
    assert "the first job learns" in str(plan["page"])
    assert "SkyReelsV2Pipeline" in str(plan["page"])


def test_only_a_traced_run_has_a_signature(unknown: Path, tmp_path: Path) -> None:
    run = RunFolder(tmp_path / "results")
    for trace, is_asked in ((OFF, True), (None, False)):
        config = make_run(tmp_path, unknown, teacher={"trace": trace}).config
        assert (run.signature in everything(STAGES, config, run)) == is_asked


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"teacher": {"trace": {"unguided": {"guidance": 1.0}}}},
            r"unguided\.guidance: the call of",
        ),
        ({"teacher": {"trace": OFF | {"always": {"frames": 1}}}}, r"always\.frames: the call of"),
        (
            {"teacher": {"trace": OFF | {"always": {"num_inference_steps": 3}}}},
            r"always\.num_inference_steps: other keys",
        ),
        (
            {"teacher": {"trace": OFF | {"always": {"guidance_scale": 3.0}}}},
            r"always\.guidance_scale: other keys",
        ),
        ({"teacher": {"trace": {"unguided": {"prompt": "x"}}}}, r"unguided\.prompt: other keys"),
        ({"teacher": {"trace": {"unguided": {"guidance_scale": "no"}}}}, "is the guidance scale"),
        ({"student": {"init": "time_embeddings"}}, "which of its weights embed the time is not"),
        ({"teacher": {"trace": OFF | {"image": "photo"}}}, r"image is 'photo': the call of"),
        ({"teacher": {"trace": OFF | {"image": "prompt"}}}, r"image is 'prompt': other keys"),
        (
            {"teacher": {"trace": OFF | {"image": "image"}}},
            r"train\.csv has no column image, and teacher\.trace\.image is set",
        ),
        (
            {"teacher": {"trace": OFF | {"image": "image"}}, "targets": {"batch_size": 2}},
            r"targets\.batch_size is 2: a call with an image is for one prompt",
        ),
    ],
)
def test_what_a_trace_cannot_serve_is_refused(
    unknown: Path, tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    teacher = {"trace": OFF} | changes.pop("teacher", {})
    with pytest.raises(ValueError, match=message):
        planned(tmp_path, unknown, teacher=teacher, **changes)


def test_a_traced_teacher_of_two_networks_is_refused(unknown: Path, tmp_path: Path) -> None:
    (unknown / "transformer_2").symlink_to((unknown / "transformer").resolve())
    index = read_json(unknown / "model_index.json")
    index |= {"_class_name": "WanPipeline", "transformer_2": index["transformer"]}
    write_json(unknown / "model_index.json", index)
    with pytest.raises(ValueError, match="has the networks transformer, transformer_2 and teach"):
        planned(tmp_path, unknown, teacher={"trace": OFF})


def test_a_scheduler_that_draws_noise_is_refused_before_anything_is_learnt(
    unknown: Path, tmp_path: Path
) -> None:
    index = read_json(unknown / "model_index.json")
    (unknown / "scheduler").unlink()
    diffusers.DDPMScheduler().save_pretrained(unknown / "scheduler")
    write_json(unknown / "model_index.json", index | {"scheduler": ["diffusers", "DDPMScheduler"]})
    with pytest.raises(ValueError, match="the teacher's scheduler is DDPMScheduler"):
        planned(tmp_path, unknown, teacher={"trace": OFF})


def test_frames_have_the_name_that_a_class_gives_them() -> None:
    found = {name: frames_argument(getattr(diffusers, name)) for name in text_classes()}
    assert found["SanaVideoPipeline"] == "frames"
    assert found["WanPipeline"] == found["LTXPipeline"] == "num_frames"
    assert found["FluxPipeline"] == ""


def test_a_class_with_an_adapter_is_advised_to_use_it(teacher: Path, tmp_path: Path) -> None:
    """Unless it refuses this one, as Wan's does a network with a time for each token."""
    plan = planned(tmp_path, teacher, teacher={"trace": OFF})
    assert any("WanPipeline has an adapter" in line for line in plan["advice"])
    assert "has no adapter" not in str(plan["page"])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"teacher": {"call": {"guidance_rescal": 0.7}}}, r"teacher\.call\.guidance_rescal"),
        ({"targets": {"steps": 5000, "num_segments": 2}}, r"targets\.steps is 5000"),
        ({"training": {"held_out_prompts": 9}}, "held_out_prompts"),
        ({"evaluation": {"judge": "nowhere"}}, r"evaluation\.judge is 'nowhere'"),
        ({"teacher": {"fps": 24}}, r"teacher\.fps is 24"),
    ],
)
def test_what_can_be_seen_before_it_is_learnt_is_refused_then(
    unknown: Path, tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    """And not by the second job, for which a large teacher was loaded."""
    teacher = {"trace": OFF} | changes.pop("teacher", {})
    with pytest.raises(ValueError, match=message):
        planned(tmp_path, unknown, teacher=teacher, **changes)


def test_the_plan_before_tells_prompts_parameters_and_doubts(unknown: Path, tmp_path: Path) -> None:
    plan = planned(
        tmp_path, unknown, teacher={"trace": OFF}, training={"ema_half_life_samples": 10**6}
    )
    page = str(plan["page"])
    for words in (
        "9 to learn from", "transformer 2", "compared with teacher", "ema_half_life",
        "9 of 4 steps, some 72 network calls; some 6.8 KiB in float32", "signature ",
    ):  # fmt: skip
        assert words in page
    assert any("ema_half_life_samples" in line for line in plan["advice"])


def test_images_that_no_call_takes_are_refused(
    teacher: Path, unknown: Path, tmp_path: Path
) -> None:
    """Of a class with an adapter, and of a traced one without the argument."""
    for folder, section in ((teacher, {}), (unknown, {"trace": OFF})):
        raw = settings(tmp_path, folder, teacher=section)
        add_images(tmp_path / "eval.csv")
        with pytest.raises(ValueError, match=r"eval\.csv has a column image, and .*trace\.image"):
            make_plan(STAGES, parse_config(raw, "tiny"), tmp_path / "results/plan.json")


def test_an_image_of_another_size_is_named_with_its_line(unknown: Path, tmp_path: Path) -> None:
    raw = settings(tmp_path, unknown, teacher={"height": 64, "trace": OFF | {"image": "image"}})
    add_images(tmp_path / "train.csv")
    with pytest.raises(ValueError, match=r"train\.csv has bad rows.*\n  line 2: the image .*crop"):
        make_plan(STAGES, parse_config(raw, "tiny"), tmp_path / "results/plan.json")


def test_a_class_that_diffusers_has_not_is_refused(unknown: Path, tmp_path: Path) -> None:
    index = read_json(unknown / "model_index.json") | {"_class_name": "SkyReelsV9Pipeline"}
    write_json(unknown / "model_index.json", index)
    with pytest.raises(ValueError, match=r"Diffusers .* has no class SkyReelsV9Pipeline"):
        planned(tmp_path, unknown, teacher={"trace": OFF})
