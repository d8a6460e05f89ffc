"""What starts the processes of a training: torchrun on one machine, SLURM's srun on several.

A Snakefile imports this module while it is parsed, so nothing heavy is imported.
"""

import socket
from collections.abc import Sequence

LOOPBACK = "127.0.0.1"
ANSWER_S = 5.0
TORCHRUN_MODULE = "torch.distributed.run"

TORCHRUN = (
    f"python -m {TORCHRUN_MODULE} --standalone --nproc-per-node={{processes}} "
    "--signals-to-handle=SIGTERM,SIGINT,SIGHUP,SIGQUIT,SIGUSR1"
)
SRUN = (
    "srun --nodes={nodes} --ntasks-per-node={processes} {resources} --cpu-bind=none "
    "--kill-on-bad-exit=1 --label python"
)
"""One task per GPU, which find each other by SLURM's variables; all end with the first that fails.
The executor plugin takes SLURM's variables from a job, so nothing may be left to defaults."""


def launch_with(
    num_gpus: int, num_nodes: int, cpu_processes: int, cpus_per_gpu: int, own_gpus: int = 0
) -> str:
    """The words before `-m distillery.stages.training`.

    Args:
        num_gpus: over all nodes; 0: none.
        cpu_processes: on each node where there are no GPUs.
        cpus_per_gpu: of a job on several nodes.
        own_gpus: of each node, that are the teacher's alone.

    Raises:
        ValueError: GPUs that cannot be the same number on each node, or none is left to train on.
    """
    per_node = gpus_per_node(num_gpus, num_nodes)
    processes = num_processes(num_gpus, num_nodes, cpu_processes, own_gpus) // num_nodes
    if num_nodes == 1:
        return TORCHRUN.format(processes=processes)
    resources = f"--cpus-per-task={cpus_per_gpu}"
    if per_node:
        resources += f" --gpus-per-node={per_node}"
    return SRUN.format(nodes=num_nodes, processes=processes, resources=resources)


def check_loopback(command: Sequence[str]) -> None:
    """Raise OSError where torchrun's processes could not find each other, for which it waits long.

    Args:
        command: that is to be run; any other than torchrun passes.
    """
    if TORCHRUN_MODULE not in command:
        return
    try:
        with socket.create_server((LOOPBACK, 0)) as server:
            socket.create_connection(server.getsockname(), timeout=ANSWER_S).close()
    except OSError as error:
        raise OSError(
            f"this machine's loopback interface (lo) does not answer ({error.strerror or error}), "
            "and the processes of a training find each other by it: ip link set lo up"
        ) from error


def num_processes(num_gpus: int, num_nodes: int, cpu_processes: int, own_gpus: int = 0) -> int:
    """How many processes train, over all nodes; arguments and errors as of `launch_with`."""
    per_node = gpus_per_node(num_gpus, num_nodes)
    if 0 < per_node <= own_gpus:
        raise ValueError(
            f"training.teacher_residence is own_gpus and the teacher takes {own_gpus} "
            f"(teacher.num_gpus) of the {per_node} GPUs that the training has on a node: give it "
            "more, or put the teacher elsewhere"
        )
    return num_nodes * (per_node - own_gpus if per_node else cpu_processes)


def gpus_per_node(num_gpus: int, num_nodes: int) -> int:
    """How many of a job's GPUs are on each of its nodes; raises ValueError for unequal numbers."""
    if num_gpus % num_nodes:
        raise ValueError(
            f"the training's resources are gpu={num_gpus} and nodes={num_nodes}: gpu counts the "
            f"GPUs of all nodes, the same number on each; use "
            f"gpu={(num_gpus // num_nodes + 1) * num_nodes}"
        )
    return num_gpus // num_nodes
