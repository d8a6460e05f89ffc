"""What a stage advises about damage mends a finished run to the same bytes.

Snakemake overlooks what is missing behind a file that is there. So each piece of advice is carried
out as it stands, on a run that has nothing left to do.
"""

import re
import shlex
import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import pandas as pd
import pytest
from finished_run import TINY, WEIGHTS, contents, flip, in_copy, report, run_shell, score, tiny_run

from checkout import snakemake, succeed
from distillery.config.jobs import ExportJob
from distillery.files import hash_file, hash_json, read_json, read_sealed, write_sealed
from distillery.generation.sample_tables import merge_samples
from distillery.model_folder import hash_model
from distillery.store.chunks import ChunkIdentity, read_chunk, read_identity, write_chunk
from distillery.store.embeddings import EmbeddingStore
from distillery.store.shards import Manifest, merge_targets
from distillery.store.tables import read_table, write_table
from distillery.store.trajectories import TrajectoryStore
from distillery.student.export import export_student
from distillery.training.data import SegmentDataset
from runs import Run

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]


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


def merge_images(_: Run) -> None:
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


def other_embeddings() -> None:
    """Whole ones of the same prompts, made by another recipe."""
    path = TINY / "embeddings/train/manifest.json"
    manifest = Manifest.read(path)
    recipe = manifest.recipe | {"version": 0}
    chunks = []
    for chunk in manifest.chunks:
        file = path.parent / chunk.file
        tensors = read_chunk(file, ChunkIdentity(manifest.recipe_hash, chunk.members))
        write_chunk(file, tensors, ChunkIdentity(hash_json(recipe), chunk.members), {})
        chunks.append(replace(chunk, sha256=hash_file(file)))
    Manifest(recipe, hash_json(recipe), tuple(chunks)).write(path)


def learn(run: Run) -> object:
    targets, embeddings = TINY / "targets/manifest.json", run.embeddings("train")
    return SegmentDataset(targets, embeddings, run.prompts("train"), steps=2)


def edit_shard(number: int, **columns: object) -> None:
    path = TINY / f"samples/teacher/shard-{number}-of-2.parquet"
    write_table(read_table(path).assign(**columns), path)


def edit_manifest(change: Callable[[pd.DataFrame], pd.DataFrame]) -> None:
    path = TINY / "samples/student/manifest.parquet"
    write_table(change(read_table(path)), path)


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
    "embeddings of another recipe": Case(other_embeddings, learn),
    "prompts": Case(lambda: flip("prompts/train.parquet"), open_embeddings("train")),
    "the untrained student": Case(
        lambda: flip(f"student/initial/{WEIGHTS}"), lambda _: hash_model(TINY / "student/initial")
    ),
    "what it is made of": Case(lambda: flip("student/initial/distillery.json"), report),
    "the trained student": Case(lambda: flip(f"student/trained/{WEIGHTS}"), export),
    "the pipeline": Case(lambda: flip(f"student/pipeline/transformer/{WEIGHTS}"), sample_student),
    "an image, by the merge": Case(lambda: flip("samples/teacher/*/0.png"), merge_images),
    "an image": Case(lambda: flip("samples/student/*/0.png", 1.0), score),
    "an image is missing": Case(lambda: remove("samples/student/*/0.png"), score),
    "latents": Case(lambda: flip("samples/student/*/0.safetensors", 1.0), score),
    "a shard's table": Case(lambda: flip("samples/teacher/shard-0*"), merge_images),
    "shards of two recipes": Case(lambda: edit_shard(1, recipe="0" * 64), merge_images),
    "an image in two shards": Case(copy_rows, merge_images),
    "the samples' manifest": Case(lambda: flip("samples/student/manifest.parquet", 0.98), score),
    "a manifest without a column": Case(
        lambda: edit_manifest(lambda table: table.drop(columns="latents_sha256")), score
    ),
    "samples of two runs": Case(
        lambda: edit_manifest(lambda table: table.assign(noise_seed=table["noise_seed"] + 1)), score
    ),
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


def test_a_frozen_configuration_that_is_no_json_is_made_again(
    finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`all` does not ask for it; the job that could not read it has lost its outputs."""
    folder = in_copy(finished, tmp_path / "copy", monkeypatch)
    before = contents()
    flip("config/evaluation.json", 0.0)
    done = snakemake(folder, "--forcerun", "evaluation")
    assert done.returncode != 0
    (command,) = set(re.findall(rf"run `(rm -r {TINY}/config/evaluation.json)` and", done.stdout))
    run_shell(command)
    flip("plan.json", 0.0)  # made again without a word: nothing is made of it
    succeed(folder)
    assert contents() == before
    assert read_json(TINY / "plan.json")["run"] == "tiny"


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
