"""Times of what a probe leaves out, from what it measured and from counted network passes.

A probe trains by plain updates from stored targets. Rounds, finishes and rollouts are passes of the
same two networks, so their time follows from the time of a pass: the teacher's by the rate of the
targets, the student's by that of an update, which is three passes. What passes wait for, such as
weights that come from the host's memory, is not in it.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from distillery.config.run import Config
from distillery.config.ways import TRAINING_PASSES
from distillery.planning.passes import finish_passes
from distillery.planning.probe import Rate


@dataclass(frozen=True)
class Networks:
    """What a pass is scaled by.

    Attributes:
        calls_per_step: of the teacher in one step, in the mean.
        size: parameters of the student over those of the teacher.
        num_processes: of the planned training.
        num_answered: processes that wait for one teacher's answers; 1 where each has its own.
    """

    calls_per_step: float
    size: float
    num_processes: int
    num_answered: int = 1


def networks_of(
    training: Mapping[str, Any], calls_per_step: float, size: float
) -> tuple[Networks, str | None]:
    """The networks of a planned training, and why its online targets have no estimate.

    Args:
        training: what `plan_training` gives.
    """
    machine, teacher = training["machine"], training["teacher"]
    world = int(machine["world_size"])
    answered, unknown = 1, None
    if teacher is not None:
        place = teacher["place"]
        answered = {"one_rank": world, "own_gpus": world // machine["num_nodes"]}.get(place, 1)
        if place in ("shared", "cpu"):
            unknown = f"time is without the answers of a teacher in the host's memory ({place})"
    return Networks(calls_per_step, size, world, answered), unknown


def scale_rates(
    config: Config, rates: Mapping[str, Rate], networks: Networks, has_answers: bool
) -> dict[str, Rate]:
    """The rates of a probe, with those of what it left out.

    Args:
        has_answers: whether the time of online answers follows from passes.
    """
    if "targets" not in rates or "training" not in rates:
        return dict(rates)
    targets, steps = rates["targets"], config.student.steps
    teacher_s = targets.item_s / (config.targets.steps * networks.calls_per_step)
    between = config.targets.steps // steps * networks.calls_per_step
    plain = rates["training"]
    # The same work of all processes, by another number of them.
    item_s = plain.item_s * plain.num_processes / networks.num_processes
    plain = replace(plain, item_s=item_s, num_processes=networks.num_processes)
    learned = config.training.samples_of_jobs[-1]
    more_s = _finish_s(config, plain, teacher_s if has_answers else 0.0, networks)
    return {
        **rates,
        "training": replace(plain, item_s=item_s + more_s / learned),
        "training_before_round": plain,
        "round_states": replace(targets, item_s=steps * teacher_s * networks.size),
        "round_targets": replace(targets, item_s=between * teacher_s),
    }


def _finish_s(config: Config, plain: Rate, teacher_s: float, networks: Networks) -> float:
    """Seconds that finishes and rollouts take beyond plain updates, by all processes at once."""
    more = finish_passes(config, networks.calls_per_step)
    student_s = plain.item_s * networks.num_processes / TRAINING_PASSES
    answers_s = more.teacher * teacher_s * networks.num_answered
    return (more.student * student_s + answers_s) / networks.num_processes


def counted_stages(config: Config) -> list[str]:
    """The stages whose time follows from counted passes, at least in part."""
    training = config.training
    has_more = any(phase.title and not phase.waits for phase in training.phases)
    rounds = ["training_before_round", "round_states", "round_targets"]
    return rounds * bool(training.round_numbers) + ["training"] * has_more
