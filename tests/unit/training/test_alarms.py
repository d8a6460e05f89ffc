"""Alarms: each rings on a real collapse, once, and none on a healthy student."""

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch

import in_process
import runs
import tiny
from distillery.config.jobs import TrainingJob, read_job
from distillery.config.training import Training
from distillery.files import read_sealed, write_json
from distillery.student.build import build_student
from distillery.telemetry import Reporter, read_events
from distillery.training.data import SegmentDataset
from distillery.training.watchers import alarms, variation
from distillery.training.watchers.alarms import (
    Alarms,
    Course,
    LossJudge,
    Variation,
    judge_image,
    judge_variation,
)
from distillery.training.watchers.variation import (
    CollapseProbe,
    constant_baseline_losses,
    prompt_variation,
    state_variation,
)
from training_phases import phases

REPOSITORY = Path(__file__).parents[3]
STEPS = 4


def rows(*losses, every=512):
    """A history of equal losses in all segments."""
    return [
        {"samples_seen": every * number, "loss": loss}
        | {f"loss_segment_{segment}": loss for segment in range(STEPS)}
        for number, loss in enumerate(losses, 1)
    ]


def names(found):
    return {(alarm.name, alarm.subject) for alarm in found}


def judge_losses(history, baseline=1.0, num_samples=100_000):
    judge = LossJudge([baseline] * STEPS, 512, num_samples)
    for row in history:
        judge.add(row)
    return judge.judge()


def judge(*given, **settings):
    return names(judge_losses(*given, **settings))


def growth(losses, size):
    course = Course(size)
    for loss in losses:
        course.add(loss)
    return course.growth


# ---- loss --------------------------------------------------------------------------------------


def test_a_falling_loss_is_no_alarm():
    noisy = [0.1 * 0.95**number * (1.15 if number % 2 else 0.85) for number in range(40)]
    assert all(judge(rows(*noisy[:count])) == set() for count in range(1, 41))


def test_a_loss_that_jumps_is_a_spike():
    assert judge(rows(0.1, 0.1, 0.1, 0.1, 0.6)) >= {("loss_spike", "")}
    assert ("loss_spike", "") not in judge(rows(0.1, 0.1, 0.1, 0.1, 0.4))
    assert ("loss_spike", "") not in judge(rows(0.1, 0.1, 0.1, 0.6)), "three rows say too little"


def test_a_growing_loss_is_told_by_segment():
    history = rows(0.1, 0.1, 0.1)
    history[-1]["loss_segment_2"] = 0.25
    found = judge_losses(history)
    assert names(found) == {("loss_growth", "segment 2")}
    assert "while 3 other segments hold" in found[0].text


def test_the_first_rollouts_are_held_against_no_segments():
    nan = float("nan")
    segments = [row | {"loss_rollout": nan} for row in rows(*[0.1] * 5)]
    no_segments = {f"loss_segment_{segment}": nan for segment in range(STEPS)}
    later = [row | no_segments for row in rows(*[0.1] * 5, 0.9, 0.9, 0.9, 0.9, 9.0)[5:]]
    rollouts = [row | {"loss_rollout": row["loss"]} for row in later]
    assert judge([*segments, *rollouts[:4]]) == set()
    assert ("loss_spike", "") in judge([*segments, *rollouts])


def test_a_finish_is_held_against_itself():
    """Its first losses are of other states, at a learning rate that begins anew."""
    history = rows(*[0.1] * 5, *[0.3] * 4, 0.9)
    finishing = LossJudge([1.0] * STEPS, 512, 100_000, restarts=[5 * 512])
    for row in history[:9]:
        finishing.add(row)
        assert finishing.judge() == []
    finishing.add(history[9])
    assert ("loss_growth", "") in names(finishing.judge())
    assert ("loss_growth", "") in judge(history[:7])


