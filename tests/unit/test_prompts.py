"""Prompt files: what is read, and that each fault is named with its line."""

import json
from pathlib import Path

import pandas as pd
import pytest

from distillery.config.jobs import PromptsJob
from distillery.config.run import Prompts
from distillery.planning.prompt_tables import make_prompt_table
from distillery.prompts import (
    RESERVED,
    RESERVED_BY_DATASET,
    RESERVED_FOR_PAIRS,
    SIZE,
    own_sizes,
    read_prompts,
)
from distillery.run_folder import RunFolder
from prompt_texts import GOOD, TEXTS, refused, write

HALF = '{"prompt_id": "a", "prompt": "x"}\n{"prompt_id": "b", "prompt": "\\ud83d"}\n'
BAD_ROWS = "".join(f"p{row},\n" for row in range(30))


def test_reads_csv_in_the_order_of_the_file(tmp_path: Path) -> None:
    table = read_prompts(write(tmp_path, "prompt,prompt_id\nlast,z\nfirst,a\n"))
    assert list(table.columns) == ["prompt_id", "prompt"]
    assert table["prompt_id"].tolist() == ["z", "a"]


def test_nothing_is_guessed_to_be_a_number_or_missing(tmp_path: Path) -> None:
    table = read_prompts(write(tmp_path, "prompt_id,prompt,note\n007,NA,\n1e3,null,1.50\n"))
    assert table.to_dict("list") == {
        "prompt_id": ["007", "1e3"],
        "prompt": ["NA", "null"],
        "note": ["", "1.50"],
    }


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"nowhere\.csv does not exist"):
        read_prompts(tmp_path / "nowhere.csv")


@pytest.mark.parametrize("name", ["p.csv", "p.txt", "p.jsonl"])
def test_an_empty_file_is_refused(tmp_path: Path, name: str) -> None:
    assert "empty" in refused(write(tmp_path, "", name)) or "no prompts" in refused(tmp_path / name)


@pytest.mark.parametrize(
    ("name", "text", "why"),
    [
        ("only-a-header.csv", "prompt_id,prompt\n", "holds no prompts"),
        ("another-ending.xlsx", GOOD, ".csv, .tsv, .txt, .jsonl, .parquet"),
        ("a-name-twice.csv", "prompt_id,prompt,prompt\na,b,c\n", "two columns are named prompt"),
        ("no-prompts.jsonl", '{"prompt_id": "a"}\n', "no column prompt "),
        ("half-a-character.jsonl", HALF, "line 2 has half of a character, '\\ud83d'"),
        ("many-bad-rows.csv", "prompt_id,prompt\n" + BAD_ROWS, "and 10 more"),
    ],
)
def test_a_file_is_refused(tmp_path: Path, name: str, text: str, why: str) -> None:
    assert why in refused(write(tmp_path, text, name))


def test_a_missing_column_is_named_with_those_that_are_there(tmp_path: Path) -> None:
    message = refused(write(tmp_path, "id;text\na;b\n"))
    assert "no column prompt (it has: id, text): rename 'text' to prompt" in message
    assert "name the columns in the first line" in refused(write(tmp_path, "a red dog\na cat\n"))


@pytest.mark.parametrize("prompt_id", ["a/b", "..", "a..b", "", ".hidden", "ü", "a b", "x" * 129])
def test_an_id_that_cannot_name_a_folder_is_refused(tmp_path: Path, prompt_id: str) -> None:
    message = refused(write(tmp_path, f'prompt_id,prompt\nok,fine\n"{prompt_id}",text\n'))
    assert "line 3" in message
    assert "cannot name a folder" in message


def test_every_bad_row_is_named_with_its_line(tmp_path: Path) -> None:
    text = 'prompt_id,prompt\na,"two\nlines"\n\nb,\na,again\n'
    message = refused(write(tmp_path, text))
    assert "line 5: the prompt of 'b' is empty" in message
    assert "line 6: prompt id 'a' is already on line 2" in message


@pytest.mark.parametrize("rows", ["a,cat,dog\nb,cat,dog\n", "a,red\nb,cat,dog\n", "a\n"])
def test_an_unquoted_comma_never_shifts_a_prompt(tmp_path: Path, rows: str) -> None:
    message = refused(write(tmp_path, "prompt_id,prompt\n" + rows))
    assert "fields, the first line has 2" in message
    assert "double quotes" in message


def test_a_folder_is_no_prompt_file(tmp_path: Path) -> None:
    (tmp_path / "p.csv").mkdir()
    with pytest.raises(FileNotFoundError, match=r"p\.csv is no file"):
        read_prompts(tmp_path / "p.csv")


