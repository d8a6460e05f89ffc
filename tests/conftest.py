"""What all tests share: one tiny teacher, and one thread, since their number changes last bits.

Bytes are promised on CPUs, so tests see no GPU; those marked `gpu` alone see it, with `-m gpu`.
Torch is imported where it is used: the process that gives files to workers begins without it.
"""

import gc
import os
import signal
from collections.abc import Iterator
from itertools import chain, zip_longest
from pathlib import Path

import pytest

import sharing

SLOW = (
    "distributed/", "workflow/", "slurm/", "numerics/test_bfloat16", "numerics/test_families",
    "numerics/test_traced", "unit/training/test_network", "unit/teacher/test_adapters",
    "unit/training/test_alarms",
    "numerics/test_rollout", "numerics/test_negative_prompts", "unit/training/test_peers",
    "unit/teacher/test_placement", "unit/training/test_previews", "unit/training/test_saving",
    "unit/test_slots", "unit/student/test_lora", "unit/student/test_unet",
    "unit/training/test_distributed", "unit/training/test_loop",
    "unit/training/test_training_rollout", "unit/stages/test_stages", "unit/measures/test_judge",
    "unit/measures/test_a_measure", "unit/training/test_a_way_is",
    "numerics/test_family_hooks", "unit/training/test_microbatch",
    "fuzz/test_plan_promise", "unit/store/test_belonging",
    "unit/training/test_history", "unit/teacher/test_decoding", "unit/stages/test_own_negatives",
    "fuzz/test_random_schedulers", "unit/generation/test_walk", "unit/planning/test_solver_plan",
    "numerics/test_clipping", "unit/training/test_online", "unit/planning/test_overlooked",
    "fuzz/test_random_adapters",
    "fuzz/test_teacher_folders", "unit/teacher/test_damaged_folders",
    "unit/teacher/test_tokenizers", "unit/teacher/test_single_files",
    "unit/teacher/test_quantization",
)  # fmt: skip
"""Begins of the files that `make test-fast` leaves out: five seconds of a core and more each. The
first have the most; workers begin with these."""
WAITING = ("distributed/", "workflow/")
"""Files whose tests wait for processes for half of their time."""

for number, handler in (
    (signal.SIGINT, signal.default_int_handler),
    (signal.SIGHUP, signal.SIG_DFL),
):
    # A job in the background ignores Ctrl-C, one under nohup SIGHUP, and all that it starts inherit
    # that; the tests send both.
    if signal.getsignal(number) is signal.SIG_IGN:
        signal.signal(number, handler)


def pytest_configure(config: pytest.Config) -> None:
    if config.option.markexpr not in {"gpu", "slurm"}:
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
        # Two threads of each process that a test starts would spin in wait for one another.
        os.environ["OMP_NUM_THREADS"] = "1"
    os.fsync = sharing.no_fsync


@pytest.hookimpl(tryfirst=True)  # before pytest's own, which chooses by marks
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the rooms and files that are slow as a whole, and have workers begin with the longest.

    A file that is begun last keeps one worker busy while the others have nothing left to do. Those
    that wait take turns with those that compute, or the cores would idle first and be short later.
    """
    for item in items:
        if _place_of(item).startswith(SLOW):
            item.add_marker(pytest.mark.slow)
    if "PYTEST_XDIST_WORKER" in os.environ:
        items.sort(key=lambda item: _rank_of(_place_of(item)))
        places = list(dict.fromkeys(map(_place_of, items)))
        waiting = [place for place in places if place.startswith(WAITING)]
        computing = [place for place in places if not place.startswith(WAITING)]
        turns = list(chain.from_iterable(zip_longest(waiting, computing)))
        items.sort(key=lambda item: turns.index(_place_of(item)))


def pytest_collection_finish() -> None:
    """Look for garbage seldom: what the libraries hold is searched each time, 12 % of all work."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(200_000, 10, 10)


def _rank_of(place: str) -> int:
    """Where a file stands among those of `SLOW`, all others after them."""
    return next((rank for rank, begin in enumerate(SLOW) if place.startswith(begin)), len(SLOW))


def _place_of(item: pytest.Item) -> str:
    return item.path.relative_to(Path(__file__).parent).as_posix()


def pytest_runtest_setup(item: pytest.Item) -> None:
    """`gpu(n)` needs so many GPUs, one if nothing is said."""
    marker = item.get_closest_marker("gpu")
    if marker is not None:
        import torch

        (needed,) = marker.args or (1,)
        if torch.cuda.device_count() < needed:
            pytest.skip(f"needs {needed} GPUs")


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> Iterator[None]:
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session", autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Tests, and what they start, leave the user's hashes alone."""
    os.environ["DISTILLERY_CACHE"] = str(tmp_path_factory.mktemp("cache"))


@pytest.fixture(scope="session")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny run that is ready to train; tests must not write into it."""
    from tiny import make_tiny_run

    folder = tmp_path_factory.mktemp("data")
    make_tiny_run(folder)
    return folder


@pytest.fixture(scope="session")
def teacher(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a tiny Wan; tests must not write into it."""
    from tiny import make_tiny_wan

    folder = tmp_path_factory.mktemp("teacher")
    make_tiny_wan(folder)
    return folder
