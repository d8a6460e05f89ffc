"""How much each stage computes, in forward passes of whole networks, by what the stages say.

From it the plan's network calls, the terminal's share of the work and the times of what a probe
leaves out are taken. Measurements on held-out prompts and previews are not counted.
"""

from collections.abc import Iterable

from distillery.config.run import Config, RunConfig
from distillery.run_folder import RunFolder
from distillery.stage import Calls, Counts, Key, Passes, Stage


def passes_of_stages(
    stages: Iterable[Stage], config: RunConfig, counts: Counts, calls: Calls
) -> dict[str, Passes]:
    """Of each stage that has any, by all its jobs together."""
    passes = {
        stage.name: sum(
            (_of_job(stage, config, counts, calls, key) for key in stage.keys(config)), Passes()
        )
        for stage in stages
    }
    return {stage: each for stage, each in passes.items() if each.calls}


def passes_per_job(
    stages: Iterable[Stage],
    config: RunConfig,
    counts: Counts,
    calls: Calls,
    run: RunFolder,
    size: float,
) -> dict[str, float]:
    """Passes of one job of each rule, in those of the teacher: the mean of the rule's jobs.

    Those of a training have each its own beside it, by its name, which is that of its frozen
    configuration.

    Args:
        size: parameters of the student over those of the teacher.
    """
    found: dict[str, float] = {}
    for stage in stages:
        keys = stage.keys(config)
        passes = [_of_job(stage, config, counts, calls, key).of_size(size) for key in keys]
        if any(passes):
            found[stage.name] = sum(passes) / len(passes)
        if stage.loads == "training":
            names = (stage.frozen(config, run, key)[0] for key in keys)
            found |= dict(zip(names, passes, strict=True))
    return found


def _of_job(stage: Stage, config: RunConfig, counts: Counts, calls: Calls, key: Key) -> Passes:
    return stage.passes(config, calls, key) * stage.items(config, counts, key)


def finish_passes(config: Config, calls_per_step: float) -> Passes:
    """What phases have beyond plain updates, over the whole training.

    Args:
        calls_per_step: of the teacher in one step, in the mean.
    """
    steps = config.student.steps
    student, teacher = config.training.passes(steps, config.targets.steps // steps)
    return Passes(teacher * calls_per_step, student)
