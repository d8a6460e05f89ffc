"""The training itself: no teacher, no text encoder, no VAE, only the student and stored numbers."""

import hashlib
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from math import isfinite
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

from distillery.config.jobs import TrainingJob
from distillery.config.run import Training
from distillery.files import atomic_path, hash_json, write_json
from distillery.model_folder import ABOUT, hash_model, load_denoiser, save_denoiser
from distillery.store.chunks import chunk_folder
from distillery.teacher.loading import torch_dtype
from distillery.telemetry import Reporter
from distillery.training import checkpoint, distributed
from distillery.training.checkpoint import TrainingState, Window
from distillery.training.dataset import Batch, Batches, SegmentDataset
from distillery.training.distributed import Place
from distillery.training.objectives import sample_losses
from distillery.training.optimizer import (
    ema_decay,
    learning_rate_at,
    make_optimizer,
    set_learning_rate,
    update_ema,
)
from distillery.training.progress import ProgressLog, Totals
from distillery.training.stopping import StopRequest

NOT_IN_RECIPE = {
    "micro_batch_size",
    "log_every_samples",
    "save_every_samples",
    "keep_checkpoints",
    "timeout_s",
}
"""Settings that change no weight beyond rounding: a training may be resumed with others."""

MAX_ITEMS_NAMED = 16


@dataclass(frozen=True)
class Paths:
    """What a training reads and writes.

    Attributes:
        student: the untrained student's folder.
        targets, embeddings: manifests.
        prompts: the train table.
        trained: folder to write.
        losses: table to write.
        checkpoints: folder of all recipes' checkpoints.
    """

    student: Path
    targets: Path
    embeddings: Path
    prompts: Path
    trained: Path
    losses: Path
    checkpoints: Path


@dataclass(frozen=True)
class Run:
    """What does not change while the loop runs."""

    training: Training
    dataset: SegmentDataset
    batches: Batches
    place: Place
    device: torch.device
    reporter: Reporter
    stop: StopRequest
    checkpoints: Path
    recipe: dict[str, Any]
    recipe_hash: str


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


@dataclass(frozen=True)
class Share:
    """What one process did in one update: n items, their segments (n,) and losses (n,)."""

    items: list[int]
    segment: torch.Tensor
    losses: torch.Tensor


def accumulate_gradients(model: torch.nn.Module, batches: Iterator[Batch], run: Run) -> Share:
    """Forward and backward passes of one update, which leave the gradient in the parameters.

    The gradient is that of the sum of all samples' losses over the global batch size, so a sample
    counts the same on every process and in every micro-batch.
    """
    items: list[int] = []
    segments, losses = [], []
    num_micro_batches = run.batches.num_micro_batches
    for number in range(num_micro_batches):
        batch = next(batches).to(run.device)
        with distributed.synchronising(model, number == num_micro_batches - 1):
            loss_b = sample_losses(
                predict(model, batch, run),
                batch.target,
                run.training.loss,
                run.training.huber_width,
            )
            (loss_b.sum() / run.training.global_batch_size).backward()  # type: ignore[no-untyped-call]
        items += batch.items
        segments.append(batch.segment)
        losses.append(loss_b.detach())
    return Share(items, torch.cat(segments), torch.cat(losses))


def predict(model: torch.nn.Module, batch: Batch, run: Run) -> torch.Tensor:
    """The student's output in `training.dtype`, from float32 weights."""
    dtype = torch_dtype(run.training.dtype)
    conditioning = {
        name: value.to(dtype) if value.is_floating_point() else value
        for name, value in batch.conditioning.items()
    }
    with torch.autocast(run.device.type, dtype, enabled=dtype != torch.float32):
        return run.dataset.family.predict(
            model, batch.noisy, batch.timestep, conditioning, run.dataset.setting
        )


def reduce_totals(share: Share, run: Run) -> Totals:
    """Losses by segment over all processes, and whether any of them was asked to stop.

    One small collective an update; it carries the wish to stop, so that all ranks stop at the same
    update without a barrier.
    """
    steps = run.dataset.steps
    of_segment = F.one_hot(share.segment, steps).double()
    asked = of_segment.new_tensor([float(run.stop.asked)])
    sums = torch.cat([asked, share.losses.double() @ of_segment, of_segment.sum(0)])
    stop, *values = distributed.all_reduce(sums).tolist()
    return Totals(stop > 0, values[:steps], values[steps:])


