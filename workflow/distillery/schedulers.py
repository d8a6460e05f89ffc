"""Diffusers' schedulers: the grid that each walks, and a first-order one on a part of it.

A teacher may be solved with any deterministic scheduler that is called once a step. Its student
needs a scheduler of first order whose few states lie on the teacher's grid, because then a secant
between two stored states is exactly one of its steps. Schedulers are distinguished here by class,
for all families alike.
"""

import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from itertools import pairwise
from math import inf
from typing import Any

from distillery.schedule import PredictionType, Schedule

Scheduler = Any
"""A Diffusers scheduler; Diffusers ships no types."""

GRID_TOLERANCE = 1e-6
"""Largest difference of equal grids, in alpha, sigma and thousandths of a timestep."""
TIMESTEP_SLACK = 1e-4
"""Share of the training's timesteps by which rounding may lead beyond them."""

MULTISTEP = ("UniPCMultistepScheduler", "DPMSolverMultistepScheduler")
STATIC_SHIFT_ROUNDS = 20
MOST_TIMESTEPS = 100_000
"""Of a training; a scheduler holds some tensors of so many numbers."""
ADVICE = (
    "set teacher.scheduler, for example {class: DDIMScheduler, timestep_spacing: trailing, "
    "clip_sample: false} for SDXL and older models, or {class: UniPCMultistepScheduler, "
    "use_flow_sigmas: true, flow_shift: 3.0, prediction_type: flow_prediction} for flow models"
)


def make_scheduler(class_name: str, config: Mapping[str, Any]) -> Scheduler:
    """A scheduler of a Diffusers class, from its own or another class's configuration.

    Raises ValueError for a class that Diffusers does not have, or settings that it cannot take.
    """
    scheduler_class = _class_named(class_name)
    number = config.get("num_train_timesteps", 0)
    if type(number) is int and number > MOST_TIMESTEPS:
        raise ValueError(
            f"teacher.scheduler: num_train_timesteps is {number:,}, at most {MOST_TIMESTEPS:,} are "
            "possible, and networks are trained with some 1,000: remove it, or correct the "
            "teacher's scheduler/scheduler_config.json"
        )
    # A folder's settings for another class are without effect, and what a user sets is checked.
    with told(f"{class_name} cannot be made with these settings"), without_warnings():
        return scheduler_class.from_config(dict(config))


def copy_of(scheduler: Scheduler, **changes: Any) -> Scheduler:
    """A scheduler of the same settings, but for some, without timesteps."""
    with without_warnings():  # as in `make_scheduler`
        return type(scheduler).from_config(scheduler.config, **changes)


@contextmanager
def with_methods(instance: Any, **methods: Callable[..., Any]) -> Iterator[None]:
    """Give one scheduler or pipeline other methods for a while."""
    own: dict[str, Any] = instance.__dict__
    before = {name: own[name] for name in methods if name in own}
    own.update(methods)
    try:
        yield
    finally:
        for name in methods:
            del own[name]
        own.update(before)


@contextmanager
def without_warnings() -> Iterator[None]:
    """Without those of Diffusers, where the caller says better what they are of."""
    from diffusers.utils import logging

    level = logging.get_verbosity()
    logging.set_verbosity_error()
    try:
        yield
    finally:
        logging.set_verbosity(level)


@contextmanager
def told(problem: str) -> Iterator[None]:
    """Raise what Diffusers raises for a user's settings, of whatever type, as a ValueError that
    begins with the key and says what to set."""
    try:
        yield
    except Exception as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        advice = "" if "set teacher.scheduler" in reason else f"; {ADVICE}"
        raise ValueError(f"teacher.scheduler: {problem} ({reason}){advice}") from error


def settings_of(class_name: str) -> dict[str, Any]:
    """The settings of a scheduler's class, with their defaults."""
    parameters = inspect.signature(_class_named(class_name).__init__).parameters
    return {name: each.default for name, each in parameters.items() if name != "self"}


def check_settings(class_name: str, settings: Mapping[str, object]) -> None:
    """Raise ValueError for a setting that a scheduler's class lacks, which Diffusers would ignore,
    or for a value of another type than its default."""
    known = settings_of(class_name)
    unknown = [name for name in settings if name not in known]
    if unknown:
        raise ValueError(
            f"teacher.scheduler: {class_name} has no setting {', '.join(unknown)}; it has "
            f"{', '.join(sorted(known))}"
        )
    for name, value in settings.items():
        kinds = _KINDS.get(type(known[name]), (bool, int, float, str))
        if type(value) not in kinds:
            raise ValueError(
                f"teacher.scheduler: {name} of {class_name} is {value!r}, which must be "
                f"{' or '.join(_KIND_NAMES[kind] for kind in kinds)}, such as {known[name]!r}"
            )


