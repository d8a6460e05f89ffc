"""What only an SD3 has: an encoder that may be absent, two ways to shift, blocks of two kinds."""

from pathlib import Path

import pytest
import torch
from diffusers import (
    DiffusionPipeline,
    FlowMatchEulerDiscreteScheduler,
    SD3Transformer2DModel,
    StableDiffusion3Pipeline,
)

from distillery.families import Size, family_named
from families import sd3
from families.made import made_teacher
from tiny import MAX_TOKENS

FAMILY = family_named("sd3")
WITHOUT_T5 = {"text_encoder_3": None, "tokenizer_3": None}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return made_teacher(tmp_path_factory, sd3.CASE)


def load(folder: Path, **parts: None) -> StableDiffusion3Pipeline:
    pipeline = DiffusionPipeline.from_pretrained(folder, **parts)
    pipeline.set_progress_bar_config(disable=True)
    return pipeline


def test_without_t5_its_positions_are_zeros_of_the_transformers_width(folder: Path) -> None:
    expected, _, _, _ = load(folder, **WITHOUT_T5).encode_prompt(
        "a red dog", None, None, do_classifier_free_guidance=False, max_sequence_length=MAX_TOKENS
    )
    pipeline = load(folder, **WITHOUT_T5, transformer=None, vae=None)
    (found,) = FAMILY.encode(pipeline, ["a red dog"], MAX_TOKENS)
    assert found["prompt_embeds"].equal(expected[0])
    assert not found["prompt_embeds"][-MAX_TOKENS:].any()
    assert found["prompt_embeds"][:-MAX_TOKENS].any()


def test_clip_counts_only_without_t5(folder: Path) -> None:
    (t5,) = FAMILY.readers(load(folder), 300)
    assert (t5.name, t5.limit) == ("tokenizer_3", 300)
    clips = FAMILY.readers(load(folder, **WITHOUT_T5), 300)
    assert [(clip.name, clip.limit) for clip in clips] == [("tokenizer", 12), ("tokenizer_2", 12)]


@pytest.mark.parametrize("is_dynamic", [False, True])
def test_timesteps_are_those_of_the_stock_call(folder: Path, is_dynamic: bool) -> None:
    pipeline = load(folder)
    pipeline.scheduler = FlowMatchEulerDiscreteScheduler(
        shift=3.0, use_dynamic_shifting=is_dynamic, base_shift=0.2, max_shift=40.0
    )
    pipeline("a dog", height=32, width=24, num_inference_steps=3, output_type="latent")
    stock = pipeline.scheduler.timesteps
    scheduler = FlowMatchEulerDiscreteScheduler.from_config(pipeline.scheduler.config)
    FAMILY.set_timesteps(scheduler, 3, FAMILY.latent_shape(pipeline, Size(32, 24)))
    assert scheduler.timesteps.equal(stock)


def test_blocks_that_attend_twice_are_counted_anew(folder: Path) -> None:
    config = {"num_layers": 6, "dual_attention_layers": (0, 1, 2)}
    assert FAMILY.kept_config(config, (0, 2, 4, 5)) == {"dual_attention_layers": [0, 1]}
    with pytest.raises(ValueError, match="last block, 5"):
        FAMILY.kept_config(config, (0, 2, 4))


def test_an_image_beyond_the_known_positions_is_refused(folder: Path) -> None:
    pipeline = load(folder)
    largest = (
        2 * 2 * SD3Transformer2DModel.load_config(folder / "transformer")["pos_embed_max_size"]
    )
    assert FAMILY.latent_shape(pipeline, Size(largest, 32))
    with pytest.raises(ValueError, match=f"end at {largest}; use at most {largest}"):
        FAMILY.latent_shape(pipeline, Size(largest + 4, 32))
    with torch.no_grad(), pytest.raises(ValueError, match="cannot be greater"):
        pipeline("a dog", height=largest + 4, width=32, num_inference_steps=1)
