"""Two runs side by side: paired differences, what is not there, and the page."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from PIL import Image

from distillery.config.jobs import save_frozen
from distillery.evaluation.comparison import differences, differing_settings, pair_up, read_pieces
from distillery.evaluation.metrics import ConfidenceInterval
from distillery.files import hash_file, write_sealed
from distillery.run_folder import RunFolder
from distillery.stages.compare import compare_runs
from distillery.store.tables import read_table, write_table

NUM_PROMPTS = 12


def make_run(folder: Path, name: str, gain: float = 0.0, shade: int = 0, **changes: Any) -> Path:
    """A run of one student: two images a prompt, scores that are `gain` above those of another."""
    run = RunFolder(folder / "results" / name)
    keys = [(f"p-{number}", index) for number in range(NUM_PROMPTS) for index in range(2)]
    images = run.samples("student").parent
    images.mkdir(parents=True)
    for number in range(len(keys)):
        Image.new("RGB", (8, 8), (number, shade, 0)).save(images / f"{number}.png")
    table = pd.DataFrame(keys, columns=["prompt_id", "index"]).assign(
        prompt="a cat",
        model="student",
        noise_seed=range(len(keys)),
        file=[f"{number}.png" for number in range(len(keys))],
        sha256=[hash_file(images / f"{number}.png") for number in range(len(keys))],
        latents_file="x",
        latents_sha256="0" * 64,
        steps=2,
        guidance_scale=1.0,
        network_calls=2,
        is_black=False,
    )
    write_table(table.assign(**changes), run.samples("student"))
    scores = table[["prompt_id", "index", "model"]].assign(
        clip_score=np.linspace(0.5, 0.9, len(keys)) + gain,
        rank=[1, 2] * NUM_PROMPTS,
        psnr_db=20.0,
        latents_mse=np.nan,
        high_frequency=1.0,
    )
    run.scores.parent.mkdir()
    write_table(scores, run.scores)
    write_sealed(run.quality, {"judge": "resources/judge"})
    run.config("run").parent.mkdir()
    settings = {"num_samples": 8 + int(100 * gain), "rounds": None}
    save_frozen(run.config("run"), {"run": name, "training": settings, "seed": 0})
    return run.path


def pieces(path: Path) -> Any:
    return read_pieces(RunFolder(path))


def test_differences_are_of_the_same_prompt_and_noise(tmp_path: Path) -> None:
    one, other = make_run(tmp_path, "a"), make_run(tmp_path, "b", 0.05, shade=9)
    found, notes = differences(pieces(one), pieces(other))
    assert notes == []
    by_metric = {it.metric: it for it in found}
    assert list(by_metric) == ["clip_score", "found_first", "psnr_db", "high_frequency"]
    clip = by_metric["clip_score"]
    assert clip.num_pairs == 2 * NUM_PROMPTS
    assert clip.paired is not None
    assert clip.paired.mean == pytest.approx(0.05)
    assert clip.paired.low == pytest.approx(0.05), "each sample has the same difference"
    assert clip.second.mean - clip.first.mean == pytest.approx(0.05)
    assert by_metric["found_first"].first.mean == 0.5
    assert by_metric["psnr_db"].paired == ConfidenceInterval(0.0, 0.0, 0.0)


def test_other_noise_is_said_and_not_paired(tmp_path: Path) -> None:
    seeds = [*range(4), *range(100, 100 + 2 * NUM_PROMPTS - 4)]
    one, other = make_run(tmp_path, "a"), make_run(tmp_path, "b", 0.05, 9, noise_seed=seeds)
    found, notes = differences(pieces(one), pieces(other))
    assert notes == [
        "student: 4 of 24 samples are of the same prompt and noise; differences are of these"
    ]
    assert {it.num_pairs for it in found} == {4}
    third = make_run(tmp_path, "c", prompt="a dog")
    found, notes = differences(pieces(one), pieces(third))
    assert "so no difference is paired" in notes[0]
    assert {it.paired for it in found} == {None}
    assert pair_up(pieces(one).samples["student"], pieces(third).samples["student"]) is None


def test_scores_of_other_judges_are_not_compared(tmp_path: Path) -> None:
    one, other = make_run(tmp_path, "a"), make_run(tmp_path, "b", shade=9)
    write_sealed(RunFolder(other).quality, {"judge": "another"})
    found, notes = differences(pieces(one), pieces(other))
    assert {it.metric for it in found} == {"psnr_db", "high_frequency"}
    assert "the judges differ" in notes[0]


def test_settings_that_differ() -> None:
    one = {"run": "a", "training": {"rounds": None, "num_samples": 8}, "seed": 0}
    other = {"run": "b", "training": {"rounds": {"count": 2}, "num_samples": 9}, "seed": 0}
    assert differing_settings(one, other) == [
        ("training.num_samples", "8", "9"),
        ("training.rounds.count", "not set", "2"),
    ]
    assert differing_settings(one, None) == []


def test_the_page_and_its_numbers(tmp_path: Path) -> None:
    one, other = make_run(tmp_path, "a"), make_run(tmp_path, "b", 0.05, shade=9)
    output = tmp_path / "results" / "compare" / "a-vs-b" / "index.html"
    compare_runs(one, other, output)
    page = output.read_text()
    for expected in ("b, held against a", "better", "training.num_samples", "24 pairs"):
        assert expected in page
    assert "where b gains most CLIP score" in page
    assert "where b loses most" not in page, "it loses nowhere"
    assert '<a href="../../a/samples/student/0.png">' in page
    table = read_table(output.with_name("metrics.parquet"))
    row = table[(table["metric"] == "clip_score") & (table["of"] == "difference")].iloc[0]
    assert row["mean"] == pytest.approx(0.05)
    assert row["num_pairs"] == 24


def test_equal_runs_are_said_to_be_equal(tmp_path: Path) -> None:
    one, other = make_run(tmp_path, "a"), make_run(tmp_path, "b")
    compare_runs(one, other, tmp_path / "c" / "index.html")
    page = (tmp_path / "c" / "index.html").read_text()
    assert "all 24 images are the same in both" in page
    assert "<img" not in page


def test_what_a_run_lacks_is_named(tmp_path: Path) -> None:
    one = make_run(tmp_path, "a")
    (tmp_path / "results" / "empty").mkdir()
    compare_runs(one, tmp_path / "results" / "empty", tmp_path / "c" / "index.html")
    page = (tmp_path / "c" / "index.html").read_text()
    for gap in ("empty has no configuration", "empty has no scores", "empty has no images"):
        assert gap in page
    assert "They could not be compared." in page
    with pytest.raises(FileNotFoundError, match="nowhere is not there"):
        compare_runs(one, tmp_path / "nowhere", tmp_path / "c" / "index.html")
