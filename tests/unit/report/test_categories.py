"""Scores by category: each number by hand, what is named, and what changes nothing."""

import numpy as np
import pandas as pd
import pytest

from distillery.measures.intervals import ConfidenceInterval
from distillery.measures.lists import BY_NAME
from distillery.planning.there import has_changed
from distillery.prompts import made_of_rows, read_prompts
from distillery.report.categories import (
    UNCLEAR,
    Category,
    Compared,
    categories_table,
    find_categories,
    find_extremes,
)
from distillery.report.roles import Roles
from distillery.store.tables import write_table

ROLES = Roles("student", "teacher")
EASY, HARD = 12, 10


def table_of(categories):
    return pd.DataFrame(
        {
            "prompt_id": [f"p-{number:03}" for number, _ in enumerate(categories)],
            "index": 0,
            "category": categories,
        }
    )


def scores_of(table, **columns):
    """The student's and the teacher's; the former's CLIP score is 0.9 of the latter's if easy."""
    teacher = 0.5 + 0.01 * np.arange(len(table))
    share = np.where(table["category"] == "easy", 0.9, 0.6)
    rows = [
        table[["prompt_id", "index"]].assign(model=model, **values)
        for model, values in (
            ("student", {"clip_score": share * teacher, "rank": 1, "psnr_db": 20.0 * share}),
            ("teacher", {"clip_score": teacher, "rank": 1, "psnr_db": np.nan}),
            ("other", {"clip_score": 0.0, "rank": 9, "psnr_db": 0.0}),
        )
    ]
    return pd.concat(rows).assign(**columns).sample(frac=1, random_state=0)


@pytest.fixture
def table():
    return table_of(["easy"] * EASY + ["hard"] * HARD + [None, " "])


def test_each_category_has_the_numbers_of_its_prompts(table):
    found = find_categories(table, scores_of(table), ROLES, 200)
    assert {name: it.num_prompts for name, it in found.by_name.items()} == {
        "easy": EASY,
        "hard": HARD,
    }
    assert found.num_without == 2
    clip = {name: it.measures["clip_score"] for name, it in found.by_name.items()}
    assert clip["easy"].reference.mean == pytest.approx(0.5 + 0.01 * 5.5)
    assert clip["easy"].student.mean == pytest.approx(0.9 * 0.555)
    assert clip["easy"].student.low < clip["easy"].student.mean < clip["easy"].student.high
    assert [clip[name].against.mean for name in ("easy", "hard")] == pytest.approx([0.9, 0.6])
    psnr = found.by_name["hard"].measures["psnr_db"]
    assert psnr.student.mean == pytest.approx(12.0)
    assert (psnr.reference, psnr.against) == (None, None)
    assert "latents_mse" not in found.by_name["easy"].measures, "these scores have none"


def test_the_best_and_the_worst_are_named_by_what_is_left_of_the_reference(table):
    """The hard prompts' scores are the higher ones here, and more of them is lost."""
    scores = scores_of(table)
    scores.loc[scores["prompt_id"] >= f"p-{EASY:03}", "clip_score"] *= 3
    found = find_categories(table, scores, ROLES, 200)
    hard, easy = (found.by_name[name].measures["clip_score"] for name in ("hard", "easy"))
    assert hard.student.mean > easy.student.mean
    extremes = found.extremes["clip_score"]
    assert (extremes.best, extremes.worst) == ("easy", "hard")
    assert extremes.text.startswith("best in easy: 90.0\xa0%; worst in hard: 60.0\xa0%")
    assert "retrieval_r1" not in found.extremes, "all prompts are found in both"


@pytest.mark.parametrize(
    ("name", "values", "best", "is_clear"),
    [
        ("psnr_db", {"a": (20, 19, 21), "b": (10, 9, 11)}, "a", True),
        ("latents_mse", {"a": (20, 19, 21), "b": (10, 9, 11)}, "b", True),
        ("psnr_db", {"a": (20, 10, 30), "b": (10, 9, 11)}, "a", False),
        ("psnr_db", {"a": (20, 19, 21), "b": (10, 9, 11), "c": (15, None, None)}, "a", True),
        ("psnr_db", {"a": (20, None, None), "b": (10, 9, 11)}, "a", False),
        ("psnr_db", {"a": (20, 19, 21), "b": (20, 18, 22)}, None, None),
        ("high_frequency", {"a": (2, 1.9, 2.1), "b": (1, 0.9, 1.1)}, None, None),
    ],
)
def test_intervals_tell_whether_best_and_worst_differ(name, values, best, is_clear):
    by_name = {
        category: Category(9, {name: Compared(ConfidenceInterval(*numbers), None)})
        for category, numbers in values.items()
    }
    found = find_extremes(BY_NAME[name], by_name)
    assert (found and found.best, found and found.is_clear) == (best, is_clear)
    if found:
        assert found.text.endswith(UNCLEAR) is not is_clear


def test_the_table_has_the_student_the_reference_and_both_together(table):
    found = find_categories(table, scores_of(table), ROLES, 200)
    shown = categories_table(found, ROLES)
    assert [(it.title, it.hint) for it in shown.columns] == [
        ("CLIP score", "student"),
        ("CLIP score", "teacher"),
        ("of the reference", "CLIP score, paired"),
        ("R@1", "student"),
        ("R@1", "teacher"),
        ("R@1", "student less teacher"),
        ("PSNR", "to the reference"),
    ]
    assert [cell.text for cell in shown.rows["hard"]] == [
        "0.3990", "0.6650", "60.0\xa0%", "100.0\xa0%", "100.0\xa0%", "+0.0\xa0%", "12.00 dB",
    ]  # fmt: skip


def test_there_is_no_table_without_two_categories_or_a_student(table):
    scores = scores_of(table)
    for case, roles in (
        (table.assign(category="all"), ROLES),
        (table.assign(category=None), ROLES),
        (table.drop(columns="category"), ROLES),
        (table, Roles(None, "teacher")),
        (table, Roles("unscored", "teacher")),
    ):
        assert find_categories(case, scores, roles, 200) is None
    assert categories_table(None, ROLES) is None
    numbers = table.assign(category=[1] * EASY + [2] * (len(table) - EASY))
    assert [*find_categories(numbers, scores, ROLES, 200).by_name] == ["1", "2"]


def test_a_category_makes_nothing_again(tmp_path):
    """It is in no digest of embeddings, targets or images, and the plan sees the same prompts."""
    texts = {"plain": "prompt_id,prompt\na,x\nb,y\n"}
    texts["named"] = "prompt_id,prompt,category\na,x,one\nb,y,two\n"
    tables = {}
    for name, text in texts.items():
        (tmp_path / f"{name}.csv").write_text(text)
        tables[name] = read_prompts(tmp_path / f"{name}.csv")
    plain, named = tables.values()
    assert named["category"].tolist() == ["one", "two"]
    assert made_of_rows(named, True) == made_of_rows(plain, True)
    write_table(plain, tmp_path / "eval.parquet")
    assert not has_changed(tmp_path / "eval.parquet", named)
