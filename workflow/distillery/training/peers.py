"""Notice at once when another process of the training on this host is gone.

A collective on GPUs does not: its kernel waits for the dead for ever. A launcher that ends the rest
is told by SIGTERM, which asks for a checkpoint and cannot interrupt a wait; torchrun then has
patience for 30 seconds and more. The kernel knows when a process ends, and why is in its own log.
"""

import os
import select
from pathlib import Path

import torch.distributed as dist

BOOT = Path("/proc/sys/kernel/random/boot_id")
PID_NAMESPACE = Path("/proc/self/ns/pid")


class Peers:
    """The other processes of the group that this one can see (Linux: on the same host, in the same
    container); elsewhere none."""

    def __init__(self, pids: dict[int, int] | None = None) -> None:
        """`pids`: process ids by rank."""
        self._rank_of: dict[int, int] = {}
        self._never_seen: list[int] = []
        self._ended = select.poll()
        for rank, pid in (pids or {}).items():
            try:
                descriptor = os.pidfd_open(pid)
            except ProcessLookupError:
                self._never_seen.append(rank)
            else:
                self._rank_of[descriptor] = rank
                self._ended.register(descriptor, select.POLLIN)

    def gone(self) -> list[int]:
        """Ranks that have ended, for whatever reason, in their order."""
        ended = [self._rank_of[descriptor] for descriptor, _ in self._ended.poll(0)]
        return sorted([*self._never_seen, *ended])

    def close(self) -> None:
        """Look no more."""
        for descriptor in self._rank_of:
            self._ended.unregister(descriptor)
            os.close(descriptor)
        self._rank_of.clear()
        self._never_seen.clear()


def meet() -> Peers:
    """Exchange process ids; a collective where there is a group."""
    if not dist.is_initialized():
        return Peers()
    mine = (_host(), os.getpid())
    everyone: list[tuple[str, int]] = [("", 0)] * dist.get_world_size()
    dist.all_gather_object(everyone, mine)
    return Peers(
        {
            rank: pid
            for rank, (host, pid) in enumerate(everyone)
            if mine[0] and host == mine[0] and pid != mine[1]
        }
    )


def _host() -> str:
    """What processes must share to see each other; empty where the system does not let them."""
    try:
        os.close(os.pidfd_open(os.getpid()))
        return f"{BOOT.read_text().strip()} {PID_NAMESPACE.readlink()}"
    except (AttributeError, OSError):
        return ""
