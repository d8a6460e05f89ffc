"""What Snakemake overlooks is refused: other contents under old dates, results without notes."""

import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file

from distillery.config.jobs import freeze, save_frozen
from distillery.files import read_json
from distillery.notes import refuse
from distillery.pipeline import STAGES
from distillery.planning import verify
from distillery.planning.overlooked import on_contents, on_noted
from distillery.planning.plan import make_plan
from runs import Run, make_run
from tiny import make_tiny_wan


@pytest.fixture(scope="module")
def planned(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Run]:
    """A folder with a teacher and a run that is planned and encoded, named relative to it."""
    folder = tmp_path_factory.mktemp("planned")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        make_tiny_wan(Path("teacher"))
        made = make_run(Path("run"), Path("teacher"))
        made.encode("train")
        make_plan(STAGES, made.config, made.files.plan)
    return folder, made


@pytest.fixture
def run(planned: tuple[Path, Run], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """A copy of it, in whose folder the test works."""
    folder, made = planned
    shutil.copytree(folder, tmp_path / "copy")
    monkeypatch.chdir(tmp_path / "copy")
    return made


def exchange(folder: str = "teacher/transformer") -> None:
    """Put other weights into the teacher."""
    (weights,) = Path(folder).glob("*.safetensors")
    tensors = load_file(weights)
    tensors[next(iter(tensors))] *= 1.3
    save_file(tensors, weights, {"format": "pt"})


def test_another_teacher_under_the_same_settings_is_refused(run: Run) -> None:
    make_plan(STAGES, run.config, run.files.plan)
    planned = run.files.plan.read_bytes()
    exchange()
    with pytest.raises(ValueError, match="is not the one that this run was planned with") as told:
        make_plan(STAGES, run.config, run.files.plan)
    assert run.files.plan.read_bytes() == planned, "the last good plan stays"
    assert f"rm -r {run.files.plan} {run.files.embedding_folder}" in str(told.value)


def test_exchanged_weights_of_their_own_are_named(run: Run) -> None:
    Path("weights").mkdir()
    (inside,) = Path("teacher/transformer").glob("*.safetensors")
    file = shutil.copy(inside, "weights/own.safetensors")
    changed = {"weights": file}
    config = run.config.model_copy(
        update={"teacher": run.config.teacher.model_copy(update=changed)}
    )
    make_plan(STAGES, config, run.files.plan)
    exchange("weights")
    told = "the teacher in teacher with teacher.weights from weights/own.safetensors is not the one"
    with pytest.raises(ValueError, match=told):
        make_plan(STAGES, config, run.files.plan)


def test_verify_names_all_that_is_of_the_teacher_before(
    run: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    for stage in ("run", "embeddings"):
        save_frozen(run.files.config(stage), freeze(run.config, stage))
    run.all_targets()
    run.train_and_export()
    assert verify.tell(run.files)
    exchange()
    (damaged,) = run.files.embedding_folder.glob("train/*/chunk-000000.safetensors")
    damaged.unlink()
    with pytest.raises(ValueError, match="is not the one that this run was planned with") as told:
        make_plan(STAGES, run.config, run.files.plan)
    capsys.readouterr()
    assert not verify.tell(run.files)
    lines = capsys.readouterr().out.splitlines()
    sentence = str(told.value).split("; run `")[0]
    made = ("embeddings", "targets", "student")
    assert [line for line in lines if sentence in line] == [
        f"{run.folder / name}: {sentence}" for name in made
    ]
    remove = next(line.strip() for line in lines if line.startswith("    rm "))
    assert os.system(remove) == 0, "no file of a folder that is removed is named too"
    assert not any((run.folder / name).exists() for name in (*made, "plan.json"))


def test_the_command_of_that_message_lets_the_new_teacher_in(run: Run) -> None:
    exchange()
    with pytest.raises(ValueError, match="make all of it again") as told:
        make_plan(STAGES, run.config, run.files.plan)
    command = str(told.value).split("`")[-2]
    assert os.system(command) == 0
    make_plan(STAGES, run.config, run.files.plan)


def test_other_settings_of_a_teacher_are_another_teacher(run: Run) -> None:
    exchange()
    teacher = run.config.teacher.model_copy(update={"attention": "native"})
    before = read_json(run.files.plan)["teacher"]
    make_plan(STAGES, run.config.model_copy(update={"teacher": teacher}), run.files.plan)
    after = read_json(run.files.plan)["teacher"]
    assert before["settings"] != after["settings"]
    assert before["hash"] != after["hash"]


def test_how_weights_are_placed_hides_no_exchange(run: Run) -> None:
    exchange()
    teacher = run.config.teacher.model_copy(update={"offload": "model"})
    with pytest.raises(ValueError, match="is not the one that this run was planned with"):
        make_plan(STAGES, run.config.model_copy(update={"teacher": teacher}), run.files.plan)


def test_prompts_exchanged_for_older_ones_are_refused(run: Run) -> None:
    (source,) = [path for path in run.config.prompts.files if path.endswith("train.csv")]
    path, plan = Path(source), run.files.plan
    refuse(on_contents(plan, [source]))
    before = path.stat()
    path.write_text(path.read_text().replace("red", "blue"))
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    with pytest.raises(ValueError, match=r"an older date .* run `touch "):
        refuse(on_contents(plan, [source]))
    os.utime(path)
    refuse(on_contents(plan, [source]))  # Snakemake sees it now, and the plan is made again


def test_a_plan_that_was_made_since_does_not_let_older_prompts_in(run: Run) -> None:
    """It knows the new content alone; what is in use tells."""

    def plan(**changes: Any) -> None:
        make_plan(STAGES, run.config.model_copy(update=changes), run.files.plan)

    frozen, made = run.files.config("prompts-train"), run.files.prompts("train")
    save_frozen(frozen, freeze(run.config, "prompts-train"))
    os.utime(made)
    (source,) = (Path(path) for path in run.config.prompts.files if path.endswith("train.csv"))
    source.write_text(source.read_text().replace("red", "blue"))
    plan()  # newer: Snakemake sees it
    os.utime(source, (1e9, 1e9))
    run.files.plan.unlink()
    with pytest.raises(ValueError, match=r"has made of it, and an older date .* run `touch "):
        plan()
    plan(prompts=run.config.prompts.model_copy(update={"notes": ("theme",)}))
    os.utime(frozen, (2e9, 2e9))
    plan()  # other settings until just now: Snakemake makes the table again


def test_results_without_snakemakes_notes_are_refused_where_settings_differ(run: Run) -> None:
    def check(noted: bool, **changes: Any) -> None:
        config = run.config.model_copy(update=changes)
        refuse(on_noted(config, run.files, lambda _: noted))

    frozen = run.files.config("targets")
    check(False, seed=1)  # nothing is there yet
    save_frozen(frozen, freeze(run.config, "targets"))
    check(False)
    check(True, seed=1)
    with pytest.raises(ValueError, match=r"targets.json is of another .* without the folder .snak"):
        check(False, seed=1)
    frozen.write_text("{")
    check(False, seed=1)  # the stage that reads it says what it is


def test_a_report_of_another_name_is_refused_where_the_run_was_renamed(run: Run) -> None:
    def check(noted: bool) -> None:
        config = run.config.model_copy(update={"run": "renamed"})
        refuse(on_noted(config, run.files, lambda _: noted))

    frozen = run.files.config("run")
    save_frozen(frozen, freeze(run.config, "run"))
    check(False)  # no report
    run.files.report.parent.mkdir()
    run.files.report.touch()
    check(True)
    with pytest.raises(ValueError, match=r"was the folder renamed\? Run `rm .*run\.json`"):
        check(False)
    assert not list(on_noted(run.config, run.files, lambda _: False))
    frozen.unlink()
    check(False)
