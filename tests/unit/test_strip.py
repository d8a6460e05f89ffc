"""The README's image: rows of models, columns of prompts, and what it refuses."""

from pathlib import Path

import pandas as pd
import pytest
from PIL import Image

from strip import GAP_PX, IMAGE_PX, LABEL_PX, main

COLOURS = {"teacher": (250, 0, 0), "student": (0, 250, 0)}


def sampled(run: Path, model: str, seed: int = 7) -> None:
    """Two prompts with two images each, of a model's own colour; the second is black."""
    rows = []
    for prompt in ("a", "b"):
        for index in range(2):
            path = run / "samples" / model / prompt / f"{index}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.new("RGB", (8, 8), COLOURS[model] if index == 0 else (0, 0, 0)).save(path)
            rows.append((prompt, f"a shape {prompt}", index, seed, f"{prompt}/{index}.png", 4))
    columns = ["prompt_id", "prompt", "index", "noise_seed", "file", "network_calls"]
    table = pd.DataFrame(rows, columns=columns).assign(model=model)
    table.to_parquet(run / "samples" / model / "manifest.parquet")


def test_a_row_a_model_and_a_column_a_prompt(tmp_path: Path) -> None:
    for model in COLOURS:
        sampled(tmp_path, model)
    output = tmp_path / "images" / "strip.png"
    assert main([str(tmp_path), "--models", *COLOURS, "--output", str(output)]) == 0
    step = IMAGE_PX + GAP_PX
    with Image.open(output) as strip:
        assert strip.width == LABEL_PX + 2 * step
        for row, colour in enumerate(COLOURS.values()):
            for column in range(2):
                assert strip.getpixel((LABEL_PX + column * step + 9, row * step + 9)) == colour


def test_a_model_that_was_not_sampled_is_named(tmp_path: Path) -> None:
    sampled(tmp_path, "teacher")
    with pytest.raises(SystemExit, match=r"samples/student has no .*; sampled were: teacher"):
        main([str(tmp_path), "--models", "teacher", "student"])


def test_other_noise_is_refused(tmp_path: Path) -> None:
    sampled(tmp_path, "teacher")
    sampled(tmp_path, "student", seed=8)
    with pytest.raises(SystemExit, match="from other noise"):
        main([str(tmp_path), "--models", "teacher", "student"])
