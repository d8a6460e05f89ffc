"""Two runs side by side: paired differences, what is not there, and the page."""

import os
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from PIL import Image

from distillery.config.jobs import read_frozen, save_frozen
from distillery.files import hash_file, read_sealed, write_json, write_sealed
from distillery.measures.intervals import NO_ENDS, ConfidenceInterval
from distillery.measures.of_judge import CLIP_SCORE
from distillery.measures.of_pairs import OF_PAIRS
from distillery.report import comparison
from distillery.report.compare import compare_runs
from distillery.report.comparison import (
    REFERENCES_DIFFER,
    differences,
    differing_settings,
    pair_up,
    read_pieces,
)
from distillery.run_folder import RunFolder
from distillery.store.tables import read_table, write_table
from training_phases import phases

NUM_PROMPTS = 12


def make_run(
    folder: Path, name: str, gain: float = 0.0, shade: int = 0, reference: str = "r", **changes: Any
) -> Path:
    """A run of one student: two images a prompt, scores that are `gain` above those of another.

    The reference is listed, as a model of the run's own; its images, all of hash `reference`, are
    read by no comparison.
    """
    run = RunFolder(folder / "results" / name)
    run.config("run").parent.mkdir(parents=True)
    settings = {"phases": phases(stored=8 + int(100 * gain))}
    save_frozen(run.config("run"), {"run": name, "training": settings, "seed": 0})
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
    of_reference = table.assign(model=name, sha256=reference, latents_sha256=reference)
    run.samples(f"of-{name}").parent.mkdir()
    write_table(of_reference.assign(**changes), run.samples(f"of-{name}"))
    scores = table[["prompt_id", "index", "model"]].assign(
        clip_score=np.linspace(0.5, 0.9, len(keys)) + gain * np.linspace(0.9, 1.1, len(keys)),
        rank=[1, 2] * NUM_PROMPTS,
        psnr_db=20.0,
        latents_mse=np.nan,
        high_frequency=1.0,
    )
    run.scores.parent.mkdir()
    write_table(scores, run.scores)
    write_sealed(run.quality, {"judge": "resources/judge", "reference": f"of-{name}"})
    return run.path


def pieces(path: Path) -> Any:
    return read_pieces(RunFolder(path))


def test_scores_of_other_images_are_refused(tmp_path: Path) -> None:
    run = RunFolder(make_run(tmp_path, "a"))
    scored = {"models": {"student": {"images": "0" * 64}}}
    write_sealed(run.quality, read_sealed(run.quality) | scored)
    with pytest.raises(ValueError, match=rf"other images of student .*: run `rm -r {run.quality}"):
        read_pieces(run)


def test_differences_are_of_the_same_prompt_and_noise(tmp_path: Path) -> None:
    one, other = make_run(tmp_path, "a"), make_run(tmp_path, "b", 0.05, shade=9)
    found, notes = differences(pieces(one), pieces(other))
    assert notes == []
    by_metric = {it.metric: it for it in found}
    assert list(by_metric) == ["clip_score", "retrieval_r1", "psnr_db", "high_frequency"]
    clip = by_metric["clip_score"]
    assert clip.num_pairs == 2 * NUM_PROMPTS
    assert clip.paired is not None
    assert clip.paired.mean == pytest.approx(0.05)
    assert clip.paired.low is not None
    assert clip.paired.low > 0.04
    assert clip.second.mean - clip.first.mean == pytest.approx(0.05)
    assert by_metric["retrieval_r1"].first.mean == 0.5
    assert by_metric["psnr_db"].paired == ConfidenceInterval(0.0, None, None)


@pytest.mark.parametrize("column", ["sha256", "latents_sha256"])
def test_what_is_against_other_references_is_not_comparable(tmp_path: Path, column: str) -> None:
    """One image of one reference is enough; CLIP score and R@1 are of the model alone."""
    one, other = make_run(tmp_path, "a"), make_run(tmp_path, "b", 0.05, shade=9)
    path = RunFolder(other).samples("of-b")
    table = read_table(path)
    table.loc[3, column] = "another"
    write_table(table, path)
    found, _ = differences(pieces(one), pieces(other))
    reasons = {it.metric: it.reason for it in found}
    of_pixels = REFERENCES_DIFFER if column == "sha256" else ""
    assert reasons == {
        "clip_score": "", "retrieval_r1": "", "psnr_db": of_pixels, "high_frequency": of_pixels
    }  # fmt: skip
    assert {it.metric: it.paired is None for it in found} == {
        metric: bool(reason) for metric, reason in reasons.items()
    }


