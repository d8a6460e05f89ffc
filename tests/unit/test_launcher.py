"""What starts a training's processes, on one machine and on several."""

import subprocess
import sys

import pytest

from distillery.launcher import check_loopback, gpus_per_node, launch_with, num_processes


def test_one_machine_has_torchrun() -> None:
    words = launch_with(num_gpus=4, num_nodes=1, cpu_processes=2, cpus_per_gpu=8)
    assert "torch.distributed.run --standalone --nproc-per-node=4 " in words
    assert "--nproc-per-node=2 " in launch_with(0, 1, 2, 8)


def test_several_nodes_have_srun_with_nothing_left_to_defaults() -> None:
    words = launch_with(num_gpus=8, num_nodes=2, cpu_processes=2, cpus_per_gpu=6)
    assert words.startswith("srun --nodes=2 --ntasks-per-node=4 --cpus-per-task=6 ")
    assert "--gpus-per-node=4 " in words
    assert "--kill-on-bad-exit=1" in words
    without = launch_with(0, 3, 2, 6)
    assert "--nodes=3 --ntasks-per-node=2 " in without
    assert "gpus" not in without


def test_the_teachers_own_gpus_train_nobody() -> None:
    assert num_processes(8, 2, 2, own_gpus=1) == 6
    assert "--ntasks-per-node=3 " in launch_with(8, 2, 2, 8, own_gpus=1)
    assert "--gpus-per-node=4 " in launch_with(8, 2, 2, 8, own_gpus=1)
    assert num_processes(0, 1, 2, own_gpus=1) == 2, "on a CPU it takes nothing from them"
    with pytest.raises(ValueError, match=r"the teacher takes 2 .* of the 2 GPUs that the training"):
        launch_with(2, 1, 2, 8, own_gpus=2)


def test_gpus_that_do_not_divide_are_refused() -> None:
    assert gpus_per_node(6, 3) == 2
    with pytest.raises(ValueError, match=r"gpu=5 and nodes=2.*use gpu=6"):
        gpus_per_node(5, 2)


def test_without_loopback_torchrun_is_not_started() -> None:
    """In a network of its own, whose loopback interface is down until it is set up."""
    unshare = ["unshare", "--map-root-user", "--net"]
    if subprocess.run([*unshare, "true"], capture_output=True, check=False).returncode:
        pytest.skip("no network can be made here")
    launch = [sys.executable, "-m", "distillery.with_gpus", "--num-gpus", "0", "--"]
    for is_torchrun in (True, False):
        command = [sys.executable, "-c", "print('began')", *["torch.distributed.run"] * is_torchrun]
        alone = subprocess.run(
            [*unshare, *launch, *command], capture_output=True, text=True, check=False
        )
        assert (alone.returncode, alone.stdout) == ((125, "") if is_torchrun else (0, "began\n"))
        assert ("(lo) does not answer" in alone.stderr) == is_torchrun
        assert alone.stderr.count("\n") == is_torchrun, "one line, with the cure"
        assert alone.stderr.endswith("ip link set lo up\n" * is_torchrun)
    assert "torch.distributed.run" in launch_with(2, 1, 1, 1).split()
    check_loopback(launch_with(2, 1, 1, 1).split())
