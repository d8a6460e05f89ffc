"""What makes a stock pipeline fast on a GPU without changing what it computes beyond rounding."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from math import ceil

import torch
from torch.nn import GroupNorm

from distillery.config.section import Compile
from distillery.families import Family
from distillery.families.protocol import Pipeline
from distillery.teacher.loading import denoisers_of
from distillery.telemetry import Reporter

MIN_PARAMETERS = 500_000_000
MIN_CALLS = 8_000
"""Compiling takes a minute in a first job, a quarter of that in later ones of the same machine, and
makes large networks a fifth to a third faster (benchmarks/), so it pays where a run calls one so
often.
"""
LONG_SUMS = {"triton.cooperative_reductions": True}
"""Inductor's option for a decoder's group norms, few sums over millions of numbers: without it each
keeps one of a GPU's 132 multiprocessors busy and the others idle (benchmarks/)."""
PROBE_STEPS = 2
"""Denoising steps of a probe for the batch size."""


@dataclass(frozen=True)
class Workload:
    """How much a whole run generates, over all shards. It decides compiling and thereby rounding,
    which must not depend on the number of shards.

    Attributes:
        steps: denoising steps of each.
        batch_size: samples in a call.
    """

    num_samples: int
    steps: int
    batch_size: int

    @property
    def num_calls(self) -> int:
        """Calls of the denoiser."""
        return ceil(self.num_samples / self.batch_size) * self.steps


def maybe_compile(
    pipeline: Pipeline,
    family: Family,
    device: torch.device,
    choice: Compile,
    amount: Workload,
    reporter: Reporter,
) -> None:
    """Compile a pipeline's networks where that pays.

    Args:
        device: nothing is done on a CPU.
        amount: of the whole run.
    """
    denoisers = denoisers_of(pipeline, family).values()
    num_parameters = sum(
        parameter.numel() for denoiser in denoisers for parameter in denoiser.parameters()
    )
    if device.type != "cuda" or not compile_pays_off(choice, num_parameters, amount):
        return
    if any(hasattr(denoiser, "_hf_hook") for denoiser in denoisers):
        reporter.info("does not compile: the network is offloaded or spread over GPUs")
        return
    reporter.info(f"compiles the networks for batches of {amount.batch_size}")
    compile_networks(pipeline, family)


def compile_pays_off(choice: Compile, num_parameters: int, amount: Workload) -> bool:
    """Whether networks of so many parameters are compiled."""
    if choice != "auto":
        return choice == "always"
    return num_parameters >= MIN_PARAMETERS and amount.num_calls >= MIN_CALLS


def compile_networks(pipeline: Pipeline, family: Family) -> None:
    """Compile the denoisers, by their repeated blocks or whole, and the decoder."""
    for denoiser in denoisers_of(pipeline, family).values():
        if family.compiles_by_block and getattr(denoiser, "_repeated_blocks", None):
            denoiser.compile_repeated_blocks(dynamic=False)  # type: ignore[operator]
        else:
            denoiser.compile(dynamic=False)
    decoder = getattr(pipeline.vae, "decoder", None)
    if decoder is not None:
        has_long_sums = any(isinstance(module, GroupNorm) for module in decoder.modules())
        decoder.compile(dynamic=False, options=LONG_SUMS if has_long_sums else None)


@contextmanager
def loading_timed(reporter: Reporter) -> Iterator[None]:
    """Say in the log how long loading took."""
    begin = time.perf_counter()
    yield
    reporter.info(f"the pipeline is loaded after {time.perf_counter() - begin:.1f} s")