_KINDS: Mapping[type, tuple[type, ...]] = {
    bool: (bool,),
    int: (int,),
    float: (float, int),
    str: (str,),
}
"""Type of a setting's default to those of its values; a bool is no number here."""
_KIND_NAMES = {bool: "true or false", int: "a whole number", float: "a number", str: "text"}


def _class_named(class_name: str) -> Any:
    import diffusers  # heavy, and the numbers below do not need it

    scheduler_class = getattr(diffusers, class_name, None)
    if class_name.startswith("_") or not class_name.endswith("Scheduler") or not scheduler_class:
        raise ValueError(
            f"teacher.scheduler: Diffusers has no scheduler {class_name!r}; supported for a "
            f"distillation: {', '.join(_LEVELS_OF)}"
        )
    lacking = getattr(scheduler_class, "_backends", [])
    if lacking:  # Diffusers' stand-in for a class whose packages are not installed
        raise ValueError(
            f"teacher.scheduler: {class_name} needs {' and '.join(lacking)}, which is not all "
            f"installed; {ADVICE}"
        )
    if not all(hasattr(scheduler_class, name) for name in ("from_config", "set_timesteps", "step")):
        raise ValueError(f"teacher.scheduler: {class_name} solves no pipeline's call; {ADVICE}")
    return scheduler_class


def plain_config(scheduler: Scheduler) -> dict[str, Any]:
    """A scheduler's class and configuration as JSON types, without Diffusers' private entries."""
    config = {
        key: list(value) if isinstance(value, tuple) else value
        for key, value in scheduler.config.items()
        # Infinite is a class's own default (lambda_min_clipped), and JSON has no such number.
        if not key.startswith("_") and value not in (inf, -inf)
    }
    return {"class": type(scheduler).__name__, **config}


def is_flow(scheduler: Scheduler) -> bool:
    """Whether states are `(1 - sigma) * clean + sigma * noise`."""
    is_flow_match = type(scheduler).__name__.startswith("FlowMatch")
    return is_flow_match or bool(setting_of(scheduler, "use_flow_sigmas", False))


def setting_of(scheduler: Scheduler, name: str, default: object = None) -> Any:
    """A setting's value, or a default where the class has no such setting.

    Diffusers keeps in `config` what a folder holds for another class, without effect.
    """
    known = inspect.signature(type(scheduler).__init__).parameters
    return scheduler.config[name] if name in known else default


def states_of(scheduler: Scheduler) -> str:
    """The kind of states that a scheduler walks: flow, diffusion, EDM, or, for a class that is
    alone with its kind, that class."""
    name = type(scheduler).__name__
    if is_flow(scheduler):
        return "flow"
    if "beta_start" in settings_of(name):
        return "diffusion"
    return "EDM" if name.startswith("EDM") else name


def prediction_type(scheduler: Scheduler) -> PredictionType:
    """What the denoiser predicts, by its scheduler's configuration.

    Raises ValueError for a type that is none of `PredictionType`, or that contradicts the states.
    """
    default = "flow_prediction" if is_flow(scheduler) else "epsilon"
    configured_type = setting_of(scheduler, "prediction_type", default)
    if configured_type == "flow_prediction" and is_flow(scheduler):
        return "flow_prediction"
    if not is_flow(scheduler):
        if configured_type == "epsilon":
            return "epsilon"
        if configured_type == "v_prediction":
            return "v_prediction"
        if configured_type == "sample":
            return "sample"
    raise ValueError(
        f"the teacher's {type(scheduler).__name__} has prediction_type {configured_type!r} on "
        f"{'flow' if is_flow(scheduler) else 'diffusion'} states: flow_prediction goes with "
        "use_flow_sigmas: true, and epsilon, v_prediction or sample without; " + ADVICE
    )


def check_known(scheduler: Scheduler) -> None:
    """Raise ValueError for a class whose grid is not known here."""
    name = type(scheduler).__name__
    if not has_levels(scheduler):
        raise ValueError(
            f"the teacher's scheduler is {name}, known are {', '.join(_LEVELS_OF)}: {ADVICE}"
        )


def check_range(scheduler: Scheduler) -> None:
    """Raise ValueError for timesteps that no network was trained with.

    Diffusers takes the last noise levels for a negative timestep, and makes negative levels of a
    shift out of range. Only flows and diffusion count their timesteps as in a training.
    """
    is_counted = is_flow(scheduler) or setting_of(scheduler, "beta_start") is not None
    if not is_counted or setting_of(scheduler, "timestep_type") == "continuous":
        return
    last = scheduler.config.num_train_timesteps
    slack = last * TIMESTEP_SLACK
    times = map(float, scheduler.timesteps)
    beyond = [time for time in times if not -slack <= time <= last + slack]
    if beyond:
        raise ValueError(
            f"teacher.scheduler: {type(scheduler).__name__} with these settings goes to timestep "
            f"{beyond[0]:g}, and its network was trained with 0 to {last}: shift and flow_shift "
            "must be above 0, shift_terminal between 0 and 1, steps_offset from 0 to what the "
            f"steps leave of {last}; correct them, or {ADVICE}"
        )


