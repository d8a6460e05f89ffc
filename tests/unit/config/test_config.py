"""The configuration: what is refused, and how it is said."""

import copy
import datetime
import re
from pathlib import Path
from typing import Any

import pytest

from configs import RUN, changed
from distillery.config.jobs import (
    freeze,
    read_config,
)
from distillery.config.run import GeneratingConfig, Prompts, parse_config
from distillery.files import write_json
from training_phases import phases


def without(*keys: str) -> dict[str, Any]:
    raw = copy.deepcopy(RUN)
    section = raw
    for name in keys[:-1]:
        section = section[name]
    del section[keys[-1]]
    return raw


def refused(raw: dict[str, Any]) -> str:
    with pytest.raises(ValueError, match=r".") as caught:
        parse_config(raw, "my.yaml")
    return str(caught.value)


@pytest.mark.parametrize(
    ("changes", "parts"),
    [
        ({"sed": 1}, ["my.yaml", "sed is not a key", "seed"]),
        ({"targets__step": 1}, ["targets.step is not a key", "steps"]),
        (
            {"samples__models__teacher__step": 4},
            ["samples.models.teacher.step is not a key", "guidance_scale_2, source, steps"],
        ),
        ({"run": "../x"}, ["run is '../x': use letters, digits, '.', '_' or '-', beginning with"]),
        (
            {"samples__models": {"../x": {"source": "teacher"}}},
            ["samples.models.../x is '../x': use letters, digits"],
        ),
        (
            {"evaluation__min_clip_ratio": 95},
            ["evaluation.min_clip_ratio is 95: it is a ratio, at most 2; write 0.95 for 95 %"],
        ),
        ({"targets": None}, ["targets is null"]),
        ({"targets__steps": "many"}, ["targets.steps is 'many'"]),
        ({"targets__steps": True}, ["targets.steps is True"]),
        ({"targets__steps": 24.5}, ["targets.steps is 24.5"]),
        ({"training__learning_rate": "1e-4"}, ["'1e-4'", "write 1.0e-4"]),
        (
            {"samples__models": {key: {"source": "teacher"} for key in ("Teacher", "teacher")}},
            ["samples.models has Teacher and teacher, which differ in case alone"],
        ),
        ({"evaluation__num_resamples": 1}, ["greater than or equal to 100"]),
        ({"seed": "1"}, ["seed is the text '1': leave out the quotes"]),
        ({"teacher__path": ""}, ["teacher.path is '': it should have at least 1 character"]),
        ({"targets__steps": "24"}, ["'24'", "leave out the quotes"]),
        ({"training__learning_rate": float("inf")}, ["training.learning_rate is inf"]),
        ({"training__learning_rate": float("nan")}, ["training.learning_rate is nan"]),
        ({"training__learning_rate": 0}, ["training.learning_rate is 0"]),
        ({"training__betas": [0.9]}, ["training.betas.1 is missing"]),
        ({"training__betas": [0.9, 1.0]}, ["training.betas.1 is 1.0"]),
        ({"targets__guidance_scale": 0.5}, ["targets.guidance_scale is 0.5"]),
        ({"targets__guidance_scale_2": 0.5}, ["targets.guidance_scale_2 is 0.5"]),
        (
            {"samples__models__student__guidance_scale_2": 3.0},
            ["samples.models.student.guidance_scale_2 is 3.0: a student is one network"],
        ),
        (
            {"samples__models__student__guidance_interval": [0.5, 1.0]},
            ["samples.models.student.guidance_interval is [0.5, 1.0]: a student takes all its ste"],
        ),
        (
            {"targets__guidance_interval": [0.5, 0.5]},
            ["targets.guidance_interval: the interval ends at 0.5, and begins at 0.5"],
        ),
        ({"targets__guidance_interval": [0.5, 1.5]}, ["targets.guidance_interval.1 is 1.5"]),
        ({"targets__guidance_interval": [0.5]}, ["targets.guidance_interval.1 is missing"]),
        (
            {"targets__guidance_interval": [0.0, 1.0]},
            ["targets.guidance_interval is [0.0, 1.0], which has the middles of all", "narrower"],
        ),
        (
            {"targets__guidance_interval": [0.03, 0.05]},
            ["targets.guidance_interval is [0.03, 0.05], which has the middle of none of", "wider"],
        ),
        (
            {"targets__guidance_interval": [0.5, 1.0], "targets__guidance_scale": 1.0},
            ["and with targets.guidance_scale: 1.0 no step is guided; raise the scale"],
        ),
        (
            {"samples__models__student__steps": 2},
            [
                "samples.models.student.steps is 2, student.steps is 4: the student and its",
                "remove samples.models.student.steps, or train a student of 2 steps in another run",
            ],
        ),
        ({"prompts__train": ""}, ["prompts.train is '': name a file"]),
        ({"prompts__eval": " "}, ["prompts.eval is ' ': name a file"]),
        ({"prompts__eval": "a{b}.csv"}, ["prompts.eval is 'a{b}.csv': Snakemake reads {...} as a"]),
        ({"prompts__eval": None}, ["prompts.eval is missing: add it, or prompts.eval_fraction"]),
        (
            {"prompts__eval_fraction": 0.1},
            ["prompts.eval is 'eval.csv' and prompts.eval_fraction 0.1", "remove one of the keys"],
        ),
        ({"prompts": {"train": "a", "eval_fraction": 1}}, ["prompts.eval_fraction is 1: "]),
        ({"prompts": {"train": "a", "eval_fraction": 0.0}}, ["prompts.eval_fraction is 0.0: "]),
        (
            {"prompts__notes": ["seed", "negative_prompt"]},
            ["prompts.notes has negative_prompt, which is read: rename the column"],
        ),
        ({"run": "a/b"}, ["run is 'a/b'"]),
        ({"run": "a" * 300}, ["it should have at most 64 characters"]),
        ({"seed": 2**70}, ["seed is 1180591620717411303424"]),
        ({"targets__num_shards": 10**12}, ["targets.num_shards is 1000000000000", "10000"]),
        ({"samples__num_shards": 10**6}, ["samples.num_shards is 1000000", "10000"]),
        ({"targets__chunk_size": 4 * 10**18}, ["targets.chunk_size is 4000000000000000000"]),
        ({"targets__batch_size": 10**12}, ["targets.batch_size is 1000000000000"]),
        ({"samples__batch_size": 2**64}, ["samples.batch_size is 18446744073709551616"]),
        ({"samples__images_per_prompt": 10**10}, ["samples.images_per_prompt is 10000000000"]),
        ({"samples__num_prompts": 2**64}, ["samples.num_prompts is 18446744073709551616"]),
        ({"samples__models__teacher__steps": 10**12}, ["samples.models.teacher.steps is 100000"]),
        ({"embeddings__batch_size": 2**64}, ["embeddings.batch_size is 18446744073709551616"]),
        ({"evaluation__num_resamples": 10**12}, ["evaluation.num_resamples is 1000000000000"]),
        ({"previews__num_prompts": 10**12}, ["previews.num_prompts is 1000000000000"]),
        ({"hardware__cpu_threads": 10**6}, ["hardware.cpu_threads is 1000000"]),
        ({"teacher__num_gpus": 10**9}, ["teacher.num_gpus is 1000000000"]),
        ({"teacher__max_sequence_length": 10**12}, ["teacher.max_sequence_length is 10000"]),
        ({"targets__guidance_scale": 1e300}, ["targets.guidance_scale is 1e+300"]),
        ({"training__learning_rate": 1e6}, ["training.learning_rate is 1000000.0"]),
        ({"training__weight_decay": 1e300}, ["training.weight_decay is 1e+300"]),
        (
            {"training__phases": phases(stored=32 * 10**28)},
            ["training.phases.0.samples is 32000000000"],
        ),
        ({"training__keep_checkpoints": 10**30}, ["training.keep_checkpoints is 1000000"]),
        ({"training__ema_half_life_samples": 2**64}, ["training.ema_half_life_samples is 184"]),
        (
            {"training__warmup_samples": 641},
            ["training.warmup_samples is 641, all phases together have 640 samples: the"],
        ),
        ({"run": datetime.date(2026, 1, 1)}, ["2026-01-01", "quotes"]),
        ({"samples__models": {}}, ["samples.models"]),
        ({"samples__models": {"a b": {"source": "teacher"}}}, ["samples.models.a b"]),
        ({"evaluation__reference": "nobody"}, ["'nobody'", "teacher, teacher-4-steps, student"]),
        (
            {"training__micro_batch_size": "abc"},
            ["training.micro_batch_size is 'abc': it should be a valid integer or 'auto'"],
        ),
        (
            {"training__timestep_weights": "foo"},
            ["training.timestep_weights is 'foo': it should be 'uniform' or 'min_snr' or a list"],
        ),
        (
            {"student__init": "layers", "student__unet": {"layers_per_block": [1, 0]}},
            ["student.unet.layers_per_block.1 is 0: it should be greater than or equal to 1"],
        ),
        ({"student__init": "layers"}, ["student.layers is null"]),
        (
            {"student__init": "layers", "student__layers": [0], "student__num_layers": 1},
            ["student.layers is [0] and student.num_layers is 1"],
        ),
        ({"student__layers": [0]}, ["student.init is 'teacher'"]),
        ({"student__init": "layers", "student__layers": [2, 1]}, ["ascending"]),
        ({"student__init": "layers", "student__layers": []}, ["at least one block"]),
        (
            {"student__init": "lora", "student__lora": {"targets": []}},
            ["student.lora.targets is []: no layer would be trained; name at least one by"],
        ),
    ],
)
def test_what_is_wrong_is_said(changes: dict[str, Any], parts: list[str]) -> None:
    message = refused(changed(**changes))
    for part in parts:
        assert part in message


