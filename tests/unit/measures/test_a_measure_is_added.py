"""What docs/add-a-measure.md says, done to a copy of the library with the page's own code."""

import json
import re
import textwrap
from pathlib import Path

import pytest

import distillery
from judging import make_samples
from libraries import code_of, copy_library, insert, run_with

FILE = "measures/of_pairs.py"
SHOW = """
import json, sys
from pathlib import Path
import numpy as np
from distillery.config.jobs import EvaluationJob
from distillery.config.samples import Evaluation
from distillery.report import gallery, tables
from distillery.report.comparison import MEASURES
from distillery.report.verdict import Roles
from distillery.measures.judge import Readings
from distillery.measures.manifests import read_samples
from distillery.measures.score import score_model, summarise

models = ("teacher", "student")
samples = {it: read_samples(it, Path(sys.argv[1]) / it / "manifest.parquet") for it in models}
prompts = list(dict.fromkeys(samples["teacher"].table["prompt"]))
readings = Readings(prompts, {prompt: row for row, prompt in enumerate(prompts)}, 0)
features = np.random.default_rng(0).normal(size=(len(samples["teacher"].table), 4))
texts = np.random.default_rng(1).normal(size=(len(prompts), 4))
scores = {
    it: score_model(samples[it], samples["teacher"], features, readings, texts) for it in models
}
job = EvaluationJob(
    evaluation=Evaluation(judge="j", reference="teacher", num_resamples=200), models=models
)
quality = summarise(job, samples, scores, {"judge": dict.fromkeys(models, features)}, len(prompts))
table = tables.metrics_table(quality, Roles("student", "teacher"), {})
print(json.dumps({
    "scores": scores["student"]["mean_absolute_error"].tolist(),
    "quality": quality["models"]["student"],
    "table": {it.title: cell.text for it, cell in zip(table.columns, table.rows["student"])},
    "gallery": gallery.SCORES, "compared": [it.full for it in MEASURES],
}))
"""


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> dict:
    """What the library shows of a student that has moved, with the page's measure in it."""
    folder = tmp_path_factory.mktemp("added")
    library = copy_library(folder)
    function, entry = code_of("add-a-measure.md")
    start = "OF_PAIRS = (\n"
    insert(library / FILE, start, f"{function}\n\n")
    text, entry = (library / FILE).read_text(), textwrap.indent(entry.rstrip(), "    ")
    (library / FILE).write_text(text.replace(start, f"{start}{entry},\n"))
    for name, shift in (("teacher", 0), ("student", 3)):
        make_samples(folder / name, name, 4, 1.0, shift)
    return json.loads(run_with(library, SHOW, folder))


def test_it_is_scored_and_summarised(shown: dict) -> None:
    quality, scores = shown["quality"], shown["scores"]
    assert min(scores) > 0
    mean = quality["mean_absolute_error"]
    assert mean["mean"] == pytest.approx(sum(scores) / len(scores), rel=1e-5)
    assert mean["low"] < mean["mean"] < mean["high"]
    # The reference has none, so there is nothing to take the difference to.
    assert quality["against"]["teacher"]["mean_absolute_error_difference"] is None


def test_every_page_shows_it(shown: dict) -> None:
    mean = shown["quality"]["mean_absolute_error"]["mean"]
    assert shown["table"]["MAE"] == f"{mean:.2f}"
    assert shown["gallery"]["mean_absolute_error"] == "MAE"
    assert "mean absolute error to its reference" in shown["compared"]


def test_it_is_one_file_and_a_test() -> None:
    """Other places of the library know no measure by name, but those that are about one."""
    about = {"measures/of_judge.py", FILE, "measures/of_clips.py", "measures/of_sets.py"}
    claims_of_the_product = {
        "report/comparison.py",  # images that gained most, and whose prompts ranks are among
        "report/image_grid.py",  # the images that are shown first
        "report/leaderboard.py",  # what runs are compared by, and are ranked by first
        "report/roles.py",  # the rival
        "report/verdict.py",  # threshold and headline: the CLIP score's ratio; is R@1 weak?
    }
    root = Path(distillery.__file__).parent
    names = re.compile(
        r"clip_score|retrieval_r1|latents_mse|psnr_db|high_frequency|frechet|RETRIEVAL|"
        r"\"motion|flicker"
    )
    found = {
        path.relative_to(root).as_posix()
        for path in root.rglob("*.py")
        if path.parent != root / "stages" and names.search(path.read_text())
    }
    assert found <= about | claims_of_the_product
