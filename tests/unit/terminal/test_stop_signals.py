"""Signals that a logger takes from a process, and gives back."""

import signal
import sys
import threading
from collections.abc import Iterator

import pytest

from distillery.terminal.stopping import Stopping, end_beside_the_scheduler

TAKEN = (signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGTERM)


@pytest.fixture(autouse=True)
def as_at_first() -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in TAKEN}
    hook = sys.excepthook
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    sys.excepthook = hook
    for number, handler in before.items():
        signal.signal(number, handler)


def test_only_the_first_ctrl_c_stops() -> None:
    stopping = Stopping(lambda: None)
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)
    assert stopping.is_asked
    signal.raise_signal(signal.SIGINT)
    stopping.give_back()
    signal.raise_signal(signal.SIGINT)  # Python itself is about to end


def test_signals_are_given_back_where_nobody_stopped() -> None:
    hook = sys.excepthook
    stopping = Stopping(lambda: None)
    assert signal.getsignal(signal.SIGHUP) is not signal.SIG_DFL
    stopping.give_back()
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert signal.getsignal(signal.SIGHUP) is signal.SIG_DFL
    assert sys.excepthook is hook


def test_what_is_ignored_stays_ignored() -> None:
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    stopping = Stopping(lambda: None)
    signal.raise_signal(signal.SIGHUP)
    signal.raise_signal(signal.SIGINT)
    assert not stopping.is_asked
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGHUP)] == [
        signal.SIG_IGN,
        signal.SIG_IGN,
    ]


def test_other_errors_keep_their_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[type[BaseException]] = []
    monkeypatch.setattr(sys, "excepthook", lambda kind, *_: told.append(kind))
    Stopping(lambda: None)
    for error in (KeyboardInterrupt(), RuntimeError("ours")):
        sys.excepthook(type(error), error, None)
    assert told == [RuntimeError]


def test_sigterm_waits_for_a_lock_beside_the_thread_that_has_it() -> None:
    """As Snakemake's main thread has it while the jobs to start are chosen."""
    lock, is_told = threading.Lock(), threading.Event()

    def handler(*_: object) -> None:
        assert lock.acquire(timeout=20), "the main thread gives it back once it goes on"
        is_told.set()

    signal.signal(signal.SIGTERM, handler)
    end_beside_the_scheduler()
    with lock:
        signal.raise_signal(signal.SIGTERM)
        assert not is_told.is_set()
    assert is_told.wait(20)


def test_sigterm_that_nobody_handles_stays_so() -> None:
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    end_beside_the_scheduler()
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