@pytest.mark.parametrize(
    ("heads", "alarm"),
    [(1.0, None), (0.1, "heads_always_right"), (1.386, "heads_guess"), (0.15, None), (1.36, None)],
)
def test_heads_that_teach_nothing_are_named(heads, alarm):
    history = [row | {"loss_heads": float("nan")} for row in rows(*[0.1] * 5)]
    history += [row | {"loss_heads": heads} for row in rows(*[0.1] * 9)[5:]]
    assert judge(history[:6]) == set(), "one window says too little"
    assert judge(history) == ({(alarm, "")} if alarm else set())


def test_growth_takes_means_over_enough_samples():
    assert growth([1.0, 1.0, 1.0, 9.0], 2) == 5.0
    assert np.isnan(growth([1.0, 9.0, 9.0], 2))
    assert growth([1.0, float("nan"), 3.0], 1) == 3.0


def test_no_better_than_one_answer_to_everything_after_a_quarter():
    history = rows(0.95, 0.95)
    assert judge(history, num_samples=100_000) == set()
    assert judge(history, num_samples=2048) == {("no_better_than_constant", "all segments")}
    history[-1]["loss_segment_1"] = 0.5
    segments = {("no_better_than_constant", f"segment {number}") for number in (0, 2, 3)}
    assert judge(history, num_samples=2048) == segments
    assert judge(rows(0.85, 0.85), num_samples=2048) == set()


# ---- variation ---------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def dataset(data):
    return in_process.open_dataset(data, STEPS)


def test_a_perfect_student_varies_as_its_targets_do(dataset):
    """Answers that are right for the state whatever the prompt, and the other way round."""
    probe = CollapseProbe.of(dataset)
    by_state = probe.last.target.unsqueeze(1).expand(-1, 2, *probe.last.target.shape[1:])
    assert state_variation(by_state, probe.last, dataset) == pytest.approx(1.0)
    clean = probe.first.noisy - probe.first.target
    by_prompt = probe.first.noisy[:2].unsqueeze(1) - clean.unsqueeze(0)
    assert prompt_variation(by_prompt, probe.first, dataset) == pytest.approx(1.0, rel=1e-3)


def test_a_constant_output_and_a_constant_image_vary_with_no_state(dataset):
    last = CollapseProbe.of(dataset).last
    constant = last.target[:1].unsqueeze(1).expand(len(last.items), 2, *last.target.shape[1:])
    assert state_variation(constant, last, dataset) == 0
    sigma = dataset.usual.grid.sigmas[-2]
    image = last.noisy[:1] - sigma * last.target[:1]
    same = ((last.noisy - image) / sigma).unsqueeze(1).expand_as(constant)
    assert state_variation(same, last, dataset) == pytest.approx(0, abs=1e-6)


def test_an_answer_without_the_prompt_has_no_variation_over_prompts(dataset):
    first = CollapseProbe.of(dataset).first
    blind = first.target[:2].unsqueeze(1).expand(-1, 4, *first.target.shape[1:])
    assert prompt_variation(blind, first, dataset) == 0
    assert names(judge_variation(Variation(1.0, 0.0))) == {("prompt_ignored", "")}
    assert names(judge_variation(Variation(0.0, 1.0))) == {("state_ignored", "")}
    assert judge_variation(Variation(0.2, None)) == []


def test_answers_that_are_not_finite_are_an_alarm():
    assert len(judge_variation(Variation(float("nan"), float("nan")))) == 2


def test_the_ignorant_students_loss_by_hand(dataset):
    """In a flow at sigma the same image loses var(clean) / sigma², a constant var(target)."""
    training = Training(phases=phases(stored=8), global_batch_size=8)
    found = constant_baseline_losses(dataset, training)
    for segment in range(STEPS):
        items = range(segment, dataset.num_items, STEPS)
        batch = dataset.__getitems__(list(items))
        sigma = dataset.usual.grid.sigmas[segment]
        clean = batch.noisy - sigma * batch.target
        same = clean.var(0, correction=0).mean() / sigma**2
        constant = batch.target.var(0, correction=0).mean()
        assert found[segment] == pytest.approx(float(min(same, constant)), rel=1e-4)


