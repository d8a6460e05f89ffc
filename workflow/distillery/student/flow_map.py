"""What a student of any number of steps learns: the pairs of knots that its steps join, and the
names that its scheduler gives to the knots."""

from collections.abc import Sequence

from distillery.config.student import divisors
from distillery.schedule import Schedule
from distillery.schedulers import Scheduler, make_scheduler, setting_of

SCHEDULER = "FlowMapEulerDiscreteScheduler"
NAME_TOLERANCE = 0.01
"""Largest difference of a knot's noise level and of the one that it is named by. UniPC's own levels
are at most as many thousandths away as its shift is high."""


def pairs_of(steps: int) -> tuple[tuple[int, int], ...]:
    """The pairs of knots that a student of `steps` steps at most joins, from few steps to many.

    With each number n that divides `steps` it takes n steps of equally many knots.
    """
    lengths = (steps // number for number in divisors(steps))
    return tuple((first, first + length) for length in lengths for first in range(0, steps, length))


def shares_of(steps: int) -> tuple[int, ...]:
    """Numbers of `pairs_of`, each as often as it is learned from in one pass over a trajectory.

    Each number of steps has the same share of a training, and each of its steps the same share of
    that. So one step from the noise to the image, the longest and the hardest, is learned as often
    as all steps of the longest walk together; drawn from all pairs alike it would be seldom.
    """
    found: list[int] = []
    begin = 0
    for number in divisors(steps):
        found += [begin + place * number // steps for place in range(steps)]
        begin += number
    return tuple(found)


def flow_map_scheduler(scheduler: Scheduler, knots: Schedule) -> Scheduler:
    """The scheduler with which a student visits these knots with every number of steps that divides
    theirs, as stock pipelines call it.

    Its levels are 1, ..., 1 / n, 0, shifted: nested, since the shift does not depend on n. Solvers
    of teachers begin or end a thousandth elsewhere, so a knot gets the level next to it as its
    name, and is learned under that name: in (z_t - z_r) / (t - r) with the names of two stored
    states a step still goes from the one exactly to the other.

    Args:
        knots: the teacher's schedule at the student's knots.

    Raises:
        ValueError: the teacher's levels are others.
    """
    shift = setting_of(scheduler, "flow_shift") or setting_of(scheduler, "shift") or 1.0
    last = scheduler.config.num_train_timesteps
    chosen = make_scheduler(SCHEDULER, {"shift": float(shift), "num_train_timesteps": last})
    names = flow_map_grid(chosen, len(knots.timesteps))
    if _furthest(names.sigmas, knots.sigmas) > NAME_TOLERANCE:
        raise ValueError(
            f"student.init is 'flow_map': its scheduler takes the sigmas {_rounded(names.sigmas)}, "
            f"and the teacher's {type(scheduler).__name__} has {_rounded(knots.sigmas)} at the "
            "knots; set teacher.scheduler: {class: UniPCMultistepScheduler, use_flow_sigmas: true, "
            "prediction_type: flow_prediction}"
        )
    return chosen


def is_flow_maps(scheduler: Scheduler) -> bool:
    """Whether a scheduler is of flow maps."""
    return type(scheduler).__name__ == SCHEDULER


def flow_map_grid(scheduler: Scheduler, steps: int) -> Schedule:
    """The grid that the stock pipeline of a flow map walks; `scheduler` is not changed."""
    walked = make_scheduler(SCHEDULER, scheduler.config)
    walked.set_timesteps(steps)
    sigmas = tuple(float(sigma) for sigma in walked.sigmas)
    return Schedule(
        timesteps=tuple(float(timestep) for timestep in walked.timesteps),
        alphas=tuple(1.0 - sigma for sigma in sigmas),
        sigmas=sigmas,
        scales=(1.0,) * len(sigmas),
    )


def _furthest(sigmas: Sequence[float], others: Sequence[float]) -> float:
    return max(abs(one - other) for one, other in zip(sigmas, others, strict=True))


def _rounded(sigmas: Sequence[float]) -> list[float]:
    return [round(sigma, 4) for sigma in sigmas]
