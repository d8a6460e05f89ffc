"""Damage on a finished run is found and named, and what we advise mends it to the same bytes.

Snakemake overlooks what is missing behind a file that is there. So each piece of advice is carried
out as it stands, on a run that has nothing left to do.
"""

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
import pytest
import yaml
from test_workflow import REPOSITORY, SNAKEMAKE, configure, skeleton, succeed

from distillery.config.jobs import EvaluationJob, ExportJob, freeze
from distillery.config.run import Config, parse_config
from distillery.evaluation.evaluate import evaluate
from distillery.evaluation.report import write_report
from distillery.files import hash_file, read_sealed, write_json, write_sealed
from distillery.model_folder import hash_model
from distillery.scripts import verify as verify_script
from distillery.stages.merge import merge_samples, merge_targets
from distillery.stages.plan import make_plan
from distillery.store.chunks import ChunkIdentity, read_chunk, read_identity, write_chunk
from distillery.store.embeddings import EmbeddingStore
from distillery.store.tables import read_table, write_table
from distillery.store.trajectories import TrajectoryStore
from distillery.student.export import export_student
from runs import CPU, Run

TINY = Path("results/tiny")
WEIGHTS = "diffusion_pytorch_model.safetensors"
NOT_COMPARED = ("telemetry", "logs", "benchmarks", "report", "plan.json")
"""What holds times."""
pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]


