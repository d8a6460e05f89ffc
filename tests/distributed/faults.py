"""What goes wrong in a training process on purpose; `processes` arranges it before it starts."""

import ctypes
import json
import multiprocessing
import os
import signal
import time
from functools import partial, partialmethod
from pathlib import Path
from types import SimpleNamespace

import torch
import torch.distributed as dist

from distillery import cli
from distillery.training import (
    checkpoint,
    fitting,
    loop,
    nodes,
    previews,
    target_teacher,
)
from distillery.training.ways import way_at
from distillery.training.ways.rollouts import RolloutsWay
from distillery.training.ways.way import Way


def arrange(fault):
    """Arrange a fault `kind:update`, in the middle of the update of this number, from 1."""
    kind, _, number = fault.partition(":")
    at_number = {
        "perturb": _perturb_at, "room": _limit_room, "wait": _wait_at, "estimate": _estimate,
        "teacher": _fail_as_teacher, "mesh": _check_mesh, "count-teachers": _count_teachers,
        "slow-previews": _draw_slowly_at,
    }  # fmt: skip
    match kind:
        case _ if kind in at_number:
            at_number[kind](int(number))
        case "kill-in-save" | "slow-save":
            _in_save(int(number), ACTS_IN_SAVE[kind])
        case "version":
            nodes.__version__ = number
        case "config":
            _read_other(Path(number))
        case "folder":
            os.chdir(number)
        case "record":
            _record(Path(number))
        case "hold":
            _hold_gradients()
        case "no-kernels":
            torch.compile = partial(torch.compile, backend="aot_eager")
        case _ if kind in ACTS:
            _at_update(int(number), ACTS[kind])


def fork_teachers():
    """Have a teacher's process of its own begin with all that is imported here."""
    forking = multiprocessing.get_context("fork")
    target_teacher.multiprocessing = SimpleNamespace(get_context=lambda _: forking)


def _read_other(folder):
    """Read the frozen configuration of another run, as where one was edited."""
    original = cli.read_job
    cli.read_job = lambda path, job: original(folder / path.name, job)


def _fail_as_teacher(number):
    """Raise in the teacher's n-th answer, while the other ranks wait for it."""
    original, calls = target_teacher.OwnTeacher.ask, []

    def ask(teacher, *arguments):
        calls.append(1)
        if len(calls) == number:
            _raise()
        return original(teacher, *arguments)

    target_teacher.OwnTeacher.ask = ask


def _draw_slowly_at(samples_seen):
    """Take longer than the other ranks for the images of a moment."""
    original = previews.Previews.draw

    def draw(self, drawer, row, seen):
        if seen == samples_seen:
            time.sleep(SLOW_DRAW_S)
        return original(self, drawer, row, seen)

    previews.Previews.draw = draw


def _raise():
    raise RuntimeError("this rank was broken on purpose")


def _run_out_of_memory():
    raise torch.OutOfMemoryError("CUDA out of memory on purpose")


def _count_teachers(number):
    def count():
        assert len(multiprocessing.active_children()) == number

    _at_update(1, count)


def _kill_teacher():
    """The process that this rank has started."""
    (teacher,) = multiprocessing.active_children()
    teacher.kill()


def _kill_spawner():
    """This rank, beside a teacher's process that has imported everything anew."""
    (teacher,) = multiprocessing.active_children()
    assert isinstance(teacher, multiprocessing.context.SpawnProcess)
    ACTS["kill"]()


ACTS = {
    "kill-teacher": _kill_teacher,
    "kill-spawner": _kill_spawner,
    "kill": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "terminate": lambda: os.kill(os.getpid(), signal.SIGTERM),
    "freeze": lambda: os.kill(os.getpid(), signal.SIGSTOP),
    "raise": _raise,
    "out-of-memory": _run_out_of_memory,
    "hang": lambda: time.sleep(600),
    # As native code that never gives Python's lock back.
    "hang-with-lock": lambda: ctypes.PyDLL(None).sleep(600),
}

