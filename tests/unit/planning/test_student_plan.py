"""The plan knows the student before anything is computed, and refuses one that cannot be."""

from pathlib import Path
from typing import Any

import diffusers
import pytest

from distillery.config.jobs import TrainingJob
from distillery.config.run import parse_config
from distillery.files import read_json, write_json
from distillery.pipeline import STAGES
from distillery.planning.plan import make_plan
from distillery.student.build import build_student
from families import CASES
from runs import make_run, settings, summary

CASE_OF = {case.name: case for case in CASES}
UNET = {"mid_block": "resnet", "transformer_layers_per_block": 1}
SECTIONS = ("teacher", "student")


@pytest.fixture(scope="module")
def teachers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folders of a tiny teacher each; tests must not write into them."""
    folder = tmp_path_factory.mktemp("teachers")
    for name in ("wan", "sdxl"):
        CASE_OF[name].make(folder / name)
    return folder


def settings_of(folder: Path, case: Any, teacher: Path, student: dict[str, Any]) -> dict[str, Any]:
    sizes = {"height": case.height, "width": case.width, "max_sequence_length": case.max_tokens}
    return settings(
        folder, teacher, teacher=sizes | dict(case.teacher), student={"steps": 2} | student
    )


def students(case: Any, folder: Path, teacher: Path) -> list[dict[str, Any]]:
    """One of each kind that this family offers."""
    network = "unet" if case.name == "sdxl" else "transformer"
    shape = read_json(teacher / network / "config.json")
    changes = {"down_block_types": ["DownBlock2D"] * 2} if network == "unet" else {"ffn_dim": 40}
    write_json(folder / "shape.json", shape | changes)
    dropped = {"unet": UNET} if network == "unet" else {"num_layers": 1}
    targets = ["to_q", "ff.net.2"] if network == "unet" else ["to_q", "ffn.net.2"]
    return [
        {},
        {"init": "layers", **dropped},
        {"init": "config", "config": str(folder / "shape.json")},
        {"init": "lora", "lora": {"rank": 4, "targets": targets}},
        {"init": "time_embeddings"},
    ]


@pytest.mark.parametrize("name", ["wan", "sdxl"])
def test_the_plan_says_what_the_build_will_make(name: str, teachers: Path, tmp_path: Path) -> None:
    case, teacher = CASE_OF[name], teachers / name
    for number, student in enumerate(students(case, tmp_path, teacher)):
        raw = settings_of(tmp_path, case, teacher, student)
        make_plan(STAGES, parse_config(raw, "tiny"), tmp_path / str(number) / "plan.json")
        plan = read_json(tmp_path / str(number) / "plan.json")
        run = make_run(tmp_path / str(number), teacher, **{key: raw[key] for key in SECTIONS})
        build_student(run.job("training", TrainingJob), tmp_path / str(number) / "initial")
        built = read_json(tmp_path / str(number) / "initial/distillery.json")["student"]
        line = plan["student"].pop("summary")
        assert plan["student"] == built
        assert f"{built['num_parameters']:,} parameters" in line
        model = diffusers.AutoModel.from_pretrained(str(tmp_path / str(number) / "initial"))
        assert model.num_parameters() == built["num_parameters"]


def test_the_summary_says_how_large_the_student_is(teachers: Path, tmp_path: Path) -> None:
    student = {"init": "layers", "num_layers": 1}
    raw = settings_of(tmp_path, CASE_OF["wan"], teachers / "wan", student)
    make_plan(STAGES, parse_config(raw, "tiny"), tmp_path / "plan.json")
    text = summary(read_json(tmp_path / "plan.json"))
    assert "14,320 parameters, 65.7% of the teacher's; blocks 0" in text


@pytest.mark.parametrize(
    ("name", "student", "problem"),
    [
        ("wan", {"init": "layers", "num_layers": 3}, "has 2 blocks; use 1 to 2"),
        (
            "wan",
            {"init": "layers", "layers": [0, 9]},
            "lists 9: the teacher's transformer has 2 bl",
        ),
        ("wan", {"expert": "transformer_2"}, "the teacher has the networks transformer,"),
        ("wan", {"init": "layers", "unet": UNET}, "is a WanTransformer3DModel: use student.num_la"),
        ("sdxl", {"init": "layers", "num_layers": 3}, "say in student.unet what is kept"),
        ("sdxl", {"init": "layers", "unet": {"layers_per_block": 2}}, "have [1, 1] pairs"),
        ("sdxl", {"init": "lora", "lora": {"rank": 99}}, "student.lora.rank is 99"),
        ("wan", {"init": "lora", "lora": {"targets": ["x"]}}, "student.lora.targets has 'x'"),
        ("wan", {"init": "config", "config": "nowhere.json"}, "there is no such file"),
    ],
)
def test_a_student_that_cannot_be(
    name: str, student: dict[str, Any], problem: str, teachers: Path, tmp_path: Path
) -> None:
    raw = settings_of(tmp_path, CASE_OF[name], teachers / name, student)
    with pytest.raises((ValueError, FileNotFoundError)) as caught:
        make_plan(STAGES, parse_config(raw, "tiny"), tmp_path / "plan.json")
    assert problem in str(caught.value)
    assert not (tmp_path / "plan.json").exists()
