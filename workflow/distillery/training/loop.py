"""The training itself: no teacher, no text encoder, no VAE, only the student and stored numbers."""

import hashlib
from pathlib import Path

import torch

from distillery.config.jobs import TrainingJob
from distillery.files import atomic_path, write_json
from distillery.model_folder import ABOUT, save_denoiser
from distillery.telemetry import Reporter
from distillery.training import checkpoint, distributed
from distillery.training.distributed import Place
from distillery.training.optimizer import (
    learning_rate_at,
    set_learning_rate,
)
from distillery.training.progress import ProgressLog
from distillery.training.run import Paths, Run, prepare
from distillery.training.state import TrainingState, new_state
from distillery.training.stopping import StopRequest
from distillery.training.update import (
    accumulate_gradients,
    check_finite,
    reduce_totals,
    update_average,
)


def train(
    job: TrainingJob,
    paths: Paths,
    place: Place,
    device: torch.device,
    reporter: Reporter,
    stop: StopRequest,
) -> bool:
    """Train the student, or go on from its newest checkpoint; True when it is finished.

    False means that a signal came: the update under way was finished and a checkpoint saved.

    Args:
        job: frozen configuration.
        paths: inputs and outputs; rank 0 writes.
        place: of this process; its group is started.
        device: of this process.
        reporter: of this process.
        stop: set by a signal.

    Raises:
        ValueError: inputs that do not belong together, or a loss that is not finite.
    """
    run = prepare(job, paths, place, device, reporter, stop)
    state = new_state(paths.student, run)
    resume(state, run)
    finished = loop(state, run)
    if finished and place.is_main:
        write_outputs(state, run, paths)
    return finished


def loop(state: TrainingState, run: Run) -> bool:
    """Update until all samples are seen (True), or until a signal comes (False)."""
    training = run.training
    model = distributed.wrap(state.denoiser, run.place, run.device).train()
    batches = run.batches.read(state.samples_seen, run.device)
    with ProgressLog(state, training, run.place, run.device, run.reporter) as log:
        while state.samples_seen < training.num_samples:
            share = accumulate_gradients(model, batches, run)
            grad_norm = torch.nn.utils.clip_grad_norm_(model.parameters(), training.max_grad_norm)
            totals = reduce_totals(share, run)
            check_finite(totals, float(grad_norm), share, run)
            set_learning_rate(state.optimizer, learning_rate_at(state.samples_seen, training))
            state.optimizer.step()
            state.optimizer.zero_grad(set_to_none=True)
            update_average(state, training)
            state.samples_seen += training.global_batch_size
            log.add(totals, float(grad_norm), len(share.items))
            finished = state.samples_seen == training.num_samples
            if totals.stop or finished or state.samples_seen % training.save_every_samples == 0:
                save(state, run)
            if totals.stop and not finished:
                return False
    return True


def resume(state: TrainingState, run: Run) -> None:
    """Go on from the newest whole checkpoint of this recipe; rank 0 says which that is."""
    newest = ""
    if run.place.is_main:
        checkpoint.clean_up(run.checkpoints)
        found = checkpoint.find_newest(run.checkpoints, run.recipe_hash, run.reporter)
        newest = str(found or "")
    newest = distributed.from_main(newest, run.device)
    if newest:
        checkpoint.load(state, Path(newest))
        run.reporter.info(f"goes on from {newest}")


def save(state: TrainingState, run: Run) -> None:
    """Check that all processes hold the same weights, then rank 0 writes a checkpoint."""
    differing = distributed.differing_ranks(hash_parameters(state), run.device)
    if differing:
        raise RuntimeError(
            f"after {state.samples_seen} samples the weights of rank "
            f"{', '.join(map(str, differing))} are not those of rank 0: no checkpoint was written, "
            "start again to go on from the last"
        )
    if run.place.is_main:
        path = checkpoint.save(
            state, run.checkpoints, run.recipe_hash, run.training.keep_checkpoints
        )
        run.reporter.info(f"saved {path}")


def hash_parameters(state: TrainingState) -> str:
    """SHA-256 over the bytes of all trainable parameters, in their order."""
    digest = hashlib.sha256()
    for parameter in state.trainable.values():
        digest.update(parameter.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def write_outputs(state: TrainingState, run: Run, paths: Paths) -> None:
    """Write the trained student, with averaged weights where there are any, and its losses."""
    for name, parameter in state.trainable.items():
        parameter.data = state.average.get(name, parameter.data)
    with atomic_path(paths.trained) as temporary:
        save_denoiser(state.denoiser.cpu(), temporary)
        about = {"recipe": run.recipe, "recipe_hash": run.recipe_hash}
        write_json(temporary / ABOUT, about | {"samples_seen": state.samples_seen})
    with atomic_path(paths.losses) as temporary:
        checkpoint.loss_table(state.history).to_parquet(temporary, index=False)
