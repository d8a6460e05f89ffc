"""Gradient checkpointing and compiling: the same training within rounding, alone and together."""

import pytest
import torch
from diffusers import UNet2DConditionModel
from safetensors.torch import load_file

from distillery.training import parallel
from in_process import WEIGHTS, log_of, train
from training_phases import phases


@pytest.fixture(scope="module")
def plain(data, tmp_path_factory):
    folder = tmp_path_factory.mktemp("plain")
    assert train(data, folder) == 0
    return folder


SMALL = {"phases": phases(stored=32), "global_batch_size": 4}
"""A short training: the compiler takes far longer than the updates."""


@pytest.fixture(scope="module")
def small(data, tmp_path_factory):
    folder = tmp_path_factory.mktemp("small")
    assert train(data, folder, **SMALL) == 0
    return folder


def assert_same_weights(ours, theirs):
    left, right = load_file(ours / WEIGHTS), load_file(theirs / WEIGHTS)
    assert left.keys() == right.keys()
    for name in right:
        torch.testing.assert_close(left[name], right[name], rtol=1e-5, atol=1e-5)


@pytest.fixture
def backend():
    """That of the compiler; others see no kernels."""
    return "aot_eager"


@pytest.fixture
def calls(monkeypatch, backend):
    """What is compiled, and how often a block is computed in it."""
    compiled = []
    original = torch.compile

    def note(function, **options):
        compiled.append(type(function.__self__).__name__)
        return original(function, **{"backend": backend} | options)

    monkeypatch.setattr(parallel.torch, "compile", note)
    yield compiled
    torch._dynamo.reset()


def test_blocks_are_computed_again(data, plain, tmp_path, monkeypatch):
    from diffusers.models.transformers.transformer_wan import WanTransformerBlock

    passes = []
    forward = WanTransformerBlock.forward

    def count(self, *arguments, **options):
        if torch.is_grad_enabled():
            passes.append(1)
        return forward(self, *arguments, **options)

    monkeypatch.setattr(WanTransformerBlock, "forward", count)
    assert train(data, tmp_path / "off", gradient_checkpointing=False) == 0
    once = len(passes)
    assert train(data, tmp_path / "on", gradient_checkpointing=True) == 0
    assert len(passes) - once == 2 * once == 2 * 8 * 2
    assert_same_weights(tmp_path / "on", plain)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("gradient_checkpointing", "backend"), [(False, "inductor"), (True, "aot_eager")]
)
def test_a_compiled_student_learns_the_same(data, small, tmp_path, calls, gradient_checkpointing):
    settings = {"compile": "always", "gradient_checkpointing": gradient_checkpointing}
    assert train(data, tmp_path, **SMALL, **settings) == 0
    assert calls == ["WanTransformerBlock"] * 2
    assert_same_weights(tmp_path, small)


def test_nothing_is_compiled_on_a_cpu_unless_asked(data, plain, tmp_path, calls):
    assert train(data, tmp_path, compile="auto") == 0
    assert calls == []
    assert "compile: False (no GPU)" in log_of(tmp_path)


def test_a_unet_is_compiled_by_its_blocks_of_both_kinds(calls, monkeypatch):
    monkeypatch.setattr(parallel.torch, "compile", keep(calls))
    unet = UNet2DConditionModel(
        block_out_channels=(8, 16),
        down_block_types=("DownBlock2D", "CrossAttnDownBlock2D"),
        up_block_types=("CrossAttnUpBlock2D", "UpBlock2D"),
        norm_num_groups=4,
        attention_head_dim=4,
        cross_attention_dim=8,
    )
    with torch._dynamo.config.patch(recompile_limit=8, optimize_ddp=True):
        parallel.compile_student(unet)
        assert torch._dynamo.config.recompile_limit > 8
        assert not torch._dynamo.config.optimize_ddp, "it refuses gradient checkpointing"
    expected = {"BasicTransformerBlock", "ResnetBlock2D"}
    assert set(calls) == expected
    assert len(calls) == len([it for it in unet.modules() if type(it).__name__ in expected])


def keep(compiled):
    """Note what would be compiled."""

    def note(function, **_):
        compiled.append(type(function.__self__).__name__)
        return function

    return note
