"""A small run measures how fast the large one will be; the plan then tells times."""

import json
import re
from pathlib import Path

import pytest

from checkout import configure, skeleton, succeed
from judging import make_judge

pytestmark = pytest.mark.slow
PROBE = "results/tiny/probe.json"


def test_a_probe_gives_the_plan_its_times(teacher: Path, tmp_path: Path) -> None:
    folder = skeleton(tmp_path)
    configure(folder, teacher)
    make_judge(folder / "inputs" / "judge")
    before = succeed(folder, "results/tiny/plan.json")
    assert f"not known; snakemake --cores all {PROBE} measures it" in " ".join(before.split())
    succeed(folder, PROBE)
    rates = json.loads((folder / PROBE).read_text())["rates"]
    assert {"embeddings", "targets", "training", "samples-teacher", "evaluation"} <= set(rates)
    assert all(rate["start_s"] >= 0 and rate["item_s"] >= 0 for rate in rates.values())
    assert rates["training"]["item_s"] > 0
    assert not (folder / "results" / "tiny-probe").exists(), "it is removed"
    note = json.loads((folder / "results/tiny/telemetry/probe.progress").read_text())
    assert note["done"] == note["total"] > 20, "its jobs"
    assert "Nothing to be done" in succeed(folder, "--dry-run", PROBE)
    after = succeed(folder, "results/tiny/plan.json")
    assert re.search(r"^  time +about [^-]* estimated\s+from the rates in ", after, re.MULTILINE)
    plan = json.loads((folder / "results/tiny/plan.json").read_text())
    assert [row["stage"] for row in plan["time"]["stages"]][:2] == ["embeddings", "targets"]