def has_levels(scheduler: Scheduler) -> bool:
    """Whether `schedule_of` knows the class."""
    return type(scheduler).__name__ in _LEVELS_OF


def schedule_of(scheduler: Scheduler) -> Schedule:
    """The grid of a scheduler whose timesteps are set.

    Raises ValueError for a class that is not supported, or a setting under which its states do not
    lie on the grid it announces.
    """
    check_known(scheduler)
    name = type(scheduler).__name__
    timesteps = tuple(timestep.item() for timestep in scheduler.timesteps)
    alphas, sigmas, scales = zip(*_LEVELS_OF[name](scheduler), strict=True)
    if len(sigmas) != len(timesteps) + 1:
        raise ValueError(
            f"teacher.scheduler: {name} with these settings has {len(sigmas)} noise levels for "
            f"{len(timesteps)} steps, which should be one more than the steps; {ADVICE}"
        )
    return Schedule(timesteps, alphas, sigmas, scales)


Level = tuple[float, float, float]
"""alpha, sigma and scale of one state."""


def _flow(sigma: float) -> Level:
    """Rectified flow (Liu et al. 2023, arXiv:2209.03003)."""
    return 1.0 - sigma, sigma, 1.0


def _levels_of_flow(scheduler: Scheduler) -> list[Level]:
    return [_flow(float(sigma)) for sigma in scheduler.sigmas]


def _levels_of_multistep(scheduler: Scheduler) -> list[Level]:
    """Their `sigmas` are sigma itself for flows and sigma / alpha for diffusion, whose states keep
    their variance: alpha² + sigma² = 1."""
    if is_flow(scheduler):
        return _levels_of_flow(scheduler)
    return [(alpha, sigma, 1.0) for alpha, sigma, _ in _levels_of_euler(scheduler)]


def _levels_of_euler(scheduler: Scheduler) -> list[Level]:
    """Variance exploding: the state is clean + sigma * noise, the network sees it divided by
    sqrt(sigma² + 1) (`EulerDiscreteScheduler.scale_model_input`, float32)."""
    scales = [float((sigma**2 + 1) ** 0.5) for sigma in scheduler.sigmas]
    return [
        (1.0 / scale, float(sigma) / scale, scale)
        for sigma, scale in zip(scheduler.sigmas, scales, strict=True)
    ]


def _levels_of_ddim(scheduler: Scheduler) -> list[Level]:
    """A step goes from t to t - T / n (`DDIMScheduler.step`), which must be the next timestep."""
    steps = scheduler.timesteps.tolist()
    stride = scheduler.config.num_train_timesteps // len(steps)
    if any(now - stride != then for now, then in pairwise(steps)):
        raise ValueError(
            f"teacher.scheduler: DDIM with timestep_spacing {scheduler.config.timestep_spacing!r} "
            f"and {len(steps)} steps goes to timesteps that are not its next ones, {steps[:3]} …: "
            "use 'trailing' and a number of steps that divides "
            f"{scheduler.config.num_train_timesteps}"
        )
    squares = [float(scheduler.alphas_cumprod[step]) for step in steps]
    last = steps[-1] - stride
    final = scheduler.alphas_cumprod[last] if last >= 0 else scheduler.final_alpha_cumprod
    return [(square**0.5, (1.0 - square) ** 0.5, 1.0) for square in (*squares, float(final))]


_LEVELS_OF: Mapping[str, Callable[[Scheduler], list[Level]]] = {
    "DDIMScheduler": _levels_of_ddim,
    "DPMSolverMultistepScheduler": _levels_of_multistep,
    "EulerDiscreteScheduler": _levels_of_euler,
    "FlowMatchEulerDiscreteScheduler": _levels_of_flow,
    "UniPCMultistepScheduler": _levels_of_multistep,
}


