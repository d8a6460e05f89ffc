"""A checkpoint is a copy of one moment, written while the training continues."""

import dataclasses
import threading
import time
from concurrent import futures

import pytest
import torch
from safetensors.torch import load_file

from distillery.telemetry import read_events
from distillery.training import checkpoint, saving
from distillery.training.saving import HostCopy, Saver
from distillery.training.state import TrainingState, Window
from in_process import train
from runs import open_run

CPU = torch.device("cpu")


@pytest.fixture
def run(data, tmp_path):
    return open_run(data, tmp_path)


def make_state(num_features):
    """One layer of so many features each way, after an update; a state four times its size."""
    layer = torch.nn.Linear(num_features, num_features)
    optimizer = torch.optim.AdamW(layer.parameters())
    layer(torch.ones(1, num_features)).sum().backward()
    optimizer.step()
    average = {name: value.detach().clone() for name, value in layer.named_parameters()}
    return TrainingState(layer, optimizer, average, Window.empty(4), samples_seen=8)


def written(run, samples_seen=8):
    return checkpoint.checkpoint_path(run.checkpoints, samples_seen)


def test_what_is_written_is_the_moment_of_the_save(run):
    state = make_state(64)
    before = {f"{file}/{name}": value.clone() for file, name, value in checkpoint.tensors_of(state)}
    with Saver(run) as saver:
        saver.save(state)
        assert run.watchdog.finishing is saver._writing
        with torch.no_grad():
            for *_, value in checkpoint.tensors_of(state):
                value.add_(1)
    saved = {
        f"{file}/{name}": value
        for file in (checkpoint.WEIGHTS, checkpoint.AVERAGE, checkpoint.OPTIMIZER)
        for name, value in load_file(written(run) / file).items()
    }
    assert saved.keys() == before.keys()
    assert all(torch.equal(saved[name], before[name]) for name in before)
    assert checkpoint.find_newest(run.checkpoints, run.recipe_hash, run.reporter) == written(run)


def test_one_checkpoint_after_another_uses_the_same_memory_and_both_are_whole(run):
    state = make_state(64)
    with Saver(run) as saver:
        saver.save(state)
        host = saver._host.result()
        with torch.no_grad():
            state.denoiser.weight.zero_()
        state.samples_seen = 16
        saver.save(state)
        assert saver._host.result() is host
    first, second = (load_file(written(run, seen) / checkpoint.WEIGHTS) for seen in (8, 16))
    assert first["weight"].any()
    assert not second["weight"].any()


@pytest.mark.slow
def test_a_newer_checkpoint_that_was_damaged_removes_no_sound_one(run):
    """A training that resumed from before them saves at other places, and all but one is kept."""
    for seen in (24, 32, 40):
        written(run, seen).mkdir(parents=True)
    for seen in (8, 16):
        snapshot = checkpoint.Snapshot({}, [], Window.empty(4), seen)
        checkpoint.write(snapshot, run.checkpoints, run.recipe_hash, keep=1)
    assert not written(run, 8).exists()
    newest = checkpoint.find_newest(run.checkpoints, run.recipe_hash, run.reporter)
    assert newest == written(run, 16)


def test_the_training_waits_for_the_copy_and_not_for_the_disk(run):
    """25 MB of weights, 100 MB of state, and memory for it that is there before."""
    state = make_state(2500)
    stalls = []
    with Saver(run) as saver:
        saver.prepare(state)
        saver._host.result()
        for state.samples_seen in (8, 16, 24):
            saver.wait()
            begin_s = time.perf_counter()
            saver.save(state)
            stalls.append(time.perf_counter() - begin_s)
    events = [event for event in read_events(run.reporter.path.parent) if event.kind == "save"]
    writes = [event.facts["write_s"] for event in events]
    assert [event.facts["samples_seen"] for event in events] == [8, 16, 24]
    assert all(event.facts["num_bytes"] > 100e6 for event in events)
    for event, stall_s in zip(events, stalls, strict=True):
        assert event.facts["stall_s"] == pytest.approx(stall_s, abs=0.1)
    ratios = [stall_s / write_s for stall_s, write_s in zip(stalls, writes, strict=True)]
    assert min(ratios) < 0.3, ratios


def test_two_writes_in_a_row_that_fail_end_the_second_save(run, tmp_path, caplog):
    (tmp_path / "file").touch()
    broken = dataclasses.replace(run, checkpoints=tmp_path / "file" / "below")
    state = make_state(8)
    saver = Saver(broken)
    saver.save(state)
    futures.wait([saver._writing])
    assert "no checkpoint after 8 samples: [Errno 20] Not a directory" in caplog.text
    state.samples_seen = 16
    with pytest.raises(OSError, match="file"):
        saver.save(state)
    assert "no checkpoint after 16 samples" in caplog.text


