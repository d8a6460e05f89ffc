"""A preset is a further configuration file, on top of any other."""

from pathlib import Path
from typing import Any, get_args

import pytest
import yaml
from snakemake.utils import update_config

from distillery.config.run import parse_config
from distillery.teacher.memory import PRESETS, Preset

REPOSITORY = Path(__file__).parents[3]
PATHS = {path.stem: path for path in (REPOSITORY / PRESETS).glob("*.yaml")}


def read(path: Path) -> dict[str, Any]:
    loaded = yaml.safe_load(path.read_text())
    assert isinstance(loaded, dict)
    return loaded


def test_there_is_a_file_for_each() -> None:
    assert set(PATHS) == set(get_args(Preset))


@pytest.mark.parametrize("name", get_args(Preset))
@pytest.mark.parametrize("base", ["config", "dataset", "preference-sdxl"])
def test_a_preset_fits_on_a_configuration(base: str, name: str) -> None:
    """As Snakemake merges them: what the later file says wins, the rest stays."""
    raw, preset = read(REPOSITORY / f"config/{base}.yaml"), read(PATHS[name])
    before = parse_config(raw, base).model_dump()
    update_config(raw, preset)
    after = parse_config(raw, name).model_dump()
    for section, values in preset.items():
        assert after[section] == before[section] | values
    unchanged = set(before) - set(preset)
    assert {key: after[key] for key in unchanged} == {key: before[key] for key in unchanged}
