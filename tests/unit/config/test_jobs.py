"""What each stage is frozen with, and so which settings remake what."""

import json
from pathlib import Path
from typing import Any

import pytest

from configs import RUN, changed
from distillery.config.jobs import (
    JOBS,
    SamplesJob,
    TrainingJob,
    complete,
    freeze,
    read_config,
    read_job,
)
from distillery.config.parsing import flatten
from distillery.config.run import Config, parse_config
from distillery.config.sampling import user_key
from distillery.config.section import ONLY_IF_SET
from distillery.files import write_json
from training_phases import phases

OF_TEACHER = {"samples-teacher", "samples-teacher-4-steps"}
ALL_SAMPLES = OF_TEACHER | {"samples-student"}
OF_STUDENT = {"student", "training", "previews", "export"}


def stages(config: Config) -> list[str]:
    return [*JOBS, "run", "runtime", *(f"samples-{model}" for model in config.samples.models)]


def frozen(raw: dict[str, Any]) -> dict[str, dict[str, Any]]:
    config = parse_config(raw, "my.yaml")
    return {stage: freeze(config, stage) for stage in stages(config)}


def stages_changed_by(**changes: Any) -> set[str]:
    """Stages whose frozen configuration changes; `runtime` is one that remakes nothing."""
    before, after = frozen(RUN), frozen(changed(**changes))
    return {stage for stage in before if before[stage] != after[stage]}


CASES: list[tuple[dict[str, Any], set[str]]] = [
    ({"training__learning_rate": 1e-3}, {"training"}),
    ({"training__phases": phases(stored=320)}, {"training"}),
    ({"training__save_every_samples": 64}, {"runtime"}),
    ({"training__hang_timeout_s": 64}, {"runtime"}),
    ({"targets__guidance_scale": 2.0}, {"targets", "rounds", "export", *ALL_SAMPLES}),
    ({"targets__guidance_scale_2": 2.0}, {"targets", "rounds", "export", *OF_TEACHER}),
    ({"targets__guidance_interval": [0.5, 1.0]}, {"targets", "rounds", "export", *OF_TEACHER}),
    ({"targets__num_shards": 9}, {"targets", "rounds", "export"}),
    (
        {"teacher__negative_prompt": "x"},
        {"embeddings", "targets", "rounds", *OF_STUDENT, *ALL_SAMPLES},
    ),
    ({"teacher__offload": "model"}, {"runtime"}),
    ({"teacher__num_gpus": 2}, {"runtime"}),
    (
        {"teacher__adapters": [{"path": "x"}]},
        {"embeddings", "targets", "rounds", *OF_STUDENT, *ALL_SAMPLES},
    ),
    ({"embeddings__batch_size": 5}, {"embeddings"}),
    ({"prompts__eval": "x.csv"}, {"prompts"}),
    ({"student__steps": 2}, {"rounds", *OF_STUDENT, "samples-student"}),
    ({"seed": 5}, {"targets", "rounds", *(OF_STUDENT - {"export"}), *ALL_SAMPLES}),
    ({"previews__every_samples": 640}, {"previews"}),
    (
        {"teacher__vae_dtype": "bfloat16"},
        {"embeddings", "targets", "rounds", "previews", "export", *ALL_SAMPLES},
    ),
    ({"samples__batch_size": 5}, ALL_SAMPLES),
    ({"samples__num_shards": 5}, set()),
    ({"samples__models__student__steps": 4}, set()),
    ({"samples__models__teacher-4-steps__steps": 2}, {"samples-teacher-4-steps"}),
    ({"evaluation__num_resamples": 500}, {"evaluation"}),
    ({"evaluation__vision_models": {"dino": "facebook/dinov2-base"}}, {"evaluation"}),
    ({"evaluation__preference_model": "yuvalkirstain/PickScore_v1"}, {"evaluation"}),
    ({"evaluation__min_clip_ratio": 0.9}, set()),
    ({"dataset__pairs": "all"}, {"dataset"}),
    ({"hardware__cpu_threads": 2}, set()),
    ({"run": "other"}, set()),
]
"""A changed key, and the stages that depend on it."""


@pytest.mark.parametrize(("changes", "stages"), CASES)
def test_a_key_changes_the_stages_that_depend_on_it(
    changes: dict[str, Any], stages: set[str]
) -> None:
    assert stages_changed_by(**changes) == stages | {"run"}


