"""One prompt file for both splits: nothing on both sides, and nothing moves for added rows."""

from itertools import permutations
from pathlib import Path

import pandas as pd
import pytest

from distillery.config.jobs import PromptsJob
from distillery.config.run import Prompts
from distillery.pipeline import STAGES
from distillery.planning.plan import make_plan
from distillery.planning.prompt_tables import make_prompt_table, read_split, read_splits
from distillery.prompts import held_out
from runs import make_run

SIDES = [True, False, False, True]
TEXTS = [f"a {color} dog number {number}" for number in range(100) for color in ("red", "blue")]


def write(path: Path, texts: list[str]) -> Prompts:
    ids = [f"id-{row}" for row in range(len(texts))]
    pd.DataFrame({"prompt_id": ids, "prompt": texts}).to_csv(path, index=False)
    return Prompts(train=str(path), eval_fraction=0.2)


def split(path: Path, texts: list[str]) -> tuple[list[str], list[str]]:
    tables = read_splits(write(path, texts))
    return tables["train"]["prompt"].tolist(), tables["eval"]["prompt"].tolist()


def test_each_row_is_in_one_split_in_the_order_of_the_file(tmp_path: Path) -> None:
    train, held = split(tmp_path / "all.csv", TEXTS)
    assert sorted(train + held) == sorted(TEXTS)
    assert train == [text for text in TEXTS if text in train]
    assert held == [text for text in TEXTS if text in held]
    assert 20 < len(held) < 60


def test_added_and_moved_rows_change_no_others_side(tmp_path: Path) -> None:
    train, held = split(tmp_path / "all.csv", TEXTS)
    more = [f"a bird number {number}" for number in range(300)]
    more_train, more_held = split(tmp_path / "more.csv", more[:100] + TEXTS[::-1] + more[100:])
    assert set(train) < set(more_train)
    assert set(held) < set(more_held)


def test_texts_that_are_alike_are_on_one_side(tmp_path: Path) -> None:
    alike = [text.replace("a ", "A  ").upper() + " " for text in TEXTS]
    train, held = split(tmp_path / "all.csv", TEXTS + alike + TEXTS)
    plain = [{" ".join(text.lower().split()) for text in side} for side in (train, held)]
    assert not plain[0] & plain[1]
    assert len(train) + len(held) == 3 * len(TEXTS)


def test_a_larger_fraction_keeps_what_a_smaller_one_held_out() -> None:
    few, many = held_out(TEXTS, 0.1), held_out(TEXTS, 0.4)
    assert all(after for before, after in zip(few, many, strict=True) if before)
    assert sum(few) < sum(many)


def test_the_side_is_kept_for_ever() -> None:
    """Written down, not computed: another hash would train on what was held out."""
    assert held_out(["a red dog", "a blue dog", "a cat", "a bird"], 0.5) == SIDES


def test_a_split_that_would_be_empty_is_refused_with_numbers(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"0\.0001 and holds out none of 200 prompts: use ") as no:
        held_out(TEXTS, 0.0001)
    least = float(str(no.value).partition("use ")[2].split()[0])
    assert any(held_out(TEXTS, least))
    with pytest.raises(ValueError, match=r"holds out all 200 prompts, so that none is left"):
        held_out(TEXTS, 0.9999)
    prompts = write(tmp_path / "all.csv", ["a red dog"] * 3)
    with pytest.raises(ValueError, match=r"prompts\.eval_fraction is 0\.2 and holds out"):
        read_split(prompts, "train")


def test_numbered_prompts_have_ids_of_their_split(tmp_path: Path) -> None:
    path = tmp_path / "all.txt"
    path.write_text("\n".join(TEXTS))
    shared = read_splits(Prompts(train=str(path), eval_fraction=0.2))
    apart = read_splits(Prompts(train=str(path), eval=str(path)))
    for tables in (shared, apart):
        ids = {name: set(table["prompt_id"]) for name, table in tables.items()}
        assert all(name.startswith("t") for name in ids["train"])
        assert all(name.startswith("p") for name in ids["eval"])
    whole = dict(zip(apart["eval"]["prompt"], apart["eval"]["prompt_id"], strict=True))
    assert dict(
        zip(shared["eval"]["prompt"], shared["eval"]["prompt_id"], strict=True)
    ).items() <= (whole.items())


def test_the_stage_writes_what_the_plan_counts(teacher: Path, tmp_path: Path) -> None:
    words = map("".join, permutations("abcdefgh", 3))  # the tiny tokenizer knows no digits
    write(tmp_path / "all.csv", [f"a dog {word}" for word in words])
    section = {"train": str(tmp_path / "all.csv"), "eval": None, "eval_fraction": 0.2}
    run = make_run(tmp_path / "run", teacher, teacher={"long_prompts": "truncate"}, prompts=section)
    counted = {}
    for name in ("train", "eval"):
        output = tmp_path / f"{name}.parquet"
        job, folder = run.job("prompts", PromptsJob), run.files
        make_prompt_table(job, name, folder, output)  # type: ignore[arg-type]
        counted[name] = len(pd.read_parquet(output))
    plan = run.folder / "plan.json"
    make_plan(STAGES, run.config, plan)
    assert f'"num_prompts":{{"eval":{counted["eval"]},"train":{counted["train"]}}}' in (
        "".join(plan.read_text().split())
    )
    assert "are also in prompts.train" not in plan.read_text()