def check_finite(totals: Totals, grad_norm: float, share: Share, run: Run) -> None:
    """Raise ValueError, before the update, if a loss or the gradient is not finite."""
    if isfinite(totals.loss) and isfinite(grad_norm):
        return
    finite = share.losses.isfinite().tolist()
    bad = [item for item, fine in zip(share.items, finite, strict=True) if not fine]
    named = [run.dataset.name(item) for item in (bad or share.items)[:MAX_ITEMS_NAMED]]
    raise ValueError(
        f"loss {totals.loss}, gradient norm {grad_norm}: not finite, nothing was updated. On rank "
        f"{run.place.rank} {len(bad)} samples have such a loss; "
        f"{'they are' if bad else 'its batch is'}: {'; '.join(named)}. If the stored states are "
        "sound, lower training.learning_rate, or set training.dtype to float32"
    )


def update_average(state: TrainingState, training: Training) -> None:
    """Move the averaged weights, if there are any."""
    if state.average:
        update_ema(list(state.average.values()), state.parameters, ema_decay(training))


def prepare(
    job: TrainingJob,
    paths: Paths,
    place: Place,
    device: torch.device,
    reporter: Reporter,
    stop: StopRequest,
) -> Run:
    """Open the data, check that all of it belongs together, and name the recipe."""
    dataset = SegmentDataset(
        paths.targets,
        paths.embeddings,
        paths.prompts,
        job.student.steps,
        job.training.objective,
    )
    # Hashing a large student takes seconds; one process does it for all.
    initial = hash_model(paths.student) if place.is_main else ""
    recipe = training_recipe(job, dataset, distributed.from_main(initial, device))
    recipe_hash = hash_json(recipe)
    reporter.info(
        f"training recipe {recipe_hash[:12]}: {dataset.num_items} items, {place.num_processes} "
        f"processes, objective {job.training.objective}"
    )
    return Run(
        training=job.training,
        dataset=dataset,
        batches=Batches(dataset, job.training, job.seed, place),
        place=place,
        device=device,
        reporter=reporter,
        stop=stop,
        checkpoints=chunk_folder(paths.checkpoints, recipe_hash),
        recipe=recipe,
        recipe_hash=recipe_hash,
    )


def training_recipe(job: TrainingJob, dataset: SegmentDataset, initial: str) -> dict[str, Any]:
    """Everything that the trained weights depend on, beyond rounding."""
    settings = job.training.model_dump(mode="json", exclude=NOT_IN_RECIPE)
    return {
        "kind": "training",
        "version": job.version,
        "seed": job.seed,
        "steps": job.student.steps,
        "schedule": asdict(dataset.grid),
        "latent_shape": dataset.recipe["latent_shape"],
        "guidance_scale": dataset.recipe["guidance_scale"],
        "initial": initial,
        "targets": dataset.recipe_hash,
        "training": settings,
    }


def new_state(student: Path, run: Run) -> TrainingState:
    """The state before the first update."""
    denoiser = load_denoiser(student, torch.float32).to(run.device)
    denoiser.requires_grad_(True)
    averaging = run.training.ema_half_life_samples > 0
    return TrainingState(
        denoiser=denoiser,
        optimizer=make_optimizer(denoiser.parameters(), run.training, run.device),
        average={
            name: parameter.detach().clone()
            for name, parameter in denoiser.named_parameters()
            if averaging
        },
        window=Window.empty(run.dataset.steps),
    )


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
    """SHA-256 over the bytes of all parameters, in their order."""
    digest = hashlib.sha256()
    for parameter in state.parameters:
        digest.update(parameter.cpu().contiguous().view(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def write_outputs(state: TrainingState, run: Run, paths: Paths) -> None:
    """Write the trained student, with averaged weights where there are any, and its losses."""
    for name, parameter in state.denoiser.named_parameters():
        parameter.data = state.average.get(name, parameter.data)
    with atomic_path(paths.trained) as temporary:
        save_denoiser(state.denoiser.cpu(), temporary)
        about = {"recipe": run.recipe, "recipe_hash": run.recipe_hash}
        write_json(temporary / ABOUT, about | {"samples_seen": state.samples_seen})
    with atomic_path(paths.losses) as temporary:
        checkpoint.loss_table(state.history).to_parquet(temporary, index=False)
