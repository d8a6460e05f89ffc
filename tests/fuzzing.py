"""Random inputs: each fuzz test takes one seed a case, and `FUZZ_CASES` asks for more of them.

FUZZ_CASES=5000 python -m pytest tests/fuzz
"""

import os


def seeds(default: int) -> range:
    """The seeds of one fuzz: `default` of them, or as many as the environment asks for."""
    return range(int(os.environ.get("FUZZ_CASES", default)))
