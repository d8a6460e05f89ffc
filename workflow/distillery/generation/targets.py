"""What the teacher's trajectories depend on, and where they begin: at noise that is drawn again as
it was stored."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import torch

from distillery.config.jobs import TargetsJob
from distillery.config.run import Targets
from distillery.config.section import Compile
from distillery.families import Family, Setting, Size, grid_of
from distillery.families.recording import dotted
from distillery.files import hash_json
from distillery.generation.chunked import ChunkPlan, advise_not_finite, check_finite, make_chunks
from distillery.generation.generator import Calls, Generator
from distillery.generation.trajectory import record
from distillery.generation.walk import solver_of
from distillery.noise import all_samples, hash_samples, noise_seed
from distillery.prompts import made_of_rows, own_sizes
from distillery.schedulers import plain_config, prediction_type
from distillery.store.embeddings import EmbeddingStore
from distillery.store.recipes import TargetsRecipe
from distillery.store.tables import read_table
from distillery.store.trajectories import SIZE, knots_of, rows_of_chunks, tensors_of
from distillery.student.schedule import check_student_grid
from distillery.teacher.adapters import teacher_hash
from distillery.teacher.folder import PipelineFolder, find_teacher
from distillery.teacher.loading import load_exact_teacher, torch_dtype, unpacked_of
from distillery.teacher.skeleton import load_skeleton
from distillery.teacher.solver import load_scheduler
from distillery.telemetry import Reporter


def setting_of(job: TargetsJob) -> Setting:
    """What the teacher receives beside state, timestep and prompt."""
    teacher, targets = job.teacher, job.targets
    return Setting(
        Size.of(teacher),
        targets.guidance_scale,
        targets.guidance_scale_2,
        targets.guidance_interval,
    )


def calls_per_step(job: TargetsJob, folder: PipelineFolder) -> float:
    """Forward passes of the teacher for one sample and step, in the mean of all its steps; a whole
    number where all are guided alike."""
    steps, setting = job.targets.steps, setting_of(job)
    calls = folder.family.calls_per_walk(folder.denoiser_config, setting, steps)
    return calls / steps if calls % steps else calls // steps


def targets_recipe(
    job: TargetsJob, folder: PipelineFolder, embeddings_hash: str, size: Size | None = None
) -> TargetsRecipe:
    """Everything that a trajectory depends on beside its sample's identity.

    Args:
        size: of a prompt that has one of its own; None: the teacher's, as all files are named by.

    Raises ValueError for a size the teacher cannot make, a scheduler that cannot solve it (see
    `solver_of`), or if the student's scheduler could not walk the same knots.
    """
    targets, teacher, family = job.targets, job.teacher, folder.family
    scheduler = load_scheduler(folder, teacher)
    size = size or Size.of(teacher)
    shape = family.latent_shape(load_skeleton(folder), size)
    knots = knots_of(targets.steps, targets.num_segments)
    schedule = grid_of(family, scheduler, targets.steps, shape).subset(knots)
    check_student_grid(family, scheduler, schedule, targets.steps, shape)
    solver_of(family, scheduler, targets.steps, shape)
    return TargetsRecipe(
        kind="targets",
        version=job.version,
        family=family.name,
        teacher=teacher_hash(teacher, folder),
        embeddings=embeddings_hash,
        scheduler=plain_config(scheduler),
        prediction_type=prediction_type(scheduler),
        steps=targets.steps,
        guidance_scale=targets.guidance_scale,
        guidance_scale_2=targets.guidance_scale_2,
        guidance_interval=targets.guidance_interval,
        call=teacher.call,
        signature=folder.signature,
        in_float32=[dotted(place) for place in sorted(family.in_float32, key=str)] or None,
        knots=knots,
        schedule=schedule,
        latent_shape=shape,
        height=size.height,
        width=size.width,
        num_frames=size.num_frames,
        max_sequence_length=teacher.max_sequence_length or family.max_sequence_length,
        negative_prompt=teacher.negative_prompt,
        dtype=teacher.dtype,
        stored_dtype=targets.dtype,
        seed=job.seed,
        samples_per_prompt=targets.samples_per_prompt,
        batch_size=targets.batch_size,
        chunk_size=targets.chunk_size,
    )


def plan_chunks(
    table: pd.DataFrame, samples_per_prompt: int, chunk_size: int, guided: bool
) -> list[ChunkPlan]:
    """All chunks of a prompt table, each of one size; a chunk depends on its own prompts and on no
    others, and on their own negative prompts where the teacher is guided away from them."""
    samples = all_samples(table["prompt_id"], samples_per_prompt)
    made_of = made_of_rows(table, guided)
    plans = []
    for index, rows in enumerate(rows_of_chunks(own_sizes(table), samples_per_prompt, chunk_size)):
        named = [
            [samples[row].prompt_id, samples[row].index, *made_of[row // samples_per_prompt]]
            for row in rows
        ]
        ids = [str(samples[row]) for row in rows]
        plans.append(ChunkPlan(index, hash_json({"samples": named}), rows, {"samples": ids}))
    return plans


def plan_of_targets(
    job: TargetsJob, folder: PipelineFolder, table: pd.DataFrame
) -> list[ChunkPlan]:
    """All chunks of a run's trajectories, and of what is stored for each of them."""
    targets = job.targets
    calls = folder.family.calls_per_step(folder.denoiser_config, targets.guidance_scale)
    return plan_chunks(table, targets.samples_per_prompt, targets.chunk_size, calls > 1)


