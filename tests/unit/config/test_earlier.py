"""Configurations whose phases were keys of their own are read once more."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from configs import RUN, changed
from distillery.config.earlier import advise_phases
from distillery.config.jobs import freeze, frozen_text, read_frozen, save_frozen
from distillery.config.run import Config, parse_config
from distillery.run_folder import RunFolder
from training_phases import phases

FLAT = {
    "num_samples": 640, "targets": "stored", "finish_samples": None, "online_steps": None,
    "distribution_matching": None, "rounds": None, "adversarial": None, "rollout_samples": 0,
    "perceptual_weight": 0.0,
}  # fmt: skip
"""What frozen configurations of earlier releases hold where there is nothing but `num_samples`."""
CASES: list[tuple[dict[str, Any], tuple[Any, ...]]] = [
    ({}, phases(stored=640)),
    (
        {"rounds": {"count": 2, "samples": 64}, "adversarial": {"samples": 96}},
        phases(stored=416, rounds={"count": 2, "samples": 64}, adversarial=96),
    ),
    ({"targets": "online"}, phases(online=640)),
    (
        {"targets": "online", "online_steps": 3, "rollout_samples": 32, "perceptual_weight": 0.5},
        phases(
            online={"samples": 608, "steps": 3},
            rollouts={"samples": 32, "perceptual_weight": 0.5},
        ),
    ),
    (
        {"targets": "online", "finish_samples": 64, "distribution_matching": {"updates": 2}},
        phases(stored=576, online={"samples": 64, "distribution_matching": {"updates": 2}}),
    ),
    ({"rollout_samples": 640}, phases(rollouts=640)),
]


def earlier(**keys: Any) -> dict[str, Any]:
    """The run with the section of an earlier release."""
    kept = {name: value for name, value in RUN["training"].items() if name != "phases"}
    return {**RUN, "training": {"num_samples": 640, **kept, **keys}}


def read(raw: dict[str, Any]) -> Config:
    config = parse_config(raw, "my.yaml")
    assert isinstance(config, Config)
    return config


def test_phases_that_are_null_are_none() -> None:
    assert read(earlier(phases=None)) == read(changed(training__phases=phases(stored=640)))


@pytest.mark.parametrize(("keys", "listed"), CASES)
@pytest.mark.parametrize("base", [{}, FLAT])
def test_keys_of_earlier_releases_say_the_same(
    base: dict[str, Any], keys: dict[str, Any], listed: tuple[Any, ...]
) -> None:
    assert read(earlier(**base | keys)) == read(changed(training__phases=listed))


@pytest.mark.parametrize(("keys", "listed"), CASES)
def test_the_new_lines_are_printed_and_say_the_same(
    keys: dict[str, Any], listed: tuple[Any, ...]
) -> None:
    advice = advise_phases(earlier(**keys))
    assert advice is not None
    names, _, lines = advice.partition("\n")
    assert all(f"training.{name}" in names for name in ("num_samples", *keys))
    written = yaml.safe_load(lines)["phases"]
    assert read(changed(training__phases=written)) == read(changed(training__phases=listed))


def test_nothing_is_printed_of_a_list() -> None:
    assert advise_phases(RUN) is None
    assert advise_phases({key: RUN[key] for key in RUN if key != "training"}) is None


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        (
            {"phases": []},
            "training.num_samples is a key of an earlier release, and training.phases",
        ),
        ({"num_samples": "few"}, "training.num_samples is 'few': give a whole number"),
        ({"num_samples": None}, "training.phases is missing, and training.num_samples is a key"),
        ({"finish_samples": 32}, "training.finish_samples is set without training.targets: online"),
        ({"perceptual_weight": 0.1}, "training.perceptual_weight is set without training.rollout"),
        (
            {"finish_samples": 32, "perceptual_weight": 0.1},
            "training.finish_samples is set without training.targets: online: it says something of "
            "a phase that there is not; leave it out, or write training.phases\n  training.perc",
        ),
        ({"targets": "both"}, "training.targets is 'both': write training.phases"),
        ({"rounds": 3}, "training.rounds is 3: write training.phases"),
        ({"rounds": {"count": 2}}, "training.rounds.samples is None: give a whole number"),
        (
            {"rounds": {"count": 20, "samples": 64}},
            "training.num_samples is 640, and rounds, a finish and rollouts are 1280 samples",
        ),
    ],
)
def test_what_no_list_can_say_is_refused(keys: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=r"my\.yaml cannot be used") as caught:
        parse_config(earlier(**keys), "my.yaml")
    assert str(caught.value).partition("\n  ")[2].startswith(message)


def test_without_a_length_phases_are_asked_for() -> None:
    raw = earlier(rollout_samples=32)
    del raw["training"]["num_samples"]
    with pytest.raises(ValueError, match=r"training\.phases is missing, and training\.rollout"):
        parse_config(raw, "my.yaml")


def test_a_frozen_file_that_says_the_same_stays_as_it_is(tmp_path: Path) -> None:
    """So that Snakemake trains no finished run again; another configuration is frozen anew."""
    run, config = RunFolder(tmp_path), read(RUN)
    content = freeze(config, "training")
    keys = {name: value for name, value in content["training"].items() if name != "phases"}
    written = content | {"training": FLAT | keys}
    save_frozen(run.config("training"), written)
    assert read_frozen(run.config("training")) == content
    assert yaml.safe_load(frozen_text(config, run, "training")) == written
    longer = read(changed(training__phases=phases(stored=672)))
    found = yaml.safe_load(frozen_text(longer, run, "training"))
    assert found == freeze(longer, "training")
    assert "phases" in found["training"]
    save_frozen(run.config("training"), content | {"training": {"num_samples": "few"}})
    assert yaml.safe_load(frozen_text(config, run, "training")) == content
