"""The usual way, to compare with: the teacher on every rank, asked for each target in each update.

    torchrun --nproc-per-node 1 benchmarks/in_loop.py --teacher-steps 5 ARGUMENTS

takes the arguments of distillery.stages.training and is that training, with the teacher put in: the
same student, batch and update. With as many teacher steps as a segment has it computes the very
target that is stored; with one it computes a single guided prediction, the least that any such
loop does.
"""

import argparse
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from distillery.config.jobs import TrainingJob, read_job
from distillery.families import grid_of
from distillery.families.protocol import Conditioning, Denoiser
from distillery.schedule import Schedule, add_noise, from_prediction
from distillery.schedulers import make_scheduler
from distillery.stages import training
from distillery.teacher.folder import find_teacher
from distillery.teacher.loading import load_exact_teacher
from distillery.training import distributed, update
from distillery.training.data import Batch
from distillery.training.objectives import segment_target
from distillery.training.run import Run


@dataclass(frozen=True)
class Loaded:
    """A teacher that stands ready on its device, so that an update pays for its steps alone.

    Attributes:
        denoiser: in the teacher's type.
        timesteps: (k,) of its steps.
        alphas, sigmas: (k + 1,) float32 at its knots.
    """

    denoiser: Denoiser
    timesteps: torch.Tensor
    alphas: torch.Tensor
    sigmas: torch.Tensor

    def level(self, knot: torch.Tensor, like: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Alpha and sigma at knots (b,), shaped to multiply states."""
        shape = (-1, *[1] * (like.ndim - 1))
        return self.alphas[knot].view(shape), self.sigmas[knot].view(shape)


class Teacher:
    """The teacher on this rank, loaded when the first batch comes."""

    def __init__(self, job: TrainingJob, num_steps: int) -> None:
        """`num_steps` guided steps a target."""
        self._job = job
        self._num_steps = num_steps
        self._loaded: Loaded | None = None

    def load(self, run: Run) -> Loaded:
        """Its denoiser alone, and its schedule at all its steps."""
        if self._loaded is None:
            family, teacher = run.dataset.family, self._job.teacher
            left_out = (*family.text_components, "vae")
            pipeline = load_exact_teacher(teacher, find_teacher(teacher), run.device, left_out)
            grid = teacher_grid(run)
            self._loaded = Loaded(
                getattr(pipeline, family.denoisers[0]),
                *(
                    torch.tensor(values, device=run.device)
                    for values in (grid.timesteps, grid.alphas, grid.sigmas)
                ),
            )
        return self._loaded

    @torch.no_grad()
    def target(self, batch: Batch, run: Run) -> torch.Tensor:
        """What the student should output at the batch's states, (b, *latent) float32."""
        teacher, kind = self.load(run), run.dataset.recipe.prediction_type
        scale = run.dataset.setting.guidance_scale
        first = batch.segment * (run.dataset.recipe.steps // run.dataset.steps)
        conditioning = doubled(batch.conditioning)
        noisy = batch.noisy
        for knot in (first + step for step in range(self._num_steps)):
            timestep = teacher.timesteps[knot]
            with_prompt, without = run.dataset.family.predict(
                teacher.denoiser,
                torch.cat([noisy, noisy]),
                torch.cat([timestep, timestep]),
                conditioning,
                run.dataset.setting,
            ).chunk(2)
            prediction = without.float() + scale * (with_prompt.float() - without.float())
            clean, noise = from_prediction(kind, prediction, noisy, *teacher.level(knot, noisy))
            noisy = add_noise(clean, noise, *teacher.level(knot + 1, noisy))
        ends = (*teacher.level(first, noisy), *teacher.level(first + self._num_steps, noisy))
        return segment_target(kind, batch.noisy, noisy, *ends)


def teacher_grid(run: Run) -> Schedule:
    """The teacher's schedule at all its steps, from the targets' recipe."""
    recipe = run.dataset.recipe
    config = dict(recipe.scheduler)
    scheduler = make_scheduler(config.pop("class"), config)
    return grid_of(run.dataset.family, scheduler, recipe.steps, recipe.latent_shape)


def doubled(conditioning: Conditioning) -> Conditioning:
    """The prompts, and as many empty ones behind them; zeros cost what a negative prompt does."""
    return {
        name: torch.cat([value, torch.zeros_like(value)]) for name, value in conditioning.items()
    }


def main(argv: list[str] | None = None) -> int:
    """Put the teacher into the loop, then train."""
    parser = argparse.ArgumentParser(description=__doc__, add_help=False)
    parser.add_argument("--teacher-steps", type=int, default=1)
    parser.add_argument("--config", type=Path, required=True)
    known, rest = parser.parse_known_args(argv)
    teacher = Teacher(read_job(known.config, TrainingJob), known.teacher_steps)
    stored = update.batch_losses

    def with_teacher(model: torch.nn.Module, batch: Batch, run: Run) -> torch.Tensor:
        return stored(model, replace(batch, target=teacher.target(batch, run)), run)

    update.batch_losses = with_teacher
    return int(training.main(["--config", str(known.config), *rest]))


if __name__ == "__main__":
    distributed.leave(main())
