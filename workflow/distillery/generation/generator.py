"""One generator for targets, samples and previews: what the stock pipeline is called with, when it
is loaded, and in which batches it is called."""

import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import torch

from distillery.config.section import BatchSize, Compile
from distillery.families import Family, Request, Setting, Size
from distillery.families.protocol import Conditioning, Denoiser, Pipeline
from distillery.generation.batching import Batcher
from distillery.generation.calling import draw
from distillery.generation.packing_error import first_calls, packing_errors
from distillery.generation.speed import PROBE_STEPS, Workload, loading_timed, maybe_compile
from distillery.noise import SampleId, noise_seed
from distillery.store.embeddings import EmbeddingStore
from distillery.teacher.decoding import pop_decode_seconds
from distillery.teacher.loading import denoisers_of
from distillery.teacher.rounding import can_be_in_float32, in_float32
from distillery.telemetry import Reporter

Result = TypeVar("Result")


@dataclass(frozen=True)
class Calls:
    """What a stock pipeline is called with for a run's samples; a row is an index into them.

    Attributes:
        store: embeddings of the prompts.
        samples: in their global order.
        samples_per_prompt: neighbouring samples of one prompt.
        sizes: of the prompts; a call is for samples of one.
        seed: of the run, for the noise.
        max_sequence_length: text tokens that prompts are padded to.
        decode: whether images are wanted, or the latents alone.
        dtype: of embeddings and states; float32 for a network of any type needs
            `teacher.loading.load_exact_teacher`.
        further: arguments of the stock call beside these.
    """

    family: Family
    store: EmbeddingStore
    samples: Sequence[SampleId]
    samples_per_prompt: int
    sizes: Sequence[Size]
    seed: int
    steps: int
    setting: Setting
    max_sequence_length: int
    decode: bool
    dtype: torch.dtype
    further: Mapping[str, Any] = field(default_factory=dict)

    def size_of(self, rows: Sequence[int]) -> Size:
        """The one size that some samples have."""
        (size,) = {self.sizes[row // self.samples_per_prompt] for row in rows}
        return size

    def request(self, rows: Sequence[int]) -> Request:
        """One call for the samples of `rows`.

        Raises DamagedChunkError for embeddings that are not as their manifest lists them.
        """
        prompts = [row // self.samples_per_prompt for row in rows]
        image = self.store.image(prompts[0])
        assert image is None or len(rows) == 1, "calls with an image are for one prompt"
        conditioning, negative = padded(self.family, self.store, prompts, self.max_sequence_length)
        return Request(
            seeds=[noise_seed(self.seed, self.samples[row]) for row in rows],
            conditioning=conditioning,
            negative=negative,
            steps=self.steps,
            setting=replace(self.setting, size=self.size_of(rows)),
            decode=self.decode,
            dtype=self.dtype,
            further=self.further,
            image=None if image is None else image.open(),
        )


def padded(
    family: Family, store: EmbeddingStore, prompt_rows: Sequence[int], length: int
) -> tuple[Conditioning, Conditioning]:
    """Batches of prompts and of their negative prompts, padded to `length` text tokens."""
    prompts = family.pad([store.row(row) for row in prompt_rows], length)
    return prompts, family.pad([store.negative_row(row) for row in prompt_rows], length)


class Generator:
    """Calls a stock pipeline, which is loaded when the first missing sample asks for it."""

    def __init__(
        self,
        calls: Calls,
        load: Callable[[], Pipeline],
        batch_size: BatchSize,
        largest_batch: int,
        device: torch.device,
        reporter: Reporter,
        compiling: Compile,
        load_unpacked: Callable[[str], Denoiser] | None = None,
    ) -> None:
        """Nothing heavy is loaded here, so a job that finds everything made ends at once.

        Args:
            calls: of the whole run, of which the job may make a part.
            load: the pipeline without its text encoders.
            batch_size: samples per call; auto finds the largest that pays. With images it is one:
                many pipelines take several for one prompt.
            largest_batch: the most that `auto` may choose.
            load_unpacked: a network of the pipeline before its weights were packed, by component;
                None where they are not.
        """
        self.calls = calls
        self._load_unpacked = load_unpacked
        self._load = load
        if calls.store.image(0) is not None:
            batch_size = 1
        self._batcher = Batcher(batch_size, largest_batch, device, reporter)
        self._device = device
        self._reporter = reporter
        self._compiling = compiling
        self._pipeline: Pipeline = None

    @property
    def pipeline(self) -> Pipeline:
        """The pipeline; on first use it is loaded, its batch size is found, and it is compiled
        where that pays."""
        if self._pipeline is None:
            with loading_timed(self._reporter):
                self._pipeline = self._load()
            calls, batcher = self.calls, self._batcher
            batcher.settle(self._probe)
            pop_decode_seconds(self._pipeline)  # of the probes
            amount = Workload(len(calls.samples), calls.steps, batcher.size)
            maybe_compile(
                self._pipeline, calls.family, self._device, self._compiling, amount, self._reporter
            )
        return self._pipeline

    def map(
        self, rows: Sequence[int], make: Callable[[Sequence[int], int], Result]
    ) -> Iterator[tuple[Sequence[int], Result]]:
        """`make` all rows in batches; yields each batch with its result, see `Batcher.map`."""
        assert self.pipeline is not None  # loading it may change the size of a batch
        is_first = self._load_unpacked is not None and 0 in rows
        return self._batcher.map(rows, self._measured(make) if is_first else make)

    def _measured(
        self, make: Callable[[Sequence[int], int], Result]
    ) -> Callable[[Sequence[int], int], Result]:
        """`make`, that tells of a run's first batch how much packed weights change."""

        def run(rows: Sequence[int], size: int) -> Result:
            if 0 not in rows:
                return make(rows, size)
            begin_s = time.time()
            with first_calls(denoisers_of(self.pipeline, self.calls.family)) as calls:
                result = make(rows, size)
            assert self._load_unpacked is not None
            try:
                errors = packing_errors(calls, self._load_unpacked, self._device)
            except torch.OutOfMemoryError:
                self._reporter.warning("what packing changes needs more memory to be measured")
                return result
            self._reporter.emit("measure", begin_s, time.time(), packing_errors=errors)
            for name, error in errors.items():
                self._reporter.info(f"packed weights change a pass of the {name} by {error:.2%}")
            return result

        return run

    def run(self, rows: Sequence[int], size: int) -> torch.Tensor | None:
        """One call for the samples of `rows`; images (size, 3, h, w) in [0, 1] if they are decoded.

        It is padded to `size` by repeating the last sample, because the last bits of a matrix
        product depend on its size.
        """
        padded = [*rows, *[rows[-1]] * (size - len(rows))]
        return draw(self.calls.family, self.pipeline, self.calls.request(padded))

    @property
    def can_be_in_float32(self) -> bool:
        """Whether `in_float32` would change anything, and can."""
        return all(can_be_in_float32(denoiser) for denoiser in self._denoisers())

    @contextmanager
    def in_float32(self) -> Iterator[None]:
        """Compute all but the VAE in float32 for a while, and hold the states in it."""
        before = self.calls
        with ExitStack() as stack:
            for denoiser in self._denoisers():
                stack.enter_context(in_float32(denoiser))
            stack.callback(setattr, self, "calls", before)
            self.calls = replace(before, dtype=torch.float32)
            yield

    def _denoisers(self) -> Collection[Denoiser]:
        return denoisers_of(self.pipeline, self.calls.family).values()

    def _probe(self, size: int) -> None:
        """A few steps of the first samples of the largest size, to find the batch size."""
        sizes, per_prompt = self.calls.sizes, self.calls.samples_per_prompt
        area = max(it.height * it.width for it in sizes)
        prompt = next(row for row, it in enumerate(sizes) if it.height * it.width == area)
        alike = [row for row, it in enumerate(sizes) if it == sizes[prompt]]
        rows = [alike[row % len(alike)] * per_prompt for row in range(size)]
        request = replace(self.calls.request(rows), steps=PROBE_STEPS)
        self.calls.family.generate(self._pipeline, request)
