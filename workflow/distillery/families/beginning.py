"""Let a stock call begin with another state than its noise."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any

import torch

from distillery.schedulers import with_methods


@contextmanager
def beginning(pipeline: Any, state: torch.Tensor | None) -> Iterator[None]:
    """Let calls begin with a state as it is, in their own type, and not scaled as noise is.

    Args:
        state: (b, *latent), the scheduler's own; None: they begin as they do anyway.
    """
    if state is None:
        yield
        return
    original = pipeline.prepare_latents

    @wraps(original)
    def prepare_latents(*args: Any, **kwargs: Any) -> Any:
        made = original(*args, **kwargs)
        # A copy: Kandinsky 5 writes each step's state into that of the step before.
        if isinstance(made, tuple):  # with what else of the call has its shape
            return (state.to(made[0], copy=True), *made[1:])
        return state.to(made, copy=True)

    with with_methods(pipeline, prepare_latents=prepare_latents):
        yield