def test_a_reference_that_is_gone_is_not_known_to_be_the_same(tmp_path: Path) -> None:
    one, other = make_run(tmp_path, "a"), make_run(tmp_path, "b", 0.05, shade=9)
    RunFolder(other).samples("of-b").unlink()
    found, _ = differences(pieces(one), pieces(other))
    assert {it.metric for it in found if it.reason} == {"psnr_db", "high_frequency"}


def test_no_metric_of_another_reference_is_called_better_or_worse(tmp_path: Path) -> None:
    """All columns that are against a reference say so, and none has a badge."""
    one = make_run(tmp_path, "a")
    other = make_run(tmp_path, "b", 0.0, shade=9, reference="other")
    for number, run in enumerate((one, other)):
        path = RunFolder(run).scores
        table = read_table(path)
        spread = np.linspace(0.1, 0.2, len(table))
        table = table.assign(psnr_db=20 + number + spread, latents_mse=number + spread)
        write_table(table.assign(high_frequency=1 + number + spread), path)
    page = tmp_path / "page/index.html"
    compare_runs(one, other, page)
    text = page.read_text()
    assert text.count(REFERENCES_DIFFER) == len(OF_PAIRS) == 3
    assert "badge" not in text.split("</style>")[1]


def test_a_measure_whose_ends_are_not_known_is_compared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    aesthetic = replace(CLIP_SCORE, name="aesthetic", ends=NO_ENDS)
    monkeypatch.setattr(comparison, "MEASURES", [aesthetic])
    runs = [make_run(tmp_path, "a"), make_run(tmp_path, "b", shade=9)]
    for path, score in zip(runs, (1.0, 1e6), strict=True):
        scores = RunFolder(path).scores
        write_table(read_table(scores).assign(aesthetic=score), scores)
    (found,), _ = differences(*map(pieces, runs))
    assert found.paired == ConfidenceInterval(1e6 - 1, None, None)


def test_settings_are_those_that_the_images_were_made_with(tmp_path: Path) -> None:
    """A stage that is asked for by its file freezes new settings and leaves the images."""
    run = RunFolder(make_run(tmp_path, "a"))
    assert pieces(run.path).gaps == []
    before = read_frozen(run.config("run"))
    save_frozen(run.config("run"), before | {"seed": 1})
    found = pieces(run.path)
    assert found.config["seed"] == 1
    assert found.gaps == [
        "there is no report of the images of a as they are scored now: its settings are told as "
        "they are now, and have changed since"
    ]
    quality = read_sealed(run.quality)
    write_json(run.metrics, {"quality": quality, "provenance": {"config": before}})
    save_frozen(run.config("run"), before | {"seed": 2})
    assert (pieces(run.path).config, pieces(run.path).gaps) == (before, [])
    for path in run.path.glob("**/*"):
        os.utime(path, (1e9, 1e9))  # as a copy may have it
    assert pieces(run.path).config == before
    write_sealed(run.quality, quality | {"num_prompts": 7})
    scored_again = pieces(run.path)
    assert scored_again.config["seed"] == 2
    assert scored_again.gaps[0].endswith("and may have changed since")


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


@pytest.mark.parametrize(
    "column", [{"image": "a.png", "image_sha256": "b" * 64}, {"height": 32, "width": 32}]
)
def test_other_input_images_and_sizes_are_no_pairs(tmp_path: Path, column: dict[str, Any]) -> None:
    one, other = (pieces(make_run(tmp_path, name)).samples["student"] for name in "ab")
    assert pair_up(one, other) is not None
    changed = replace(other, table=other.table.assign(**column))
    assert pair_up(one, changed) is None
    both = replace(one, table=one.table.assign(**column))
    assert pair_up(both, changed) is not None


