"""Snakemake on a teacher whose class has no adapter: learnt, planned, drawn, and left as it is."""

from pathlib import Path

import pytest
import yaml

from checkout import jobs, skeleton, snakemake, succeed
from distillery.files import read_json, read_sealed
from runs import generating_settings
from traced.teachers import save_teacher

RESULTS = Path("results") / "tiny"


def configure(folder: Path, **trace: object) -> None:
    section = save_teacher("ZImagePipeline", folder / "teacher")
    section["trace"] |= trace
    raw = generating_settings(
        folder / "inputs", folder / "teacher", teacher=section, samples={"num_shards": 1}
    )
    (folder / "config").mkdir(exist_ok=True)
    (folder / "config" / "config.yaml").write_text(yaml.safe_dump(raw))


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """The folder of a finished run, and what Snakemake said."""
    folder = skeleton(tmp_path_factory.mktemp("traced"))
    configure(folder)
    return folder, succeed(folder)


def test_it_is_learnt_first_and_then_planned(ran: tuple[Path, str]) -> None:
    folder, said = ran
    assert jobs(said) >= {"signature", "embeddings", "samples", "dataset"}
    assert said.index("rule signature:") < said.index("rule embeddings:")
    before, after = said.index("the first job learns"), said.index("network calls")
    assert before < said.index("rule signature:") < after < said.index("rule embeddings:")
    assert read_json(folder / RESULTS / "plan.json")["teacher"]["family"] == "traced"
    assert len(list((folder / RESULTS / "samples/teacher").rglob("*.png"))) == 10
    proofs = read_sealed(folder / RESULTS / "signature.json")["claims"]
    assert all(proof["distance"] <= proof["limit"] for proof in proofs)


def test_a_second_call_has_nothing_to_do(ran: tuple[Path, str]) -> None:
    assert "Nothing to be done" in succeed(ran[0])


def test_what_cannot_be_learnt_stops_the_run_before_anything_is_made(tmp_path: Path) -> None:
    """With a guidance of 1.0, Z-Image guides still."""
    folder = skeleton(tmp_path)
    configure(folder, unguided={"guidance_scale": 1.0})
    done = snakemake(folder)
    assert done.returncode != 0
    assert "ZImagePipeline cannot be learnt from its calls" in done.stdout
    assert not (folder / RESULTS / "embeddings").exists()
