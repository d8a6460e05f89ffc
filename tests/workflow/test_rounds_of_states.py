"""Snakemake on a run with rounds: to its end, a product at a time, and after damage."""

import subprocess
from pathlib import Path

import pytest

from checkout import ONE_SHARD, check_names, configure, jobs, skeleton, snakemake, succeed
from distillery.config.jobs import read_config
from distillery.files import read_json
from distillery.pipeline import STAGES
from distillery.planning import verify
from distillery.planning.probe import amounts_of
from distillery.report.timeline import BEFORE_ROUND, RANK
from distillery.run_folder import RunFolder
from distillery.stage import Counts
from distillery.store.embeddings import distinct_texts
from distillery.store.tables import read_table
from distillery.telemetry import Reporter, read_events
from training_phases import phases

pytestmark = pytest.mark.timeout(600)
RUN = Path("results/tiny")
TRAINING = {
    "phases": phases(stored=8, rounds={"count": 2, "samples": 8}),
    "global_batch_size": 8,
    "dtype": "float32",
}
STORED = ("round-states", "round-targets")
ROUND = {"round_states", "round_targets", "merge_round"}


@pytest.fixture(scope="module")
def folder(teacher: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = skeleton(tmp_path_factory.mktemp("rounds"))
    configure(made, teacher, training=TRAINING, **ONE_SHARD)
    return made


def test_a_rounds_product_is_a_target_and_the_last_student_follows(folder: Path) -> None:
    first = jobs(succeed(folder, f"{RUN}/student/1-rounds"))
    assert first >= ROUND | {"training_before_round", "targets"}
    assert "training" not in first
    assert (folder / RUN / "student/1-rounds/model_index.json").is_file()
    rest = jobs(succeed(folder, f"{RUN}/student/pipeline"))
    assert rest >= ROUND | {"training"}
    assert not {"targets", "training_before_round"} & rest
    again = succeed(folder, f"{RUN}/student/pipeline", "--dry-run")
    assert "Nothing to be done" in again


def test_the_whole_run_asks_for_all_that_rounds_make(folder: Path) -> None:
    """Snakemake overlooks what is missing behind a file that is there."""
    asked = succeed(folder, "--dry-run")
    inputs = asked.split("rule all:")[1].splitlines()[1]
    for name in ("rounds/1/states/shard-0-of-1.json", "rounds/2/shard-0-of-1.json"):
        assert f"{RUN}/{name}" in inputs
    for name in ("rounds/1/manifest.json", "student/trained-1-rounds", "student/0-rounds"):
        assert f"{RUN}/{name}" in inputs


def test_each_jobs_log_and_telemetry_have_one_name(folder: Path) -> None:
    told = check_names(folder / RUN)
    of_rounds = {f"{job}-{number}-0-of-1" for job in STORED for number in (1, 2)}
    assert told >= of_rounds | {"training-0-rounds", "training-1-rounds", "training"}
    stages = {event.stage for event in read_events(folder / RUN / "telemetry")}
    assert stages == {"embeddings", "targets", "student", "training", "export"} | {
        job.replace("-", "_") for job in STORED
    }


def test_the_plan_counts_what_the_jobs_do(folder: Path) -> None:
    """Jobs and items of each stage by their telemetry, and a weight for each of the trainings."""
    run = RunFolder(folder / RUN)
    config, plan = read_config(run.config("run")), read_json(run.plan)
    texts = {
        split: len(distinct_texts(read_table(run.prompts(split)), None).texts)
        for split in ("train", "eval")
    }
    assert sum(texts.values()) != sum(plan["work"]["num_prompts"].values())
    found: dict[str, tuple[set[str], int]] = {}
    for event in read_events(run.telemetry):
        names, items = found.get(_kind(event.job, event.stage), (set(), 0))
        number = items + event.num_items * (event.kind == "work")
        found[_kind(event.job, event.stage)] = (names | {RANK.sub("", event.job)}, number)
    expected: dict[str, tuple[int, int]] = {}
    for amount in amounts_of(STAGES, config, Counts(plan["work"]["num_prompts"], texts)):
        jobs_, items = expected.get(amount.kind, (0, 0))
        expected[amount.kind] = (jobs_ + amount.num_jobs, items + amount.items)
    del found["export"]  # the untrained student's is not asked for here
    for stage, (names, items) in found.items():
        assert (len(names), items) == expected[stage], stage
        if stage == "training_before_round":
            assert names <= plan["passes_per_job"].keys()
    assert found.keys() >= {"embeddings", "targets", "training", "round_states", "round_targets"}


def _kind(job: str, stage: str) -> str:
    return "training_before_round" if BEFORE_ROUND.match(job) else stage


def test_damage_in_a_round_is_found_and_made_again(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    run = RunFolder(RUN)
    chunk = min((RUN / "rounds/2").glob("*/chunk-*.safetensors"))
    whole = chunk.read_bytes()
    chunk.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    reporter = Reporter(run.telemetry, "verify", "verify", "cpu")
    damages = verify.verify(run, reporter).damages
    assert [damage.item.path for damage in damages] == [chunk]
    remove, _ = verify.commands(damages, run)
    subprocess.run(remove, shell=True, check=True)
    made = jobs(succeed(folder, str(run.visited(2)), f"{RUN}/student/pipeline"))
    assert made >= {"round_targets", "merge_round"}
    assert "round_states" not in made
    assert chunk.read_bytes() == whole
    assert verify.verify(run, reporter).damages == []


def test_a_checkpoint_of_before_a_round_can_be_drawn(folder: Path) -> None:
    """It lies in the folder of the training that ended there."""
    sheet = f"{RUN}/student/previews/samples-000000000008/sheet.png"
    succeed(folder, sheet)
    assert (folder / sheet).is_file()
    done = snakemake(folder, f"{RUN}/student/previews/samples-000000000012/sheet.png")
    assert done.returncode != 0


@pytest.mark.parametrize("file", ["rounds/0/manifest.json", "rounds/3/manifest.json"])
def test_a_round_that_is_none_has_no_rule(folder: Path, file: str) -> None:
    done = snakemake(folder, "--dry-run", f"{RUN}/{file}")
    assert done.returncode != 0
    assert "MissingRuleException" in done.stdout
