"""Targets and samples: the same bytes however the work is cut, and only what is missing is made."""

import shutil
from collections.abc import Mapping
from pathlib import Path

import pandas as pd
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file

from distillery.generation import embeddings as embeddings_stage
from distillery.generation.sample_tables import merge_samples
from distillery.noise import SampleId, noise_seed
from distillery.prompts import REQUIRED, RESERVED
from distillery.store.chunks import (
    ChunkIdentity,
    ForeignChunkError,
    read_chunk,
)
from distillery.store.embeddings import EmbeddingStore
from distillery.store.shards import Manifest
from distillery.store.tables import read_table, write_table
from distillery.store.trajectories import TrajectoryStore
from distillery.telemetry import read_events
from runs import Run, fresh, make_run, rewritten, times
from tiny import tiny_prompts


def spoil(monkeypatch: pytest.MonkeyPatch, spoiled_row: int, error: Exception | None) -> None:
    """Let the stored embedding of a prompt be NaN, or reading it raise an error."""
    original = EmbeddingStore.row

    def row(self: EmbeddingStore, row: int) -> Mapping[str, torch.Tensor]:
        found = original(self, row)
        if row != spoiled_row:
            return found
        if error is not None:
            raise error
        return {name: torch.full_like(value, torch.nan) for name, value in found.items()}

    monkeypatch.setattr(EmbeddingStore, "row", row)


def test_the_number_of_shards_changes_no_byte(finished: Run, tmp_path: Path) -> None:
    """Five, of which some have nothing to do; `finished` has one."""
    run = fresh(finished, tmp_path)
    manifest, table = run.all_targets(5), run.all_samples(5)
    assert run.chunks() == finished.chunks()
    assert len(run.chunks()) == 3
    assert run.images() == finished.images()
    assert len(run.images()) == 10
    for ours in (manifest, table):
        theirs = finished.folder / ours.relative_to(run.folder)
        assert ours.read_bytes() == theirs.read_bytes()


def test_another_number_of_shards_finds_all_chunks_made(run: Run) -> None:
    before = times(run)
    run.all_targets(2)
    run.all_samples(3)
    assert not rewritten(before, times(run))


def test_an_empty_shard_finishes(finished: Run, tmp_path: Path) -> None:
    run = fresh(finished, tmp_path)
    assert Manifest.read(run.targets(4, 5)).num_samples == 0
    table = pd.read_parquet(run.samples(4, 5))
    assert len(table) == 0
    assert list(table.columns) == [*REQUIRED, *RESERVED, "style"]


