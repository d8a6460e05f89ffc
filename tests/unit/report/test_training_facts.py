"""What the report says of a training, against hand counts of its telemetry."""

import numpy as np
import pandas as pd
import pytest
from PIL import Image, PngImagePlugin

from distillery.report.image_grid import gather_previews
from distillery.report.training_facts import gather_training
from distillery.run_folder import RunFolder
from distillery.telemetry import Event

GIB = 1 << 30


def event(kind, job, begin_s, end_s, num_items=0, **facts):
    return Event(kind, "training", job, "cpu", "host", begin_s, end_s, num_items, facts)


def work(job, seen, begin_s, end_s, recipe="ours", memory=GIB, **facts):
    facts = {"samples_seen": seen, "recipe": recipe, "peak_memory_bytes": memory} | facts
    return event("work", job, begin_s, end_s, 32, **facts)


def alarm(seen, recipe="ours"):
    return event(
        "alarm", "training", 5, 5, name="loss_growth", subject="segment 1", value=3.0,
        threshold=2.0,
        meaning="it grows", advice="do less", samples_seen=seen, recipe=recipe,
    )  # fmt: skip


def test_speed_is_of_all_ranks_without_drawing():
    events = [
        work("training", 64, 0, 4, drawing_s=2.0),
        work("training-rank-1", 64, 0, 3, drawing_s=2.0),
    ]
    facts = gather_training(events, ["ours"])
    assert facts.speed == [(64, 32.0)]


def test_an_interval_that_was_trained_again_counts_once_as_the_last_time():
    events = [
        work("training", 64, 0, 1),
        work("training", 64, 10, 14),
        work("training", 128, 14, 16),
    ]
    assert gather_training(events, ["ours"]).speed == [(64, 8.0), (128, 16.0)]


def test_each_rank_has_its_peak_memory_and_its_waiting():
    events = [
        work("training-rank-10", 64, 0, 4),
        work("training", 64, 0, 4, waiting_s=1.0),
        work("training-rank-2", 64, 0, 4, memory=2 * GIB),
        work("training", 128, 4, 8, memory=3 * GIB),
    ]
    processes = gather_training(events, ["ours"]).processes
    assert [process.rank for process in processes] == [0, 2, 10]
    assert [process.peak_memory_bytes // GIB for process in processes] == [3, 2, 1]
    assert processes[0].waiting_share == pytest.approx(1 / 8)


def test_saves_are_a_share_of_the_trainings_time():
    saves = [
        event("save", "training", at, at + 1, stall_s=stall) for at, stall in ((4, 0.1), (8, 0.3))
    ]
    facts = gather_training(
        [work("training", 64, 0, 4), work("training", 128, 4, 8), *saves], ["ours"]
    )
    assert (facts.saves.number, facts.saves.longest_stall_s) == (2, 0.3)
    assert facts.saves.share == pytest.approx(0.4 / 8)


def test_alarms_of_this_training_are_told_once():
    events = [work("training", 64, 0, 4), alarm(64), alarm(64), alarm(64, recipe="theirs")]
    (found,) = gather_training(events, ["ours"]).alarms
    assert found.title == "loss growth, segment 1"


def test_what_earlier_trainings_did_belongs_to_the_one_that_took_them_up():
    events = [
        work("training-0-rounds", 32, 0, 1, recipe="first"),
        work("training-0-rounds", 64, 1, 2, recipe="first"),
        work("training-1-rounds", 96, 2, 4, recipe="second"),
        work("training-1-rounds-rank-1", 96, 2, 4, recipe="second"),
        alarm(64, recipe="first"),
        event("save", "training-0-rounds", 2, 2, stall_s=0.6),
        work("training", 128, 4, 6),
    ]
    facts = gather_training(events, ["ours", "second", "first"])
    assert facts.speed == [(32, 32.0), (64, 32.0), (96, 32.0), (128, 16.0)]
    assert [process.rank for process in facts.processes] == [0, 1]
    assert facts.taken_up == [64, 96]
    assert facts.saves.share == pytest.approx(0.6 / 6)
    assert len(facts.alarms) == 1
    again = [work("training", seen, 10, 11) for seen in (32, 64, 96)]
    again.append(work("training-rank-1", 96, 10, 11))
    assert gather_training([*events, *again], ["ours", "second", "first"]).taken_up == []


def test_another_training_or_none_has_nothing_to_tell():
    assert gather_training([work("training", 64, 0, 4, recipe="theirs")], ["ours"]) is None
    assert gather_training([work("training", 64, 0, 4)], []) is None


def write_preview(path, training, prompt=""):
    path.parent.mkdir(parents=True, exist_ok=True)
    text = PngImagePlugin.PngInfo()
    text.add_text("training", training)
    text.add_text("prompt", prompt)
    Image.fromarray(np.zeros((4, 4, 3), np.uint8)).save(path, pnginfo=text)


def test_images_of_an_earlier_text_are_not_shown_under_the_new_one(tmp_path):
    (tmp_path / "prompts").mkdir()
    table = pd.DataFrame({"prompt_id": ["a", "b"], "prompt": ["one", "a very large two"]})
    table.to_parquet(tmp_path / "prompts/eval.parquet")
    for name, prompt in (("a", "one"), ("b", "two")):
        path = tmp_path / f"student/previews/samples-000000000000/{name}.png"
        write_preview(path, "ours", prompt)
    sheet = gather_previews(RunFolder(tmp_path), ["ours"], None, tmp_path / "report")
    assert [prompt for prompt, *_ in sheet.rows] == ["one"]


def test_whole_moments_of_this_training_are_shown_with_the_teachers_image(tmp_path):
    (tmp_path / "prompts").mkdir()
    table = pd.DataFrame({"prompt_id": ["a", "b", "c"], "prompt": ["one", "two", "three"]})
    table.to_parquet(tmp_path / "prompts/eval.parquet")
    previews = tmp_path / "student/previews"
    for seen, ids, training in ((0, "ab", "ours"), (8, "a", "ours"), (16, "ab", "theirs")):
        for name in ids:
            prompt = {"a": "one", "b": "two"}[name]
            write_preview(previews / f"samples-{seen:012d}/{name}.png", training, prompt)
    write_preview(tmp_path / "samples/teacher/a/0.png", "")
    sheet = gather_previews(RunFolder(tmp_path), ["ours"], "teacher", tmp_path / "report")
    assert sheet.moments == [0]
    assert [prompt for prompt, *_ in sheet.rows] == ["one", "two"]
    assert [last is not None for *_, last in sheet.rows] == [True, False]
    assert sheet.rows[0][1][0].link == "../student/previews/samples-000000000000/a.png"
    both = gather_previews(RunFolder(tmp_path), ["ours", "theirs"], None, tmp_path / "report")
    assert both.moments == [0, 16]
    assert (
        gather_previews(RunFolder(tmp_path), ["nobody's"], "teacher", tmp_path / "report") is None
    )