def calls_of(
    job: TargetsJob,
    family: Family,
    table: pd.DataFrame,
    store: EmbeddingStore,
    steps: int,
    setting: Setting,
    further: Mapping[str, Any] | None = None,
) -> Calls:
    """What a network is called with that walks from the noise of a run's trajectories.

    Args:
        job: the configuration of the trajectories.
        table: prompts of the train split.
        further: `teacher.call`, of the teacher's own calls.
    """
    per_prompt = job.targets.samples_per_prompt
    return Calls(
        family=family,
        store=store,
        samples=all_samples(table["prompt_id"], per_prompt),
        samples_per_prompt=per_prompt,
        sizes=setting.size.each(own_sizes(table)),
        seed=job.seed,
        steps=steps,
        setting=setting,
        max_sequence_length=job.teacher.max_sequence_length or family.max_sequence_length,
        decode=False,
        dtype=torch.float32,
        further=further or {},
    )


def prompt_rows_of(rows: Sequence[int], targets: Targets) -> torch.Tensor:
    """Samples' rows of the prompt table, (b,) int64."""
    return torch.tensor([row // targets.samples_per_prompt for row in rows])


class DrawnNoise:
    """The noise where trajectories begin, as their store would hold it.

    It is what targets of the student's own states need; no stage has to store it for them. Behind
    it there is nothing but the few states that are put into `known`.

    Attributes:
        recipe: that stored trajectories would have.
        samples_hash: of their samples: ids and texts, in order.
        num_samples: as many as there would be, all of one size.
        recipes, of_one_size: as of `TrajectoryStore`.
        known: (sample, knot) to a state (*latent).
    """

    def __init__(self, job: TargetsJob, table: pd.DataFrame, embeddings_hash: str) -> None:
        """Read the teacher's configuration, no weights.

        Args:
            job: the configuration of the targets.
            table: prompts of the train split.
            embeddings_hash: of the recipe of their embeddings.
        """
        teacher, targets = job.teacher, job.targets
        folder = find_teacher(teacher)
        family, scheduler = folder.family, load_scheduler(folder, teacher)
        self.recipe = targets_recipe(job, folder, embeddings_hash)
        self.recipe_hash = self.recipe.hash
        plans = plan_of_targets(job, folder, table)
        self.samples_hash = hash_samples(plan.members for plan in plans)
        self._samples = all_samples(table["prompt_id"], targets.samples_per_prompt)
        self.num_samples = len(self._samples)
        self.recipes = {(teacher.height, teacher.width): self.recipe}
        self.of_one_size = [range(self.num_samples)]
        self.known: dict[tuple[int, int], torch.Tensor] = {}
        self._job, self._family, self._pipeline = job, family, load_skeleton(folder)
        # Some schedulers know the scale of their first state only with their timesteps.
        family.set_timesteps(scheduler, targets.steps, self.recipe.latent_shape)
        self._scale = getattr(scheduler, "init_noise_sigma", 1.0)

    def prompt_row(self, sample: int) -> int:
        """The row of the prompt table that a sample is made from."""
        return sample // self.recipe.samples_per_prompt

    def size_at(self, sample: int) -> tuple[int, int]:
        """As `TrajectoryStore.size_at`."""
        return self.recipe.height, self.recipe.width

    def states(self, sample: int, first: int, last: int) -> tuple[torch.Tensor, torch.Tensor]:
        """As `TrajectoryStore.states`, for the first knot and those that are known."""
        return self._state(sample, first), self._state(sample, last)

    def _state(self, sample: int, knot: int) -> torch.Tensor:
        if knot:
            return self.known[sample, knot]
        seed = noise_seed(self._job.seed, self._samples[sample])
        (noise,) = self._family.noise(self._pipeline, [seed], setting_of(self._job))
        state: torch.Tensor = (noise * self._scale).to(torch_dtype(self._job.targets.dtype))
        return state


def make_targets(
    job: TargetsJob,
    prompts: Path,
    embeddings: Path,
    shard: tuple[int, int],
    output: Path,
    device: torch.device,
    reporter: Reporter,
    compile_: Compile = "auto",
) -> None:
    """Make one shard's chunks of trajectories.

    Args:
        prompts: table of the train split.
        embeddings: manifest of the train split.
        shard: the i-th of n balanced ranges of chunks, from 0.
        output: the shard's manifest to write; the chunks go to a folder beside it.
        compile_: networks on a GPU; auto: large ones in long runs.
    """
    table = read_table(prompts)
    store = EmbeddingStore(embeddings, table)
    folder = find_teacher(job.teacher)
    maker = TrajectoryMaker(job, table, store, folder, device, reporter, compile_)
    plans = plan_of_targets(job, folder, table)
    make_chunks(maker.recipe.to_json(), plans, shard, maker.make, output, reporter, " samples")


class TrajectoryMaker:
    """Computes chunks with a teacher that is loaded when the first missing chunk asks for it."""

    def __init__(
        self,
        job: TargetsJob,
        table: pd.DataFrame,
        store: EmbeddingStore,
        folder: PipelineFolder,
        device: torch.device,
        reporter: Reporter,
        compiling: Compile,
    ) -> None:
        """Nothing heavy is loaded here, so a job that finds all its chunks made ends at once."""
        self.job, self._folder = job, folder
        self._weights = [folder.read_from(name) for name in folder.denoisers]
        self.recipe = targets_recipe(job, folder, store.recipe_hash)
        calls = calls_of(
            job,
            folder.family,
            table,
            store,
            job.targets.steps,
            setting_of(job),
            job.teacher.call,
        )
        absent = folder.family.text_components
        self._generator = Generator(
            calls,
            lambda: load_exact_teacher(job.teacher, folder, device, absent),
            job.targets.batch_size,
            job.targets.chunk_size,
            device,
            reporter,
            compiling,
            unpacked_of(job.teacher, folder),
        )

    def make(self, plan: ChunkPlan) -> dict[str, torch.Tensor]:
        """The tensors of one chunk: see `store.trajectories`."""
        targets, size = self.job.targets, self._generator.calls.size_of(plan.rows)
        noisy = torch.cat([states for _, states in self._generator.map(plan.rows, self._run)])
        is_usual = size == Size.of(self.recipe)
        recipe = self.recipe if is_usual else self._recipe_at(size)
        return {
            "noisy": noisy.to(torch_dtype(targets.dtype)),
            "prompt_row": prompt_rows_of(plan.rows, targets),
            **tensors_of(recipe.schedule),
            **({} if is_usual else {SIZE: torch.tensor([size.height, size.width])}),
        }

    def _recipe_at(self, size: Size) -> TargetsRecipe:
        return targets_recipe(self.job, self._folder, self.recipe.embeddings, size)

    def _run(self, rows: Sequence[int], size: int) -> torch.Tensor:
        """One call of the teacher: `noisy`, (b, k, *latent) float32, for the samples of `rows`."""
        job, generator, knots = self.job, self._generator, self.recipe.knots
        with record(generator.pipeline.scheduler, knots) as trajectory:
            generator.run(rows, size)
        if trajectory.num_steps != job.targets.steps:
            raise ValueError(
                f"the teacher took {trajectory.num_steps} scheduler steps for targets.steps "
                f"{job.targets.steps}: a solver that calls its scheduler more than once a step "
                "cannot be recorded; use a first-order or multistep solver"
            )
        noisy = trajectory.stack(knots)[: len(rows)].cpu()
        ids = [generator.calls.samples[row].prompt_id for row in rows]
        advice = advise_not_finite(job.teacher.dtype, self._weights)
        check_finite(noisy, ids, "the teacher", advice)
        return noisy
