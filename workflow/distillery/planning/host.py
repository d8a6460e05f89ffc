"""Host memory and time that jobs need, against what the workflow asks a cluster for.

A cluster ends a job that takes more than it asked for. Rules of thumb where nothing was measured:
too much is asked for rather than too little.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import ceil
from typing import Any

from distillery.config.run import Config, RunConfig
from distillery.files import readable
from distillery.notes import Note, doubt
from distillery.planning.disk import MASTER_BYTES, checkpoint_bytes
from distillery.planning.jobs import StageJobs
from distillery.planning.requests import Request
from distillery.stage import Stage
from distillery.teacher.folder import PipelineFolder
from distillery.teacher.memory import ITEM_BYTES, item_bytes

PROCESS_BYTES = 4 * 10**9
"""Of a process without weights: libraries, the CUDA context, what it reads ahead and encodes."""
MEGABYTE = 10**6


def host_bytes(
    stages: Iterable[Stage], config: RunConfig, plan: Mapping[str, Any], folder: PipelineFolder
) -> dict[str, int]:
    """Bytes of host memory that a job of each stage needs on a node.

    Weights come from the disk by way of host memory, in each process. The training's first process
    also holds the copy that a checkpoint is written from.

    Args:
        plan: as in plan.json, with student and training.
    """
    parameters, family = folder.parameters, folder.family
    components = {name: parameters[name] * item_bytes(config.teacher, name) for name in parameters}
    texts = sum(size for name, size in components.items() if name in family.text_components)
    drawing = sum(components.values()) - texts
    sizes = {"texts": texts, "drawing": drawing}
    if isinstance(config, Config):
        student, machine = plan["student"], plan["training"]["machine"]
        master = student["num_parameters"] * MASTER_BYTES
        own = student["teacher_parameters"] * ITEM_BYTES[config.teacher.dtype]
        per_node = machine["world_size"] // machine["num_nodes"]
        beside = drawing if config.training.asks else 0
        copy = checkpoint_bytes(config.training, student["trained_parameters"])
        training = max(copy, per_node * (master + beside)) + (per_node - 1) * PROCESS_BYTES
        sizes |= {"student": master + own, "training": training}
    return {
        stage.name: sizes[stage.loads] + PROCESS_BYTES
        for stage in stages
        if stage.loads in sizes and stage.keys(config)
    }


def megabytes(size: int) -> int:
    """What `mem_mb` must be, to the next thousand."""
    return ceil(size / (1000 * MEGABYTE)) * 1000


def on_requests(
    requests: Mapping[str, Request],
    needs: Mapping[str, int],
    time: Mapping[str, Any],
    jobs: Sequence[StageJobs],
) -> Iterator[Note]:
    """Jobs that a cluster would end before they are done.

    Args:
        requests: of each rule that has jobs.
        time: what `plan_duration` gives; without stages nothing is known.
    """
    for row in jobs:
        request, need = requests.get(row.stage), needs.get(row.stage, 0)
        if request is None:
            continue
        if request.mem_mb is not None and request.mem_mb * MEGABYTE < need:
            yield doubt(
                f"{row.stage} asks the cluster for mem_mb: {request.mem_mb:,}",
                f" and needs about {readable(need)} of host memory: it would be ended",
                f"write {row.stage}: {{mem_mb: {megabytes(need)}}} under set-resources in the "
                "profile",
            )
        minutes = _minutes(row, time)
        given = request.tries * (request.runtime or 0)
        if request.runtime is not None and minutes > given:
            yield doubt(
                f"{row.stage} takes about {minutes:,} minutes",
                f" and is given {given:,} (runtime: {request.runtime}, started {request.tries} "
                "times at most)",
                "raise runtime or retries in the profile",
            )


def _minutes(row: StageJobs, time: Mapping[str, Any]) -> int:
    """Of one job; 0 where it is not known."""
    stages = {stage["stage"]: stage for stage in time.get("stages", [])}
    if row.stage not in stages or not row.gpus:
        return 0
    return ceil(float(stages[row.stage]["gpu_s"]) / (row.jobs * row.gpus) / 60)
