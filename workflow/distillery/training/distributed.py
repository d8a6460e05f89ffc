"""One process or many: find this process's place, start the group, reduce, leave.

torchrun, SLURM's srun and plain environment variables are understood; without any of them there is
one process and no group at all. Every collective here runs at a healthy time: no error path waits
for another process.
"""

import ctypes
import os
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import NoReturn

import torch
import torch.distributed as dist

from distillery.locks import LAUNCHER, say
from distillery.training.execution import Machine
from distillery.training.health import SIGNALS

LATE_S = 30.0
"""After so long a process says for whom it waits."""
PR_SET_PDEATHSIG = 1
"""From Linux's <sys/prctl.h>."""
SLURM_PORTS = range(20000, 40000)
"""One of these is chosen by the job's number, so that jobs that share a node do not meet."""


@dataclass(frozen=True)
class RankInfo:
    """Where a process stands.

    Attributes:
        rank: its number among all, from 0.
        world_size: how many there are.
        local_rank: its number among those of its machine.
        address: (host, port) of rank 0 where the launcher leaves it to us, else None.
        nodes: the ranks of each node, once they have met; see `nodes.meet`.
    """

    rank: int = 0
    world_size: int = 1
    local_rank: int = 0
    address: tuple[str, int] | None = None
    nodes: tuple[tuple[int, ...], ...] = ()

    @property
    def num_nodes(self) -> int:
        """How many nodes there are, as far as is known."""
        return max(1, len(self.nodes))

    @property
    def is_main(self) -> bool:
        """Whether this process logs and saves."""
        return self.rank == 0


def die_with_parent(number: signal.Signals = signal.SIGKILL) -> None:
    """Have the kernel send this process a signal when its parent ends (Linux only)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, number)


def die_with_launcher(environ: Mapping[str, str]) -> None:
    """Have the kernel end this process when its torchrun ends, even by SIGKILL (Linux only).

    Workers that outlive a killed torchrun would hold their GPUs, whose locks are already free, and
    would go on writing checkpoints beside those of the next try.

    Raises SystemExit where it has ended already, while this process imported; `with_gpus` tells its
    number.
    """
    if "TORCHELASTIC_RUN_ID" not in environ or sys.platform != "linux":
        return
    die_with_parent()
    # The parent's number would not tell: in a container torchrun may be process 1 itself.
    if LAUNCHER in environ and _has_ended(environ[LAUNCHER]):
        raise SystemExit("torchrun has ended, and this process with it")


def _has_ended(process: str) -> bool:
    """Whether a process is gone, or only not yet asked for its status."""
    try:
        return "\nState:\tZ" in Path(f"/proc/{process}/status").read_text()
    except OSError:
        return True


def detect_rank(environ: Mapping[str, str]) -> RankInfo:
    """This process's place by its environment variables.

    Raises:
        ValueError: some of the variables are there and others, named in the message, are not.
    """
    if "WORLD_SIZE" in environ or "RANK" in environ:
        return _rank_of_variables(environ)
    # Only srun sets this one; in the batch script itself there is a SLURM_PROCID too.
    if int(environ.get("SLURM_STEP_NUM_TASKS", "1")) > 1:
        return _rank_of_slurm(environ)
    return RankInfo()


def _rank_of_variables(environ: Mapping[str, str]) -> RankInfo:
    """RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT, set by torchrun or by hand."""
    needed = ["RANK", "WORLD_SIZE"]
    if environ.get("WORLD_SIZE") != "1":
        needed += ["MASTER_ADDR", "MASTER_PORT"]
    missing = [name for name in needed if name not in environ]
    if missing:
        present = {name: environ[name] for name in needed if name in environ}
        raise ValueError(
            f"the environment has {present} but no {', '.join(missing)}: every process needs RANK "
            "(0, 1, ...), WORLD_SIZE (how many), MASTER_ADDR (host of rank 0) and MASTER_PORT (a "
            "free port there, e.g. 29500); torchrun --standalone --nproc-per-node N sets them all"
        )
    rank, world_size = (_number(environ, name) for name in ("RANK", "WORLD_SIZE"))
    if not rank < world_size:
        raise ValueError(
            f"RANK is {rank} and WORLD_SIZE is {world_size}: ranks go from 0 to WORLD_SIZE - 1"
        )
    local_rank = _number(environ, "LOCAL_RANK") if "LOCAL_RANK" in environ else rank
    return RankInfo(rank, world_size, local_rank)


def _number(environ: Mapping[str, str], name: str) -> int:
    """A variable that must be a number from 0."""
    if not environ[name].isdecimal():
        raise ValueError(f"{name} is {environ[name]!r} in the environment: it must be a number")
    return int(environ[name])


def _rank_of_slurm(environ: Mapping[str, str]) -> RankInfo:
    """One process a task of srun; the first node of the step is the meeting point."""
    nodes = environ.get("SLURM_STEP_NODELIST", environ.get("SLURM_JOB_NODELIST", ""))
    host = environ.get("MASTER_ADDR") or first_node(nodes)
    if not host:
        raise ValueError(
            "srun started several tasks but neither SLURM_STEP_NODELIST nor MASTER_ADDR is set: "
            "export MASTER_ADDR with the host name of the first task"
        )
    job = int(environ.get("SLURM_JOB_ID", "0"))
    port = int(environ.get("MASTER_PORT", SLURM_PORTS[job % len(SLURM_PORTS)]))
    return RankInfo(
        rank=int(environ["SLURM_PROCID"]),
        world_size=int(environ["SLURM_STEP_NUM_TASKS"]),
        local_rank=int(environ.get("SLURM_LOCALID", "0")),
        address=(host, port),
    )


def first_node(nodes: str) -> str:
    """The first host of a SLURM node list: `gpu[03-05,09],big1` gives `gpu03`."""
    match = re.match(r"([^\[,]+)(?:\[(\d+)[^\]]*\])?([^\[,]*)", nodes)
    return "".join(part or "" for part in match.groups()) if match else ""


def start(ranks: RankInfo, device: torch.device, timeout_s: int) -> torch.device:
    """Join the group, if there is one, and return this process's device.

    Args:
        device: of the job, as `hardware.select_device` gives it.
        timeout_s: after this a collective that others do not join is an error.

    Raises:
        ValueError: the address of rank 0 cannot be used.
    """
    if device.type == "cuda":
        device = torch.device("cuda", _gpu_of(ranks, torch.cuda.device_count()))
        torch.cuda.set_device(device)
    if ranks.world_size > 1:
        _join(ranks, "nccl" if device.type == "cuda" else "gloo", timedelta(seconds=timeout_s))
    return device


def _join(ranks: RankInfo, backend: str, timeout: timedelta) -> None:
    """Start the group at the address of rank 0."""
    if ranks.address is None:
        host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
        method = "env://"
    else:
        host, port = find_host(ranks.address[0]), ranks.address[1]
        method = f"tcp://{host}:{port}"
    check_host(host)
    waits = threading.Timer(LATE_S, _tell_late, (ranks, host, port))
    waits.daemon = True
    waits.start()
    try:
        with _ended_by_signals():
            dist.init_process_group(
                backend,
                init_method=method,
                rank=ranks.rank,
                world_size=ranks.world_size,
                timeout=timeout,
            )
    except dist.DistNetworkError as error:
        if "EADDRINUSE" not in str(error):
            raise
        raise ValueError(
            f"port {port} of {host} is in use by another process: export MASTER_PORT with a free "
            "one, the same for all processes"
        ) from error
    finally:
        waits.cancel()


@contextmanager
def _ended_by_signals() -> Iterator[None]:
    """Let a signal that is handled in Python end the process: PyTorch waits for the others in C++,
    where no handler runs, and nothing is to be saved yet."""
    handled = {number: signal.getsignal(number) for number in SIGNALS}
    for number, handler in handled.items():
        if callable(handler):
            signal.signal(number, signal.SIG_DFL)
    try:
        yield
    finally:
        for number, handler in handled.items():
            signal.signal(number, handler)


def _tell_late(ranks: RankInfo, host: str, port: int) -> None:
    """Say for whom this process waits."""
    others = f"the others of {ranks.world_size} processes" if ranks.is_main else "rank 0"
    say(
        f"rank {ranks.rank} has waited {LATE_S:.0f} s for {others} at {host}, port {port}: do they "
        "all run, and may they connect there (MASTER_ADDR and MASTER_PORT name another place)?"
    )


def find_host(name: str) -> str:
    """A SLURM node's name, or its address where the name does not resolve."""
    try:
        socket.getaddrinfo(name, None)
    except OSError:
        with suppress(OSError):
            words = ["scontrol", "show", "node", name]
            shown = subprocess.run(words, capture_output=True, text=True, check=False).stdout
            if match := re.search(r"NodeAddr=(\S+)", shown):
                return match[1]
    return name


