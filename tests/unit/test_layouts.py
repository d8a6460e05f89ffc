"""Images as public benchmarks read them: each layout by what its script does with a folder."""

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from PIL import Image

from distillery.layouts import LAYOUTS, main
from distillery.measures.manifests import read_samples
from distillery.prompts import read_prompts
from distillery.run_folder import RunFolder
from distillery.store.tables import write_table
from judging import PROMPTS, make_samples

EDGE = 48
IMAGES = 4


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    """Two models with four images of each prompt."""
    run = RunFolder(tmp_path / "results/mine")
    for number, model in enumerate(("teacher", "student")):
        path = make_samples(run.samples(model).parent, model, 2, 1.0, number, IMAGES)
        write_table(pd.read_parquet(path).assign(width=EDGE, height=EDGE), path)
    return run


def benchmark(name: str, folder: Path, prompts: list[str]) -> Path:
    """A benchmark's own prompts, in the form of its repository."""
    folder.mkdir()
    if name == "dpg":
        for number, prompt in enumerate(prompts):
            (folder / f"COCO{number}.txt").write_text(f"{prompt}\n")
        return folder
    if name == "hpsv2":
        for number, style in enumerate(("anime", "concept-art", "paintings", "photo")):
            (folder / f"{style}.json").write_text(json.dumps(prompts[number::4]))
        return folder
    more = {"geneval": {"tag": "colors", "include": [{"class": "x", "count": 1}]}}
    more["geneval2"] = {"atom_count": 3, "vqa_list": [["Is it red?", "Yes"]]}
    lines = [json.dumps({"prompt": prompt, **more[name]}) for prompt in prompts]
    (folder / "own.jsonl").write_text("\n".join(lines) + "\n\n")
    return folder / "own.jsonl"


def lay_out(name: str, run: RunFolder, prompts: Path, *more: str) -> Path:
    """What the command leaves of the student."""
    output = run.path.parent / "laid-out"
    words = [name, "--prompts", prompts, "--run", run.path, "--output", output, *more]
    assert main([str(word) for word in words]) == 0
    return output / "student"


def pixels_of(run: RunFolder, prompt: str, index: int) -> np.ndarray:
    samples = read_samples("student", run.samples("student"))
    (row,) = np.flatnonzero((samples.table["prompt"] == prompt) & (samples.table["index"] == index))
    return samples.read_pixels(int(row))


def is_image(path: Path, run: RunFolder, prompt: str, index: int) -> bool:
    with Image.open(path) as image:
        return np.array_equal(np.asarray(image), pixels_of(run, prompt, index))


def test_geneval_has_a_folder_of_each_line(run: RunFolder, tmp_path: Path) -> None:
    prompts = benchmark("geneval", tmp_path / "own", PROMPTS[::-1])
    folder = lay_out("geneval", run, prompts)
    assert sorted(path.name for path in folder.iterdir()) == [f"{it:05d}" for it in range(12)]
    for number, prompt in enumerate(PROMPTS[::-1]):
        inside = folder / f"{number:05d}"
        assert json.loads((inside / "metadata.jsonl").read_text())["prompt"] == prompt
        images = sorted((inside / "samples").iterdir())
        assert [path.name for path in images] == [f"{it:04d}.png" for it in range(IMAGES)]
        assert all(is_image(path, run, prompt, index) for index, path in enumerate(images))
    assert images[0].stat().st_nlink == 2, "on one disk it is the run's own file"
    assert (folder.parent / "teacher/00000/samples/0000.png").is_file()


def test_geneval2_finds_the_first_image_by_the_prompt(run: RunFolder, tmp_path: Path) -> None:
    prompts = benchmark("geneval2", tmp_path / "own", PROMPTS)
    folder = lay_out("geneval2", run, prompts, "--models", "student")
    paths = json.loads((folder / "image_paths.json").read_text())
    assert [*paths] == PROMPTS
    assert all(is_image(Path(path), run, prompt, 0) for prompt, path in paths.items())
    assert not (folder.parent / "teacher").exists()


def test_dpg_has_four_images_in_one_picture(run: RunFolder, tmp_path: Path) -> None:
    prompts = benchmark("dpg", tmp_path / "own", PROMPTS)
    folder = lay_out("dpg", run, prompts)
    assert {path.name for path in folder.iterdir()} == {f"COCO{it}.png" for it in range(12)}
    with Image.open(folder / "COCO3.png") as picture:
        corners = [(0, 0), (EDGE, 0), (0, EDGE), (EDGE, EDGE)]  # as the script cuts them
        for index, (x, y) in enumerate(corners):
            cut = np.asarray(picture.crop((x, y, x + EDGE, y + EDGE)))
            assert np.array_equal(cut, pixels_of(run, PROMPTS[3], index))


def test_dpg_of_one_image_is_that_image(tmp_path: Path) -> None:
    run = RunFolder(tmp_path / "results/mine")
    path = make_samples(run.samples("student").parent, "student", 2, 1.0, 0, 1)
    write_table(pd.read_parquet(path).assign(width=EDGE, height=EDGE), path)
    folder = lay_out("dpg", run, benchmark("dpg", tmp_path / "own", PROMPTS))
    assert is_image(folder / "COCO3.png", run, PROMPTS[3], 0)