@pytest.mark.parametrize("name", ["p.csv", "p.txt", "p.jsonl"])
def test_text_that_is_not_utf8_is_refused(tmp_path: Path, name: str) -> None:
    message = refused(write(tmp_path, b"prompt_id,prompt\na,caf\xe9\n", name))
    assert "0xe9" in message
    assert "iconv" in message


@pytest.mark.parametrize("name", ["p.csv", "p.txt", "p.jsonl"])
def test_a_byte_order_mark_is_no_part_of_the_text(tmp_path: Path, name: str) -> None:
    table = read_prompts(write(tmp_path, b"\xef\xbb\xbf" + TEXTS[name].encode(), name))
    assert "\ufeff" not in table.iloc[0, 1]


@pytest.mark.parametrize(
    "column", [*sorted({*RESERVED} - {*SIZE}), *RESERVED_FOR_PAIRS, *RESERVED_BY_DATASET]
)
def test_a_column_of_the_samples_table_is_refused(tmp_path: Path, column: str) -> None:
    message = refused(write(tmp_path, f"prompt_id,prompt,{column}\na,b,c\n"))
    assert f"columns named {column}" in message


@pytest.mark.parametrize("name", ["p.csv", "p.tsv", "p.jsonl", "p.parquet"])
def test_prompts_may_have_sizes_of_their_own(tmp_path: Path, name: str) -> None:
    path, table = tmp_path / name, pd.DataFrame({"prompt_id": [*"abc"], "prompt": [*"xyz"]})
    table["height"] = pd.array([512, None, 64], dtype="Int64")
    table["width"] = pd.array([768, None, 64], dtype="Int64")
    if name.endswith("parquet"):
        table.to_parquet(path)
    elif name.endswith("jsonl"):
        table.to_json(path, orient="records", lines=True)
    else:
        table.to_csv(path, index=False, sep="\t" if name.endswith("tsv") else ",")
    read = read_prompts(path)
    assert own_sizes(read) == [(512, 768), None, (64, 64)]
    written = tmp_path / "table.parquet"
    read.to_parquet(written)
    assert own_sizes(pd.read_parquet(written)) == own_sizes(read)


@pytest.mark.parametrize("cell", ["0", "-8", "12.5", "x", "1e3", "123456", "512px", "inf", "²"])
def test_a_size_that_is_no_pixels_is_named_with_its_line(tmp_path: Path, cell: str) -> None:
    text = f"prompt_id,prompt,height,width\na,x,8,8\nb,y,{cell},8\nc,z,8.0, 8 \n"
    message = refused(write(tmp_path, text))
    assert f"line 3: height is '{cell}', and no pixels" in message
    assert "line 2" not in message
    assert "line 4" not in message


def test_a_size_has_both(tmp_path: Path) -> None:
    message = refused(write(tmp_path, "prompt_id,prompt,height,width\na,x,8,\nb,y,,\n"))
    assert "line 2: width is missing, and height is not" in message
    assert "line 3" not in message
    message = refused(write(tmp_path, "prompt_id,prompt,width\na,x,8\n"))
    assert "has a column width and none height" in message


def test_txt_has_an_id_a_line(tmp_path: Path) -> None:
    table = read_prompts(write(tmp_path, "one\r\n\n  three \u2028 still three\n", "p.txt"))
    assert table["prompt_id"].tolist() == ["p00000", "p00002"]
    assert read_prompts(tmp_path / "p.txt", numbered="t")["prompt_id"].tolist()[1] == "t00002"
    assert table["prompt"].tolist() == ["one", "three \u2028 still three"]


def test_jsonl_keeps_extra_columns_and_their_types(tmp_path: Path) -> None:
    rows = [
        {"prompt_id": "001", "prompt": "a", "date": "2020-01-01", "score": 3},
        {"prompt_id": "002", "prompt": "b", "date": "2020-01-02", "score": 4},
    ]
    text = "\n\n".join(json.dumps(row) for row in rows)
    assert read_prompts(write(tmp_path, text, "p.jsonl")).to_dict("records") == rows


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("{", "line 3 is not JSON"),
        ("[1]", "line 3 is no JSON object"),
        (
            '{"prompt_id": 7, "prompt": "x"}',
            "line 3: prompt_id and prompt must be text, and prompt_id is 7",
        ),
        ('{"prompt_id": "b"}', "line 3: prompt_id and prompt must be text"),
        ('{"prompt": "b"}', "line 3: prompt_id and prompt must be text"),
        ('{"prompt": "b", "prompt": "c"}', "line 3: the key 'prompt' stands twice: remove one"),
        ('{"prompt_id": "b", "prompt": "x", "n": {"k": 1, "k": 2}}', "line 3: the key 'k' stands"),
        ("[" * 100_000 + "]" * 100_000, "line 3 is nested too deep"),
        (
            '{"prompt_id": "b", "prompt": "x\\u0000y"}',
            "line 3: character 2 of prompt is the control",
        ),
        ('{"prompt_id": "b", "prompt": "x", "n": ' + "9" * 5000 + "}", "line 3: Exceeds the limit"),
    ],
)
def test_a_bad_json_line_is_named(tmp_path: Path, line: str, problem: str) -> None:
    text = f'{{"prompt_id": "a", "prompt": "x"}}\n\n{line}\n'
    assert problem in refused(write(tmp_path, text, "p.jsonl"))


