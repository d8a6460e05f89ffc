"""A family that nobody wrote: what a pipeline's own calls told of it."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from copy import copy
from functools import wraps
from inspect import BoundArguments, signature
from typing import Any

import torch
from PIL import Image

from distillery.families.beginning import beginning
from distillery.families.encodings import NEGATIVE, PROMPT, TEXTS
from distillery.families.learnt import Learnt
from distillery.families.of_images import ImageEncodings
from distillery.families.protocol import (
    Conditioning,
    Denoiser,
    Family,
    Pipeline,
    Request,
    Setting,
    as_annotated,
)
from distillery.families.rearranged import draw
from distillery.families.recording import Place, cut
from distillery.families.size import Size
from distillery.families.text import TEXT, Reader, on
from distillery.schedulers import Scheduler, with_methods

TRACED = "traced"
"""The name of every family that was learnt."""
DENOISERS = ("transformer", "unet")
"""How those of networks begin that denoise."""
TIMESTEP = ("timestep",)
"""The place of a network's argument of that name."""
FRAMES = ("num_frames", "frames")
"""Names of the argument that counts a clip's frames."""
NEAR = 1e-4
"""Relative distance of equal timesteps."""


class Traced(Family):
    """A family made of what was learnt, with the defaults of the protocol for what was not."""

    name = TRACED
    casts_latents = False

    def __init__(self, learnt: Learnt) -> None:
        """Of one pipeline at one size."""
        self.learnt = learnt
        self.pipeline_classes = (learnt.pipeline_class,)
        self.denoisers = tuple(dict.fromkeys(learnt.signature.components))
        self.text_components = learnt.text_components
        self.may_lack = learnt.text_components
        self.max_sequence_length = learnt.max_sequence_length
        self.guidance_argument = learnt.scale
        self.no_guidance = learnt.unguided.get(self.guidance_argument, 1.0)
        self.bytes_per_prompt = learnt.prompt_bytes
        self.image, self.clip = learnt.image, learnt.clip
        self.in_float32 = learnt.signature.in_float32 | _in_float32(learnt)

    def frames(self, size: Size) -> Mapping[str, int]:
        """Under the name that the class has for it."""
        if not self.clip:
            return {}
        import diffusers

        return {frames_argument(getattr(diffusers, self.learnt.pipeline_class)): size.num_frames}

    def call_options(self, max_sequence_length: int) -> Mapping[str, object]:
        """What a call without guidance is told beside the scale."""
        off = dict(self.learnt.unguided)
        off.pop(self.guidance_argument, None)
        return {**self._always(max_sequence_length), **off}

    def _always(self, max_sequence_length: int) -> dict[str, object]:
        length = {"max_sequence_length": max_sequence_length} if max_sequence_length else {}
        return {**length, **self.learnt.always}

    def readers(self, pipeline: Pipeline, max_sequence_length: int) -> Sequence[Reader]:
        """None: how much is read of a prompt is seen by `is_cut`, when it is encoded."""
        return []

    def encode(
        self, pipeline: Pipeline, prompts: Sequence[str], max_sequence_length: int
    ) -> list[Conditioning]:
        """One by one, as the stock call's `encode_prompt` is asked."""
        return [self.learnt.encodings.encode(pipeline, PROMPT, prompt) for prompt in prompts]

    def encode_negative(
        self, pipeline: Pipeline, prompt: str | None, max_sequence_length: int
    ) -> Conditioning:
        """As the guided call does; where that reads none, the shape of one."""
        encodings = self.learnt.encodings
        if encodings.reads_negatives:
            return encodings.encode(pipeline, NEGATIVE, prompt)
        parts = encodings.encode(pipeline, PROMPT, "")
        return {name: torch.zeros_like(part) for name, part in parts.items()}

    def encode_image(self, pipeline: Pipeline, image: Image.Image | None) -> Conditioning:
        """What a call with the image gives its network of it; that is not asked."""
        learnt, encodings, size = self.learnt, self.learnt.encodings, self.learnt.size
        if not isinstance(encodings, ImageEncodings):
            return {}
        if image is None:
            return encodings.absent
        if (image.height, image.width) != (size.height, size.width):
            raise ValueError(
                f"an image is {image.height} pixels high and {image.width} wide, and the teacher's "
                f"are {size.height} and {size.width}"
            )
        arguments = {
            "prompt": [TEXTS[0]],
            encodings.argument: image,
            **self._always(learnt.max_sequence_length),
            **learnt.unguided,
            "height": size.height,
            "width": size.width,
            **self.frames(size),
            "num_inference_steps": len(learnt.timesteps),
            "generator": [torch.Generator().manual_seed(0)],
            "output_type": "latent",
        }
        with starting(pipeline, with_image=True):
            return encodings.parts_of(cut(pipeline, self.denoisers, arguments))

    def is_cut(self, pipeline: Pipeline, prompt: str, encoded: Conditioning) -> bool:
        """Whether the pipeline leaves the end of a prompt unread: without its last word, or letter
        where it is one word, it is the same."""
        words = prompt.split()
        shorter = prompt[: prompt.rindex(words[-1])] if len(words) > 1 else prompt[:-1]
        parts = self.learnt.encodings.encode(pipeline, PROMPT, shorter.rstrip())
        return all(torch.equal(part, encoded[name]) for name, part in parts.items())

    def pad(self, prompts: Sequence[Conditioning], max_sequence_length: int) -> Conditioning:
        """Zeros after shorter ones; the trace has proved that they change nothing."""
        return self.learnt.encodings.pad(prompts)

    def latent_shape(self, pipeline: Pipeline, size: Size) -> tuple[int, ...]:
        """As traced; raises ValueError for another size."""
        if size != self.learnt.size:
            raise ValueError(f"its pipeline was traced {self.learnt.size}, and not {size}")
        return self.learnt.latent_shape

    def noise(self, pipeline: Pipeline, seeds: Sequence[int], setting: Setting) -> torch.Tensor:
        """As it was seen to be drawn."""
        assert self.learnt.drawn is not None, "the plan refuses what needs it"
        return draw(self.learnt.drawn, seeds)

    def set_timesteps(
        self, scheduler: Scheduler, steps: int, latent_shape: tuple[int, ...]
    ) -> None:
        """What the stock call asked for so many steps."""
        spacings = self.learnt.spacings
        if steps not in spacings:
            raise ValueError(f"its pipeline was traced with up to {max(spacings)} steps")
        scheduler.set_timesteps(**spacings[steps])

    def has_guidance_embedding(self, denoiser_config: Mapping[str, Any]) -> bool:
        """Where nothing switches guidance off."""
        return not self.learnt.unguided

    def calls_per_step(self, denoiser_config: Mapping[str, Any], guidance_scale: float) -> int:
        """As counted in a guided call."""
        return self.learnt.calls_per_step if self._is_guided(guidance_scale) else 1

    def stock_timestep(self, float32_timestep: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """Rounded as it was seen to be, where it was."""
        if not self.learnt.exact:
            return float32_timestep
        # All at once: there may be one for each token.
        device = float32_timestep.device
        exact = torch.tensor(self.learnt.exact, device=device)
        clocks = self.learnt.signature.clocks[TIMESTEP]
        rounded = torch.stack([each.reshape(-1)[0] for each in clocks]).to(device)
        return rounded[(float32_timestep.unsqueeze(-1) - exact).abs().argmin(-1)]

    def vae_input(
        self, latents: torch.Tensor, setting: Setting, vae_config: Mapping[str, Any]
    ) -> torch.Tensor:
        """As it was seen to be given."""
        assert self.learnt.decoded is not None, "the plan refuses what needs it"
        return self.learnt.decoded.of(latents)

    def _is_guided(self, scale: float) -> bool:
        return scale > 1.0 and bool(self.learnt.unguided)

    def _guidance(self, scale: float) -> dict[str, Any]:
        """The call's arguments for a scale; 1.0 is off."""
        if not self.learnt.unguided or self._is_guided(scale):
            return {self.guidance_argument: scale} if self.guidance_argument else {}
        return dict(self.learnt.unguided)

    def call_arguments(
        self, pipeline: Pipeline, prompts: Conditioning, negative: Conditioning, setting: Setting
    ) -> dict[str, Any]:
        """Empty texts in the place of those that are stored, and guidance."""
        size = len(next(iter(prompts.values())))
        texts = {"prompt": [""] * size}
        if self._is_guided(setting.guidance_scale) and self.learnt.encodings.reads_negatives:
            texts["negative_prompt"] = [""] * size
        always = self._always(self.learnt.max_sequence_length)
        return {**texts, **always, **self._guidance(setting.guidance_scale)}

    def generate(self, pipeline: Pipeline, request: Request) -> torch.Tensor | None:
        """Call the stock pipeline, which draws its noise in float32 with a generator per sample."""
        learnt, device, setting = self.learnt, pipeline._execution_device, request.setting
        is_guided = self._is_guided(setting.guidance_scale)
        parts = {
            PROMPT: on(request.conditioning, device, request.dtype),
            NEGATIVE: on(request.negative, device, request.dtype),
        }
        given = self.call_arguments(pipeline, parts[PROMPT], parts[NEGATIVE], setting)
        # What a call begins with is given to it: the seeds then draw nothing that counts.
        seeds = request.seeds or range(len(given["prompt"]))
        with (
            learnt.encodings.given(pipeline, is_guided, parts),
            starting(pipeline, request.image is not None),
            beginning(pipeline, request.latents),
        ):
            result: torch.Tensor = pipeline(
                **given,
                generator=[torch.Generator().manual_seed(seed) for seed in seeds],
                height=setting.size.height,
                width=setting.size.width,
                **self.frames(setting.size),
                num_inference_steps=request.steps,
                output_type="pt" if request.decode else "latent",
                **self._image(request.image),
                return_dict=False,
                **as_annotated(pipeline, request.further),
            )[0]
        return images_of(result, setting.size) if request.decode else None

    def _image(self, image: Image.Image | None) -> dict[str, Any]:
        encodings = self.learnt.encodings
        if not isinstance(encodings, ImageEncodings):
            return {}
        return {encodings.argument: image}

    def predict(
        self,
        denoiser: Denoiser,
        noisy: torch.Tensor,
        timestep: torch.Tensor,
        conditioning: Conditioning,
        setting: Setting,
    ) -> torch.Tensor:
        """The network is given what it was seen to get at these timesteps."""
        learnt = self.learnt
        prompts = learnt.encodings.read(conditioning)
        steps = [self._step(float(each)) for each in timestep]
        return learnt.signature.predict(denoiser, noisy, prompts, steps)

    def _step(self, timestep: float) -> int:
        known = self.learnt.timesteps
        step = _nearest(known, timestep)
        if abs(known[step] - timestep) > NEAR * max(known):
            raise ValueError(f"its pipeline was traced at no timestep {timestep:g}")
        return step


def _in_float32(learnt: Learnt) -> set[Place]:
    """Places of tables that every prompt has, and that are float32 where states are not."""
    signature = learnt.signature
    return {
        place
        for place, table in learnt.encodings.readings.items()
        if isinstance(table, torch.Tensor)
        and table.ndim > 1
        and table.dtype == torch.float32 != signature.dtype
        and place != signature.entry.place
    }


def _nearest(values: Sequence[float], value: float) -> int:
    """The place of the value that is nearest."""
    return min(range(len(values)), key=lambda place: abs(values[place] - value))


def frames_argument(kind: type) -> str:
    """What a pipeline's call names the frames of a clip; "" where it makes none."""
    takes = signature(kind.__call__).parameters
    return next((name for name in FRAMES if name in takes), "")


class Unknown(Traced):
    """Of a pipeline that is still to be learnt: enough to load it."""

    def __init__(self, components: Mapping[str, str]) -> None:
        """Args: `components` are the classes of its components, by name."""
        self.denoisers = tuple(name for name in components if name.startswith(DENOISERS))
        self.text_components = tuple(name for name in components if name.startswith(TEXT))
        if not self.denoisers:
            raise ValueError(f"it has no component whose name begins with {' or '.join(DENOISERS)}")


def images_of(result: torch.Tensor, size: Size) -> torch.Tensor:
    """Images (b, 3, h, w), or clips (b, f, 3, h, w), of what a call returns.

    Raises ValueError for another number of frames.
    """
    if result.ndim == 4 and not size.is_clip:
        return result
    frames = result.transpose(1, 2) if result.ndim == 5 and result.shape[2] != 3 else result
    if frames.ndim != 5 or frames.shape[1:3] != (size.num_frames, 3):
        raise ValueError(
            f"its call returns {tuple(result.shape)}, and teacher.num_frames is {size.num_frames}"
        )
    return frames if size.is_clip else frames[:, 0]


def _as_now(bound: BoundArguments) -> BoundArguments:
    """Arguments that a call leaves as they are: with generators of its own in the same states."""
    copied = copy(bound)
    copied.arguments = dict(bound.arguments)
    given = bound.arguments.get("generator")
    if isinstance(given, list):
        copied.arguments["generator"] = [each.clone_state() for each in given]
    elif given is not None:
        copied.arguments["generator"] = given.clone_state()
    return copied


@contextmanager
def starting(pipeline: Pipeline, with_image: bool = False) -> Iterator[None]:
    """Let a call draw its noise in float32, whatever its type.

    In bfloat16 another noise would be drawn: the same sample would have two. An image is rounded as
    the stock call rounds it, and encoded in the VAE's own type.

    Args:
        with_image: whether the call is given one.
    """
    original = pipeline.prepare_latents
    takes = signature(original)

    @wraps(original)
    def prepare_latents(*args: Any, **kwargs: Any) -> Any:
        bound = takes.bind(*args, **kwargs)
        dtype = bound.arguments.get("dtype")
        is_rounded = with_image and dtype not in (None, torch.float32)
        # Where the stock call rounds the image, all of it but the state is made so.
        stock = _as_now(bound) if is_rounded else None
        if "dtype" in takes.parameters:
            bound.arguments["dtype"] = torch.float32
        made = original(*bound.args, **bound.kwargs)
        state = made[0] if isinstance(made, tuple) else made
        state = state.to(dtype or state.dtype)
        if not isinstance(made, tuple):
            return state
        others = original(*stock.args, **stock.kwargs) if stock else made
        return (state, *others[1:])

    with ExitStack() as stack:
        stack.enter_context(with_methods(pipeline, prepare_latents=prepare_latents))
        if with_image:
            encode = pipeline.vae.encode

            @wraps(encode)
            def in_own_type(images: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
                found = encode(images.to(pipeline.vae.dtype), *args, **kwargs)
                if hasattr(found, "latent_dist"):
                    found.latent_dist.mean = found.latent_dist.mean.to(images.dtype)
                return found

            stack.enter_context(with_methods(pipeline.vae, encode=in_own_type))
        yield
