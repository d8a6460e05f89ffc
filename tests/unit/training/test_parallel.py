"""What a sharded student computes with, in a group of one process."""

import pytest
import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor

from distillery.training import parallel
from distillery.training.distributed import RankInfo
from tiny import LATENT_SHAPE, TEXT_FEATURES, tiny_transformer

CPU = torch.device("cpu")


@pytest.fixture
def group():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def forward(denoiser, timestep):
    batch = len(timestep)
    return denoiser(
        hidden_states=torch.randn(batch, *LATENT_SHAPE),
        timestep=timestep,
        encoder_hidden_states=torch.randn(batch, 3, TEXT_FEATURES),
        return_dict=False,
    )[0]


def test_weights_are_gathered_in_bfloat16_and_a_timestep_keeps_its_digits(group):
    denoiser = tiny_transformer()
    parallel.shard(denoiser, RankInfo(), CPU, torch.bfloat16)
    seen = {}

    def look(module, arguments):
        seen["timestep"] = arguments[0]

    denoiser.condition_embedder.register_forward_pre_hook(look)
    denoiser.blocks[0].register_forward_pre_hook(
        lambda module, _: seen.update(weight=module.attn1.to_q.weight.dtype)
    )
    timestep = torch.tensor([999.0, 37.25])
    with torch.autocast("cpu", torch.bfloat16):
        forward(denoiser, timestep).sum().backward()
    assert torch.equal(seen["timestep"], timestep)
    assert seen["weight"] == torch.bfloat16
    for parameter in denoiser.parameters():
        assert isinstance(parameter, DTensor)
        assert parameter.dtype == torch.float32
        assert parameter.grad.dtype == torch.float32


def test_a_forward_pass_alone_leaves_no_gathered_weights_behind(group):
    """The next update would make them old, and a pass after it would compute with them."""
    denoiser = tiny_transformer()
    parallel.shard(denoiser, RankInfo(), CPU, torch.float32)
    with torch.no_grad():
        forward(denoiser, torch.tensor([500.0]))
    assert all(isinstance(parameter, DTensor) for parameter in denoiser.parameters())


def test_values_go_in_and_come_out_whole(group):
    denoiser = tiny_transformer()
    wanted = {name: value.detach().clone() for name, value in denoiser.named_parameters()}
    parallel.shard(denoiser, RankInfo(), CPU, torch.float32)
    with torch.no_grad():
        for name, parameter in denoiser.named_parameters():
            parameter.zero_()
            parallel.load_full(parameter, wanted[name])
            assert torch.equal(parallel.full_tensor(parameter), wanted[name])
            step = torch.tensor(3.0)
            assert parallel.shard_like(step, parameter) is step
            assert isinstance(parallel.shard_like(wanted[name], parameter), DTensor)
    parallel.gather_denoiser(denoiser, RankInfo())
    assert type(denoiser).__name__ == "WanTransformer3DModel"
    assert not any(isinstance(parameter, DTensor) for parameter in denoiser.parameters())
    assert all(torch.equal(denoiser.state_dict()[name], wanted[name]) for name in wanted)


def test_gradients_are_clipped_to_the_norm_that_is_set():
    """Of two parameters together: (3, 4) has the norm 5."""
    parameters = [torch.nn.Parameter(torch.zeros(1)) for _ in range(2)]
    for limit, expected in ((1.0, (0.6, 0.8)), (5.5, (3.0, 4.0)), (0.25, (0.15, 0.2))):
        for parameter, value in zip(parameters, (3.0, 4.0), strict=True):
            parameter.grad = torch.tensor([value])
        assert parallel.clip_gradients(parameters, limit) == pytest.approx(5.0)
        found = [parameter.grad.item() for parameter in parameters]
        assert found == pytest.approx(expected, rel=1e-4)


def test_what_is_not_sharded_passes_through():
    value, target = torch.ones(3), torch.zeros(3)
    assert parallel.full_tensor(value) is value
    assert parallel.shard_like(value, target) is value
    parallel.load_full(target, value)
    assert torch.equal(target, value)
    denoiser = tiny_transformer()
    assert not parallel.is_sharded(denoiser)
    assert parallel.wrap(denoiser, RankInfo(), CPU) is denoiser


def test_the_blocks_of_a_network():
    from diffusers import SD3Transformer2DModel

    assert len(parallel.blocks_of(tiny_transformer(3))) == 3
    # SD3 names its blocks only among those that must not be split.
    network = SD3Transformer2DModel(
        sample_size=4, num_layers=2, attention_head_dim=4, num_attention_heads=2,
        joint_attention_dim=8, caption_projection_dim=8, pooled_projection_dim=8,
    )  # fmt: skip
    assert [type(block).__name__ for block in parallel.blocks_of(network)] == [
        "JointTransformerBlock"
    ] * 2
