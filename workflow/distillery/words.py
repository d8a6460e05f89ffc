"""Numbers, lists and times in words."""

from collections.abc import Sequence


def counted(number: int, noun: str, several: str = "") -> str:
    """A number with its noun: 1 prompt, 12 prompts; 2 batches, where `several` says so."""
    return f"{number:,} {noun if number == 1 else several or noun + 's'}"


def noun_of(num_frames: int) -> str:
    """What a sample of so many frames is called."""
    return "clip" if num_frames > 1 else "image"


def listed(texts: Sequence[str]) -> str:
    """As "a, b and c"."""
    return " and ".join(filter(None, [", ".join(texts[:-1]), *texts[-1:]]))


def listed_numbers(numbers: Sequence[int]) -> str:
    """Numbers in words: 8; 8 and 16; 8, 16 and 24."""
    return listed([f"{number:,}" for number in numbers])


def alternatives(numbers: Sequence[int]) -> str:
    """As "1, 2 or 4"."""
    texts = [f"{number:,}" for number in numbers]
    return " or ".join(filter(None, [", ".join(texts[:-1]), *texts[-1:]]))


def times(ratio: float, form: str, words: tuple[str, str, str]) -> str:
    """A ratio in words: 2 is "2× faster", 0.5 is "2× slower", 1 is "as fast".

    Args:
        ratio: greater than 0.
        form: writes a factor, e.g. "{:.1f}×".
        words: for more than 1, for what `form` writes as 1, and for less.
    """
    above, same, below = words
    factor = form.format(max(ratio, 1 / ratio))
    if factor == form.format(1.0):
        return same
    return f"{factor} {above if ratio > 1 else below}"


def significant(value: float) -> str:
    """Three digits, zeros kept: 0.398, 0.0480, 12.5, 240."""
    return f"{value:#.3g}".rstrip(".") if abs(value) < 1000 else f"{value:.0f}"


def duration(seconds: float) -> str:
    """Seconds in words: 0.8 s, 42 s, 3 min 20 s, 5 h 12 min, 2 d 3 h."""
    if seconds < 60:
        return f"{seconds:.2g} s" if seconds < 10 else f"{seconds:.0f} s"
    large, small, size = ("d", "h", 3600)
    if seconds < 3600:
        large, small, size = ("min", "s", 1)
    elif seconds < 48 * 3600:
        large, small, size = ("h", "min", 60)
    whole, rest = divmod(round(seconds / size), 24 if large == "d" else 60)
    return f"{whole} {large}" + (f" {rest} {small}" if rest else "")
