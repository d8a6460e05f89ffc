"""A second guidance scale, of a teacher's second network, and steps without guidance: who may have
them, where they are told."""

import json
import shutil
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from safetensors.torch import load_file

from distillery.config.jobs import DatasetJob, SamplesJob
from distillery.config.run import parse_config
from distillery.families.wan import Wan
from distillery.files import hash_json, read_json, write_json
from distillery.generation.dataset import make_dataset
from distillery.generation.sample_maker import SampleMaker
from distillery.generation.sample_tables import merge_samples
from distillery.planning.guidance import on_interval, on_second_scale
from distillery.prompts import REQUIRED, RESERVED
from distillery.store.trajectories import TrajectoryStore
from distillery.teacher.components import INDEX
from distillery.teacher.folder import PipelineFolder
from families.wan_two_experts import make
from runs import (
    CPU,
    Run,
    generating_settings,
    loaded,
    make_run,
    planned,
    settings,
    summary,
)

PAIR = {"guidance_scale": 4.0, "guidance_scale_2": 3.0}
MODELS = {
    "teacher": {"source": "teacher"},
    "alike": {"source": "teacher", "guidance_scale": 4.0},
}
STUDENT = {"steps": 2, "expert": "transformer_2"}


@pytest.fixture(scope="module")
def two_networks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a tiny Wan2.2-A14B; tests must not write into it."""
    folder = tmp_path_factory.mktemp("two") / "teacher"
    make(folder)
    return folder


@pytest.fixture(scope="module")
def finished(two_networks: Path, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Trajectories of two scales, and samples with and without the second; a data set of them."""
    run = make_run(
        tmp_path_factory.mktemp("finished"),
        two_networks,
        targets=PAIR,
        student=STUDENT,
        samples={"models": MODELS},
    )
    for split in ("train", "eval"):
        run.encode(split)
    run.all_targets()
    manifests = [run.folder / "samples" / model / "manifest.parquet" for model in MODELS]
    for model, manifest in zip(MODELS, manifests, strict=True):
        merge_samples([run.samples(model=model)], manifest)
    output = run.folder / "dataset" / "manifest.parquet"
    make_dataset(run.job("dataset", DatasetJob), manifests, run.files, output)
    return run


def latents_of(run: Run, model: str) -> torch.Tensor:
    path = run.folder / "samples" / model / "p000" / "0.safetensors"
    return load_file(path)["latents"]


def test_samples_are_drawn_with_the_scales_of_the_targets(finished: Run) -> None:
    end = TrajectoryStore(finished.folder / "targets" / "manifest.json").states(0, 0, 2)[1]
    torch.testing.assert_close(latents_of(finished, "teacher"), end, rtol=0, atol=1e-5)
    assert not latents_of(finished, "alike").allclose(end, atol=1e-4)


def test_tables_have_the_second_scale_where_it_is_given(finished: Run) -> None:
    folder = finished.folder / "samples"
    teacher, alike = (pd.read_parquet(folder / name / "manifest.parquet") for name in MODELS)
    assert list(teacher.columns) == [*REQUIRED, *RESERVED[:-1], "guidance_scale_2", "style"]
    assert teacher[[*PAIR, "network_calls"]].iloc[0].tolist() == [4.0, 3.0, 8]
    assert list(alike.columns) == [*REQUIRED, *RESERVED[:-1], "style"]
    assert (pd.read_csv(folder / "teacher" / "metadata.csv")["guidance_scale_2"] == 3.0).all()
    assert "guidance_scale_2" not in pd.read_csv(folder / "alike" / "metadata.csv")
    both = pd.read_parquet(finished.folder / "dataset" / "manifest.parquet")
    assert both["guidance_scale_2"].fillna(0.0).tolist() == [3.0] * 5 + [0.0] * 5


def test_a_shard_without_samples_has_the_same_columns(finished: Run) -> None:
    tables = [pd.read_parquet(finished.samples(part, 9)) for part in range(9)]
    assert 0 in map(len, tables)
    assert len({tuple(table.columns) for table in tables}) == 1


