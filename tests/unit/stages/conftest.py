"""Reports of a small run, made once for the files of this folder."""

import json
import shutil

import pandas as pd
import pytest

from distillery.files import read_sealed, write_sealed
from distillery.pipeline import STAGES
from distillery.report import page
from distillery.report.gallery import make_gallery
from distillery.run_folder import RunFolder
from events import event
from judging import PROMPTS
from quality import make_config
from reports import make_results, write, write_telemetry, write_trained

HOSTILE = "a <script>alert('x')</script> & \"red\" circle"
OWN_CARD = "---\nlibrary_name: diffusers\n---\n\n# A student\n\nWords.\n\n## The right call\n\nIt."


@pytest.fixture(scope="session")
def folder(tmp_path_factory):
    """results/tiny with everything that a report can show."""
    folder = tmp_path_factory.mktemp("tiny")
    make_results(folder)
    return folder


@pytest.fixture(scope="session")
def written(folder):
    """(page, metrics) of the whole run."""
    html, metrics = folder / "report/index.html", folder / "report/metrics.json"
    make_gallery(sorted(folder.glob("samples/*/manifest.parquet")), None, folder / "gallery")
    page.write_report(make_config(), RunFolder(folder), html, metrics, STAGES)
    return html.read_text(), json.loads(metrics.read_text())


@pytest.fixture(scope="session")
def edited(folder, tmp_path_factory):
    """(page, metrics, folder) of a copy of the run, with a change for each of several tests."""
    copy = shutil.copytree(folder, tmp_path_factory.mktemp("edited") / "tiny")
    _edit_quality(copy / "evaluation/quality.json")
    for path in copy.glob("samples/*/manifest.parquet"):
        table, model = pd.read_parquet(path), path.parent.name
        table["prompt"] = table["prompt"].replace(PROMPTS[0], HOSTILE)
        table["category"] = ["<b>odd" if int(it[-1]) % 2 else "even" for it in table["prompt_id"]]
        if model in ("teacher", "student"):
            table["is_black"] = table["index"] == 0
        if model == "few":
            table["recipe"] = "new"
        table.to_parquet(path, index=False)
    earlier = [
        event("work", "samples-few-0-of-1", 9.0 * at, 9.0 * at + 9, 8, recipe="old")
        for at in range(3)
    ]
    write_telemetry(copy, earlier)
    (copy / "student/pipeline/README.md").write_text(OWN_CARD)
    write_trained(copy, make_config(), timesteps=(999, 500.5))
    return *write(make_config(), copy), copy


def _edit_quality(path):
    """A share of the CLIP score that was kept; as of an earlier release, without hashes of images.

    The tiny judge's scores are near zero, where no share is defined.
    """
    quality = read_sealed(path) | {"num_prompts": 7, "preference_model": "a/preference"}
    models = quality["models"]
    for model in models.values():
        del model["images"]
        model["preference"] = {"mean": 21.25, "low": 20.5, "high": 22.0}
    models["few"]["guidance_scale_2"] = 3.0
    models["teacher"]["retrieval_r1"] = {"mean": 1.0, "low": 0.95, "high": 1.0}
    for name, ratio in (
        ("student", {"mean": 0.96, "low": 0.9, "high": 1.02}),
        ("few", None),
        ("untrained", None),
    ):
        models[name]["against"]["teacher"]["clip_score_ratio"] = ratio
    write_sealed(path, quality)
