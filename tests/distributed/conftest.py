"""What the tests of several processes are compared with."""

import pytest
from trainings import train


@pytest.fixture(scope="module")
def alone(data, tmp_path_factory):
    """A training of the file's `data` by one process."""
    folder = tmp_path_factory.mktemp("alone")
    assert train(data, folder, 1) == [0]
    return folder
