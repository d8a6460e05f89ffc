"""The report of a small run, made once for the files of this folder."""

import json

import pytest

from distillery.pipeline import STAGES
from distillery.report import page
from distillery.report.gallery import make_gallery
from distillery.run_folder import RunFolder
from quality import make_config
from reports import make_results


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
