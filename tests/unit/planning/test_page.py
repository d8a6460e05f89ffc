"""The plan's page: what it names, in which order, as text and as HTML."""

import re
from io import StringIO
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from adapters import make_adapter
from distillery.config.run import parse_config
from distillery.files import read_json
from distillery.pipeline import STAGES
from distillery.planning.html import Tile, html_of, shares_of, tiles_of
from distillery.planning.page import Page, Part, Table, in_words, page_of, without_empty
from distillery.planning.plan import doubts_part, make_plan
from distillery.planning.text import is_numeric, print_page, text_of
from distillery.words import counted
from probes import write_probe
from runs import generating_settings, planned, settings, summary
from training_phases import phases


def facts(plan: dict[str, Any], part: str = "What runs") -> dict[str, str]:
    (found,) = (each for each in page_of(plan).parts if each.title == part)
    return dict(found.facts)


def test_the_order_is_runs_there_costs_doubts(teacher: Path, tmp_path: Path) -> None:
    text = summary(planned(settings(tmp_path, teacher), tmp_path))
    heads = re.findall(r"^(?! )\S.*$", text, flags=re.MULTILINE)
    assert heads[1:] == ["What runs", "Already there", "Costs", "Doubts"]


def test_a_lora_is_named_with_its_file_and_scale(teacher: Path, tmp_path: Path) -> None:
    file = make_adapter(teacher, tmp_path / "lora")
    adapters = {"adapters": [{"path": str(file.parent), "scale": 0.75}]}
    found = facts(planned(settings(tmp_path, teacher, teacher=adapters), tmp_path))
    assert found["adapter (LoRA)"].startswith(f"{file} (")
    assert "scale 0.75, fused" in found["adapter (LoRA)"]
    without = facts(planned(settings(tmp_path / "without", teacher), tmp_path / "without"))
    assert without["adapters (LoRA)"] == "none"


def test_sizes_steps_and_guidance_are_named(teacher: Path, tmp_path: Path) -> None:
    raw = settings(tmp_path, teacher, targets={"samples_per_prompt": 3})
    found = facts(planned(raw, tmp_path))
    assert found["image size"].startswith("32 \N{MULTIPLICATION SIGN} 32 pixels")
    assert (
        "27 in 7 chunks, 216 network calls; 4 steps, guidance 3: 8 network calls each"
        in (found["trajectories"])
    )
    assert "8 samples, 1 updates of 8" in found["training"]
    assert "2 targets, 1 student, 1 training (2 processes), 2 export" in found["jobs"]


def with_own_negatives(raw: dict[str, Any], split: str) -> dict[str, Any]:
    """Two rows of a split's file get a negative prompt of their own."""
    table = pd.read_csv(raw["prompts"][split])
    table["negative_prompt"] = ["a house", "a dog", *[""] * (len(table) - 2)]
    table.to_csv(raw["prompts"][split], index=False)
    return raw


def test_separators_and_repeated_texts_are_named(teacher: Path, tmp_path: Path) -> None:
    raw = settings(tmp_path, teacher)
    train, held_out = (Path(raw["prompts"][split]) for split in ("train", "eval"))
    tables = {path: pd.read_csv(path) for path in (train, held_out)}
    tables[train].loc[2:4, "prompt"] = tables[train]["prompt"][0]
    tables[train].to_csv(train, sep=";", index=False)
    held_out.write_text("\ufeffsep=\t\n" + tables[held_out].to_csv(sep="\t", index=False))
    told = facts(planned(raw, tmp_path))["prompts"]
    assert f"{train} (columns by semicolon) and {held_out} (columns by tab)" in told
    assert told.endswith("; 3 of the 9 train prompts repeat the text of another")
    repeated = train.read_bytes()
    generating = generating_settings(tmp_path, teacher)
    Path(generating["prompts"]["eval"]).write_bytes(repeated)
    told = facts(planned(generating, tmp_path))["prompts"]
    assert told.endswith(
        "(columns by semicolon); 3 of the 9 eval prompts repeat the text of another"
    )


