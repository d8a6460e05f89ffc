"""Where the student should draw, beyond what its targets say: a gradient in what it draws.

It is asked once for an update, before the backward pass, for all images of a process together, and
goes into the batch. So micro-batches, retries after running out of memory, and a teacher whom all
processes must ask equally often stay as they are, and only one of the networks has activations at a
time. It acts where a step ends on an image: at the last step, and on rollouts.
"""

from dataclasses import replace
from pathlib import Path

import torch

from distillery.config.ways import Adversarial, DistributionMatching, Online
from distillery.training.adversarial import judge, new_heads
from distillery.training.batch import Batch
from distillery.training.drawing import draw
from distillery.training.matching import match as match_images
from distillery.training.matching import new_copy
from distillery.training.parallel import set_checkpointing, uses_checkpointing
from distillery.training.run import Run
from distillery.training.state import Companion, TrainingState


def new_companion(student: Path, run: Run) -> Companion | None:
    """What learns beside the student, if the training has a finish with such a thing.

    Args:
        student: folder of the untrained one.
        run: settings and device.
    """
    director = run.training.director
    match director and director.phase:
        case Online(distribution_matching=DistributionMatching() as matching):
            return new_copy(student, matching, run)
        case Adversarial() as adversarial:
            return new_heads(student, adversarial, run)
        case _:
            return None


def add_directions(batch: Batch, state: TrainingState, size: int, run: Run) -> Batch:
    """This rank's batch with directions, if it has any; meanwhile the companion learns.

    Args:
        batch: of one update, with its targets.
        state: whose student draws; its weights stay, those of the companion change.
        size: samples that a network may take at once.
        run: settings and device.
    """
    companion, director = state.companion, run.training.director
    if companion is None or director is None or state.samples_seen < director.begin:
        return batch
    drawing = draw(batch, state, size, run)
    match director.phase:
        case Online(distribution_matching=DistributionMatching() as matching):
            set_checkpointing(companion.network, uses_checkpointing(state.denoiser))
            found = match_images(drawing, companion, matching, run)
        case Adversarial() as adversarial:
            found = judge(drawing, companion, adversarial, director.begin, run)
    direction = torch.zeros_like(batch.noisy)
    direction[drawing.rows] = found.cpu()
    return replace(batch, direction=direction)
