"""The plan of the work: how many trajectories, network calls and jobs a run has."""

from dataclasses import dataclass
from math import prod

from distillery.config.run import Config
from distillery.teacher.loading import torch_dtype


@dataclass(frozen=True)
class Work:
    """How much there is to do.

    Attributes:
        num_prompts: of each split.
        num_trajectories: stored.
        num_chunks: files they are in.
        trajectory_bytes: of one stored trajectory.
        teacher_calls: denoiser forward passes for all targets.
        round_bytes: of one round's states, and of the teacher's answers.
        round_calls: denoiser forward passes for them.
    """

    num_prompts: dict[str, int]
    num_trajectories: int
    num_chunks: int
    trajectory_bytes: int
    teacher_calls: int
    round_bytes: int = 0
    round_calls: int = 0

    @property
    def targets_bytes(self) -> int:
        """Of all stored trajectories."""
        return self.num_trajectories * self.trajectory_bytes


def plan_work(
    config: Config, num_prompts: dict[str, int], shape: tuple[int, ...], calls_per_step: int
) -> Work:
    """Count trajectories, bytes and network calls."""
    targets = config.targets
    num_trajectories = num_prompts["train"] * targets.samples_per_prompt
    if not config.training.reads_trajectories:
        num_trajectories = 0
    steps, latent_bytes = config.student.steps, prod(shape) * torch_dtype(targets.dtype).itemsize
    num_states = num_trajectories if config.training.round_numbers else 0
    return Work(
        num_prompts=num_prompts,
        num_trajectories=num_trajectories,
        num_chunks=-(-num_trajectories // targets.chunk_size),
        trajectory_bytes=(targets.num_segments + 1) * latent_bytes,
        teacher_calls=num_trajectories * targets.steps * calls_per_step,
        # A state beside the teacher's walk from it, and once alone, on its way to the teacher.
        round_bytes=num_states * 3 * latent_bytes,
        round_calls=num_states * (targets.steps // steps * calls_per_step + steps),
    )
