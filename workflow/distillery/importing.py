"""Large libraries are imported without Python's garbage collector.

It looks through a million new objects, and does so again and again while a job loads and works; all
of them stay. For a pipeline of Diffusers that is 3 of 10 s of a core.
"""

import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any


@contextmanager
def importing() -> Iterator[None]:
    """The collector rests, and never looks at what is there after an import.

    For imports alone: weights that are loaded leave cycles, which it has to free.
    """
    was_enabled, num_modules = gc.isenabled(), len(sys.modules)
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            if len(sys.modules) > num_modules:
                gc.freeze()
            gc.enable()


def imported(module: str, name: str) -> Any:
    """What a module has under a name, which Diffusers and Transformers import when it is asked for.

    Raises AttributeError where it has no such name.
    """
    with importing():
        return getattr(import_module(module), name)
