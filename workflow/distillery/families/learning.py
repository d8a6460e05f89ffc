"""Learn a pipeline that has no adapter, and prove what was learnt, by its own calls."""

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from functools import partial, wraps
from typing import Any

import numpy as np
import torch
from PIL import Image

from distillery.families.beginning import beginning
from distillery.families.encodings import PROMPT, TEXTS, Encodings, Learner
from distillery.families.learnt import Learnt
from distillery.families.of_images import check_reads_no_image, with_images
from distillery.families.proofs import ALIKE, LOW, Proof, Subject, distance, prove, tried, without
from distillery.families.protocol import Conditioning, Pipeline, Request, Setting, as_annotated
from distillery.families.rearranged import Rearranged, draw, learn_moves, learn_noise
from distillery.families.recording import (
    NetworkCall,
    Step,
    UntraceableError,
    at,
    cut,
    recording,
    trace,
)
from distillery.families.size import Size
from distillery.families.text import TEXT, on
from distillery.families.traced import (
    TIMESTEP,
    Traced,
    frames_argument,
    images_of,
    starting,
)
from distillery.families.tracing import Signature, learn
from distillery.schedulers import with_methods

STEPS = 4
"""Of the calls that a network is really asked in."""
SPACINGS = 64
"""Numbers of steps, from 1, whose timesteps are asked for."""
OTHER_PROMPTS = "the student would be made of other prompts than the stock call reads"
BEGUN = (
    "a call that is given the first state ends alike",
    "its steps draw noise, so the same sample would be another one in another run or batch: choose "
    "a teacher.scheduler whose steps draw none; or a call cannot begin with a state",
)
"""A claim, and what follows if it does not hold."""
STORED: Sequence[tuple[str, str]] = (
    ("stored prompts give the stock call without guidance", OTHER_PROMPTS),
    ("stored prompts give the guided stock call", OTHER_PROMPTS),
    ("stored prompts give the network what the stock call gives it", OTHER_PROMPTS),
    (
        "stored images of two prompts give the network what two stock calls give it",
        "the student would be made of other images than the stock call reads",
    ),
)
"""Claims on what is stored, and what follows if one does not hold; the last one is on images."""


@dataclass(frozen=True)
class Terms:
    """How a pipeline is called in a run.

    Attributes:
        steps: of the teacher.
        guidance_scale: of the teacher; 1.0 is off.
        unguided: arguments of a call without guidance; the first is the guidance scale's.
        always: further arguments of every call.
        further: those of the teacher's calls.
        negative_prompt: of the teacher's calls; None: none is given.
        max_sequence_length: None: the call's default.
        decode: whether images can be made, to see what a call returns.
        image: the argument that takes an image of `size`; "": none does.
    """

    steps: int
    size: Size
    guidance_scale: float
    unguided: Mapping[str, Any]
    always: Mapping[str, Any] = field(default_factory=dict)
    further: Mapping[str, Any] = field(default_factory=dict)
    negative_prompt: str | None = None
    max_sequence_length: int | None = None
    decode: bool = True
    image: str = ""


def learn_pipeline(pipeline: Pipeline, terms: Terms) -> tuple[Learnt, list[Proof]]:
    """What calls of a pipeline tell, and every claim on it, tried.

    Args:
        pipeline: with all its components.

    Raises UntraceableError: it cannot be learnt, or a claim that is needed does not hold.
    """
    try:
        with torch.no_grad():
            return _Learning(pipeline, terms).learn()
    except UntraceableError:
        raise
    except Exception as error:  # whatever a pipeline raises
        raise UntraceableError(f"its call raises {type(error).__name__}: {error}") from error


