"""What a training is made from, opened and checked once: its files, its recipe, its place."""

from dataclasses import dataclass, field
from pathlib import Path

import torch

from distillery.config.jobs import TargetsJob, TrainingJob
from distillery.config.training import Training
from distillery.generation.targets import DrawnNoise
from distillery.model_folder import hash_model
from distillery.store.chunks import chunk_folder
from distillery.store.recipes import TrainingRecipe
from distillery.store.shards import Manifest
from distillery.store.tables import read_table
from distillery.teacher.folder import find_teacher
from distillery.telemetry import Reporter
from distillery.training import distributed
from distillery.training.batches import Batches
from distillery.training.data import SegmentDataset
from distillery.training.distributed import RankInfo
from distillery.training.health import StopRequest, Watchdog
from distillery.training.nodes import check_alike
from distillery.training.objectives import PerceptualLoss, load_perceptual
from distillery.training.ways import source_of


@dataclass(frozen=True)
class Inputs:
    """What a training starts from, and where it resumes.

    Attributes:
        student: the untrained student's folder.
        targets: manifest; None where all targets are online, and only noise is needed.
        embeddings: manifest of the train split.
        prompts: table of the train split.
        checkpoints: folder of all recipes' checkpoints, kept between runs.
        rounds: folder of the rounds' states; None where there are none.
    """

    student: Path
    targets: Path | None
    embeddings: Path
    prompts: Path
    checkpoints: Path
    rounds: Path | None = field(default=None, kw_only=True)


@dataclass(frozen=True)
class PreviewPaths:
    """What previews read and write.

    Attributes:
        previews: folder of all previews, written.
        previews_config: results/{run}/config/previews.json, see `PreviewsJob`.
        eval_prompts: table of the eval split.
        eval_embeddings: manifest of the eval split.
    """

    previews: Path
    previews_config: Path
    eval_prompts: Path
    eval_embeddings: Path


@dataclass(frozen=True)
class Paths(Inputs):
    """What a training reads and writes: its inputs, and more.

    Attributes:
        trained: folder to write.
        losses: table to write.
        previews: what they need and where they go; None draws none.
    """

    trained: Path
    losses: Path
    previews: PreviewPaths | None = None


@dataclass(frozen=True)
class Run:
    """What does not change while the loop runs."""

    training: Training
    dataset: SegmentDataset
    batches: Batches
    perceptual: PerceptualLoss | None
    ranks: RankInfo
    device: torch.device
    reporter: Reporter
    stop: StopRequest
    watchdog: Watchdog
    checkpoints: Path
    recipe: TrainingRecipe
    recipe_hash: str
    parts: tuple[TrainingRecipe, ...] = ()
    """Of the trainings that do a first part of it; the longest first."""

    @property
    def num_losses(self) -> int:
        """Columns of losses: one per task, and one for rollouts where there are any."""
        return len(self.dataset.tasks) + self.training.walks_whole


def prepare(
    job: TrainingJob,
    paths: Paths,
    ranks: RankInfo,
    device: torch.device,
    reporter: Reporter,
    stop: StopRequest,
    watchdog: Watchdog,
) -> Run:
    """Open the data, check that all of it belongs together, and name the recipe.

    Args:
        ranks: of this process; its group is started.
        watchdog: ends this process when it hangs.

    Raises:
        ValueError: inputs that do not belong together.
    """
    # Hashing embeddings and a large student takes seconds; one process does it for all.
    dataset = open_dataset(job, paths, verify=ranks.is_main)
    batches = Batches(dataset, job.training, job.training.seed_in(job.seed), ranks)
    initial = hash_model(paths.student) if ranks.is_main else ""
    initial = distributed.from_main(initial, device)
    recipe = training_recipe(job, dataset, initial)
    settings = {f"training.{name}": value for name, value in job.training}
    check_alike(ranks, settings | {"the training recipe": recipe.hash})
    on_nodes = f" on {ranks.num_nodes} nodes" if ranks.num_nodes > 1 else ""
    reporter.info(
        f"training recipe {recipe.hash[:12]}: {dataset.num_items} items, {ranks.world_size} "
        f"processes{on_nodes}, objective {dataset.asked}"
    )
    dataset.begin(job, paths, batches, device, reporter, watchdog)
    return Run(
        training=job.training,
        dataset=dataset,
        batches=batches,
        perceptual=_perceptual(job, dataset, device),
        ranks=ranks,
        device=device,
        reporter=reporter,
        stop=stop,
        watchdog=watchdog,
        checkpoints=chunk_folder(paths.checkpoints, recipe.hash),
        recipe=recipe,
        recipe_hash=recipe.hash,
        parts=tuple(recipe.first_parts(job.training)),
    )


def open_dataset(job: TrainingJob, inputs: Inputs, verify: bool = True) -> SegmentDataset:
    """What a training learns from; see `SegmentDataset` for arguments and errors."""
    training = job.training
    dataset = source_of(training)(
        inputs.targets or draw_noise(job, inputs),
        inputs.embeddings,
        inputs.prompts,
        job.student.steps,
        training.objective,
        training.timestep_weights,
        verify,
        job.student.is_flow_map,
    )
    dataset.open_more(inputs, training)
    return dataset


def draw_noise(job: TrainingJob, inputs: Inputs) -> DrawnNoise:
    """What a training without stored targets begins from."""
    if job.targets is None:
        raise ValueError(
            "there are no --targets, and this training learns from stored trajectories: give their "
            "manifest"
        )
    targets = TargetsJob(seed=job.seed, teacher=job.teacher, targets=job.targets)
    embeddings_hash = Manifest.open(inputs.embeddings).recipe_hash
    return DrawnNoise(targets, read_table(inputs.prompts), embeddings_hash)


def _perceptual(
    job: TrainingJob, dataset: SegmentDataset, device: torch.device
) -> PerceptualLoss | None:
    """What rollouts need beside the student: the VAE, if `perceptual_weight` is positive."""
    if not job.training.decodes:
        return None
    return load_perceptual(find_teacher(job.teacher), dataset.usual.setting, device)


def training_recipe(job: TrainingJob, dataset: SegmentDataset, initial: str) -> TrainingRecipe:
    """Everything that the trained weights depend on, beyond rounding.

    Settings that change no weight are not in it: a training may be resumed with others.
    """
    return TrainingRecipe(
        kind="training",
        version=job.version,
        seed=job.training.seed_in(job.seed),
        steps=job.student.steps,
        schedule=dataset.usual.grid,
        latent_shape=dataset.recipe.latent_shape,
        guidance_scale=dataset.recipe.guidance_scale,
        initial=initial,
        targets=dataset.recipe_hash,
        samples=dataset.samples_hash,
        rounds=tuple(store.recipe_hash for store in dataset.rounds),
        training=job.training.of_recipe,
    )
