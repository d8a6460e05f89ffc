"""What of a configuration lies on the disk, and what is made again because of which key."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from distillery.config.jobs import JOBS, freeze
from distillery.config.run import Config, parse_config
from distillery.files import read_json, write_json
from distillery.pipeline import STAGES
from distillery.planning import verify
from distillery.planning.first import write_frozen
from distillery.planning.plan import make_plan
from distillery.planning.there import Found, describe_changes, there_part
from runs import Run, make_run, settings
from training_phases import phases


@pytest.fixture(scope="module")
def done(teacher: Path, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A run with all but its scores, as the rules leave it: frozen configurations too."""
    run = make_run(tmp_path_factory.mktemp("there"), teacher)
    freeze_all(run)
    run.encode("train")
    run.encode("eval")
    run.all_targets()
    run.all_samples()
    run.train_and_export()
    return run


def freeze_all(run: Run) -> None:
    models = [f"samples-{name}" for name in run.config.samples.models]
    for stage in ["run", *JOBS.keys() - {"dataset", "rounds"}, *models]:
        write_frozen(freeze(run.config, stage), run.files.config(stage))


def found(run: Run, **changes: dict[str, Any]) -> dict[str, Found]:
    """What the plan finds for a configuration that is this run's but for `changes`."""
    raw = settings(run.folder.parent, Path(run.config.teacher.path), **changes)
    config = parse_config(raw, "tiny")
    make_plan(STAGES, config, run.files.plan)
    return {row["stage"]: Found(**row) for row in read_json(run.files.plan)["there"]}


def test_nothing_is_there_at_first(teacher: Path, tmp_path: Path) -> None:
    rows = found(make_run(tmp_path, teacher))
    assert all(row.done == 0 and row.why == "" for row in rows.values())
    assert there_part(rows.values()).notes == ("Nothing: this run begins.",)


def test_all_is_counted_and_reused(done: Run) -> None:
    rows = found(done)
    assert isinstance(done.config, Config)
    assert advice(done) == []
    assert {name: (row.done, row.of, row.unit) for name, row in rows.items()} == {
        "embeddings train": (3, 3, "chunk"),
        "embeddings eval": (2, 2, "chunk"),
        "targets": (3, 3, "chunk"),
        "student": (1, 1, "network"),
        "training": (8, 8, "sample"),
        "samples teacher": (5, 5, "image"),
        "samples student": (0, 5, "image"),
        "samples untrained": (0, 5, "image"),
    }
    (table,) = there_part(rows.values()).tables
    by_stage = {row[0]: row[-1] for row in table.rows}
    assert by_stage["targets"] == "reused"
    assert by_stage["samples student"] == "made"


def test_a_changed_key_of_the_targets_is_named_for_what_follows(done: Run) -> None:
    rows = found(done, targets={"guidance_scale": 2.0})
    assert rows["embeddings train"].done == 3
    assert (rows["targets"].done, rows["targets"].others) == (0, 3)
    why = "targets.guidance_scale is 2.0, was 3.0"
    assert rows["targets"].why == why
    assert rows["student"].done == 1, "it is built from the teacher alone"
    assert (rows["training"].done, rows["training"].why) == (0, why)
    assert rows["samples teacher"].why == why, "the key that the user changed"
    assert found(done)["targets"].done == 3, "chunks of a recipe that comes back are found again"


def test_a_changed_key_of_the_training_leaves_the_targets(done: Run) -> None:
    rows = found(done, training={"learning_rate": 0.5})
    assert rows["targets"].done == 3
    assert rows["training"].done == 0
    assert rows["training"].why.startswith("training.learning_rate is 0.5, was ")
    assert rows["samples teacher"].done == 5
    (table,) = there_part(rows.values()).tables
    text = {row[0]: row[-1] for row in table.rows}["training"]
    assert text.startswith("made again: training.learning_rate")


def test_the_users_own_key_of_a_models_samples_is_named(done: Run) -> None:
    """And none of the stage's frozen file, which holds one model's values alone."""
    models = {"teacher": {"source": "teacher", "guidance_scale": 5.0}}
    rows = found(done, samples={"models": models, "images_per_prompt": 2})
    told = rows["samples teacher"].why.split("; ")
    assert "samples.models.teacher.guidance_scale is 5.0, was 3.0" in told
    assert "samples.images_per_prompt is 2, was 1" in told


