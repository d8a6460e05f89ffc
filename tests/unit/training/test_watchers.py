"""What looks at a training: all of a list, in its order, and none by its name."""

import inspect
import re
import time
from typing import Any

import pytest

from distillery.config.training import Training
from distillery.training import loop
from distillery.training.watchers import Interval, Moment, Watched, Watcher, watching
from distillery.training.watchers import all as listed
from training_phases import phases

TRAINING = Training(phases=phases(stored=32), global_batch_size=8, log_every_samples=16)


class Noting(Watcher):
    """Notes what is asked of it, and takes its time to measure."""

    def __init__(self, name: str, told: list[Any], waits: bool = False) -> None:
        self.name, self.told, self.waits = name, told, waits
        self.intervals: list[Interval] = []

    def measure(self, moment: Moment) -> None:
        time.sleep(0.01)
        self.told.append((self.name, "measure", moment.seen))
        self.intervals.append(moment.interval)

    def show(self, moment: Moment) -> bool:
        self.told.append((self.name, "show", moment.seen))
        self.intervals.append(moment.interval)
        return self.waits

    def close(self, wait: bool) -> None:
        self.told.append((self.name, "close", wait))


def test_all_are_asked_in_order_though_the_first_has_waited() -> None:
    told: list[Any] = []
    watched = Watched([Noting("first", told, waits=True), Noting("second", told)])
    watched.measure(Moment(8, TRAINING))
    assert watched.show(Moment(8, TRAINING))
    watched.close(wait=True)
    names, acts = [name for name, *_ in told], [act for _, act, _ in told]
    assert names == ["first", "second"] * 3
    assert acts == ["measure", "measure", "show", "show", "close", "close"]
    assert not Watched([Noting("first", [])]).show(Moment(8, TRAINING))


def test_an_interval_begins_when_the_row_before_it_is_measured() -> None:
    watcher = Noting("only", [])
    watched = Watched([watcher])
    for seen in (8, 16):
        watched.measure(Moment(seen, TRAINING))
    ended_s = time.time()
    for act in (watched.show, watched.measure):
        act(Moment(24, TRAINING))
    first, second, third, fourth = watcher.intervals
    assert first is second
    assert third is fourth, "what is shown after a row counts for the next"
    assert second is not third
    assert second.begin_s + 0.02 <= third.begin_s <= ended_s


def test_rows_end_where_the_training_does() -> None:
    moments = [Moment(seen, TRAINING.model_copy(update={"log_every_samples": 24})) for seen in
               range(8, 40, 8)]  # fmt: skip
    assert [moment.is_row for moment in moments] == [False, False, True, True]
    assert [moment.is_last for moment in moments] == [False, False, False, True]


@pytest.mark.parametrize("fails", [False, True])
def test_an_error_ends_them_without_waiting(fails: bool) -> None:
    told: list[Any] = []
    try:
        with watching([Noting("only", told)], pytest.fail):
            assert not fails, "made by a test"
    except AssertionError:
        assert fails
    assert told == [("only", "close", not fails)]


def test_the_loop_names_none() -> None:
    imported = re.findall(r"from distillery\.training\.watchers\.\w+ import (\w+)", (
        inspect.getsource(listed)
    ))  # fmt: skip
    assert len(imported) == 5
    assert not re.findall(rf"\b({'|'.join(imported)})\b", inspect.getsource(loop))
