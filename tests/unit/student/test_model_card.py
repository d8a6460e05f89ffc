"""The model card's Python is Python, whatever the teacher is called; its types are the samples'."""

import ast
import shutil
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import ModelCard

from distillery.config.jobs import ExportJob
from distillery.config.run import Targets
from distillery.config.student import Student
from distillery.config.teacher import Teacher
from distillery.planning.page import TIMES
from distillery.student.export import model_card
from distillery.student.usage import CAST, noise_levels
from distillery.teacher.folder import PipelineFolder
from distillery.teacher.origin import find_origin

NAME = """a "teacher's"\\folder"""
METADATA = {
    "lora": {"scheduler": "EulerDiscreteScheduler", "modules": {}, "settings": {}},
    "recipe": {
        "schedule": {"timesteps": [999, 500]},
        "training": {},
        "seed": 0,
        "targets": "t" * 64,
    },
    "recipe_hash": "r" * 64,
    "samples_seen": 64,
}


def test_sections_of_the_training_are_shown_with_their_values() -> None:
    training = {"betas": [0.9, 0.95], "distribution_matching": {"weight": 0.1, "updates": 5}}
    card = card_of(training=training)
    assert "| distribution matching | updates 5, weight 0.1 |\n" in card
    assert "| betas | 0.9, 0.95 |\n| distribution" in card


def card_of(
    cast_latents: bool = False,
    vae_dtype: str = "float32",
    training: dict[str, object] | None = None,
    origin: dict[str, str] | None = None,
    sizes: list[tuple[int, int]] | None = None,
    schedule: dict[str, Any] | None = None,
    **teacher: object,
) -> str:
    call = {
        "arguments": {"num_inference_steps": 4},
        "dtypes": {"default": "bfloat16", "vae": vae_dtype},
        "cast_latents": cast_latents,
        "absent": {},
        "image": "images[0]",
    }
    job = ExportJob(
        teacher=Teacher(path=NAME, height=32, width=32, **teacher),  # type: ignore[arg-type]
        targets=Targets(steps=8, guidance_scale=4.0),
        student=Student(steps=4),
    )
    recipe = METADATA["recipe"] | {"training": training or {}}  # type: ignore[operator]
    recipe |= {"schedule": schedule} if schedule else {}
    about = METADATA | {"call": call, "recipe": recipe} | ({"sizes": sizes} if sizes else {})
    return model_card(job, about, origin or {})


@pytest.mark.parametrize(
    ("sizes", "told"),
    [
        (None, "32 x 32"),
        ([(32, 32)], "32 x 32"),
        ([(48, 32)], "32 x 48"),
        ([(32, 32), (48, 32)], "32 x 32 and 32 x 48"),
        ([(32, 32), (48, 32), (32, 64)], "32 x 32, 32 x 48 and 64 x 32"),
    ],
)
def test_the_card_names_the_sizes_that_were_learnt(
    sizes: list[tuple[int, int]] | None, told: str
) -> None:
    told = told.replace("x", TIMES)
    assert f"Other sizes than {told} were not trained." in card_of(sizes=sizes)
    clip = card_of(sizes=sizes, num_frames=9)
    assert f"Other sizes than {told} of 9 frames were not trained." in clip


def codes_of(card: str) -> list[str]:
    return [part.split("```")[0] for part in card.split("```python\n")[1:]]


@pytest.mark.parametrize(
    ("vae_dtype", "dtypes"),
    [
        ("float16", "dtype={'default': torch.bfloat16, 'vae': torch.float16},"),
        ("bfloat16", "dtype=torch.bfloat16,"),
    ],
)
def test_both_scripts_load_the_vae_in_its_own_type(vae_dtype: str, dtypes: str) -> None:
    scripts = codes_of(card_of(vae_dtype=vae_dtype))
    assert [script.count(dtypes) for script in scripts] == [1, 1]


def test_both_scripts_draw_with_a_seed_that_is_easily_replaced() -> None:
    assert [script.count("manual_seed(0)") for script in codes_of(card_of())] == [1, 1]


@pytest.mark.parametrize("cast", [True, False])
def test_both_scripts_cast_latents_where_the_stock_call_does_not(cast: bool) -> None:
    scripts = codes_of(card_of(cast))
    assert [CAST[-1] in script for script in scripts] == [cast, cast]


