"""Files that are no UTF-8, no whole Parquet, have no ids, or ask for what would not be done."""

import os
import random
import subprocess
from contextlib import suppress
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from distillery.encodings import find_wide_encoding
from distillery.prompts import own_negatives, read_prompts
from prompt_texts import TEXTS, refused, write

CHINESE = "prompt_id,prompt\na,一只红色的狗\nb,一只蓝色的猫在山上\n"


@pytest.mark.parametrize(
    "encoding", ["utf-16", "utf-16-le", "utf-16-be", "utf-32", "utf-32-le", "utf-32-be"]
)
@pytest.mark.parametrize(
    ("name", "text"), [*TEXTS.items(), ("c.csv", CHINESE)], ids=[*TEXTS, "chinese"]
)
def test_wide_encodings_are_told_the_command_that_mends_them(
    tmp_path: Path, name: str, text: str, encoding: str
) -> None:
    source = write(tmp_path, text.encode(encoding), name)
    message = refused(source)
    assert "\n" not in message
    command = message[message.index("iconv -f") :]
    assert f"-t UTF-8 {source} > utf8{source.suffix}" in command
    subprocess.run(command, shell=True, check=True, cwd=tmp_path)
    expected = read_prompts(write(tmp_path, text, f"good-{name}"))
    assert read_prompts(tmp_path / f"utf8{source.suffix}").equals(expected)


@pytest.mark.parametrize("text", ["a\n", "a d", "dog\n", "ä b\n", "a红"])
def test_a_few_characters_show_a_wide_encoding(text: str) -> None:
    for encoding in ("UTF-16LE", "UTF-16BE", "UTF-32LE", "UTF-32BE"):
        assert find_wide_encoding(text.encode(encoding)) == encoding
    assert find_wide_encoding(text.encode()) is None


def test_utf8_with_a_zero_byte_is_no_wide_encoding(tmp_path: Path) -> None:
    assert find_wide_encoding(b"a red dog\n\0\n") is None
    assert find_wide_encoding("ein roter Hund, grün".encode("latin1")) is None
    message = refused(write(tmp_path, "prompt_id,prompt\na,red\nb,a\0blue cat\n"))
    assert "line 3: character 2 of prompt is the control character U+0000 (NUL)" in message
    assert "cannot name a folder" in refused(write(tmp_path, "prompt_id,prompt\na\0,red dogs\n"))


@pytest.mark.parametrize("text", ["\u200b", "\ufeff \u2060\u200d", "\u3164", "\u00ad", "\u2800"])
def test_a_prompt_that_cannot_be_seen_is_empty(tmp_path: Path, text: str) -> None:
    message = refused(write(tmp_path, f"prompt_id,prompt\na,red\nb,{text}\n"))
    assert "line 3: the prompt of 'b' is empty" in message
    assert len(read_prompts(write(tmp_path, "prompt_id,prompt\na,\u200b🦊\n"))) == 1


def test_ids_that_differ_in_case_alone_are_one_folder_elsewhere(tmp_path: Path) -> None:
    message = refused(write(tmp_path, "prompt_id,prompt\nFox,a\nfox,b\n"))
    assert "line 3: prompt id 'fox' differs from 'Fox' on line 2 only in case" in message


def test_a_very_long_id_is_cut_in_the_message(tmp_path: Path) -> None:
    rows = f"{'x' * 10_000},a\n{'x' * 10_000},\n"
    message = refused(write(tmp_path, f"prompt_id,prompt\n{rows}"))
    assert "(10000 characters) cannot name a folder" in message
    assert len(message) < 1500


