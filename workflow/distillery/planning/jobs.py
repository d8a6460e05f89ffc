"""The plan of jobs: how many of each stage there are, with how many processes and GPUs each."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from distillery.config.run import RunConfig
from distillery.planning.gpus import Gpus
from distillery.stage import Stage


@dataclass(frozen=True)
class StageJobs:
    """The jobs of one stage.

    Attributes:
        stage: as in the report.
        processes: of each job.
        gpus: that each takes; 0 where it needs none, or there is none.
    """

    stage: str
    jobs: int
    processes: int = 1
    gpus: int = 0


def list_jobs(
    stages: Iterable[Stage], config: RunConfig, gpus: Gpus, num_processes: int = 1
) -> list[StageJobs]:
    """The jobs of all stages that take time, in the order in which they run.

    Args:
        num_processes: of the training.
    """
    taken = {
        "none": 0,
        "one": min(1, gpus.count),
        "teacher": min(config.teacher.num_gpus, gpus.count),
        "all": gpus.count,
    }
    rows = [
        StageJobs(
            stage.name,
            len(stage.keys(config)),
            num_processes if stage.gpus == "all" else 1,
            taken[stage.gpus],
        )
        for stage in stages
        if not stage.is_short
    ]
    return [row for row in rows if row.jobs]


@dataclass(frozen=True)
class Room:
    """What all jobs of a run share.

    Attributes:
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