def test_ignorant_losses_are_of_the_trainings_own_loss(dataset):
    training = Training(phases=phases(stored=8), global_batch_size=8, loss="huber", huber_width=0.1)
    assert max(constant_baseline_losses(dataset, training)) < 0.2


# ---- images ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("image", "kind"),
    [
        (np.zeros((8, 8, 3), np.uint8), "black, or not finite"),
        (np.full((8, 8, 3), (200, 30, 90), np.uint8), "of one colour"),
    ],
)
def test_an_image_without_anything_on_it(image, kind):
    (found,) = judge_image("p0", image)
    assert (found.name, found.subject) == ("solid_image", "p0")
    assert kind in found.text
    image[:4] = 255 - image[:4]
    assert judge_image("p0", image) == []


# ---- telling -----------------------------------------------------------------------------------


def test_an_alarm_is_told_when_it_begins_and_again_after_it_ended(tmp_path, caplog):
    told = Alarms(Reporter(tmp_path, "training", "training", "cpu"), "recipe")
    found = judge_variation(Variation(1.0, 0.0))
    for measured in (found, found, [], found):
        told.tell(alarms.VARIATION_ALARMS, measured, 64)
    events = [event for event in read_events(tmp_path) if event.kind == "alarm"]
    assert [event.facts["name"] for event in events] == ["prompt_ignored"] * 2
    assert events[0].facts["samples_seen"] == 64
    assert events[0].facts["threshold"] == alarms.MIN_VARIATION
    assert caplog.text.count("prompt_ignored: 0, threshold 0.02: with one noise") == 2


def test_a_measurement_ends_no_alarm_that_it_could_not_find(tmp_path):
    told = Alarms(Reporter(tmp_path, "training", "training", "cpu"), "recipe")
    solid = judge_image("p0", np.zeros((2, 2, 3), np.uint8))
    assert len(told.tell(alarms.IMAGE_ALARMS, solid, 8, "p0")) == 1
    assert told.tell(alarms.LOSS_ALARMS, [], 8) == []
    assert told.tell(alarms.IMAGE_ALARMS, [], 8, "p1") == []
    assert told.tell(alarms.IMAGE_ALARMS, solid, 16, "p0") == []


# ---- real trainings ----------------------------------------------------------------------------


def train(data, output, **settings):
    assert in_process.train(data, output, **settings) == 0
    return rung(output)


def rung(output):
    return {
        (event.facts["name"], event.facts["subject"])
        for event in read_events(output / "telemetry")
        if event.kind == "alarm"
    }


def test_a_training_that_diverges_after_its_warm_up_rings(data, tmp_path):
    settings = {"global_batch_size": 64, "log_every_samples": 128, "save_every_samples": 2048}
    settings |= {"phases": phases(stored=2048), "warmup_samples": 2048}
    found = train(data, tmp_path, learning_rate=3.0, **settings)
    assert ("loss_growth", "") in found
    log = (tmp_path / "logs/training.log").read_text()
    assert "WARNING" in log
    assert "lower training.learning_rate" in log


@pytest.fixture(scope="module")
def demo(tmp_path_factory):
    """Trajectories of the demo's teacher, which is a real one."""
    folder = tmp_path_factory.mktemp("demo")
    teacher = {"height": 96, "width": 96, "max_sequence_length": 32, "negative_prompt": ""}
    prompts = pd.read_csv(REPOSITORY / "config/prompts/demo-train.csv").head(16)
    run = runs.make_run(
        folder,
        REPOSITORY / "resources/demo/teacher",
        teacher=teacher,
        targets={"steps": 8, "num_segments": 4, "batch_size": 16, "chunk_size": 16},
        student={"steps": 4},
    )
    prompts.to_csv(folder / "train.csv", index=False)
    run.encode("train")
    run.all_targets()
    build_student(run.job("training", TrainingJob), run.folder / "student/initial")
    return run.folder


