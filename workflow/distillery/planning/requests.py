"""What jobs ask a cluster for, as a Snakefile tells the plan. Nothing heavy is imported."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class Request:
    """What the jobs of one rule ask a cluster for.

    Attributes:
        mem_mb: megabytes of host memory of each node; None where nothing is said.
        runtime: minutes until it is ended; None where nothing is said.
        tries: how often it is started, at most.
    """

    mem_mb: int | None
    runtime: int | None
    tries: int = 1


def read_requests(raw: Mapping[str, Mapping[str, Any]]) -> dict[str, Request]:
    """Requests as plan.json and a command line have them."""
    return {stage: Request(**request) for stage, request in raw.items()}


def write_requests(requests: Mapping[str, Request]) -> dict[str, dict[str, Any]]:
    """The reverse of `read_requests`."""
    return {stage: asdict(request) for stage, request in sorted(requests.items())}
