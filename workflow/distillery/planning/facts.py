"""What a plan is made from, and what follows from it, found when it is first asked for.

What follows may be impossible, and raises ValueError then: `checks` asks for all of it, so that a
user is told of all that is.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from math import prod
from typing import Any

import pandas as pd

from distillery.config.jobs import EmbeddingsJob, TargetsJob
from distillery.config.run import Config, RunConfig
from distillery.config.sampling import resolve_sampling
from distillery.config.ways import Online
from distillery.families import Size
from distillery.generation.embeddings import embeddings_recipe
from distillery.generation.targets import calls_per_step, plan_of_targets, targets_recipe
from distillery.generation.teacher_walk import check_steps
from distillery.generation.walk import calls_per_image
from distillery.noise import hash_samples
from distillery.planning.disk import (
    Store,
    plan_disk,
    stores_of_distilling,
    stores_of_generating,
)
from distillery.planning.gpus import Gpus
from distillery.planning.scoring import count_features
from distillery.planning.sizes import share_of_usual, sizes_of
from distillery.planning.there import hash_solver
from distillery.planning.training import plan_execution, plan_machine, plan_training
from distillery.planning.work import Work, plan_work
from distillery.prompts import own_sizes
from distillery.run_folder import RunFolder
from distillery.schedule import Schedule
from distillery.schedulers import plain_config
from distillery.stage import Calls, Counts, Passes, Stage
from distillery.store.chunks import chunk_folder
from distillery.store.embeddings import distinct_texts
from distillery.store.recipes import TargetsRecipe
from distillery.student.build import plan_student
from distillery.student.info import StudentInfo, describe_student
from distillery.student.schedule import check_size, student_grid, student_scheduler
from distillery.teacher.folder import PipelineFolder
from distillery.teacher.skeleton import load_skeleton
from distillery.teacher.solver import load_scheduler
from distillery.training.execution import Execution, Machine
from distillery.training.objectives import segment_weights


@dataclass(frozen=True)
class Facts:
    """Of every run; of one that generates images alone there are no others.

    Attributes:
        prompts: the table of each split.
        run_folder: results/{run}.
    """

    stages: Sequence[Stage]
    config: RunConfig
    prompts: Mapping[str, pd.DataFrame]
    folder: PipelineFolder
    run_folder: RunFolder
    gpus: Gpus

    @property
    def num_prompts(self) -> dict[str, int]:
        """Of each split."""
        return {split: len(table) for split, table in self.prompts.items()}

    @cached_property
    def counts(self) -> Counts:
        """Of prompts and distinct texts."""
        negative = self.config.teacher.negative_prompt
        tables = self.prompts.items()
        texts = {split: len(distinct_texts(table, negative).texts) for split, table in tables}
        return Counts(self.num_prompts, texts)

    @cached_property
    def embeddings_hash(self) -> str:
        """Of the recipe that the embeddings will have."""
        job = EmbeddingsJob(teacher=self.config.teacher, embeddings=self.config.embeddings)
        return embeddings_recipe(job, self.folder).hash

    @property
    def recipes(self) -> dict[str, str]:
        """Hashes of those that what is made will have."""
        return {"embeddings": self.embeddings_hash}

    @cached_property
    def latent_shape(self) -> tuple[int, ...]:
        """Of one sample; raises for a size that the teacher cannot make, or its scheduler."""
        teacher = self.config.teacher
        load_scheduler(self.folder, teacher)
        return self.folder.family.latent_shape(load_skeleton(self.folder), Size.of(teacher))

    @cached_property
    def latent_shapes(self) -> list[tuple[int, ...]]:
        """Of samples of each size, the teacher's first; raises for one that it cannot make."""
        family, skeleton = self.folder.family, load_skeleton(self.folder)
        sizes = sizes_of(self.prompts.values(), Size.of(self.config.teacher))
        shapes = [family.latent_shape(skeleton, size) for size in sizes]
        return list(dict.fromkeys([self.latent_shape, *shapes]))

    def share(self, split: str) -> float:
        """Pixels of a mean prompt of a split, of the teacher's."""
        return share_of_usual(self.prompts[split], Size.of(self.config.teacher))

    @cached_property
    def stores(self) -> tuple[Store, ...]:
        """What the run writes."""
        return stores_of_generating(
            self.config, self.folder, self.prompts, self.latent_shape, self.run_folder
        )

    @cached_property
    def disk(self) -> dict[str, Any]:
        """What plan.json says of it, and of what there is."""
        return plan_disk(self.stores, self.run_folder)

    @property
    def calls_per_step(self) -> float:
        """Of the teacher in a step of a trajectory; there is none."""
        return 0

    @cached_property
    def calls(self) -> Calls:
        """What passes of networks are counted from."""
        per_image = {}
        for name, model in self.config.samples.models.items():
            sampling = resolve_sampling(self.config, name)
            number = calls_per_image(self.folder, self.config.teacher, sampling)
            who = "teacher" if model.source == "teacher" else "student"
            per_image[name] = Passes(**{who: number})
        return Calls(per_image, self.calls_per_step)

    @property
    def images_per_model(self) -> int:
        """Of each sampled model."""
        return self.config.samples.num_images(self.num_prompts["eval"])

    def amounts(self) -> dict[str, Any]:
        """What plan.json says of how much there is to do, and what it takes."""
        calls = [passes.calls for passes in self.calls.per_image.values()]
        work = {
            "num_prompts": {"eval": self.num_prompts["eval"]},
            "num_images": self.images_per_model * len(calls),
            "teacher_calls": self.images_per_model * sum(calls),
        }
        return {"latent_shape": list(self.latent_shape), "work": work, "disk": self.disk}


