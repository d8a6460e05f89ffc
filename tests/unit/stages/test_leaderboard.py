"""The page of all runs: their reports' numbers, what differs, and what a browser does with it."""

import json
import shutil

import pytest

from browser import ask, needs_browser
from distillery.measures.intervals import ConfidenceInterval
from distillery.report.leaderboard import Entry, changed_settings, compare_all, find_best
from reports import Page


def entry(name, kept):
    return Entry(name, "", "", "", (0, 0), kept, 2, {}, {})


@pytest.fixture(scope="module")
def page(written, folder, tmp_path_factory):
    """Of two runs with a report and of one without."""
    results = tmp_path_factory.mktemp("results")
    for name, score in (("mine", 0.99), ("other", 0.9)):
        shutil.copytree(folder, results / name, ignore=shutil.ignore_patterns("asked-*"))
        path = results / name / "report/metrics.json"
        facts = json.loads(path.read_text())
        facts["provenance"]["config"]["seed"] = 7 if name == "other" else 0
        student = facts["quality"]["models"]["student"]["against"]["teacher"]
        student["clip_score_ratio"] = {"mean": score, "low": score - 0.01, "high": score + 0.01}
        path.write_text(json.dumps(facts))
    shutil.copytree(results / "mine", results / "new")
    (results / "new/report/metrics.json").unlink()
    (results / "new/config").mkdir()
    (results / "new/config/run.json").touch()
    output = results / "compare/index.html"
    compare_all(results, output)
    return output


def test_all_runs_with_a_report_are_on_it(page):
    found = Page(page.read_text())
    assert found.open == []
    words = " ".join(" ".join(found.words).split())
    assert "mine keeps most of its reference's CLIP score, 99.0 %" in words
    assert "its interval overlaps that of no other run" in words
    assert "Without a report, so not here: new" in words
    assert "seed 7 (0)" in words
    assert words.count("seed") == 1, "what most runs have is not told"
    images = [it for it in found.all("img") if it["alt"].startswith("other: ")]
    assert len(images) == 3
    links = [it["href"] for it in found.all("a")]
    for link in ("../mine/report/index.html", "../other/gallery/index.html"):
        assert link in links
        assert (page.parent / link).exists()
    assert "CLIP score as a share of each run's reference" in page.read_text()


def test_without_a_report_there_is_nothing_to_compare(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"no run in .* has a report"):
        compare_all(tmp_path, tmp_path / "index.html")


def test_a_best_run_is_named_with_those_that_may_be_as_good():
    best = entry("a", ConfidenceInterval(0.99, 0.97, 1.0))
    near = entry("b", ConfidenceInterval(0.96, 0.95, 0.98))
    far = entry("c", ConfidenceInterval(0.5, 0.4, 0.6))
    few = entry("d", ConfidenceInterval(0.5, None, None))
    assert "no other run" in find_best([far, best])
    assert find_best([far, near, best, few]).endswith(
        "by their intervals b and d may keep as much."
    )
    assert find_best([best, entry("e", None)]) == ""


def test_settings_are_told_where_they_are_not_what_most_runs_have():
    settings = {"a": {"x": 1, "y": None}, "b": {"x": 1}, "c": {"x": 2, "z": "new"}}
    assert changed_settings(settings) == {
        "a": [], "b": [], "c": [("x", "2", "1"), ("z", "new", "not set")]
    }  # fmt: skip


@needs_browser
def test_rows_are_sorted_and_filtered(page):
    script = """
    const names = () => [...document.querySelectorAll(".runs tbody tr")]
      .filter((row) => !row.hidden)
      .map((row) => row.cells[0].dataset.value);
    const heads = [...document.querySelectorAll(".runs thead button")];
    const kept = heads.find((it) => it.textContent === "CLIP score kept");
    kept.click();
    const falling = names();
    kept.click();
    const rising = names();
    const words = document.getElementById("words");
    words.value = "SEED 7";
    words.dispatchEvent(new Event("input"));
    return [falling, rising, kept.parentElement.ariaSort, names()];
    """
    falling, rising, sort, filtered = ask(page, script)
    assert (falling, rising) == (["mine", "other"], ["other", "mine"])
    assert sort == "ascending"
    assert filtered == ["other"]
