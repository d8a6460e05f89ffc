"""Results of another configuration are found by their recipes, whatever their dates are."""

import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow.parquet as pq
import pytest
from safetensors.torch import load_file, save_file

from distillery.config.jobs import (
    JOBS,
    PROMPTS_STAGES,
    ExportJob,
    StudentJob,
    freeze,
    prompts_stage,
)
from distillery.config.run import parse_config
from distillery.files import hash_file, read_json, write_json
from distillery.model_folder import read_metadata, write_metadata
from distillery.pipeline import STAGES
from distillery.planning.dates import date_of, hidden_outputs
from distillery.planning.first import write_frozen
from distillery.planning.plan import make_plan
from distillery.store.belonging import check_student_of, find_foreign
from distillery.store.footers import KEY, RECIPE, recipe_in, seal_in
from distillery.store.marks import hash_made_of, mark_in, mark_of, why_not_made_of
from distillery.store.tables import write_table
from distillery.student.build import build_student
from distillery.student.export import export_student
from runs import Run, make_run, settings
from training_phases import phases

HOUR_NS = 3600 * 10**9
OF_TARGETS = {"targets/manifest.json", "targets/shard-0-of-1.json"}
CHANGES: dict[str, tuple[Any, set[str]]] = {
    "seed": (1, {*OF_TARGETS, "student/initial", "student/trained"}),
    "teacher.negative_prompt": ("the tree", {"embeddings/train/manifest.json", *OF_TARGETS}),
    "teacher.max_sequence_length": (8, {"embeddings/eval/manifest.json", *OF_TARGETS}),
    "teacher.long_prompts": ("truncate", {"embeddings/train/manifest.json"}),
    "teacher.height": (64, {*OF_TARGETS, "student/pipeline"}),
    "targets.steps": (8, OF_TARGETS),
    "targets.guidance_scale": (2.0, {*OF_TARGETS, "student/trained"}),
    "targets.guidance_interval": ([0.5, 1.0], OF_TARGETS),
    "targets.num_segments": (4, OF_TARGETS),
    "targets.samples_per_prompt": (2, OF_TARGETS),
    "targets.batch_size": (4, OF_TARGETS),
    "targets.chunk_size": (8, OF_TARGETS),
    "student.steps": (1, {"student/initial", "student/trained", "student/pipeline"}),
    "training.learning_rate": (0.5, {"student/trained"}),
    "training.phases": (phases(stored=16), {"student/trained"}),
    "training.objective": ("direct", {"student/trained"}),
}
"""Another value of each key, and some of what does not belong to it."""


@pytest.fixture(scope="module")
def done(teacher: Path, tmp_path_factory: pytest.TempPathFactory) -> Run:
    run = make_run(tmp_path_factory.mktemp("belonging"), teacher, targets={"num_shards": 1})
    run.encode("train")
    run.encode("eval")
    run.all_targets()
    run.train_and_export()
    run.export_untrained()
    freeze_all(run)
    return run


def freeze_all(run: Run) -> None:
    models = [f"samples-{name}" for name in run.config.samples.models]
    for stage in ["run", *JOBS.keys() - {"dataset", "rounds"}, *PROMPTS_STAGES, *models]:
        write_frozen(freeze(run.config, stage), run.files.config(stage))


def changed(done: Run, folder: Path, key: str = "", value: object = None) -> Run:
    """A copy of the run whose configuration is another, and frozen."""
    shutil.copytree(done.folder, folder / "results")
    raw = settings(folder, Path(done.config.teacher.path), targets={"num_shards": 1})
    *sections, name = key.split(".")
    place = raw
    for section in sections:
        place = place[section]
    if key:
        place[name] = value
    run = replace(done, folder=folder / "results", config=parse_config(raw, "tiny"))
    freeze_all(run)
    return run


@pytest.mark.parametrize("key", CHANGES)
def test_what_is_of_another_value_is_found(done: Run, tmp_path: Path, key: str) -> None:
    assert find_foreign(done.config, done.files) == []
    value, expected = CHANGES[key]
    run = changed(done, tmp_path, key, value)
    foreign = find_foreign(run.config, run.files)
    found = {each.path.relative_to(run.folder).as_posix(): each for each in foreign}
    assert expected <= found.keys()
    hidden = hidden_outputs(run.config, run.files, [], lambda output: {})
    assert hidden >= {output for each in foreign for output in each.outputs}


def test_what_was_made_from_an_older_file_of_another_content_is_found(
    done: Run, tmp_path: Path
) -> None:
    """Of a newer one Snakemake sees it."""
    run = changed(done, tmp_path)
    frozen, made = run.files.config("embeddings"), run.files.embeddings("train")
    prompts = run.files.prompts("train")
    older = date_of(made) - HOUR_NS
    declared = [str(run.files.embeddings("{split,train|eval}")), "elsewhere/{split}"]
    for path in (frozen, prompts):
        os.utime(path, ns=(older, older))
    for digest, date, expected in (
        ("0" * 64, older, {made}),
        (hash_file(frozen), older, set()),
        ("0" * 64, date_of(made) + HOUR_NS, set()),
    ):
        os.utime(frozen, ns=(date, date))
        notes = {str(made): {str(frozen): digest, str(prompts): hash_file(prompts)}}
        found = hidden_outputs(run.config, run.files, declared, lambda it: notes.get(it, {}))  # noqa: B023
        assert found == expected


