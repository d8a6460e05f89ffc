"""Tensors of a teacher's weights by name: those that its networks lack, and those they do not read.

Diffusers and Transformers give random values to what a file lacks, and leave out what they do not
know. Both rename some tensors while they load; it is their names that are compared.
"""

from collections import OrderedDict
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from distillery.notes import Note, doubt, error
from distillery.teacher.components import unusable
from distillery.teacher.weights import CONFIG, Tensor, check_layers

SHOWN = 3
"""Tensors that a message names."""


@dataclass(frozen=True)
class Read:
    """How a network's library reads weights.

    Attributes:
        own: names of the network's tensors.
        lacking: parameters that no tensor is for.
        unread: tensors, by their names in the file, that it does not read.
        misshapen: tensor to its shapes in the file and in the network.
    """

    own: Collection[str]
    lacking: Collection[str]
    unread: Collection[str]
    misshapen: Mapping[str, tuple[tuple[int, ...], tuple[int, ...]]]


def read_by_diffusers(network: Any, tensors: Mapping[str, Tensor]) -> Read:
    """How Diffusers reads weights into a network of its own; the network is on the meta device."""
    # Old releases name the attention of a VAE otherwise.
    renamed = network._fix_state_dict_keys_on_load(OrderedDict((name, name) for name in tensors))
    own = {*network.state_dict(), *dict(network.named_buffers())}
    ignored = network._keys_to_ignore_on_load_unexpected or ()
    return Read(
        own,
        [name for name, _ in network.named_parameters() if name not in renamed],
        [
            stored
            for name, stored in renamed.items()
            if name not in own and not any(pattern in name for pattern in ignored)
        ],
        {},
    )


def read_by_transformers(model: Any, component: Path, tensors: Mapping[str, Tensor]) -> Read:
    """How Transformers reads weights into a class of its own: it is given empty ones.

    Args:
        component: folder with its config.json.
        tensors: of the weights beside it.
    """
    empty = {name: torch.empty(one.shape, device="meta") for name, one in tensors.items()}
    with unusable(component / CONFIG), _quiet():
        network, told = model.from_pretrained(
            None,
            config=model.config_class.from_pretrained(component),
            state_dict=empty,
            device_map={"": "meta"},
            ignore_mismatched_sizes=True,
            output_loading_info=True,
        )
    return Read(
        list(network.state_dict()),
        sorted(told["missing_keys"]),
        sorted(_stored(name, tensors) for name in told["unexpected_keys"]),
        {_stored(name, tensors): (tuple(a), tuple(b)) for name, a, b in told["mismatched_keys"]},
    )


@contextmanager
def _quiet() -> Iterator[None]:
    """Without Transformers' own report, which the plan's takes the place of."""
    from transformers.utils import logging

    level, has_bar = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if has_bar:
            logging.enable_progress_bar()


def _stored(name: str, tensors: Collection[str]) -> str:
    """The name in the file of what Transformers calls `name`: it may drop a prefix."""
    ends = (stored for stored in tensors if stored.endswith(f".{name}"))
    return name if name in tensors else next(ends, name)


def on_read(component: Path, read: Read) -> Iterator[Note]:
    """Weights of a network of other layers or shapes, and tensors that a network does not know."""
    _check_siblings(component, read)
    for name, (stored, own) in read.misshapen.items():
        cause = f": {name} is {list(stored)} in its weights and {list(own)} by its {CONFIG}"
        yield error(f"{component} is damaged", cause, "copy or download it again")
        return
    if read.lacking:
        yield error(
            f"{component} is damaged",
            f": its weights lack {len(read.lacking)} tensors that its {CONFIG} asks for, such as "
            f"{named(read.lacking)}",
            "copy or download it again",
        )
    elif read.unread:
        yield doubt(
            str(component),
            f": its weights have {len(read.unread)} tensors that the network of its {CONFIG} does "
            f"not know and leaves out, such as {named(read.unread)}",
            "if they matter, copy or download it again, or use the library that knows them",
        )


def _check_siblings(component: Path, read: Read) -> None:
    """Raise ValueError for numbered layers beyond those of a list that the network has.

    A list of which it has none is of a larger model, as the decoder beside a T5's encoder.
    """
    lists = {part for name in read.own for part in _lists(name)}
    surplus = [
        name
        for name in read.unread
        # The file may put a prefix before the network's own names.
        if any(part == own or part.endswith(f".{own}") for part in _lists(name) for own in lists)
    ]
    check_layers(component, read.own, surplus)


def _lists(name: str) -> Iterator[str]:
    """The lists that a tensor is in: "blocks" of "blocks.3.norm.weight"."""
    parts = name.split(".")
    yield from (".".join(parts[:place]) for place, part in enumerate(parts) if part.isdigit())


def named(names: Collection[str]) -> str:
    """The first of some tensors, for a message."""
    return ", ".join(sorted(names)[:SHOWN])
