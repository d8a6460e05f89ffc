"""The gallery: pages of all images that need no script, and rows for the script that there is."""

import json
import math
import re
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from distillery.files import hash_file, write_sealed
from distillery.measures.manifests import read_samples
from distillery.report.gallery import make_gallery
from distillery.run_folder import RunFolder
from distillery.store.tables import write_table

NUM_PROMPTS = 225


def manifest(folder: Path, model: str, calls: int, **changes: Any) -> Path:
    """A manifest of two images a prompt; the gallery only links to them."""
    keys = [(number, index) for number in range(NUM_PROMPTS) for index in range(2)]
    table = pd.DataFrame(
        {
            "model": model,
            "prompt_id": [f"p-{number:03}" for number, _ in keys],
            "index": [index for _, index in keys],
            "prompt": ["</script><b>a #1 & only" if not number else "a cat" for number, _ in keys],
            "file": [f"a recipe/p-{number:03}/{index}.png" for number, index in keys],
            "sha256": "0" * 64,
            "latents_file": "x",
            "latents_sha256": "0" * 64,
            "noise_seed": list(range(len(keys))),
            "steps": calls,
            "guidance_scale": 1.0,
            "network_calls": calls,
            "is_black": False,
        }
    )
    path = folder / "results" / "demo" / "samples" / model / "manifest.parquet"
    path.parent.mkdir(parents=True)
    write_table(table.assign(**changes), path)
    return path


@pytest.fixture
def manifests(tmp_path: Path) -> list[Path]:
    return [manifest(tmp_path, "teacher", 48), manifest(tmp_path, "student", 2)]


def rows_of(gallery: Path) -> Any:
    text = (gallery / "rows.js").read_text()
    assert "</script" not in text, "it would end the script"
    return json.loads(text.removeprefix("const GALLERY = ").removesuffix(";\n"))


def test_all_images_are_on_its_pages_without_a_script(
    manifests: list[Path], tmp_path: Path
) -> None:
    output = tmp_path / "results" / "demo" / "gallery"
    make_gallery(manifests, None, output)
    pages = ["index.html", "page-2.html", "page-3.html"]
    assert sorted(path.name for path in output.iterdir()) == ["blind.html", *pages, "rows.js"]
    sources = []
    for number, name in enumerate(pages, 1):
        page = (output / name).read_text()
        sources += re.findall(r'<img loading="lazy" src="([^"]+)"', page)
        assert f'<a href="{name}" aria-current="page">{number}</a>' in page
        assert "<b>a #1" not in page, "prompts are users' text"
        assert "Sort by" not in page, "there are no scores"
    assert len(sources) == len(set(sources)) == 2 * 2 * NUM_PROMPTS
    assert sources[0] == "../samples/teacher/a%20recipe/p-000/0.png"
    assert sources[-1] == "../samples/student/a%20recipe/p-224/1.png"


def test_its_rows_have_the_scores_that_there_are(manifests: list[Path], tmp_path: Path) -> None:
    scores = pd.DataFrame(
        {
            "model": ["teacher", "student"],
            "prompt_id": "p-001",
            "index": 1,
            "clip_score": [0.91234567, 0.5],
            "psnr_db": [math.nan, 20.0],
            "other": 3.0,
        }
    )
    write_table(scores, tmp_path / "scores.parquet")
    output = tmp_path / "results" / "demo" / "gallery"
    make_gallery(manifests, tmp_path / "scores.parquet", output)
    rows = rows_of(output)
    assert [model["name"] for model in rows["models"]] == ["teacher", "student"]
    assert rows["scored"] == ["clip_score", "psnr_db"]
    assert len(rows["rows"]) == 2 * NUM_PROMPTS
    assert rows["rows"][0][2] == "</script><b>a #1 & only"
    name = "a recipe/p-001/1.png"
    assert rows["rows"][3] == ["p-001", 1, "a cat", [[name, 0.9123, None], [name, 0.5, 20.0]]]
    page = (output / "index.html").read_text()
    assert '<option value="psnr_db">PSNR</option>' in page
    assert "retrieval rank" not in page
    assert "<span>CLIP score 0.9123</span>" in page


def test_categories_can_be_chosen_where_prompts_have_some(tmp_path: Path) -> None:
    output = tmp_path / "results" / "demo" / "gallery"
    names = [None, 'a "b" </script>', *["c"] * (2 * NUM_PROMPTS - 2)]
    make_gallery([manifest(tmp_path, "student", 2, category=names)], None, output)
    page = (output / "index.html").read_text()
    options = re.findall(r'<option value="([^"]*)">', page.split('id="category">')[1])
    assert options[:3] == ["", "a &#34;b&#34; &lt;/script&gt;", "c"]
    assert [row[4:] for row in rows_of(output)["rows"][:3]] == [[], ['a "b" </script>'], ["c"]]


def test_scores_of_other_images_are_refused(manifests: list[Path], tmp_path: Path) -> None:
    """As those of another run that were copied; both files of it, or one."""
    run = RunFolder(tmp_path / "results" / "demo")
    run.scores.parent.mkdir()
    write_table(pd.DataFrame({"model": ["teacher"], "prompt_id": "p-001", "index": 1}), run.scores)
    digests = {path.parent.name: read_samples("", path).digest for path in manifests}
    own = {"models": {name: {"images": it} for name, it in digests.items()}}
    other = {"models": {**own["models"], "student": {"images": "0" * 64}}}
    for quality, scores, why in (
        (other, hash_file(run.scores), "it scores other images of student"),
        (own, "0" * 64, "it was not made with"),
    ):
        write_sealed(run.quality, {**quality, "scores": scores})
        with pytest.raises(ValueError, match=rf"{run.quality}: {why}.*: run `rm -r "):
            make_gallery(manifests, run.scores, run.gallery)
        assert not run.gallery.exists()
    write_sealed(run.quality, {**own, "scores": hash_file(run.scores)})
    make_gallery(manifests, run.scores, run.gallery)


@pytest.mark.parametrize(
    ("names", "chosen"),
    [(["teacher", "student", "fast"], "student"), (["teacher", "fast", "mine"], "mine")],
)
def test_it_begins_with_the_student_beside_the_first(
    names: list[str], chosen: str, tmp_path: Path
) -> None:
    output = tmp_path / "results" / "demo" / "gallery"
    make_gallery(
        [manifest(tmp_path, name, calls) for calls, name in enumerate(names, 1)], None, output
    )
    page = (output / "index.html").read_text()
    assert re.findall(r"<option [^>]*selected>([^<]*)<", page) == [chosen]


def test_models_of_the_same_images_have_one_column(tmp_path: Path) -> None:
    """A student before its training, where it begins as the teacher."""
    names = ("teacher", "teacher-2-steps-unguided", "untrained", "student")
    calls = (48, 2, 2, 2)
    hashes = ("0" * 64, "1" * 64, "1" * 64, "2" * 64)
    paths = [
        manifest(tmp_path, name, number, sha256=each, steps=number)
        for name, number, each in zip(names, calls, hashes, strict=True)
    ]
    output = tmp_path / "results" / "demo" / "gallery"
    make_gallery(paths, None, output)
    columns = [model["name"] for model in rows_of(output)["models"]]
    assert columns == ["teacher", "untrained = teacher, 2 steps, no guidance", "student"]


def test_models_of_other_noises_are_refused(tmp_path: Path) -> None:
    manifests = [manifest(tmp_path, "teacher", 48), manifest(tmp_path, "student", 2, noise_seed=7)]
    with pytest.raises(ValueError, match="differ in noise_seed"):
        make_gallery(manifests, None, tmp_path / "results" / "demo" / "gallery")