def test_hpsv2_has_a_folder_of_each_style(run: RunFolder, tmp_path: Path) -> None:
    folder = lay_out("hpsv2", run, benchmark("hpsv2", tmp_path / "own", PROMPTS))
    for number, style in enumerate(("anime", "concept-art", "paintings", "photo")):
        images = sorted((folder / style).iterdir())
        assert [path.name for path in images] == [f"{it:05d}.jpg" for it in range(3)]
        for path, prompt in zip(images, PROMPTS[number::4], strict=True):
            assert is_image(path, run, prompt, 0)


@pytest.mark.parametrize("name", LAYOUTS)
def test_the_table_makes_its_prompts_the_runs(name: str, tmp_path: Path) -> None:
    prompts = benchmark(name, tmp_path / "own", PROMPTS)
    table = tmp_path / "table.csv"
    assert main([name, "--prompts", str(prompts), "--table", str(table)]) == 0
    found = read_prompts(table)
    assert sorted(found["prompt"]) == sorted(PROMPTS)
    categories = {"geneval": {"colors"}, "geneval2": {"3 atoms"}}
    categories["hpsv2"] = {"anime", "concept-art", "paintings", "photo"}
    assert set(found.get("category", [])) == categories.get(name, set())
    assert main([name, "--prompts", str(prompts), "--table", str(table)]) != 0, "it is there"


def test_a_text_that_stands_twice_has_images_of_its_own(run: RunFolder, tmp_path: Path) -> None:
    """Two ids of one text, as a table of such a benchmark has."""
    for model in ("teacher", "student"):
        table = pd.read_parquet(run.samples(model))
        table["prompt"] = table["prompt"].replace(PROMPTS[1], PROMPTS[0])
        write_table(table, run.samples(model))
    prompts = benchmark("geneval", tmp_path / "own", [PROMPTS[0], PROMPTS[2], PROMPTS[0]])
    folder = lay_out("geneval", run, prompts)
    samples = [(folder / f"0000{it}/samples/0000.png").stat().st_ino for it in (0, 2)]
    own = [run.samples("student").parent / f"eval-0{it}/0.png" for it in (0, 1)]
    assert samples == [path.stat().st_ino for path in own]


def refused(capsys: pytest.CaptureFixture[str], *words: object) -> str:
    """What a refused call says."""
    assert main([str(word) for word in words]) == 1
    return capsys.readouterr().err


@pytest.mark.parametrize("name", LAYOUTS)
def test_missing_prompts_are_named_before_anything_is_written(
    name: str, run: RunFolder, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    missing, output = tmp_path / "nowhere", tmp_path / "laid-out.csv"
    for words in (["--table", output], ["--run", run.path, "--output", output]):
        said = refused(capsys, name, "--prompts", missing, *words)
        assert str(missing) in said
        assert not output.exists()


@pytest.mark.parametrize("name", LAYOUTS)
def test_a_benchmark_without_prompts_is_refused(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table = tmp_path / "table.csv"
    for number, prompts in enumerate(([], [*PROMPTS[:4], " "])):
        own = benchmark(name, tmp_path / f"own{number}", prompts)
        assert str(own) in refused(capsys, name, "--prompts", own, "--table", table)
        assert not table.exists()
    whole = benchmark(name, tmp_path / "own", PROMPTS)
    said = refused(capsys, name, "--prompts", whole, "--table", table.with_suffix(".txt"))
    assert "ends in .csv" in said
    assert not table.with_suffix(".txt").exists()


def test_what_cannot_be_scored_is_refused(
    run: RunFolder, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "laid-out"
    into = ["--run", run.path, "--output", output]
    more = benchmark("dpg", tmp_path / "more", [*PROMPTS, "a blue whale"])
    said = refused(capsys, "dpg", "--prompts", more, *into)
    assert "no images of 1 of 13 prompts of the benchmark, such as 'a blue whale'" in said
    own = benchmark("dpg", tmp_path / "own", PROMPTS)
    table = pd.read_parquet(run.samples("student"))
    write_table(table.assign(width=64), run.samples("student"))
    said = refused(capsys, "dpg", "--prompts", own, *into)
    assert "64 by 48 pixels" in said
    write_table(table.assign(num_frames=9), run.samples("student"))
    assert "has clips" in refused(capsys, "dpg", "--prompts", own, *into)
    write_table(table, run.samples("student"))
    (run.samples("student").parent / "eval-00/0.png").write_bytes(b"other")
    other = benchmark("geneval", tmp_path / "other", PROMPTS)
    said = refused(capsys, "geneval", "--prompts", other, *into, "--models", "student")
    assert "eval-00/0.png of 'student' is not what its manifest lists" in said
    assert not (output / "student").exists()
    wrong = refused(capsys, "geneval2", "--prompts", other, *into)
    assert "line 1 has no atom_count: it is no file of this benchmark" in wrong
    (output / "student").mkdir(parents=True)
    said = refused(capsys, "dpg", "--prompts", own, *into)
    assert f"{output / 'student'} exists already" in said
