"""What the processes of several nodes find out of each other before they train together."""

import os
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from uuid import uuid4

import torch
import torch.distributed as dist

from distillery import __version__
from distillery.training.distributed import RankInfo
from distillery.training.health import Peers, host_id


@dataclass(frozen=True)
class Member:
    """What a process says of itself.

    Attributes:
        node: for people.
        host: what processes share that see each other, see `health.host_id`.
        pid: process id there.
        versions: of what must be the same everywhere.
        folder: that it works in.
    """

    node: str
    host: str
    pid: int
    versions: Mapping[str, str]
    folder: str


def node_name() -> str:
    """This node as SLURM names it, elsewhere the host's name."""
    return os.environ.get("SLURMD_NODENAME") or socket.gethostname()


def check_seen(path: Path, ranks: RankInfo) -> None:
    """Raise ValueError where one of several processes does not see a file that is there before any
    of them starts."""
    if ranks.world_size > 1 and not path.is_file():
        raise ValueError(
            f"{path} is not there for rank {ranks.rank} on {node_name()}: the nodes of a training "
            "need a file system that they share, under the same path on each"
        )


def meet(ranks: RankInfo, folder: Path) -> tuple[RankInfo, Peers]:
    """Exchange who is where; collectives where there is a group.

    Args:
        folder: results/{run}, which all must see.

    Returns:
        `ranks` with its nodes, and the processes that this one can watch.

    Raises:
        ValueError: nodes with unequal numbers of processes, or processes with other versions, or
            that do not see the folder; on every rank.
    """
    if not dist.is_initialized():
        return ranks, Peers()
    versions = {"distillery": __version__, "torch": torch.__version__}
    own = Member(node_name(), host_id(), os.getpid(), versions, str(Path.cwd()))
    members: list[Member] = [own] * ranks.world_size
    dist.all_gather_object(members, own)
    check_versions(members)
    nodes = group_by_node(members)
    check_sizes(nodes, members)
    _check_shared(folder, ranks, members)
    pids = {
        rank: member.pid
        for rank, member in enumerate(members)
        if own.host and member.host == own.host and rank != ranks.rank
    }
    return replace(ranks, nodes=nodes), Peers(pids)


def check_alike(ranks: RankInfo, settings: Mapping[str, object]) -> None:
    """Raise ValueError, on every rank, where one has other settings than rank 0; a collective.

    Each process reads its own configuration. With others they would hang, or learn together what
    none of them is to learn.
    """
    if not dist.is_initialized():
        return
    own = {name: str(value) for name, value in settings.items()}
    everyone = [own] * ranks.world_size
    dist.all_gather_object(everyone, own)
    for rank, theirs in enumerate(everyone):
        for name, value in everyone[0].items():
            if theirs.get(name) != value:
                raise ValueError(
                    f"rank {rank} has {name} {theirs.get(name)}, rank 0 has {value}: start all "
                    "processes of a training in the same folder with the same arguments"
                )


def group_by_node(members: Sequence[Member]) -> tuple[tuple[int, ...], ...]:
    """The ranks of each node, in the order of their first ones."""
    ranks_of: dict[str, list[int]] = {}
    for rank, member in enumerate(members):
        ranks_of.setdefault(member.node, []).append(rank)
    return tuple(map(tuple, ranks_of.values()))


def check_versions(members: Sequence[Member]) -> None:
    """Raise ValueError where a process runs another version than rank 0."""
    first = members[0]
    for rank, member in enumerate(members):
        for name, version in first.versions.items():
            if member.versions.get(name) != version:
                raise ValueError(
                    f"rank {rank} on {member.node} runs {name} {member.versions.get(name)}, rank 0 "
                    f"on {first.node} runs {version}: install the same version on all nodes"
                )


def check_sizes(nodes: Sequence[Sequence[int]], members: Sequence[Member]) -> None:
    """Raise ValueError where nodes have unequal numbers of processes."""
    if len({len(ranks) for ranks in nodes}) > 1:
        counts = ", ".join(f"{members[ranks[0]].node} {len(ranks)}" for ranks in nodes)
        raise ValueError(
            f"the nodes have unequal numbers of processes ({counts}): ask for the same number of "
            "GPUs on each node, e.g. gpu: 8 with nodes: 2 for four on each"
        )


def _check_shared(folder: Path, ranks: RankInfo, members: Sequence[Member]) -> None:
    """Raise ValueError where a node does not see what rank 0 writes."""
    names = [f".seen-by-all-{uuid4().hex}"]
    dist.broadcast_object_list(names, src=0)
    path = folder / names[0]
    if ranks.is_main:
        path.touch()
    dist.barrier()
    sees = [True] * ranks.world_size
    dist.all_gather_object(sees, path.exists())
    if ranks.is_main:
        path.unlink()
    blind = [rank for rank, seen in enumerate(sees) if not seen]
    if blind:
        first = members[blind[0]]
        raise ValueError(
            f"rank {blind[0]} on {first.node}, in {first.folder}, does not see {folder} of rank 0 "
            f"on {members[0].node}, in {members[0].folder}: start all processes of a training in "
            "one folder, on a file system that the nodes share under the same path"
        )