def test_changed_prompts_are_told_of_what_is_made_from_them(done: Run) -> None:
    """Chunks keep their names, so their numbers do not show it; images are named by prompts."""
    raw = settings(done.folder.parent, Path(done.config.teacher.path))
    source = Path(raw["prompts"]["eval"])
    text = source.read_text()
    source.write_text(text.replace("a red dog", "a blue dog on the hill", 1))
    make_plan(STAGES, done.config, done.files.plan)
    source.write_text(text)
    rows = {row["stage"]: Found(**row) for row in read_json(done.files.plan)["there"]}
    changed = {name for name, row in rows.items() if row.other_prompts}
    assert changed == {
        "embeddings eval", "samples teacher", "samples student", "samples untrained",
    }  # fmt: skip
    (table,) = there_part(rows.values()).tables
    by_stage = {row[0]: row[-1] for row in table.rows}
    assert rows["samples teacher"].done == 4
    assert by_stage["samples teacher"].startswith("reused where the prompts are the same")
    assert by_stage["samples student"] == "made"
    assert not any(row.other_prompts for row in found(done).values())


def test_images_are_counted_of_prompts_that_are_drawn_and_the_same(done: Run) -> None:
    """As another file, of which one prompt has the id and the text that one had before."""
    raw = settings(done.folder.parent, Path(done.config.teacher.path))
    source = Path(raw["prompts"]["eval"])
    text = source.read_text()
    first, *others = pd.read_csv(source).to_dict("records")
    others = [row | {"prompt_id": f"other-{row['prompt_id']}"} for row in others]
    for table, num_prompts, expected in (
        ([*others, first], None, (1, 5, 4)),
        ([*others, first], 2, (0, 2, 5)),
        ([first | {"prompt": "a fish"}, *others], None, (0, 5, 5)),
    ):
        pd.DataFrame(table).to_csv(source, index=False)
        config = parse_config(raw | {"samples": raw["samples"] | {"num_prompts": num_prompts}}, "x")
        make_plan(STAGES, config, done.files.plan)
        there = {row["stage"]: row for row in read_json(done.files.plan)["there"]}
        row = there["samples teacher"]
        assert (row["done"], row["of"], row["others"]) == expected
    source.write_text(text)


def test_prompts_that_are_appended_train_anew(done: Run) -> None:
    """A training belongs to its prompts, and its images to it."""
    raw = settings(done.folder.parent, Path(done.config.teacher.path))
    source = Path(raw["prompts"]["train"])
    text = source.read_text()
    source.write_text(text + "another,a red tree,style 9\n")
    make_plan(STAGES, done.config, done.files.plan)
    source.write_text(text)
    rows = {row["stage"]: Found(**row) for row in read_json(done.files.plan)["there"]}
    assert (rows["training"].done, rows["training"].others) == (0, 8)
    assert rows["training"].why.startswith("prompts.train has changed")
    (table,) = there_part(rows.values()).tables
    by_stage = {row[0]: row[-1] for row in table.rows}
    assert by_stage["training"].startswith("made again: prompts.train has changed")
    assert found(done)["training"].done == 8


def test_more_of_the_same_keeps_what_is_there(done: Run) -> None:
    rows = found(done, targets={"samples_per_prompt": 2}, samples={"images_per_prompt": 2})
    assert (rows["targets"].done, rows["targets"].of) == (0, 5)
    assert rows["targets"].why == "targets.samples_per_prompt is 2, was 1"


def test_a_longer_training_with_a_finish_takes_the_first_part_up(done: Run) -> None:
    training = {"phases": phases(stored=8, adversarial=8)}
    rows = found(done, training=training)
    assert (rows["training"].done, rows["training"].of) == (8, 16)


@contextmanager
def gone(path: Path) -> Iterator[None]:
    """While a file is away."""
    kept = path.rename(path.with_name("kept"))
    try:
        yield
    finally:
        kept.rename(path)


def first(run: Run, pattern: str) -> Path:
    return sorted(run.folder.glob(pattern))[0]


def advice(run: Run) -> list[str]:
    """The doubts of the plan that was just made about files that are gone."""
    return [note for note in read_json(run.files.plan)["advice"] if " lacks " in note]


