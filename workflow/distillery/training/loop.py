"""The training itself, in one of its processes: from its command line to its outputs.

No teacher, no text encoder, no VAE, only the student and stored numbers.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path

import torch
from torch import nn

from distillery.config.jobs import TrainingJob
from distillery.families.protocol import Denoiser
from distillery.files import atomic_path
from distillery.hardware import device_label, select_device
from distillery.model_folder import write_metadata
from distillery.run_folder import RunFolder
from distillery.store.belonging import check_student_of
from distillery.store.tables import write_table
from distillery.student.info import read_student_info
from distillery.student.on_disk import save_trained
from distillery.telemetry import reporting
from distillery.training import checkpoint, distributed, parallel
from distillery.training.batch import rows
from distillery.training.batches import next_timed
from distillery.training.execution import supports_checkpointing
from distillery.training.fitting import micro_batches_for
from distillery.training.health import START_LIMIT_S, Peers, Stopped, StopRequest, Watchdog
from distillery.training.microbatch import accumulate_what_fits
from distillery.training.nodes import meet
from distillery.training.parallel import set_checkpointing, uses_checkpointing
from distillery.training.run import Paths, PreviewPaths, Run, prepare
from distillery.training.saving import Saver
from distillery.training.state import (
    TrainingState,
    learning_rate_at,
    new_state,
    set_learning_rate,
    update_average,
)
from distillery.training.update import backward, check_finite, reduce_totals
from distillery.training.watchers import Moment, Watched, watching
from distillery.training.watchers.all import watchers_of
from distillery.training.ways import add_directions, new_companion, way_at

PASSES = 2
"""After the first, DDP's buckets hold the gradients; in the second it arranges the buckets anew."""


def wrap_student(state: TrainingState, run: Run) -> nn.Module:
    """The student whose backward passes sum the gradients of all processes.

    One sample is passed before the first update. Without DDP it shows whether some trainable
    parameters get no gradient, for which DDP would wait: in Qwen-Image's last block some make a
    text that nothing reads. With DDP it makes the buckets that gradients stay in: made in the midst
    of an update they take as much memory again, beside its activations.

    Args:
        state: before an update; its weights are not changed.
    """
    items = next(run.batches.positions(state.samples_seen), None)
    if run.ranks.world_size == 1 or parallel.is_sharded(state.denoiser) or items is None:
        return parallel.wrap(state.denoiser, run.ranks, run.device)
    losses = way_at(state.samples_seen, run.training).losses
    run.watchdog.heartbeat("gradients of one sample", joint=True)
    sample = rows(run.dataset.__getitems__(items), slice(1)).to(run.device)
    with _in_least_memory(state.denoiser):
        backward(state.denoiser, sample, losses, run)
        leaves_out = any(parameter.grad is None for parameter in state.trainable.values())
        state.denoiser.zero_grad(set_to_none=True)
        model = parallel.wrap(state.denoiser, run.ranks, run.device, leaves_out)
        for _ in range(PASSES):
            backward(model, sample, losses, run)
    model.zero_grad(set_to_none=not parallel.keeps_gradients(model))
    return model


@contextmanager
def _in_least_memory(denoiser: Denoiser) -> Iterator[None]:
    """With gradient checkpointing where the network offers it, and nothing compiled for it."""
    before = uses_checkpointing(denoiser)
    set_checkpointing(denoiser, supports_checkpointing(denoiser))
    with torch.compiler.set_stance("force_eager"):
        yield
    set_checkpointing(denoiser, before)


def train_here(
    job: TrainingJob,
    paths: Paths,
    run_folder: RunFolder,
    telemetry: Path | None = None,
    *,
    name: str,
    stop: StopRequest,
    cpu_threads: int,
    log: Path | None,
    loaded_s: float,
) -> bool:
    """Find this process's place among the others and train; True when the training is finished.

    Args:
        job: frozen configuration.
        paths: inputs and outputs.
        run_folder: results/{run}.
        telemetry: folder to write, instead of results/{run}/telemetry.
        name: of this job, `training`, or `training-{n}-rounds` for one that ends after so many.
        stop: set by a signal.
        cpu_threads: of this process where there is no GPU.
        log: for where it hangs.
        loaded_s: what this process took to be here.
    """
    check_student_of(run_folder, paths.student, is_trained=False)
    ranks = distributed.detect_rank(os.environ)
    watchdog = Watchdog(ranks.rank, job.training.hang_timeout_s, log)
    with watchdog.watching():
        device = distributed.start(ranks, select_device(cpu_threads), job.training.timeout_s)
        ranks, watchdog.peers = meet(ranks, run_folder.path)
        folder = telemetry or run_folder.telemetry
        process = name if ranks.is_main else f"{name}-rank-{ranks.rank}"
        label, finished = device_label(device), False
        # What was stopped is not done, and must not be reported so: `Stopped` goes through.
        reported = reporting(folder, "training", process, label, log, loaded_s)
        with suppress(Stopped), reported as reporter:
            run = prepare(job, paths, ranks, device, reporter, stop, watchdog)
            train_or_stop(run, paths)
            run.dataset.close()
            finished = True
        watchdog.peers = Peers()  # from here on each goes when it is done
        distributed.stop()
    return finished


