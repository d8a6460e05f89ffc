"""The tables of the pages on the demos are those of the reports that the repository keeps."""

from collections.abc import Callable, Mapping
from typing import Any

import pytest

from checkout import REPOSITORY
from distillery.files import read_json

Quality = Mapping[str, Any]
Cell = Callable[[Quality], str]


def interval(value: Mapping[str, float], digits: int) -> str:
    return f"{value['mean']:.{digits}f} ({value['low']:.{digits}f}\u2013{value['high']:.{digits}f})"


def clip(model: Quality) -> str:
    return interval(model["clip_score"], 3)


def retrieved(model: Quality) -> str:
    return f"{model['retrieval_r1']['mean']:.0%}".replace("%", " %")


def psnr(model: Quality) -> str:
    return f"{interval(model['psnr_db'], 1)} dB" if model["psnr_db"] else ""


def detail(model: Quality) -> str:
    return interval(model["high_frequency"], 2) if model["high_frequency"] else ""


def frechet(model: Quality) -> str:
    ratio = model["sets"]["judge"]["frechet_ratio"]
    return interval(ratio, 1) if ratio else "1"


README_CELLS = (clip, retrieved, psnr, detail, frechet)
GUIDE_CELLS = (clip, psnr, detail, frechet)


@pytest.mark.parametrize(
    ("page", "metrics", "cells"),
    [
        ("README.md", "demo_cpu_2026-11-24", README_CELLS),
        ("docs/fine-tune.md", "demo_my_lora_cpu_2026-11-24", GUIDE_CELLS),
    ],
)
def test_a_demos_table_is_of_its_report(page: str, metrics: str, cells: tuple[Cell, ...]) -> None:
    text = (REPOSITORY / page).read_text(encoding="utf-8")
    report = read_json(REPOSITORY / f"benchmarks/{metrics}.json")
    for name, model in report["quality"]["models"].items():
        row = " | ".join([str(model["network_calls"]), *(cell(model) for cell in cells)])
        row = row.replace("|  |", "| |").replace("|  |", "| |")
        assert f"| {row} |" in text, name