@pytest.mark.parametrize("name", ["p.csv", "p.jsonl", "p.parquet", "p.txt"])
def test_prompts_without_ids_are_numbered(tmp_path: Path, name: str) -> None:
    table = pd.DataFrame({"prompt": ["one", "two", "three"]})
    path = tmp_path / name
    if name == "p.parquet":
        table.to_parquet(path)
    elif name == "p.jsonl":
        table.to_json(path, orient="records", lines=True)
    else:
        table.to_csv(path, index=False, header=name == "p.csv")
    found = read_prompts(path, numbered="t")
    assert found["prompt_id"].tolist() == ["t00000", "t00001", "t00002"]
    assert found["prompt"].tolist() == ["one", "two", "three"]


@pytest.mark.parametrize("name", ["Prompt", "caption", "Text", "PROMPTS"])
def test_another_name_for_the_prompt_is_told_what_to_rename(tmp_path: Path, name: str) -> None:
    assert f"rename {name!r} to prompt" in refused(write(tmp_path, f"prompt_id,{name}\na,b\n"))
    beside = read_prompts(write(tmp_path, "prompt,caption\na,b\n"))
    assert beside["caption"].tolist() == ["b"]


@pytest.mark.parametrize("name", ["id", "Prompt_ID", "prompt id"])
def test_another_name_for_the_id_is_not_numbered_over(tmp_path: Path, name: str) -> None:
    path = write(tmp_path, f"{name},prompt\nfox,b\n")
    assert f"has no column prompt_id, but {name!r}: rename it to prompt_id" in refused(path)
    assert read_prompts(path, notes=[name])["prompt_id"].tolist() == ["p00000"]


def test_a_named_index_of_parquet_is_a_column(tmp_path: Path) -> None:
    table = pd.DataFrame({"prompt_id": ["fox"], "prompt": ["a fox"]})
    table.set_index("prompt_id").to_parquet(tmp_path / "p.parquet")
    assert read_prompts(tmp_path / "p.parquet")["prompt_id"].tolist() == ["fox"]


def test_a_damaged_parquet_file_is_named(tmp_path: Path) -> None:
    table = pd.DataFrame({"prompt_id": ["a", "b"], "prompt": ["x", "y"]})
    table.to_parquet(tmp_path / "p.parquet")
    content, chance = (tmp_path / "p.parquet").read_bytes(), random.Random(0)
    for size in chance.sample(range(1, len(content)), 40):
        message = refused(write(tmp_path, content[:size], "q.parquet"))
        assert "it is no whole Parquet file" in message
        assert message.endswith("): write it again")
    for _ in range(40):
        damaged = bytearray(content)
        damaged[chance.randrange(len(content))] ^= 1 << chance.randrange(8)
        path = write(tmp_path, bytes(damaged), "q.parquet")
        with suppress(ValueError):
            assert len(read_prompts(path)) == 2


ASKING = [
    "seed", "Seed", "aspect-ratio", "prompt_2", "lora", "negativePrompt", "negativeprompt",
    "NEGATIVE.PROMPT", "numInferenceSteps", "cfgScale", "guidanceScale", "aspectRatio",
    "clipSkip", "init_image", "initImage", "strength", "denoise", "controlnet", "ControlNet",
    "ip_adapter", "ipAdapter", "refiner", "hires", "scheduler_name", "uncond",
]  # fmt: skip


@pytest.mark.parametrize("name", ["CFG Scale", *ASKING])
def test_a_column_that_would_change_nothing_is_refused_unless_it_is_a_note(
    tmp_path: Path, name: str
) -> None:
    path = write(tmp_path, f"prompt_id,prompt,{name},style\na,b,1,oil\n")
    message = refused(path)
    assert f"columns that would change no image: {name} (" in message
    assert "style" not in message
    assert "prompts.notes" in message
    assert "\n" not in message
    assert read_prompts(path, notes=[name])[name].tolist() == ["1"]


def test_an_id_and_a_prompt_are_known_however_they_are_written(tmp_path: Path) -> None:
    assert "'promptId': rename it to prompt_id" in refused(
        write(tmp_path, "promptId,prompt\na,b\n")
    )
    assert "rename 'Caption' to prompt" in refused(write(tmp_path, "prompt_id,Caption\na,b\n"))


