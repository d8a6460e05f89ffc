"""The list of mutants that no test can tell from the code, each with the reason."""

from pathlib import Path

from mutation.find import Mutant

LIST = Path(__file__).parent / "equivalent_mutants.txt"


def read(path: Path = LIST) -> dict[tuple[str, str, str], str]:
    """The reasons, by module, function and marked line: blocks of three lines.

    Raises ValueError: a block has no reason.
    """
    reasons = {}
    lines = [line for line in path.read_text("utf-8").splitlines() if not line.startswith("#")]
    for block in "\n".join(lines).strip().split("\n\n"):
        place, text, *reason = block.strip().splitlines()
        module, _, function = place.partition(" ")
        if not reason:
            raise ValueError(f"{path.name}: {place}: say in a third line why it is equivalent")
        reasons[module, function, text.strip()] = " ".join(map(str.strip, reason))
    return reasons


def write(mutant: Mutant) -> str:
    """The first two lines of a mutant's block."""
    return f"{mutant.module} {mutant.function}\n    {mutant.text}"