class _Learning:
    def __init__(self, pipeline: Pipeline, terms: Terms) -> None:
        self.pipeline, self.terms = pipeline, terms
        self.takes = inspect.signature(type(pipeline).__call__).parameters
        self.images = [noise_image(terms.size, seed) for seed in range(2)]
        self._given: dict[str, list[Any]] = {}
        self._check_terms()

    def _check_terms(self) -> None:
        image = {self.terms.image} if self.terms.image else set()
        named = {**self.terms.unguided, **self.terms.always}.keys() | image
        unknown = sorted(named - self.takes.keys())
        if unknown:
            raise UntraceableError(
                f"teacher.trace names {' and '.join(unknown)}, which its call does not take; it "
                "takes " + ", ".join(name for name in self.takes if name != "self")
            )
        if self.terms.negative_prompt is not None and "negative_prompt" not in self.takes:
            raise UntraceableError("its call takes no negative prompt, and there is one")
        if not hasattr(self.pipeline, "prepare_latents"):
            raise UntraceableError("it has no prepare_latents, by which a call is given its states")

    # ---- calls -----------------------------------------------------------------------------------

    @property
    def scale(self) -> str:
        """The argument that is the guidance scale; "" where the call takes none."""
        name = next(iter(self.terms.unguided), "guidance_scale")
        return name if name in self.takes else ""

    @property
    def frames(self) -> dict[str, int]:
        """The call's argument for a clip's frames, where it makes clips."""
        name = frames_argument(type(self.pipeline))
        return {name: self.terms.size.num_frames} if name else {}

    @property
    def max_sequence_length(self) -> int:
        if "max_sequence_length" not in self.takes:
            return 0
        return self.terms.max_sequence_length or self.takes["max_sequence_length"].default or 0

    def call(self, is_guided: bool, size: int, steps: int = STEPS) -> dict[str, Any]:
        """Arguments of a stock call, but for its texts."""
        terms = self.terms
        guidance = dict(terms.unguided)
        if is_guided or not terms.unguided:
            guidance = {self.scale: terms.guidance_scale} if self.scale else {}
        if is_guided:
            guidance |= as_annotated(self.pipeline, terms.further)
        length = self.max_sequence_length
        return {
            "height": terms.size.height,
            "width": terms.size.width,
            **self.frames,
            "num_inference_steps": steps,
            "output_type": "latent",
            "generator": [torch.Generator().manual_seed(seed) for seed in range(size)],
            **({"max_sequence_length": length} if length else {}),
            **({terms.image: self.images[0]} if terms.image else {}),
            **terms.always,
            **guidance,
        }

    def of_texts(self, is_guided: bool) -> Callable[[Sequence[str]], dict[str, Any]]:
        """Each with the noise that it has among the others."""

        def arguments(texts: Sequence[str]) -> dict[str, Any]:
            seeds = map(TEXTS.index, texts)
            generators = [torch.Generator().manual_seed(seed) for seed in seeds]
            asked = {"prompt": list(texts), "generator": generators}
            negative = self.terms.negative_prompt
            if is_guided and negative is not None:
                asked["negative_prompt"] = [negative] * len(texts)
            return self.call(is_guided, len(texts)) | asked

        return arguments

    @property
    def is_guided(self) -> bool:
        """Whether the teacher's calls are."""
        return bool(self.terms.unguided) and self.terms.guidance_scale > 1.0

    # ---- learning --------------------------------------------------------------------------------

    def learn(self) -> tuple[Learnt, list[Proof]]:
        with starting(self.pipeline, bool(self.terms.image)):
            signature, steps = learn(self.pipeline, self.of_texts(False), TEXTS)
            subject = Subject(
                self.pipeline, signature, steps, self.of_texts(False),
                self.of_texts(self.is_guided), TEXTS,
            )  # fmt: skip
            claim, meaning = BEGUN
            attempt = partial(self._begun_again, steps)
            proofs = [tried(attempt, claim, ALIKE, meaning, signature.dtype)]
            _check(proofs)
            proofs += prove(subject)
            _check(proofs)
            learnt = self._learnt(signature, steps)
            _check(own := list(self._prove_stored(learnt, signature, steps)))
        return learnt, [*proofs, *own]

    def _learnt(self, signature: Signature, steps: Sequence[Step]) -> Learnt:
        terms = self.terms
        names = tuple(dict.fromkeys(signature.components))

        def cut_call(texts: Mapping[str, Any], is_guided: bool, size: int) -> NetworkCall:
            asked = is_guided and self.is_guided
            given = texts if asked else {"prompt": texts["prompt"]}
            return cut(self.pipeline, names, {**self.call(asked, size), **given})

        def with_image(text: str, image: Image.Image) -> NetworkCall:
            given = {"prompt": [text], terms.image: image}
            return cut(self.pipeline, names, self.call(False, 1) | given)

        if terms.image:
            check_reads_no_image(self.pipeline, with_image, self.images)
        encodings = Learner(self.pipeline, cut_call).learn(
            signature, needs_none=terms.negative_prompt is None
        )
        parts = [encodings.encode(self.pipeline, PROMPT, text) for text in TEXTS]
        if terms.image:
            encodings = with_images(
                encodings, signature, steps[0].state.shape, terms.image, with_image, self.images
            )
            parts[0] |= encodings.parts_of(with_image(TEXTS[0], self.images[0]))
        walked = self._walk(signature, terms.steps)
        prompts = on(encodings.pad(parts[:1]), self.pipeline._execution_device, torch.float32)
        is_low = torch.finfo(signature.dtype).bits < 32
        guided = trace(self.pipeline, self.of_texts(self.is_guided)(TEXTS[:1]))
        image = self._image() if terms.decode else "images[0]"
        return Learnt(
            pipeline_class=type(self.pipeline).__name__,
            signature=replace(
                signature,
                components=tuple(step.calls[0].component for step in walked),
                clocks={
                    place: tuple(
                        given[0] if place in signature.clock_rows else given
                        for given in (at(step.calls[0].arguments, place) for step in walked)
                    )
                    for place in signature.clocks
                },
            ),
            encodings=encodings,
            text_components=tuple(it for it in self.pipeline.components if it.startswith(TEXT)),
            scale=self.scale,
            unguided=dict(terms.unguided),
            always=dict(terms.always),
            size=terms.size,
            guidance_scale=terms.guidance_scale,
            latent_shape=tuple(steps[0].state.shape[1:]),
            timesteps=tuple(float(step.timestep) for step in walked),
            exact=self._exact(signature, encodings, prompts) if is_low else (),
            spacings=self._spacings(names, encodings, prompts),
            calls_per_step=sum(_rows(call, signature) for call in guided[-1].calls),
            max_sequence_length=self.max_sequence_length,
            prompt_bytes=max(sum(part.nbytes for part in text.values()) for text in parts),
            image=image,
            clip=image.removesuffix("[0]") if self.frames else None,
            drawn=self._drawn(steps),
            decoded=self._decoded(names, encodings, prompts, steps[0].state.shape[1:]),
        )

    def _walk(self, signature: Signature, steps: int) -> list[Step]:
        """A call of the teacher's steps whose network is asked once: what follows the step follows
        no prediction."""
        with ExitStack() as stack:
            for name in dict.fromkeys(signature.components):
                network, given = getattr(self.pipeline, name), self._given.setdefault(name, [])
                stack.enter_context(with_methods(network, forward=_once(network, given)))
            arguments = {**self.call(False, 1, steps), "prompt": list(TEXTS[:1])}
            return trace(self.pipeline, arguments)

    def _exact(
        self, signature: Signature, encodings: Encodings, prompts: Conditioning
    ) -> tuple[float, ...]:
        """The argument `timestep` where the call's states, and so its prompts, are in float32."""
        if TIMESTEP not in signature.clocks:
            return ()
        for outputs in self._given.values():
            outputs[:] = map(_in_float32, outputs)  # else they would make the states what they are
        with encodings.given(self.pipeline, False, {PROMPT: prompts}):
            walked = self._walk(signature, self.terms.steps)
        given = [at(step.calls[0].arguments, TIMESTEP) for step in walked]
        return tuple(float(each.reshape(-1)[0]) for each in given)

    def _spacings(
        self, names: Sequence[str], encodings: Encodings, prompts: Conditioning
    ) -> dict[int, dict[str, Any]]:
        """What a call asks of its scheduler for each number of steps that it can make."""
        scheduler, found = self.pipeline.scheduler, {}
        original = scheduler.set_timesteps
        asked: list[dict[str, Any]] = []

        @wraps(original)
        def set_timesteps(*args: Any, **kwargs: Any) -> Any:
            bound = inspect.signature(original).bind(*args, **kwargs).arguments
            asked.append({name: _plain(value) for name, value in bound.items() if name != "device"})
            return original(*args, **kwargs)

        for steps in range(1, max(SPACINGS, self.terms.steps) + 1):
            arguments = {**self.call(False, 1, steps), "prompt": list(TEXTS[:1])}
            # Whatever a scheduler raises for so few steps, or so many.
            with (
                suppress(Exception),
                with_methods(scheduler, set_timesteps=set_timesteps),
                encodings.given(self.pipeline, False, {PROMPT: prompts}),
            ):
                cut(self.pipeline, names, arguments)
                found[steps] = asked[-1]
        if self.terms.steps not in found:
            raise UntraceableError(f"its scheduler cannot make {self.terms.steps} steps")
        return found

    def _image(self) -> str:
        """Where a call has its image."""
        arguments = {**self.call(False, 1, 2), "prompt": list(TEXTS[:1]), "output_type": "pt"}
        result = self.pipeline(**arguments)
        images_of(result[0], self.terms.size)
        return "frames[0][0]" if "frames" in result else "images[0]"

    def _drawn(self, steps: Sequence[Step]) -> Rearranged | None:
        """How the states that these steps begin with are made of noise."""
        original = self.pipeline.prepare_latents
        begun: list[tuple[torch.Tensor, float]] = []

        @wraps(original)
        def prepare_latents(*args: Any, **kwargs: Any) -> Any:
            made = original(*args, **kwargs)
            state = made[0] if isinstance(made, tuple) else made
            begun.append((state[0], float(getattr(self.pipeline.scheduler, "init_noise_sigma", 1))))
            raise _EnoughError

        def begin(seed: int) -> tuple[torch.Tensor, float]:
            asked = {"prompt": list(TEXTS[:1]), "generator": [torch.Generator().manual_seed(seed)]}
            with (
                suppress(_EnoughError),
                with_methods(self.pipeline, prepare_latents=prepare_latents),
            ):
                self.pipeline(**self.call(False, 1) | asked)
            return begun[-1]

        found = learn_noise(begin)
        if found is None:
            return None
        state = steps[0].state
        drawn = draw(found, range(len(TEXTS))) * begun[-1][1]
        return found if drawn.to(state).equal(state) else None

    def _decoded(
        self,
        names: Sequence[str],
        encodings: Encodings,
        prompts: Conditioning,
        shape: Sequence[int],
    ) -> Rearranged | None:
        """What becomes of the last state before the VAE decodes it."""
        pipeline, vae = self.pipeline, getattr(self.pipeline, "vae", None)
        if vae is None or not hasattr(getattr(vae, "decoder", None), "up_blocks"):
            return None
        step = pipeline.scheduler.step
        given: list[torch.Tensor] = []

        def decode(latents: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
            kwargs.pop("generator", None)
            if all(it is None or it is False for it in (*args, *kwargs.values())):
                given.append(latents)
            raise _EnoughError

        def moved(state: torch.Tensor) -> torch.Tensor:
            @wraps(step)
            def ends_so(*args: Any, **kwargs: Any) -> Any:
                result = step(*args, **kwargs)
                end = state.to(pipeline._execution_device)
                return (end, *result[1:]) if isinstance(result, tuple) else {"prev_sample": end}

            given.clear()
            arguments = {**self.call(False, 1), "prompt": list(TEXTS[:1]), "output_type": "pt"}
            with ExitStack() as stack:
                for name in names:
                    network = getattr(pipeline, name)
                    forward = _once(network, self._given[name])
                    stack.enter_context(with_methods(network, forward=forward))
                stack.enter_context(with_methods(pipeline.scheduler, step=ends_so))
                stack.enter_context(with_methods(vae, decode=decode))
                stack.enter_context(encodings.given(pipeline, False, {PROMPT: prompts}))
                stack.enter_context(suppress(_EnoughError))
                pipeline(**arguments)
            return given[0]

        try:
            found = learn_moves(moved, shape)
            sample = torch.randn(1, *shape, generator=torch.Generator().manual_seed(0))
            expected = moved(sample).cpu()
        except Exception:  # whatever a pipeline raises: most runs do not need it
            return None
        limit = ALIKE if expected.dtype == torch.float32 else LOW
        return found if found and distance(found.of(sample), expected) <= limit else None

    def _begun_again(self, steps: Sequence[Step]) -> float:
        """How far a call comes from these steps that begins with their state and has other
        generators."""
        others = [torch.Generator().manual_seed(7 + sample) for sample in range(len(TEXTS))]
        with beginning(self.pipeline, steps[0].state):
            found = trace(self.pipeline, {**self.of_texts(False)(TEXTS), "generator": others})
        return distance(found[-1].after, steps[-1].after)

    # ---- what is stored --------------------------------------------------------------------------

    def _prove_stored(
        self, learnt: Learnt, signature: Signature, steps: Sequence[Step]
    ) -> Iterator[Proof]:
        """That stored prompts, in one padded batch, give what live ones do.

        Args:
            signature: of the calls that `steps` are of.
        """
        family, argument = Traced(learnt), self.terms.image
        texts = family.encode(self.pipeline, TEXTS, 0)
        negative = dict(family.encode_negative(self.pipeline, self.terms.negative_prompt, 0))
        images: list[Conditioning] = []
        if argument:
            images = [family.encode_image(self.pipeline, image) for image in self.images]
            texts = [{**text, **images[0]} for text in texts]
            negative |= family.encode_image(self.pipeline, None)
        conditioning = family.pad(texts, 0)

        def drawn(is_guided: bool) -> float:
            scale = learnt.guidance_scale if is_guided or not learnt.unguided else 1.0
            request = Request(
                seeds=range(len(TEXTS)),
                conditioning=conditioning,
                negative=family.pad([negative] * len(TEXTS), 0),
                steps=STEPS,
                setting=Setting(learnt.size, scale),
                decode=False,
                dtype=signature.dtype,  # of prompts: a call may hold its states in float32
                further=self.terms.further if is_guided else {},
                image=self.images[0] if argument else None,
            )
            expected = trace(self.pipeline, self.of_texts(is_guided)(TEXTS))
            with without(self.pipeline, learnt.text_components), recording(self.pipeline) as found:
                family.generate(self.pipeline, request)
            return distance(found[-1].after, expected[-1].after)

        def predicted(conditioning: Conditioning, steps: Sequence[Step]) -> float:
            prompts = learnt.encodings.read(conditioning)
            return max(
                distance(
                    signature.predict(
                        getattr(self.pipeline, signature.components[number]),
                        step.state * signature.entry.scale(step),
                        prompts,
                        [number] * len(TEXTS),
                    ),
                    step.prediction,
                )
                for number, step in enumerate(steps)
            )

        def of_two_images() -> float:
            """Each prompt with another image: alone in the stock call, and in one batch."""
            stock = self.of_texts(False)
            alone = [
                trace(self.pipeline, stock([text]) | {argument: image})
                for text, image in zip(TEXTS, self.images, strict=True)
            ]
            given = [{**text, **image} for text, image in zip(texts, images, strict=True)]
            return predicted(
                family.pad(given, 0), [_joined(own) for own in zip(*alone, strict=True)]
            )

        attempts: Sequence[Callable[[], float]] = (
            lambda: drawn(False),
            lambda: drawn(self.is_guided),
            lambda: predicted(conditioning, steps),
            *((of_two_images,) if argument else ()),
        )
        for attempt, (claim, meaning) in zip(attempts, STORED, strict=False):
            yield tried(attempt, claim, ALIKE, meaning, signature.dtype)


class _EnoughError(Exception):
    """A call has told what was asked."""


def _rows(call: NetworkCall, signature: Signature) -> int:
    """Samples in one forward pass: both branches of guidance may be in one."""
    return len(at(call.arguments, signature.entry.place))


def _joined(steps: Sequence[Step]) -> Step:
    """One step of several samples, of theirs alone; the network's calls are the first's."""
    first = steps[0]
    return replace(
        first,
        state=torch.cat([step.state for step in steps]),
        prediction=torch.cat([step.prediction for step in steps]),
    )


def noise_image(size: Size, seed: int) -> Image.Image:
    """Noise of a seed, so that all of an image matters."""
    shape = (size.height, size.width, 3)
    return Image.fromarray(np.random.default_rng(seed).integers(0, 256, shape, np.uint8))


def _check(proofs: Sequence[Proof]) -> None:
    """Raise UntraceableError for the first claim that does not hold."""
    for proof in proofs:
        if not proof.holds:
            found = proof.error or f"they differ by {proof.distance:.2g} of the largest value"
            raise UntraceableError(f"not so: {proof.claim} ({found}): {proof.meaning}")


def _once(network: torch.nn.Module, given: list[Any]) -> Callable[..., Any]:
    """A `forward` that is computed once, for `given`."""
    original = network.forward

    def forward(*args: Any, **kwargs: Any) -> Any:
        if not given:
            given.append(original(*args, **kwargs))
        return given[0]

    return forward


def _in_float32(output: Any) -> Any:
    """What a network returns, in float32."""
    if isinstance(output, Mapping):
        return type(output)(**{name: _in_float32(item) for name, item in output.items()})
    if isinstance(output, list | tuple):
        return type(output)(map(_in_float32, output))
    return output.float() if isinstance(output, torch.Tensor) else output


def _plain(value: Any) -> Any:
    """An argument of `set_timesteps` that JSON can hold."""
    if isinstance(value, torch.Tensor | np.ndarray | np.generic):
        return value.tolist()
    return value
