"""The scheduler that a configuration puts in the place of the folder's."""

import logging
from pathlib import Path
from typing import Any

import pytest
from diffusers import (
    DDIMScheduler,
    EulerDiscreteScheduler,
    FlowMatchEulerDiscreteScheduler,
    UniPCMultistepScheduler,
)

from distillery.generation.walk import solver_of
from distillery.schedulers import is_flow, states_of
from distillery.teacher.solver import load_scheduler, on_solver, solver_settings
from solvers import CLASSES, FLOW, SD, TEACHERS, teacher_folder, with_scheduler

UNIPC = {
    "class": "UniPCMultistepScheduler",
    "use_flow_sigmas": True,
    "prediction_type": "flow_prediction",
}
EULER_FLOW = {"class": "FlowMatchEulerDiscreteScheduler"}
DDIM = {"class": "DDIMScheduler", "timestep_spacing": "trailing", "clip_sample": False}


def load(folder: Path, name: str, scheduler: dict[str, Any] | None, own: Any = None) -> Any:
    return load_scheduler(teacher_folder(folder, name, own), with_scheduler(scheduler))


def timesteps(scheduler: Any) -> list[int]:
    scheduler.set_timesteps(4)
    return [round(float(timestep)) for timestep in scheduler.timesteps]


def test_the_shift_goes_along_to_the_other_name(tmp_path: Path) -> None:
    assert timesteps(load(tmp_path / "a", "sd3", UNIPC))[1:] == [900, 750, 500]
    assert timesteps(load(tmp_path / "b", "wan", EULER_FLOW)) == [1000, 858, 602, 9]
    assert timesteps(load(tmp_path / "c", "wan", EULER_FLOW | {"shift": 1.0})) == [
        1000,
        667,
        334,
        1,
    ]
    assert load(tmp_path / "d", "sd3", UNIPC | {"flow_shift": 5.0}).config.flow_shift == 5.0


def test_a_stale_setting_of_another_class_does_not_count(tmp_path: Path) -> None:
    own = FlowMatchEulerDiscreteScheduler.from_config({"shift": 3.0, "flow_shift": 1.0})
    assert load(tmp_path, "sd3", UNIPC, own).config.flow_shift == 3.0


@pytest.mark.parametrize(("name", "chosen"), [("wan", EULER_FLOW), ("sd3", UNIPC)])
def test_settings_of_the_folders_class_are_left_out_without_a_warning(
    tmp_path: Path, name: str, chosen: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[logging.LogRecord] = []
    handler = logging.Handler(logging.WARNING)
    handler.emit = told.append  # type: ignore[method-assign]
    monkeypatch.setattr(logging.getLogger("diffusers"), "handlers", [handler])
    folder, (_, _, shape) = teacher_folder(tmp_path, name), TEACHERS[name]
    solver_of(folder.family, load_scheduler(folder, with_scheduler(chosen)), 4, shape)
    assert not told


def test_only_what_another_class_would_lose_is_taken_over(tmp_path: Path) -> None:
    folder = teacher_folder(tmp_path / "a", "sd3")
    assert solver_settings(folder, with_scheduler(UNIPC))["flow_shift"] == 3.0
    same = {"class": "FlowMatchEulerDiscreteScheduler", "shift": 2.0}
    assert solver_settings(folder, with_scheduler(same)) == {"shift": 2.0}
    sdxl = teacher_folder(tmp_path / "b", "sdxl")
    assert solver_settings(sdxl, with_scheduler(DDIM)).keys() == DDIM.keys() - {"class"}


def test_betas_that_the_folder_leaves_to_its_class_go_along(tmp_path: Path) -> None:
    """LCM's defaults are Stable Diffusion's, DDIM's are not."""
    scheduler = load(tmp_path, "sd15", {"class": "LCMScheduler"}, DDIMScheduler())
    assert (scheduler.config.beta_start, scheduler.config.beta_schedule) == (0.0001, "linear")


@pytest.mark.parametrize("name", TEACHERS)
def test_flow_and_diffusion_do_not_mix(tmp_path: Path, name: str) -> None:
    is_flow_network = is_flow(TEACHERS[name][1])
    for other in (DDIM, EULER_FLOW, UNIPC, {"class": "EulerDiscreteScheduler"}):
        fits = (other in (EULER_FLOW, UNIPC)) == is_flow_network
        if fits:
            assert is_flow(load(tmp_path / "a", name, other)) == is_flow_network
            continue
        with pytest.raises(ValueError, match=r"^teacher\.scheduler: .*trained on those of a"):
            load(tmp_path / "b", name, other)


@pytest.mark.parametrize("name", ["wan", "sd3", "flux-dev", "sana", "qwen-image"])
def test_a_flow_familys_generic_scheduler_does_not_tell(tmp_path: Path, name: str) -> None:
    """The family does, where the folder's own is one of diffusion."""
    with pytest.raises(ValueError, match="trained on those of a flow"):
        load(tmp_path / "a", name, None, DDIMScheduler(**SD))
    shift = {"flow_shift": 3.0}
    assert is_flow(load(tmp_path / "b", name, UNIPC | shift, DDIMScheduler(**SD)))


def test_a_flow_of_an_older_family_is_told_by_its_folder(tmp_path: Path) -> None:
    own = UniPCMultistepScheduler(**FLOW)
    assert is_flow(load(tmp_path / "a", "sdxl", None, own))
    with pytest.raises(ValueError, match="trained on those of a flow"):
        load(tmp_path / "b", "sdxl", DDIM, own)


@pytest.mark.parametrize("name", CLASSES)
def test_every_class_is_of_the_folders_kind_or_refused(tmp_path: Path, name: str) -> None:
    for teacher in ("sdxl", "sd3"):
        walked, refusal = found(tmp_path / teacher, teacher, name)
        expected = "flow" if teacher == "sd3" else "diffusion"
        assert walked == expected or "teacher.scheduler" in refusal


def found(folder: Path, teacher: str, name: str) -> tuple[str, str]:
    """The states that a class walks for a teacher, or why it is refused."""
    try:
        return states_of(load(folder, teacher, {"class": name})), ""
    except ValueError as error:
        return "", str(error)


def test_another_prediction_than_the_folders_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"prediction_type is 'v_prediction'.*says 'epsilon'"):
        load(tmp_path / "a", "sdxl", {"prediction_type": "v_prediction"})
    # A folder that says nothing may hold either.
    own = EulerDiscreteScheduler(**SD)
    config = teacher_folder(tmp_path / "b", "sdxl", own).path / "scheduler/scheduler_config.json"
    config.write_text(config.read_text().replace('"prediction_type"', '"ignored"'))
    folder = type(teacher_folder(tmp_path / "c", "sdxl"))(tmp_path / "b")
    chosen = load_scheduler(folder, with_scheduler({"prediction_type": "v_prediction"}))
    assert chosen.config.prediction_type == "v_prediction"


