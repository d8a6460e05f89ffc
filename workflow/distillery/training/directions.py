"""Where the student should draw, beyond what its targets say: a gradient in what it draws.

It is asked once for an update, before the backward pass, for all images of a process together, and
goes into the batch. So micro-batches, retries after running out of memory, and a teacher whom all
processes must ask equally often stay as they are, and only one of the networks has activations at a
time. It acts where a step ends on an image: at the last step, and on rollouts.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from distillery.training.batch import Batch
from distillery.training.drawing import draw
from distillery.training.state import Companion, TrainingState
from distillery.training.ways import way_of

if TYPE_CHECKING:  # a run is made from ways to learn, which need these functions
    from distillery.training.run import Run


def new_companion(student: Path, run: Run) -> Companion | None:
    """What learns beside the student, if the training has a finish with such a thing.

    Args:
        student: folder of the untrained one.
        run: settings and device.
    """
    director = run.training.director
    return way_of(director.phase).companion(student, run) if director else None


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
    found = way_of(director.phase).direct(drawing, state, companion, director.begin, run)
    direction = torch.zeros_like(batch.noisy)
    direction[drawing.rows] = found.cpu()
    return replace(batch, direction=direction)
