"""One prompt file for both splits through Snakemake: planned, made, made again as it grows."""

import json
from pathlib import Path

import pandas as pd

from checkout import configure, jobs, skeleton, succeed

TABLES = [f"results/tiny/prompts/{split}.parquet" for split in ("train", "eval")]


def texts(folder: Path) -> list[list[str]]:
    return [pd.read_parquet(folder / table)["prompt"].tolist() for table in TABLES]


def test_one_file_is_split_planned_and_followed(teacher: Path, tmp_path: Path) -> None:
    folder = skeleton(tmp_path)
    configure(folder, teacher, prompts={"eval": None, "eval_fraction": 0.4})
    source = folder / "inputs/train.csv"
    assert {"prompts", "targets", "samples", "report"} <= jobs(succeed(folder, "--dry-run"))
    assert jobs(succeed(folder, *TABLES)) == {"freeze", "prompts"}
    train, held = texts(folder)
    assert sorted(train + held) == sorted(pd.read_csv(source)["prompt"])
    assert not set(train) & set(held)
    planned = json.loads((folder / "results/tiny/plan.json").read_text())
    assert planned["work"]["num_prompts"] == {"train": len(train), "eval": len(held)}

    added = "".join(f"n{row},bird {letter},\n" for row, letter in enumerate("abcdefghijklmnopqrst"))
    source.write_text(source.read_text() + added)
    succeed(folder, *TABLES)
    grown = texts(folder)
    assert set(train) < set(grown[0])
    assert set(held) < set(grown[1])
    assert "Nothing to be done" in succeed(folder, *TABLES)
