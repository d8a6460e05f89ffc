import os
from collections.abc import Iterator

import pytest

import cluster


@pytest.fixture(scope="session")
def slurm() -> Iterator[None]:
    """The test cluster."""
    missing = cluster.missing_tools()
    if missing or os.geteuid() != 0:
        pytest.skip(f"needs root and the packages {' '.join(cluster.PACKAGES)} (no {missing})")
    cluster.down()
    cluster.up()
    yield
    cluster.down()
