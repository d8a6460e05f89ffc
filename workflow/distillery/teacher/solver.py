"""The teacher's solver: its folder's scheduler, or the one that the configuration puts in its
place.

A scheduler of another class takes what the network was trained with from the folder's. Diffusers
passes settings on by name alone and fills the rest with the new class's defaults.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import torch

from distillery.config.teacher import Teacher
from distillery.files import read_json
from distillery.notes import Note, doubt
from distillery.schedulers import (
    ADVICE,
    Scheduler,
    check_settings,
    is_flow,
    make_scheduler,
    prediction_type,
    setting_of,
    settings_of,
    states_of,
)
from distillery.teacher.folder import PipelineFolder

TRAINED = (
    "num_train_timesteps",
    "beta_start",
    "beta_end",
    "beta_schedule",
    "trained_betas",
    "rescale_betas_zero_snr",
    "prediction_type",
)
"""Settings that say what the network was trained with."""
SHIFTS = ("shift", "flow_shift")
"""Names of one setting of flows, by class."""
OF_THE_GRID = (
    *TRAINED,
    "timestep_spacing",
    "steps_offset",
    "final_sigmas_type",
    "sigma_min",
    "sigma_max",
    "use_karras_sigmas",
    "use_exponential_sigmas",
    "use_beta_sigmas",
    "use_lu_lambdas",
    "use_dynamic_shifting",
    "shift_terminal",
    "time_shift_type",
    "snr_shift_scale",
    *SHIFTS,
)
"""Settings on which noise levels and timesteps depend."""
SAME_LEVELS = 1e-4
"""Largest difference of equal training levels, in alpha."""


def load_scheduler(folder: PipelineFolder, teacher: Teacher | None = None) -> Scheduler:
    """The pipeline's scheduler alone, or the one a teacher's configuration puts in its place.

    Milliseconds, no weights.

    Raises:
        ValueError: Diffusers cannot make it, or, with `teacher`, its states or its prediction are
            not those that the network was trained on.
    """
    own = _own(folder)
    if teacher is None:
        return own
    scheduler = own
    if teacher.scheduler is not None:
        name, changes = _asked(teacher, own)
        check_settings(name, changes)
        scheduler = make_scheduler(name, _config(folder) | solver_settings(folder, teacher))
    _check_states(folder, own, scheduler)
    _check_clock(own, scheduler)
    if states_of(own) == states_of(scheduler):
        _check_prediction(folder, teacher)
    if states_of(scheduler) in ("flow", "diffusion"):
        prediction_type(scheduler)
    return scheduler


def solver_settings(folder: PipelineFolder, teacher: Teacher) -> dict[str, Any]:
    """What `teacher.scheduler` says, without the class, and what its class takes over from the
    folder's under another name or in the place of a default."""
    own = _own(folder)
    name, changes = _asked(teacher, own)
    return _carried(folder, own, name, changes) | changes


def _own(folder: PipelineFolder) -> Scheduler:
    return make_scheduler(folder.index["scheduler"][1], _config(folder))


def _config(folder: PipelineFolder) -> dict[str, Any]:
    config: dict[str, Any] = read_json(folder.path / "scheduler" / "scheduler_config.json")
    return config


def _asked(teacher: Teacher, own: Scheduler) -> tuple[str, dict[str, Any]]:
    changes: dict[str, Any] = dict(teacher.scheduler or {})
    return str(changes.pop("class", type(own).__name__)), changes


def _carried(
    folder: PipelineFolder, own: Scheduler, name: str, changes: Mapping[str, Any]
) -> dict[str, Any]:
    """What a scheduler of another class would otherwise lose of the folder's."""
    known, new, config = settings_of(type(own).__name__), settings_of(name), _config(folder)
    if name == type(own).__name__:
        return {}
    pairs = [(setting, setting) for setting in TRAINED]
    pairs += [(shift, other) for shift in SHIFTS for other in SHIFTS if is_flow(own)]
    return {
        setting: own.config[from_setting]
        for from_setting, setting in pairs
        if from_setting in known
        and setting in new
        and setting not in changes
        and config.get(setting, new[setting]) != own.config[from_setting]
    }