@pytest.mark.parametrize(
    ("pattern", "stage", "kind", "listed_by"),
    [
        ("targets/*/chunk-*", "targets", "1 of 3 files", "targets/manifest.json"),
        ("embeddings/train/*/chunk-*", "embeddings train", "1 of 3 files",
         "embeddings/train/manifest.json"),
        ("samples/teacher/*/0.png", "samples teacher", "1 of 10 files",
         "samples/teacher/manifest.parquet"),
        ("samples/teacher/*/0.safetensors", "samples teacher", "1 of 10 files",
         "samples/teacher/manifest.parquet"),
    ],
)  # fmt: skip
def test_a_listed_file_that_is_gone_is_a_doubt_with_the_commands_of_verify(
    done: Run, capsys: pytest.CaptureFixture[str], pattern: str, stage: str, kind: str,
    listed_by: str,
) -> None:  # fmt: skip
    path = first(done, pattern)
    with gone(path):
        rows = found(done)
        (note,) = advice(done)
        assert note.startswith(f"{stage} lacks {kind} that {done.folder / listed_by} lists, such")
        assert f"such as {path}. " in note
        assert {name for name, row in rows.items() if row.num_gone} == {stage}
        assert not verify.tell(done.files)
        commands = capsys.readouterr().out.splitlines()[-2:]
        assert all(f"`{command.strip()}`" in note for command in commands)
        (table,) = there_part(rows.values()).tables
        text = {row[0]: row[-1] for row in table.rows}[stage]
        assert text == f"{kind} are gone: see Doubts"


def test_an_empty_file_is_gone_too(done: Run) -> None:
    """As a full disk or a lost machine leaves it."""
    path = first(done, "targets/*/chunk-*")
    content = path.read_bytes()
    path.write_bytes(b"")
    assert found(done)["targets"].num_gone == 1
    path.write_bytes(content)
    assert found(done)["targets"].num_gone == 0


def test_what_is_made_again_anyway_lacks_nothing(done: Run) -> None:
    """Other settings, or other prompts: the jobs run, and make what is gone."""
    with gone(first(done, "targets/*/chunk-*")), gone(first(done, "samples/teacher/*/0.png")):
        rows = found(done, targets={"guidance_scale": 2.0})
        assert not any(row.num_gone for row in rows.values())
        assert advice(done) == []
    raw = settings(done.folder.parent, Path(done.config.teacher.path))
    source = Path(raw["prompts"]["train"])
    text = source.read_text()
    source.write_text(text + text.splitlines()[-1].replace(",", "x,", 1) + " again\n")
    with gone(first(done, "targets/*/chunk-*")):
        make_plan(STAGES, done.config, done.files.plan)
        source.write_text(text)
        assert advice(done) == []


def test_two_stages_that_lack_files_are_mended_together(done: Run) -> None:
    with gone(first(done, "targets/*/chunk-*")), gone(first(done, "embeddings/eval/*/chunk-*")):
        found(done)
        (note,) = advice(done)
    assert note.count(" lacks ") == 2
    assert note.count("`rm -r ") == note.count("`snakemake ") == 1


def test_changes_are_named_with_their_sections() -> None:
    before = {"version": 1, "teacher": {"height": 64, "path": "a"}, "seed": 0}
    after = {"version": 1, "teacher": {"height": 96, "path": "a"}, "seed": 0, "new": None}
    assert describe_changes(before, after) == "teacher.height is 96, was 64"
    assert describe_changes(before, before) == ""
    many = {**after, "seed": 1, "version": 2, "other": 3}
    assert describe_changes(before, many).count(", was ") == 3
    assert describe_changes(before, many).endswith("; 1 more key")


def test_images_of_the_untrained_student(done: Run, tmp_path: Path) -> None:
    """They depend on its timesteps, and on no guidance: its network has no input for it."""
    copy = replace(done, folder=Path(shutil.copytree(done.folder, tmp_path / "results")))
    image = copy.files.sample_folder / "untrained" / "p000" / "0.png"
    image.parent.mkdir(parents=True)
    image.touch()
    copy.export_untrained()
    other = {"targets": {"guidance_scale": 2.0}}
    assert found(copy)["samples untrained"].why == ""
    assert found(copy, **other)["samples untrained"].why == ""
    assert found(copy, **other)["samples teacher"].why
    path = copy.files.student("untrained") / "scheduler" / "scheduler_config.json"
    write_json(path, read_json(path) | {"shift": 7.0, "flow_shift": 7.0})
    told = found(copy)["samples untrained"].why
    assert told == "the student's timesteps have changed"
