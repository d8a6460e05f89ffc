"""What the tests of several processes are compared with."""

from functools import cache

import pytest
from trainings import train


@pytest.fixture(scope="module")
def undisturbed(data, tmp_path_factory):
    """For a number of processes, their training of the file's `data`, which nothing disturbs."""

    @cache
    def folder_of(num_processes):
        folder = tmp_path_factory.mktemp("undisturbed")
        assert train(data, folder, num_processes) == [0] * num_processes
        return folder

    return folder_of


@pytest.fixture(scope="module")
def alone(undisturbed):
    """A training of the file's `data` by one process."""
    return undisturbed(1)
