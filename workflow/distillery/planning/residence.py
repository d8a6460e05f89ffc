"""The plan of online targets: what each place of the teacher takes and costs, beside stored ones.

Costs are counted in forward passes, each as long as its network has parameters; a backward pass is
two of them. That leaves out what the passes wait for, so `shared` and `cpu` have none.
"""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any, get_args

from distillery.config.run import Config
from distillery.config.training import Place
from distillery.files import readable
from distillery.student.info import StudentInfo
from distillery.teacher.folder import PipelineFolder
from distillery.training.execution import Machine, student_state_bytes
from distillery.training.residence import choose_place, demands

TRAINING_PASSES = 3
"""Of the student in an update, for each sample: forward, and backward as two."""


def plan_residence(
    config: Config,
    student: StudentInfo,
    folder: PipelineFolder,
    student_bytes: int,
    machine: Machine,
) -> dict[str, Any] | None:
    """Where the teacher of online targets will be; None where the targets are stored.

    Args:
        config: of the run.
        student: as planned.
        folder: of the teacher.
        student_bytes: of the student in training, on each device.
        machine: processes and memory.
    """
    if config.training.targets == "stored":
        return None
    needed = demands(config.teacher, folder, student_bytes, machine)
    place, reason = choose_place(config.training, config.teacher.num_gpus, needed, machine)
    visit, answer = _passes(config, student, folder)
    update = TRAINING_PASSES + visit + answer
    ranks = machine.world_size // machine.num_nodes
    gpus = ranks + (config.own_gpus or config.teacher.num_gpus)
    costs = {
        "every_rank": update,
        "one_rank": update + (machine.world_size - 1) * answer,
        # Of all GPUs of a node, those of the teacher among them; one waits for the other.
        "own_gpus": gpus * ((update - answer) / ranks + answer),
    }
    storing = _storing(config, student, folder)
    plain = config.training.model_copy(update={"distribution_matching": None})
    stored = student_state_bytes(plain, student)
    return {
        "place": place,
        "reason": reason,
        "stored": {"gpu": stored, "other_gpus": stored, "host": 0, "cost": 1.0},
        "places": {
            name: asdict(demand)
            | {"cost": costs[name] / TRAINING_PASSES if name in costs else None}
            for name, demand in needed.items()
        },
        "epochs_until_storing_pays": storing / (config.student.steps * (visit + answer)),
    }


def _passes(config: Config, student: StudentInfo, folder: PipelineFolder) -> tuple[float, float]:
    """For a sample, in forward passes of the student: its walk to where it stands, on average, and
    the teacher's answer.

    With distribution matching, for one of a student's steps: it draws, the copy looks and learns,
    and the teacher looks.
    """
    steps = config.training.online_steps or config.targets.steps // config.student.steps
    visit, looks = (config.student.steps - 1) / 2, float(steps)
    matching = config.training.distribution_matching
    if matching is not None:
        visit += (2 + TRAINING_PASSES * matching.updates) / config.student.steps
        looks += 1 / config.student.steps
    return visit, looks * _guided_step(config, student, folder)


def _storing(config: Config, student: StudentInfo, folder: PipelineFolder) -> float:
    """The same of a trajectory that is stored."""
    return config.targets.steps * _guided_step(config, student, folder)


def _guided_step(config: Config, student: StudentInfo, folder: PipelineFolder) -> float:
    """The same of one step of the teacher."""
    calls = folder.family.calls_per_step(folder.denoiser_config, config.targets.guidance_scale)
    return calls * student.teacher_parameters / student.num_parameters


def summarise_residence(plan: Mapping[str, Any]) -> list[str]:
    """The lines of the plan's summary: a table of all places."""
    lines = [
        f"    teacher  {plan['place']} ({plan['reason']})",
        f"      {'targets':<10}  {'GPU with it':>11}  {'other GPUs':>10}  {'host':>8}  time",
    ]
    rows = {"stored": plan["stored"]} | {name: plan["places"][name] for name in get_args(Place)}
    for name, row in rows.items():
        time = "waits for weights" if row["cost"] is None else f"{row['cost']:.1f}"
        host = readable(row["host"]) if row["host"] else "-"
        lines.append(
            f"      {name:<10}  {readable(row['gpu']):>11}  {readable(row['other_gpus']):>10}  "
            f"{host:>8}  {time}"
        )
    epochs = plan["epochs_until_storing_pays"]
    return [
        *lines,
        f"      after {epochs:.1f} epochs at the most, stored targets are the faster way",
    ]
