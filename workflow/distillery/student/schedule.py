"""The student's schedule: derived from the teacher's and checked, before targets and after export.

The student walks every m-th state of the teacher's grid in first-order steps, so its timesteps are
a subset of the teacher's, and a secant between two stored states is exactly one of its steps.
"""

from dataclasses import asdict
from itertools import pairwise

from distillery.families import Family, family_named, grid_of
from distillery.schedule import Schedule
from distillery.schedulers import (
    ADVICE,
    GRID_TOLERANCE,
    Scheduler,
    first_order,
    make_scheduler,
    setting_of,
    with_static_shift,
)
from distillery.store.recipes import TargetsRecipe, TrainingRecipe
from distillery.student.flow_map import flow_map_grid, flow_map_scheduler, is_flow_maps


def few_step_scheduler(
    family: Family,
    scheduler: Scheduler,
    teacher_steps: int,
    steps: int,
    latent_shape: tuple[int, ...],
    any_step: bool = False,
) -> Scheduler:
    """A deterministic first-order scheduler on the teacher's grid, for the student's export.

    A call that shifts by the number of steps (FLUX.2) would shift the student's otherwise: it gets
    the shift that the teacher's steps have.

    Args:
        any_step: whether the student takes fewer steps, too.
    """
    grid = grid_of(family, scheduler, teacher_steps, latent_shape)
    stride = teacher_steps // steps
    if any_step:
        return flow_map_scheduler(scheduler, grid.subset(range(0, teacher_steps + 1, stride)))
    chosen = first_order(scheduler, grid, steps)
    if stride > 1 and setting_of(chosen, "use_dynamic_shifting", False):
        own = grid_of(family, chosen, steps, latent_shape)
        if own.distance(grid.subset(range(0, teacher_steps + 1, stride))) > GRID_TOLERANCE:
            return with_static_shift(chosen, grid)
    return chosen


def teacher_scheduler(recipe: TargetsRecipe) -> Scheduler:
    """The teacher's own, from the targets' recipe alone."""
    config = dict(recipe.scheduler)
    return make_scheduler(config.pop("class"), config)


def teacher_grid(recipe: TargetsRecipe) -> Schedule:
    """Its grid at all its steps, of which the recipe's `schedule` has the stored ones."""
    family, scheduler = family_named(recipe.family, recipe.signature), teacher_scheduler(recipe)
    return grid_of(family, scheduler, recipe.steps, recipe.latent_shape)


def student_scheduler(recipe: TargetsRecipe, steps: int, any_step: bool = False) -> Scheduler:
    """The scheduler that the student will be exported with, from the targets' recipe alone."""
    teacher, family = teacher_scheduler(recipe), family_named(recipe.family, recipe.signature)
    return few_step_scheduler(family, teacher, recipe.steps, steps, recipe.latent_shape, any_step)


def check_student_grid(
    family: Family,
    scheduler: Scheduler,
    knots: Schedule,
    steps: int,
    latent_shape: tuple[int, ...],
) -> None:
    """Raise ValueError unless a student of one step per segment would walk exactly these knots.

    Args:
        knots: its schedule at the stored states.
    """
    num_segments = len(knots.timesteps)
    _check_distinct(knots)
    chosen = few_step_scheduler(family, scheduler, steps, num_segments, latent_shape)
    student = grid_of(family, chosen, num_segments, latent_shape)
    if student.distance(knots) > GRID_TOLERANCE:
        raise ValueError(
            f"a student of {num_segments} steps would walk timesteps {list(student.timesteps)}, "
            f"the teacher's {steps} steps hold {list(knots.timesteps)} there: the student's steps "
            "must lie on the teacher's grid; choose other targets.steps or targets.num_segments, "
            f"or another scheduler ({ADVICE})"
        )


