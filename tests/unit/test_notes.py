"""Faults are told together, each once, and what a library function raises stays what it was."""

from collections.abc import Iterator

import pytest

from configs import changed
from distillery.config.run import parse_config
from distillery.notes import Note, advice, doubt, error, gather, refuse


def test_a_note_in_words() -> None:
    assert str(error("a is 1", " and b is 2", "set a to 2")) == "a is 1 and b is 2: set a to 2"
    assert str(error("a is 1", ": it must be 2", "set it")) == "a is 1: it must be 2; set it"
    assert str(doubt("a is 1", ": all are drawn")) == "a is 1: all are drawn"


def test_all_errors_are_told_at_once_and_each_once() -> None:
    refuse([doubt("a", " may fail"), advice("b", " could be 2")])
    with pytest.raises(ValueError, match=r"^a is 1\n  b is 2$"):
        refuse([error("a is 1", ""), doubt("c", ""), error("b is 2", ""), error("a is 1", "")])


def missing(path: str) -> Iterator[Note]:
    yield advice(path, " is asked for")
    raise FileNotFoundError(f"{path} is missing")


def wrong(path: str) -> Iterator[Note]:
    yield error(path, " is wrong")
    yield error(path, " is old")


def together(path: str) -> Iterator[Note]:
    refuse(gather((missing, wrong), path))
    yield doubt(path, " is never asked")


def test_a_check_that_raises_hides_no_other() -> None:
    found = gather((missing, wrong), "x.csv")
    assert [str(note) for note in found] == [
        "x.csv is asked for", "x.csv is missing", "x.csv is wrong", "x.csv is old",
    ]  # fmt: skip
    with pytest.raises(ValueError, match=r"missing\n  .* wrong\n  .* old$") as caught:
        refuse(found)
    assert isinstance(caught.value.__cause__, FileNotFoundError), "the log has its traceback"
    assert len(gather((together,), "x.csv")) == 3, "what was refused together stays apart"
    with pytest.raises(FileNotFoundError):
        refuse(gather((missing,), "x.csv"))


def confused(path: str) -> Iterator[Note]:
    raise KeyError(path)


def test_a_check_that_falls_over_hides_nothing_that_was_found_before() -> None:
    """Which may be why; alone it is a fault of ours, and not hidden."""
    assert len(gather((wrong, confused), "x.csv")) == 2
    with pytest.raises(KeyError):
        gather((confused, wrong), "x.csv")


def test_three_faults_of_a_configuration_are_told_together() -> None:
    with pytest.raises(ValueError, match="cannot be used") as caught:
        parse_config(
            changed(
                samples__models__student__steps=7,
                training__timestep_weights=[1.0] * 9,
                evaluation__reference="nobody",
            ),
            "my.yaml",
        )
    _, *lines = str(caught.value).splitlines()
    assert [line.split()[0] for line in lines] == [
        "training.timestep_weights", "samples.models.student.steps", "evaluation.reference",
    ]  # fmt: skip
    assert all(line.startswith("  ") for line in lines)