def make_half(folder: Path, one: Path, name: str) -> Path:
    """A run of the first half of another's prompts: the same images, but for ranks of its own."""
    run, other = RunFolder(make_run(folder, name)), RunFolder(one)
    kept = [f"p-{number}" for number in range(NUM_PROMPTS // 2)]
    of_references = (run.samples(f"of-{name}"), other.samples(f"of-{one.name}"))
    of_students = (run.samples("student"), other.samples("student"))
    for path, source in (of_references, of_students, (run.scores,) * 2):
        table = read_table(source)
        table = table[table["prompt_id"].isin(kept)]
        write_table(table.assign(rank=1) if path == run.scores else table, path)
    return run.path


def with_own_prompts(path: Path) -> Path:
    """Another text for each prompt."""
    for manifest in RunFolder(path).sample_folder.glob("*/manifest.parquet"):
        table = read_table(manifest)
        write_table(table.assign(prompt=table["prompt_id"]), manifest)
    return path


def test_ranks_among_other_prompts_have_no_difference(tmp_path: Path) -> None:
    one = with_own_prompts(make_run(tmp_path, "a"))
    half = make_half(tmp_path, one, "half")
    found, notes = differences(pieces(one), pieces(half))
    by_metric = {it.metric: it for it in found}
    rank = by_metric["retrieval_r1"]
    assert rank.paired is None
    assert rank.reason == "not compared: the ranks are among 12 and among 6 prompts"
    assert (rank.first.mean, rank.second.mean, rank.num_images) == (0.5, 1.0, (24, 12))
    assert by_metric["clip_score"].paired == ConfidenceInterval(0.0, None, None), "of six"
    assert "student: the images of these pairs are the same in both" in notes
    compare_runs(one, half, tmp_path / "results" / "compare" / "c" / "index.html")
    page = (tmp_path / "results" / "compare" / "c" / "index.html").read_text()
    assert rank.reason in page
    assert "all 24 images" in page


def test_numbers_beside_a_difference_are_of_its_pairs(tmp_path: Path) -> None:
    """The half that both have scores lower than the rest, which one has alone."""
    one = with_own_prompts(make_run(tmp_path, "a"))
    half = make_half(tmp_path, one, "half")
    scores = RunFolder(half).scores
    table = read_table(scores)
    change = np.array([0.5, -0.3, *[0.1] * 10])
    write_table(
        table.assign(clip_score=table["clip_score"] + 0.01, high_frequency=1.0 + change), scores
    )
    found, _ = differences(pieces(one), pieces(half))
    paired = [it for it in found if it.paired is not None]
    assert {it.metric for it in paired} == {"clip_score", "psnr_db", "high_frequency"}
    for it in paired:
        assert it.paired is not None
        assert it.second.mean - it.first.mean == pytest.approx(it.paired.mean, abs=1e-5)
        assert it.num_images == (12, 12)
    compare_runs(one, half, tmp_path / "c" / "index.html")
    numbers = read_table(tmp_path / "c" / "metrics.parquet")
    pairs = numbers[numbers["metric"] == "clip_score"]["num_pairs"]
    assert list(pairs) == [12, 12, 12]
    assert numbers[numbers["metric"] == "retrieval_r1"]["num_pairs"].isna().all()


def test_r_at_1_has_both_bounds_where_few_images_change(tmp_path: Path) -> None:
    one, other = make_run(tmp_path, "a"), make_run(tmp_path, "b", shade=9)
    scores = RunFolder(other).scores
    write_table(read_table(scores).assign(rank=[1, 1, *[1, 2] * (NUM_PROMPTS - 1)]), scores)
    found, _ = differences(pieces(one), pieces(other))
    (rank,) = (it.paired for it in found if it.metric == "retrieval_r1")
    assert rank is not None
    assert rank.mean == pytest.approx(1 / 24, rel=1e-5)
    assert rank.low is not None
    assert rank.high is not None
    assert -1 <= rank.low < 0 < rank.high <= 1


def test_scores_of_other_judges_are_not_compared(tmp_path: Path) -> None:
    one, other = make_run(tmp_path, "a"), make_run(tmp_path, "b", shade=9)
    write_sealed(RunFolder(other).quality, {"judge": "another"})
    found, notes = differences(pieces(one), pieces(other))
    assert {it.metric for it in found} == {"psnr_db", "high_frequency"}
    assert "the judges differ" in notes[0]


@pytest.mark.parametrize(
    ("model", "reference", "compared", "paired"),
    [
        ("one", "r", {"preference", "preferred"}, {"preference", "preferred"}),
        ("one", "other", {"preference", "preferred"}, {"preference"}),
        ("another", "r", set(), set()),
    ],
)
def test_preferences_are_compared_where_one_model_told_them(
    tmp_path: Path, model: str, reference: str, compared: set[str], paired: set[str]
) -> None:
    """Being preferred is to the reference's image, which must be the same, too."""
    runs = make_run(tmp_path, "a"), make_run(tmp_path, "b", shade=9, reference=reference)
    for path, name in zip(runs, ("one", model), strict=True):
        run = RunFolder(path)
        table = read_table(run.scores)
        chosen = table.assign(preference=20 * table["clip_score"], preferred=table["clip_score"])
        write_table(chosen, run.scores)
        write_sealed(run.quality, {**read_sealed(run.quality), "preference_model": name})
    found, notes = differences(*map(pieces, runs))
    told = {it.metric: it for it in found if it.metric.startswith("prefer")}
    assert set(told) == compared
    assert {name for name, it in told.items() if it.paired} == paired
    assert any("the models of preference differ" in note for note in notes) == (not compared)


def test_settings_that_differ() -> None:
    one = {"run": "a", "training": {"phases": phases(stored=8)}, "seed": 0}
    other = {"run": "b", "training": {"phases": phases(stored=9, rounds={"count": 2})}, "seed": 0}
    assert differing_settings(one, other) == [
        ("training.phases.0.samples", "8", "9"),
        ("training.phases.1.learn", "not set", "rounds"),
        ("training.phases.1.count", "not set", "2"),
    ]
    assert differing_settings(one, None) == []


def test_the_page_and_its_numbers(tmp_path: Path) -> None:
    one, other = make_run(tmp_path, "a"), make_run(tmp_path, "b", 0.05, shade=9)
    output = tmp_path / "results" / "compare" / "a-vs-b" / "index.html"
    compare_runs(one, other, output)
    page = output.read_text()
    for expected in ("b, held against a", "better", "training.phases.0.samples", "24 pairs"):
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


def test_a_run_without_scores_is_told_how_to_get_them(tmp_path: Path) -> None:
    one, other = make_run(tmp_path, "a"), make_run(tmp_path, "b", shade=9)
    RunFolder(other).scores.unlink()
    RunFolder(other).quality.unlink()
    for run in (one, other):
        save_frozen(RunFolder(run).config("run"), {"run": run.name, "evaluation": {"judge": "j"}})
    report = RunFolder(one).report
    report.parent.mkdir()
    report.touch()
    output = tmp_path / "results" / "compare" / "a-vs-b" / "index.html"
    compare_runs(one, other, output)
    page = output.read_text()
    command = f"snakemake --cores all {RunFolder(other).quality} --configfile FILE"
    assert page.count("has no scores") == page.count(command) == 1
    assert '<a href="../../a/report/index.html">a</a>.' in page
    assert "b/report" not in page
    assert "<img" in page
    assert "metrics.parquet" not in page

    save_frozen(RunFolder(other).config("run"), {"run": "b"})
    compare_runs(one, other, output)
    page = output.read_text()
    assert "b has no scores: its metrics are not compared. It only generates images" in page
    assert "snakemake" not in page


def test_a_sentence_on_several_models_is_said_once(tmp_path: Path) -> None:
    seeds = [*range(4), *range(100, 100 + 2 * NUM_PROMPTS - 4)]
    one, other = make_run(tmp_path, "a"), make_run(tmp_path, "b", 0.05, 9, noise_seed=seeds)
    for run in map(RunFolder, (one, other)):
        shutil.copytree(run.samples("student").parent, run.samples("twin").parent)
    _, notes = differences(pieces(one), pieces(other))
    assert notes == [
        "student and twin: 4 of 24 samples are of the same prompt and noise; differences are of "
        "these"
    ]
    for run in map(RunFolder, (one, other)):
        shutil.rmtree(run.samples("twin").parent)
    student = RunFolder(other).samples("student").parent
    student.rename(student.with_name("other"))
    assert differences(pieces(one), pieces(other)) == ([], ["no model has a name in both runs"])


def test_what_a_run_lacks_is_named(tmp_path: Path) -> None:
    one = make_run(tmp_path, "a")
    (tmp_path / "results" / "empty").mkdir()
    compare_runs(one, tmp_path / "results" / "empty", tmp_path / "c" / "index.html")
    page = (tmp_path / "c" / "index.html").read_text()
    for gap in ("empty has no configuration", "empty has no scores", "empty has no images"):
        assert gap in page
    for claim in ("Settings that differ", "metrics.parquet", "Intervals", "/report/index.html"):
        assert claim not in page
    with pytest.raises(FileNotFoundError, match="nowhere is not there"):
        compare_runs(one, tmp_path / "nowhere", tmp_path / "c" / "index.html")
