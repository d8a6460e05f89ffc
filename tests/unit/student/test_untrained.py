"""The student before its training: drawn like the student, and told apart from a trained one."""

import json
import runpy
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from diffusers import DiffusionPipeline
from safetensors.torch import load_file, save_file

from distillery.config.jobs import EvaluationJob, ExportJob, TrainingJob
from distillery.files import read_json, write_json
from distillery.generation.sample_tables import merge_samples
from distillery.measures.score import evaluate
from distillery.model_folder import read_metadata, write_metadata
from distillery.report import verdict
from distillery.report.roles import Roles, find_roles
from distillery.student.build import build_student
from distillery.student.export import export_student
from judging import make_judge
from quality import MODELS, quality_with
from runs import CPU, Run, make_run
from training_phases import phases

COMPARED = {
    "teacher": {"source": "teacher"},
    "few": {"source": "teacher", "steps": 2, "guidance_scale": 1.0},
    "student": {"source": "student"},
    "untrained": {"source": "untrained"},
}
WEIGHTS = "diffusion_pytorch_model.safetensors"


@pytest.fixture(scope="module")
def run(teacher: Path, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A run whose student was built and exported, and learned nothing."""
    folder = tmp_path_factory.mktemp("untrained")
    run = make_run(folder, teacher, samples={"models": COMPARED})
    shutil.copy(folder / "train.csv", folder / "eval.csv")  # enough prompts for an interval
    run.encode("eval")
    build_student(run.job("training", TrainingJob), run.folder / "student" / "initial")
    run.export_untrained()
    return run


def sampled(run: Run, model: str, pipeline: Path | None = None) -> Path:
    """All of a model's images; returns the manifest."""
    shard = run.samples(model=model, pipeline=pipeline)
    merge_samples([shard], shard.parent / "manifest.parquet")
    return shard.parent / "manifest.parquet"


def test_it_is_the_student_in_all_but_the_training(run: Run) -> None:
    pipeline = run.folder / "student" / "untrained"
    initial = load_file(run.folder / "student" / "initial" / WEIGHTS)
    written = load_file(pipeline / "transformer" / WEIGHTS)
    assert initial.keys() == written.keys()
    assert all(torch.equal(initial[name], written[name]) for name in initial)
    loaded = DiffusionPipeline.from_pretrained(pipeline)
    assert loaded.scheduler.config.solver_order == 1
    assert read_metadata(pipeline)["call"]["arguments"]["num_inference_steps"] == 2
    assert "before its training" in (pipeline / "README.md").read_text()


def test_a_lora_of_nothing_is_not_given_out(teacher: Path, tmp_path: Path) -> None:
    run = make_run(tmp_path, teacher, student={"init": "lora", "lora": {"rank": 2}})
    build_student(run.job("training", TrainingJob), run.folder / "student" / "initial")
    assert not (run.export_untrained() / "lora").exists()


def test_its_images_are_made_again_for_another_beginning(run: Run, tmp_path: Path) -> None:
    pipeline = run.folder / "student" / "untrained"
    before = sampled(run, "untrained", pipeline).read_bytes()
    initial = run.folder / "student" / "initial"
    shutil.copytree(initial, tmp_path / "initial")
    tensors = load_file(initial / WEIGHTS)
    tensors["proj_out.bias"] = tensors["proj_out.bias"] + 0.5
    save_file(tensors, tmp_path / "initial" / WEIGHTS, metadata={"format": "pt"})
    write_metadata(tmp_path / "initial", read_metadata(initial))
    other = tmp_path / "untrained"
    export_student(run.job("export", ExportJob), tmp_path / "initial", other)
    assert sampled(run, "untrained", other).read_bytes() != before
    assert sampled(run, "untrained", pipeline).read_bytes() == before


def test_a_student_that_learned_nothing_does_not_pass(run: Run, tmp_path: Path) -> None:
    """A real run whose student is the untrained one: better than itself it is in nothing."""
    pipeline = run.folder / "student" / "untrained"
    manifests = {
        name: sampled(run, name, None if model["source"] == "teacher" else pipeline)
        for name, model in COMPARED.items()
    }
    make_judge(tmp_path / "judge")
    scored = run.config.evaluation.model_copy(update={"judge": str(tmp_path / "judge")})
    job = EvaluationJob(evaluation=scored, models=tuple(manifests))
    quality, scores = tmp_path / "quality.json", tmp_path / "scores.parquet"
    evaluate(job, list(manifests.values()), quality, scores, run.reporter(), CPU)
    found = read_json(quality)
    roles = find_roles(run.config, found)
    assert roles == Roles("student", "teacher", "few", "untrained")
    checks = verdict.check_student(found, roles, 0.0001)
    assert [check.outcome for check in checks[3:]] == ["failed"] * 2


# ---- the demo's check --------------------------------------------------------------------------


def demo(folder: Path, student: Any, untrained: Any) -> int:
    """What .ci/check_demo.py says of a run with these numbers of the student and the untrained."""
    quality = quality_with(*student)
    quality["models"]["untrained"] = quality_with(*untrained)["models"]["untrained"]
    raw = {
        "run": "demo",
        "prompts": {"train": "train.csv", "eval": "eval.csv"},
        "teacher": {"path": "teacher", "height": 96, "width": 96},
        "targets": {"steps": 24, "guidance_scale": 4.0},
        "training": {"phases": phases(stored=640), "global_batch_size": 32},
        "samples": {"models": MODELS},
        "evaluation": {"judge": "judge"},
    }
    roles = Roles("student", "teacher", "unguided", "untrained")
    checks = [vars(check) for check in verdict.check_student(quality, roles, 0.97)]
    metrics = {"verdict": checks, "quality": quality, "provenance": {"config": raw}}
    write_json(folder / "report" / "metrics.json", json.loads(json.dumps(metrics)))
    script = Path(__file__).parents[3] / ".ci" / "check_demo.py"
    return int(runpy.run_path(str(script))["main"](folder))


GOOD, BAD = (0.99, 0.02, -0.02, 0.5), (0.90, -0.02, 0.02, -0.5)


def test_the_demo_fails_where_the_untrained_student_would_pass(tmp_path: Path) -> None:
    assert demo(tmp_path, GOOD, BAD) == 0
    assert demo(tmp_path, GOOD, GOOD) == 1


def test_the_demo_fails_where_a_threshold_is_not_passed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert demo(tmp_path, (0.975, 0.02, -0.02, 0.5), BAD) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "the student:"
    assert lines[1].startswith("  undecided: CLIP score above 97 % of that of teacher: 97.5")
    assert "the untrained student in its place:" in lines