@pytest.mark.parametrize(
    ("num_samples", "expected"), [(64, set()), (512, {"loss_spike", "loss_growth"})]
)
def test_a_last_row_of_few_samples_rings_nothing(data, dataset, tmp_path, num_samples, expected):
    """What remains of a training after its last whole row: the mean of a few losses jumps."""
    tiny.write_training_job(tmp_path, log_every_samples=512, phases=phases(stored=100_000))
    history = rows(*[0.1] * 6)
    history[-1] |= {"samples_seen": history[-2]["samples_seen"] + num_samples, "loss": 0.6}
    state = SimpleNamespace(
        denoiser=torch.nn.Linear(1, 1), history=history, samples_seen=history[-1]["samples_seen"]
    )
    run = SimpleNamespace(
        reporter=Reporter(tmp_path, "training", "training", "cpu"),
        recipe_hash="recipe",
        training=read_job(tmp_path / "config/training.json", TrainingJob).training,
        dataset=dataset,
    )
    found = variation.AlarmWatcher(state, run)._look_at_losses()
    assert {alarm.name for alarm in found} == expected


def train_demo(demo, output, learning_rate=2e-4):
    """The names of the alarms that ring in a training of the demo's student."""
    job = read_sealed(demo / "config/training.json")
    job["training"] |= {
        "phases": phases(stored=192), "global_batch_size": 32, "learning_rate": learning_rate,
        "log_every_samples": 64, "save_every_samples": 192,
    }  # fmt: skip
    write_json(output / "config/training.json", job)
    assert in_process.run_script(tiny.train_arguments(demo, output)) == 0
    return {name for name, _ in rung(output)}


@pytest.mark.slow
def test_the_demos_student_learns_and_nothing_rings(demo, tmp_path):
    assert train_demo(demo, tmp_path) == set()


@pytest.mark.slow
def test_the_demos_student_collapses(demo, tmp_path):
    assert train_demo(demo, tmp_path, 0.05) >= {"no_better_than_constant", "state_ignored"}


@pytest.mark.slow
def test_targets_of_other_trajectories_ring(demo, tmp_path, monkeypatch):
    real = SegmentDataset.__getitems__

    def shuffled(self, items):
        count = self.num_items // STEPS
        others = [
            (item // STEPS + 1 + number % (count - 1)) % count * STEPS + item % STEPS
            for number, item in enumerate(items)
        ]
        batch, other = real(self, items), real(self, others)
        return replace(batch, target=other.target)

    monkeypatch.setattr(SegmentDataset, "__getitems__", shuffled)
    assert "no_better_than_constant" in train_demo(demo, tmp_path)


@pytest.mark.slow
def test_embeddings_that_are_all_equal_ring(demo, tmp_path, monkeypatch):
    real = SegmentDataset.__getitems__

    def zeroed(self, items):
        batch = real(self, items)
        zero = {name: torch.zeros_like(value) for name, value in batch.conditioning.items()}
        return replace(batch, conditioning=zero)

    monkeypatch.setattr(SegmentDataset, "__getitems__", zeroed)
    assert "prompt_ignored" in train_demo(demo, tmp_path)


def test_looking_changes_no_byte_of_the_training(data, tmp_path, monkeypatch):
    train(data, tmp_path / "watched")
    monkeypatch.setattr(variation.AlarmWatcher, "look", lambda _: ([], None))
    train(data, tmp_path / "alone")
    ours, theirs = (
        {path.name: path.read_bytes() for path in (tmp_path / name / "student/trained").iterdir()}
        for name in ("watched", "alone")
    )
    assert ours == theirs
    assert len(ours) == 3


def test_probes_take_their_share_of_the_time_and_no_more(data, tmp_path, monkeypatch):
    monkeypatch.setattr(variation, "MAX_SHARE", 0.0)
    monkeypatch.setattr(CollapseProbe, "measure", lambda *_: calls.append(1) or Variation(1.0, 1.0))
    calls = []
    train(data, tmp_path)
    assert len(calls) == 2  # the first row and the last of eight
    assert json.loads((tmp_path / "telemetry/training.jsonl").read_text().splitlines()[-1])