@pytest.mark.parametrize("raw", [None, [], "text", 3])
def test_a_run_is_a_mapping(raw: Any) -> None:
    assert "a run is a mapping of keys" in refused(raw)


@pytest.mark.parametrize(
    "changes", [{"targets__steps": "x" * 10**5}, {"x" * 10**5: 1}, {"targets__steps": [1] * 10**5}]
)
def test_a_huge_value_is_shown_in_part(changes: dict[str, Any]) -> None:
    assert len(refused(changed(**changes))) < 1000


@pytest.mark.parametrize(
    "changes",
    [
        {"training__micro_batch_size": "abc"},
        {"training__timestep_weights": "foo"},
        {"training__timestep_weights": [1, -1, 1, 1]},
        {"student__init": "layers", "student__unet": {"layers_per_block": [1, 0]}},
    ],
)
def test_a_key_of_several_types_has_one_line(changes: dict[str, Any]) -> None:
    assert len(refused(changed(**changes)).splitlines()) == 2


@pytest.mark.parametrize(
    "keys",
    [
        ("run",),
        ("teacher", "path"),
        ("targets", "steps"),
        ("training",),
        ("evaluation",),
        ("prompts", "train"),
        ("prompts", "eval"),
    ],
)
def test_a_missing_key_is_named(keys: tuple[str, ...]) -> None:
    assert f"{'.'.join(keys)} is missing" in refused(without(*keys))


