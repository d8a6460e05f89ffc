"""Which blocks of the teacher a student keeps, and how a row of equal blocks is thinned out."""

from collections.abc import Collection, Iterable, Mapping

import torch
from diffusers import UNet2DConditionModel

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


def blocks_of(denoiser: Denoiser) -> dict[str, str]:
    """A network's lists of repeated blocks, in the order they run, to the keys of its configuration
    that count them.

    A key counts the blocks of a list if a network made with one more has one block more there, and
    all else in the same shapes. A list whose key changes more, as Chroma's, is left out.
    """
    lengths, beside = _rows(denoiser), _beside_rows(denoiser)
    found = {}
    for key, value in denoiser.config.items():  # type: ignore[operator, union-attr]
        if type(value) is not int or value not in lengths.values():
            continue
        longer = _made(denoiser, {key: value + 1})
        if longer is None or _beside_rows(longer) != beside:
            continue
        grown = [name for name, length in _rows(longer).items() if length != lengths[name]]
        if [_rows(longer)[name] for name in grown] == [value + 1]:
            found[grown[0]] = key
    return {name: found[name] for name in lengths if name in found}


def _rows(denoiser: Denoiser) -> dict[str, int]:
    """The network's own lists, and how long they are."""
    lists = denoiser.named_children()
    return {name: len(it) for name, it in lists if isinstance(it, torch.nn.ModuleList)}


def _beside_rows(denoiser: Denoiser) -> dict[str, torch.Size]:
    """The shapes of all that is in no list."""
    rows = _rows(denoiser)
    shapes = {
        **_shapes(dict(denoiser.named_parameters())),
        **_shapes(dict(denoiser.named_buffers())),
    }
    return {name: shape for name, shape in shapes.items() if name.partition(".")[0] not in rows}


def _made(denoiser: Denoiser, changes: Mapping[str, object]) -> Denoiser | None:
    """A network without weights of a changed configuration; None where its class takes no such."""
    try:
        with torch.device("meta"):
            made: Denoiser = type(denoiser).from_config({**denoiser.config, **changes})  # type: ignore
    except Exception:  # whatever a class raises for a key that counts no blocks
        return None
    return made


def resolve_layers(
    student: Student, denoiser: Denoiser, family: Family, blocks: Mapping[str, str]
) -> tuple[int, ...]:
    """The blocks of a transformer that a configuration keeps, counted in the order they run.

    Args:
        blocks: as `blocks_of` gives them.

    Raises:
        ValueError: the network is no row of equal blocks, or lacks a block that is asked for.
    """
    if not blocks:
        raise ValueError(
            f"student.{'layers' if student.layers else 'num_layers'} is given, but a "
            f"{type(denoiser).__name__} is no row of equal blocks that one key of its "
            "configuration counts: "
            + (
                "say in student.unet what is kept"
                if isinstance(denoiser, UNet2DConditionModel)
                else "use another student.init"
            )
        )
    lengths = _rows(denoiser)
    num_blocks = sum(lengths[name] for name in blocks)
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
def average_dropped(denoiser: Denoiser, rows: Iterable[str], layers: Collection[int]) -> None:
    """Make each kept block the mean of itself and of the dropped blocks that are nearest to it, in
    place; of two as near, the earlier one takes them.

    Dropped blocks of another shape, and those of a row that loses all, are left out. As the "local
    weight averaging" of Amber-Image (Yang et al. 2026, arXiv:2602.17047).
    """
    first = 0
    for row in rows:
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


def keep_blocks(
    denoiser: Denoiser, family: Family, blocks: Mapping[str, str], layers: Collection[int]
) -> None:
    """Keep the given blocks of a denoiser, in place; blocks are counted in the order they run.

    Raises ValueError where a block would come to a place that has another shape.
    """
    changes = dict(family.kept_config(denoiser.config, sorted(layers)))  # type: ignore[arg-type]
    first = 0
    sources: dict[str, int] = {}
    for name, key in blocks.items():
        row = list(denoiser.get_submodule(name).children())
        kept = [index for index in range(len(row)) if first + index in layers]
        sources |= {f"{name}.{place}": first + index for place, index in enumerate(kept)}
        first += len(row)
        setattr(denoiser, name, torch.nn.ModuleList(row[index] for index in kept))
        changes[key] = len(kept)
    _check_shapes(denoiser, changes, sources)
    denoiser.register_to_config(**changes)  # type: ignore[operator]


def _check_shapes(
    denoiser: Denoiser, changes: Mapping[str, object], sources: Mapping[str, int]
) -> None:
    """Raise ValueError where a network of the changed configuration has other weights."""
    smaller = _made(denoiser, changes)
    if smaller is None:
        raise ValueError(
            f"student.layers keeps {len(sources)} blocks, and Diffusers makes no "
            f"{type(denoiser).__name__} with {dict(changes)}: keep more"
        )
    for place, source in sources.items():
        ours, theirs = (
            _shapes(dict(it.get_submodule(place).named_parameters())) for it in (denoiser, smaller)
        )
        if ours != theirs:
            raise ValueError(
                f"student.layers brings block {source} to {place}, where this network has one of "
                "another shape: its blocks are not all of a kind, so choose others"
            )