@pytest.mark.parametrize(
    ("values", "line", "problem"),
    [
        ([1, 2, "three"], 5, 'score is "three", which has another type than those before it'),
        (["one", 2, 3], 3, "score is 2, which has another type than"),
        ([1, None, True], 5, "score is true, which has another type than"),
        ([[1], "a", [2]], 3, 'score is "a", which has another type than'),
        ([{"a": 1}, {"a": "x"}, {}], 3, 'score is {"a": "x"}, which has another type than'),
        ([1, 2, 10**30], 5, "score is 1000000"),
        ([[1, "a"], [1], [1]], 1, 'score is [1, "a"], which fits no column of a table'),
        ([{}, {}, {}], 1, "score is {}, which fits no column of a table"),
    ],
)
def test_a_jsonl_column_of_several_types_is_named_with_its_line(
    tmp_path: Path, values: list[object], line: int, problem: str
) -> None:
    rows = [{"prompt_id": f"p{row}", "prompt": "x", "score": it} for row, it in enumerate(values)]
    message = refused(write(tmp_path, "\n\n".join(map(json.dumps, rows)), "p.jsonl"))
    assert f"line {line}: {problem}" in message
    assert "write values of one type in all rows of score" in message
    assert "\n" not in message


@pytest.mark.parametrize(
    "values",
    [[1, 2.5, None], ["a", None, "b"], [True, None, False], [[1], [], [2.5]], [{"a": 1}, {}, None]],
)
def test_a_jsonl_column_of_one_type_can_be_stored(tmp_path: Path, values: list[object]) -> None:
    rows = [{"prompt_id": f"p{row}", "prompt": "x", "c": it} for row, it in enumerate(values)]
    table = read_prompts(write(tmp_path, "\n".join(map(json.dumps, rows)), "p.jsonl"))
    table.to_parquet(tmp_path / "p.parquet")
    assert pd.read_parquet(tmp_path / "p.parquet")["prompt_id"].tolist() == ["p0", "p1", "p2"]
    assert table["c"].isna().tolist() == [it is None for it in values]


def test_parquet_keeps_extra_columns(tmp_path: Path) -> None:
    table = pd.DataFrame({"style": [1, 2], "prompt": ["x", "y"], "prompt_id": ["a", "b"]})
    table.to_parquet(tmp_path / "p.parquet", index=False)
    found = read_prompts(tmp_path / "p.parquet")
    assert list(found.columns) == ["prompt_id", "prompt", "style"]
    assert found["style"].tolist() == [1, 2]


def test_a_bad_parquet_file_or_row_is_named(tmp_path: Path) -> None:
    assert "it is no whole Parquet file" in refused(write(tmp_path, "no parquet", "p.parquet"))
    table = pd.DataFrame({"prompt_id": ["a", "b"], "prompt": ["x", None]})
    table.to_parquet(tmp_path / "q.parquet", index=False)
    assert "row 2: prompt_id and prompt must be text" in refused(tmp_path / "q.parquet")


def test_the_stage_writes_a_split_with_its_extra_columns(tmp_path: Path) -> None:
    train = write(tmp_path, GOOD, "train.csv")
    held_out = write(tmp_path, "prompt_id,prompt,style\nc,a bird,oil\n", "eval.csv")
    job = PromptsJob(prompts=Prompts(train=str(train), eval=str(held_out)))
    for split, ids in (("train", ["a", "b"]), ("eval", ["c"])):
        make_prompt_table(job, split, RunFolder(tmp_path), tmp_path / f"{split}.parquet")  # type: ignore[arg-type]
        assert pd.read_parquet(tmp_path / f"{split}.parquet")["prompt_id"].tolist() == ids
    assert pd.read_parquet(tmp_path / "eval.parquet")["style"].tolist() == ["oil"]
    first = (tmp_path / "eval.parquet").read_bytes()
    make_prompt_table(job, "eval", RunFolder(tmp_path), tmp_path / "eval.parquet")
    assert (tmp_path / "eval.parquet").read_bytes() == first


def test_the_stage_asks_for_prompts_that_a_generating_run_has_not(tmp_path: Path) -> None:
    job = PromptsJob(prompts=Prompts(eval=str(write(tmp_path, GOOD, "eval.csv"))))
    with pytest.raises(ValueError, match=r"prompts.train is missing"):
        make_prompt_table(job, "train", RunFolder(tmp_path), tmp_path / "train.parquet")
