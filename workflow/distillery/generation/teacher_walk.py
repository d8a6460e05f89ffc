"""Ask the teacher about a state, by the stock call: where it goes from there, or what it sees."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Self

import torch

from distillery.config.teacher import Teacher
from distillery.families import Request, Setting, Size, family_named
from distillery.families.protocol import Family, Pipeline
from distillery.generation.calling import draw
from distillery.generation.generator import padded
from distillery.generation.trajectory import Trajectory, joined, record
from distillery.schedule import from_prediction
from distillery.schedulers import Scheduler
from distillery.store.embeddings import EmbeddingStore
from distillery.store.recipes import TargetsRecipe
from distillery.student.schedule import (
    divisors_of,
    student_scheduler,
    teacher_grid,
    teacher_scheduler,
)
from distillery.teacher.adapters import teacher_hash
from distillery.teacher.folder import find_teacher
from distillery.teacher.loading import load_exact_teacher


@dataclass
class TeacherWalk:
    """A guided teacher that walks from any of the student's states to the next, or looks at one.

    Attributes:
        pipeline: without text encoders, its states in float32.
        recipe: of the targets that it stands beside.
        store: embeddings of the prompts.
        steps: that the teacher takes in a segment.
    """

    pipeline: Pipeline
    recipe: TargetsRecipe
    store: EmbeddingStore
    segments: int
    steps: int
    family: Family = field(init=False)
    walker: Scheduler = field(init=False)
    """The teacher's own if it takes all its steps, else one of first order."""

    def __post_init__(self) -> None:
        """With the schedulers that it walks and looks with."""
        self.family = family_named(self.recipe.family, self.recipe.signature)
        recipe, num_steps = self.recipe, self.segments * self.steps
        takes_all = num_steps == recipe.steps
        self.walker = (
            teacher_scheduler(recipe) if takes_all else student_scheduler(recipe, num_steps)
        )
        self.looker, self.grid = teacher_scheduler(recipe), teacher_grid(recipe)

    @classmethod
    def load(
        cls,
        teacher: Teacher,
        recipe: TargetsRecipe,
        store: EmbeddingStore,
        segments: int,
        steps: int | None,
        device: torch.device,
    ) -> Self:
        """Load the teacher that the targets were made with, without its text encoders.

        Args:
            teacher: the section of the configuration.
            store: embeddings of the prompts.
            steps: that the teacher takes in a segment; None: all of its own.

        Raises:
            ValueError: the teacher is not that of the targets, or it has no such steps.
        """
        folder = find_teacher(teacher)
        if teacher_hash(teacher, folder) != recipe.teacher:
            raise ValueError(
                f"the teacher in {folder.path} is not the one that the targets were made with: "
                "restore it, or make the targets again"
            )
        steps = check_steps(recipe.steps, segments, steps)
        # With the VAE, which stock calls ask for the size of latents.
        absent = folder.family.text_components
        pipeline = load_exact_teacher(teacher, folder, device, absent)
        return cls(pipeline, recipe, store, segments, steps)

    def advance(
        self, states: torch.Tensor, segment: int, prompt_rows: Sequence[int]
    ) -> torch.Tensor:
        """The states (b, *latent) float32 at the end of a segment, from those at its beginning.

        Args:
            states: (b, *latent) float32, the scheduler's own, with their scale.
            segment: of the student, the same for all.
            prompt_rows: b rows of the prompt table.
        """
        num_steps = self.segments * self.steps
        steps = range(segment * self.steps, (segment + 1) * self.steps)
        return self._take(steps, num_steps, self.walker, states, prompt_rows).states[self.steps]

    def clean(self, states: torch.Tensor, step: int, prompt_rows: Sequence[int]) -> torch.Tensor:
        """The clean latents (b, *latent) float32 that the guided teacher sees in states.

        Args:
            states: (b, *latent) float32, the scheduler's own, with their scale.
            step: of the teacher, whose noise level the states have; the same for all.
            prompt_rows: b rows of the prompt table.
        """
        recipe, grid = self.recipe, self.grid
        looked = self._take(
            range(step, step + 1), recipe.steps, self.looker, states, prompt_rows
        ).predictions[0]
        level = (states.new_tensor(grid.alphas[step]), states.new_tensor(grid.sigmas[step]))
        noisy = states / grid.scales[step]
        kind = recipe.prediction_type
        return from_prediction(kind, looked.to(states.device), noisy, *level)[0]

    def _take(
        self,
        steps: range,
        num_steps: int,
        scheduler: Scheduler,
        states: torch.Tensor,
        prompt_rows: Sequence[int],
    ) -> Trajectory:
        """Some of a scheduler's `num_steps` from states at the first of them: the last state, and
        the prediction at the first."""
        image = self.store.image(prompt_rows[0])
        if image is not None and len(prompt_rows) > 1:  # a call with an image is for one prompt
            each = [
                self._take(steps, num_steps, scheduler, states[place : place + 1], [row])
                for place, row in enumerate(prompt_rows)
            ]
            return joined(each)
        recipe, self.pipeline.scheduler = self.recipe, scheduler
        conditioning, negative = padded(
            self.family, self.store, prompt_rows, recipe.max_sequence_length
        )
        request = Request(
            seeds=(),
            conditioning=conditioning,
            negative=negative,
            steps=num_steps,
            setting=Setting(
                Size.of(recipe),
                recipe.guidance_scale,
                recipe.guidance_scale_2,
                recipe.guidance_interval,
            ),
            decode=False,
            dtype=torch.float32,
            latents=states,
            further=recipe.call or {},
            image=None if image is None else image.open(),
        )
        with record(scheduler, (0, len(steps)), with_predictions=True) as trajectory:
            draw(self.family, self.pipeline, request, steps)
        return trajectory


def check_steps(teacher_steps: int, segments: int, steps: int | None) -> int:
    """How many steps the teacher takes in each of the student's segments.

    Raises ValueError for a number that does not divide those it has there.
    """
    most = teacher_steps // segments
    if steps is None:
        return most
    if most % steps:
        raise ValueError(
            f"the phase online has steps: {steps}, and the teacher has {most} steps in each of "
            f"the student's {segments}: use {divisors_of(most)}, or null for all"
        )
    return steps