def test_recipes_have_the_second_scale_only_where_it_is_given(
    finished: Run, two_networks: Path, tmp_path: Path
) -> None:
    plain = make_run(tmp_path, two_networks, targets={"guidance_scale": 4.0}, student=STUDENT)
    plain.encode("train")
    ours, theirs = (
        json.loads((run.folder / "targets" / "manifest.json").read_text())["recipe"]
        for run in (finished, Run(plain.all_targets().parents[1], plain.config))
    )
    assert "guidance_scale_2" not in theirs
    assert ours == theirs | {"guidance_scale_2": 3.0}
    teacher, alike = (samples_recipe(finished, model) for model in MODELS)
    assert "guidance_scale_2" not in alike
    assert teacher == alike | {"guidance_scale_2": 3.0}


def samples_recipe(run: Run, model: str) -> dict[str, Any]:
    """Everything that a model's images depend on, checked against its table."""
    folder = run.folder / "samples" / model
    maker = SampleMaker(
        run.job(f"samples-{model}", SamplesJob),
        pd.read_parquet(run.prompts("eval")),
        run.embeddings("eval"),
        None,
        folder,
        CPU,
        run.reporter(),
    )
    recipe = maker._recipe()
    assert (pd.read_parquet(folder / "manifest.parquet")["recipe"] == hash_json(recipe)).all()
    return recipe


def test_calls_are_counted_as_the_stock_pipeline_makes_them(
    two_networks: Path, tmp_path: Path
) -> None:
    """A scale of 1.0 for the second network still costs it both passes."""
    raw = settings(
        tmp_path, two_networks, student=STUDENT, targets=PAIR | {"guidance_scale_2": 1.0}
    )
    found = planned(raw, tmp_path)
    assert found["work"]["teacher_calls"] == 9 * 4 * 2
    config = parse_config(settings(tmp_path, two_networks, student=STUDENT), "tiny")
    pipeline = loaded(config.teacher)
    calls: list[object] = []
    for network in (pipeline.transformer, pipeline.transformer_2):
        network.register_forward_pre_hook(lambda module, _arguments: calls.append(module))
    pipeline(
        prompt="a dog",
        height=config.teacher.height,
        width=config.teacher.width,
        num_frames=1,
        num_inference_steps=4,
        guidance_scale=4.0,
        guidance_scale_2=1.0,
        output_type="latent",
    )
    assert len(calls) == 4 * 2


def told(raw: dict[str, Any]) -> list[str]:
    """What the plan refuses of a run's scales; tests/unit/stages/test_plan.py sees it refuse."""
    folder = PipelineFolder(Path(raw["teacher"]["path"]))
    return [*map(str, on_second_scale(parse_config(raw, "tiny"), folder))]


def test_a_teacher_of_one_network_has_one_scale(teacher: Path, tmp_path: Path) -> None:
    of_targets, *_ = told(settings(tmp_path, teacher, targets=PAIR))
    assert of_targets.startswith("targets.guidance_scale_2 is 3.0: the teacher draws with one net")
    models = MODELS | {"alike": {"source": "teacher", **PAIR}}
    (of_model,) = told(settings(tmp_path, teacher, samples={"models": models}))
    assert of_model.startswith("samples.models.alike.guidance_scale_2 is 3.0")
    raw = generating_settings(tmp_path, teacher)
    raw["samples"]["models"]["teacher"]["guidance_scale_2"] = 3.0
    (generating,) = told(raw)
    assert generating.startswith("samples.models.teacher.guidance_scale_2 is 3.0")


def test_two_networks_without_a_boundary_draw_with_one(two_networks: Path, tmp_path: Path) -> None:
    shutil.copytree(two_networks, tmp_path / "teacher")
    index = read_json(two_networks / INDEX)
    write_json(tmp_path / "teacher" / INDEX, index | {"boundary_ratio": None})
    first, *_ = told(settings(tmp_path, tmp_path / "teacher", targets=PAIR, student=STUDENT))
    assert "the teacher draws with one network" in first


