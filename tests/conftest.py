"""What all tests share: one tiny teacher, and one thread, since their number changes last bits.

Bytes are promised on CPUs, so tests see no GPU; those marked `gpu` alone see it, with `-m gpu`.
"""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

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


def pytest_runtest_setup(item: pytest.Item) -> None:
    """`gpu(n)` needs so many GPUs, one if nothing is said."""
    marker = item.get_closest_marker("gpu")
    if marker is not None:
        (needed,) = marker.args or (1,)
        if torch.cuda.device_count() < needed:
            pytest.skip(f"needs {needed} GPUs")


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> Iterator[None]:
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