@pytest.fixture(scope="module")
def finished(teacher: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a finished run, made by the stages in this process; nothing may change it."""
    folder = skeleton(tmp_path_factory.mktemp("damage"))
    configure(folder, teacher)
    sys.path.append(str(REPOSITORY / "tests" / "unit"))
    from test_judge import make_judge

    make_judge(folder / "inputs" / "judge")
    before = Path.cwd()
    os.chdir(folder)
    try:
        make_all(tiny_run())
    finally:
        os.chdir(before)
    succeed(folder, "--touch")
    assert "Nothing to be done" in succeed(folder, "--dry-run")
    return folder


def tiny_run() -> Run:
    """The run in this folder."""
    raw = yaml.safe_load(Path("config/config.yaml").read_text())
    return Run(TINY, parse_config(raw, "config/config.yaml"))


def make_all(run: Run) -> None:
    """Everything that the workflow makes."""
    for stage in ("prompts", "training", "run"):
        write_json(TINY / "config" / f"{stage}.json", freeze(run.config, stage))
    run.encode("train")
    run.encode("eval")
    run.all_targets(2)
    pipeline = run.train_and_export()
    for model, source in (("teacher", None), ("student", pipeline)):
        shards = [run.samples(part, 2, model, source) for part in range(2)]
        merge_samples(shards, shards[0].parent / "manifest.parquet")
    score(run)
    make_plan(run.config, TINY / "plan.json")
    report(run)


def score(run: Run) -> None:
    manifests = {
        name: TINY / "samples" / name / "manifest.parquet" for name in run.config.samples.models
    }
    quality, scores = (TINY / "evaluation" / name for name in ("quality.json", "scores.parquet"))
    evaluate(run.job("evaluation", EvaluationJob), manifests, quality, scores, run.reporter(), CPU)


def report(run: Run) -> None:
    assert isinstance(run.config, Config)
    pages = (TINY / "report" / name for name in ("index.html", "metrics.json"))
    write_report(run.config, TINY, *pages)


def in_copy(finished: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Stand in a copy of the finished run, times included."""
    copy: Path = shutil.copytree(finished, folder, symlinks=True)
    monkeypatch.chdir(copy)
    return copy


def contents() -> dict[str, str]:
    """The hash of every file of the run that holds no times."""
    paths = (path for path in TINY.rglob("*") if path.is_file() and not path.name.startswith("."))
    kept = (path for path in paths if path.relative_to(TINY).parts[0] not in NOT_COMPARED)
    return {path.as_posix(): hash_file(path) for path in kept}


def flip(pattern: str, place: float = 0.5) -> Path:
    """Flip a bit of a file of the run and leave its time as it was."""
    path = sorted(TINY.glob(pattern))[0]
    content, times = bytearray(path.read_bytes()), path.stat()
    content[int(place * (len(content) - 1))] ^= 1
    path.write_bytes(content)
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    return path


def run_shell(command: str) -> None:
    """A command as a user would give it."""
    environ = os.environ | {
        "PATH": f"{Path(SNAKEMAKE).parent}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": str(REPOSITORY / "workflow"),
        "CUDA_VISIBLE_DEVICES": "",
    }
    done = subprocess.run(
        ["bash", "-c", command], env=environ, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"


# ---- what a stage says -------------------------------------------------------------------------


@dataclass(frozen=True)
class Case:
    """Damage, and the stage that meets it."""

    harm: Callable[[], object]
    meet: Callable[[Run], object]


def open_embeddings(split: str) -> Callable[[Run], object]:
    def meet(run: Run) -> None:
        EmbeddingStore(run.embeddings(split), read_table(run.prompts(split))).verify()

    return meet


def open_targets(_: Run) -> object:
    return TrajectoryStore(TINY / "targets/manifest.json")


def merge_all_targets(_: Run) -> None:
    merge_targets(sorted(TINY.glob("targets/shard-*.json")), TINY / "targets/manifest.json")


def merge_pictures(_: Run) -> None:
    shards = sorted(TINY.glob("samples/teacher/shard-*.parquet"))
    merge_samples(shards, TINY / "samples/teacher/manifest.parquet")


def export(run: Run) -> None:
    export_student(run.job("export", ExportJob), TINY / "student/trained", Path("elsewhere"))


def sample_student(run: Run) -> None:
    run.samples(0, 2, "student", TINY / "student/pipeline")


def remove(pattern: str) -> None:
    sorted(TINY.glob(pattern))[0].unlink()


def lie_about_members() -> None:
    """A whole chunk, of other samples than the table's."""
    path = sorted(TINY.glob("targets/*/chunk-*"))[1]
    identity = read_identity(path)
    tensors = read_chunk(path, identity)
    write_chunk(path, tensors, ChunkIdentity(identity.recipe, "0" * 64), {})


def exchange_embeddings() -> None:
    """Those of the eval prompts, in the place of those of the train prompts."""
    shutil.copy(TINY / "embeddings/eval/manifest.json", TINY / "embeddings/train/manifest.json")
    (folder,) = (path for path in (TINY / "embeddings/eval").iterdir() if path.is_dir())
    shutil.copytree(folder, TINY / "embeddings/train" / folder.name, dirs_exist_ok=True)


def edit_shard(number: int, **columns: object) -> None:
    path = TINY / f"samples/teacher/shard-{number}-of-2.parquet"
    write_table(read_table(path).assign(**columns), path)


def copy_rows() -> None:
    """One shard as it was when the other had fewer groups."""
    first, second = sorted(TINY.glob("samples/teacher/shard-*.parquet"))
    rows = read_table(first).assign(shard="1/2")
    write_table(pd.concat([rows, read_table(second)], ignore_index=True), second)


def edit_targets(**changes: object) -> None:
    path = TINY / "targets/shard-1-of-2.json"
    write_sealed(path, read_sealed(path) | changes)


CASES = {
    "a chunk's bit, by the merge": Case(lambda: flip("targets/*/chunk-*", 0.9), merge_all_targets),
    "a chunk's header": Case(lambda: flip("targets/*/chunk-*", 0.0), open_targets),
    "a chunk is missing": Case(lambda: remove("targets/*/chunk-*"), open_targets),
    "a chunk of other samples": Case(lie_about_members, open_targets),
    "a shard's digit": Case(lambda: flip("targets/shard-0*"), merge_all_targets),
    "shards of two prompt tables": Case(lambda: edit_targets(num_chunks=9), merge_all_targets),
    "a shard without its chunks": Case(lambda: edit_targets(chunks=[]), merge_all_targets),
    "no manifest": Case(lambda: edit_targets(chunks=[{}]), merge_all_targets),
    "the merged manifest's digit": Case(lambda: flip("targets/manifest.json"), open_targets),
    "an embedding": Case(lambda: flip("embeddings/train/*/chunk-*", 0.9), open_embeddings("train")),
    "embeddings' manifest": Case(
        lambda: flip("embeddings/eval/manifest.json"), open_embeddings("eval")
    ),
    "embeddings of others": Case(exchange_embeddings, open_embeddings("train")),
    "prompts": Case(lambda: flip("prompts/train.parquet"), open_embeddings("train")),
    "the untrained student": Case(
        lambda: flip(f"student/initial/{WEIGHTS}"), lambda _: hash_model(TINY / "student/initial")
    ),
    "what it is made of": Case(lambda: flip("student/initial/distillery.json"), report),
    "the trained student": Case(lambda: flip(f"student/trained/{WEIGHTS}"), export),
    "the pipeline": Case(lambda: flip(f"student/pipeline/transformer/{WEIGHTS}"), sample_student),
    "a picture, by the merge": Case(lambda: flip("samples/teacher/*/0.png"), merge_pictures),
    "a picture": Case(lambda: flip("samples/student/*/0.png", 1.0), score),
    "a picture is missing": Case(lambda: remove("samples/student/*/0.png"), score),
    "latents": Case(lambda: flip("samples/student/*/0.safetensors", 1.0), score),
    "a shard's table": Case(lambda: flip("samples/teacher/shard-0*"), merge_pictures),
    "shards of two recipes": Case(lambda: edit_shard(1, recipe="0" * 64), merge_pictures),
    "a picture in two shards": Case(copy_rows, merge_pictures),
    "the samples' manifest": Case(lambda: flip("samples/student/manifest.parquet", 0.98), score),
    "a score": Case(lambda: flip("evaluation/quality.json"), report),
    "the scores": Case(lambda: flip("evaluation/scores.parquet"), report),
    "the losses": Case(lambda: flip("student/loss.parquet"), report),
}


def advise(case: Case) -> str:
    """The command in what a stage says of the damage, in one line."""
    case.harm()
    with pytest.raises(ValueError, match=r"run `rm -r .*` and start the workflow again") as caught:
        case.meet(tiny_run())
    assert "\n" not in str(caught.value)
    (command,) = re.findall(r"run `([^`]*)`", str(caught.value))
    return str(command)


def asked_for(folder: Path) -> set[str]:
    """What `all` has for its inputs."""
    output = succeed(folder, "--dry-run", "--forceall")
    (inputs,) = re.findall(r"^(?:local)?rule all:\n    input: (.*)$", output, flags=re.MULTILINE)
    return set(inputs.split(", "))


def test_what_each_message_removes_is_noticed(
    finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or a finished run would say that there is nothing to do; then all of it is mended at once."""
    asked, commands = asked_for(finished), []
    for number, (name, case) in enumerate(CASES.items()):
        in_copy(finished, tmp_path / str(number), monkeypatch)
        commands.append(advise(case))
        run_shell(commands[-1])
        _, _, *removed = shlex.split(commands[-1])
        assert asked & set(removed), f"{name}: {commands[-1]}"
        assert not any(Path(path).exists() for path in removed)
        monkeypatch.chdir(finished)
        shutil.rmtree(tmp_path / str(number))
    in_copy(finished, tmp_path / "all", monkeypatch)
    before = contents()
    paths = sorted({path for command in commands for path in shlex.split(command)[2:]})
    run_shell(shlex.join(["rm", "-r", *paths]))
    run_shell("snakemake --cores 2")
    assert contents() == before


# ---- the script verify -------------------------------------------------------------------------

KINDS = {
    "targets/*/chunk-*": 0.9,
    "targets/manifest.json": 0.5,
    "targets/shard-1*": 0.5,
    "embeddings/train/*/chunk-*": 0.9,
    "embeddings/eval/manifest.json": 0.5,
    "prompts/eval.parquet": 0.3,
    f"student/initial/{WEIGHTS}": 0.7,
    "student/trained/distillery.json": 0.5,
    "student/pipeline/scheduler/scheduler_config.json": 0.5,
    "student/loss.parquet": 0.99,
    "samples/teacher/*/0.png": 1.0,
    "samples/student/*/0.safetensors": 0.99,
    "samples/teacher/manifest.parquet": 0.5,
    "samples/student/shard-1*": 0.9,
    "evaluation/quality.json": 0.5,
    "evaluation/scores.parquet": 0.1,
    "config/targets.json": 0.0,
    "student/checkpoints/*/samples-*/state.json": 0.5,
    "student/checkpoints/*/samples-*/optimizer.safetensors": 0.9,
}
"""Files to where a bit is flipped in them, as a share of their length."""


def verify(capsys: pytest.CaptureFixture[str]) -> tuple[int, list[str]]:
    """The status of the script and what it prints."""
    status = verify_script.main(["--run", str(TINY)])
    return status, capsys.readouterr().out.splitlines()


def reported(path: Path) -> str:
    """The path by which a damaged file is named: of a student or a checkpoint the folder."""
    parts = path.parts
    if parts[2] == "student" and len(parts) > 4:
        return "/".join(parts[:6] if parts[3] == "checkpoints" else parts[:4])
    return path.as_posix()


def test_each_kind_of_file_is_named_alone(
    finished: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    in_copy(finished, tmp_path / "copy", monkeypatch)
    status, lines = verify(capsys)
    assert (status, len(lines)) == (0, 1)
    assert lines[0].endswith("all are as they were written")
    for pattern, place in KINDS.items():
        path = flip(pattern, place)
        status, lines = verify(capsys)
        assert status == 1
        assert [line.split(": ")[0] for line in lines[:-3]] == [reported(path)]
        assert lines[-3].startswith("1 of ")
        assert lines[-2].startswith("    rm -r ")
        assert flip(pattern, place) == path
    assert verify(capsys)[0] == 0


def test_what_is_printed_mends_everything(
    finished: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """All kinds at once; a checkpoint is passed over by a training, and is only removed."""
    in_copy(finished, tmp_path / "copy", monkeypatch)
    before = {name: digest for name, digest in contents().items() if "checkpoints" not in name}
    for pattern, place in KINDS.items():
        flip(pattern, place)
    _, lines = verify(capsys)
    assert lines[-2].startswith("    rm -r ")
    assert lines[-1].startswith("    snakemake ")
    for line in lines[-2:]:
        run_shell(line)
    after = {name: digest for name, digest in contents().items() if "checkpoints" not in name}
    assert after == before
    assert verify(capsys)[0] == 0


def test_a_run_that_is_not_finished_is_read_as_far_as_it_goes(
    finished: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    in_copy(finished, tmp_path / "copy", monkeypatch)
    for name in ("evaluation", "report", "student/trained", "student/pipeline"):
        shutil.rmtree(TINY / name)
    for name in ("targets/manifest.json", "targets/shard-1-of-2.json"):
        (TINY / name).unlink()
    for path in TINY.glob("samples/student/*.parquet"):
        path.unlink()
    assert verify(capsys)[0] == 0
    path = flip("samples/student/*/0.png", 0.9)
    assert [line.split(": ")[0] for line in verify(capsys)[1][:-3]] == [path.as_posix()]


def test_a_run_that_is_not_there_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    assert verify_script.main(["--run", "results/nowhere"]) == 1
    assert "there is no run in results/nowhere: give results/NAME" in capsys.readouterr().err
