"""The plan of the disk against what a whole run leaves there, and against sums by hand."""

import re
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

import tiny
from distillery.config.training import Training
from distillery.files import readable
from distillery.planning.disk import Store, checkpoint_bytes, num_checkpoints, on_disk, plan_disk
from distillery.run_folder import RunFolder
from runs import make_run, planned, settings
from training_phases import phases

FOLDERS = {
    "embeddings": ["embeddings"],
    "targets": ["targets"],
    "student": [f"student/{name}" for name in ("initial", "trained", "pipeline", "untrained")],
    "checkpoints": ["student/checkpoints"],
    "samples": ["samples"],
    "previews": ["student/previews"],
}
HEADERS = 1 << 16
"""Bytes of the headers of a LoRA's files, more than its weights at this size."""
LONG = {"phases": phases(stored=32), "keep_checkpoints": 2, "ema_half_life_samples": 8}


def size_of(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


@pytest.mark.slow
@pytest.mark.parametrize("init", ["teacher", "lora", "time_embeddings"])
def test_a_finished_run_is_as_large_as_planned(teacher: Path, tmp_path: Path, init: str) -> None:
    changes: dict[str, Any] = {
        "training": LONG,
        "previews": {"every_samples": 16, "num_prompts": 2},
        "student": {"steps": 2, "init": init} | ({"lora": {"rank": 2}} if init == "lora" else {}),
        # Headers of small files are what is not planned.
        "targets": {
            "samples_per_prompt": 8, "num_segments": 4, "chunk_size": 64, "batch_size": 64,
            "guidance_scale": 1.0,
        },
        "samples": {"batch_size": 5},
        "embeddings": {"chunk_size": 64},
    }  # fmt: skip
    planned_sizes = planned(settings(tmp_path, teacher, **changes), tmp_path)["disk"]["stages"]
    run = make_run(tmp_path, teacher, **changes)
    for split in ("train", "eval"):
        run.encode(split)
    run.all_targets()
    pipeline = run.train_and_export(previews=True)
    run.samples()
    run.samples(model="student", pipeline=pipeline)
    run.samples(model="untrained", pipeline=run.export_untrained())
    found = {
        stage: sum(size_of(run.folder / folder) for folder in folders)
        for stage, folders in FOLDERS.items()
    }
    assert found.keys() == planned_sizes.keys()
    assert all(size > 0 for size in found.values())
    assert sum(planned_sizes.values()) == pytest.approx(sum(found.values()), rel=0.3)
    for stage in ("targets", "student", "checkpoints"):
        near = pytest.approx(found[stage], rel=0.3, abs=HEADERS)
        assert planned_sizes[stage] == near, stage
    chunks = map(load_file, (tmp_path / "results/embeddings").glob("*/*/chunk-*"))
    values = sum(
        tensor.nbytes for chunk in chunks for name, tensor in chunk.items() if "values" in name
    )
    assert planned_sizes["embeddings"] == pytest.approx(values, rel=0.1)


def test_embeddings_in_half_the_bits_take_half_the_bytes(teacher: Path, tmp_path: Path) -> None:
    sizes = {
        dtype: planned(settings(tmp_path, teacher, teacher={"dtype": dtype}), tmp_path)["disk"][
            "stages"
        ]["embeddings"]
        for dtype in ("float32", "bfloat16")
    }
    assert sizes["float32"] == pytest.approx(2 * sizes["bfloat16"], abs=2)


def test_a_loras_additions_lie_there_three_times(teacher: Path, tmp_path: Path) -> None:
    """In float32 in the untrained student, in the trained one and beside the pipeline."""
    sizes, learned = [], []
    for rank in (2, 4):
        student = {"steps": 2, "init": "lora", "lora": {"rank": rank}}
        plan = planned(settings(tmp_path, teacher, student=student), tmp_path)
        sizes.append(plan["disk"]["stages"]["student"])
        learned.append(plan["student"]["trained_parameters"])
    assert learned[1] == 2 * learned[0] > 0
    assert sizes[1] - sizes[0] == (learned[1] - learned[0]) * 4 * 3


def training(**changes: Any) -> Training:
    return Training(**(tiny.TRAINING | {"phases": phases(stored=80)} | changes))


def test_a_checkpoint_holds_weights_moments_and_the_average() -> None:
    assert checkpoint_bytes(training(ema_half_life_samples=0), 100) == 100 * 12
    assert checkpoint_bytes(training(ema_half_life_samples=8), 100) == 100 * 16
    online = phases(online={"samples": 80, "distribution_matching": {"weight": 0.1}})
    assert checkpoint_bytes(training(ema_half_life_samples=8, phases=online), 100) == 100 * 28


def saved(chosen: Training) -> tuple[int, int]:
    """Checkpoints at the end and at the most at once, by walking over all updates of all jobs."""
    rounds = chosen.round_numbers
    ends = [32, 48] if rounds else []
    folders, most, begin = list[list[int]](), 0, 0
    for end in [*ends, 80 if not rounds else 64]:
        folders.append([])
        for seen in range(begin + 8, end + 1, 8):
            if seen % chosen.save_every_samples == 0 or seen == end:
                folders[-1].append(seen)
                most = max(most, sum(map(len, folders)))
                folders[-1] = folders[-1][-chosen.keep_checkpoints :]
        begin = end
    return sum(map(len, folders)), most


@pytest.mark.parametrize("keep", [1, 2, 9])
@pytest.mark.parametrize("every", [8, 16, 24, 40, 80, 160])
def test_each_job_of_a_training_keeps_its_own_checkpoints(every: int, keep: int) -> None:
    """Those before rounds end after 32 and 48 of 64 samples, in folders of their own."""
    cadence = {"save_every_samples": every, "keep_checkpoints": keep}
    for changes in ({}, {"phases": phases(stored=32, rounds={"count": 2, "samples": 16})}):
        chosen = training(**cadence, **changes)
        assert num_checkpoints(chosen) == saved(chosen)


def test_the_sum_is_compared_with_what_is_free_and_there(tmp_path: Path) -> None:
    run = RunFolder(tmp_path)
    embeddings = Store("embeddings", "embeddings", 600, 1000, "take fewer")
    targets = Store("targets", "targets", 50, 0, "lower targets")
    small = embeddings, targets, Store("checkpoints", "training", 7, 0, "keep fewer")
    found = plan_disk(small, run)
    assert (found["planned_bytes"], found["present_bytes"]) == (657, 600)
    large = embeddings, targets, Store("checkpoints", "training", 10**18, 0, "keep fewer", 10**18)
    (no,) = map(str, on_disk(large, plan_disk(large, run), run))
    assert re.match(r"the run needs 1862645149 GiB of disk \(.*checkpoints 9", no)
    assert not list(on_disk(small, found, run))
    assert "free some space, keep fewer, or" in no
    assert re.search(r"has \d+(\.\d)? GiB free and holds 0.6 KiB of it", no)


@pytest.mark.parametrize(
    ("num_bytes", "text"),
    [
        (0, "0.0 KiB"),
        (2000, "2.0 KiB"),
        (49_545_216, "47.2 MiB"),
        (2**30, "1.0 GiB"),
        (200 * 2**30, "200 GiB"),
    ],
)
def test_sizes_are_readable(num_bytes: int, text: str) -> None:
    assert readable(num_bytes) == text
