"""Random inputs: each fuzz test takes one seed a case; the variable `FUZZ_CASES` asks for more."""

import os


def seeds(default: int) -> range:
    """The seeds of one fuzz: `default` of them, or as many as the environment asks for."""
    return range(int(os.environ.get("FUZZ_CASES", default)))