def test_other_timesteps_than_the_networks_are_refused(tmp_path: Path) -> None:
    continuous = {"class": "EulerDiscreteScheduler", "timestep_type": "continuous"}
    with pytest.raises(ValueError, match="tells the network other timesteps"):
        load(tmp_path / "a", "sd21", continuous)
    own = EulerDiscreteScheduler(prediction_type="v_prediction", timestep_type="continuous")
    load(tmp_path / "b", "sd21", None, own)
    with pytest.raises(ValueError, match="tells the network other timesteps"):
        load(tmp_path / "c", "sd21", DDIM, own)
    load(tmp_path / "d", "sdxl", continuous)  # without effect on what predicts noise


def test_flow_states_with_noise_as_prediction_are_refused(tmp_path: Path) -> None:
    without = {key: value for key, value in UNIPC.items() if key != "prediction_type"}
    with pytest.raises(ValueError, match="'epsilon' on flow states"):
        load(tmp_path, "sd3", without)


@pytest.mark.parametrize(
    ("setting", "told"),
    [
        ({"steps_offset": "one"}, "a whole number"),
        ({"steps_offset": 1.5}, "a whole number"),
        ({"use_karras_sigmas": "false"}, "true or false"),
        ({"timestep_spacing": 3}, "text"),
        ({"beta_end": True}, "a number"),
        ({"beta_schedule": "cosine"}, "cosine is not implemented"),
        ({"class": "EDMEulerScheduler"}, "cannot be made"),
        ({"class": "Scheduler"}, "no scheduler 'Scheduler'"),
        ({"class": "nn"}, "no scheduler 'nn'"),
        ({"class": "ScoreSdeVeScheduler"}, "solves no pipeline"),
    ],
)
def test_what_diffusers_would_raise_is_told(
    tmp_path: Path, setting: dict[str, Any], told: str
) -> None:
    with pytest.raises(ValueError, match=rf"^teacher\.scheduler: .*{told}"):
        load(tmp_path, "sdxl", setting)


def test_what_is_lost_or_changed_is_a_doubt(tmp_path: Path) -> None:
    sdxl = teacher_folder(tmp_path / "a", "sdxl")
    assert not list(on_solver(sdxl, with_scheduler(None)))
    assert not list(on_solver(sdxl, with_scheduler(DDIM)))
    (levels,) = map(str, on_solver(sdxl, with_scheduler({"beta_schedule": "linear"})))
    assert "which the network learned" in levels
    (snr,) = map(str, on_solver(sdxl, with_scheduler({"class": "CogVideoXDDIMScheduler"})))
    assert "which the network learned" in snr
    qwen = teacher_folder(tmp_path / "b", "qwen-image")
    (lost,) = map(
        str, on_solver(qwen, with_scheduler(UNIPC | {"class": "DPMSolverMultistepScheduler"}))
    )
    assert "shift_terminal: 0.02" in lost
    flux = teacher_folder(tmp_path / "c", "flux-dev")
    (idle,) = map(str, on_solver(flux, with_scheduler({"shift": 5.0})))
    assert "shift has no effect beside use_dynamic_shifting" in idle
