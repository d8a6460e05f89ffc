"""A smaller UNet: fewer pairs of ResNet and attention, fewer transformer layers, no mid block.

The result is a plain Diffusers UNet2DConditionModel, whose config.json says what is left. A down
stage of n pairs hands n states and its input to its up stage of n + 1 pairs, which takes them in
reverse: up pair j takes the state of down pair n - 1 - j, and the last one the stage's input.
"""

from collections.abc import Sequence

import torch
from diffusers import UNet2DConditionModel
from diffusers.models.unets.unet_2d_blocks import UNetMidBlock2D

from distillery.config.student import LayersRule, Unet
from distillery.student.layers import choose_layers

Depths = int | tuple[int, ...]
"""Transformer layers of a stage: at most so many of each pair, or a number for each of them."""
DOWN = "student.unet.transformer_layers_per_block"
UP = "student.unet.reverse_transformer_layers_per_block"


def shrink_unet(unet: UNet2DConditionModel, keep: Unet, rule: LayersRule) -> None:
    """Drop what is not kept, in place; what is kept has the teacher's weights.

    Args:
        unet: of the teacher, on any device.
        rule: which transformer layers are kept.

    Raises:
        ValueError: a stage or a transformer with less than shall be kept, or numbers for another
            number of stages.
    """
    num_pairs = _pairs_of_stages(unet, keep)
    for stage, kept in enumerate(num_pairs):
        down, up = unet.down_blocks[stage], unet.up_blocks[-1 - stage]
        num_before = len(down.resnets)
        _keep_pairs(down, down_pairs(num_before, kept))
        _keep_pairs(up, up_pairs(num_before, kept))
    if keep.mid_block != "keep":
        unet.mid_block = _smaller_mid_block(unet) if keep.mid_block == "resnet" else None
    if keep.transformer_layers_per_block is not None:
        _thin_transformers(unet, keep, rule)
    unet.register_to_config(**_config_of(unet))


def down_pairs(num_pairs: int, num_kept: int) -> tuple[int, ...]:
    """The pairs that a down stage keeps: the first, which changes the channels, and others evenly.

    Of two pairs kept as one it is the first, as in BK-SDM (Kim et al. 2023, arXiv:2305.15798,
    section 3.1).
    """
    return choose_layers(num_pairs, num_kept, "even")


def up_pairs(num_pairs: int, num_kept: int) -> tuple[int, ...]:
    """The pairs that an up stage keeps, the counterpart of a down stage of `num_pairs`.

    The last takes the stage's input, the first the channels from below; the others are those that
    take the kept states of the down stage. Of three pairs kept as two these are the first and the
    third, as in BK-SDM.
    """
    answering = {num_pairs - 1 - pair for pair in down_pairs(num_pairs, num_kept)}
    return (0, num_pairs) if num_kept == 1 else (*sorted(answering), num_pairs)


def _pairs_of_stages(unet: UNet2DConditionModel, keep: Unet) -> tuple[int, ...]:
    """How many pairs each down stage keeps."""
    present = [len(stage.resnets) for stage in unet.down_blocks]
    wanted = keep.layers_per_block
    if wanted is None:
        return tuple(present)
    if isinstance(wanted, int):
        wanted = (wanted,) * len(present)
    if len(wanted) != len(present) or any(
        more > there for more, there in zip(wanted, present, strict=True)
    ):
        raise ValueError(
            f"student.unet.layers_per_block is {list(wanted)}: the teacher's down stages have "
            f"{present} pairs; give one number for each stage, or one for all, up to these"
        )
    return wanted


def _keep_pairs(stage: torch.nn.Module, pairs: Sequence[int]) -> None:
    """Keep some pairs of a stage; stages without attention have only ResNets."""
    for name in ("resnets", "attentions"):
        blocks = getattr(stage, name, None)
        if blocks is not None:
            setattr(stage, name, torch.nn.ModuleList([blocks[pair] for pair in pairs]))


