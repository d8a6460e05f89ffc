"""Rounds: which items a training takes, what it is the same as, and what it refuses."""

import shutil
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from pydantic import ValidationError
from safetensors.torch import load_file

from distillery.config.jobs import TrainingJob, freeze
from distillery.config.run import parse_config
from distillery.config.training import Training
from distillery.planning.disk import num_checkpoints
from distillery.store.chunks import DamagedChunkError
from distillery.training.batches import Batches
from distillery.training.distributed import RankInfo
from distillery.training.loop import train
from distillery.training.state import learning_rate_at
from distillery.training.ways.rounds import RoundsDataset, visited_segment
from runs import Run, make_run, settings
from training_phases import phases

STEPS = 4
WEIGHTS = "diffusion_pytorch_model.safetensors"
TRAINING: dict[str, Any] = {
    "phases": phases(stored=32, rounds={"count": 2, "samples": 16}),
    "global_batch_size": 8, "learning_rate": 1e-3, "save_every_samples": 8,
    "log_every_samples": 8, "dtype": "float32", "tf32": False,
}  # fmt: skip


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory, teacher: Path) -> Run:
    """A run whose two rounds are done; the last training is left to the tests."""
    made = make_run(
        tmp_path_factory.mktemp("rounds"),
        teacher,
        targets={"steps": 8, "num_segments": STEPS, "samples_per_prompt": 2},
        student={"steps": STEPS},
        training=TRAINING,
    )
    made.ready_to_train()
    for done in range(2):
        made.visited(done + 1, made.train_and_export_before(done + 1), num_shards=2)
    return made


def opened_in(run: Run, output: Path, **changes: Any) -> tuple[Any, Any]:
    return run.opened_with(output, TRAINING | changes)


def items_of(run: Any, ranks: RankInfo, begin: int = 0) -> list[list[int]]:
    batches = Batches(run.dataset, run.training, 0, ranks)
    return list(batches.positions(begin))


