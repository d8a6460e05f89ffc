"""Prompts on their way into a stock pipeline: lengths, padding, and what families share of it."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

TEXT = ("tokenizer", "text_encoder")
"""How the names of the components begin that encode prompts."""
COUNTED_AT_ONCE = 4096
MAX_PROMPTS_NAMED = 5


@dataclass(frozen=True)
class Reader:
    """A tokenizer and how many of its tokens the pipeline keeps.

    Attributes:
        name: of the component, for messages.
        limit: tokens, with the special ones.
        clean: what the pipeline does to a prompt before.
    """

    name: str
    tokenizer: Any
    limit: int
    clean: Callable[[str], str] = str


def find_cut(reader: Reader, prompt: str) -> str | None:
    """The end of a prompt that the pipeline would cut away, or None where it reads everything."""
    ids = reader.tokenizer(reader.clean(prompt), truncation=False, verbose=False).input_ids
    if len(ids) <= reader.limit:
        return None
    num_special = reader.tokenizer.num_special_tokens_to_add()
    text_ids = reader.tokenizer(
        reader.clean(prompt), add_special_tokens=False, truncation=False, verbose=False
    ).input_ids
    return str(reader.tokenizer.decode(text_ids[reader.limit - num_special :]))


def find_long(reader: Reader, prompts: Sequence[str]) -> list[str]:
    """Prompts of more tokens than are kept.

    Tokens of many prompts are counted at once, which a tokenizer may do on several cores, and not
    of all: those of 200,000 would take hundreds of MB.
    """
    found: list[str] = []
    # Cleaning and counting a prompt takes 0.1 ms, most are far below the limit: a token stands for
    # a character or more, but for the special ones and a space that some tokenizers begin with.
    # Cleaning lengthens ASCII only by what it puts around it, and where it reads "&" as a code.
    around = len(reader.clean("").encode()) + reader.tokenizer.num_special_tokens_to_add() + 1
    short = reader.limit - around
    prompts = [it for it in prompts if len(it) > short or not it.isascii() or "&" in it]
    for start in range(0, len(prompts), COUNTED_AT_ONCE):
        batch = prompts[start : start + COUNTED_AT_ONCE]
        cleaned = [reader.clean(prompt) for prompt in batch]
        tokens = reader.tokenizer(cleaned, truncation=False, verbose=False).input_ids
        found += [text for text, ids in zip(batch, tokens, strict=True) if len(ids) > reader.limit]
    return found


def check_lengths(readers: Sequence[Reader], prompts: Sequence[str]) -> None:
    """Raise ValueError that names prompts which would be cut, and the part that would be lost."""
    long = {prompt for reader in readers for prompt in find_long(reader, prompts)}
    cuts = {
        prompt: f"{prompt[:60]!r} would lose {cut[:200]!r} (the {reader.name} reads "
        f"{reader.limit} tokens)"
        for prompt in prompts
        if prompt in long
        for reader in readers
        if (cut := find_cut(reader, prompt)) is not None
    }
    if cuts:
        shown = "\n  ".join(list(cuts.values())[:MAX_PROMPTS_NAMED])
        raise ValueError(
            f"{len(cuts)} prompts are longer than the teacher reads: shorten them, raise "
            "teacher.max_sequence_length where the model allows it, or cut them knowingly with "
            f"teacher.long_prompts: truncate:\n  {shown}"
        )


def stack(prompts: Sequence[Mapping[str, torch.Tensor]], name: str) -> torch.Tensor:
    """One named tensor of prompts of equal length: (b, l, ...)."""
    return torch.stack([prompt[name] for prompt in prompts])


def pad_with_zeros(tensors: Sequence[torch.Tensor], length: int) -> torch.Tensor:
    """Tensors of (l, ...) to (b, length, ...), zeros after each."""
    padded = tensors[0].new_zeros(len(tensors), length, *tensors[0].shape[1:])
    for row, tokens in enumerate(tensors):
        padded[row, : len(tokens)] = tokens
    return padded


def on(
    conditioning: Mapping[str, torch.Tensor], device: torch.device, dtype: torch.dtype
) -> dict[str, torch.Tensor]:
    """A batch on a device, in `dtype` where it has a floating type."""
    return {
        name: value.to(device, dtype if value.is_floating_point() else None)
        for name, value in conditioning.items()
    }
