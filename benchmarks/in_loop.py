"""The usual way, to compare with: the teacher on every rank, asked for each target in each update.

    torchrun --nproc-per-node 1 benchmarks/in_loop.py --teacher-steps 5 ARGUMENTS

takes the arguments of scripts/train.py and is that training, with the teacher put in: the same
student, batch and update. With as many teacher steps as a segment has it computes the very target
that is stored; with one it computes a single guided prediction, the least that any such loop does.
"""

import argparse
import sys
from dataclasses import replace
from pathlib import Path

import torch

from distillery.config.jobs import TrainingJob, read_job
from distillery.families import grid_of
from distillery.families.protocol import Conditioning, Denoiser
from distillery.schedule import Schedule, add_noise, from_prediction
from distillery.schedulers import make_scheduler
from distillery.teacher.find import find_teacher
from distillery.teacher.loading import load_teacher
from distillery.training import distributed, update
from distillery.training.dataset import Batch
from distillery.training.objectives import segment_target
from distillery.training.run import Run

sys.path.append(str(Path(__file__).parents[1] / "scripts"))
import train


class Teacher:
    """The teacher's denoiser on this rank, loaded when the first batch comes."""

    def __init__(self, job: TrainingJob, num_steps: int) -> None:
        """`num_steps` guided steps a target."""
        self._job = job
        self._num_steps = num_steps
        self._denoiser: Denoiser | None = None

    def load(self, run: Run) -> Denoiser:
        """The denoiser alone, in the teacher's type."""
        if self._denoiser is None:
            family, teacher = run.dataset.family, self._job.teacher
            left_out = (*family.text_components, "vae")
            pipeline = load_teacher(teacher, find_teacher(teacher), run.device, left_out)
            self._denoiser = getattr(pipeline, family.denoisers[0])
        assert self._denoiser is not None
        return self._denoiser

    @torch.no_grad()
    def target(self, batch: Batch, run: Run) -> torch.Tensor:
        """What the student should output at the batch's states, (b, *latent) float32."""
        grid, kind = teacher_grid(run), run.dataset.recipe["prediction_type"]
        denoiser, scale = self.load(run), run.dataset.setting.guidance_scale
        stride = run.dataset.recipe["steps"] // run.dataset.steps
        noisy = batch.noisy
        first = batch.segment * stride
        for step in range(self._num_steps):
            knot = first + step
            alpha, sigma = level(grid, knot, noisy)
            timestep = torch.tensor(grid.timesteps, device=noisy.device)[knot]
            with_prompt, without = run.dataset.family.predict(
                denoiser,
                torch.cat([noisy, noisy]),
                torch.cat([timestep, timestep]),
                doubled(batch.conditioning),
                run.dataset.setting,
            ).chunk(2)
            prediction = without.float() + scale * (with_prompt.float() - without.float())
            clean, noise = from_prediction(kind, prediction, noisy, alpha, sigma)
            noisy = add_noise(clean, noise, *level(grid, knot + 1, noisy))
        return segment_target(
            kind,
            batch.noisy,
            noisy,
            *level(grid, first, noisy),
            *level(grid, first + self._num_steps, noisy),
        )


def teacher_grid(run: Run) -> Schedule:
    """The teacher's schedule at all its steps, from the targets' recipe."""
    recipe = run.dataset.recipe
    config = dict(recipe["scheduler"])
    scheduler = make_scheduler(config.pop("class"), config)
    return grid_of(run.dataset.family, scheduler, recipe["steps"], tuple(recipe["latent_shape"]))


def level(
    grid: Schedule, knot: torch.Tensor, like: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Alpha and sigma at knots (b,), shaped to multiply states."""
    alphas, sigmas = (
        torch.tensor(values, device=like.device, dtype=like.dtype)[knot]
        for values in (grid.alphas, grid.sigmas)
    )
    shape = (-1, *[1] * (like.ndim - 1))
    return alphas.view(shape), sigmas.view(shape)


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
    return int(train.main(["--config", str(known.config), *rest]))


if __name__ == "__main__":
    distributed.leave(main())
