"""The speed benchmark runs the real stages; here at a size where that takes seconds."""

from dataclasses import replace
from pathlib import Path

import generation
import pytest
from models import KL, MODELS, SDXL
from precision import measure_precision

NAME, CLASS, RELEASED = SDXL.denoiser
TINY = replace(
    SDXL,
    denoiser=(
        NAME,
        CLASS,
        RELEASED
        | {
            "block_out_channels": [32, 64, 64],
            "transformer_layers_per_block": [1, 1, 1],
            "attention_head_dim": [2, 2, 2],
            "cross_attention_dim": 64,
            "projection_class_embeddings_input_dim": 6 * 256 + 32,
        },
    ),
    vae=("AutoencoderKL", KL | {"block_out_channels": [32] * 4, "latent_channels": 4}),
    height=64,
    width=64,
    steps=4,
    batch_size=2,
    prompt={"prompt_embeds": (77, 64), "pooled": (1, 32)},
)


@pytest.mark.slow
def test_the_stages_are_measured(tmp_path: Path) -> None:
    generation.make_teacher(TINY, tmp_path / "teacher")
    generation.write_run(TINY, tmp_path, 6, 2, "bfloat16")
    for stage in ("targets", "samples"):
        found = generation.run_stage(tmp_path, stage, 1, "never", 6)
        assert found["images_per_s_per_gpu"] > 0
        assert 0 < found["busy_share"] <= 1
        assert found["begins_after_s"][0] < found["seconds"]
    precision = measure_precision(TINY, tmp_path)
    assert all(0 < error < 0.1 for error in precision["error_to_float32"]["stock"])
    assert all(ratio == pytest.approx(1.0) for ratio in precision["ours_to_stock"])


@pytest.mark.parametrize("name", MODELS)
def test_the_released_configurations_are_known_to_diffusers(name: str) -> None:
    import diffusers
    import torch

    model = MODELS[name]
    with torch.device("meta"):
        network = getattr(diffusers, model.denoiser[1]).from_config(model.denoiser[2])
    billions = sum(parameter.numel() for parameter in network.parameters()) / 1e9
    assert billions == pytest.approx({"sdxl": 2.57, "wan": 14.3, "flux": 11.9}[name], rel=0.02)