def _check_prediction(folder: PipelineFolder, teacher: Teacher) -> None:
    """Raise ValueError for another prediction than the folder says that its network makes."""
    said = _config(folder).get("prediction_type")
    asked = (teacher.scheduler or {}).get("prediction_type")
    is_known = "prediction_type" in settings_of(folder.index["scheduler"][1])
    if is_known and None not in (said, asked) and said != asked:
        raise ValueError(
            f"teacher.scheduler: prediction_type is {asked!r}, and the teacher's own scheduler "
            f"says {said!r}, which is what the network was trained to predict: remove it; if the "
            f"folder is wrong, correct {folder.path}/scheduler/scheduler_config.json"
        )


def _check_states(folder: PipelineFolder, own: Scheduler, scheduler: Scheduler) -> None:
    """Raise ValueError for a flow network with a scheduler of diffusion, and the reverse."""
    trained = "flow" if folder.family.is_flow else states_of(own)
    walked = states_of(scheduler)
    if walked != trained:
        source = f"family {folder.family.name}" if folder.family.is_flow else type(own).__name__
        raise ValueError(
            f"teacher.scheduler: {type(scheduler).__name__} with these settings walks the states "
            f"of {_kind_named(walked)}, and this teacher ({source}) was trained on those of "
            f"{_kind_named(trained)}: its images would be noise; {ADVICE}"
        )


def _check_clock(own: Scheduler, scheduler: Scheduler) -> None:
    """Raise ValueError where the network would be told log sigmas for timesteps, or the reverse."""
    if is_continuous(own) != is_continuous(scheduler):
        raise ValueError(
            f"teacher.scheduler: {type(scheduler).__name__} with timestep_type "
            f"{setting_of(scheduler, 'timestep_type')!r} tells the network other timesteps than "
            f"the teacher's own {type(own).__name__}, which it was trained with; remove "
            "timestep_type, or keep the class that has it"
        )


def is_continuous(scheduler: Scheduler) -> bool:
    """Whether a network gets log sigma / 4: Euler's, of v prediction (`set_timesteps`)."""
    names = ("timestep_type", "prediction_type")
    return [setting_of(scheduler, name) for name in names] == ["continuous", "v_prediction"]


def _kind_named(kind: str) -> str:
    return {"flow": "a flow", "diffusion": "a diffusion"}.get(kind, f"{kind} alone")


def on_solver(folder: PipelineFolder, teacher: Teacher) -> Iterator[Note]:
    """A chosen scheduler that walks other noise levels than the folder's."""
    if teacher.scheduler is None:
        return
    own, scheduler = _own(folder), load_scheduler(folder, teacher)
    if lost := _lost(own, scheduler):
        yield doubt(
            "teacher.scheduler",
            f": {type(scheduler).__name__} has no {', '.join(lost)}, which the teacher's own "
            f"{type(own).__name__} sets: it walks other noise levels",
        )
    if not _same_levels(own, scheduler):
        yield doubt(
            "teacher.scheduler",
            f": the noise levels of {type(scheduler).__name__} over its training timesteps are not "
            f"those of the teacher's own {type(own).__name__}, which the network learned",
            "remove the settings of betas, or of num_train_timesteps, unless you know that the "
            "folder is wrong",
        )
    shifts = [name for name in SHIFTS if name in teacher.scheduler]
    if shifts and setting_of(scheduler, "use_dynamic_shifting"):
        yield doubt(
            "teacher.scheduler",
            f": {shifts[0]} has no effect beside use_dynamic_shifting: true, by which the size of "
            "the image decides",
            "set use_dynamic_shifting: false to shift by it",
        )


def _lost(own: Scheduler, scheduler: Scheduler) -> list[str]:
    """The folder's settings of the grid, as `name: value`, that the chosen class does not have."""
    known, new = (settings_of(type(each).__name__) for each in (own, scheduler))
    has_shift = any(shift in new for shift in SHIFTS)
    return [
        f"{name}: {own.config[name]}"
        for name in OF_THE_GRID
        if name in known
        and name not in new
        and own.config[name] != known[name]
        and not (name in SHIFTS and has_shift)
    ]


def _same_levels(own: Scheduler, scheduler: Scheduler) -> bool:
    """Whether both know equal levels for the timesteps that the network was trained at."""
    first, second = (getattr(each, "alphas_cumprod", None) for each in (own, scheduler))
    if not isinstance(first, torch.Tensor) or not isinstance(second, torch.Tensor) or is_flow(own):
        numbers = (each.config.get("num_train_timesteps") for each in (own, scheduler))
        return len(set(numbers)) == 1
    if len(first) != len(second):
        return False
    return bool((first.sqrt() - second.sqrt()).abs().max() <= SAME_LEVELS)
