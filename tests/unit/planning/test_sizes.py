"""Prompts with sizes of their own: what the plan says of them, and what is made again."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from distillery.config.run import parse_config
from distillery.families import Size
from distillery.planning.prompt_tables import read_splits
from distillery.planning.sizes import on_sizes, share_of_usual
from distillery.store.trajectories import rows_of_chunks
from distillery.teacher.folder import find_teacher
from distillery.training.batches import Turns
from runs import make_run, planned, settings, summary
from training_phases import phases

USUAL = (32, 32)
OWN = [None, (48, 32), None, (32, 64)]


def with_sizes(path: str | Path, own: Sequence[tuple[int, int] | None]) -> None:
    """Give the first prompts of a file sizes, and the others none."""
    table = pd.read_csv(path)
    padded = [*own, *[None] * (len(table) - len(own))]
    for place, name in enumerate(("height", "width")):
        table[name] = pd.array([size and size[place] for size in padded], dtype="Int64")
    table.to_csv(path, index=False)


def notes_of(raw: dict[str, Any], own: dict[str, Sequence[Any]]) -> list[str]:
    """What the plan says of the sizes of a file's prompts."""
    for split, sizes in own.items():
        with_sizes(raw["prompts"][split], sizes)
    config = parse_config(raw, "tiny")
    notes = on_sizes(config, find_teacher(config.teacher), read_splits(config.prompts))
    return [f"{note.kind}: {note}" for note in notes]


def test_the_plan_counts_what_each_size_takes(teacher: Path, tmp_path: Path) -> None:
    raw = settings(tmp_path, teacher, training={"global_batch_size": 2})
    plain = planned(raw, tmp_path / "plain")
    with_sizes(raw["prompts"]["train"], OWN)
    plan = planned(raw, tmp_path / "sized")
    num_prompts = plan["work"]["num_prompts"]["train"]
    pixels = 32 * 32 * (num_prompts - 2) + 48 * 32 + 32 * 64
    share = pixels / (32 * 32 * num_prompts)
    assert (
        share_of_usual(read_splits(parse_config(raw, "tiny").prompts)["train"], Size(*USUAL))
        == share
    )
    bytes_of_one = plain["work"]["trajectory_bytes"] * share
    assert plan["work"]["trajectory_bytes"] == pytest.approx(bytes_of_one, rel=0.01)
    assert plan["work"]["num_chunks"] > plain["work"]["num_chunks"]
    assert "32 \N{MULTIPLICATION SIGN} 64 of 1" in summary(plan)
    assert "sizes" not in [name for name, _ in plain["page"]["parts"][0]["facts"]]


@pytest.mark.parametrize("split", ["train", "eval"])
def test_a_size_that_cannot_be_made_is_named_with_its_prompts(
    teacher: Path, tmp_path: Path, split: str
) -> None:
    raw = settings(tmp_path, teacher)
    notes = notes_of(raw, {split: [None, (40, 32), (40, 32)]})
    (note,) = [note for note in notes if note.startswith("error")]
    path = raw["prompts"][split]
    assert note.startswith(f"error: 2 prompts of {path} (p001, p002) cannot be made: height is 40")
    assert "a multiple of 16" in note
    assert "use 32" in note


@pytest.mark.parametrize(("name", "size"), [("height", (528, 32)), ("width", (32, 528))])
def test_a_size_beyond_the_networks_positions_is_named_with_its_prompts(
    teacher: Path, tmp_path: Path, name: str, size: tuple[int, int]
) -> None:
    raw = settings(tmp_path, teacher)
    (note,) = [note for note in notes_of(raw, {"eval": [size]}) if note.startswith("error")]
    assert f"(p000) cannot be made: {name} is 528: this model's positions end at 512; use" in note


def test_a_teacher_that_is_to_be_learnt_takes_one_size(teacher: Path, tmp_path: Path) -> None:
    """Which the plan says before anything is learnt; the same size in words is no other."""
    trace = {"unguided": {"guidance_scale": 1.0}}
    raw = settings(tmp_path, teacher, teacher={"trace": trace})
    with_sizes(raw["prompts"]["train"], [USUAL])
    planned(raw, tmp_path / "usual")
    for split in ("train", "eval"):
        raw = settings(tmp_path, teacher, teacher={"trace": trace})
        with_sizes(raw["prompts"][split], [None, USUAL, (48, 32)])
        refused = rf"1 prompt of {raw['prompts'][split]} \(p002\) .* teacher\.trace is set"
        with pytest.raises(ValueError, match=refused):
            planned(raw, tmp_path / split)


@pytest.mark.parametrize(
    "listed",
    [{"rounds": {"count": 1, "samples": 8}}, {"online": {"samples": 8, "steps": 1}}],
)
def test_ways_that_learn_at_one_size_are_refused(
    teacher: Path, tmp_path: Path, listed: dict[str, Any]
) -> None:
    training = {"phases": phases(stored=8, **listed), "global_batch_size": 2}
    raw = settings(tmp_path, teacher, training=training)
    assert not notes_of(raw, {"eval": OWN}), "images of any size are drawn"
    (way,) = listed
    (note,) = notes_of(raw, {"train": [(48, 32)] * 9})
    assert note.startswith(f"error: training.phases has {way}")


def test_few_prompts_of_a_size_are_doubtful(teacher: Path, tmp_path: Path) -> None:
    raw = settings(
        tmp_path, teacher, training={"phases": phases(stored=64), "global_batch_size": 8}
    )
    notes = notes_of(raw, {"train": [(48, 32), (48, 32)]})
    assert any(note.startswith("doubt: 2 prompts of 48") for note in notes)


def test_a_changed_size_remakes_what_depends_on_it(teacher: Path, tmp_path: Path) -> None:
    made = []
    for own in ([None, (48, 32)], [None, (32, 48)]):
        run = make_run(tmp_path, teacher, targets={"steps": 2})
        for split, path in (("train", run.config.prompts.train), ("eval", run.config.prompts.eval)):
            assert path is not None
            with_sizes(path, own)
            run.encode(split)
        run.all_targets()
        run.all_samples()
        made.append((run.chunks(), run.images()))
    (chunks, images), (other_chunks, other_images) = made
    assert [name for name in chunks if chunks[name] != other_chunks[name]] == [sorted(chunks)[-1]]
    changed = {name.split("/")[1] for name in images if images[name] != other_images[name]}
    assert changed == {"p001"}


def test_chunks_are_of_one_size_and_hold_all() -> None:
    chunks = rows_of_chunks([None, "b", None, "b", None], samples_per_prompt=2, chunk_size=3)
    assert chunks == [[0, 1, 4], [5, 8, 9], [2, 3, 6], [7]]


def test_each_size_has_its_share_of_the_updates() -> None:
    kinds = [range(5), range(5, 8), range(8, 10)]
    turns = Turns(kinds)
    found = [turns.at(8 * number, 8 * number + 8, 8) for number in range(30)]
    for upto in range(1, 31):
        for kind in kinds:
            share = sum(of == kind for of, _, _ in found[:upto])
            assert abs(share - upto * len(kind) / 10) < 1
    for kind in kinds:
        starts = [start for of, start, _ in found if of == kind]
        assert starts == [8 * number for number in range(len(starts))]
    assert Turns(kinds).at(8 * 29 + 3, 8 * 29 + 5, 8) == (
        found[29][0],
        found[29][1] + 3,
        found[29][1] + 5,
    ), "found from its number alone"
