"""Nothing that finished runs rest on has changed unseen."""

import pytest

import golden
from checkout import REPOSITORY


@pytest.fixture(scope="module")
def observed():
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(REPOSITORY)
        return golden.observe()


NAMES = sorted(path.stem for path in golden.FOLDER.iterdir() if path.stem != golden.METRICS)


@pytest.mark.parametrize("name", NAMES)
def test_what_finished_runs_rest_on_is_as_it_was(observed, name):
    """Meant? `PYTHONPATH=workflow:tests python -m golden`, and say why in the change's message."""
    before = (golden.FOLDER / f"{name}.json").read_text()
    assert golden.as_text(observed[name]) == before


def test_every_golden_file_is_compared(observed):
    assert sorted(observed) == NAMES
