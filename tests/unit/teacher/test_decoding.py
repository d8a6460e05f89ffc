"""Images that a VAE of lower precision spoils are decoded again in float32."""

import logging
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from distillery.config.teacher import Teacher
from distillery.families import family_named
from distillery.teacher.decoding import guard_decoding, is_spoiled, pop_decode_seconds
from distillery.teacher.folder import PipelineFolder
from distillery.teacher.loading import load_student, load_teacher
from families import sdxl
from families.made import made_teacher
from runs import CPU, loaded

OTHERS = (*family_named("sdxl").text_components, "unet")


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a tiny SDXL."""
    return made_teacher(tmp_path_factory, sdxl.CASE)


@pytest.fixture
def pipeline(tiny: Path) -> Any:
    """Its VAE alone, in float16 with a layer that overflows for strong latents."""
    found = loaded(section(tiny, "float16"), leave_out=OTHERS)
    overflowing(found.vae)
    return found


def section(folder: Path, vae_dtype: Any) -> Teacher:
    return Teacher(path=str(folder), dtype="float32", vae_dtype=vae_dtype, height=32, width=32)


def overflowing(vae: Any) -> None:
    """Scale the values before the last normalisation, which divides the scale away again."""
    original = vae.decoder.conv_norm_out.forward
    vae.decoder.conv_norm_out.forward = lambda states: original(states * states.abs().max() * 1e4)


def latents(*scales: float) -> torch.Tensor:
    noise = torch.randn(1, 4, 16, 16, generator=torch.Generator().manual_seed(0))
    return torch.cat([noise * scale for scale in scales])


def test_what_is_spoiled() -> None:
    decoded = torch.zeros(5, 3, 4, 4)
    decoded[1] = -1.0
    decoded[2, 0, 0, 0] = float("nan")
    decoded[3, 1, 2, 3] = float("inf")
    decoded[4] = -1.0
    decoded[4, 0, 0, 0] = -0.9
    assert is_spoiled(decoded).tolist() == [False, True, True, True, False]


def test_a_black_image_is_decoded_again(pipeline: Any, caplog: pytest.LogCaptureFixture) -> None:
    batch = latents(1.0, 1.0)
    stock = type(pipeline.vae).decode
    assert is_spoiled(stock(pipeline.vae, batch.half()).sample).all()
    with caplog.at_level(logging.WARNING), torch.no_grad():
        found = pipeline.vae.decode(batch.half()).sample
    assert found.isfinite().all()
    assert pipeline.vae.dtype == torch.float16
    assert "2 of 2 images were black or not finite in torch.float16" in caplog.text
    with torch.no_grad():
        exact = stock(pipeline.vae.float(), batch.half().float()).sample
    torch.testing.assert_close(found, exact.half())


def test_images_that_are_whole_stay_as_they_are(
    tiny: Path, caplog: pytest.LogCaptureFixture
) -> None:
    whole = loaded(section(tiny, "bfloat16"), leave_out=OTHERS)
    batch = latents(1.0).bfloat16()
    with torch.no_grad():
        found = whole.vae.decode(batch, return_dict=False)[0]
        assert torch.equal(found, type(whole.vae).decode(whole.vae, batch).sample)
    assert found.dtype == torch.bfloat16
    assert caplog.text == ""


def test_only_the_spoiled_image_is_replaced(pipeline: Any) -> None:
    stock = type(pipeline.vae).decode

    def spoil_second(batch: torch.Tensor, **_options: Any) -> Any:
        result = stock(pipeline.vae, batch)
        result.sample[1:2] = float("nan") if batch.dtype == torch.float16 else 0.5
        result.sample[:1] = 0.25 if batch.dtype == torch.float16 else 0.75
        return result

    del pipeline.vae.decode
    pipeline.vae.decode = spoil_second
    guard_decoding(pipeline)
    found = pipeline.vae.decode(latents(1.0, 1.0).half()).sample
    assert (found[0] == 0.25).all()
    assert (found[1] == 0.75).all()


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_latents_that_are_not_finite_pass_through(
    pipeline: Any, caplog: pytest.LogCaptureFixture, bad: float
) -> None:
    """They are the network's fault, which has a float32 repair of its own."""
    with caplog.at_level(logging.WARNING), torch.no_grad():
        found = pipeline.vae.decode(latents(bad, 1.0).half()).sample
    assert not found[0].isfinite().any()
    assert found[1].isfinite().all()
    assert "1 of 2 images were black or not finite in torch.float16" in caplog.text


@pytest.mark.parametrize("load", [load_teacher, load_student])
@pytest.mark.parametrize("vae_dtype", ["float16", "float32"])
def test_what_is_not_finite_in_float32_either_is_nan_throughout(
    tiny: Path, vae_dtype: str, load: Any
) -> None:
    """A pipeline would clamp one infinite value to white or black, and nobody would know."""
    vae = load(section(tiny, vae_dtype), PipelineFolder(tiny), CPU).vae
    decode = vae.decoder.forward
    for bad in (float("nan"), float("inf"), float("-inf")):

        def spoil(states: torch.Tensor, *_: Any, bad: float = bad) -> torch.Tensor:
            decoded: torch.Tensor = decode(states)
            decoded[-1, 0, 3, 5] = bad
            return decoded

        vae.decoder.forward = spoil
        with torch.no_grad():
            found = vae.decode(latents(1.0, 1.0)).sample
        assert found[0].isfinite().all()
        assert found[1].isnan().all()


def test_the_student_is_decoded_in_the_same_type(tiny: Path) -> None:
    found = load_student(section(tiny, "float16"), PipelineFolder(tiny), CPU)
    assert found.vae.dtype == torch.float16
    assert found.unet.dtype == torch.float32


def test_the_time_of_decoding_is_told_once(pipeline: Any) -> None:
    guard_decoding(pipeline)
    assert pop_decode_seconds(pipeline) == 0
    begin_s = time.perf_counter()
    with torch.no_grad():
        for _ in range(2):
            pipeline.vae.decode(latents(1.0).half())
    assert 0 < pop_decode_seconds(pipeline) < time.perf_counter() - begin_s
    assert pop_decode_seconds(pipeline) == 0


@pytest.mark.parametrize("return_dict", [True, False])
def test_a_vae_that_takes_no_batch_decodes_one_by_one(tiny: Path, return_dict: bool) -> None:
    """As that of HunyuanVideo 1.5, whose mask has room for one clip."""
    pipeline = loaded(section(tiny, "float32"), leave_out=OTHERS)
    whole = pipeline.vae.decode(latents(1.0, 2.0), return_dict=False)[0]
    original = pipeline.vae.decoder.forward
    asked = []

    def decode_one(states: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        asked.append(len(states))
        if len(states) > 1:
            raise RuntimeError("output with shape [2, 1] doesn't match the broadcast shape [2, 2]")
        return original(states, *args, **kwargs)  # type: ignore[no-any-return]

    pipeline.vae.decoder.forward = decode_one
    found = pipeline.vae.decode(latents(1.0, 2.0), return_dict=return_dict)
    torch.testing.assert_close(found[0], whole)
    assert asked == [2, 1, 1]
    assert isinstance(found, tuple) != return_dict


def test_what_a_vae_cannot_decode_alone_is_told(tiny: Path) -> None:
    pipeline = loaded(section(tiny, "float32"), leave_out=OTHERS)
    with pytest.raises(RuntimeError, match="to have 4 channels"):
        pipeline.vae.decode(torch.zeros(2, 3, 16, 16))