OF_MODELS: list[dict[str, Any]] = [
    {"samples__models__teacher__guidance_scale": 7.0},
    {"samples__models__teacher__guidance_scale_2": 7.0},
    {"samples__models__teacher__guidance_interval": [0.5, 1.0]},
    {"samples__models__teacher-4-steps__guidance_scale": 7.0},
    {"samples__models__student__guidance_scale": 7.0},
    {"samples__images_per_prompt": 3},
    {"samples__num_prompts": 3},
]


@pytest.mark.parametrize("changes", [*(changes for changes, _ in CASES), *OF_MODELS])
def test_every_changed_value_leads_to_the_key_that_the_user_changed(
    changes: dict[str, Any],
) -> None:
    (key,) = (name.replace("__", ".") for name in changes)
    before, after = frozen(RUN), frozen(changed(**changes))
    config = parse_config(changed(**changes), "my.yaml")
    for stage in before:
        old, new = flatten(before[stage]), flatten(after[stage])
        names = [name for name in {**old, **new} if old.get(name) != new.get(name)]
        found = {user_key(config, stage, name) for name in names}
        assert all(name == key or name.startswith(f"{key}.") for name in found), stage


@pytest.mark.parametrize(
    ("own", "key"),
    [
        ({}, "targets.guidance_scale_2"),
        ({"guidance_scale": 5.0}, "samples.models.teacher.guidance_scale_2"),
        ({"guidance_scale_2": 5.0}, "samples.models.teacher.guidance_scale_2"),
    ],
)
def test_a_model_with_guidance_of_its_own_takes_no_second_one_of_the_targets(
    own: dict[str, float], key: str
) -> None:
    raw = changed(
        targets__guidance_scale_2=3.0, samples__models__teacher={"source": "teacher"} | own
    )
    config = parse_config(raw, "my.yaml")
    assert user_key(config, "samples-teacher", "sampling.guidance_scale_2") == key


@pytest.mark.parametrize(
    ("own", "key"),
    [
        ({}, "targets.guidance_interval"),
        ({"guidance_scale": 5.0}, "samples.models.teacher.guidance_interval"),
        ({"guidance_interval": [0.0, 0.5]}, "samples.models.teacher.guidance_interval"),
    ],
)
def test_a_model_with_guidance_of_its_own_takes_no_interval_of_the_targets(
    own: dict[str, Any], key: str
) -> None:
    raw = changed(
        targets__guidance_interval=[0.5, 1.0], samples__models__teacher={"source": "teacher"} | own
    )
    config = parse_config(raw, "my.yaml")
    assert user_key(config, "samples-teacher", "sampling.guidance_interval") == key


def test_a_new_release_is_no_key_of_the_user() -> None:
    config = parse_config(RUN, "my.yaml")
    told = user_key(config, "samples-student", "version")
    assert told == "this release's version of samples-student"


def test_without_training_a_models_values_are_its_own() -> None:
    raw = {"run": "mine", "teacher": RUN["teacher"], "prompts": {"eval": "eval.csv"}}
    model = {"source": "teacher", "steps": 4, "guidance_scale": 3.0}
    config = parse_config({**raw, "samples": {"models": {"mine": model}}}, "my.yaml")
    for name in ("steps", "guidance_scale", "guidance_scale_2"):
        assert user_key(config, "samples-mine", f"sampling.{name}") == f"samples.models.mine.{name}"


def test_a_setting_of_a_later_release_is_written_only_where_it_is_set(tmp_path: Path) -> None:
    """Or every finished run would be made again: what an earlier one wrote does not have it."""
    plain, own = (
        parse_config(changed(**it), "my.yaml") for it in ({}, {"teacher__call": {"a": 1}})
    )
    assert all("call" not in str(freeze(plain, stage)) for stage in stages(plain))
    path = tmp_path / "targets.json"
    write_json(path, freeze(own, "targets"))
    assert read_job(path, JOBS["targets"]).teacher.call == {"a": 1}
    assert "targets" not in freeze(plain, "training")
    assert "grid" not in freeze(plain, "samples-teacher")["sampling"]
    assert all("guidance_interval" not in str(freeze(plain, stage)) for stage in stages(plain))


def test_a_frozen_job_survives_its_file(tmp_path: Path) -> None:
    config = parse_config(changed(student__init="layers", student__layers=[0, 1]), "my.yaml")
    for stage in stages(config):
        path = tmp_path / f"{stage}.json"
        write_json(path, freeze(config, stage))
    frozen = [stage for stage in stages(config) if stage not in ("run", "runtime")]
    for stage in frozen:
        path = tmp_path / f"{stage}.json"
        job = read_job(path, JOBS.get(stage, SamplesJob)).model_dump(mode="json")
        runtime = freeze(config, "runtime")
        assert job == complete(json.loads(path.read_text()), runtime)
        if stage in ("targets", "training"):
            fields = type(config.teacher).model_fields
            later = {
                name for name, it in fields.items() if ONLY_IF_SET in str(it.json_schema_extra)
            }
            assert job["teacher"].keys() == fields.keys() - later
    assert read_job(tmp_path / "training.json", TrainingJob).student.layers == (0, 1)
    assert read_job(tmp_path / "run.json", Config) == config
    assert read_config(tmp_path / "run.json") == config


