"""What a network spoils in its own type is made again in float32, with the same weights."""

import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from distillery.config.section import Dtype
from distillery.config.teacher import Teacher
from distillery.families.protocol import Denoiser
from distillery.teacher.rounding import can_be_in_float32, in_float32
from families import sdxl
from runs import loaded, make_run
from tiny import HEIGHT, WIDTH

LATENTS = "samples/teacher/*/*.safetensors"


def spoil(network: Path, layer: str) -> None:
    """Outputs beyond float16's largest number: infinite there, numbers in float32."""
    path = network / "diffusion_pytorch_model.safetensors"
    weights = load_file(path)
    weights[f"{layer}.weight"] *= 1e4
    weights[f"{layer}.bias"] += 6e4
    save_file(weights, path, {"format": "pt"})


@pytest.mark.parametrize("vae_dtype", ["float32", "bfloat16"])
def test_an_image_that_overflows_is_made_again_in_float32(
    teacher: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture, vae_dtype: Dtype
) -> None:
    folder = tmp_path / "teacher"
    shutil.copytree(teacher, folder)
    spoil(folder / "transformer", "proj_out")
    run = make_run(tmp_path, folder, teacher={"dtype": "float16", "vae_dtype": vae_dtype})
    run.encode("eval")
    run.samples()
    assert len(run.images()) == 10
    assert "black or not finite, made again in float32: p000/0, p001/0" in caplog.text
    assert all(load_file(path)["latents"].isfinite().all() for path in run.folder.glob(LATENTS))


def test_so_are_the_states_of_a_pipeline_that_holds_them_in_the_networks_type(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """SDXL's; what is made again equals what a run in float32 makes of the same weights."""
    latents = {}
    for dtype in ("float16", "float32"):
        sdxl.make(tmp_path / dtype / "teacher")
        network = tmp_path / dtype / "teacher/unet"
        spoil(network, "conv_out")
        round_weights(network / "diffusion_pytorch_model.safetensors")
        case = {"height": sdxl.CASE.height, "width": sdxl.CASE.width, "max_sequence_length": 12}
        run = make_run(
            tmp_path / dtype,
            tmp_path / dtype / "teacher",
            teacher=case | {"dtype": dtype, "negative_prompt": None},
        )
        run.encode("eval")
        run.samples()
        (path, *_) = sorted(run.folder.glob(LATENTS))
        latents[dtype] = load_file(path)["latents"]
    assert "made again in float32: p000/0, p001/0" in caplog.text
    # Prompts are encoded in float16 and in float32.
    torch.testing.assert_close(latents["float16"], latents["float32"], rtol=1e-2, atol=1.0)


def round_weights(path: Path) -> None:
    """Let float32 weights be such that float16 has, as far as it reaches."""
    weights = {name: value.half().float() for name, value in load_file(path).items()}
    save_file(weights, path, {"format": "pt"})


def network_in(folder: Path, dtype: Dtype) -> Denoiser:
    section = Teacher(path=str(folder), dtype=dtype, height=HEIGHT, width=WIDTH)
    network: Denoiser = loaded(section).transformer
    return network


def test_weights_come_back_from_float32_bit_for_bit(teacher: Path) -> None:
    network = network_in(teacher, "bfloat16")
    before = {name: value.clone() for name, value in network.state_dict().items()}
    assert can_be_in_float32(network)
    with in_float32(network):
        assert all(value.dtype == torch.float32 for value in network.state_dict().values())
    for name, value in network.state_dict().items():
        assert value.dtype == before[name].dtype
        assert value.equal(before[name])
    assert not can_be_in_float32(network_in(teacher, "float32"))
