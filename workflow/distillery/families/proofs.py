"""Whether what a trace has learnt of a pipeline is so: each claim is tried on the pipeline."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any

import torch

from distillery.families.encodings import watching
from distillery.families.protocol import Pipeline
from distillery.families.recording import Step, copied, trace
from distillery.families.text import TEXT
from distillery.families.tracing import Call, Signature
from distillery.schedulers import with_methods

EXACT = 1e-5
"""The same values through the same network: float32 rounding of another order of sums."""
ALIKE = 1e-4
"""The same values in a batch of another size."""
LONGEST_ERROR = 300
"""Characters: some name a whole pipeline."""
LOW = 0.05
"""Either where numbers have 8 or 11 bits, and batches of other sizes round otherwise."""


@dataclass(frozen=True)
class Proof:
    """One claim, tried.

    Attributes:
        claim: in a few words.
        distance: the largest relative difference that was found; infinite where it failed.
        limit: above which the claim does not hold.
        meaning: what follows if it does not hold.
        error: what was raised, if anything was.
    """

    claim: str
    distance: float
    limit: float
    meaning: str
    error: str = ""

    @property
    def holds(self) -> bool:
        """Whether what is claimed is so."""
        return self.distance <= self.limit


@dataclass(frozen=True)
class Subject:
    """What is proved on what.

    Attributes:
        steps: of the unguided call of all `prompts` that the signature was learnt from.
        call: the arguments of that call for some prompts.
        guided: of the call that makes the teacher's trajectories.
    """

    pipeline: Pipeline
    signature: Signature
    steps: Sequence[Step]
    call: Call
    guided: Call
    prompts: Sequence[str]


Attempt = Callable[[Subject], float]


def prove(subject: Subject) -> Iterator[Proof]:
    """Try every claim; what a claim's attempt raises is a claim that does not hold."""
    dtype = subject.signature.dtype
    for attempt, claim, limit, meaning in CLAIMS:
        yield tried(partial(attempt, subject), claim, limit, meaning, dtype)


def tried(
    attempt: Callable[[], float], claim: str, limit: float, meaning: str, dtype: torch.dtype
) -> Proof:
    """One claim; what its attempt raises is a claim that does not hold.

    Args:
        limit: in float32.
        dtype: of the states that the network is given.
    """
    limit = LOW if torch.finfo(dtype).bits < 32 else limit
    try:
        with torch.no_grad():
            return Proof(claim, attempt(), limit, meaning)
    except Exception as error:  # whatever a pipeline raises
        text = f"{type(error).__name__}: {error}"[:LONGEST_ERROR]
        return Proof(claim, float("inf"), limit, meaning, text)


def distance(found: torch.Tensor, expected: torch.Tensor) -> float:
    """The largest difference, relative to the largest expected value."""
    if found.shape != expected.shape:
        return float("inf")
    largest = expected.double().abs().max().clamp_min(1e-9)
    return float((found.double() - expected.double()).abs().max() / largest)


# ---- the claims ----------------------------------------------------------------------------------


def _replay(subject: Subject) -> float:
    """What was recorded, fed again, gives what was recorded."""
    samples = range(len(subject.prompts))
    return max(
        distance(_predict(subject, step.state, [(number, it) for it in samples]), step.prediction)
        for number, step in enumerate(subject.steps)
    )


def _chain(subject: Subject) -> float:
    """The guided call's states are those that its scheduler made."""
    steps = trace(subject.pipeline, subject.guided(subject.prompts))
    return max(distance(following.state, step.after) for step, following in pairwise(steps))


def _encodings(subject: Subject) -> float:
    """Stored encodings of prompts serve the guided call, without any text encoder."""
    arguments = subject.guided(subject.prompts)
    with watching(subject.pipeline) as kept:
        expected = trace(subject.pipeline, arguments)
    with encoded(subject.pipeline, [given for _, given in kept]):
        found = trace(subject.pipeline, subject.guided(subject.prompts))
    return distance(found[-1].after, expected[-1].after)


def _alone(subject: Subject) -> float:
    """A prompt alone has the predictions that it has among others."""
    found = []
    for sample in range(len(subject.prompts)):
        steps = trace(subject.pipeline, subject.call(subject.prompts[sample : sample + 1]))
        together = zip(steps, subject.steps, strict=True)
        found += [
            distance(step.prediction, all_.prediction[sample : sample + 1])
            for step, all_ in together
        ]
    return max(found)


def _mixed(subject: Subject) -> float:
    """Samples of different steps of one network share a call."""
    components = subject.signature.components
    last = max(it for it, name in enumerate(components) if name == components[0])
    chosen = [(number * last // (len(subject.prompts) - 1), number)
              for number in range(len(subject.prompts))]  # fmt: skip
    states = torch.stack([subject.steps[step].state[sample] for step, sample in chosen])
    expected = [subject.steps[step].prediction[sample] for step, sample in chosen]
    return distance(_predict(subject, states, chosen), torch.stack(expected))


def _predict(
    subject: Subject, states: torch.Tensor, chosen: Sequence[tuple[int, int]]
) -> torch.Tensor:
    """The network's prediction for states of (step, sample)."""
    signature, pipeline = subject.signature, subject.pipeline
    samples, steps = [sample for _, sample in chosen], [step for step, _ in chosen]
    prompts = signature.prompts(subject.steps[0].calls[0], samples)
    scales = [signature.entry.scale(subject.steps[step]) for step in steps]
    shape = (-1, *[1] * (states.ndim - 1))
    noisy = states * torch.tensor(scales, dtype=states.dtype, device=states.device).reshape(shape)
    network = getattr(pipeline, signature.components[steps[0]])
    return signature.predict(network, noisy, prompts, steps)


CLAIMS: Sequence[tuple[Attempt, str, float, str]] = (
    (_replay, "recorded inputs give the recorded predictions", EXACT,
     "the student would learn something else than the stock call computes"),
    (_chain, "the scheduler alone makes the states", EXACT,
     "the pipeline changes states between steps, and no student of few steps can follow that"),
    (_encodings, "stored encodings serve the stock call", EXACT,
     "the text encoders would have to stay loaded beside the network"),
    (_alone, "a prompt alone is as among others", ALIKE,
     "targets would depend on what else is in their batch"),
    (_mixed, "samples of different steps share a call", ALIKE,
     "training could not batch samples of several steps"),
)  # fmt: skip


# ---- stored encodings ----------------------------------------------------------------------------


@contextmanager
def encoded(pipeline: Pipeline, given: Sequence[Any]) -> Iterator[None]:
    """Have `encode_prompt` return what was kept, and take the text encoders away meanwhile."""
    left = iter(given)
    names = [name for name in pipeline.components if name.startswith(TEXT)]
    give = with_methods(pipeline, encode_prompt=lambda *_args, **_kwargs: copied(next(left)))
    with without(pipeline, names), give:
        yield


@contextmanager
def without(pipeline: Pipeline, names: Sequence[str]) -> Iterator[None]:
    """Take components away meanwhile."""
    absent = {name: getattr(pipeline, name) for name in names}
    for name in names:
        setattr(pipeline, name, None)
    try:
        yield
    finally:
        for name, component in absent.items():
            setattr(pipeline, name, component)
