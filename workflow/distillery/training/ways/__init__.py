"""How each way to learn acts in a training, one file each; `config/ways.py` has its settings.

The loop and the batches ask a training's phase for its way and know none by name.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from distillery.config.phases import Phases
from distillery.config.ways import Phase
from distillery.training.data import SegmentDataset
from distillery.training.ways.adversarial import AdversarialWay
from distillery.training.ways.online import OnlineWay
from distillery.training.ways.rollouts import RolloutsWay
from distillery.training.ways.rounds import RoundsWay
from distillery.training.ways.stored import StoredWay
from distillery.training.ways.way import Way

if TYPE_CHECKING:
    from distillery.training.batch import Batch
    from distillery.training.run import Run
    from distillery.training.state import TrainingState

WAYS: dict[str, type[Way[Any]]] = {
    "stored": StoredWay,
    "rounds": RoundsWay,
    "online": OnlineWay,
    "adversarial": AdversarialWay,
    "rollouts": RolloutsWay,
}
"""By the name that a phase is told by."""


def way_of(phase: Phase) -> Way[Any]:
    """How a phase acts."""
    return WAYS[phase.learn](phase)


def source_of(training: Phases) -> type[SegmentDataset]:
    """What reads the items of all phases; at most one of them needs more than trajectories."""
    sources = [way_of(phase).source for phase in training.phases]
    return next((it for it in sources if it is not SegmentDataset), SegmentDataset)


def add_targets(batch: Batch, state: TrainingState, size: int, run: Run) -> Batch:
    """This rank's batch as its phase learns from it; see `Way.complete`."""
    phase = run.training.at(state.samples_seen).phase
    return way_of(phase).complete(batch, state, size, run)
