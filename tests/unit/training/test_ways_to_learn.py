"""Each way to learn has a class in the configuration and one file of behaviour."""

import inspect
import re
from types import SimpleNamespace
from typing import Any

import pytest

from distillery.config import ways
from distillery.config.training import Training
from distillery.training import batches, loop
from distillery.training.batches import Batches
from distillery.training.distributed import RankInfo
from distillery.training.ways import WAYS, add_directions, new_companion, source_of, way_of
from distillery.training.ways.online import OnlineDataset
from distillery.training.ways.rounds import RoundsDataset
from training_phases import phases

STEPS, TRAJECTORIES = 4, 10
NAMES = [str(way.model_fields["learn"].default) for way in ways.WAYS]


def opened(*listed: Any) -> Batches:
    first = STEPS * TRAJECTORIES
    dataset: Any = SimpleNamespace(
        num_trajectories=TRAJECTORIES, steps=STEPS, first_rollout=first,
        first_visited=first + TRAJECTORIES, recipe=SimpleNamespace(samples_per_prompt=1),
        of_one_size=[range(TRAJECTORIES)], places=range(STEPS),
    )  # fmt: skip
    return Batches(dataset, Training(phases=listed, global_batch_size=8), 0, RankInfo())


def test_every_way_of_the_configuration_acts_from_a_file_of_its_own() -> None:
    assert list(WAYS) == NAMES
    for way in ways.WAYS:
        assert way_of(way(samples=8)).phase == way(samples=8)


@pytest.mark.parametrize("asks", [loop, batches, new_companion, add_directions])
def test_what_asks_the_ways_names_none(asks: Any) -> None:
    code = re.sub(r'""".*?"""|#[^\n]*', "", inspect.getsource(asks), flags=re.DOTALL)
    assert not re.findall(rf"\b({'|'.join(NAMES)})\b", code, flags=re.IGNORECASE)


def test_what_reads_the_items_is_that_of_the_way_that_needs_more() -> None:
    found = {
        name: source_of(Training(phases=listed, global_batch_size=8))
        for name, listed in {
            "rounds": phases(stored=8, rounds=8, rollouts=8),
            "online": phases(stored=8, online=8),
        }.items()
    }
    assert found == {"rounds": RoundsDataset, "online": OnlineDataset}


def test_each_phase_takes_its_own_items() -> None:
    """Stored and adversarial ones go on in one stream; rollouts have another of their own."""
    of_parts = opened(*phases(stored=16, adversarial=8, rollouts=16))
    plain = opened(*phases(stored=24))
    found = list(of_parts.positions(0))
    assert found[:3] == list(plain.positions(0))
    walks = [item - STEPS * TRAJECTORIES for items in found[3:] for item in items]
    assert all(0 <= walk < TRAJECTORIES for walk in walks)
    assert sorted(walks[:TRAJECTORIES]) == list(range(TRAJECTORIES)), "each once, then again"


def test_online_items_are_the_same_steps_at_visited_states() -> None:
    first = STEPS * TRAJECTORIES + TRAJECTORIES
    found = opened(*phases(stored=8, online=16))
    assert [[item - first for item in items] for items in found.positions(8)] == list(
        opened(*phases(stored=24)).positions(8)
    )
