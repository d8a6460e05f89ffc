"""One command reads a whole run again: it names what is damaged, and prints what mends it."""

import re
import shutil
from pathlib import Path

import pytest
from finished_run import TINY, WEIGHTS, contents, flip, in_copy, run_shell

from checkout import REPOSITORY, snakemake
from distillery.config.jobs import TargetsJob, read_config, read_frozen, read_job, save_frozen
from distillery.files import read_sealed, write_sealed
from distillery.stages import verify as verify_script
from distillery.store.footers import recipe_in
from distillery.store.marks import MARK
from distillery.store.tables import read_table, write_table

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]
PAGE = REPOSITORY / "docs" / "troubleshooting.md"

KINDS = {
    "targets/*/chunk-*": 0.9,
    "targets/manifest.json": 0.5,
    "targets/shard-1*": 0.5,
    "embeddings/train/*/chunk-*": 0.9,
    "embeddings/eval/manifest.json": 0.5,
    "prompts/eval.parquet": 0.3,
    f"student/initial/{WEIGHTS}": 0.7,
    "student/trained/distillery.json": 0.5,
    "student/pipeline/scheduler/scheduler_config.json": 0.5,
    "student/loss.parquet": 0.99,
    "samples/teacher/*/0.png": 1.0,
    "samples/student/*/0.safetensors": 0.99,
    "samples/teacher/manifest.parquet": 0.5,
    "samples/student/shard-1*": 0.9,
    "evaluation/quality.json": 0.5,
    "evaluation/scores.parquet": 0.1,
    "config/targets.json": 0.0,
    "config/training.json": 0.5,
    "plan.json": 0.0,
    "student/checkpoints/*/samples-*/state.json": 0.5,
    "student/checkpoints/*/samples-*/optimizer.safetensors": 0.9,
}
"""Files to where a bit is flipped in them, as a share of their length."""


