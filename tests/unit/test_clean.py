"""What of a run may be deleted: told by kind, done for all but what is kept, or refused."""

import os
from pathlib import Path

import pytest

from distillery.clean import NAMES, clean, find_kinds
from distillery.config.jobs import freeze, save_frozen
from distillery.config.run import parse_config
from distillery.files import write_json
from distillery.run_folder import RunFolder
from events import job_events
from reports import write_telemetry
from runs import settings

RUN = RunFolder(Path("results/first"))
FILES = {
    "targets": "targets/0123/chunk-000000.safetensors",
    "embeddings": "embeddings/train/0123/chunk-000000.safetensors",
    "rounds": "rounds/1/manifest.json",
    "checkpoints": "student/checkpoints/0123/samples-8/state.json",
    "previews": "student/previews/sheet.png",
    "untrained": "student/initial/config.json",
    "student": "student/trained/distillery.json",
    "images": "samples/teacher/a/0.png",
    "report": "report/index.html",
}


def save(name: str, **changes: dict[str, object]) -> None:
    raw = settings(Path("inputs"), Path("teacher"), **changes) | {"run": name}
    frozen = RunFolder(Path("results", name)).config("run")
    save_frozen(frozen, freeze(parse_config(raw, name), "run"))


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run with a file of each kind, whose teacher and prompts are here."""
    monkeypatch.chdir(tmp_path)
    Path("teacher").mkdir()
    save("first")
    for file in FILES.values():
        write_json(RUN.path / file, {"size": "x" * 2000})


def left() -> set[str]:
    return {name for name, file in FILES.items() if (RUN.path / file).exists()}


def test_every_kind_is_listed_with_what_it_took() -> None:
    write_telemetry(RUN.path, job_events("targets-0-of-1", 0, 1, 93.0))
    table, text = clean(RUN, None), "\n".join(clean(RUN, None))
    assert [row.split()[0] for row in table[1 : len(NAMES) + 1]] == list(NAMES)
    assert "1 min 40 s" in text
    assert left() == set(NAMES), "listing deletes nothing"


def test_all_but_what_is_kept_goes() -> None:
    told = clean(RUN, ["student", "report"])
    assert left() == {"student", "report"}
    assert told[0].startswith("deleted targets, embeddings")
    assert RUN.config("run").is_file()


def test_what_is_linked_elsewhere_frees_nothing() -> None:
    chunk = RUN.path / FILES["targets"]
    os.link(chunk, "elsewhere")
    (found,) = [each for each in find_kinds(RUN) if each.kind.name == "targets"]
    assert found.num_bytes == 0


@pytest.mark.parametrize(
    ("keep", "wanted"),
    [
        ([name for name in NAMES if name != "student"], "student: only another training"),
        (["nothing"], "--keep names nothing: the kinds are targets, embeddings"),
    ],
)
def test_more_than_time_is_lost_only_if_one_insists(keep: list[str], wanted: str) -> None:
    with pytest.raises(ValueError, match=wanted):
        clean(RUN, keep)
    assert left() == set(NAMES)


def test_whoever_insists_loses_the_student() -> None:
    clean(RUN, [], insist=True)
    assert left() == set()


def test_a_training_that_is_not_finished_keeps_its_checkpoints() -> None:
    (RUN.path / FILES["student"]).unlink()
    with pytest.raises(ValueError, match="checkpoints: the training is not finished"):
        clean(RUN, ["student"])


def test_what_a_teacher_that_is_gone_has_made_stays() -> None:
    Path("teacher").rmdir()
    with pytest.raises(ValueError, match="targets, embeddings and images: teacher, of which"):
        clean(RUN, ["student"])
    Path("inputs/train.csv").unlink()
    with pytest.raises(ValueError, match=r"inputs/train\.csv and teacher, of which"):
        clean(RUN, ["student"])
    clean(RUN, ["student", "targets", "embeddings", "images"])


def test_what_another_run_reads_stays() -> None:
    save("second", targets={"from_run": "results/first"})
    with pytest.raises(ValueError, match="targets and embeddings: results/second reads this run's"):
        clean(RUN, ["student"])
    save("third", student={"from_run": "results/first"})
    with pytest.raises(ValueError, match="untrained: results/third reads this run's"):
        clean(RUN, ["student", "targets", "embeddings"])


def test_what_is_no_run_is_refused() -> None:
    with pytest.raises(ValueError, match="there is no run in results/none"):
        clean(RunFolder(Path("results/none")), ["student"])
