"""The plan of the teacher's solver: its noise levels, and which of its steps are idle."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, pairwise

import torch

from distillery.config.run import Config, RunConfig
from distillery.config.sampling import resolve_sampling
from distillery.generation.walk import EVEN, even_changes, solver_of
from distillery.notes import Note, doubt, error, noting
from distillery.schedulers import (
    Scheduler,
    is_flow,
    prediction_type,
    setting_of,
    settings_of,
    states_of,
)
from distillery.teacher.folder import PipelineFolder
from distillery.teacher.solver import (
    SHIFTS,
    is_continuous,
    load_scheduler,
    solver_settings,
)
from distillery.words import counted, listed

FEW_STEPS = 10
"""A grid of more steps may well have small ones."""
IDLE = 0.02
"""Share of the range of timesteps under which a step is next to none."""
NOISY_END = 0.02
"""Share of the first noise level above which what a walk ends with is not clean."""
LATE = 0.9
"""Share of the training timesteps below which a walk does not begin at pure noise."""


@dataclass(frozen=True)
class Walk:
    """How the teacher is sampled somewhere in the run.

    Attributes:
        grid: `even`, or None for the stock call's.
    """

    steps: int
    grid: str | None


def solver_facts(
    config: RunConfig, folder: PipelineFolder, latent_shape: tuple[int, ...]
) -> list[tuple[str, str]]:
    """What the plan says of the teacher's solver, which can take all walks."""
    scheduler = load_scheduler(folder, config.teacher)
    facts = [
        ("solver", _solver(config, folder, scheduler)),
        ("guidance off", _guidance(folder)),
    ]
    for walk, users in _walks(config).items():
        solver = solver_of(folder.family, scheduler, walk.steps, latent_shape, walk.grid)
        facts.append(("noise levels", _levels(walk, users, solver)))
    return facts


def on_walks(
    config: RunConfig, folder: PipelineFolder, latent_shapes: Iterable[tuple[int, ...]]
) -> list[Note]:
    """Walks whose steps the solver cannot take, see `generation.walk.solver_of`, or whose steps are
    of little use.

    Args:
        latent_shapes: of samples of each size.
    """
    notes = chain.from_iterable(_on_walks(config, folder, shape) for shape in latent_shapes)
    return list(dict.fromkeys(notes))


def _on_walks(
    config: RunConfig, folder: PipelineFolder, latent_shape: tuple[int, ...]
) -> list[Note]:
    scheduler, walks = load_scheduler(folder, config.teacher), _walks(config)
    notes: list[Note] = []
    for walk, users in walks.items():
        given = folder.family, scheduler, walk.steps, latent_shape
        with noting(notes):
            solver = solver_of(*given, walk.grid)
            is_better = even_changes(*given)
            if walk.grid == EVEN and not is_better:
                cause = f", and {walk.steps} steps of the stock call with "
                cause += f"{type(scheduler).__name__} are even already"
                notes.append(
                    error(f"samples.models.{users[0]}.grid is 'even'", cause, "remove grid")
                )
            if walk.grid is None and Walk(walk.steps, EVEN) not in walks:
                better = solver_of(*given, EVEN) if is_better else None
                notes += _on_steps(walk, users, solver, better)
    return notes


def on_num_steps(config: RunConfig, folder: PipelineFolder) -> Iterator[Note]:
    """More steps than the teacher's scheduler was trained with.

    Some schedulers refuse it, hours later; others repeat timesteps.
    """
    most = int(load_scheduler(folder, config.teacher).config.num_train_timesteps)
    steps = {
        f"samples.models.{name}.steps": model.steps for name, model in config.samples.models.items()
    }
    if isinstance(config, Config):
        steps["targets.steps"] = config.targets.steps
    for key, number in steps.items():
        if number is not None and number > most:
            cause = f", the teacher's scheduler has {most} timesteps"
            yield error(f"{key} is {number}", cause, "use fewer steps")


def _walks(config: RunConfig) -> dict[Walk, list[str]]:
    """Each different walk of the teacher, and what of the configuration asks for it."""
    walks: dict[Walk, list[str]] = {}
    if isinstance(config, Config):
        walks[Walk(config.targets.steps, None)] = ["targets"]
    for name in config.samples.models:
        sampling = resolve_sampling(config, name)
        if sampling.source == "teacher":
            walks.setdefault(Walk(sampling.steps, sampling.grid), []).append(name)
    return walks


