"""A judge for all tests of measures, and the scores of a test file's own run."""

import pytest

from judging import make_judge


@pytest.fixture(scope="session")
def judge_folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("judge")
    make_judge(folder)
    return folder


@pytest.fixture(scope="module")
def evaluated(whole):
    """(quality, scores) of it."""
    return whole.evaluate()
