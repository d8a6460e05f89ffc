"""Finishes of students whose low-rank additions alone learn."""

from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest

from distillery.config.jobs import TrainingJob
from distillery.config.training import Training
from distillery.training.loop import train
from runs import Run, make_run
from training_phases import phases

SIZE = {
    "phases": phases(stored=16), "global_batch_size": 8, "learning_rate": 1e-3,
    "log_every_samples": 8, "save_every_samples": 8,
}  # fmt: skip
FINISHES = {
    "loss_copy": phases(online={"samples": 16, "distribution_matching": {"updates": 1}}),
    "loss_heads": phases(adversarial=16),
}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory, teacher: Path) -> Run:
    """A one-step student in bfloat16."""
    made = make_run(
        tmp_path_factory.mktemp("lora"),
        teacher,
        targets={"steps": 4, "num_segments": 2},
        student={"steps": 1, "init": "lora", "lora": {"rank": 2}},
        training=SIZE,
    )
    return made.ready_to_train()


@pytest.mark.parametrize("column", FINISHES)
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_the_additions_learn_and_what_learns_beside_them_too(
    run: Run, tmp_path: Path, column: str, dtype: str
) -> None:
    job = run.job("training", TrainingJob)
    training = Training(**SIZE | {"phases": FINISHES[column], "dtype": dtype})
    paths = replace(run.training_paths(tmp_path), targets=run.files.targets)
    opened = run.open_training(job.model_copy(update={"training": training}), paths)
    assert train(opened, paths)
    assert (pd.read_parquet(paths.losses)[column] > 0).all()
