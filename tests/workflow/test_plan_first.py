"""What changed is planned again before the first job, and nothing behind it is forgotten."""

import json
from pathlib import Path

import pytest

from checkout import configure, jobs, skeleton, snakemake, succeed

EMBEDDINGS = "results/tiny/embeddings/eval/manifest.json"
PLAN = Path("results/tiny/plan.json")
PROMPTS = "inputs/eval.csv"


@pytest.fixture(scope="module")
def ran(teacher: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run up to the eval prompts' embeddings."""
    folder = skeleton(tmp_path_factory.mktemp("planned"))
    configure(folder, teacher)
    assert "plan" not in jobs(succeed(folder, EMBEDDINGS))
    assert (folder / PLAN).is_file()
    return folder


def test_an_edited_prompt_is_planned_and_made_by_one_call(ran: Path) -> None:
    source, written = ran / PROMPTS, (ran / PLAN).stat().st_mtime_ns
    source.write_text(source.read_text().replace("a red dog", "a blue dog on the hill", 1))
    assert {"prompts", "embeddings"} <= jobs(succeed(ran, EMBEDDINGS))
    assert (ran / PLAN).stat().st_mtime_ns > written
    assert "Nothing to be done" in succeed(ran, EMBEDDINGS)


def test_what_was_not_made_yet_is_made_though_the_plan_changes(ran: Path, teacher: Path) -> None:
    (ran / EMBEDDINGS).unlink()
    configure(ran, teacher, hardware={"cpu_threads": 2})
    assert "embeddings" in jobs(succeed(ran, EMBEDDINGS))
    assert json.loads((ran / "results/tiny/config/run.json").read_text())["hardware"] == {
        "cpu_processes": 2,
        "cpu_threads": 2,
        "compile": "auto",
        "gpu": None,
        "num_gpus": None,
        "gpu_memory_gib": None,
    }


def test_a_plan_that_is_asked_for_tells_what_was_made_since(ran: Path) -> None:
    """And only then is it made again."""
    succeed(ran, str(PLAN))
    assert "plan" not in jobs(succeed(ran, str(PLAN)))
    (ran / EMBEDDINGS).unlink()
    succeed(ran, EMBEDDINGS)
    assert "plan" in jobs(succeed(ran, str(PLAN)))
    there = {row["stage"]: row for row in json.loads((ran / PLAN).read_text())["there"]}
    assert there["embeddings eval"]["done"] == there["embeddings eval"]["of"] > 0
    assert "reused" in (ran / PLAN).with_suffix(".html").read_text()
    assert "plan" not in jobs(succeed(ran, str(PLAN)))


def test_a_plan_that_is_asked_for_tells_which_chunk_is_gone_since(ran: Path) -> None:
    chunk = sorted((ran / EMBEDDINGS).parent.glob("*/chunk-*.safetensors"))[0]
    content = chunk.read_bytes()
    succeed(ran, str(PLAN))
    assert "Nothing to be done" in succeed(ran, str(PLAN))
    chunk.unlink()
    told = " ".join(succeed(ran, str(PLAN)).split())
    assert f"embeddings eval lacks 1 of 2 files that {EMBEDDINGS} lists, such as" in told
    chunk.write_bytes(content)
    assert " lacks " not in succeed(ran, str(PLAN))


def test_a_plan_is_of_the_configuration_that_was_asked_for(ran: Path, teacher: Path) -> None:
    """Of a run that began by a stage's file; and looking at it changes nothing of that run."""
    folder = ran
    frozen = folder / "results/tiny/config/run.json"
    before = frozen.read_bytes()
    configure(folder, teacher, training={"learning_rate": 0.25})
    succeed(folder, str(PLAN))
    assert "learning rate 0.25" in (folder / PLAN).with_suffix(".html").read_text()
    assert frozen.read_bytes() == before, "which verify and comparisons take for the run's own"
    configure(folder, teacher, training={"learning_rate": 0.125})
    succeed(folder, str(PLAN))
    assert "learning rate 0.125" in (folder / PLAN).with_suffix(".html").read_text()

    probe = folder / "results/tiny/probe.json"
    probe.write_text("{}")
    listed = jobs(succeed(folder, str(PLAN), "--dry-run"))
    probe.unlink()
    assert "plan" in listed, "it tells times by now"
    assert "probe" not in listed, "asking for a plan measures nothing"

    good = {path: path.read_bytes() for path in (folder / "results/tiny").glob("plan.*")}
    assert len(good) == 2
    configure(folder, teacher, training={"held_out_prompts": 10_000})
    refused = snakemake(folder, str(PLAN))
    assert refused.returncode != 0
    assert "held_out_prompts is 10000" in refused.stdout
    assert {path: path.read_bytes() for path in good} == good


def test_another_shape_builds_the_student_again(ran: Path, teacher: Path) -> None:
    initial, shape = "results/tiny/student/initial", ran / "inputs/shape.json"
    config = json.loads((teacher / "transformer/config.json").read_text())
    shape.write_text(json.dumps(config))
    configure(ran, teacher, student={"steps": 2, "init": "config", "config": str(shape)})
    assert "student" in jobs(succeed(ran, initial))
    shape.write_text(json.dumps(config | {"num_layers": 1}))
    assert "student" in jobs(succeed(ran, initial))
    built = json.loads((ran / initial / "config.json").read_text())
    assert built["num_layers"] == 1


@pytest.mark.parametrize(
    ("cpu_processes", "gpus", "arguments"),
    [(9, "", []), (2, ",".join(map(str, range(16))), ["--resources", "gpu=9"])],
    ids=["cpu", "gpus"],
)
def test_more_processes_than_samples_of_an_update_start_nothing(
    ran: Path,
    teacher: Path,
    monkeypatch: pytest.MonkeyPatch,
    cpu_processes: int,
    gpus: str,
    arguments: list[str],
) -> None:
    """They are those that Snakemake gives the training, not those that the machine has."""
    monkeypatch.setenv("DISTILLERY_PRETEND_GPUS", "16")
    configure(ran, teacher, hardware={"cpu_processes": cpu_processes})
    target = "results/tiny/student/trained"
    done = snakemake(ran, *arguments, "--", target, visible_devices=gpus)
    assert done.returncode != 0
    assert "training.global_batch_size is 8 and there are 9 processes" in done.stdout
    assert not jobs(done.stdout)


def test_a_plan_that_refuses_starts_nothing_also_the_second_time(ran: Path, teacher: Path) -> None:
    before = (ran / PLAN).read_bytes()
    configure(ran, teacher, teacher={"width": 40})
    for _ in range(2):
        done = snakemake(ran, EMBEDDINGS)
        assert done.returncode != 0
        assert "teacher.width is 40" in done.stdout
        assert "the plan refuses this run, nothing was started" in done.stdout
        assert not jobs(done.stdout)
    assert (ran / PLAN).read_bytes() == before, "the last plan that was good"
