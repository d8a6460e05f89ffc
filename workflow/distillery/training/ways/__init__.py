"""How each way to learn acts in a training, one file each; `config/ways.py` has its settings.

The loop and the batches ask a training's phase for its way and know none by name.
"""

from __future__ import annotations

from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from distillery.config.phases import Phases
from distillery.config.ways import Phase
from distillery.training.data import SegmentDataset
from distillery.training.ways.drawing import draw
from distillery.training.ways.way import Way

if TYPE_CHECKING:
    from distillery.training.batch import Batch
    from distillery.training.run import Run
    from distillery.training.state import Companion, TrainingState

WAYS = {
    "stored": "StoredWay",
    "rounds": "RoundsWay",
    "online": "OnlineWay",
    "adversarial": "AdversarialWay",
    "rollouts": "RolloutsWay",
}
"""The class of each, in the module of the name that a phase is told by. A training imports those
that it has, so that one from stored targets alone needs none of the others."""


def way_of(phase: Phase) -> Way[Any]:
    """How a phase acts."""
    module = import_module(f"{__name__}.{phase.learn}")
    way: Way[Any] = getattr(module, WAYS[phase.learn])(phase)
    return way


def source_of(training: Phases) -> type[SegmentDataset]:
    """What reads the items of all phases; at most one of them needs more than trajectories."""
    sources = [way_of(phase).source for phase in training.phases]
    return next((it for it in sources if it is not SegmentDataset), SegmentDataset)


def way_at(samples_seen: int, training: Phases) -> Way[Any]:
    """How the phase of an update acts."""
    return way_of(training.at(samples_seen).phase)


def new_companion(student: Path, run: Run) -> Companion | None:
    """What learns beside the student, if the training has a finish with such a thing."""
    director = run.training.director
    return way_of(director.phase).companion(student, run) if director else None


def add_directions(batch: Batch, state: TrainingState, size: int, run: Run) -> Batch:
    """This rank's batch with directions, if it has any; meanwhile the companion learns.

    A direction is a gradient in what the student draws, beyond what its targets say. It is asked
    for once per update, before the backward pass, for all images of a process together. So
    micro-batches, retries after running out of memory, and a teacher whom all processes must ask
    equally often stay as they are, and only one of the networks has activations at a time. It acts
    where a step ends on an image: at the last step, and on rollouts.

    Args:
        batch: of one update, with its targets.
        state: whose student draws; its weights stay, those of the companion change.
        size: samples that a network may take at once.
    """
    companion, director = state.companion, run.training.director
    if companion is None or director is None or state.samples_seen < director.begin:
        return batch
    way = way_of(director.phase)
    drawing = draw(batch, state, size, way, run)
    found = way.direct(drawing, state, companion, director.begin, run)
    direction = torch.zeros_like(batch.noisy)
    direction[drawing.rows] = found.cpu()
    return replace(batch, direction=direction)
