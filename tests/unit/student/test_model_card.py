"""The model card's Python is Python, whatever the teacher is called; its types are the samples'."""

import ast

import pytest

from distillery.config.jobs import ExportJob
from distillery.config.run import Targets
from distillery.config.student import Student
from distillery.config.teacher import Teacher
from distillery.stages.export import model_card
from distillery.student.usage import CAST

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
    return model_card(job, METADATA | {"call": call, "recipe": recipe})


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
    assert 'the teacher had: "it\'s"' in script
