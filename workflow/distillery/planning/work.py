"""The plan of the work: how many trajectories, network calls and jobs a run has."""

from collections import Counter
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass

from distillery.config.run import Config, Targets
from distillery.config.samples import Samples
from distillery.notes import Note, advice, doubt
from distillery.teacher.loading import torch_dtype

MANY_VIEWS = 30
"""Of a stored segment. 47 gave less than 12 did (docs/how-many-trajectories.md)."""


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
    config: Config,
    num_prompts: dict[str, int],
    elements: float,
    calls_per_step: float,
    own_sizes: Sequence[Hashable] = (),
) -> Work:
    """Count trajectories, bytes and network calls.

    Args:
        elements: numbers in a state, in the mean.
        calls_per_step: of the teacher, in the mean.
        own_sizes: of the train split's prompts; none: all are of one.
    """
    targets = config.targets
    num_trajectories = num_prompts["train"] * targets.samples_per_prompt
    if not (config.training.reads_trajectories and config.trains):
        num_trajectories = 0
    num_made = num_trajectories if targets.from_run is None else 0
    latent_bytes = round(elements * torch_dtype(targets.dtype).itemsize)
    steps = config.student.steps
    num_states = num_trajectories if config.training.round_numbers else 0
    return Work(
        num_prompts=num_prompts,
        num_trajectories=num_trajectories,
        num_chunks=count_chunks(targets, own_sizes or [None] * num_prompts["train"])
        if num_trajectories
        else 0,
        trajectory_bytes=(targets.num_segments + 1) * latent_bytes,
        teacher_calls=round(num_made * targets.steps * calls_per_step),
        # A state beside the teacher's walk from it, and once alone, on its way to the teacher.
        round_bytes=num_states * 3 * latent_bytes,
        round_calls=round(num_states * (targets.steps // steps * calls_per_step + steps)),
    )


def count_chunks(targets: Targets, own_sizes: Sequence[Hashable]) -> int:
    """How many chunks the trajectories are in; each is of one size."""
    numbers = Counter(own_sizes).values()
    return sum(-(-number * targets.samples_per_prompt // targets.chunk_size) for number in numbers)


def on_amounts(config: Config, work: Work) -> Iterator[Note]:
    """More shards than work, few trajectories, and segments that are seen so often that a student
    may learn them by heart."""
    training = config.training
    if not training.reads_trajectories:
        return
    if work.num_chunks < config.targets.num_shards:
        yield advice(
            f"targets.num_shards is {config.targets.num_shards}",
            f" for {work.num_chunks} chunks: some jobs will have nothing to do",
        )
    if work.num_trajectories < 1000:
        yield advice(
            f"{work.num_trajectories} trajectories",
            " teach a student little",
            "begin with 10,000 (docs/how-many-trajectories.md)",
        )
    views = training.num_samples // max(
        1, work.num_trajectories * config.student.items_per_trajectory
    )
    if views >= MANY_VIEWS and not training.held_out_prompts:
        yield doubt(
            f"each stored segment is seen {views} times",
            ": the student may learn its trajectories by heart",
            "make more of them, or set training.held_out_prompts, which shows it",
        )


def on_images(samples: Samples, per_model: int, lacking_bytes: int) -> Iterator[Note]:
    """Of a run that only generates: a disk that its images may fill, and shards without work."""
    if lacking_bytes > 0:
        yield doubt(
            "the images",
            " may not fit on the disk",
            "free some space, or make results/ a link to a larger one; a run that fills it stops, "
            "keeps what it made, and resumes when rerun",
        )
    num_batches = -(-per_model // (1 if samples.batch_size == "auto" else samples.batch_size))
    if num_batches < samples.num_shards:
        yield advice(
            f"samples.num_shards is {samples.num_shards}",
            f" for {num_batches} batches: some jobs will have nothing to do",
        )
