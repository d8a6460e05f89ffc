"""Curves over the samples seen: what is in the event files, and that a restart doubles no point."""

import errno
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from tensorboardX.event_file_writer import EventsWriter

from distillery.training import loop
from distillery.training.watchers import tensorboard
from distillery.training.watchers.tensorboard import MAX_QUEUE, TensorBoard, tags_of
from event_files import read_numbers as read
from in_process import losses_of, train

WORKFLOW = Path(__file__).parents[3] / "workflow"
PNG = b"\x89PNG\r\n\x1a\n" + b"\0\0\0\rIHDR" + (6).to_bytes(4) + (4).to_bytes(4)
"""As far as the size; nothing is encoded again."""


def test_rows_become_curves_and_what_is_not_finite_is_left_out(tmp_path):
    row = {"samples_seen": 8, "loss": 0.5, "grad_norm": 2.0, "loss_segment_1": float("nan")}
    assert tags_of(row).keys() == {"loss/all", "training/grad_norm", "loss/segment_1"}
    board = TensorBoard(tmp_path, 0, pytest.fail)
    board.numbers(tags_of(row), 8)
    board.close()
    assert read(tmp_path) == {"loss/all": {8: [0.5]}, "training/grad_norm": {8: [2.0]}}


def test_texts_and_images_are_there(tmp_path):
    board = TensorBoard(tmp_path, 0, pytest.fail)
    board.text("alarms", "the loss grows", 8)
    board.preview("p0", PNG, "a bird", 8)
    board.close()
    found = read(tmp_path)
    assert found.keys() == {"alarms/text_summary", "previews/p0", "prompts/p0/text_summary"}


def test_nothing_is_written_once_the_writing_thread_has_ended(tmp_path, monkeypatch):
    """As a full disk ends it: one warning, and the training continues without curves."""
    told = []
    board = TensorBoard(tmp_path, 0, told.append)
    worker = board._writer.file_writer.event_writer._worker
    board.numbers({"loss/all": 0.5}, 8)
    monkeypatch.setattr(worker, "is_alive", lambda: False)
    board.numbers({"loss/all": 0.25, "loss/segment_0": 0.25}, 16)
    board.text("alarms", "the loss grows", 16)
    board.close()
    (warning,) = told
    assert "the thread that writes them has ended" in warning
    worker.stop()


def test_a_training_shows_its_loss_table(data, tmp_path):
    assert train(data, tmp_path) == 0
    shown = read(tmp_path / "telemetry/tensorboard")
    losses = losses_of(tmp_path)
    for column, tag in (("loss", "loss/all"), ("learning_rate", "training/learning_rate")):
        points = [points for (points,) in shown[tag].values()]
        assert list(shown[tag]) == losses["samples_seen"].tolist()
        assert points == pytest.approx(losses[column].tolist())
    assert {"loss/segment_3", "training/grad_norm", "speed/samples_per_s"} <= shown.keys()
    assert {"speed/peak_memory_gib", "variation/over_prompts"} <= shown.keys()
    assert [*shown["configuration/text_summary"]] == [0]
    (content,) = (path.read_bytes() for path in (tmp_path / "telemetry/tensorboard").iterdir())
    assert b"  num_samples: 64\n" in content


def test_a_resumed_training_doubles_no_point(data, tmp_path, monkeypatch):
    """It dies after four updates and resumes from the second, with other values that count."""
    real, updates = loop.check_finite, []

    def dying(totals, *arguments):
        updates.append(totals)
        if len(updates) == 4:
            raise KeyboardInterrupt
        real(totals, *arguments)

    monkeypatch.setattr(loop, "check_finite", dying)
    assert train(data, tmp_path) == 130
    monkeypatch.undo()
    folder = tmp_path / "telemetry/tensorboard"
    assert list(read(folder)["loss/all"]) == [8, 16, 24]
    assert train(data, tmp_path) == 0
    points = read(folder)["loss/all"]
    assert list(points) == list(range(8, 72, 8))
    assert all(len(values) == 1 for values in points.values())
    files = sorted(folder.iterdir())
    assert len(files) == 2


def thread_of(board):
    """The library's, which writes."""
    return board._writer.file_writer.event_writer._worker


def fail(*_):
    raise OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_thread_that_died_of_a_full_disk_is_told_once_and_blocks_nobody(tmp_path, monkeypatch):
    warnings = []
    board = TensorBoard(tmp_path, 0, warnings.append)

    def write_all():
        for number in range(3 * MAX_QUEUE):
            board.numbers({"loss/all": 1.0}, number)
        board.text("alarms", "the loss grows", 8)
        board.preview("p0", PNG, "a bird", 8)
        board.close()

    monkeypatch.setattr(EventsWriter, "write_event", fail)
    writing = threading.Thread(target=write_all, daemon=True)
    writing.start()
    writing.join(30)
    assert not writing.is_alive()
    (warning,) = warnings
    assert "no more curves for TensorBoard: the thread that writes them has ended" in warning


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_queue_that_stays_full_is_given_up(tmp_path, monkeypatch):
    monkeypatch.setattr(tensorboard, "ROOM_S", 0.2)
    go_on, warnings = threading.Event(), []
    board = TensorBoard(tmp_path, 0, warnings.append)
    thread = thread_of(board)
    monkeypatch.setattr(EventsWriter, "write_event", lambda *_: go_on.wait() and fail())
    writing = threading.Thread(
        target=lambda: [board.numbers({"loss/all": 1.0}, 8) for _ in range(3 * MAX_QUEUE)],
        daemon=True,
    )
    writing.start()
    writing.join(30)
    assert not writing.is_alive()
    go_on.set()
    thread.join(30)  # else its error comes in a later test
    assert ["nothing was written for 0.2 s" in warning for warning in warnings] == [True]


def test_what_cannot_be_closed_or_opened_is_told_and_raises_nothing(tmp_path, monkeypatch):
    warnings = []
    board = TensorBoard(tmp_path, 0, warnings.append)
    thread = thread_of(board)

    monkeypatch.setattr(EventsWriter, "flush", fail)
    board.close()
    monkeypatch.undo()
    thread.stop()  # else it would still write when Python ends
    (tmp_path / "file").touch()
    TensorBoard(tmp_path / "file", 0, warnings.append).close()
    assert ["TensorBoard: [Errno" in warning for warning in warnings] == [True, True]


PROCESS = """
import sys
from pathlib import Path
from tensorboardX.event_file_writer import EventsWriter
from distillery.training.watchers.tensorboard import MAX_QUEUE, TensorBoard

board = TensorBoard(Path(sys.argv[1]), 0, print)
healthy = EventsWriter.write_event
EventsWriter.write_event = None  # the thread ends with an error
for number in range(3 * MAX_QUEUE):
    board.numbers({"loss/all": 1.0}, number)
EventsWriter.write_event = healthy
"""


@pytest.mark.slow
def test_a_process_ends_though_its_curves_could_not_be_written(tmp_path):
    """The library's last word at exit, and Python's, wait for a thread that is gone."""
    done = subprocess.run(
        [sys.executable, "-c", PROCESS, str(tmp_path)],
        env=os.environ | {"PYTHONPATH": str(WORKFLOW)},
        capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    assert done.stdout.count("no more curves for TensorBoard") == 1