HIDDEN = {"zero-width space": "\u200b", "byte order mark": "\ufeff", "soft hyphen": "\u00ad",
          "joiner": "\u2060", "no-break space": "\u00a0", "variation": "\ufe0f"}  # fmt: skip


@pytest.mark.parametrize("hidden", HIDDEN.values(), ids=HIDDEN)
@pytest.mark.parametrize("end", ["", "first"])
@pytest.mark.parametrize("name", ["prompt_id", "negative_prompt", "seed"])
def test_a_name_with_a_letter_that_nobody_sees_is_refused(
    tmp_path: Path, name: str, end: str, hidden: str
) -> None:
    """Its column would be a note, and prompts numbered, without their negative ones."""
    path = tmp_path / "p.csv"
    named = f"{hidden}{name}" if end else f"{name}{hidden}"
    path.write_text(f"prompt,{named}\na dog,x\n", encoding="utf-8")
    with pytest.raises(ValueError, match=f"rename it to {name}|would change no image"):
        read_prompts(path)


def test_two_columns_of_one_name_in_parquet_are_named(tmp_path: Path) -> None:
    path = tmp_path / "p.parquet"
    texts = pa.array(["a dog"])
    pq.write_table(pa.Table.from_arrays([texts, texts], names=["prompt", "prompt"]), path)
    with pytest.raises(ValueError, match="two columns are named prompt"):
        read_prompts(path)


def test_reserved_columns_are_no_notes(tmp_path: Path) -> None:
    path = write(tmp_path, "prompt_id,prompt,width\na,b,512\n")
    with pytest.raises(ValueError, match=r"columns named width, which the tables .* rename"):
        read_prompts(path, notes=["width"])


@pytest.mark.parametrize("name", ["negative", "Negative_Prompt", "neg_prompt"])
def test_another_name_for_the_negative_prompt_is_told_what_to_rename(
    tmp_path: Path, name: str
) -> None:
    message = refused(write(tmp_path, f"prompt_id,prompt,{name}\na,b,c\n"))
    assert f"{name} (rename it to negative_prompt" in message


def test_an_empty_negative_prompt_means_the_runs(tmp_path: Path) -> None:
    csv = "prompt_id,prompt,negative_prompt\na,x,blurry\nb,y,\nc,z, \u200b\n"
    lines = '{"prompt":"x","negative_prompt":"blurry"}\n{"prompt":"y"}\n'
    lines += '{"prompt":"z","negative_prompt":null}\n'
    for path in (write(tmp_path, csv), write(tmp_path, lines, "p.jsonl")):
        table = read_prompts(path)
        assert table["negative_prompt"].tolist() == ["blurry", "", ""]
        assert own_negatives(table) == ["blurry", None, None]
        table.to_parquet(tmp_path / "p.parquet")
        assert own_negatives(read_prompts(tmp_path / "p.parquet")) == ["blurry", None, None]
    assert own_negatives(table[["prompt"]]) == [None] * 3


@pytest.mark.parametrize("value", ["7", "[1]", "true", '"a\\u0000b"'])
def test_a_negative_prompt_that_is_no_text_is_refused(tmp_path: Path, value: str) -> None:
    row = f'{{"prompt_id": "a", "prompt": "x", "negative_prompt": {value}}}\n'
    message = refused(write(tmp_path, row, "p.jsonl"))
    assert "line 1: " in message
    assert "negative_prompt must be text" in message or "NUL" in message


def test_a_path_with_a_space_is_quoted_in_the_command(tmp_path: Path) -> None:
    message = refused(write(tmp_path, "caf\xe9".encode("latin1"), "two words.txt"))
    assert f"iconv -f WINDOWS-1252 -t UTF-8 '{tmp_path}{os.sep}two words.txt' > utf8.txt" in message