@pytest.fixture
def copy(finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A finished run to damage, in whose folder the test works."""
    return in_copy(finished, tmp_path / "copy", monkeypatch)


def verify(capsys: pytest.CaptureFixture[str]) -> tuple[int, list[str]]:
    """The status of the script and what it prints."""
    status = verify_script.main(["--run", str(TINY)])
    return status, capsys.readouterr().out.splitlines()


def reported(path: Path) -> str:
    """The path by which a damaged file is named: of a student or a checkpoint the folder."""
    parts = path.parts
    if parts[2] == "student" and len(parts) > 4:
        return "/".join(parts[:6] if parts[3] == "checkpoints" else parts[:4])
    return path.as_posix()


def test_each_kind_of_file_is_named_alone(copy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, lines = verify(capsys)
    assert (status, len(lines)) == (0, 2)
    assert lines[0].endswith("all are as they were written")
    assert "snakemake -n lists what is to be made" in lines[1]
    for pattern, place in KINDS.items():
        path = flip(pattern, place)
        status, lines = verify(capsys)
        assert status == 1
        assert [line.split(": ")[0] for line in lines[:-3]] == [reported(path)]
        assert lines[-3].startswith("1 of ")
        assert lines[-2].startswith("    rm -r ")
        assert flip(pattern, place) == path
    assert verify(capsys)[0] == 0


def test_another_value_in_a_frozen_configuration_is_damage(
    copy: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is a valid one; the next run would make other targets without a word."""
    for stage, configuration in (
        ("targets", f"{TINY}/config/run.json"),
        ("run", "config/mine.yaml"),
    ):
        path = TINY / "config" / f"{stage}.json"
        content = path.read_text()
        assert '"seed": 0' in content
        path.write_text(content.replace('"seed": 0', '"seed": 7'))
        status, lines = verify(capsys)
        assert (status, lines[0].split(": ")[0]) == (1, path.as_posix())
        assert f"--configfile {configuration} " in lines[-1]
        with pytest.raises(ValueError, match=rf"{path} is damaged, .*: run `rm -r {path}` and"):
            read_config(path) if stage == "run" else read_job(path, TargetsJob)
        path.write_text(content)


def test_a_whole_file_in_anothers_place_is_damage(
    copy: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its own checksums are right."""
    for pattern in (
        "targets/*/chunk-*", "samples/teacher/*/0.png", "samples/student/*/0.safetensors",
    ):  # fmt: skip
        source, place, *_ = sorted(TINY.glob(pattern))
        before = place.read_bytes()
        shutil.copy(source, place)
        status, lines = verify(capsys)
        assert (status, lines[0]) == (1, f"{place}: it is another file's content")
        place.write_bytes(before)


def test_what_is_whole_but_of_another_student_is_told(
    copy: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The untrained one in the trained one's place, another student's images and card."""
    trained = TINY / "student/trained"
    trained.rename(TINY / "aside")
    shutil.copytree(TINY / "student/initial", trained)
    status, lines = verify(capsys)
    named = [line.split(": ")[0] for line in lines[:-3]]
    assert (status, named) == (1, [str(trained), f"{TINY}/student/pipeline"])
    assert "it was not trained" in lines[0]
    shutil.rmtree(trained)
    (TINY / "aside").rename(trained)
    assert verify(capsys)[0] == 0
    for model, other in (("student", "untrained"), ("teacher", "student")):
        (TINY / "samples" / model).rename(TINY / "aside")
        shutil.copytree(TINY / "samples" / other, TINY / "samples" / model)
        status, lines = verify(capsys)
        assert (status, lines[0].split(": ")[0]) == (1, f"{TINY}/samples/{model}/manifest.parquet")
        shutil.rmtree(TINY / "samples" / model)
        (TINY / "aside").rename(TINY / "samples" / model)
    quality = TINY / "evaluation/quality.json"
    content = quality.read_text()
    scored = read_sealed(quality)
    scored["models"]["student"]["images"] = "0" * 64
    write_sealed(quality, scored)
    status, lines = verify(capsys)
    assert (status, lines[0].split(": ")[0]) == (1, str(quality))
    assert "other images of student" in lines[0]
    assert f"rm -r {quality} {TINY}/evaluation/scores.parquet" in lines[-2]
    quality.write_text(content)
    card = TINY / "report/card/README.md"
    text = card.read_text()
    card.write_text(re.sub(r"`[0-9a-f]{64}`", f"`{'0' * 64}`", text))
    status, lines = verify(capsys)
    assert (status, lines[0].split(": ")[0]) == (1, f"{TINY}/report/card")
    card.write_text(text)


def test_images_of_another_student_are_made_again(copy: Path) -> None:
    """And not merged and scored, though Snakemake takes their tables for what it made."""
    names = ("shard-0-of-2", "shard-1-of-2", "manifest")
    tables = [TINY / "samples/student" / f"{name}.parquet" for name in names]
    assert len({recipe_in(path) for path in tables}) == 1
    assert {recipe_in(path) for path in tables} != {None}
    assert "Nothing to be done" in snakemake(copy, "-n").stdout
    for path in tables[:2]:
        before = path.read_bytes()
        write_table(read_table(path), path, "0" * 64)
        left = snakemake(copy, "-n").stdout
        assert left.count("rule samples:") == 2
        assert "rule merge_samples:" in left
        path.write_bytes(before)


def test_pages_of_another_run_are_told_and_made_again(
    copy: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whatever their dates are."""
    pages = {"report/index.html": "report", "report/card/README.md": "report", "gallery/index.html":
             "gallery"}  # fmt: skip
    for name, rule in pages.items():
        page = TINY / name
        text = page.read_text()
        assert MARK.search(text)
        page.write_text(MARK.sub(f"<!-- made of {'0' * 64} -->\n", text))
        told = TINY / ("gallery" if rule == "gallery" else name)
        status, lines = verify(capsys)
        assert (status, lines[0].split(": ")[0]) == (1, str(told))
        assert "other results" in lines[0]
        assert f"rule {rule}:" in snakemake(copy, "-n").stdout
        page.write_text(text)
    assert verify(capsys)[0] == 0


def test_frozen_settings_of_another_run_are_told_and_written_again(
    copy: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Snakemake has its note of those that it wrote, and would take these for them."""
    path = TINY / "config/training.json"
    path.unlink()
    run_shell(f"snakemake --cores 1 {path}")
    written = path.read_bytes()
    other = read_frozen(path)
    other["training"]["learning_rate"] = 0.5
    save_frozen(path, other)
    status, lines = verify(capsys)
    assert status == 0
    assert any(line.startswith(f"{path} is of other settings") for line in lines)
    assert "training.learning_rate is 0.5, not" in "".join(lines)
    run_shell(f"snakemake --cores 1 {path}")
    assert path.read_bytes() == written
    assert len(verify(capsys)[1]) == 2


def test_prompts_and_embeddings_of_another_split_are_told(
    copy: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for place, other in (
        ("prompts/eval.parquet", "prompts/train.parquet"),
        ("embeddings/eval", "embeddings/train"),
    ):
        path, aside = TINY / place, TINY / "aside"
        path.rename(aside)
        copied = shutil.copytree if aside.is_dir() else shutil.copy
        copied(TINY / other, path)
        status, lines = verify(capsys)
        named = [line.split(": ")[0] for line in lines[:-3]]
        assert status == 1
        assert str(path if path.is_file() else path / "manifest.json") in named
        shutil.rmtree(path) if path.is_dir() else path.unlink()
        aside.rename(path)
    assert verify(capsys)[0] == 0


def test_a_checkpoint_among_those_of_another_training_is_told(
    copy: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = next(TINY.glob("student/checkpoints/*"))
    folder.rename(folder.with_name("0" * len(folder.name)))
    status, lines = verify(capsys)
    assert (status, "it is of recipe" in lines[0]) == (1, True)


def test_a_card_that_is_gone_is_told_and_made_again(
    copy: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    card = TINY / "report/card"
    for gone in (["strip.png"], ["README.md", "strip.png"]):
        for name in gone:
            (card / name).unlink()
        status, lines = verify(capsys)
        assert (status, lines[:-3]) == (1, [f"{card / name}: it is missing" for name in gone])
        assert lines[-2].strip() == f"rm -r {TINY}/report/index.html {TINY}/report/metrics.json"
        for line in lines[-2:]:
            run_shell(line)
        assert verify(capsys)[0] == 0


def test_a_folder_in_a_files_place_hides_no_other_damage(
    copy: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    places = ["targets/shard-1-of-2.json", "samples/teacher/manifest.parquet", "config/plan.json"]
    for place in places:
        (TINY / place).unlink(missing_ok=True)
        (TINY / place).mkdir()
    flip("evaluation/quality.json", 0.5)
    status, lines = verify(capsys)
    named = {line.split(": ")[0] for line in lines if "it cannot be read: Is a directory" in line}
    assert (status, named) == (1, {f"{TINY}/{place}" for place in places})
    assert any(line.startswith(f"{TINY}/evaluation/quality.json: ") for line in lines)


def test_what_is_printed_mends_everything(copy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """All kinds at once, but for checkpoints: without its last one a training learns again."""
    before = contents()
    for pattern, place in KINDS.items():
        if "checkpoints" not in pattern:
            flip(pattern, place)
    _, lines = verify(capsys)
    assert lines[-2].startswith("    rm -r ")
    assert lines[-1].startswith("    snakemake ")
    for line in lines[-2:]:
        run_shell(line)
    assert contents() == before
    assert verify(capsys)[0] == 0


def test_a_damaged_checkpoint_is_only_removed(
    copy: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def others() -> dict[str, str]:
        return {name: digest for name, digest in contents().items() if "/samples-" not in name}

    before = others()
    flip("student/checkpoints/*/samples-*/weights.safetensors")
    run_shell(verify(capsys)[1][-2])
    assert verify(capsys)[0] == 0
    assert others() == before


def test_a_run_that_is_not_finished_is_read_as_far_as_it_goes(
    copy: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("evaluation", "report", "student/trained", "student/pipeline"):
        shutil.rmtree(TINY / name)
    for name in ("targets/manifest.json", "targets/shard-1-of-2.json"):
        (TINY / name).unlink()
    for path in TINY.glob("samples/student/*.parquet"):
        path.unlink()
    assert verify(capsys)[0] == 0
    path = flip("samples/student/*/0.png", 0.9)
    assert [line.split(": ")[0] for line in verify(capsys)[1][:-3]] == [path.as_posix()]


def commands_of_the_page() -> list[str]:
    """Those under its heading, for the run that is here."""
    _, section = PAGE.read_text().split("## Is everything still as it was written?", 1)
    found = re.findall(r"^    (\S.*)$", section.split("\n## ", 1)[0], flags=re.MULTILINE)
    here = {"config/mine.yaml": "config/config.yaml", "results/mine": str(TINY)}
    return [re.sub("|".join(here), lambda match: here[match[0]], command) for command in found]


def test_the_commands_of_the_page_find_damage(
    finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = in_copy(finished, tmp_path / "copy", monkeypatch)
    commands = commands_of_the_page()
    assert [command.split()[0] for command in commands] == ["snakemake", "python"]
    for command in commands:
        run_shell(command)
    path = flip("targets/*/chunk-*", 0.9)
    done = snakemake(folder, "verify")
    assert done.returncode != 0
    assert f"{path}: its bytes do not match its checksums" in done.stdout
    with pytest.raises(
        AssertionError, match=r"1 of .* are damaged; these commands make them again"
    ):
        run_shell(commands[1])
