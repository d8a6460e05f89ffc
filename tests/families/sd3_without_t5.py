"""SD3 without its T5, as many use it: the folder says that the encoder is not there."""

import shutil
from pathlib import Path

from distillery.files import read_json, write_json
from families import sd3
from families.case import FamilyCase


def make(folder: Path) -> None:
    sd3.make(folder)
    index = read_json(folder / "model_index.json")
    for name in ("text_encoder_3", "tokenizer_3"):
        shutil.rmtree(folder / name)
        index[name] = [None, None]
    write_json(folder / "model_index.json", index)


CASE = FamilyCase(
    name="sd3-without-t5", family="sd3", make=make, height=32, width=24, max_tokens=12
)