def test_texts_that_a_conversion_has_damaged_are_doubted(teacher: Path, tmp_path: Path) -> None:
    raw = settings(tmp_path, teacher)
    assert not any("convert the original" in it for it in planned(raw, tmp_path)["advice"])
    path = Path(raw["prompts"]["train"])
    table = pd.read_csv(path)
    for row, damaged in enumerate(("gr\u00c3\u00bcn", "gr\ufffdn")):
        table.loc[row, "prompt"] += f" {damaged}"
    table.to_csv(path, index=False)
    advice = planned(raw, tmp_path)["advice"]
    assert any(it.startswith("1 prompt has characters as of UTF-8 that") for it in advice)
    assert any("gr\ufffdn': convert the original again" in it for it in advice)


def test_negative_prompts_are_counted_with_where_they_are_from(
    teacher: Path, tmp_path: Path
) -> None:
    raw = with_own_negatives(settings(tmp_path, teacher), "train")
    found = facts(planned(raw, tmp_path))
    assert found["negative prompts"] == (
        "'the house' for all; 2 of the 9 train prompts have one of their own"
    )
    raw = generating_settings(tmp_path / "stock", teacher, teacher={"negative_prompt": None})
    stock = facts(planned(raw, tmp_path / "stock"))
    assert stock["negative prompts"] == "the stock pipeline's own, as none is set"
    raw["samples"]["models"]["teacher"]["guidance_scale"] = 1.0
    unguided = facts(planned(raw, tmp_path / "stock"))
    assert unguided["negative prompts"].startswith("not used: ")


def test_the_costs_name_each_stage_and_how_to_learn_times(teacher: Path, tmp_path: Path) -> None:
    plan = planned(settings(tmp_path, teacher), tmp_path)
    assert "snakemake --cores all" in facts(plan, "Costs")["time"]
    (part,) = (part for part in page_of(plan).parts if part.title == "Costs")
    (table,) = part.tables
    rows = {row[0]: dict(zip(table.columns, row, strict=True)) for row in table.rows}
    assert rows["targets"]["network calls"] == "72"
    assert rows["training"]["network calls"] == "24", "three passes of 8 samples"
    # 5 images of the teacher at 4 guided steps, of two students at 2 unguided ones.
    assert rows["samples"]["network calls"] == str(5 * (4 * 2 + 2 + 2))
    assert rows["in all"]["network calls"] == str(72 + 24 + 60)
    assert "time" not in table.columns, "no empty column"


def test_times_have_a_column_where_they_were_measured(teacher: Path, tmp_path: Path) -> None:
    raw = settings(tmp_path, teacher, training={"phases": phases(rollouts=8)})
    config = parse_config(raw, "tiny")
    write_probe(tmp_path / "results/probe.json", config, {"train": 9, "eval": 5})
    make_plan(STAGES, config, tmp_path / "results/plan.json")
    plan = read_json(tmp_path / "results/plan.json")
    assert "estimated from the rates in" in facts(plan, "Costs")["time"]
    assert "* by counted network passes" in facts(plan, "Costs")["time"]
    assert re.search(r"^  training +\d\d:\d\d \*", summary(plan), flags=re.MULTILINE)


def test_a_refused_plan_leaves_both_files_of_the_last_good_one(
    teacher: Path, tmp_path: Path
) -> None:
    good = settings(tmp_path, teacher)
    planned(good, tmp_path)
    files = [tmp_path / "results/plan.json", tmp_path / "results/plan.html"]
    before = [file.read_bytes() for file in files]
    late = {"samples_per_prompt": 10**9}
    for changes in ({"teacher": {"width": 40}}, {"targets": late}):
        with pytest.raises(ValueError, match=r"teacher.width is 40|the run needs"):
            planned(settings(tmp_path, teacher, **changes), tmp_path)
        assert [file.read_bytes() for file in files] == before


EXAMPLE = Page(
    "mine",
    "a <b>headline</b>",
    (
        Part("First", facts=(("name", "a text " * 30), ("", "again"))),
        Part("Second", tables=(Table("T", ("stage", "number"), (("a", "1,000"), ("b", "7"))),)),
        Part("Third", notes=("a note & more",)),
    ),
)