def test_all_problems_are_named_at_once() -> None:
    message = refused(changed(sed=1, targets__steps="x"))
    assert "sed is not a key" in message
    assert "targets.steps is 'x'" in message


@pytest.mark.parametrize(
    ("changes", "problem", "values", "units"),
    [
        ({"targets__steps": 25}, "25 must be a multiple of 4", "24 or 28", "1 or 5"),
        ({"targets__steps": 3}, "3 must be a multiple of 4", "4", "3"),
        ({"targets__chunk_size": 60}, "60 must be a multiple of 16", "48 or 64", "15 or 20"),
        ({"student__steps": 3}, "4 must be a multiple of 3", "3 or 6", "2 or 4"),
        (
            {"training__phases": phases(stored=98)},
            "98 must be a multiple of 32",
            "96 or 128",
            "14 or 49",
        ),
        ({"training__micro_batch_size": 12}, "32 must be a multiple of 12", "24 or 36", "8 or 16"),
        ({"training__save_every_samples": 31}, "31 must be a multiple of 32", "32", "31"),
    ],
)
def test_counts_that_do_not_fit_come_with_the_nearest_that_do(
    changes: dict[str, Any], problem: str, values: str, units: str
) -> None:
    """Of either of the two settings: which one is wrong, nobody else knows."""
    message = refused(changed(**changes))
    found = re.search(rf"{problem}; set (\S+) to {values}, or (\S+) to {units}$", message)
    assert found, message
    value, unit = problem.split()[0], problem.split()[-1]
    assert f"{found[1]} is {value}, {found[2]} is {unit}: " in message


def test_lists_become_tuples() -> None:
    raw = changed(student__init="layers", student__layers=[0, 2], training__betas=[0.8, 0.9])
    config = parse_config(raw, "my.yaml")
    assert config.student.layers == (0, 2)
    assert config.training.betas == (0.8, 0.9)


def test_sections_cannot_be_changed() -> None:
    prompts = Prompts(train="a", eval="b")
    with pytest.raises(ValueError, match="frozen"):
        prompts.train = "c"  # type: ignore[misc]


