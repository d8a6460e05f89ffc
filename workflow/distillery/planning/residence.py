"""The plan of online targets: what each place of the teacher takes and costs, beside stored ones.

Costs are counted in forward passes, each as long as its network has parameters; a backward pass is
two of them. That leaves out what the passes wait for, so `shared` and `cpu` have none.
"""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from distillery.config.jobs import TargetsJob
from distillery.config.run import Config
from distillery.config.ways import TRAINING_PASSES, Online, Stored
from distillery.files import readable
from distillery.generation.targets import calls_per_step
from distillery.planning.page import Table
from distillery.student.info import StudentInfo
from distillery.teacher.folder import PipelineFolder
from distillery.training.execution import Machine, choose_place, demands, student_state_bytes


def plan_residence(
    config: Config,
    student: StudentInfo,
    folder: PipelineFolder,
    student_bytes: int,
    machine: Machine,
) -> dict[str, Any] | None:
    """Where the teacher of online targets will be; None where the targets are stored.

    Args:
        student_bytes: of the student in training, on each device.
    """
    online = config.training.of(Online)
    if online is None:
        return None
    needed = demands(config.teacher, folder, student_bytes, machine)
    place, reason = choose_place(config.training, config.teacher.num_gpus, needed, machine)
    if place == "shared" and config.teacher.quantization == "nf4":
        raise ValueError(
            "teacher.quantization is 'nf4', and the teacher of online targets shares the student's "
            "GPUs, layer by layer, which Accelerate does not do with weights that bitsandbytes has "
            "packed: set quantization: int8, or training.teacher_residence: own_gpus"
        )
    visit, looks = online.of_sample(
        config.student.steps, config.targets.steps // config.student.steps
    )
    answer = looks * _guided_step(config, student, folder)
    update = TRAINING_PASSES + visit + answer
    ranks = machine.world_size // machine.num_nodes
    gpus = ranks + (config.own_gpus or config.teacher.num_gpus)
    costs = {
        "every_rank": update,
        "one_rank": update + (machine.world_size - 1) * answer,
        # Of all GPUs of a node, those of the teacher among them; one waits for the other.
        "own_gpus": gpus * ((update - answer) / ranks + answer),
    }
    storing = config.targets.steps * _guided_step(config, student, folder)
    plain = (Stored(samples=config.training.num_samples),)
    stored = student_state_bytes(config.training.model_copy(update={"phases": plain}), student)
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


def _guided_step(config: Config, student: StudentInfo, folder: PipelineFolder) -> float:
    """One step of the teacher, in forward passes of the student."""
    job = TargetsJob(seed=config.seed, teacher=config.teacher, targets=config.targets)
    return calls_per_step(job, folder) * student.teacher_parameters / student.num_parameters


def residence_table(plan: Mapping[str, Any]) -> Table:
    """All places of the teacher beside stored targets, with the chosen one's reason."""
    rows = []
    for name, row in ({"stored": plan["stored"]} | plan["places"]).items():
        time = "waits for weights" if row["cost"] is None else f"{row['cost']:.1f}"
        host = readable(row["host"]) if row["host"] else "-"
        rows.append((name, readable(row["gpu"]), readable(row["other_gpus"]), host, time))
    title = (
        f"Where the teacher of online targets is: {plan['place']} ({plan['reason']}). After "
        f"{plan['epochs_until_storing_pays']:.1f} epochs at the most, stored targets are the "
        "faster way"
    )
    heads = ("targets", "GPU with it", "other GPUs", "host", "time of a sample")
    return Table(title, heads, tuple(rows))
