"""One walk of a stock pipeline in as many calls as its guidance changes.

A stock call takes one scale for all of its steps, and many read it once, before the first: what
they say of callbacks that change it differs from class to class, and none could begin without it.
So each part of a walk that is guided alike is a call of its own, which begins with the state where
the last one ended, with the same scheduler: each step is that of a stock call with its scale.
"""

from dataclasses import replace

import torch

from distillery.families import Family, Request, timed
from distillery.families.protocol import Pipeline
from distillery.generation.trajectory import walking


def draw(
    family: Family, pipeline: Pipeline, request: Request, steps: range | None = None
) -> torch.Tensor | None:
    """Walk by stock calls; returns what `Family.generate` does.

    Args:
        steps: of all that the request asks for, from its `latents` on, by a solver that asks the
            network once a step; None: all, by any.
    """
    setting = request.setting
    if steps is None and setting.guidance_interval is None:
        return family.generate(pipeline, request)
    num_steps = request.steps
    if steps is None:
        shape = family.latent_shape(pipeline, setting.size)
        num_steps = len(timed(family, pipeline.scheduler, request.steps, shape).timesteps)
        steps = range(num_steps)
    state, images = request.latents, None
    for part, its_setting in setting.parts(steps, num_steps):
        of_part = replace(
            request,
            setting=its_setting,
            latents=state,
            decode=request.decode and part.stop == steps.stop,
        )
        with walking(pipeline.scheduler, part, follows_on=part.start > steps.start) as reached:
            images = family.generate(pipeline, of_part)
        state = reached.state
    return images