def test_half_of_each_batch_is_of_visited_states(run: Run, tmp_path: Path) -> None:
    opened, _ = opened_in(run, tmp_path)
    dataset = opened.dataset
    updates = items_of(opened, RankInfo())
    visited = [[item for item in items if item >= dataset.first_visited] for items in updates]
    assert [len(of_update) for of_update in visited] == [0] * 4 + [4] * 4
    rounds = [
        {(item - dataset.first_visited) // dataset.num_trajectories for item in of_update}
        for of_update in visited
    ]
    assert rounds[4:6] == [{0}, {0}]
    assert set().union(*rounds[6:]) == {0, 1}
    first = [item for of_update in visited[4:6] for item in of_update]
    assert len(set(first)) == len(first), "none comes again before all others came"


def test_trajectories_go_on_where_they_were_before_the_rounds(run: Run, tmp_path: Path) -> None:
    opened, _ = opened_in(run, tmp_path)
    without, _ = opened_in(run, tmp_path / "without", phases=phases(stored=64))
    known = [
        item
        for items in items_of(opened, RankInfo())
        for item in items
        if item < opened.dataset.first_visited
    ]
    expected = [item for items in items_of(without, RankInfo()) for item in items]
    assert known == expected[: len(known)]
    assert len(known) == 32 + 16


@pytest.mark.parametrize("num_ranks", [2, 3, 8])
def test_processes_share_what_one_takes(run: Run, tmp_path: Path, num_ranks: int) -> None:
    opened, _ = opened_in(run, tmp_path)
    parts = [items_of(opened, RankInfo(rank, num_ranks, 0)) for rank in range(num_ranks)]
    together = [list(chain.from_iterable(of_update)) for of_update in zip(*parts, strict=True)]
    assert together == items_of(opened, RankInfo())
    assert items_of(opened, RankInfo(), 40) == together[5:]


def test_every_step_but_the_first_is_visited() -> None:
    found = [visited_segment(0, 1, f"prompt-{n}/0", STEPS) for n in range(300)]
    counts = pd.Series(found).value_counts()
    assert sorted(counts.index) == [1, 2, 3]
    assert counts.min() > 70
    assert found != [visited_segment(0, 2, f"prompt-{n}/0", STEPS) for n in range(300)]


def test_shards_and_repairs_give_the_same_bytes(run: Run) -> None:
    folder = run.files.rounds / "1"
    manifest = run.files.visited(1).read_bytes()
    chunks = {path: path.read_bytes() for path in folder.rglob("chunk-*.safetensors")}
    assert len(chunks) == 2 * 5
    for path in chunks:
        if path.name.endswith(("1.safetensors", "3.safetensors")):
            path.write_bytes(path.read_bytes()[:-3])
    run.visited(1, run.files.student("0-rounds"), num_shards=3)
    assert run.files.visited(1).read_bytes() == manifest
    assert {path: path.read_bytes() for path in folder.rglob("chunk-*.safetensors")} == chunks


def test_it_ends_the_same_taken_up_or_in_one_piece(
    run: Run, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    found, losses = {}, {}
    checkpoints = tmp_path / "taken-up/student/checkpoints"
    shutil.copytree(run.files.checkpoints, checkpoints)
    for name in ("taken-up", "in-one-piece"):
        opened, paths = opened_in(run, tmp_path / name)
        assert train(opened, paths)
        found[name] = load_file(paths.trained / WEIGHTS)
        losses[name] = pd.read_parquet(paths.losses)
    assert caplog.text.count("stored trajectories, then 1 round of 16, half of them from") == 1
    kept, _ = num_checkpoints(Training(**TRAINING))
    assert len(list(checkpoints.glob("*/samples-*"))) == kept == 6, "as the plan of the disk says"
    assert losses["taken-up"]["loss"].equals(losses["in-one-piece"]["loss"])
    for name, value in found["taken-up"].items():
        assert value.equal(found["in-one-piece"][name])
    stored = load_file(run.files.student("trained-0-rounds") / WEIGHTS)
    assert any(not value.equal(stored[name]) for name, value in found["taken-up"].items())


def test_a_finish_comes_after_all_rounds(run: Run, tmp_path: Path) -> None:
    changes = {"phases": phases(stored=32, rounds={"count": 2, "samples": 16}, adversarial=16)}
    training = Training(**TRAINING | changes)
    assert [(span.begin, span.title) for span in training.spans] == [
        (0, ""), (32, "round 1"), (48, "round 2"), (64, "finish")
    ]  # fmt: skip
    assert training.restarts == [32, 48, 64]
    opened, paths = opened_in(run, tmp_path, **changes)
    assert [part.training.get("rounds", {}).get("count", 0) for part in opened.parts] == [2, 1, 0]
    assert train(opened, paths)
    assert pd.read_parquet(paths.losses)["loss_heads"].notna().tolist() == [False] * 8 + [True] * 2


def test_each_round_has_a_cosine_of_its_own() -> None:
    training = Training(**TRAINING)
    rates = [learning_rate_at(seen, training) for seen in range(0, 64, 8)]
    assert rates[:4] == sorted(rates[:4], reverse=True)
    assert rates[4] == rates[6] > rates[5] == rates[7]
    part = training.up_to_round(1)
    assert part.num_samples == 48
    assert [learning_rate_at(seen, part) for seen in range(0, 48, 8)] == rates[:6]


def test_a_store_of_other_trajectories_is_refused(run: Run, tmp_path: Path) -> None:
    shutil.copytree(run.files.rounds, tmp_path / "rounds")
    _, paths = opened_in(run, tmp_path)
    other = replace(paths, rounds=tmp_path / "rounds")
    chunk = min((tmp_path / "rounds/2").glob("*/chunk-*.safetensors"))
    chunk.unlink()
    with pytest.raises(DamagedChunkError, match=chunk.name):
        run.open_training(run.job("training", TrainingJob), other)
    files = run.files
    few = RoundsDataset(files.targets, files.embeddings("train"), files.prompts("train"), 2)
    with pytest.raises(ValueError, match="and a student of 4 steps, this training of"):
        few.add([files.visited(1)])
    with pytest.raises(ValueError, match="there are no --rounds"):
        run.open_training(run.job("training", TrainingJob), replace(paths, rounds=None))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"phases": phases(stored=8, rounds=8, online=8)}, "both learn from states"),
        ({"objective": "direct"}, "use objective: segment"),
        ({"phases": phases(stored=8, rounds=12)}, r"phases\.1\.samples is 12, .* of 8"),
        ({"phases": phases(rounds=16)}, "before it is sent out"),
        ({"phases": phases(rounds=16, stored=16)}, "rounds, stored: write them in the order"),
        (
            {"phases": phases(stored=8, rounds={"count": 0, "samples": 16})},
            "greater than or equal to 1",
        ),
    ],
)
def test_what_does_not_go_together_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        Training(**TRAINING | changes)


def test_a_student_of_one_step_has_nothing_to_visit(tmp_path: Path, teacher: Path) -> None:
    raw = settings(tmp_path, teacher, student={"steps": 1}, training=TRAINING)
    with pytest.raises(ValueError, match="the only state that a student of one step visits"):
        parse_config(raw, "tiny")


def test_one_more_round_leaves_those_before_it_as_they_are(run: Run) -> None:
    more = run.config.model_copy(
        update={
            "training": Training(
                **TRAINING | {"phases": phases(stored=32, rounds={"count": 3, "samples": 16})}
            )
        }
    )
    for stage in ("rounds", "training-0-rounds", "training-1-rounds"):
        assert freeze(more, stage) == freeze(run.config, stage)
    assert freeze(more, "training-2-rounds") == freeze(run.config, "training")
