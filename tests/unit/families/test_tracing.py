"""What a trace learns, refuses and disproves, on pipelines that show one thing each.

tests/numerics/test_traced.py traces the classes of Diffusers.
"""

import inspect
from collections.abc import Callable, Sequence
from copy import deepcopy
from typing import Any

import pytest
import torch
from diffusers import DDPMScheduler, FlowMatchEulerDiscreteScheduler

from distillery.families.proofs import CLAIMS, Proof, Subject, prove
from distillery.families.recording import UntraceableError, recording
from distillery.families.tracing import learn
from families.calls import generators

PROMPTS = ("a dog", "a blue bird", "cats")
FEATURES, MAX_LETTERS = 4, 12
REPLAY, CHAIN, ENCODINGS, ALONE, MIXED = (claim for _, claim, _, _ in CLAIMS)


class Network(torch.nn.Module):
    """Of states (b, d), times (b,) or one, and text (b, l, d)."""

    def __init__(self) -> None:
        super().__init__()
        self.mix = torch.nn.Linear(FEATURES, FEATURES)

    def forward(
        self, state: torch.Tensor, time: torch.Tensor, text: torch.Tensor, more: object = None
    ) -> tuple[torch.Tensor]:
        return (torch.tanh(self.mix(state + text.mean(1)) + time.reshape(-1, 1) / 1000),)


