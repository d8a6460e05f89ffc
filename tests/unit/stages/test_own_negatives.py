"""A prompt's own negative prompt: what is made again when it changes, and what the plan says."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from distillery.config.run import parse_config
from distillery.planning.prompt_tables import read_splits
from distillery.planning.prompts import WEIGHTS, on_negatives, on_weights
from distillery.prompts import NEGATIVE
from distillery.store.embeddings import EmbeddingStore, distinct_texts, members_of
from distillery.store.shards import Manifest
from distillery.teacher.folder import PipelineFolder
from runs import Run, generating_settings, make_run, planned, settings, summary
from tiny import MAX_TOKENS

OWN = ["hill", "", "a bird", "", ""]
MODELS = {
    "teacher": {"source": "teacher"},
    "unguided": {"source": "teacher", "guidance_scale": 1.0},
}
OFF = {"targets": {"guidance_scale": 1.0}, "samples": {"models": {"teacher": MODELS["unguided"]}}}


def with_negatives(path: str | Path, negatives: Sequence[str]) -> None:
    """Give the first prompts of a file negative prompts, and the others none."""
    table = pd.read_csv(path)
    table[NEGATIVE] = [*negatives, *[""] * (len(table) - len(negatives))]
    table.to_csv(path, index=False)


def made(folder: Path, teacher: Path, negatives: Sequence[str] | None) -> Run:
    """Targets in three chunks of four, images of a guided and of an unguided model."""
    run = make_run(folder, teacher, targets={"steps": 2}, samples={"models": MODELS})
    for split, path in (("train", run.config.prompts.train), ("eval", run.config.prompts.eval)):
        if negatives is not None:
            assert path is not None
            with_negatives(path, negatives)
        run.encode(split)
    run.all_targets()
    for model in MODELS:
        run.samples(model=model)
    return run


def written(run: Run) -> dict[str, int]:
    """When each chunk and image was written; chunks of embeddings and targets by their stage."""
    found = {}
    for path in run.folder.glob("**/*.*"):
        if path.suffix in (".png", ".safetensors"):
            name = path.relative_to(run.folder)
            is_chunk = path.name.startswith("chunk")
            parts = [part for part in name.parts if not (is_chunk and len(part) == 12)]
            found["/".join(parts)] = path.stat().st_mtime_ns
    return found


def test_one_changed_negative_prompt_remakes_what_depends_on_it(
    teacher: Path, tmp_path: Path
) -> None:
    before = written(made(tmp_path, teacher, OWN))
    assert len(before) == 3 + 2 + 3 + 2 * 2 * 5
    after = written(made(tmp_path, teacher, ["hill", "", "a cat", "", ""]))
    assert {name for name, time in after.items() if before.get(name) != time} == {
        "embeddings/train/chunk-000002.safetensors",
        "embeddings/eval/chunk-000001.safetensors",
        "targets/chunk-000000.safetensors",
        "samples/teacher/p002/0.png",
        "samples/teacher/p002/0.safetensors",
    }


def test_an_empty_column_is_as_none(teacher: Path, tmp_path: Path) -> None:
    before = written(made(tmp_path, teacher, None))
    assert written(made(tmp_path, teacher, [""] * 5)) == before


def test_a_text_as_prompt_and_as_negative_prompt_are_two() -> None:
    """Equal lists of texts, one of them read otherwise by some families."""
    first = pd.DataFrame({"prompt": ["a dog", "hill"]})
    second = pd.DataFrame({"prompt": ["a dog"], NEGATIVE: ["hill"]})
    texts = [distinct_texts(table, "x") for table in (first, second)]
    assert [len(it.texts) for it in texts] == [3, 3]
    assert members_of(texts[0].texts) != members_of(texts[1].texts)
    assert texts[1].negative_of_row == [2]
    both = distinct_texts(pd.DataFrame({"prompt": ["hill", "hill"], NEGATIVE: ["hill", "x"]}), "x")
    assert (both.prompt_of_row, both.negative_of_row) == ([1, 1], [2, 0])


def test_embeddings_of_another_negative_prompt_are_refused(teacher: Path, tmp_path: Path) -> None:
    run = make_run(tmp_path, teacher)
    with_negatives(str(run.config.prompts.train), OWN)
    run.encode("train")
    table = pd.read_parquet(run.prompts("train"))
    store = EmbeddingStore(run.embeddings("train"), table)
    assert store.negative_row(1)["prompt_embeds"].equal(store.negative["prompt_embeds"])
    assert not store.negative_row(0)["prompt_embeds"].equal(store.negative["prompt_embeds"])
    table.loc[0, NEGATIVE] = "a cat"
    with pytest.raises(ValueError, match="embeddings of other prompts than the table's"):
        EmbeddingStore(run.embeddings("train"), table)


def test_targets_without_guidance_do_not_depend_on_it(teacher: Path, tmp_path: Path) -> None:
    members = []
    for negatives in (OWN, ["house", *OWN[1:]]):
        run = make_run(tmp_path, teacher, targets={"guidance_scale": 1.0})
        with_negatives(str(run.config.prompts.train), negatives)
        run.encode("train")
        manifest = Manifest.read(run.targets())
        members.append([chunk.members for chunk in manifest.chunks])
    assert members[0] == members[1]


def plan_of(raw: dict[str, Any], folder: Path, negatives: dict[str, Sequence[str]]) -> list[str]:
    """The plan's advice, where the files of `negatives` have such prompts."""
    for split, own in negatives.items():
        with_negatives(raw["prompts"][split], own)
    plan = planned(raw, folder)
    assert all(line in summary(plan) for line in plan["advice"])
    advice: list[str] = plan["advice"]
    return advice


