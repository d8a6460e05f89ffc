"""A real SLURM on one machine, for tests: one controller and three nodes of two pretend GPUs each.

    python tests/slurm/cluster.py up      # needs root and Debian's packages, named below
    python tests/slurm/cluster.py down

No systemd, no cgroups, no accounting: what a laptop or a CI machine can start and stop. A pretend
GPU is a character device with the null device's number; for others SLURM does not set
CUDA_VISIBLE_DEVICES.
The configuration must lie in /etc/slurm: the executor plugin strips SLURM_CONF from its job steps.
"""

import os
import shutil
import signal
import socket
import stat
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

PACKAGES = ("slurmctld", "slurmd", "slurm-client", "slurm-wlm-basic-plugins", "munge")
ETC = Path("/etc/slurm")
STATE = Path("/tmp/distillery-slurm")
NODES = {"n1": 17001, "n2": 17002, "n3": 17003}
NUM_GPUS = 2
START_TIMEOUT_S = 60
SLURM_CONF = """\
ClusterName=distillery
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort=16817
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
CryptoType=crypto/munge
SlurmctldPidFile={state}/slurmctld.pid
SlurmdPidFile={state}/slurmd.%n.pid
StateSaveLocation={state}/state
SlurmdSpoolDir={state}/spool.%n
SlurmctldLogFile={state}/slurmctld.log
SlurmdLogFile={state}/slurmd.%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/linux
AccountingStorageType=accounting_storage/none
SwitchType=switch/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
SchedulerType=sched/backfill
SchedulerParameters=sched_interval=2,bf_interval=2
ReturnToService=2
# A node that says nothing for so many seconds is down, and its jobs have failed.
SlurmdTimeout=15
MinJobAge=600
GresTypes=gpu
# The nodes claim more cores than the machine has.
SlurmdParameters=config_overrides
{nodes}
PartitionName=gpu Nodes={names} Default=YES MaxTime=INFINITE State=UP DefMemPerCPU=100
"""


def missing_tools() -> list[str]:
    """Daemons that are not installed; their packages are `PACKAGES`."""
    tools = ("slurmctld", "slurmd", "sinfo", "sbatch", "munged")
    return [tool for tool in tools if shutil.which(tool, path="/usr/sbin:/usr/bin") is None]


def up() -> None:
    """Write the configuration, start all daemons, wait until all nodes are idle."""
    STATE.mkdir(parents=True, exist_ok=True)
    (STATE / "state").mkdir(exist_ok=True)
    ETC.mkdir(parents=True, exist_ok=True)
    host = socket.gethostname().split(".")[0]
    nodes = "\n".join(
        f"NodeName={name} NodeHostname={host} NodeAddr=127.0.0.1 Port={port} CPUs=64 "
        f"RealMemory=16000 Gres=gpu:fake:{NUM_GPUS} State=UNKNOWN"
        for name, port in NODES.items()
    )
    names = ",".join(NODES)
    (ETC / "slurm.conf").write_text(
        SLURM_CONF.format(host=host, state=STATE, nodes=nodes, names=names)
    )
    devices = f"/dev/fakegpu[0-{NUM_GPUS - 1}]"
    (ETC / "gres.conf").write_text(
        f"AutoDetect=off\nNodeName={names} Name=gpu Type=fake File={devices}\n"
    )
    for number in range(NUM_GPUS):
        device = Path(f"/dev/fakegpu{number}")
        if not device.exists():
            os.mknod(device, stat.S_IFCHR | 0o666, os.makedev(1, 3))
    _start_munge()
    subprocess.run(["/usr/sbin/slurmctld"], check=True)
    for name in NODES:
        start_node(name)
    wait_for_nodes()


def start_node(name: str) -> None:
    """Start a node's daemon."""
    subprocess.run(["/usr/sbin/slurmd", "-N", name], check=True)


def lose_node(name: str) -> None:
    """Kill a node's daemon and all that its jobs run, at once, as a power failure does."""
    pid_file = STATE / f"slurmd.{name}.pid"
    lost = {int(pid_file.read_text())}
    for process in Path("/proc").glob("[0-9]*"):
        try:
            environ = (process / "environ").read_text().split("\0")
            parent = int((process / "stat").read_text().rpartition(")")[2].split()[1])
            is_step = "slurmstepd" in Path(f"/proc/{parent}/cmdline").read_text()
        except OSError:  # it has ended
            continue
        if f"SLURMD_NODENAME={name}" in environ:
            lost |= {int(process.name), *([parent] if is_step else [])}
    for pid in lost:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    pid_file.unlink()


def _start_munge() -> None:
    """Start the authentication daemon with a fresh key, unless one already answers."""
    if subprocess.run(["munge", "-n"], capture_output=True, check=False).returncode == 0:
        return
    run, key = Path("/run/munge"), Path("/etc/munge/munge.key")
    run.mkdir(exist_ok=True)
    shutil.chown(run, "munge", "munge")
    if not key.is_file() or key.stat().st_size == 0:
        key.write_bytes(os.urandom(1024))
        shutil.chown(key, "munge", "munge")
        key.chmod(0o600)
    subprocess.run(["runuser", "-u", "munge", "--", "/usr/sbin/munged"], check=True)


def wait_for_nodes() -> None:
    """Until all are idle."""
    deadline = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < deadline:
        idle = subprocess.run(
            ["sinfo", "-h", "-N", "-t", "idle"], capture_output=True, text=True, check=False
        )
        if len(idle.stdout.splitlines()) == len(NODES):
            return
        time.sleep(0.5)
    raise TimeoutError(f"the nodes are not idle after {START_TIMEOUT_S} s: see {STATE}/*.log")


def down() -> None:
    """Stop the daemons that `up` started, by their pid files, and remove what it wrote."""
    for name in (*(f"slurmd.{node}" for node in NODES), "slurmctld"):
        path = STATE / f"{name}.pid"
        if path.is_file():
            subprocess.run(["kill", path.read_text().strip()], check=False)
    time.sleep(2)
    shutil.rmtree(STATE, ignore_errors=True)
    for name in ("slurm.conf", "gres.conf"):
        (ETC / name).unlink(missing_ok=True)
    for number in range(NUM_GPUS):
        Path(f"/dev/fakegpu{number}").unlink(missing_ok=True)


if __name__ == "__main__":
    {"up": up, "down": down}[sys.argv[1]]()