def _smaller_mid_block(unet: UNet2DConditionModel) -> UNetMidBlock2D:
    """Only the mid block's first ResNet."""
    if unet.mid_block is None:
        raise ValueError(
            "student.unet.mid_block is 'resnet': the teacher's unet has no mid block; leave it out"
        )
    first = unet.mid_block.resnets[0]
    with torch.device("meta"):
        block = UNetMidBlock2D(
            in_channels=first.in_channels,
            temb_channels=first.time_emb_proj.in_features,
            num_layers=0,
            resnet_groups=first.norm1.num_groups,
            add_attention=False,
        )
    block.resnets = torch.nn.ModuleList([first])
    return block


def _thin_transformers(unet: UNet2DConditionModel, keep: Unet, rule: LayersRule) -> None:
    """Keep some layers of each transformer."""
    down = keep.transformer_layers_per_block
    assert down is not None, "the caller looks"
    num_stages = len(unet.down_blocks)
    of_down: tuple[Depths, ...] = (down,) * num_stages if isinstance(down, int) else down
    of_up: tuple[Depths, ...] = keep.reverse_transformer_layers_per_block or of_down[::-1]
    for key, stages, each in ((DOWN, unet.down_blocks, of_down), (UP, unet.up_blocks, of_up)):
        if len(each) != num_stages:
            raise ValueError(
                f"{key} has {len(each)} entries: give one for each of {num_stages} stages"
            )
        for stage, depths in zip(stages, each, strict=True):
            _thin_stage(stage, depths, rule, key)
    last = of_down[-1]
    if unet.mid_block is not None:
        _thin_stage(unet.mid_block, last[0] if isinstance(last, tuple) else last, rule, DOWN)


def _thin_stage(stage: torch.nn.Module, depths: Depths, rule: LayersRule, key: str) -> None:
    """Keep some layers of a stage's transformers; a stage without attention is left alone."""
    attentions = getattr(stage, "attentions", None) or ()
    if isinstance(depths, tuple) and len(depths) != len(attentions):
        raise ValueError(
            f"{key} has the list {list(depths)} for a stage of {len(attentions)} transformers: "
            "give as many numbers, or one for all"
        )
    each = depths if isinstance(depths, tuple) else (depths,) * len(attentions)
    for attention, depth in zip(attentions, each, strict=True):
        layers = attention.transformer_blocks
        wanted = min(depth, len(layers))
        if isinstance(depths, tuple) and depth > wanted:
            raise ValueError(
                f"{key} has the list {list(depths)}: one of these transformers has {wanted} "
                f"layers; use 1 to {wanted} there"
            )
        chosen = choose_layers(len(layers), wanted, rule)
        attention.transformer_blocks = torch.nn.ModuleList([layers[index] for index in chosen])


def _config_of(unet: UNet2DConditionModel) -> dict[str, object]:
    """The entries of config.json that say what is left, as plain Diffusers reads them."""
    mid = unet.mid_block
    down = [_depths_of(stage) for stage in unet.down_blocks]
    up = [_depths_of(stage) for stage in unet.up_blocks]
    if mid is not None and getattr(mid, "attentions", None):
        depth = len(mid.attentions[0].transformer_blocks)
        # Diffusers gives the mid block the first number of the last stage.
        if isinstance(down[-1], int):
            down[-1] = depth
    return {
        "layers_per_block": [len(stage.resnets) for stage in unet.down_blocks],
        "transformer_layers_per_block": down,
        "reverse_transformer_layers_per_block": up,
        "mid_block_type": None if mid is None else type(mid).__name__,
    }


def _depths_of(stage: torch.nn.Module) -> int | list[int]:
    """Transformer layers of each pair; 1, which nothing reads, for a stage without attention."""
    attentions = getattr(stage, "attentions", None)
    return [len(attention.transformer_blocks) for attention in attentions] if attentions else 1