@dataclass(frozen=True)
class Distillation(Facts):
    """Of a run that distils."""

    config: Config

    @cached_property
    def recipe(self) -> TargetsRecipe:
        """Of the targets; raises for an impossible grid or size."""
        found = targets_recipe(self.targets_job, self.folder, self.embeddings_hash)
        usual = Size.of(self.config.teacher)
        for size in {*sizes_of([self.prompts["train"]], usual)} - {usual}:
            own = targets_recipe(self.targets_job, self.folder, self.embeddings_hash, size)
            check_size(found, own, self.config.student.steps, self.config.student.is_flow_map)
        return found

    @property
    def targets_job(self) -> TargetsJob:
        """What the trajectories are made by."""
        config = self.config
        return TargetsJob(seed=config.seed, teacher=config.teacher, targets=config.targets)

    @property
    def recipes(self) -> dict[str, str]:
        """See `Facts`."""
        student = self.config.student
        solver = student_scheduler(self.recipe, student.steps, student.is_flow_map)
        return {
            "embeddings": self.embeddings_hash,
            "targets": self.recipe.hash,
            "scheduler": hash_solver(plain_config(solver)),
            "samples": self._hash_samples(),
        }

    def _hash_samples(self) -> str:
        """Of the trajectories' ids and texts, as a training's recipe has it; "" where no training
        is there that it could be compared with: a million samples take seconds."""
        run = self.run_folder
        trained = [run.student("trained"), *run.checkpoints.glob("*/recipe.json")]
        if not any(path.exists() for path in trained):
            return ""
        plans = plan_of_targets(self.targets_job, self.folder, self.prompts["train"])
        return hash_samples(plan.members for plan in plans)

    @cached_property
    def grid(self) -> Schedule:
        """The student's; raises for one, weights of its steps or steps of the teacher that the
        training would refuse, hours later, when the targets are made."""
        training, steps = self.config.training, self.config.student.steps
        grid = student_grid(self.recipe, steps, self.config.student.is_flow_map)
        segment_weights(training.timestep_weights, grid, self.recipe.prediction_type)
        if online := training.of(Online):
            check_steps(self.recipe.steps, steps, online.steps)
        return grid

    @cached_property
    def latent_shape(self) -> tuple[int, ...]:
        """See `Facts`."""
        return self.recipe.latent_shape

    @cached_property
    def student(self) -> StudentInfo:
        """As it will be built; raises where it cannot be."""
        return plan_student(self.config.student, self.folder)

    @cached_property
    def num_features(self) -> dict[str, int]:
        """Of each vision model; raises for a judge or a vision model that is none."""
        return count_features(self.config.evaluation)

    @property
    def calls_per_step(self) -> float:
        """Of the teacher's network, in the mean of a walk."""
        return calls_per_step(self.targets_job, self.folder)

    @cached_property
    def work(self) -> Work:
        """How much there is to do."""
        each = prod(self.latent_shape) * self.share("train")
        sizes = own_sizes(self.prompts["train"])
        return plan_work(self.config, self.num_prompts, each, self.calls_per_step, sizes)

    @cached_property
    def stores(self) -> tuple[Store, ...]:
        """See `Facts`."""
        if not self.config.trains:
            return super().stores
        source = self.config.targets_run(self.run_folder)
        chunks = chunk_folder(source.target_folder, self.recipe.hash)
        return super().stores + stores_of_distilling(
            self.config, self.student, self.work, self.folder, self.run_folder, chunks
        )

    @cached_property
    def machine(self) -> Machine:
        """That trains; raises where the teacher leaves it no GPU."""
        return plan_machine(self.config, self.gpus)

    @cached_property
    def execution(self) -> Execution:
        """How it trains; raises for what these networks cannot."""
        return plan_execution(self.config, self.student, self.folder, self.machine)

    @cached_property
    def training(self) -> dict[str, Any]:
        """What plan.json says of it; raises for a place where the teacher cannot be."""
        how = self.gpus, self.machine, self.execution
        return plan_training(self.config, self.student, self.folder, *how)

    def amounts(self) -> dict[str, Any]:
        """See `Facts`."""
        return {
            "latent_shape": list(self.latent_shape),
            "student": asdict(self.student) | {"summary": describe_student(self.student)},
            "work": vars(self.work),
            "calls_per_step": self.calls_per_step,
            "disk": self.disk,
            "training": self.training,
            "num_features": self.num_features,
        }
