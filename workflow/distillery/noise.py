"""The identity of a sample: prompt ids, sample ids, and the noise that belongs to each.

Noise is a function of (run seed, prompt id, sample index) and of nothing else: not of the rank,
the shard, the batch or the device. It is drawn on the CPU, since a CUDA generator gives other
numbers, in the shape in which the stock pipeline draws (`families.protocol.Family.noise`). So the
same integer gives a stock pipeline the same noise:
`generator=torch.Generator().manual_seed(noise_seed)`.
"""

import hashlib
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, overload

from distillery.files import hash_json

if TYPE_CHECKING:
    import torch

PROMPT_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
RESERVED_NAMES = re.compile(
    r"manifest\.parquet|metadata\.csv|shard-\d+-of-\d+\.parquet|sheet", flags=re.IGNORECASE
)
"""Names of files beside the samples' folders; and of sheet.png beside previews, {prompt_id}.png."""
DEVICE = re.compile(r"(con|prn|aux|nul|com\d|lpt\d)(\..*)?", flags=re.IGNORECASE)
"""Names that Windows keeps for its devices, with any ending."""
MAX_ID_SHOWN = 60


@dataclass(frozen=True, order=True)
class SampleId:
    """One sample of one prompt; `index` counts the samples of that prompt from 0."""

    prompt_id: str
    index: int

    def __str__(self) -> str:
        """As messages, chunks and telemetry name it."""
        return f"{self.prompt_id}/{self.index}"


@dataclass(frozen=True)
class AllSamples(Sequence[SampleId]):
    """Every sample in the global order: prompts as they come, then indices. Made when asked for:
    ten million take a GB."""

    prompt_ids: Sequence[str]
    samples_per_prompt: int

    def __len__(self) -> int:
        return len(self.prompt_ids) * self.samples_per_prompt

    @overload
    def __getitem__(self, place: int) -> SampleId: ...
    @overload
    def __getitem__(self, place: slice) -> list[SampleId]: ...
    def __getitem__(self, place: int | slice) -> SampleId | list[SampleId]:
        if isinstance(place, slice):
            return [self[each] for each in range(*place.indices(len(self)))]
        row, index = divmod(range(len(self))[place], self.samples_per_prompt)
        return SampleId(self.prompt_ids[row], index)


def all_samples(prompt_ids: Iterable[str], samples_per_prompt: int) -> Sequence[SampleId]:
    """See `AllSamples`."""
    return AllSamples(tuple(prompt_ids), samples_per_prompt)


def hash_samples(members: Iterable[str]) -> str:
    """One digest of all samples and what they depend on, from those of their chunks."""
    return hash_json({"chunks": list(members)})


def check_prompt_id(prompt_id: str) -> None:
    """Raise ValueError unless the id is safe as a folder name on every file system, and is no name
    of a file that the workflow writes beside it."""
    problem = f"prompt id {shorten(prompt_id)} cannot name a folder"
    if not PROMPT_ID.fullmatch(prompt_id) or ".." in prompt_id or prompt_id.endswith("."):
        raise ValueError(
            f"{problem}: use 1 to 128 letters, digits, '.', '_' or '-', beginning with a letter or "
            "digit, without '..' and not ending in '.'"
        )
    if RESERVED_NAMES.fullmatch(prompt_id):
        raise ValueError(f"{problem}: the run writes a file of that name there; rename it")
    if DEVICE.fullmatch(prompt_id):
        raise ValueError(f"{problem} on Windows, where it is a device; rename it")


def shorten(prompt_id: str) -> str:
    """An id in quotes as messages show it, of any length."""
    cut = prompt_id[:MAX_ID_SHOWN]
    return repr(prompt_id) if cut == prompt_id else f"{cut!r}... ({len(prompt_id)} characters)"


def noise_seed(run_seed: int, sample: SampleId) -> int:
    """The seed of a sample's noise: the first 63 bits of SHA-256 over its identity.

    PyTorch's CPU generator takes the lower 32 bits of a seed, so n samples share noise with a
    probability of about n² / 2^33 while that is small: 10,000 samples of one prompt 1.2 %. Among
    100,000 samples about one pair has equal noise.
    """
    return seed_of(f"{run_seed}\n{sample.prompt_id}\n{sample.index}")


def seed_of(text: str) -> int:
    """The first 63 bits of a text's SHA-256."""
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1


def draw_noise(seeds: Sequence[int], shape: tuple[int, ...]) -> "torch.Tensor":
    """Standard normal noise, one independent CPU stream per sample.

    Args:
        seeds: b seeds, each from `noise_seed`.
        shape: of one sample's noise, e.g. (c, f, h, w).

    Returns:
        float32 tensor (b, *shape) on the CPU.
    """
    import torch  # identities alone are asked for where it would cost seconds

    noise_b = torch.empty((len(seeds), *shape), dtype=torch.float32)
    for row, seed in enumerate(seeds):
        generator = torch.Generator("cpu").manual_seed(seed)
        noise_b[row] = torch.randn(shape, generator=generator, dtype=torch.float32)
    return noise_b
