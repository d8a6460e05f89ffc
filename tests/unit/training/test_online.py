"""Online targets: the student walks by its own steps, the teacher says where to go from there."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from pydantic import ValidationError
from safetensors.torch import load_file

from distillery.config.jobs import TrainingJob
from distillery.config.training import Training
from distillery.config.ways import Online, Stored
from distillery.generation.teacher_walk import check_steps
from distillery.schedule import add_noise, from_prediction
from distillery.training.batch import Batch, rows
from distillery.training.batches import Batches
from distillery.training.data import SegmentDataset
from distillery.training.distributed import RankInfo
from distillery.training.health import Watchdog
from distillery.training.loop import train
from distillery.training.run import training_recipe
from distillery.training.target_teacher import OwnTeacher
from distillery.training.watchers.variation import constant_baseline_losses
from distillery.training.ways.online import OnlineDataset, load_target_teacher
from runs import CPU, Run
from training_phases import phases

STEPS = 4
WEIGHTS = "diffusion_pytorch_model.safetensors"
TRAINING = {"phases": phases(online=32), "global_batch_size": 8, "learning_rate": 1e-3}
EULER_FLOW = {"class": "FlowMatchEulerDiscreteScheduler", "shift": 3.0}
OF_WAN = {"scheduler": EULER_FLOW}  # of first order
SECTIONS = {
    "targets": {"steps": 8, "num_segments": STEPS, "samples_per_prompt": 2},
    "student": {"steps": STEPS},
    "training": TRAINING,
}


def dataset_of(run: Run, kind: type[SegmentDataset] = OnlineDataset) -> Any:
    files = run.files
    return kind(files.targets, files.embeddings("train"), files.prompts("train"), STEPS)


@pytest.fixture(scope="module")
def dataset(run: Run) -> OnlineDataset:
    return with_teacher(run)


@pytest.fixture(scope="module")
def dataset_of_each(each: Run) -> OnlineDataset:
    return with_teacher(each)


def with_teacher(run: Run) -> OnlineDataset:
    found: OnlineDataset = dataset_of(run)
    job = run.job("training", TrainingJob)
    batches = Batches(found, job.training, 0, RankInfo())
    found.teacher = load_target_teacher(
        job, found, run.training_paths(run.folder), batches, "every_rank", CPU, Watchdog(0, 0)
    )
    return found


def test_a_student_that_follows_the_teacher_gets_the_stored_targets(
    each: Run, dataset_of_each: OnlineDataset
) -> None:
    """Its steps are then the secants, so it stands on the teacher's states. First-order teacher."""
    dataset, stored = dataset_of_each, dataset_of(each, SegmentDataset)
    items = list(range(3 * STEPS))
    expected = stored.__getitems__(items)

    def perfect(batch: Batch) -> torch.Tensor:
        step = dataset.usual.grid.timesteps.index(float(batch.timestep[0]))
        own = [item - dataset.first_visited for item in batch.items]
        return stored.__getitems__([item // STEPS * STEPS + step for item in own]).target

    online = dataset.__getitems__([dataset.first_visited + item for item in items])
    assert online.is_online
    assert not expected.is_online
    found = dataset.with_targets(online, perfect, size=5)
    torch.testing.assert_close(found.noisy, expected.noisy, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(found.target, expected.target, rtol=1e-3, atol=1e-3)
    assert found.timestep.equal(expected.timestep)
    assert found.weight.equal(expected.weight)


def test_another_student_stands_elsewhere_and_the_target_leads_on_from_there(
    dataset_of_each: OnlineDataset,
) -> None:
    dataset = dataset_of_each
    items = [dataset.first_visited + item for item in range(STEPS)]

    def lost(batch: Batch) -> torch.Tensor:
        return 0.3 * batch.noisy

    online = dataset.__getitems__(items)
    found = dataset.with_targets(online, lost, size=8)
    assert found.noisy[0].equal(online.noisy[0]), "the first step begins at the noise"
    grid, kind = dataset.usual.grid, dataset.recipe.prediction_type
    noisy = online.noisy[:1]
    for step in range(STEPS):
        torch.testing.assert_close(found.noisy[step], noisy[0], rtol=1e-5, atol=1e-5)
        level = (torch.tensor(grid.alphas[step]), torch.tensor(grid.sigmas[step]))
        beyond = (torch.tensor(grid.alphas[step + 1]), torch.tensor(grid.sigmas[step + 1]))
        clean, noise = from_prediction(kind, found.target[step : step + 1], noisy, *level)
        row = dataset._trajectories.prompt_row(0)
        ends = dataset.teacher.walk.advance(noisy * grid.scales[step], step, [row])  # type: ignore[attr-defined]
        landed = add_noise(clean, noise, *beyond) * grid.scales[step + 1]
        torch.testing.assert_close(landed, ends, rtol=1e-4, atol=1e-4)
        clean, noise = from_prediction(kind, 0.3 * noisy, noisy, *level)
        noisy = add_noise(clean, noise, *beyond)


class Recording:
    """A teacher that adds each row's number, and notes what it was called with."""

    def __init__(self) -> None:
        self.calls: list[tuple[int, list[int]]] = []

    def advance(self, states: torch.Tensor, segment: int, rows: Sequence[int]) -> torch.Tensor:
        self.calls.append((segment, list(rows)))
        return states + torch.tensor(rows).view(-1, 1) + 100 * segment


def test_each_state_gets_the_answer_of_its_own_prompt_and_segment() -> None:
    walk = Recording()
    states, segments, prompts = torch.arange(5.0).view(-1, 1), [1, 0, 1, 1, 0], [7, 8, 9, 7, 6]
    ends = OwnTeacher(walk, 2).advance(states, segments, prompts)  # type: ignore[arg-type]
    assert ends.flatten().tolist() == [107, 9, 111, 110, 10]
    assert walk.calls == [(0, [8, 6]), (1, [7, 9]), (1, [7])]


def test_a_finish_goes_on_in_the_stream_and_rollouts_follow(dataset: OnlineDataset) -> None:
    training = Training(
        phases=phases(stored=16, online=16, rollouts=8),
        global_batch_size=8,
    )
    ranks = RankInfo()
    updates = list(Batches(dataset, training, 0, ranks).positions(0))
    all_stored = Training(phases=phases(stored=40), global_batch_size=8)
    stored = list(Batches(dataset, all_stored, 0, ranks).positions(0))
    assert updates[:2] == stored[:2]
    first = dataset.first_visited
    assert updates[2:4] == [[first + item for item in batch] for batch in stored[2:4]]
    assert all(dataset.first_rollout <= item < first for item in updates[4])
    assert "(online)" in dataset.name(updates[2][0])
    assert dataset.sample(updates[2][0]) == dataset.sample(stored[2][0])


def test_parts_of_a_batch_stay_online(dataset: OnlineDataset) -> None:
    batch = dataset.__getitems__([dataset.first_visited + item for item in (5, 2, 7)])
    part = rows(batch, [2, 0])
    assert part.is_online
    assert part.items == [batch.items[2], batch.items[0]]
    assert part.noisy.equal(batch.noisy[[2, 0]])


def test_without_stored_trajectories_it_learns_the_same(run: Run, tmp_path: Path) -> None:
    """From noise that is drawn again; the alarms measure by trajectories that are walked again."""
    learned = {}
    for name, targets in (("stored", run.files.targets), ("drawn", None)):
        paths = replace(run.training_paths(tmp_path / name), targets=targets)
        opened = run.open_training(run.job("training", TrainingJob), paths)
        baseline = constant_baseline_losses(opened.dataset, opened.training)
        assert train(opened, paths)
        learned[name] = load_file(paths.trained / WEIGHTS), baseline, opened.recipe_hash
    (ours, baseline, recipe), (theirs, expected, same) = learned["drawn"], learned["stored"]
    assert recipe == same
    torch.testing.assert_close(ours, theirs, rtol=0, atol=0)
    torch.testing.assert_close(baseline, expected, rtol=1e-4, atol=1e-5)


def test_stored_trajectories_that_are_missing_are_asked_for(run: Run) -> None:
    job = run.job("training", TrainingJob).model_copy(update={"targets": None})
    paths = replace(run.training_paths(run.folder), targets=None)
    with pytest.raises(ValueError, match="there are no --targets, and this training learns"):
        run.open_training(job, paths)


def test_stored_recipes_are_those_of_before(dataset: OnlineDataset, run: Run) -> None:
    job = run.job("training", TrainingJob)
    plain = Training(phases=phases(stored=32), global_batch_size=8)
    stored = training_recipe(job.model_copy(update={"training": plain}), dataset, "x")
    assert not {"targets", "finish_samples", "online_steps"} & stored.training.keys()
    online = [
        training_recipe(job.model_copy(update={"training": training}), dataset, "x").hash
        for training in (
            plain.model_copy(update={"phases": (Online(samples=32),)}),
            plain.model_copy(update={"phases": (Stored(samples=24), Online(samples=8))}),
            plain.model_copy(update={"phases": (Online(samples=32, steps=1),)}),
        )
    ]
    assert len({stored.hash, *online}) == 4


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"teacher_rank": 1}, "only one_rank puts the teacher on one process"),
        ({"objective": "direct"}, "use objective: segment, or leave online out"),
        ({"parallel": "fsdp"}, "a sharded student needs all for each"),
        ({"phases": phases(stored=32, online=12)}, r"phases\.1\.samples is 12, .* a multiple of 8"),
        ({"phases": phases(rollouts=8, online=8)}, "rollouts, online: write them in the order"),
    ],
)
def test_what_does_not_go_together_is_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        Training(**{"phases": phases(online=32), "global_batch_size": 8} | settings)


def test_steps_that_the_teacher_has_not_are_refused() -> None:
    assert check_steps(24, 4, None) == 6
    assert check_steps(24, 4, 3) == 3
    with pytest.raises(ValueError, match="use 1 or 2 or 3 or 6, or null for all"):
        check_steps(24, 4, 4)


def test_another_teacher_is_refused(run: Run, dataset: OnlineDataset) -> None:
    job = run.job("training", TrainingJob)
    dataset = replace_recipe(dataset_of(run), teacher="0" * 64)
    batches = Batches(dataset, job.training, 0, RankInfo())
    with pytest.raises(ValueError, match="is not the one that the targets were made with"):
        load_target_teacher(
            job, dataset, run.training_paths(run.folder), batches, "every_rank", CPU, Watchdog(0, 0)
        )


def replace_recipe(dataset: OnlineDataset, **changes: Any) -> OnlineDataset:
    dataset.recipe = dataset.recipe.model_copy(update=changes)
    return dataset