def _check_distinct(knots: Schedule) -> None:
    """Raise ValueError for neighbouring states of one noise level, between which no step leads."""
    levels = list(zip(knots.alphas, knots.sigmas, strict=True))
    for place, ((alpha, sigma), (next_alpha, next_sigma)) in enumerate(pairwise(levels)):
        if abs(alpha * next_sigma - next_alpha * sigma) <= GRID_TOLERANCE:
            raise ValueError(
                f"teacher.scheduler: states {place} and {place + 1} of the stored ones have one "
                f"noise level, {sigma:.6g}, with these settings: a student could take no step "
                f"between them; {ADVICE}"
            )


def student_grid(recipe: TargetsRecipe, steps: int, any_step: bool = False) -> Schedule:
    """The schedule of the student's scheduler, from the targets' recipe alone.

    That of an any-step student has the names of the knots (`flow_map_scheduler`).

    Raises ValueError unless its states are stored knots.
    """
    stored = recipe.schedule
    num_segments = len(stored.timesteps)
    if num_segments % steps:
        raise ValueError(
            f"student.steps is {steps}, the trajectories are stored in {num_segments} segments: "
            f"use {divisors_of(num_segments)} steps, or other targets.num_segments"
        )
    scheduler = student_scheduler(recipe, steps, any_step)
    if any_step:
        return flow_map_grid(scheduler, steps)
    family = family_named(recipe.family, recipe.signature)
    grid = grid_of(family, scheduler, steps, recipe.latent_shape)
    if (
        grid.distance(stored.subset(range(0, num_segments + 1, num_segments // steps)))
        > GRID_TOLERANCE
    ):
        raise ValueError(
            f"a student of {steps} steps would sample at timesteps {list(grid.timesteps)}, sigmas "
            f"{_rounded(grid.sigmas)}; the targets hold timesteps {list(stored.timesteps)}, sigmas "
            f"{_rounded(stored.sigmas)}: choose targets.steps, or teacher.scheduler, so that the "
            "student's grid lies on the teacher's, and make the targets again"
        )
    return grid


def check_size(
    usual: TargetsRecipe, own: TargetsRecipe, steps: int, any_step: bool = False
) -> None:
    """Raise ValueError unless the student's one scheduler walks the stored knots of another size.

    A shift that was solved for the teacher's size (`few_step_scheduler`) is a constant.

    Args:
        usual: the recipe, for whose size the student is exported.
        own: as at the other size.
    """
    family = family_named(usual.family, usual.signature)
    scheduler = student_scheduler(usual, steps, any_step)
    exported = _walked(family, scheduler, steps, own.latent_shape)
    if exported.distance(student_grid(own, steps, any_step)) > GRID_TOLERANCE:
        raise ValueError(
            f"prompts have {own.height} \N{MULTIPLICATION SIGN} {own.width} pixels: the student's "
            f"scheduler, which is made for {usual.height} \N{MULTIPLICATION SIGN} {usual.width}, "
            f"would take other noise levels there than the teacher: take one size, or "
            f"teacher.scheduler without a shift by the size ({ADVICE})"
        )


def divisors_of(number: int) -> str:
    """All of them, in words."""
    return " or ".join(str(count) for count in range(1, number + 1) if number % count == 0)


def _rounded(values: tuple[float, ...]) -> list[float]:
    return [round(value, 6) for value in values]


def check_exported(family: Family, scheduler: Scheduler, recipe: TrainingRecipe) -> None:
    """Raise ValueError unless a written scheduler takes exactly the steps of the training."""
    written = _walked(family, scheduler, recipe.steps, recipe.latent_shape)
    if written.distance(recipe.schedule) > GRID_TOLERANCE:
        raise ValueError(
            f"the exported scheduler takes {asdict(written)}, the student was trained on "
            f"{asdict(recipe.schedule)}: was the teacher folder's scheduler changed since?"
        )


def _walked(
    family: Family, scheduler: Scheduler, steps: int, latent_shape: tuple[int, ...]
) -> Schedule:
    """The grid that the stock pipeline of a student walks."""
    if is_flow_maps(scheduler):
        return flow_map_grid(scheduler, steps)
    return grid_of(family, scheduler, steps, latent_shape)
