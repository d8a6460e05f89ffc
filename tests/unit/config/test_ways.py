"""A training's phases: what follows from the list, and what is refused."""

from typing import Any

import pytest

from configs import changed
from distillery.config.run import Config, parse_config
from distillery.config.training import Training
from distillery.config.ways import IN_ORDER, WAYS, Rollouts, Rounds, Stored
from training_phases import phases

ALL = phases(stored=40, rounds={"count": 2, "samples": 16}, adversarial=24, rollouts=8)


def training(*listed: Any, **settings: Any) -> Training:
    return Training(phases=listed or ALL, global_batch_size=8, **settings)


def refused(*listed: Any, **settings: Any) -> str:
    given = {"training__global_batch_size": 8, "training__log_every_samples": 8}
    given |= {"training__save_every_samples": 8, "training__phases": [*listed]}
    given |= {f"training__{name}": value for name, value in settings.items()}
    with pytest.raises(ValueError, match=r".") as caught:
        parse_config(changed(**given), "my.yaml")
    return str(caught.value)


def test_each_time_has_a_place_of_its_own() -> None:
    found = training()
    places = [(it.begin, it.end, it.place, it.number, it.since) for it in found.spans]
    assert places == [
        (0, 40, 0, 0, 0), (40, 56, 1, 1, 40), (56, 72, 1, 2, 40), (72, 96, 2, 0, 72),
        (96, 104, 3, 0, 96),
    ]  # fmt: skip
    assert found.num_samples == 104
    assert [found.at(seen).place for seen in (0, 39, 40, 71, 72, 103, 104)] == [0, 0, 1, 1, 2, 3, 3]
    assert found.restarts == [40, 56, 72]
    assert list(found.round_numbers) == [1, 2]
    assert found.whole_begins == 96
    assert found.director is not None
    assert (found.director.begin, found.director.title) == (72, "finish")


def test_a_training_has_first_parts_and_jobs() -> None:
    found = training()
    assert [part.num_samples for part in found.first_parts] == [72, 56, 40]
    once = found.first_parts[1].of(Rounds)
    assert once is not None
    assert once.count == 1
    assert [part.num_samples for part in found.of_jobs] == [40, 56, 104]
    assert found.samples_of_jobs == [40, 16, 48]
    assert found.up_to_round(2).phases == found.phases[:2]
    with pytest.raises(ValueError, match="3 rounds are asked for, and there are 2"):
        found.up_to_round(3)
    assert training(*phases(stored=8)).first_parts == []


def test_a_recipe_names_ways_as_it_did_before_there_was_a_list() -> None:
    recipe = training().of_recipe
    heads = {"weight": 0.1, "learning_rate": 5e-4, "smoothness": 1.0, "warmup_samples": 0}
    assert recipe["num_samples"] == 104
    assert recipe["rounds"] == {"count": 2, "samples": 16}
    assert recipe["adversarial"] == {"samples": 24} | heads
    assert (recipe["rollout_samples"], recipe["perceptual_weight"]) == (8, 0.0)
    assert not {"phases", "targets", "held_out_prompts"} & recipe.keys()
    alone = training(*phases(online={"samples": 8, "steps": 2})).of_recipe
    assert (alone["targets"], alone["finish_samples"], alone["online_steps"]) == ("online", None, 2)
    finish = training(*phases(stored=8, online={"samples": 8, "steps": 2})).of_recipe
    assert finish["finish_samples"] == 8


def test_the_order_is_told_in_words() -> None:
    assert IN_ORDER.startswith("stored, rounds, online or adversarial")


def test_words() -> None:
    assert training().words == (
        "40 from the teacher's stored trajectories, then 2 rounds of 16, half of them from states "
        "that the student visited before the round, then an adversarial finish of 24, then 8 whole "
        "rollouts"
    )
    assert not training().is_plain
    assert training(*phases(stored=8)).is_plain


@pytest.mark.parametrize("way", WAYS)
def test_every_way_says_what_the_plan_and_the_report_tell(way: type[Any]) -> None:
    phase = way(samples=8)
    assert phase.words()
    assert bool(phase.title) == bool(phase.meaning) == (way is not Stored)
    assert way.__doc__
    student, teacher = phase.passes(4, 6, phase.judging)
    assert student >= 0
    assert teacher >= 0


def test_phases_of_files_are_read() -> None:
    raw = changed(training__phases=[{"learn": "stored", "samples": 64}])
    config = parse_config(raw, "my.yaml")
    assert isinstance(config, Config)
    assert config.training.phases == (Stored(samples=64),)


@pytest.mark.parametrize(
    ("listed", "message"),
    [
        (
            [{"learn": "stored", "samples": 8}, {"learn": "rounds", "samples": 8, "cuont": 2}],
            "training.phases.1.cuont is not a key of the configuration, did you mean count; "
            "known here: count, learn, samples",
        ),
        (
            [{"learn": "roudns", "samples": 8}],
            "training.phases.0.learn is 'roudns', did you mean rounds: use stored, rounds, ",
        ),
        ([{"learn": 3, "samples": 8}], "training.phases.0.learn is '3': use stored, rounds"),
        ([{"samples": 8}], "training.phases.0.learn is missing: add one of stored, rounds"),
        ([{"learn": "stored"}], "training.phases.0.samples is missing: add it"),
        ([{"learn": "stored", "samples": "8"}], "training.phases.0.samples is the text '8': leave"),
        (["stored"], "training.phases.0 is 'stored': it should be an object"),
        ([], "training.phases is empty: say what is learned, such as {learn: stored"),
        (
            [{"learn": "online", "samples": 8, "distribution_matching": {"wieght": 1.0}}],
            "training.phases.0.distribution_matching.wieght is not a key of the configuration, did "
            "you mean weight",
        ),
        (
            phases(rollouts=8, stored=8),
            f"training.phases are rollouts, stored: write them in the order {IN_ORDER}, each",
        ),
        ([*phases(stored=8), *phases(stored=8)], "training.phases are stored, stored: write them"),
    ],
)
def test_what_is_wrong_in_a_list_is_named_by_its_place(listed: list[Any], message: str) -> None:
    told = refused(*listed)
    assert told.count("\n") == 1, told
    assert told.partition("\n  ")[2].startswith(message), told


def test_all_reasons_are_told_at_once() -> None:
    listed = phases(rounds=8, adversarial={"samples": 8, "warmup_samples": 8})
    told = refused(*listed, objective="direct").splitlines()[1:]
    assert [line.split(" and ")[0].strip() for line in told] == [
        "training.objective is 'direct'",
        "training.phases.0 is rounds",
        "training.objective is 'direct'",
        "training.phases.1.warmup_samples is 8,",
    ]


def test_a_whole_walk_decodes_where_it_is_asked_to() -> None:
    assert not training().decodes
    assert training(Rollouts(samples=8, perceptual_weight=0.1)).decodes