def test_a_training_that_is_online_alone_carries_what_its_targets_depend_on() -> None:
    online = frozen(changed(training__phases=phases(online=640)))
    assert online["training"]["targets"] == online["targets"]["targets"]
    finish = frozen(changed(training__phases=phases(stored=608, online=32)))
    assert "targets" not in finish["training"]


@pytest.mark.parametrize(
    "stage", ["embeddings", "targets", "student", "training", "samples-student"]
)
def test_costly_stages_carry_their_version(stage: str) -> None:
    assert frozen(RUN)[stage]["version"] >= 1


@pytest.mark.parametrize("stage", ["samples-nobody", "nothing"])
def test_an_unknown_stage_is_refused(stage: str) -> None:
    with pytest.raises(ValueError, match=f"no stage '{stage}'"):
        freeze(parse_config(RUN, "my.yaml"), stage)


def test_the_untrained_student_is_sampled_as_the_student_is() -> None:
    models = {name: {"source": name} for name in ("teacher", "student", "untrained")}
    jobs = frozen(changed(samples__models=models))
    student, untrained = (jobs[f"samples-{name}"]["sampling"] for name in ("student", "untrained"))
    assert untrained == student | {"source": "untrained"}


def test_open_settings_of_a_sampled_model_are_filled() -> None:
    found = {
        name.removeprefix("samples-"): (job["sampling"]["steps"], job["sampling"]["guidance_scale"])
        for name, job in frozen(RUN).items()
        if name in ALL_SAMPLES
    }
    assert found == {"teacher": (24, 4.0), "teacher-4-steps": (4, 4.0), "student": (4, None)}


@pytest.mark.parametrize(
    ("given", "resolved"),
    [
        ({}, (4.0, 3.0)),
        ({"guidance_scale_2": 2.0}, (4.0, 2.0)),
        ({"guidance_scale": 5.0}, (5.0, None)),
        ({"guidance_scale": 5.0, "guidance_scale_2": 2.0}, (5.0, 2.0)),
    ],
)
def test_the_scales_of_two_networks_are_a_pair(
    given: dict[str, float], resolved: tuple[float, float | None]
) -> None:
    raw = changed(
        targets__guidance_scale_2=3.0, samples__models__teacher={"source": "teacher"} | given
    )
    jobs = frozen(raw)
    sampling = jobs["samples-teacher"]["sampling"]
    assert (sampling["guidance_scale"], sampling["guidance_scale_2"]) == resolved
    assert jobs["samples-student"]["sampling"]["guidance_scale_2"] is None


@pytest.mark.parametrize(
    ("given", "resolved"),
    [
        ({}, [0.25, 0.75]),
        ({"guidance_scale_2": 2.0}, [0.25, 0.75]),
        ({"guidance_scale": 5.0}, None),
        ({"guidance_interval": [0.5, 1.0]}, [0.5, 1.0]),
        ({"guidance_interval": [0.0, 1.0]}, None),
        ({"guidance_scale": 5.0, "guidance_interval": [0.5, 1.0]}, [0.5, 1.0]),
    ],
)
def test_an_interval_belongs_to_its_scale(
    given: dict[str, Any], resolved: list[float] | None
) -> None:
    raw = changed(
        targets__guidance_interval=[0.25, 0.75],
        samples__models__teacher={"source": "teacher"} | given,
    )
    jobs = frozen(raw)
    assert jobs["samples-teacher"]["sampling"].get("guidance_interval") == resolved
    assert "guidance_interval" not in jobs["samples-student"]["sampling"]


def test_how_the_teacher_runs_is_of_a_training_with_online_targets_alone() -> None:
    teacher = {"teacher__attention": "native", "teacher__offload": "model"}
    stored = frozen(changed(**teacher))["training"]["teacher"]
    assert (stored["attention"], stored["offload"]) == (None, "none")
    online = frozen(changed(**teacher, training__phases=phases(online=640)))["training"]["teacher"]
    assert online["attention"] == "native"
    assert "offload" not in online, "it changes no result: runtime.json has it"
