"""The plan of jobs: how many of each stage there are, with how many processes and GPUs each."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from distillery.config.run import Config, RunConfig
from distillery.planning.gpus import Gpus


@dataclass(frozen=True)
class StageJobs:
    """The jobs of one stage.

    Attributes:
        stage: as in the report.
        jobs: of it.
        processes: of each.
        gpus: that each takes; 0 where it needs none, or there is none.
    """

    stage: str
    jobs: int
    processes: int = 1
    gpus: int = 0


def list_jobs(config: RunConfig, gpus: Gpus, num_processes: int = 1) -> list[StageJobs]:
    """The jobs of all stages that take time, in the order in which they run.

    Args:
        config: of the run.
        gpus: that the jobs will get.
        num_processes: of the training.
    """
    of_teacher, one = min(config.teacher.num_gpus, gpus.count), min(1, gpus.count)
    samples = len(config.samples.models) * config.samples.num_shards
    drawing = StageJobs("samples", samples, gpus=of_teacher)
    if not isinstance(config, Config):
        return [StageJobs("embeddings", 1, gpus=of_teacher), drawing]
    training, shards = config.training, config.targets.num_shards
    rounds = len(training.round_numbers)
    learning = StageJobs("training", 1, num_processes, gpus.count)
    rows = [
        StageJobs("embeddings", 2, gpus=of_teacher),
        StageJobs("targets", shards * training.reads_trajectories, gpus=of_teacher),
        StageJobs("student", 1),
        StageJobs("training_before_round", rounds, num_processes, gpus.count),
        StageJobs("round_states", rounds * shards, gpus=of_teacher),
        StageJobs("round_targets", rounds * shards, gpus=of_teacher),
        learning,
        StageJobs("export", count_exports(config)),
        drawing,
        StageJobs("evaluation", 1, gpus=one),
        StageJobs("report", 1),
    ]
    return [row for row in rows if row.jobs]


def count_exports(config: Config) -> int:
    """The pipelines that are written: trained, before each round, and untrained where sampled."""
    untrained = any(model.source == "untrained" for model in config.samples.models.values())
    return 1 + len(config.training.round_numbers) + untrained


def samples_of_jobs(config: Config) -> list[int]:
    """Samples that each job of the training learns from: those before rounds, then the last."""
    ends = [part.num_samples for part in config.training.of_jobs]
    return [end - begin for begin, end in pairwise([0, *ends])]


@dataclass(frozen=True)
class Room:
    """What all jobs of a run share.

    Attributes:
        jobs: of each stage.
        num_gpus: 0 on the CPU.
        cpu_jobs: jobs of one process that the cores have room for.
    """

    jobs: Sequence[StageJobs]
    num_gpus: int
    cpu_jobs: int

    def of(self, stage: str) -> StageJobs:
        """The jobs of a stage; none where the run has no such stage."""
        return next((row for row in self.jobs if row.stage == stage), StageJobs(stage, 0))

    def at_once(self, stage: str) -> int:
        """How many jobs of a stage have room; one, however many GPUs it would take."""
        row = self.of(stage)
        if self.num_gpus and row.gpus:
            return max(1, self.num_gpus // row.gpus)
        return max(1, self.cpu_jobs // row.processes)
