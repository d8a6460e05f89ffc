"""The training itself: no teacher, no text encoder, no VAE, only the student and stored numbers."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict

import torch
from torch import nn

from distillery.families.protocol import Denoiser
from distillery.files import atomic_path
from distillery.model_folder import write_metadata
from distillery.store.tables import write_table
from distillery.student.info import read_student_info
from distillery.student.lora import save_trained
from distillery.training import checkpoint, distributed, parallel
from distillery.training.batch import rows
from distillery.training.batches import next_timed
from distillery.training.directions import add_directions, new_companion
from distillery.training.execution import supports_checkpointing
from distillery.training.health import START_LIMIT_S
from distillery.training.held_out import HeldOut
from distillery.training.log import ProgressLog
from distillery.training.microbatch import accumulate_what_fits, micro_batches_for
from distillery.training.parallel import set_checkpointing, uses_checkpointing
from distillery.training.resuming import resume
from distillery.training.run import Paths, PreviewPaths, Run
from distillery.training.saving import Saver
from distillery.training.state import (
    TrainingState,
    learning_rate_at,
    new_state,
    set_learning_rate,
    update_average,
)
from distillery.training.update import backward, check_finite, reduce_totals
from distillery.training.ways import add_targets

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
        run: settings, batches and ranks.
    """
    items = next(run.batches.positions(state.samples_seen), None)
    if run.ranks.world_size == 1 or parallel.is_sharded(state.denoiser) or items is None:
        return parallel.wrap(state.denoiser, run.ranks, run.device)
    run.watchdog.heartbeat("gradients of one sample", joint=True)
    sample = rows(run.dataset.__getitems__(items), slice(1)).to(run.device)
    with _in_least_memory(state.denoiser):
        backward(state.denoiser, sample, run)
        leaves_out = any(parameter.grad is None for parameter in state.trainable.values())
        state.denoiser.zero_grad(set_to_none=True)
        model = parallel.wrap(state.denoiser, run.ranks, run.device, leaves_out)
        for _ in range(PASSES):
            backward(model, sample, run)
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
    resume(state, run)
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
    arranged_for, held_out = None, HeldOut(state, run)
    with ProgressLog(state, run, previews) as log, Saver(run) as saver:
        if stopped_while_drawing(log, state, run):
            return False
        while state.samples_seen < training.num_samples:
            batch, waiting_s = next_timed(batches)
            cut = micro_batches[batch.is_rollout]
            batch = add_targets(batch, state, cut.size, run)
            batch = add_directions(batch, state, cut.size, run)
            if cut is not arranged_for:
                set_checkpointing(state.denoiser, cut.checkpointing)
                arranged_for = cut
            local = accumulate_what_fits(model, batch, cut, run)
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
            measured = held_out.measure_if_due(cut.size)
            log.add(totals, len(local.items), waiting_s, measured)
            finished = state.samples_seen == training.num_samples
            saves = totals.stop or finished or state.samples_seen % training.save_every_samples == 0
            if saves:
                saver.save(state)
            # A stopped training has no time for images; a finished one draws its last ones.
            if (totals.stop and not finished) or stopped_while_drawing(log, state, run):
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


def stopped_while_drawing(log: ProgressLog, state: TrainingState, run: Run) -> bool:
    """Draw previews, if they are due; returns whether any process was asked to stop meanwhile.

    All processes learn it here, not after another update: what is left undrawn is drawn when the
    training resumes from this very moment. A finished training leaves nothing, and does not stop.
    """
    was_due = log.draw()
    if not was_due or state.samples_seen == run.training.num_samples:
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
            "student": asdict(student_info) if student_info else None,
        }
        write_metadata(temporary, about)
    write_table(checkpoint.loss_table(state.history), paths.losses, run.recipe_hash)
