"""Names of runs whose folders are for something else."""

from pathlib import Path

import pytest

from distillery.config.run import parse_config
from distillery.files import write_json
from distillery.planning.probe import on_name
from distillery.run_folder import RunFolder
from runs import generating_settings, planned


@pytest.mark.parametrize("name", ["compare", "Compare"])
def test_the_folder_of_comparisons_is_no_run(tmp_path: Path, teacher: Path, name: str) -> None:
    raw = generating_settings(tmp_path, teacher) | {"run": name}
    with pytest.raises(ValueError, match="results/compare is for comparisons"):
        parse_config(raw, "t")


def test_the_name_of_a_probe_is_for_the_probe(tmp_path: Path, teacher: Path) -> None:
    raw = generating_settings(tmp_path, teacher) | {"run": "mine-probe"}
    with pytest.raises(ValueError, match="what the probe of 'mine' makes and removes"):
        planned(raw, tmp_path / "mine-probe")
    small = RunFolder(tmp_path / "mine-probe")
    write_json(small.probe, raw)
    assert not list(on_name(parse_config(raw, "t"), small))