def test_a_student_of_another_run_is_refused(done: Run, tmp_path: Path) -> None:
    run = changed(done, tmp_path)
    files = run.files
    initial, trained, pipeline, untrained = map(
        files.student, ("initial", "trained", "pipeline", "untrained")
    )
    for folder in (trained, pipeline):
        check_student_of(files, folder, is_trained=True)
        with pytest.raises(ValueError, match=r"it is trained\): run `rm -r "):
            check_student_of(files, folder, is_trained=False)
    for folder in (initial, untrained):
        check_student_of(files, folder, is_trained=False)
        with pytest.raises(ValueError, match="it was not trained: it carries no recipe"):
            check_student_of(files, folder, is_trained=True)
    shutil.rmtree(trained)
    shutil.copytree(initial, trained)
    assert {each.path for each in find_foreign(run.config, files)} == {trained, pipeline}
    with pytest.raises(ValueError, match="is not this run's trained student"):
        export_student(run.job("export", ExportJob), trained, tmp_path / "exported", files)


def test_an_export_of_longer_clips_is_found(done: Run, tmp_path: Path) -> None:
    run = changed(done, tmp_path)
    about = run.files.student("pipeline") / "distillery.json"
    written = read_json(about)
    for frames, expected in ((1, []), (9, [run.files.student("pipeline")])):
        written["call"]["arguments"]["num_frames"] = frames
        write_json(about, written)
        assert [each.path for each in find_foreign(run.config, run.files)] == expected


def test_the_whole_student_of_other_trajectories_is_refused(done: Run, tmp_path: Path) -> None:
    run = changed(done, tmp_path / "a")
    other = changed(done, tmp_path / "b", "targets.steps", 8)
    other.all_targets()
    other.train_and_export()
    for name in ("trained", "pipeline"):
        shutil.rmtree(run.files.student(name))
        shutil.copytree(other.files.student(name), run.files.student(name))
        with pytest.raises(ValueError, match=r"targets is .*, not "):
            check_student_of(run.files, run.files.student(name), is_trained=True)


def test_a_student_made_from_other_weights_is_refused(done: Run, tmp_path: Path) -> None:
    """Its settings are the same, paths aside; a student of an earlier release does not tell."""
    run, initial = changed(done, tmp_path / "a"), done.files.student("initial")
    make_plan(STAGES, run.config, run.files.plan)
    check_student_of(run.files, initial, is_trained=False)
    teacher = Path(shutil.copytree(done.config.teacher.path, tmp_path / "teacher"))
    (weights,) = (teacher / "transformer").glob("*.safetensors")
    tensors = {name: tensor * 1.01 for name, tensor in load_file(weights).items()}
    save_file(tensors, weights, metadata={"format": "pt"})
    other = make_run(tmp_path / "b", teacher)
    made = other.files.student("initial")
    build_student(other.job("student", StudentJob), made)
    with pytest.raises(ValueError, match=r"\(it was made from another teacher\): run `rm -r "):
        check_student_of(run.files, made, is_trained=False)
    about = read_metadata(made)
    about.pop("origin")
    write_metadata(made, about)
    check_student_of(run.files, made, is_trained=False)


def test_recipes_are_read_without_waiting_for_torch() -> None:
    code = "import sys, distillery.store.belonging; print('torch' in sys.modules)"
    assert subprocess.check_output([sys.executable, "-c", code], text=True) == "False\n"


def test_prompts_keep_the_file_of_an_earlier_release_while_it_says_the_same(
    done: Run, tmp_path: Path
) -> None:
    run = changed(done, tmp_path)
    stages = {split: prompts_stage(run.config, run.files, split) for split in ("train", "eval")}
    assert stages == {"train": "prompts-train", "eval": "prompts-eval"}
    for stage in stages.values():
        run.files.config(stage).unlink()
    other = run.config.model_copy(
        update={"prompts": run.config.prompts.model_copy(update={"eval": "other.csv"})}
    )
    assert prompts_stage(other, run.files, "train") == "prompts"
    assert prompts_stage(other, run.files, "eval") == "prompts-eval"


@pytest.mark.parametrize(("rows", "columns"), [(1, 1), (3, 300), (50_000, 20)])
def test_a_tables_hashes_are_found_in_its_footer(tmp_path: Path, rows: int, columns: int) -> None:
    """Also where a prompt looks like one."""
    path = tmp_path / "table.parquet"
    texts = {"prompt": ["distillery-recipe\x18\x40" + "0" * 64] * rows}
    table = pd.DataFrame(texts | {f"column {it}": range(rows) for it in range(columns)})
    for recipe in (None, "a" * 64):
        write_table(table, path, recipe)
        written = {key.decode(): it.decode() for key, it in pq.read_metadata(path).metadata.items()}
        assert recipe_in(path) == recipe == written.get(RECIPE)
        assert seal_in(path) == written[KEY]
    assert recipe_in(tmp_path / "none.parquet") is None


def test_a_page_tells_what_it_was_made_of(tmp_path: Path) -> None:
    """Where all of that is there: what is gone is made again, and the page with it."""
    table, scores, page = (tmp_path / name for name in ("table.parquet", "it.json", "page.html"))
    write_table(pd.DataFrame({"a": [1]}), table)
    scores.write_text("{}")
    sources = [table, scores]
    mark = mark_of(hash_made_of(sources))
    page.write_text(f"<p>{mark}</p>\n{mark}")

    def why_not() -> str:
        return why_not_made_of(mark_in(page), hash_made_of(sources))

    assert why_not() == ""
    for change in (lambda: write_table(pd.DataFrame({"a": [2]}), table),
                   lambda: scores.write_text("[]")):  # fmt: skip
        before = [path.read_bytes() for path in sources]
        change()
        assert "other results" in why_not()
        for path, content in zip(sources, before, strict=True):
            path.write_bytes(content)
    page.write_text("<p>of an earlier release</p>")
    assert why_not() == ""
    page.write_text(f"<p>\n<!-- made of {'0' * 64} -->\n")
    scores.unlink()
    assert why_not() == mark_of(hash_made_of(sources)) == ""
