"""Another training that fails at its start costs the trained student, not what it is made of."""

import shutil
from pathlib import Path

import pytest
import yaml

from checkout import snakemake, succeed

pytestmark = pytest.mark.slow
TINY = Path("results/tiny")
TRAINED = "results/tiny/student/trained"


@pytest.fixture
def folder(finished: Path, tmp_path: Path) -> Path:
    """A finished run of one's own."""
    copy = shutil.copytree(finished, tmp_path / "run", symlinks=True)
    succeed(copy, "--touch", "--forceall")  # as where Snakemake made all of it
    return copy


def set_learning_rate(folder: Path, rate: float) -> None:
    """Edit the configuration."""
    path = folder / "config/config.yaml"
    raw = yaml.safe_load(path.read_text())
    raw["training"]["learning_rate"] = rate
    path.write_text(yaml.safe_dump(raw))


def student(folder: Path) -> dict[str, bytes]:
    """What a training is asked for, and what is exported of it."""
    names = ("student/trained", "student/pipeline")
    paths = [path for name in names for path in (folder / TINY / name).rglob("*")]
    kept = [path for path in paths if path.is_file() and not path.name.startswith(".")]
    found = {str(path.relative_to(folder)): path.read_bytes() for path in kept}
    return found | {"loss": (folder / TINY / "student/loss.parquet").read_bytes()}


def test_with_the_old_settings_the_same_command_brings_it_back(
    folder: Path, finished: Path
) -> None:
    """From its last checkpoint, without another update."""
    before = student(folder)
    checkpoints = folder / TINY / "student/checkpoints"
    kept = checkpoints.rename(checkpoints.with_name("kept"))
    checkpoints.touch()  # no folder, so that the start fails
    set_learning_rate(folder, 3e-3)
    failed = snakemake(folder, TRAINED)
    assert failed.returncode != 0, failed.stdout
    log = folder / TINY / "logs/training.log"
    assert "no checkpoints can be written" in log.read_text()
    assert not (folder / TRAINED).exists(), "Snakemake keeps it: the page is to be changed"
    assert (folder / TINY / "student/pipeline/model_index.json").is_file()

    checkpoints.unlink()
    kept.rename(checkpoints)
    shutil.copy(finished / "config/config.yaml", folder / "config/config.yaml")
    succeed(folder, TRAINED)
    assert "resumes from" in log.read_text()
    assert "gradient norm" not in log.read_text()
    assert student(folder) == before
