"""Draw docs/images/quality.svg: how good the benchmark's students are, against what they learned.

python tools/quality_chart.py
"""

import json
from pathlib import Path
from typing import Any

import vl_convert

from distillery.files import write_text
from distillery.report.charts import CONFIG, VEGA_LITE

ROOT = Path(__file__).resolve().parents[1]
OUTPUT = ROOT / "docs/images/quality.svg"
BENCHMARKS = ROOT / "benchmarks"
LARGE_STORE = "8192x8"
LARGE = {"num_samples": 512_000, "learning_rate": 7e-4}
LONGER = {
    "half-3e3": {"num_samples": 3_072_000, "learning_rate": 3e-3},
    "quarter-3e3": {"num_samples": 3_840_000, "learning_rate": 3e-3},
    "one-1.5e3": {"num_samples": 2_560_000, "learning_rate": 1.5e-3},
}
"""Of rows that do not say it themselves; the pages beside the files do."""
LONGEST = 6_000_000
"""Of the last file those with more samples are shown; its others repeat what the first have."""
HIGH_RATE = 1.5e-3
USUAL, HIGHER = "learning rate up to 1e-3", "learning rate from 1.5e-3"
CHART_STEPS = 4
"""Of the smaller students that are shown."""
SHAPES = {
    "same": "teacher's shape",
    "half": "half the blocks",
    "quarter": "a quarter",
}
COLOURS = {"same": "var(--c0)", "half": "var(--c1)", "quarter": "var(--c2)"}
STYLE = """<style>
:root { --ink: #24292f; --muted: #57606a; --grid: #8b949e40;
  --c0: #0969da; --c1: #bc4c00; --c2: #8250df }
@media (prefers-color-scheme: dark) { :root { --ink: #e6edf3; --muted: #9da7b3;
  --c0: #58a6ff; --c1: #f0883e; --c2: #c297ff } }
</style>"""


def rows() -> list[dict[str, Any]]:
    """Students of the plain objective from the large store, in float32."""
    large = [LARGE | row for row in read("objectives_large_store_h200_2026-11-23")]
    long = read("objectives_long_h200_2026-11-23") + read("objectives_rates_h200_2026-11-24")
    named = read("fine_tune_h200_2026-11-24").items()
    longer = [LONGER[key] | row for name, row in named if (key := name.split("/")[0]) in LONGER]
    rounds = read("objectives_rounds_h100_2026-11-24")
    longest = [row for row in rounds if row.get("num_samples", 0) > LONGEST]
    return [
        row
        for row in large + long + longer + longest
        if (row["objective"], row["store"]) == ("segment", LARGE_STORE)
        and row.get("dtype") != "bfloat16"
        and (row["shape"] == "same" or row["steps"] == CHART_STEPS)
    ]


def read(name: str) -> Any:
    """A benchmark's rows."""
    return json.loads((BENCHMARKS / f"{name}.json").read_text(encoding="utf-8"))


def point_of(row: dict[str, Any]) -> dict[str, Any]:
    """What the chart shows of a row."""
    ratio, low, high = (100 * value for value in row["clip_ratio"])
    rate = HIGHER if row["learning_rate"] >= HIGH_RATE else USUAL
    return {
        "samples": row["num_samples"],
        "ratio": ratio,
        "low": low,
        "high": high,
        "shape": SHAPES[row["shape"]],
        "rate": rate,
        "student": f"{row['shape']} {row['steps']} {rate}",
        "label": f"{SHAPES[row['shape']]}, {row['steps']} step{'s' * (row['steps'] > 1)}",
    }


def spec() -> dict[str, Any]:
    """The chart: a point a student, a line for those of one shape and number of steps."""
    points = sorted(map(point_of, rows()), key=lambda it: (it["samples"], it["ratio"]))
    last = {point["label"]: point for point in points}
    x = {
        "field": "samples",
        "type": "quantitative",
        "scale": {"type": "log", "domain": [320_000, 30_000_000]},
        "axis": {"values": [5e5, 1e6, 2e6, 5e6, 1e7], "format": ",.0f", "grid": False},
        "title": "samples learned from",
    }
    y = {
        "field": "ratio",
        "type": "quantitative",
        "scale": {"domain": [58, 101]},
        "title": "% of the teacher's CLIP score",
    }
    colour = {
        "field": "shape",
        "type": "nominal",
        "scale": {"domain": list(SHAPES.values()), "range": list(COLOURS.values())},
        "legend": None,
    }
    group = {"field": "student", "type": "nominal"}
    rate = {
        "field": "rate",
        "type": "nominal",
        "sort": [USUAL, HIGHER],
        "title": None,
        "legend": {"columnPadding": 60},
    }
    dash = rate | {"legend": None}
    return {
        "$schema": "https://vega.github.io/schema/vega-lite/v6.json",
        "width": 620,
        "height": 420,
        "config": CONFIG,
        "data": {"values": points},
        "encoding": {"x": x, "color": colour},
        "layer": [
            {"mark": "line", "encoding": {"y": y, "detail": group, "strokeDash": dash}},
            {"mark": {"type": "point", "size": 45}, "encoding": {"y": y, "shape": rate}},
            {"mark": "rule", "encoding": {"y": y | {"field": "low"}, "y2": {"field": "high"}}},
            {
                "data": {"values": list(last.values())},
                "mark": {"type": "text", "align": "left", "dx": 7, "dy": -7, "fontSize": 12},
                "encoding": {"y": y, "text": {"field": "label"}},
            },
        ],
    }


def draw() -> str:
    """The chart as SVG whose colours follow light and dark."""
    drawn = vl_convert.vegalite_to_svg(spec(), vl_version=VEGA_LITE, allowed_base_urls=[])
    head, bracket, rest = drawn.partition(">")
    return head + bracket + STYLE + rest + "\n"


if __name__ == "__main__":
    write_text(OUTPUT, draw())
