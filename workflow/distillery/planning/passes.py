"""How much each stage computes, in forward passes of whole networks.

One table, from which the plan's network calls, the terminal's share of the work and the times of
what a probe leaves out are taken. Measurements on held-out prompts and previews are not counted.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from distillery.config.jobs import resolve_sampling
from distillery.config.run import Config, RunConfig
from distillery.config.ways import TRAINING_PASSES
from distillery.generation.walk import calls_per_image
from distillery.planning.jobs import StageJobs
from distillery.teacher.folder import PipelineFolder


@dataclass(frozen=True)
class Passes:
    """Forward passes of both networks; a backward pass is two of them."""

    teacher: float = 0.0
    student: float = 0.0

    @property
    def calls(self) -> int:
        """Of either network."""
        return round(self.teacher + self.student)

    def of_size(self, size: float) -> float:
        """In passes of the teacher, of which one of the student takes the share `size`."""
        return self.teacher + size * self.student


def passes_of_stages(
    config: RunConfig, plan: Mapping[str, Any], folder: PipelineFolder
) -> dict[str, Passes]:
    """Passes of each stage that has any.

    Args:
        config: of the run.
        plan: as in plan.json, with `work` and `calls_per_step`.
        folder: of the teacher.
    """
    work = plan["work"]
    passes = {"samples": _of_samples(config, work["num_prompts"]["eval"], folder)}
    if isinstance(config, Config):
        finish = finish_passes(config, plan["calls_per_step"])
        *before, last = (TRAINING_PASSES * samples for samples in config.training.samples_of_jobs)
        rounds = len(config.training.round_numbers)
        walked = rounds * config.student.steps * work["num_trajectories"]
        passes |= {
            "targets": Passes(teacher=work["teacher_calls"]),
            "training_before_round": Passes(student=sum(before)),
            "round_states": Passes(student=walked),
            "round_targets": Passes(teacher=rounds * work["round_calls"] - walked),
            "training": Passes(finish.teacher, last + finish.student),
        }
    return {stage: each for stage, each in passes.items() if each.calls}


def passes_per_job(
    config: RunConfig, passes: Mapping[str, Passes], jobs: list[StageJobs], size: float
) -> dict[str, float]:
    """Passes of one job of each rule, in those of the teacher; where a rule's jobs differ they are
    the mean, and each job has its own beside it, by its name.

    Args:
        config: of the run.
        passes: of each stage.
        jobs: of each stage.
        size: parameters of the student over those of the teacher.
    """
    found = {row.stage: passes[row.stage] for row in jobs if row.stage in passes}
    of_rules = {
        row.stage: found[row.stage].of_size(size) / row.jobs for row in jobs if row.stage in found
    }
    if not isinstance(config, Config):
        return of_rules
    *before, _ = config.training.samples_of_jobs
    of_jobs = {
        f"training-{number}-rounds": TRAINING_PASSES * size * samples
        for number, samples in enumerate(before)
    }
    return of_rules | of_jobs


def finish_passes(config: Config, calls_per_step: int) -> Passes:
    """What phases have beyond plain updates, over the whole training.

    Args:
        config: of the run.
        calls_per_step: of the teacher in one guided step.
    """
    steps = config.student.steps
    student, teacher = config.training.passes(steps, config.targets.steps // steps)
    return Passes(teacher * calls_per_step, student)


def _of_samples(config: RunConfig, num_eval: int, folder: PipelineFolder) -> Passes:
    """Of all models' images."""
    images = config.samples.num_images(num_eval)
    teacher = student = 0
    for name, model in config.samples.models.items():
        sampling = resolve_sampling(config, name)
        calls = images * calls_per_image(folder, config.teacher, sampling)
        if model.source == "teacher":
            teacher += calls
        else:
            student += calls
    return Passes(teacher, student)