def first_order(scheduler: Scheduler, grid: Schedule, steps: int) -> Scheduler:
    """The student's scheduler: deterministic, of first order, on every m-th state of the teacher's.

    The caller checks, with `schedule_of`, that its grid really lies on the teacher's.

    Args:
        grid: that the teacher walks with it.
        steps: of the student; divides the teacher's.

    Raises:
        ValueError: the teacher's scheduler clips or adds noise.
    """
    name, config = type(scheduler).__name__, scheduler.config
    _refuse_clipping(scheduler)
    changes: dict[str, Any] = {}
    if name in MULTISTEP:
        changes = _first_order_multistep(name, config, steps)
    elif name == "FlowMatchEulerDiscreteScheduler":
        _refuse_stochastic(config.get("stochastic_sampling", False), name)
        changes = _sparser_flow(scheduler, grid, steps)
    elif config.timestep_spacing == "leading":
        # The teacher's k-th last state, where a student of few steps would start lower.
        num_steps = len(grid.timesteps)
        skipped = (num_steps // steps - 1) * (config.num_train_timesteps // num_steps)
        changes = {"steps_offset": config.steps_offset + skipped}
    return copy_of(scheduler, **changes)


def _first_order_multistep(name: str, config: Mapping[str, Any], steps: int) -> dict[str, Any]:
    """UniPC and DPM-Solver++ of order one are DDIM, which for a flow is the Euler step.

    Zhao et al. 2023, arXiv:2302.04867, §3.4; Lu et al. 2022, arXiv:2211.01095, §4.
    """
    if name == "UniPCMultistepScheduler":
        return {"solver_order": 1, "disable_corrector": list(range(steps))}
    _refuse_stochastic(config["algorithm_type"].startswith("sde"), name)
    return {"solver_order": 1}


def _refuse_clipping(scheduler: Scheduler) -> None:
    """Raise ValueError for clipping: a student that gives the exact secant would land elsewhere.

    With guidance a teacher's clean estimates lie beyond any bound. Stable Diffusion's pipeline, for
    one, turns `clip_sample` off when loaded: not even the teacher would then clip.
    """
    for setting in ("clip_sample", "thresholding"):
        if setting_of(scheduler, setting, False):
            raise ValueError(
                f"the teacher's {type(scheduler).__name__} has {setting}: true, which clips "
                "each step's prediction: a student could not land on the teacher's states; set "
                f"teacher.scheduler: {{{setting}: false}}, beside the settings that are there"
            )


def _refuse_stochastic(is_stochastic: bool, name: str) -> None:
    if is_stochastic:
        raise ValueError(
            f"teacher.scheduler: {name} adds noise while it samples: targets must be functions of "
            "their starting noise; use its deterministic form"
        )


def _sparser_flow(scheduler: Scheduler, grid: Schedule, steps: int) -> dict[str, Any]:
    """Settings under which flow Euler takes every m-th of the teacher's sigmas.

    Diffusers maps equidistant x to sigma = s x / (1 + (s - 1) x), s the shift, and then may stretch
    1 - sigma so that the last sigma is `shift_terminal`. Where the pipeline gives the x itself
    (FLUX, Qwen-Image: from 1 to 1 / n) they are nested, and only a stretch must end elsewhere. Else
    the x run from 1 to sigma_min in any number of steps: with x = 1 - c i,
    1 / (1 - sigma) = s / (c i) - (s - 1), so another c is made good by another shift and a stretch.
    sigma_min itself depends on the shift, hence the iteration.
    """
    config, num_steps = scheduler.config, len(grid.timesteps)
    stride = num_steps // steps
    last = grid.sigmas[stride * (steps - 1)]
    if stride == 1:
        return {}
    if steps == 1:
        return {"shift_terminal": None}  # the only step starts from pure noise
    if config.use_dynamic_shifting:
        return {"shift_terminal": last} if config.shift_terminal else {}
    shift = config.shift
    if abs(_unshifted(grid.sigmas[-2], shift) - 1.0 / num_steps) < GRID_TOLERANCE:
        return {}
    spacing = (1.0 - _sigma_min(scheduler, shift)) * stride / (num_steps - 1)
    student_shift = shift
    for _ in range(STATIC_SHIFT_ROUNDS):
        ratio = (1.0 - _sigma_min(scheduler, student_shift)) / (steps - 1) / spacing
        student_shift = shift * ratio / (shift * ratio - (shift - 1.0))
    return {"shift": student_shift, "shift_terminal": last}


def with_static_shift(scheduler: Scheduler, grid: Schedule) -> Scheduler:
    """A flow scheduler that shifts, whatever a call asks for, as it did on a grid.

    The call gives x from 1 to 1 / n for n steps, which are nested, and one shift for all of them.
    """
    x, sigma = 1.0 / len(grid.timesteps), grid.sigmas[-2]
    shift = sigma * (1.0 - x) / (x * (1.0 - sigma))
    return copy_of(scheduler, use_dynamic_shifting=False, shift=shift)


def _shifted(x: float, shift: float) -> float:
    return shift * x / (1.0 + (shift - 1.0) * x)


def _unshifted(sigma: float, shift: float) -> float:
    return sigma / (shift - (shift - 1.0) * sigma)


def _sigma_min(scheduler: Scheduler, shift: float) -> float:
    """The least sigma that the scheduler starts from, already shifted once, as Diffusers does."""
    return _shifted(1.0 / scheduler.config.num_train_timesteps, shift)