def train_or_stop(run: Run, paths: Paths) -> None:
    """Train to the end.

    Raises Stopped after a signal; rank 0, which wrote the checkpoint, says so.
    """
    if train(run, paths):
        return
    if run.ranks.is_main:
        run.reporter.warning("stopped by a signal, a checkpoint is saved: start again to resume")
    raise Stopped


def train(run: Run, paths: Paths) -> bool:
    """Train the student, or resume from its newest checkpoint; True when it is finished.

    False means that a signal came: the update under way was finished and a checkpoint saved.

    Args:
        run: as `prepare` made it from the same paths.
        paths: inputs and outputs; rank 0 writes.

    Raises:
        ValueError: a loss or a gradient that is not finite.
        RuntimeError: the ranks' weights differ.
    """
    run.watchdog.heartbeat("student onto the device")
    state = new_state(paths.student, run)
    state.companion = new_companion(paths.student, run)
    checkpoint.resume(state, run)
    run.watchdog.heartbeat("size of micro-batches")
    finished = loop(state, run, paths.previews)
    if finished:
        run.watchdog.heartbeat("the trained student's files", limit_s=START_LIMIT_S)
        write_outputs(state, run, paths)
    else:
        wait_for_checkpoint(run)
    return finished


def loop(state: TrainingState, run: Run, previews: PreviewPaths | None = None) -> bool:
    """Update until all samples are seen (True), or until a signal comes (False)."""
    training = run.training
    batches = run.batches.read(state.samples_seen, run.device)
    state.denoiser.train()
    micro_batches = micro_batches_for(state, run)
    model = wrap_student(state, run)
    arranged_for, watchers = None, watchers_of(state, run, previews)
    with watching(watchers, run.reporter.warning) as watched, Saver(run) as saver:
        if stopped_while_showing(watched, Moment(state.samples_seen, training), run):
            return False
        while state.samples_seen < training.num_samples:
            way = way_at(state.samples_seen, training)
            batch, waiting_s = next_timed(batches)
            cut = micro_batches[batch.is_rollout]
            batch = way.complete(batch, state, cut.size, run)
            batch = add_directions(batch, state, cut.size, run)
            if cut is not arranged_for:
                set_checkpointing(state.denoiser, cut.checkpointing)
                arranged_for = cut
            local = accumulate_what_fits(model, batch, cut, way.losses, run)
            grad_norm = parallel.clip_gradients(model.parameters(), training.max_grad_norm)
            totals = reduce_totals(local, grad_norm, run, state.companion)
            check_finite(totals, local, run)
            set_learning_rate(state.optimizer, learning_rate_at(state.samples_seen, training))
            state.optimizer.step()
            state.optimizer.zero_grad(set_to_none=not parallel.keeps_gradients(model))
            update_average(state, training)
            saver.prepare(state)
            state.samples_seen += training.global_batch_size
            run.watchdog.updated()
            moment = Moment(
                state.samples_seen, training, totals, len(local.items), waiting_s, cut.size
            )
            watched.measure(moment)
            saves = totals.stop or moment.is_last or moment.seen % training.save_every_samples == 0
            if saves:
                saver.save(state)
            # A stopped training has no time to show; a finished one shows its last.
            if (totals.stop and not moment.is_last) or stopped_while_showing(watched, moment, run):
                if not saves:
                    saver.save(state)
                return False
    return True


def wait_for_checkpoint(run: Run) -> None:
    """Wait, on every rank, until rank 0 has left `loop` and so has its checkpoint on disk.

    Launchers signal or kill the other processes when one has left. After a training's end they do
    not, for its status is 0.
    """
    run.watchdog.heartbeat("the last checkpoint, by rank 0", waits=True, limit_s=START_LIMIT_S)
    # On a GPU reading the sum is what waits.
    distributed.all_reduce(torch.zeros(1, device=run.device)).item()
    run.watchdog.heartbeat("the end of a stopped training")


def stopped_while_showing(watched: Watched, moment: Moment, run: Run) -> bool:
    """Let watchers show; returns whether any process was asked to stop meanwhile.

    All processes learn it here, not after another update: what is left unshown is shown when the
    training resumes from this very moment. A finished training leaves nothing, and does not stop.
    """
    if not watched.show(moment) or moment.is_last:
        return False
    asked = torch.tensor([float(run.stop.asked)], device=run.device)
    run.watchdog.heartbeat("previews of all ranks", waits=True, limit_s=START_LIMIT_S)
    stop = bool(distributed.all_reduce(asked))
    run.watchdog.heartbeat("log, checkpoint or next batch")
    return stop


def write_outputs(state: TrainingState, run: Run, paths: Paths) -> None:
    """Write the trained student, with averaged weights where there are any, and its losses.

    Rank 0 writes; all call it, since each may hold a part of the weights.
    """
    parameters = state.trainable
    for name, average in state.average.items():
        parameters[name].data.copy_(average)
    parallel.gather_denoiser(state.denoiser, run.ranks)
    if not run.ranks.is_main:
        return
    with atomic_path(paths.trained) as temporary:
        save_trained(state.denoiser.cpu(), paths.student, temporary, run.dataset.family)
        student_info = read_student_info(paths.student)
        about = {
            "recipe": run.recipe.to_json(),
            "recipe_hash": run.recipe_hash,
            "samples_seen": state.samples_seen,
            "sizes": run.batches.sizes,
            "student": asdict(student_info) if student_info else None,
        }
        write_metadata(temporary, about)
    write_table(checkpoint.loss_table(state.history), paths.losses, run.recipe_hash)
