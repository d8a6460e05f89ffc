"""Settings that are allowed and most often a mistake are told; usual ones are not."""

from typing import Any

import numpy as np
import pytest

from configs import changed
from distillery.config.run import Config, parse_config
from distillery.config.teacher import Adapter, Teacher
from distillery.measures.intervals import Groups, bootstrap_mean, draw_weights
from distillery.planning.unusual import (
    on_adapters,
    on_attention,
    on_numbers,
    on_settings,
)
from training_phases import phases


def notes(num_train: int = 1000, **changes: Any) -> list[str]:
    config = parse_config(changed(**changes), "my.yaml")
    assert isinstance(config, Config)
    return [*map(str, on_settings(config, num_train))]


def of_adapters(*adapters: Adapter) -> list[str]:
    teacher = Teacher(path="teacher", height=8, width=8, adapters=adapters)
    return [*map(str, on_adapters(teacher))]


SAVED = {"training__phases": phases(stored=64), "training__save_every_samples": 32}


def test_usual_settings_are_not_told() -> None:
    held_out = {"training__held_out_prompts": 500, "evaluation__min_clip_ratio": 1.2}
    assert notes(**SAVED, **held_out) == []
    twice = Adapter(path="a"), Adapter(path="b"), Adapter(path="a", expert="transformer_2")
    assert of_adapters(*twice, Adapter(path="a", weight_name="b")) == []


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"evaluation__min_clip_ratio": 1.3}, "min_clip_ratio is 1.3: the student passes only if"),
        ({"training__held_out_prompts": 501}, "holds out 501 prompts of 1,000, more than half"),
        ({"training__save_every_samples": 64}, "is 64 for 64 samples: there is no checkpoint"),
    ],
)
def test_a_setting_that_is_most_often_a_mistake(changes: dict[str, Any], told: str) -> None:
    (note,) = notes(**(SAVED | changes))
    assert told in note


def test_an_adapter_that_is_there_twice_or_changes_nothing() -> None:
    (twice,) = of_adapters(Adapter(path="a", scale=0.5), Adapter(path="a"))
    assert "lists a 2 times" in twice
    (nothing,) = of_adapters(Adapter(path="a", scale=0.0))
    assert "the scale of a is 0" in nothing


@pytest.mark.parametrize("can_use", [True, False])
def test_kernels_whose_package_is_not_here(can_use: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """By Diffusers' own requirements, before the first job."""
    from diffusers.models import attention_dispatch

    monkeypatch.setattr(attention_dispatch, "_CAN_USE_FLASH_ATTN", can_use)
    teacher = Teacher(path="teacher", height=8, width=8, attention="flash")
    notes = [*map(str, on_attention(teacher))]
    assert len(notes) == (not can_use)
    assert all("'flash', and its kernels cannot be used here: " in note for note in notes)
    assert all("Please install `flash-attn" in note for note in notes)
    for usable in ("native", None):
        assert not list(on_attention(teacher.model_copy(update={"attention": usable})))


def of_numbers(num_eval: int, **changes: Any) -> list[str]:
    config = parse_config(changed(**changes), "my.yaml")
    return [*map(str, on_numbers(config, num_eval))]


def test_more_prompts_than_there_are() -> None:
    previews = {"previews__every_samples": 320, "previews__num_prompts": 99}
    told = of_numbers(16, samples__num_prompts=500, **previews)
    assert told == [
        "samples.num_prompts is 500, and eval.csv has 16 prompts: all are drawn",
        "previews.num_prompts is 99, and eval.csv has 16 prompts: all are drawn",
    ]
    assert of_numbers(99, samples__num_prompts=99, **previews) == []
    assert of_numbers(16, previews__num_prompts=99) == [], "none are drawn"
    (few,) = of_numbers(5, previews__every_samples=320)
    assert "previews" not in few, "nobody asked for 8"


def test_too_few_prompts_for_an_interval() -> None:
    (few,) = of_numbers(16, samples__num_prompts=3)
    assert few.startswith("samples are of 3 prompts, and an interval needs 8: the thresholds of")
    (one,) = of_numbers(1)
    assert one.startswith("samples are of 1 prompt,")
    for number in range(1, 16):
        values = np.random.default_rng(0).random(number)
        groups = Groups.of([f"p{row}" for row in range(number)])
        interval = bootstrap_mean(values, groups, draw_weights(number, 50))
        assert bool(of_numbers(number)) == (interval.low is None), "as the report has it"


@pytest.mark.parametrize(("images_per_shard", "num_told"), [(50, 0), (67, 1)])
def test_jobs_that_have_no_tar_to_make(images_per_shard: int, num_told: int) -> None:
    shards = {"samples__store": "shards", "samples__images_per_shard": images_per_shard}
    config = parse_config(changed(samples__num_shards=4, **shards), "my.yaml")
    told = [*map(str, on_numbers(config, num_eval=200))]
    assert len(told) == num_told
    assert all("are 3 tar files, and 1 of its 4 jobs have none; 12 would do" in it for it in told)