@pytest.mark.parametrize("split", ["train", "eval"])
def test_a_long_negative_prompt_of_any_row_is_refused(
    teacher: Path, tmp_path: Path, split: str
) -> None:
    raw = settings(tmp_path, teacher)
    long = " ".join(["a"] * MAX_TOKENS)
    with pytest.raises(ValueError, match=r"1 prompts are longer than the teacher reads"):
        plan_of(raw, tmp_path, {split: ["", long]})


def test_negative_prompts_that_nothing_uses_are_refused(teacher: Path, tmp_path: Path) -> None:
    refusal = r"^prompts\.train and prompts\.eval: the column negative_prompt has texts, and witho"
    with pytest.raises(ValueError, match=refusal):
        plan_of(settings(tmp_path, teacher, **OFF), tmp_path, {"train": OWN, "eval": OWN})
    generating = generating_settings(tmp_path / "only", teacher)
    generating["samples"]["models"]["teacher"]["guidance_scale"] = 1.0
    with pytest.raises(ValueError, match=r"^prompts\.eval: the column negative_prompt has texts"):
        plan_of(generating, tmp_path, {"eval": OWN})
    empty = parse_config(settings(tmp_path / "empty", teacher, **OFF), "tiny")
    with_negatives(empty.prompts.files[0], ["", ""])
    assert not list(on_negatives(empty, read_splits(empty.prompts), PipelineFolder(teacher)))


def test_a_split_whose_negative_prompts_nothing_uses_is_noted(
    teacher: Path, tmp_path: Path
) -> None:
    start = "the column negative_prompt of the train prompts is not used: without guidance"
    raw = settings(tmp_path, teacher, targets=OFF["targets"], samples={"models": MODELS})
    raw["samples"]["models"]["guided"] = {"source": "teacher", "guidance_scale": 3.0}
    advice = plan_of(raw, tmp_path, {"train": OWN, "eval": OWN})
    assert [line for line in advice if "negative_prompt" in line and line.startswith(start)]
    assert not [line for line in advice if "of the eval prompts is not used" in line]
    used = parse_config(settings(tmp_path / "used", teacher), "tiny")
    for path in used.prompts.files:
        with_negatives(path, OWN)
    assert not list(on_negatives(used, read_splits(used.prompts), PipelineFolder(teacher)))


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("a (red:1.3) dog", "(red:1.3)"),
        ("a (big red: .8 ) dog", "(big red: .8 )"),
        ("a ((red)) dog", "((red))"),
        ("a [[red]] dog", "[[red]]"),
        ("a dog <lora:fur:0.7>", "<lora:fur:0.7>"),
        ("a dog (16:9), at 12:30 (a pug)", None),
        ("a [red] dog: 3 of them", None),
    ],
)
def test_weights_are_found_where_other_tools_read_them(text: str, found: str | None) -> None:
    match = WEIGHTS.search(text)
    assert (match and match[0]) == found


def test_weights_are_noted_with_their_number(teacher: Path, tmp_path: Path) -> None:
    raw = settings(tmp_path, teacher)
    assert not list(on_weights(read_splits(parse_config(raw, "tiny").prompts)))
    path = Path(raw["prompts"]["train"])
    path.write_text(path.read_text() + "x,((a dog)),\ny,a (dog:2),\nz,a (dog:2),\n")
    (line,) = [it for it in plan_of(raw, tmp_path, {"eval": ["((a))"]}) if "weights such" in it]
    assert line == "3 prompts have weights such as '((a dog))': Diffusers reads them as text"