SLOW_SAVE_S, SLOW_DRAW_S = 5.0, 3.0
ACTS_IN_SAVE = {"kill-in-save": ACTS["kill"], "slow-save": lambda: time.sleep(SLOW_SAVE_S)}


def _limit_room(num_samples):
    """A device with memory for so many samples at once."""

    def compute(original, way, model, batch, run):
        if len(batch.items) > num_samples:
            _run_out_of_memory()
        return original(way, model, batch, run)

    for way in (Way, RolloutsWay):
        way.losses = partialmethod(partial(compute, way.losses))


class _Memory:
    """A device with room for so many samples at once: 100 bytes each, and 1000 for the rest."""

    def __init__(self, num_samples):
        self.limit = 1000 + 100 * num_samples

    def peak_of(self, work):
        work()
        return 1000 + (100 * len(work.args[1].items) if hasattr(work, "args") else 0)


def _estimate(num_samples):
    """Size micro-batches as on GPUs with sharded weights."""

    def sized(state, micro_batches, run):
        share = run.dataset.__getitems__(next(run.batches.positions(0)))
        losses, memory = way_at(0, run.training).losses, _Memory(num_samples)
        fitting.lower_by_estimates(state, share, micro_batches, losses, run, memory)
        assert all(parameter.grad is None for parameter in state.denoiser.parameters())
        run.reporter.info(f"estimated: {micro_batches.size}")

    fitting.find_micro_batch_size = sized


def _record(folder):
    """Note the items of each update of this rank."""
    original = loop.accumulate_what_fits

    def accumulate(*arguments):
        share = original(*arguments)
        with (folder / f"items-{os.environ['RANK']}.jsonl").open("a") as file:
            file.write(json.dumps(share.items) + "\n")
        return share

    loop.accumulate_what_fits = accumulate


def _hold_gradients():
    """Fail in an update that makes its gradients anywhere but where they were."""
    original = loop.accumulate_what_fits

    def accumulate(model, *arguments):
        before = _addresses(model)
        share = original(model, *arguments)
        assert before == _addresses(model), "the gradients moved"
        return share

    loop.accumulate_what_fits = accumulate


def _check_mesh(num_parts):
    """Fail where the parameters are not dealt out over so many processes."""
    original = loop.accumulate_what_fits

    def accumulate(model, *arguments):
        parameter = next(model.parameters())
        assert parameter.device_mesh.size() == dist.get_world_size()
        dealt = [place.is_shard() for place in parameter.placements]
        assert parameter.device_mesh.size(dealt.index(True)) == num_parts
        assert sum(dealt) == 1
        return original(model, *arguments)

    loop.accumulate_what_fits = accumulate


def _addresses(model):
    return [parameter.grad.data_ptr() for parameter in model.parameters()]


def _at_update(number, act):
    calls = []
    original = loop.accumulate_what_fits

    def accumulate(*arguments):
        calls.append(1)
        if len(calls) == number:
            act()
        return original(*arguments)

    loop.accumulate_what_fits = accumulate


def _wait_at(number):
    """Wait for the other ranks as a GPU's collective does, which never learns that one is gone."""
    calls = []
    original = loop.accumulate_what_fits

    def accumulate(*arguments):
        calls.append(1)
        if len(calls) == number:
            arguments[-1].watchdog.heartbeat("gradients of all ranks", waits=True)
            time.sleep(600)
        return original(*arguments)

    loop.accumulate_what_fits = accumulate


def _perturb_at(number):
    """Change one weight of this rank, as a broken memory or a forgotten seed would."""
    calls = []
    original = loop.update_average

    def update(state, training):
        calls.append(1)
        if len(calls) == number:
            with torch.no_grad():
                next(iter(state.denoiser.parameters())).flatten()[0] += 1e-3
        original(state, training)

    loop.update_average = update


def _in_save(number, act):
    """Act while the files of the checkpoint of this number are written but not yet renamed."""
    calls = []
    original = checkpoint.write_sealed

    def write(path, value):
        calls.append(path.name == "state.json")
        if calls[-1] and sum(calls) == number:
            act()
        original(path, value)

    checkpoint.write_sealed = write