def test_a_scale_that_is_not_looked_at_is_refused(two_networks: Path, tmp_path: Path) -> None:
    """The stock pipeline guides neither network where the first scale is 1.0."""
    off = PAIR | {"guidance_scale": 1.0}
    one = {"student": STUDENT}
    refused, *_ = told(settings(tmp_path, two_networks, targets=off, **one))
    assert "with which the stock pipeline guides neither network" in refused
    both_off = off | {"guidance_scale_2": 1.0}
    assert told(settings(tmp_path, two_networks, targets=both_off, **one)) == []
    models = MODELS | {"unguided": {"source": "teacher", "guidance_scale": 1.0}}
    raw = settings(tmp_path, two_networks, targets=PAIR, samples={"models": models}, **one)
    assert told(raw) == []


# ---- steps without guidance ----------------------------------------------------------------------


def told_of_intervals(raw: dict[str, Any]) -> list[str]:
    folder = PipelineFolder(Path(raw["teacher"]["path"]))
    return [*map(str, on_interval(parse_config(raw, "tiny"), folder))]


HALF = {"guidance_scale": 4.0, "guidance_interval": [0.6, 1.0]}


def test_the_plan_counts_and_tells_unguided_steps(teacher: Path, tmp_path: Path) -> None:
    models = MODELS | {
        "few": {"source": "teacher", "steps": 2},
        "first": {"source": "teacher", "steps": 3, "guidance_interval": [0.4, 0.6]},
        "always": {"source": "teacher", "guidance_interval": [0.0, 1.0]},
    }
    raw = settings(tmp_path, teacher, targets=HALF, samples={"models": models})
    assert raw["targets"]["steps"] == 4
    plan = planned(raw, tmp_path)
    assert plan["calls_per_step"] == 1.5
    assert plan["work"]["teacher_calls"] == 9 * 6
    told = summary(plan)
    assert "4 steps, guidance 4 in steps 3 to 4: 6 network calls each" in told
    rows = {line.split()[0]: line.split()[1:] for line in told.splitlines() if line.split()}
    assert rows["teacher"][:8] == ["teacher", "4", "4", "in", "steps", "3", "to", "4"]
    assert rows["teacher"][8] == "6"
    assert rows["few"][:7] == ["teacher", "2", "4", "in", "step", "2", "3"]
    assert rows["first"][:7] == ["teacher", "3", "4", "in", "step", "2", "4"]
    assert rows["always"][:4] == ["teacher", "4", "4", "8"]
    assert rows["alike"][:4] == ["teacher", "4", "4", "8"]


@pytest.mark.parametrize(
    ("model", "note"),
    [
        ({"guidance_scale": 1.0, "guidance_interval": [0.5, 1.0]}, "no step is guided: remove it"),
        ({"steps": 2, "guidance_interval": [0.0, 0.8]}, "which has the middles of all its 2 steps"),
        ({"steps": 2, "guidance_interval": [0.8, 1.0]}, "the middle of none of its 2 steps: it is"),
        ({"steps": 1}, "is [0.6, 1.0], as in targets, which has the middle of none of its 1"),
        ({"steps": 8}, None),
        ({"guidance_scale": 1.0}, None),
    ],
)
def test_an_interval_that_changes_nothing_is_told(
    teacher: Path, tmp_path: Path, model: dict[str, Any], note: str | None
) -> None:
    models = MODELS | {"other": {"source": "teacher", **model}}
    told = told_of_intervals(settings(tmp_path, teacher, targets=HALF, samples={"models": models}))
    assert len(told) == (note is not None)
    if note:
        assert "samples.models.other.guidance_interval" in told[0]
        assert note in told[0]


def test_an_interval_of_a_call_without_a_scale_or_with_steps_of_its_own_is_refused(
    teacher: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    raw = settings(tmp_path, teacher, targets=HALF)
    raw["teacher"]["call"] = {"skip_guidance_layers": [1]}
    (refused,) = told_of_intervals(raw)
    assert refused.startswith("targets.guidance_interval is [0.6, 1.0], and teacher.call.skip_gui")
    del raw["teacher"]["call"]
    assert told_of_intervals(raw) == []
    monkeypatch.setattr(Wan, "guidance_argument", "")
    (refused,) = told_of_intervals(raw)
    assert "the call of WanPipeline takes no scale of guidance; remove it" in refused
    generating = generating_settings(tmp_path, teacher)
    generating["samples"]["models"]["teacher"] |= {"guidance_interval": [0.5, 1.0]}
    assert "takes no scale of guidance" in told_of_intervals(generating)[0]