def _solver(config: RunConfig, folder: PipelineFolder, scheduler: Scheduler) -> str:
    """Class, prediction, and what decides the noise levels."""
    settings, asked, name = scheduler.config, config.teacher.scheduler, type(scheduler).__name__
    known = settings_of(name)
    parts = [name if asked else f"{name}, the folder's own"]
    if states_of(scheduler) in ("flow", "diffusion"):
        parts.append(f"network predicts {prediction_type(scheduler)}")
    if is_flow(scheduler) and setting_of(scheduler, "use_dynamic_shifting"):
        parts.append("shift by the size of the image")
    elif is_flow(scheduler):
        parts += [f"{name} {settings[name]:g}" for name in SHIFTS if name in known]
    elif "timestep_spacing" in known:
        parts.append(f"timestep_spacing {settings['timestep_spacing']}")
    taken = {
        name: value
        for name, value in solver_settings(folder, config.teacher).items()
        if name not in (asked or {})
    }
    if taken:
        told = listed([f"{name} {value}" for name, value in taken.items()])
        parts.append(f"{told} taken over from the folder's scheduler")
    return "; ".join(parts)


def _guidance(folder: PipelineFolder) -> str:
    """Which scale is off, and what is called then."""
    if folder.family.has_guidance_embedding(folder.denoiser_config):
        return (
            "no scale is: the network takes it as an input, in one call per step and without a "
            "negative prompt"
        )
    family = folder.family
    own = f"{family.guidance_argument} {family.no_guidance:g} in its call, "
    said = "" if family.no_guidance == 1.0 else own
    return f"1.0, {said}without the second network call and without a negative prompt"


def _levels(walk: Walk, users: Sequence[str], solver: Scheduler) -> str:
    """First and last timesteps and sigmas of a walk, and what takes it."""
    steps = counted(walk.steps, "even step" if walk.grid else "step") + _looks(walk, solver)
    sigmas = _ends(_sigmas(solver))
    told = [f"timesteps {_ends(_timesteps(solver))}", *([f"sigmas {sigmas}"] if sigmas else [])]
    return f"{steps} ({listed(list(users))}): {'; '.join(told)}"


def _looks(walk: Walk, solver: Scheduler) -> str:
    """How often the network is asked where that is not once a step."""
    looks = len(solver.timesteps)
    return "" if looks == walk.steps else f", in which the network is asked {looks} times"


def _timesteps(solver: Scheduler) -> list[float]:
    """Each once: some solvers look twice at one."""
    return list(dict.fromkeys(float(timestep) for timestep in solver.timesteps))


def _sigmas(solver: Scheduler) -> list[float]:
    """The scheduler's own, of whatever scale; where it has none, those of its training levels."""
    sigmas, levels = (getattr(solver, name, None) for name in ("sigmas", "alphas_cumprod"))
    if isinstance(sigmas, torch.Tensor):
        return [float(sigma) for sigma in sigmas]
    if isinstance(levels, torch.Tensor):
        return [float((1 - levels[round(at)]) ** 0.5) for at in _timesteps(solver)] + [0.0]
    return []


def _ends(values: Sequence[float]) -> str:
    """The first two and the last two."""
    told = [f"{value:.4g}" for value in values]
    return ", ".join(told) if len(told) <= 4 else f"{told[0]}, {told[1]} … {told[-2]}, {told[-1]}"


def _on_steps(
    walk: Walk, users: Sequence[str], solver: Scheduler, better: Scheduler | None
) -> Iterator[Note]:
    """Steps that do not begin at the noise or end clean, or few of which one is next to none."""
    if states_of(solver) not in ("flow", "diffusion") or is_continuous(solver):
        return
    timesteps = _timesteps(solver)
    last = solver.config.num_train_timesteps
    faults = []
    share, place = _smallest(timesteps)
    if len(timesteps) > 1 and walk.steps <= FEW_STEPS and share < IDLE:
        step = "step" if len(timesteps) == walk.steps else "timestep"
        where = f"{step} {place + 1} of {len(timesteps)} covers {share:.1%} of the noise's range"
        faults.append(f"{where} and does next to nothing")
    is_late = timesteps[0] < LATE * last
    if is_late:
        faults.append(f"the first begins at timestep {timesteps[0]:g} of {last}, not at pure noise")
    left = abs(_sigmas(solver)[-1] / _sigmas(solver)[0]) if _sigmas(solver) else 0.0
    if left > NOISY_END:
        faults.append(f"the last ends at {left:.1%} of the noise, not at a clean image")
    if not faults:
        return
    helps = better is not None and (is_late or _smallest(_timesteps(better))[0] > share)
    cure = (
        "judge it fairly with one more of samples.models, {source: teacher, steps: "
        f"{walk.steps}, grid: even}}, which takes equal steps"
    )
    cause = f": of the teacher's {counted(walk.steps, 'step')}, {', and '.join(faults)}"
    yield doubt(listed(list(users)), cause, cure * helps)


def _smallest(timesteps: Sequence[float]) -> tuple[float, int]:
    """The smallest step as a share of the range, and its place."""
    sizes = [first - second for first, second in pairwise((*timesteps, 0.0))]
    smallest = min(sizes)
    return smallest / timesteps[0] if timesteps[0] else 0.0, sizes.index(smallest)
