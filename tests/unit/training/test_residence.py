"""Where the teacher of online targets is put, and that its weights are shared there."""

from pathlib import Path

import pytest
import torch

from distillery.config.jobs import TrainingJob
from distillery.config.teacher import Teacher
from distillery.config.training import Training
from distillery.student.build import build_student
from distillery.teacher.folder import PipelineFolder, find_teacher
from distillery.training.batches import Batches
from distillery.training.distributed import RankInfo
from distillery.training.execution import Machine, choose_place, demands, is_mapped
from distillery.training.health import Watchdog
from distillery.training.target_teacher import OwnTeacher
from distillery.training.ways.online import OnlineDataset, load_target_teacher
from runs import CPU, make_run
from training_phases import phases

ONLINE = Training(phases=phases(online=8), global_batch_size=8)


@pytest.fixture(scope="module")
def folder(teacher: Path) -> PipelineFolder:
    return PipelineFolder(teacher)


def teacher_of(folder: PipelineFolder, dtype: str = "float32") -> Teacher:
    return Teacher(path=str(folder.path), dtype=dtype, height=16, width=16)


def test_auto_goes_by_bytes(folder: PipelineFolder) -> None:
    section, student = teacher_of(folder), 10**6
    whole = demands(section, folder, student, Machine(2))["every_rank"].gpu
    for gpu_bytes, expected in ((None, "every_rank"), (2 * whole, "every_rank"), (whole, "shared")):
        machine = Machine(2, gpu_bytes)
        needed = demands(section, folder, student, machine)
        place, reason = choose_place(ONLINE, 1, needed, machine)
        assert place == expected
        assert reason
    as_set = ONLINE.model_copy(update={"teacher_residence": "cpu"})
    assert choose_place(as_set, 1, needed, machine) == ("cpu", "as set")


def test_weights_of_another_type_are_no_shared_copy(folder: PipelineFolder) -> None:
    assert is_mapped(teacher_of(folder), folder)
    assert not is_mapped(teacher_of(folder, "bfloat16"), folder)
    machine, numbers = Machine(8, num_nodes=2), folder.parameters
    shared = demands(teacher_of(folder), folder, 0, machine)
    own = demands(teacher_of(folder, "bfloat16"), folder, 0, machine)
    assert shared["cpu"].host == 4 * (numbers["transformer"] + numbers["vae"])
    assert own["cpu"].host == 4 * (2 * numbers["transformer"] + 4 * numbers["vae"]), "4 processes"


def test_a_teacher_in_the_hosts_memory_is_mapped_from_its_file(
    teacher: Path, tmp_path: Path
) -> None:
    """So the processes of a node share one copy: what the kernel maps from a file, it has once."""
    run = make_run(tmp_path, teacher, training={"phases": phases(online=8)})
    run.encode("train")
    run.all_targets()
    job = run.job("training", TrainingJob)
    build_student(job, run.files.student("initial"))
    files = run.files
    dataset = OnlineDataset(files.targets, files.embeddings("train"), files.prompts("train"), 2)
    batches = Batches(dataset, job.training, 0, RankInfo())
    found = load_target_teacher(
        job, dataset, run.training_paths(tmp_path), batches, "cpu", CPU, Watchdog(0, 0)
    )
    assert isinstance(found, OwnTeacher)
    largest = max(found.walk.pipeline.transformer.parameters(), key=torch.numel)
    assert file_at(largest.data_ptr()).startswith(f"{find_teacher(job.teacher).path}/transformer/")
    assert not file_at(largest.clone().data_ptr()).startswith("/")


def file_at(address: int) -> str:
    """The file that an address of this process is mapped from."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        words = line.split(maxsplit=5)
        first, last = (int(number, 16) for number in words[0].split("-"))
        if first <= address < last:
            return words[5] if len(words) > 5 else ""
    return ""
