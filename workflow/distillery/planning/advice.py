"""Notes of the plan: what stops nothing, and a user would want to know before it is computed."""

from collections.abc import Mapping

import pandas as pd

from distillery.config.run import Config
from distillery.planning.work import Work
from distillery.teacher.folder import PipelineFolder

MANY_VIEWS = 30
"""Of a stored segment. 47 gave less than 12 did (docs/how-many-trajectories.md)."""


def advise_prompts(prompts: Mapping[str, pd.DataFrame]) -> list[str]:
    """Notes on held-out prompts, and their noise, that the student also learns from."""
    texts, ids = (
        len(set(prompts["train"][column]) & set(prompts["eval"][column]))
        for column in ("prompt", "prompt_id")
    )
    advice = []
    if texts:
        advice.append(
            f"{texts} prompts of prompts.eval are also in prompts.train: on them the scores say "
            "what the student remembers, not what it has learned"
        )
    if ids:
        advice.append(
            f"{ids} prompt ids of prompts.eval are also in prompts.train: equal ids have equal "
            "noise, so the student is judged on noise that it has learned from; begin the ids of "
            "one file otherwise"
        )
    return advice


def advise_amounts(config: Config, work: Work) -> list[str]:
    """What a user would want to know, though it stops nothing."""
    advice: list[str] = []
    if not config.training.reads_trajectories:
        return advice
    if work.num_chunks < config.targets.num_shards:
        advice.append(
            f"targets.num_shards is {config.targets.num_shards} for {work.num_chunks} chunks: some "
            "jobs will have nothing to do"
        )
    if work.num_trajectories < 1000:
        advice.append(
            f"{work.num_trajectories} trajectories teach a student little: begin with 10,000 "
            "(docs/how-many-trajectories.md)"
        )
    advice += advise_views(config, work)
    return advice


def advise_views(config: Config, work: Work) -> list[str]:
    """A note where each stored segment is seen so often that a student may learn it by heart."""
    training = config.training
    views = training.num_samples // max(1, work.num_trajectories * config.student.steps)
    if views < MANY_VIEWS or training.held_out_prompts:
        return []
    return [
        f"each stored segment is seen {views} times: the student may learn its trajectories by "
        "heart; make more of them, or set training.held_out_prompts, which shows it"
    ]


def advise_guidance(config: Config, folder: PipelineFolder) -> list[str]:
    """Notes on students that would be guided once more, by extra calls; a network that takes the
    scale as an input gets one anyway."""
    return [
        f"samples.models.{name}.guidance_scale is {model.guidance_scale:g}: the student learns the "
        "guided teacher's answers and is best without guidance of its own, which doubles its "
        "network calls too"
        for name, model in config.samples.models.items()
        if model.source != "teacher"
        and folder.family.calls_per_step(folder.denoiser_config, model.guidance_scale or 1.0) > 1
    ]
