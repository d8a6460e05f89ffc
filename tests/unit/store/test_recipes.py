"""Recipes are written and read without a change, or refused."""

import json

import pytest

import tiny
from distillery.files import read_json
from distillery.store.recipes import TargetsRecipe


@pytest.fixture(scope="module")
def raw(tmp_path_factory):
    folder = tmp_path_factory.mktemp("run")
    tiny.make_tiny_run(folder)
    return read_json(folder / "targets/manifest.json")["recipe"]


def test_a_recipe_is_written_as_it_was_read_whole_timesteps_too(raw):
    again = TargetsRecipe.from_json(raw)
    assert json.dumps(again.to_json(), sort_keys=True) == json.dumps(raw, sort_keys=True)
    assert all(type(timestep) is int for timestep in again.schedule.timesteps)
    halves = raw | {"schedule": raw["schedule"] | {"timesteps": [900.0, 600.5, 300, 1]}}
    timesteps = TargetsRecipe.from_json(halves).to_json()["schedule"]["timesteps"]
    assert [type(timestep) for timestep in timesteps] == [float, float, int, int]


def test_a_later_field_changes_no_hash_until_it_is_used(raw):
    recipe = TargetsRecipe.from_json(raw)
    assert "guidance_scale_2" not in recipe.to_json()
    assert recipe.model_copy(update={"guidance_scale_2": 3.0}).to_json()["guidance_scale_2"] == 3.0
    assert "guidance_interval" not in recipe.to_json()
    half = recipe.model_copy(update={"guidance_interval": (0.5, 1.0)})
    assert half.to_json()["guidance_interval"] == [0.5, 1.0]
    assert TargetsRecipe.from_json(half.to_json()) == half


@pytest.mark.parametrize(("field", "value"), [("steps", None), ("speed", 3)])
def test_the_recipe_of_another_version_is_refused_by_its_field(raw, field, value):
    with pytest.raises(ValueError, match=f"no TargetsRecipe of this version, see its {field}"):
        TargetsRecipe.from_json(raw | {field: value})