def generating(**changes: Any) -> dict[str, Any]:
    """A configuration without training; `changes` as in `changed`."""
    raw = changed(
        samples__models={"teacher": {"source": "teacher", "steps": 20, "guidance_scale": 5.0}},
        **changes,
    )
    return {key: raw[key] for key in ("run", "teacher", "samples")} | {
        "prompts": {"eval": "eval.csv"},
        **{key: raw[key] for key in ("dataset", "student") if key in raw},
    }


def test_without_training_a_run_only_generates(tmp_path: Path) -> None:
    config = parse_config(generating(), "my.yaml")
    assert isinstance(config, GeneratingConfig)
    assert freeze(config, "samples-teacher")["sampling"]["steps"] == 20
    assert freeze(config, "samples-teacher")["sampling"]["guidance_scale"] == 5.0
    assert freeze(config, "dataset") == {"dataset": {"pairs": "none"}, "models": ["teacher"]}
    write_json(tmp_path / "run.json", freeze(config, "run"))
    assert read_config(tmp_path / "run.json") == config


@pytest.mark.parametrize("stage", ["targets", "training", "export", "evaluation"])
def test_a_generating_run_has_no_stage_of_training(stage: str) -> None:
    with pytest.raises(ValueError, match=f"no stage '{stage}'"):
        freeze(parse_config(generating(), "my.yaml"), stage)


@pytest.mark.parametrize(
    ("given", "advice"),
    [
        (("student",), "add targets, training, evaluation, prompts.train; for a run that only"),
        (("targets", "evaluation"), "add training, prompts.train; for a run"),
        (("training",), "remove training"),
        (("training", "targets", "student"), "remove targets, training, student"),
    ],
)
def test_a_part_of_what_training_needs_is_refused(given: tuple[str, ...], advice: str) -> None:
    full = changed(student__steps=4)
    message = refused(generating() | {key: full[key] for key in given})
    assert advice in message
    assert "targets is missing" in message or "targets" in given


def test_prompts_to_learn_from_need_a_training() -> None:
    message = refused(generating() | {"prompts": {"train": "train.csv", "eval": "eval.csv"}})
    assert "training is missing" in message
    assert "remove prompts.train" in message


def test_a_misspelt_section_is_still_named() -> None:
    assert "trainin is not a key" in refused(without("training") | {"trainin": {}})


@pytest.mark.parametrize("setting", ["steps", "guidance_scale"])
def test_a_generating_run_must_say_how_it_samples(setting: str) -> None:
    raw = generating()
    del raw["samples"]["models"]["teacher"][setting]
    assert f"samples.models.teacher.{setting} is missing" in refused(raw)


def test_a_generating_run_has_no_student_to_sample() -> None:
    raw = generating()
    for source in ("student", "untrained"):
        raw["samples"]["models"]["fast"] = {"source": source, "steps": 4, "guidance_scale": 1.0}
        assert f"samples.models.fast.source is '{source}': a run without training" in refused(raw)


def test_a_share_to_judge_by_is_a_share_of_prompts_to_learn_from() -> None:
    message = refused(generating() | {"prompts": {"eval_fraction": 0.1}})
    assert "prompts.eval_fraction holds out a share of prompts.train, which is missing" in message
    config = parse_config(changed(prompts={"train": "a.csv", "eval_fraction": 0.1}), "my.yaml")
    assert config.prompts.files == ["a.csv"]
    assert config.prompts.file("train") == config.prompts.file("eval") == "a.csv"


def test_a_run_reads_the_files_of_the_splits_that_it_has() -> None:
    both, one = Prompts(train="a", eval="b"), Prompts(eval="b")
    assert (both.files, both.file("train"), both.file("eval")) == (["a", "b"], "a", "b")
    assert (one.files, one.file("train"), one.file("eval")) == (["b"], None, "b")


def test_pairs_need_two_images() -> None:
    assert "raise samples.images_per_prompt" in refused(generating(dataset__pairs="all"))
    raw = generating(dataset__pairs="all", samples__images_per_prompt=2)
    assert parse_config(raw, "my.yaml").dataset.pairs == "all"
    assert "dataset.pairs is 'some'" in refused(generating(dataset__pairs="some"))


@pytest.mark.parametrize(
    ("key", "said"),
    [
        ("guidance", "targets.guidance is not a key of the configuration, did you mean guidance_s"),
        ("xyz", "targets.xyz is not a key of the configuration; known here: batch_size, "),
    ],
)
def test_a_misspelt_key_is_answered_with_the_nearest(key: str, said: str) -> None:
    assert said in refused(changed(**{f"targets__{key}": 1}))