def check_host(name: str) -> None:
    """Raise ValueError for one that does not resolve."""
    try:
        socket.getaddrinfo(name, None)
    except OSError as error:
        raise ValueError(
            f"the host of rank 0, {name}, cannot be found from {socket.gethostname()} "
            f"({error.strerror}): export MASTER_ADDR with its address"
        ) from error


def _gpu_of(ranks: RankInfo, num_gpus: int) -> int:
    """The visible GPU of a process; each process may also see only its own."""
    if num_gpus == 1 or ranks.local_rank < num_gpus:
        return ranks.local_rank % num_gpus
    raise ValueError(
        f"this is process {ranks.local_rank} of its machine, where {num_gpus} GPUs are visible: "
        f"start at most {num_gpus} processes there, or show them more by CUDA_VISIBLE_DEVICES"
    )


def stop() -> None:
    """Leave the group after success, without waiting for other processes."""
    if dist.is_initialized():
        dist.destroy_process_group()


def leave(status: int) -> NoReturn:
    """End this process with an exit status; on a failure at once.

    An orderly end of the interpreter can wait in the destructor of a process group for ranks that
    will never answer. The kernel closes our connections, and the others then fail too.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    if status:
        os._exit(status)
    sys.exit(0)


def all_reduce(values: torch.Tensor) -> torch.Tensor:
    """The sum over all processes, in place."""
    if dist.is_initialized():
        dist.all_reduce(values)
    return values


def from_main(text: str, device: torch.device) -> str:
    """Rank 0's text on every rank; what the others give does not matter."""
    if not dist.is_initialized():
        return text
    texts = [text]
    dist.broadcast_object_list(texts, src=0, device=device)
    return texts[0]


def machine_of(ranks: RankInfo, device: torch.device) -> Machine:
    """The machine as rank 0 sees it: all processes must choose alike."""
    if device.type != "cuda":
        return Machine(ranks.world_size, num_nodes=ranks.num_nodes)
    properties = torch.cuda.get_device_properties(device)
    gpu_bytes = int(from_main(str(properties.total_memory), device))
    capability = (properties.major, properties.minor)
    return Machine(ranks.world_size, gpu_bytes, capability, ranks.num_nodes)


def differing_ranks(fingerprint: torch.Tensor) -> list[int]:
    """The ranks whose fingerprint, an int64 of shape (), is not rank 0's."""
    everyone = [torch.empty_like(fingerprint) for _ in range(dist.get_world_size())]
    dist.all_gather(everyone, fingerprint)
    return [rank for rank, value in enumerate(everyone) if int(value) != int(everyone[0])]