def test_a_save_after_a_write_that_failed_writes_what_there_is_now(run, caplog):
    """Somebody has made room meanwhile."""
    run.checkpoints.parent.mkdir()
    run.checkpoints.touch()
    state = make_state(8)
    with Saver(run) as saver:
        saver.save(state)
        futures.wait([saver._writing])
        run.checkpoints.unlink()
        state.samples_seen = 16
        saver.save(state)
        assert checkpoint.find_newest(run.checkpoints, run.recipe_hash, run.reporter) == written(
            run, 16
        ), "it is waited for"
        state.samples_seen = 24
        saver.save(state)
    assert "no checkpoint after 8 samples" in caplog.text
    assert written(run, 24).is_dir()


def test_what_is_no_error_of_the_disk_ends_the_next_save_at_once(run, monkeypatch):
    tried = []

    def fail(*_):
        tried.append(1)
        raise TypeError("on purpose")

    monkeypatch.setattr(checkpoint, "write", fail)
    saver = Saver(run)
    saver.save(make_state(8))
    with pytest.raises(TypeError, match="on purpose"):
        saver.save(make_state(8))
    assert len(tried) == 1


def test_what_goes_wrong_in_the_last_write_is_not_lost(run, tmp_path):
    (tmp_path / "file").touch()
    broken = dataclasses.replace(run, checkpoints=tmp_path / "file" / "below")
    with pytest.raises(OSError, match="file"), Saver(broken) as saver:
        saver.save(make_state(8))


def test_an_error_of_the_training_lets_a_checkpoint_end(run):
    def fail():
        with Saver(run) as saver:
            saver.save(make_state(256))
            raise RuntimeError("on purpose")

    with pytest.raises(RuntimeError, match="on purpose"):
        fail()
    assert written(run).is_dir()


def test_memory_is_taken_once_and_beside_the_updates(run, monkeypatch):
    state, asked_for = make_state(64), threading.Event()

    class Slow(HostCopy):
        def __init__(self, *arguments):
            assert asked_for.wait(10), "prepare waits for the memory"
            super().__init__(*arguments)

    monkeypatch.setattr(saving, "HostCopy", Slow)
    with Saver(run) as saver:
        saver.prepare(state)
        asked_for.set()
        host = saver._host
        saver.prepare(state)
        saver.save(state)
        assert saver._host is host
    assert written(run).is_dir()


def test_memory_is_given_back_when_all_is_on_disk(run, monkeypatch):
    closed = []

    class Noting(HostCopy):
        def close(self):
            closed.append(written(run).is_dir())
            super().close()

    monkeypatch.setattr(saving, "HostCopy", Noting)
    with Saver(run) as saver:
        saver.save(make_state(64))
        assert closed == []
    assert closed == [True]


def test_memory_that_is_not_to_be_had_ends_the_training_at_once(run, monkeypatch):
    def fail(*_):
        raise RuntimeError("not enough memory (made by a test)")

    monkeypatch.setattr(saving, "HostCopy", fail)
    saver = Saver(run)
    saver.prepare(make_state(8))
    futures.wait([saver._host])
    with pytest.raises(RuntimeError, match="not enough memory"):
        saver.prepare(make_state(8))


def test_the_loop_takes_memory_in_its_first_update(data, tmp_path, monkeypatch):
    seen, prepare_host = [], Saver.prepare

    def note(saver, state):
        seen.append(state.samples_seen)
        assert state.optimizer.state, "what is saved is there"
        prepare_host(saver, state)

    monkeypatch.setattr(Saver, "prepare", note)
    assert train(data, tmp_path) == 0
    assert seen[0] == 0


ENTRIES = [
    ("a", "scalar", torch.tensor(3.0)),
    ("a", "odd", torch.arange(7, dtype=torch.int8)),
    ("a", "none", torch.empty(0, 4)),
    ("b", "half", torch.randn(3, 5, dtype=torch.bfloat16)),
    ("b", "turned", torch.randn(4, 6, dtype=torch.float64).T),
]


@pytest.mark.parametrize("block_bytes", [1 << 30, 128, 1])
def test_the_copy_keeps_types_and_shapes(monkeypatch, block_bytes):
    monkeypatch.setattr(saving, "BLOCK_BYTES", block_bytes)
    host = HostCopy(ENTRIES, CPU)
    copies = host.fill(ENTRIES)
    for file, name, tensor in ENTRIES:
        copy = copies[file][name]
        assert copy.dtype == tensor.dtype
        assert torch.equal(copy, tensor)
        assert copy.is_contiguous()


@pytest.mark.parametrize(("num_lockable", "num_locked"), [(99, 5), (2, 2)])
def test_memory_that_cannot_be_locked_is_used_as_it_is(monkeypatch, num_lockable, num_locked):
    """A limit of locked memory (`ulimit -l`) may allow a part."""
    blocks = []

    def lock(block):
        blocks.append(block)
        return 0 if len(blocks) <= num_lockable else 2

    monkeypatch.setattr(saving, "BLOCK_BYTES", 1)
    monkeypatch.setattr(saving, "lock_pages", lock)
    monkeypatch.setattr(torch.cuda, "set_device", lambda device: None)
    host = HostCopy(ENTRIES, torch.device("cuda", 0))
    assert len(host._locked) == num_locked
    assert (host.problem is None) == (num_lockable == 99)
    copies = host.fill(ENTRIES)
    assert all(torch.equal(copies[file][name], tensor) for file, name, tensor in ENTRIES)