@pytest.mark.parametrize("width", [40, 80, 100])
def test_text_fits_its_width_and_loses_nothing(width: int) -> None:
    text = text_of(EXAMPLE, width)
    assert max(map(len, text.splitlines())) <= width
    assert text.split().count("text") == 30
    assert not any(line != line.rstrip() for line in text.splitlines())
    lines = text.splitlines()
    ends = [len(line) for line in lines if line.endswith(("1,000", " 7"))]
    assert len(ends) == 2
    assert ends[0] == ends[1], "numbers end alike"


class Terminal(StringIO):
    """A stream that is a terminal."""

    def isatty(self) -> bool:
        return True


def test_a_terminal_gets_the_page_with_blank_lines_around_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What is drawn below begins by removing lines."""
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "60")
    monkeypatch.delenv("NO_COLOR", raising=False)
    terminal, pipe = Terminal(), StringIO()
    print_page(EXAMPLE, terminal)
    monkeypatch.delenv("COLUMNS")
    print_page(EXAMPLE, pipe)
    shown = terminal.getvalue()
    assert shown.startswith("\n")
    assert shown.endswith("\n\n\n")
    plain = re.sub(r"\x1b\[[0-9;]*m", "", shown)
    assert plain != shown, "heads are bold"
    assert [line.rstrip() for line in plain.strip("\n").split("\n")] == text_of(EXAMPLE, 60).split(
        "\n"
    )
    assert pipe.getvalue() == f"{text_of(EXAMPLE)}\n"


@pytest.mark.parametrize(
    ("columns", "given"), [("60", 60), ("110", 110), ("400", 120), ("0", 100), ("wide", 100)]
)
def test_a_pipe_has_as_many_columns_as_the_variable_says(
    monkeypatch: pytest.MonkeyPatch, columns: str, given: int
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    pipe = StringIO()
    print_page(EXAMPLE, pipe)
    assert pipe.getvalue() == f"{text_of(EXAMPLE, given)}\n"


def test_html_escapes_and_asks_for_nothing_from_elsewhere() -> None:
    page = html_of(EXAMPLE)
    assert "a &lt;b&gt;headline&lt;/b&gt;" in page
    assert "a note &amp; more" in page
    assert not re.search(r"(?:src|href)=\"(?!#|data:)", page)
    assert "prefers-color-scheme: dark" in page, "the report's colours"
    for part in EXAMPLE.parts:
        assert f">{part.title}</h2>" in page


def test_what_decides_is_in_tiles_and_doubts_are_counted() -> None:
    table = Table(
        "",
        ("stage", "network calls", "disk"),
        (
            ("targets", "1,500", "1 GiB"),
            ("export", "", ""),
            ("samples", "500", ""),
            ("in all", "2,000", ""),
        ),
    )
    costs = Part("Costs", (("time", "01:00, on one GPU; more"), ("weights", "x")), (table,))
    page = Page("a", "b", (costs, Part("Doubts", notes=("too few <prompts>", "another"))))
    assert tiles_of(page) == [
        Tile("Time", "01:00", "on one GPU; more"),
        Tile("Network calls", "2,000", "of teacher and student"),
        Tile("Doubts", "2", "too few <prompts>"),
    ]
    assert shares_of(page) == [("targets", 75.0), ("samples", 25.0)]
    assert "too few &lt;prompts&gt;</dd>" in html_of(page)
    calm = Page("a", "b", (Part("Costs"), doubts_part([])))
    assert tiles_of(calm) == [Tile("Doubts", "none")]
    assert shares_of(calm) == []


def test_numbers_in_words() -> None:
    assert [in_words(number) for number in (2_567_463_684, 262_144_000, 14_320)] == [
        "2.57 billion", "262 million", "14,320",
    ]  # fmt: skip
    assert [counted(number, "job") for number in (0, 1, 1000)] == ["0 jobs", "1 job", "1,000 jobs"]


def test_columns_that_say_nothing_are_left_out() -> None:
    table = without_empty("", ("a", "b", "c"), [("x", "-", "1"), ("y", "", "2")])
    assert table == Table("", ("a", "c"), (("x", "1"), ("y", "2")))
    assert is_numeric(table, 1)
    assert not is_numeric(table, 0)
