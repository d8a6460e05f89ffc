"""Which blocks of the teacher a student keeps, and how a row of equal blocks is thinned out."""

from collections.abc import Collection, Mapping

import torch

from distillery.config.student import LayersRule, Student
from distillery.families import Family
from distillery.families.protocol import Denoiser


def choose_layers(num_layers: int, num_kept: int, rule: LayersRule) -> tuple[int, ...]:
    """The indices, ascending, of the layers that a rule keeps.

    even: index i of k is `i (n - 1) / (k - 1)`, rounded half up; the first and the last are always
    kept, and k = 1 keeps the first. ends: the greater half from the beginning, the rest from the
    end.

    Args:
        num_layers: n, how many there are.
        num_kept: k, from 1 to n.
        rule: which.
    """
    assert 1 <= num_kept <= num_layers, "the caller says which key asked for it"
    match rule:
        case "even":
            gaps = max(1, num_kept - 1)
            return tuple((2 * i * (num_layers - 1) + gaps) // (2 * gaps) for i in range(num_kept))
        case "first":
            return tuple(range(num_kept))
        case "last":
            return tuple(range(num_layers - num_kept, num_layers))
        case "ends":
            first = -(-num_kept // 2)
            return (*range(first), *range(num_layers - num_kept + first, num_layers))


def resolve_layers(student: Student, denoiser: Denoiser, family: Family) -> tuple[int, ...]:
    """The blocks of a transformer that a configuration keeps, counted in the order they run.

    Raises:
        ValueError: the network is no row of equal blocks, or lacks a block that is asked for.
    """
    if not family.blocks:
        raise ValueError(
            f"student.{'layers' if student.layers else 'num_layers'} is given, but the denoiser of "
            f"{family.name} is no row of equal blocks: say in student.unet what is kept"
        )
    rows = [denoiser.get_submodule(name) for name in family.blocks]
    num_blocks = sum(len(list(row.children())) for row in rows)
    if student.layers is None:
        return _resolve_rule(student, num_blocks, _whose(student, family))
    unknown = [layer for layer in student.layers if layer >= num_blocks]
    if unknown:
        raise ValueError(
            f"student.layers lists {', '.join(map(str, unknown))}: {_whose(student, family)} has "
            f"{num_blocks} blocks, so use indices from 0 to {num_blocks - 1}"
        )
    return student.layers


def _resolve_rule(student: Student, num_blocks: int, whose: str) -> tuple[int, ...]:
    """The blocks that `num_layers` and `layers_rule` choose."""
    assert student.num_layers is not None, "checked by the configuration"
    if student.num_layers > num_blocks:
        raise ValueError(
            f"student.num_layers is {student.num_layers}: {whose} has {num_blocks} blocks; "
            f"use 1 to {num_blocks}"
        )
    return choose_layers(num_blocks, student.num_layers, student.layers_rule)


def _whose(student: Student, family: Family) -> str:
    """The network that blocks are kept of."""
    if student.start_from is not None:
        return f"the student in {student.start_from}"
    return f"the teacher's {family.denoisers[0]}"


@torch.no_grad()
def average_dropped(denoiser: Denoiser, family: Family, layers: Collection[int]) -> None:
    """Make each kept block the mean of itself and of the dropped blocks that are nearest to it, in
    place; of two as near, the earlier one takes them.

    Dropped blocks of another shape, and those of a row that loses all, are left out. As the "local
    weight averaging" of Amber-Image (Yang et al. 2026, arXiv:2602.17047).
    """
    first = 0
    for row in family.blocks:
        blocks = list(denoiser.get_submodule(row).children())
        kept = [index for index in range(len(blocks)) if first + index in layers]
        first += len(blocks)
        groups = [[dict(blocks[index].named_parameters())] for index in kept]
        for index in range(len(blocks)) if kept else ():
            if index not in kept:
                distances = [abs(index - each) for each in kept]
                nearest = distances.index(min(distances))
                groups[nearest].append(dict(blocks[index].named_parameters()))
        for target, *dropped in groups:
            alike = [block for block in dropped if _shapes(block) == _shapes(target)]
            for name, parameter in target.items():
                values = (parameter, *(block[name] for block in alike))
                parameter.copy_(torch.stack(values).mean(dim=0))


def _shapes(block: Mapping[str, torch.Tensor]) -> dict[str, torch.Size]:
    return {name: value.shape for name, value in block.items()}


def keep_blocks(denoiser: Denoiser, family: Family, layers: Collection[int]) -> None:
    """Keep the given blocks of a denoiser, in place; blocks are counted in the order they run."""
    changes = dict(family.kept_config(denoiser.config, sorted(layers)))  # type: ignore[arg-type]
    first = 0
    for name, key in family.blocks.items():
        blocks = list(denoiser.get_submodule(name).children())
        kept = [block for index, block in enumerate(blocks, first) if index in layers]
        first += len(blocks)
        setattr(denoiser, name, torch.nn.ModuleList(kept))
        changes[key] = len(kept)
    denoiser.register_to_config(**changes)  # type: ignore[operator]
