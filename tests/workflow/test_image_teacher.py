"""Snakemake on prompts with images: from files to the report, and what a changed one remakes."""

from pathlib import Path

import pytest
import yaml

from checkout import TARGETS, jobs, skeleton, snakemake, succeed
from distillery.stages import verify
from distillery.store.tables import read_table
from judging import make_judge
from traced.pictured import image_settings, save_image

RESULTS = Path("results") / "tiny"


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a finished run."""
    folder = skeleton(tmp_path_factory.mktemp("images"))
    raw = image_settings("FluxKontextPipeline", folder / "inputs")
    del raw["samples"]["models"]["untrained"]
    (folder / "config").mkdir()
    (folder / "config" / "config.yaml").write_text(yaml.safe_dump(raw))
    make_judge(folder / "inputs" / "judge")
    succeed(folder, TARGETS)
    succeed(folder)
    return folder


def test_the_report_shows_code_with_the_image(ran: Path) -> None:
    page = (ran / RESULTS / "report/index.html").read_text(encoding="utf-8")
    table = read_table(ran / RESULTS / "samples/student/manifest.parquet")
    assert "image=load_image(" in page
    assert table["image"][0] in page
    assert "Nothing to be done" in succeed(ran)


def test_pages_show_the_image_beside_what_became_of_it(ran: Path) -> None:
    table = read_table(ran / RESULTS / "samples/student/manifest.parquet")
    gallery = ran / RESULTS / "gallery"
    page = (ran / RESULTS / "report/index.html").read_text(encoding="utf-8")
    for text in (page, (gallery / "index.html").read_text(encoding="utf-8")):
        assert f'alt="input: {table["prompt"][0]}"' in text
        assert 'class="lost"' not in text
    files = {path.stem for path in (gallery / "inputs").iterdir()}
    assert files == set(table["image_sha256"])


def test_what_was_made_is_as_it_was_made(ran: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ran)
    assert verify.main(["--run", str(RESULTS)]) == 0


def test_a_changed_image_is_drawn_again_and_no_other(ran: Path) -> None:
    """Though its date is old and no rule names it."""
    before = read_table(ran / RESULTS / "samples/teacher/manifest.parquet")
    changed = ran / "inputs/images/2.png"
    save_image(changed, 9)
    said = succeed(ran)
    assert {"prompts", "embeddings", "targets", "training", "samples"} <= jobs(said)
    after = read_table(ran / RESULTS / "samples/teacher/manifest.parquet")
    other = before["sha256"] != after["sha256"]
    assert other.tolist() == [name.endswith("/2.png") for name in before["image"]]
    assert other.any()
    assert "Nothing to be done" in succeed(ran)


def test_an_image_that_is_gone_is_named_before_the_first_job(ran: Path) -> None:
    gone = ran / "inputs/images/3.png"
    content = gone.read_bytes()
    gone.unlink()
    done = snakemake(ran, "--forcerun", "prompts")
    gone.write_bytes(content)
    assert done.returncode != 0
    assert "line 5: the image" in done.stdout
    assert "3.png' does not exist" in done.stdout