@pytest.mark.parametrize("damage", ["truncate", "flip", "remove"])
def test_only_what_is_damaged_is_made_again(run: Run, damage: str) -> None:
    before, bytes_before = times(run), (run.chunks(), run.images())
    folder = run.folder / "samples" / "teacher"
    (chunk,) = (run.folder / "targets").glob("*/chunk-000001.safetensors")
    spoiled = [chunk, folder / "p001" / "0.png", folder / "p003" / "0.safetensors"]
    for path in spoiled:
        content = bytearray(path.read_bytes())
        content[len(content) // 2] ^= 1
        path.write_bytes(content if damage == "flip" else content[:-40])
        if damage == "remove":
            path.unlink()
    run.all_targets()
    run.all_samples()
    assert (run.chunks(), run.images()) == bytes_before
    expected = {"chunk-000001.safetensors", "0.png", "0.safetensors"}
    changed = {path for path, time in times(run).items() if before[path] != time}
    assert {path.name for path in changed} == expected
    assert {path.parent.name for path in changed} == {chunk.parent.name, "p001", "p003"}


def test_another_recipe_has_its_own_folder_and_keeps_the_old(run: Run) -> None:
    old = run.chunks()
    changed = run.config.targets.model_copy(update={"guidance_scale": 2.0})
    other = Run(run.folder, run.config.model_copy(update={"targets": changed}))
    before = times(run)
    other.all_targets()
    assert len(list((run.folder / "targets").glob("*/chunk-*"))) == 6
    assert all(times(run)[path] == time for path, time in before.items())
    run.all_targets()
    store = TrajectoryStore(run.folder / "targets" / "manifest.json")
    assert store.recipe.guidance_scale == 3.0
    assert set(old.values()) < {path.read_bytes() for path in run.folder.glob("targets/*/chunk-*")}


def test_a_foreign_chunk_is_refused_and_stays(run: Run, finished: Run) -> None:
    changed = run.config.targets.model_copy(update={"guidance_scale": 2.0})
    Run(run.folder, run.config.model_copy(update={"targets": changed})).targets()
    (mine,) = finished.folder.glob("targets/*/chunk-000000.safetensors")
    (place,) = run.folder.glob(f"targets/{mine.parent.name}/chunk-000000.safetensors")
    (foreign,) = {*run.folder.glob("targets/*/chunk-000000.safetensors")} - {place}
    content = foreign.read_bytes()
    place.write_bytes(content)
    with pytest.raises(ForeignChunkError, match=r"was made by recipe .* move the file away"):
        run.targets()
    assert place.read_bytes() == content


def test_a_changed_prompt_remakes_its_chunk_alone(run: Run) -> None:
    before = times(run)
    path = Path(run.config.prompts.train)
    prompts = pd.read_csv(path)
    changed = path.with_name("changed.csv")
    prompts.assign(prompt=[*prompts["prompt"][:-1], "a red house"]).to_csv(changed, index=False)
    section = run.config.prompts.model_copy(update={"train": str(changed)})
    other = Run(run.folder, run.config.model_copy(update={"prompts": section}))
    other.encode("train")
    other.all_targets()
    assert rewritten(before, times(run)) == {"chunk-000002.safetensors"}


def test_changed_prompts_train_another_student(run: Run) -> None:
    """From the start: a checkpoint of the other prompts is of another training."""
    table = pd.read_csv(run.config.prompts.train)
    weights, found = run.folder / "student/trained/diffusion_pytorch_model.safetensors", {}
    for name in ("before", "changed", "undone"):
        changed = table.assign(prompt="another " + table["prompt"])
        (changed if name == "changed" else table).to_csv(run.config.prompts.train, index=False)
        run.encode("train")
        run.all_targets()
        run.train_and_export()
        found[name] = weights.read_bytes()
    assert found["before"] == found["undone"] != found["changed"]
    assert len(list((run.folder / "student" / "checkpoints").iterdir())) == 2


def test_one_trajectory_that_is_not_finite_loses_its_chunk_alone(
    finished: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = fresh(finished, tmp_path)
    spoil(monkeypatch, 2, None)
    with pytest.raises(ValueError, match=r"1 of 3 chunks.* prompt p002: .*/transformer may be"):
        run.targets()
    assert sorted(run.chunks()) == ["chunk-000001.safetensors", "chunk-000002.safetensors"]
    assert not list(run.folder.glob("targets/*.json")), "nobody lists an incomplete shard"
    monkeypatch.undo()
    run.all_targets()
    assert run.chunks() == finished.chunks()


def test_one_image_that_is_not_finite_loses_no_other(
    finished: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = fresh(finished, tmp_path)
    spoil(monkeypatch, 2, None)
    with pytest.raises(ValueError, match=r"1 of 5 images.*\n  p002/0: its latents"):
        run.samples()
    assert not list(run.folder.glob("samples/teacher/p002/*"))
    assert len(run.images()) == 8
    assert not list(run.folder.glob("samples/teacher/*.parquet"))
    monkeypatch.undo()
    run.samples()
    assert run.images() == finished.images()


def test_a_batch_that_fails_is_named_and_the_others_are_made(
    finished: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = fresh(finished, tmp_path)
    spoil(monkeypatch, 3, RuntimeError("no such luck"))
    with pytest.raises(
        ValueError, match=r"2 of 5.*\n  p002/0: no such luck\n  p003/0: no such luck"
    ):
        run.samples()
    assert len(run.images()) == 6


def test_an_embedding_that_is_not_finite_is_named(
    teacher: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = make_run(tmp_path, teacher)
    load = embeddings_stage.load_teacher

    def spoiled(*args: object, **kwargs: object) -> object:
        pipeline = load(*args, **kwargs)  # type: ignore[arg-type]
        pipeline.text_encoder.shared.weight.data[4] = torch.nan
        return pipeline

    monkeypatch.setattr(embeddings_stage, "load_teacher", spoiled)
    with pytest.raises(ValueError, match=r"not finite for 'a red dog'") as told:
        run.encode("train")
    damaged = f"the weights in {teacher / 'text_encoder'} may be damaged: get them again"
    assert str(told.value).endswith(f"teacher.dtype is float32, so {damaged}")


@pytest.mark.parametrize("is_in_file", [False, True])
def test_targets_that_are_not_finite_name_the_weights_that_were_read(
    teacher: Path, tmp_path: Path, is_in_file: bool
) -> None:
    copy = tmp_path / "teacher"
    shutil.copytree(teacher, copy)
    (inside,) = (copy / "transformer").glob("*.safetensors")
    file = tmp_path / "own.safetensors" if is_in_file else inside
    tensors = load_file(inside)
    tensors["proj_out.weight"][0, 0] = torch.nan
    save_file(tensors, file, {"format": "pt"})
    run = make_run(tmp_path, copy, teacher={"weights": str(file)} if is_in_file else {})
    run.encode("train")
    with pytest.raises(ValueError, match="the teacher gave values that are not finite") as told:
        run.all_targets()
    named = file if is_in_file else inside.parent
    assert f"so the weights in {named} may be damaged: get them again" in str(told.value)


def test_several_samples_of_a_prompt_have_their_own_noise(teacher: Path, tmp_path: Path) -> None:
    run = make_run(
        tmp_path, teacher, targets={"samples_per_prompt": 3}, samples={"images_per_prompt": 2}
    )
    run.encode("train")
    run.encode("eval")
    store = TrajectoryStore(run.all_targets(2))
    assert store.num_samples == 27
    assert [store.prompt_row(sample) for sample in (0, 2, 3, 26)] == [0, 0, 1, 8]
    for sample, identity in ((2, SampleId("p000", 2)), (26, SampleId("p008", 2))):
        generator = torch.Generator().manual_seed(noise_seed(0, identity))
        noise = torch.randn(store.recipe.latent_shape, generator=generator)
        assert store.states(sample, 0, 0)[0].equal(noise)
    table = pd.read_parquet(run.all_samples(2))
    assert table["file"].tolist()[:3] == ["p000/0.png", "p000/1.png", "p001/0.png"]
    assert table["sha256"].nunique() == len(table) == 10


def test_the_tail_is_padded_so_its_bytes_do_not_depend_on_its_size(
    finished: Run, teacher: Path, tmp_path: Path
) -> None:
    """Trap 4: nine prompts in batches of two; alone or with a neighbour, a sample is the same."""
    run = make_run(tmp_path, teacher)
    ten = tiny_prompts(10)
    ten.to_csv(run.config.prompts.train, index=False)
    ten.head(6).to_csv(run.config.prompts.eval, index=False)
    run.encode("train")
    run.encode("eval")
    run.all_samples()
    for name in ("p004/0.png", "p004/0.safetensors"):
        ours = read_image(run.folder / "samples" / "teacher" / name)
        assert ours == read_image(finished.folder / "samples" / "teacher" / name)
    stores = [
        TrajectoryStore(folder / "targets" / "manifest.json")
        for folder in (finished.folder, run.all_targets().parents[1])
    ]
    one, other = (store.states(8, 0, 2)[1] for store in stores)
    assert one.equal(other)


def read_image(path: Path) -> bytes:
    """The pixels or the latents; their headers name the recipe."""
    if path.suffix == ".png":
        return Image.open(path).tobytes()
    header = 8 + int.from_bytes(path.read_bytes()[:8], "little")
    return path.read_bytes()[header:]


def test_the_table_of_samples(finished: Run) -> None:
    table = pd.read_parquet(finished.folder / "samples" / "teacher" / "manifest.parquet")
    assert list(table.columns) == [*REQUIRED, *RESERVED[:-1], "style"]
    row = table.iloc[1].to_dict()
    assert row["prompt"] == "a green dog"
    assert row["style"] == "style 1"
    assert row["noise_seed"] == noise_seed(0, SampleId("p001", 0))
    assert (row["steps"], row["guidance_scale"], row["network_calls"]) == (4, 3.0, 8)
    image = Image.open(finished.folder / "samples" / "teacher" / row["file"])
    assert image.size == (row["width"], row["height"])
    assert image.text["prompt"] == "a green dog"  # type: ignore[attr-defined]
    assert image.text["recipe"] == row["recipe"]  # type: ignore[attr-defined]


def test_saved_latents_are_the_end_of_the_trajectory(finished: Run) -> None:
    """The same prompts, noise and settings: targets and samples agree."""
    store = TrajectoryStore(finished.folder / "targets" / "manifest.json")
    for sample in range(4):
        path = finished.folder / "samples" / "teacher" / f"p{sample:03d}" / "0.safetensors"
        torch.testing.assert_close(
            load_file(path)["latents"], store.states(sample, 0, 2)[1], rtol=0, atol=1e-5
        )


def test_a_student_without_pipeline_is_not_sampled_from_the_teacher(
    finished: Run, teacher: Path
) -> None:
    with pytest.raises(ValueError, match="source is 'student', but no --pipeline was given"):
        finished.samples(model="student")
    with pytest.raises(ValueError, match=r"source is 'teacher', but --pipeline is .*pipeline"):
        finished.samples(model="teacher", pipeline=teacher)
    with pytest.raises(ValueError, match="source is 'untrained', but no --pipeline was given"):
        finished.samples(model="untrained")


def test_merging_samples_looks_at_every_file_and_shard(run: Run, tmp_path: Path) -> None:
    shards = [run.samples(part, 2) for part in range(2)]
    output = shards[0].parent / "merged.parquet"
    with pytest.raises(ValueError, match="1 shards of a set of 2"):
        merge_samples(shards[:1], output)
    with pytest.raises(ValueError, match=r"stands in two of the shards"):
        merge_samples([shards[0], Path(shutil.copy(shards[0], tmp_path))], output)
    merge_samples(list(reversed(shards)), output)
    assert pd.read_parquet(output)["prompt_id"].tolist() == [f"p{row:03d}" for row in range(5)]
    for name in ("p004/0.png", "p004/0.safetensors"):
        path = output.parent / name
        content = path.read_bytes()
        path.write_bytes(content[:-1])
        with pytest.raises(
            ValueError, match=rf"{name} is missing or damaged: run `rm .*shard-1-of"
        ):
            merge_samples(shards, output)
        path.write_bytes(content)


def test_shards_without_an_image_are_not_merged(run: Run, tmp_path: Path) -> None:
    empty = tmp_path / "shard-1-of-2.parquet"
    write_table(read_table(run.samples(0, 1)).head(0), empty)
    with pytest.raises(ValueError, match=f"there is no image in {empty}"):
        merge_samples([empty], tmp_path / "merged.parquet")


def test_embeddings_of_another_table_are_refused(run: Run) -> None:
    table = pd.read_parquet(run.prompts("train"))
    EmbeddingStore(run.embeddings("train"), table)
    for other in (
        table.assign(prompt=[*table["prompt"][:-1], "a red house"]),
        table.head(3),
        table.iloc[::-1],
        pd.concat([table, table.tail(1).assign(prompt="a new one")]),
    ):
        with pytest.raises(ValueError, match="other prompts than the table's"):
            EmbeddingStore(run.embeddings("train"), other)


def test_a_damaged_chunk_of_a_store_is_named_when_it_is_opened(run: Run) -> None:
    for folder, opened in (
        ("targets", lambda: TrajectoryStore(run.folder / "targets" / "manifest.json")),
        ("embeddings/train", lambda: run.targets()),
    ):
        path = next((run.folder / folder).glob("*/chunk-000001.safetensors"))
        path.write_bytes(path.read_bytes()[:-1])
        with pytest.raises(ValueError, match=r"chunk-000001.*damaged.*: run `rm -r .*chunk-000001"):
            opened()


def test_chunks_say_what_is_in_them(finished: Run) -> None:
    manifest = Manifest.open(finished.folder / "targets" / "manifest.json")
    for chunk in manifest.chunks:
        tensors = read_chunk(
            finished.folder / "targets" / chunk.file,
            ChunkIdentity(manifest.recipe_hash, chunk.members),
        )
        assert tensors["noisy"].shape == (chunk.num_samples, 3, 4, 1, 4, 4)
        assert tensors["sigmas"].tolist() == manifest.recipe["schedule"]["sigmas"]
    assert "num_shards" not in manifest.recipe


def test_events_count_what_was_made(finished: Run) -> None:
    events = read_events(finished.folder / "telemetry")
    made = sum(event.num_items for event in events if event.job == "targets-0-of-1")
    assert made == 9
    assert sum(event.num_items for event in events if event.job == "samples-teacher-0-of-1") == 5
