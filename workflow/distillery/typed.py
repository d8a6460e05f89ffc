"""What a person typed, and commands for the folder where that person is."""

import argparse
import os
import shlex
from pathlib import Path

COMMAND = "DISTILLERY_COMMAND"
"""Environment variable: the command line that a person typed, for the report and for advice."""


def typed_options() -> list[str]:
    """--snakefile and --directory, as far as they were given."""
    options = ("--snakefile", "--directory")
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    for option in options:
        parser.add_argument(option, option[1:3])
    given, _ = parser.parse_known_args(shlex.split(os.environ.get(COMMAND, "")))
    values = {option: getattr(given, option[2:]) for option in options}
    return [word for option, value in values.items() if value for word in (option, value)]


def command(*words: str | Path) -> str:
    """A shell command of words and of paths below the folder of the workflow.

    With --directory the person is in another one, so paths are absolute.
    """
    is_elsewhere = "--directory" in typed_options()
    return shlex.join(
        str(word.absolute() if is_elsewhere and isinstance(word, Path) else word) for word in words
    )
