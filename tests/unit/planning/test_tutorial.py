"""The SDXL tutorial's figures are those that the plan prints for SDXL's released shapes."""

import re
import shutil
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from released import RELEASED, make_released

from distillery.config.run import parse_config
from distillery.files import read_json, write_json
from distillery.pipeline import STAGES
from distillery.planning.page import page_of
from distillery.planning.plan import make_plan
from distillery.planning.text import text_of

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs/tutorial-sdxl.md").read_text(encoding="utf-8")
ROWS = re.findall(r"^\| (?:`(\{.*?\})`|none)(.*?)\| (.*?) \| (.*?) \|$", PAGE, flags=re.MULTILINE)
NUM_PROMPTS = {"train": 10_000, "eval": 256}
FREE_BYTES = 512 * 2**30
COUNTS = {"one": 1, "four": 4}
SDXL = RELEASED["stabilityai/stable-diffusion-xl-base-1.0"]

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """SDXL without weights, a judge of its width, and prompts."""
    folder = tmp_path_factory.mktemp("sdxl")
    (folder / "config").symlink_to(ROOT / "config")  # as in a checkout
    make_released(SDXL, folder / "teacher", ["prompt"])
    write_json(folder / "judge/config.json", {"model_type": "clip", "projection_dim": 768})
    for split, count in NUM_PROMPTS.items():
        lines = ["prompt", *(f"{split} {row}" for row in range(count))]
        (folder / f"{split}.csv").write_text("\n".join(lines))
    return folder


@cache
def printed(change: str = "{}", number: int = 4, memory: float = 80) -> str:
    """What the plan of the tutorial's configuration says for some GPUs, on a disk with room."""
    changes: dict[str, dict[str, Any]] = yaml.safe_load(change)
    raw = yaml.safe_load((ROOT / "config/sdxl-4-steps.yaml").read_text(encoding="utf-8"))
    assert raw["teacher"]["variant"] == SDXL.variant
    raw |= {section: raw.get(section, {}) | values for section, values in changes.items()}
    raw["run"] = "mine"
    raw["teacher"]["path"] = "teacher"
    raw["evaluation"]["judge"] = "judge"
    raw["prompts"] = {split: f"{split}.csv" for split in NUM_PROMPTS}
    raw["hardware"] = {"num_gpus": number, "gpu_memory_gib": memory}
    output = Path("results/mine/plan.json")
    make_plan(STAGES, parse_config(raw, "mine.yaml"), output)
    return text_of(page_of(read_json(output)))


@pytest.fixture(autouse=True)
def room(monkeypatch: pytest.MonkeyPatch, inputs: Path) -> None:
    monkeypatch.chdir(inputs)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=FREE_BYTES))


def test_the_page_shows_what_the_plan_prints() -> None:
    (shown,) = re.findall(r"```text\n(.*?)\n```", PAGE, flags=re.DOTALL)
    plan = re.sub(r"; here .*", "; here …", printed())
    assert plan.partition("\n\n")[2] == shown


def test_the_rates_of_the_page_are_those_of_the_benchmarks() -> None:
    text = "".join(path.read_text(encoding="utf-8") for path in ROOT.glob("benchmarks/*.md"))
    rates = re.findall(r"\| ([\d.]+) per second", PAGE)
    assert len(rates) == 4
    assert all(re.search(rf"(?<![\d.]){re.escape(rate)}(?![\d.])", text) for rate in rates)


def test_hours_are_work_over_rate() -> None:
    work_cell = r"\| ([\d,]+) (?:trajectories|samples)[^|]*"
    rows = re.findall(work_cell + r"\| ([\d.]+) per[^|]*\| ([\d.]+) \|", PAGE)
    assert len(rows) >= 2
    for work, rate, hours in rows:
        exact = float(work.replace(",", "")) / float(rate) / 3600
        assert exact == pytest.approx(float(hours), rel=0.05)


@pytest.mark.parametrize(("change", "where", "memory", "disk"), ROWS)
def test_a_change_takes_what_the_table_says(
    change: str, where: str, memory: str, disk: str
) -> None:
    given = re.search(r"(one|four) GPUs? of (\d+) GiB", where)
    gpus = (COUNTS[given[1]], float(given[2])) if given else ()
    plan = printed(change or "{}", *gpus)
    assert re.search(rf"^  training +{re.escape(memory)} on each device", plan, re.MULTILINE)
    assert re.search(rf"^  disk +{re.escape(disk)} at the most", plan, re.MULTILINE)
    assert ("fsdp" in where) == (re.search(r"^  parallel +fsdp", plan, re.MULTILINE) is not None)


def test_the_table_of_changes_is_read() -> None:
    assert len(ROWS) >= 5