class Pipeline:
    """The least that denoises as Diffusers' pipelines do; those below change one thing."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.network, self.text_encoder = Network(), torch.nn.Embedding(128, FEATURES)
        self.scheduler: Any = FlowMatchEulerDiscreteScheduler(shift=3.0)

    @property
    def components(self) -> dict[str, Any]:
        names = ("network", "text_encoder", "scheduler")
        return {name: getattr(self, name) for name in names}

    def encode_prompt(self, prompts: Sequence[str]) -> torch.Tensor:
        return self.text_encoder(_letters(prompts, MAX_LETTERS))

    def __call__(
        self, prompt: Sequence[str], generator: list[torch.Generator], guidance: float
    ) -> torch.Tensor:
        self.text = self.encode_prompt(prompt)
        state = torch.stack([torch.randn(FEATURES, generator=it) for it in generator])
        self.scheduler.set_timesteps(4)
        for time in self.scheduler.timesteps:
            prediction = guidance * self.predict(state, time)
            state = self.between(self.step(prediction, time, state, generator))
        return state

    def predict(self, state: torch.Tensor, time: torch.Tensor) -> torch.Tensor:
        return self.network(state, time.expand(len(state)), text=self.text)[0]

    def step(
        self, prediction: torch.Tensor, time: torch.Tensor, state: torch.Tensor, _generator: Any
    ) -> torch.Tensor:
        return self.scheduler.step(prediction, time, state)[0]

    def between(self, state: torch.Tensor) -> torch.Tensor:
        return state


def _letters(prompts: Sequence[str], length: int) -> torch.Tensor:
    return torch.tensor([[ord(it) for it in prompt.ljust(length)[:length]] for prompt in prompts])


def _call(guidance: float) -> Callable[[Sequence[str]], dict[str, Any]]:
    return lambda prompts: {
        "prompt": prompts,
        "generator": generators(PROMPTS.index(it) for it in prompts),
        "guidance": guidance,
    }


def _proofs(pipeline: Any) -> dict[str, Proof]:
    """By claim."""
    signature, steps = learn(pipeline, _call(1.0), PROMPTS)
    subject = Subject(pipeline, signature, steps, _call(1.0), _call(3.0), PROMPTS)
    return {proof.claim: proof for proof in prove(subject)}


def _broken(pipeline: Any) -> list[str]:
    return [claim for claim, proof in _proofs(pipeline).items() if not proof.holds]


def test_what_is_learnt_is_told_by_behaviour() -> None:
    signature, steps = learn(Pipeline(), _call(1.0), PROMPTS)
    assert (signature.entry.place, signature.entry.form) == (("state",), "as it is")
    assert (signature.exit.form, signature.exit.sign) == ("as it is", 1)
    assert signature.clocks.keys() == signature.clock_rows == {("time",)}
    assert (signature.rows, signature.odd) == ((("text",),), ())
    assert len(steps) == 4
    assert _broken(Pipeline()) == []


class TellsTimeInHalf(Pipeline):
    def predict(self, state: torch.Tensor, time: torch.Tensor) -> torch.Tensor:
        return self.network(state, time.expand(len(state)).half(), self.text)[0]


def test_a_time_in_float16_enters_a_training_in_bfloat16() -> None:
    pipeline = TellsTimeInHalf()
    signature, steps = learn(pipeline, _call(1.0), PROMPTS)
    (clock,) = signature.clocks.values()
    assert clock[0].dtype == torch.float16
    prompts = signature.prompts(steps[0].calls[0], range(len(PROMPTS)))
    found = []
    for is_cast in (False, True):
        with torch.no_grad(), torch.autocast("cpu", torch.bfloat16, enabled=is_cast):
            given = pipeline.network, steps[0].state, prompts, range(len(PROMPTS))
            found.append(signature.predict(*given))
    torch.testing.assert_close(found[1], found[0], rtol=0.02, atol=0.02)


# ---- refused -------------------------------------------------------------------------------------


class CallsTwice(Pipeline):
    def predict(self, state: torch.Tensor, time: torch.Tensor) -> torch.Tensor:
        return (super().predict(state, time) + super().predict(state, time)) / 2


class Multiplies(Pipeline):
    def predict(self, state: torch.Tensor, time: torch.Tensor) -> torch.Tensor:
        return 2 * super().predict(state, time)


class HidesItsState(Pipeline):
    def predict(self, state: torch.Tensor, time: torch.Tensor) -> torch.Tensor:
        return super().predict(state + 1, time)


class MixesStepAndPrompt(Pipeline):
    def predict(self, state: torch.Tensor, time: torch.Tensor) -> torch.Tensor:
        return self.network(state, time.expand(len(state)), self.text * time)[0]


class TellsTheStepInWords(Pipeline):
    def predict(self, state: torch.Tensor, time: torch.Tensor) -> torch.Tensor:
        return self.network(state, time.expand(len(state)), self.text, more=f"{time:.0f}")[0]


class HasACache(Pipeline):
    cache = object()

    def predict(self, state: torch.Tensor, time: torch.Tensor) -> torch.Tensor:
        return self.network(state, time.expand(len(state)), self.text, more=self.cache)[0]


class StepsWithACopy(Pipeline):
    def step(
        self, prediction: torch.Tensor, time: torch.Tensor, state: torch.Tensor, _generator: Any
    ) -> torch.Tensor:
        return deepcopy(self.scheduler).step(prediction, time, state)[0]


class LearnsItsVariance(Pipeline):
    def __init__(self) -> None:
        super().__init__()
        self.scheduler = DDPMScheduler(variance_type="learned_range")

    def predict(self, state: torch.Tensor, time: torch.Tensor) -> torch.Tensor:
        return super().predict(state, time).repeat(1, 2)


class CutsItsPrompts(Pipeline):
    def encode_prompt(self, prompts: Sequence[str]) -> torch.Tensor:
        return self.text_encoder(_letters(prompts, 1))


class StepsOnItsOwn(Pipeline):
    def step(
        self, prediction: torch.Tensor, _time: Any, state: torch.Tensor, _generator: Any
    ) -> torch.Tensor:
        return state - prediction / 4


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        (CallsTwice, "calls its networks 2 times before step 0"),
        (Multiplies, "the pipeline computes between them"),
        (HidesItsState, "no argument of the network is the scheduler's state"),
        (MixesStepAndPrompt, "text changes with the step and with the prompt"),
        (TellsTheStepInWords, "more changes with the step, and is no tensor"),
        (HasACache, "more is of type object, which may have a state"),
        (StepsWithACopy, "steps with copies of its scheduler"),
        (LearnsItsVariance, "a learned variance"),
        (CutsItsPrompts, "two of the prompts give the network the same arguments"),
        (StepsOnItsOwn, "made 0 steps"),
    ],
)
def test_what_a_trace_cannot_learn_is_refused(kind: type[Pipeline], reason: str) -> None:
    with pytest.raises(UntraceableError, match=reason):
        learn(kind(), _call(1.0), PROMPTS)


# ---- disproved -----------------------------------------------------------------------------------


class ClipsStates(Pipeline):
    def between(self, state: torch.Tensor) -> torch.Tensor:
        return state.clamp(-0.5, 0.5)


class PadsToTheLongest(Pipeline):
    def encode_prompt(self, prompts: Sequence[str]) -> torch.Tensor:
        return self.text_encoder(_letters(prompts, max(map(len, prompts))))


class TellsTimeOnceInNumbers(Pipeline):
    def predict(self, state: torch.Tensor, time: torch.Tensor) -> torch.Tensor:
        angles = torch.stack([time.sin(), time.cos()])
        return self.network(state, angles.mean(), self.text, more=angles)[0]


class Remembers(Pipeline):
    def __init__(self) -> None:
        super().__init__()
        self.network.register_forward_hook(self._grow)
        self.calls = 0

    def _grow(self, _network: Any, _arguments: Any, output: Any) -> Any:
        self.calls += 1
        return (output[0] * self.calls,)


class EncodesElsewhere(Pipeline):
    def __call__(self, prompt: Sequence[str], **options: Any) -> torch.Tensor:
        assert self.text_encoder(_letters(prompt, MAX_LETTERS)).isfinite().all()
        return super().__call__(prompt, **options)


class LooksAtItsEncoder(Pipeline):
    def predict(self, state: torch.Tensor, time: torch.Tensor) -> torch.Tensor:
        text = self.text + float(self.text_encoder is None)
        return self.network(state, time.expand(len(state)), text)[0]


@pytest.mark.parametrize(
    ("kind", "claims"),
    [
        (ClipsStates, [CHAIN]),
        (PadsToTheLongest, [ALONE]),
        (TellsTimeOnceInNumbers, [MIXED]),
        (EncodesElsewhere, [ENCODINGS]),
        (LooksAtItsEncoder, [ENCODINGS]),
    ],
)
def test_a_claim_that_is_not_so_does_not_hold(kind: type[Pipeline], claims: list[str]) -> None:
    assert _broken(kind()) == claims


def test_a_network_that_remembers_does_not_replay() -> None:
    assert REPLAY in _broken(Remembers())


def test_one_clock_value_of_several_numbers_says_why_steps_cannot_share_a_call() -> None:
    assert "holds one value of shape (2,)" in _proofs(TellsTimeOnceInNumbers())[MIXED].error


# ---- recording -----------------------------------------------------------------------------------


class GivesTables(Pipeline):
    """Two of them, as many as there are prompts in the smaller call."""

    def predict(self, state: torch.Tensor, time: torch.Tensor) -> torch.Tensor:
        tables = (torch.ones(5), torch.zeros(5))
        return self.network(state, time.expand(len(state)), self.text, more=tables)[0]


def test_a_pair_of_tables_is_no_list_of_samples() -> None:
    signature, _ = learn(GivesTables(), _call(1.0), PROMPTS)
    assert signature.rows == (("text",),)
    assert _broken(GivesTables()) == []


class DrawsNoise(Pipeline):
    """Gives a generator to steps that take one, as Diffusers' pipelines do."""

    def __init__(self) -> None:
        super().__init__()
        self.scheduler = DDPMScheduler(clip_sample=False)

    def step(
        self, prediction: torch.Tensor, time: torch.Tensor, state: torch.Tensor, generator: Any
    ) -> torch.Tensor:
        takes = "generator" in inspect.signature(self.scheduler.step).parameters
        options = {"generator": generator} if takes else {}
        return self.scheduler.step(prediction, time, state, **options)[0]


def test_a_recorded_call_gives_what_an_unrecorded_one_gives() -> None:
    pipeline: Any = DrawsNoise()
    with torch.no_grad():
        alone = pipeline(**_call(1.0)(PROMPTS))
        with recording(pipeline) as steps:
            recorded = pipeline(**_call(1.0)(PROMPTS))
    assert recorded.equal(alone)
    assert recorded.equal(steps[-1].after)
    assert "step" not in vars(pipeline.scheduler)