def test_a_teachers_name_may_hold_quotes_and_its_source_is_told() -> None:
    card = card_of(revision="v1", variant="fp16", adapters=({"path": "it's"},))
    _, script = codes_of(card)
    (load,) = [
        node
        for node in ast.walk(ast.parse(script))
        if isinstance(node, ast.Call)
        and ast.unparse(node.func).endswith(".from_pretrained")
        and any(isinstance(arg, ast.Constant) and arg.value == NAME for arg in node.args)
    ]
    told = {word.arg: ast.unparse(word.value) for word in load.keywords}
    assert told["revision"] == "'v1'"
    assert told["variant"] == "'fp16'"
    assert 'pipeline.load_lora_weights("it\'s", adapter_name=' in script


def test_the_header_names_the_teacher_and_its_licence_as_the_hub_reads_them() -> None:
    origin = {"base_model": "owner/teacher", "license": "other", "license_name": "their-licence"}
    card = card_of(origin=origin)
    header = ModelCard(card).data.to_dict()
    assert header == origin | {
        "library_name": "diffusers",
        "pipeline_tag": "text-to-image",
        "tags": ["distillation", "few-step", "lora"],
        "base_model_relation": "adapter",
    }
    assert "the teacher's licence applies: their-licence." in card
    assert "base_model" not in ModelCard(card_of()).data.to_dict()


def test_the_card_names_the_teachers_adapters_and_their_licences() -> None:
    """They are part of what the student learned from, and of what it is made of."""
    adapters = (
        {"path": "owner/style", "scale": 0.7, "weight_name": "a.safetensors"},
        {"path": "loras/second.safetensors"},
    )
    card = " ".join(card_of(adapters=adapters).split())
    told = "owner/style/a.safetensors at scale 0.7, loras/second.safetensors at scale 1"
    assert f"# A 4-step student of {NAME} with adapters Distilled" in card
    assert f"It is {NAME} changed by {told}." in card
    assert f"| teacher | {NAME}; adapters: {told} |" in card
    assert "holds the difference to the teacher with its adapters. On" in card
    assert "the teacher's licence applies; so do the licences of its adapters." in card


def test_the_card_of_a_teacher_without_adapters_speaks_of_none() -> None:
    card = card_of()
    assert "adapter" not in card.partition("---\n\n")[2].replace("adapter_name", "")
    assert "holds the difference to the teacher alone. On" in card
    assert "the teacher's licence applies." in card


def test_the_licence_is_that_of_the_teachers_own_card(tmp_path: Path, teacher: Path) -> None:
    shutil.copytree(teacher, tmp_path / "teacher")
    folder = PipelineFolder(tmp_path / "teacher")
    section = Teacher(path=str(tmp_path / "teacher"), height=32, width=32)
    assert find_origin(section, folder) == {}
    card = tmp_path / "teacher/README.md"
    card.write_text("---\nlicense: apache-2.0\ntags: [x]\n---\n# A teacher")
    assert find_origin(section, folder) == {"license": "apache-2.0"}
    card.write_text("---\nlicense: [broken\n---\n# A teacher")
    assert find_origin(section, folder) == {}
    of_hub = section.model_copy(update={"path": "owner/teacher"})
    card.write_text("---\nlicense: other\nlicense_link: https://there\n---")
    assert find_origin(of_hub, folder) == {
        "base_model": "owner/teacher", "license": "other", "license_link": "https://there",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("alphas", "sigmas", "levels"),
    [
        ((0.0, 0.25, 1.0), (1.0, 0.75, 0.0), ["1", "0.75", "0"]),
        ((0.6, 0.8, 1.0), (0.8, 0.6, 0.0), ["1.33333", "0.75", "0"]),
        ((0.0, 0.8, 1.0), (1.0, 0.6, 0.0), []),
    ],
)
def test_other_programs_get_the_noise_levels_as_they_count_them(
    alphas: tuple[float, ...], sigmas: tuple[float, ...], levels: list[str]
) -> None:
    """Of flow matching, of diffusion, and of diffusion whose first state is noise alone."""
    schedule = {"timesteps": [999, 500], "alphas": alphas, "sigmas": sigmas}
    assert noise_levels(schedule) == levels
    card = card_of(schedule=schedule)
    assert ("## In other programs" in card) == bool(levels)
    if levels:
        assert f"| noise levels (`sigmas`) | `{', '.join(levels)}` |" in card
        assert "| guidance (CFG) | 1, which is off |" in card
