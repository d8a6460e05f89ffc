"""Where a process stands, by the variables of three launchers."""

import os
import signal

import pytest

from distillery.training import distributed
from distillery.training.distributed import Place, find_place, first_node
from distillery.training.stopping import SIGNALS, StopRequest

TORCHRUN = {
    "RANK": "3",
    "WORLD_SIZE": "4",
    "LOCAL_RANK": "1",
    "MASTER_ADDR": "node1",
    "MASTER_PORT": "29500",
}
SLURM = {
    "SLURM_PROCID": "5",
    "SLURM_STEP_NUM_TASKS": "8",
    "SLURM_LOCALID": "1",
    "SLURM_STEP_NODELIST": "gpu[07-08]",
    "SLURM_JOB_ID": "41234",
}


def test_without_a_launcher_there_is_one_process_and_no_group():
    assert find_place({}) == Place()
    assert find_place({}).is_main


def test_torchrun_and_plain_variables():
    assert find_place(TORCHRUN) == Place(3, 4, 1)
    by_hand = {name: value for name, value in TORCHRUN.items() if name != "LOCAL_RANK"}
    assert find_place(by_hand) == Place(3, 4, 3)


def test_srun_tasks_meet_at_the_first_node():
    assert find_place(SLURM) == Place(5, 8, 1, ("gpu07", 21234))
    assert find_place(SLURM | {"MASTER_ADDR": "h", "MASTER_PORT": "1"}).address == ("h", 1)


def test_torchrun_inside_srun_is_torchrun():
    assert find_place(SLURM | TORCHRUN) == Place(3, 4, 1)


def test_a_batch_script_without_srun_is_one_process():
    in_batch_script = {"SLURM_PROCID": "0", "SLURM_NTASKS": "4", "SLURM_JOB_NODELIST": "gpu[1-4]"}
    assert find_place(in_batch_script) == Place()


@pytest.mark.parametrize("missing", ["MASTER_ADDR", "MASTER_PORT", "RANK", "WORLD_SIZE"])
def test_a_missing_variable_is_explained(missing):
    environ = {name: value for name, value in TORCHRUN.items() if name != missing}
    with pytest.raises(ValueError, match=f"no {missing}: every process needs RANK"):
        find_place(environ)


@pytest.mark.parametrize(
    ("nodes", "first"),
    [("gpu1", "gpu1"), ("a,b", "a"), ("gpu[03-05,09],big1", "gpu03"), ("n[7]-x", "n7-x"), ("", "")],
)
def test_the_first_of_a_node_list(nodes, first):
    assert first_node(nodes) == first


def test_each_process_gets_its_gpu():
    assert distributed._gpu_of(Place(5, 8, 1), num_gpus=4) == 1
    assert distributed._gpu_of(Place(5, 8, 3), num_gpus=1) == 0
    with pytest.raises(ValueError, match="start at most 2 processes there"):
        distributed._gpu_of(Place(2, 3, 2), num_gpus=2)


@pytest.mark.parametrize("number", SIGNALS)
def test_a_signal_asks_to_stop_and_the_old_handlers_come_back(number):
    before = signal.getsignal(number)
    stop = StopRequest()
    with stop.listening():
        assert not stop.asked
        os.kill(os.getpid(), number)
        assert stop.asked
        os.kill(os.getpid(), number)  # at once again, as torchrun and a terminal do: no harm
    assert signal.getsignal(number) is before


def test_who_asks_again_later_is_not_made_to_wait(monkeypatch):
    monkeypatch.setattr("distillery.training.stopping.PATIENCE_S", -1.0)
    stop = StopRequest()
    with stop.listening():
        os.kill(os.getpid(), signal.SIGTERM)
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGTERM)
