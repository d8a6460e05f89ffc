"""What the rest of Distillery may ask of a model family, and the types that it uses for that.

A family answers by calling the stock Diffusers pipeline, never by rewriting it. All that differs
between Wan, SDXL, SD3 or FLUX is behind this protocol; there is no `if family ==` elsewhere.
"""

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, Protocol, Self

import torch
from PIL import Image

from distillery.config.section import steps_within
from distillery.families.beginning import beginning
from distillery.families.size import Size
from distillery.families.text import Reader, on
from distillery.noise import draw_noise
from distillery.schedulers import Scheduler

Conditioning = Mapping[str, torch.Tensor]
"""What a prompt becomes. For one prompt: name to (l, ...), unpadded; one vector is (1, d). For a
batch: (b, l, ...) or, for one vector, (b, d)."""

Pipeline = Any
"""A Diffusers pipeline; Diffusers ships no types."""
Denoiser = torch.nn.Module


@dataclass(frozen=True)
class Setting:
    """What a denoiser may receive beside state, timestep and prompt.

    Attributes:
        guidance_scale: 1.0 is off; only a network that takes the scale as an input sees it.
        guidance_scale_2: of a pipeline's second network; None: the same.
        guidance_interval: shares of a walk's steps that are guided; None: all. One stock call does
            not know of it, see `generation.calling`.
    """

    size: Size
    guidance_scale: float
    guidance_scale_2: float | None = None
    guidance_interval: tuple[float, float] | None = None

    @property
    def guidance(self) -> dict[str, float]:
        """The scales by name, the second only where it is given."""
        first = {"guidance_scale": self.guidance_scale}
        if self.guidance_scale_2 is None:
            return first
        return first | {"guidance_scale_2": self.guidance_scale_2}

    @property
    def unguided(self) -> Self:
        """Of steps without guidance."""
        return replace(self, guidance_scale=1.0, guidance_scale_2=None, guidance_interval=None)

    def parts(self, steps: range, num_steps: int) -> list[tuple[range, Self]]:
        """Some steps of a walk of `num_steps`, cut where guidance begins or ends; each part with
        its setting, which has no interval."""
        guided = steps_within(self.guidance_interval, num_steps)
        whole = replace(self, guidance_interval=None)
        cuts = (
            (range(steps.start, guided.start), self.unguided),
            (guided, whole),
            (range(guided.stop, steps.stop), self.unguided),
        )
        parts = [(range(max(it.start, steps.start), min(it.stop, steps.stop)), setting)
                 for it, setting in cuts]  # fmt: skip
        return [(part, setting) for part, setting in parts if part]


@dataclass(frozen=True)
class Request:
    """One call of the stock pipeline for a batch.

    Attributes:
        seeds: of the b samples' noise, from `noise.noise_seed`.
        conditioning, negative: padded batches; negative is used with guidance only.
        decode: whether images are wanted, or the latents alone.
        dtype: of the embeddings. Stock pipelines hold the states in it, too.
        latents: (b, *latent), the scheduler's own state that the call begins with instead of its
            seeds' noise.
        further: arguments of the stock call beside these, as `teacher.call` has them.
        image: that a call for one prompt is given, where the pipeline takes one.
    """

    seeds: Sequence[int]
    conditioning: Conditioning
    negative: Conditioning
    steps: int
    setting: Setting
    decode: bool
    dtype: torch.dtype
    latents: torch.Tensor | None = None
    further: Mapping[str, Any] = field(default_factory=dict)
    image: Image.Image | None = None


class Family(Protocol):
    """The adapter of one model family; adapters inherit what most of them share."""

    name: str
    pipeline_classes: tuple[str, ...]
    is_flow: bool = False
    """Whether every network of the family predicts a flow; else its folder's scheduler tells."""
    denoisers: tuple[str, ...] = ("transformer",)
    """Names of the pipeline's components that denoise; a folder may lack all but the first."""
    single_network: Mapping[str, object] = MappingProxyType({})
    """Entries of model_index.json for a student, which has one network where a teacher has more."""
    text_components: tuple[str, ...]
    """Names of the components that only encode prompts; not loaded once embeddings exist."""
    may_lack: tuple[str, ...] = ()
    """Those of `text_components` that a pipeline may do without."""
    max_sequence_length: int
    """Text tokens that the stock pipeline pads to by default."""
    longest_sequence: int | None = None
    """The largest `max_sequence_length` that the stock call takes; None: any."""
    time_embeddings: tuple[str, ...] = ()
    """Parts of names of the denoiser's parameters that turn the time into what its blocks do: the
    layers that embed it, and what each block has of its own. Where a block has a whole matrix for
    it, as large as its attention, only what it adds. Empty: they cannot be learned alone."""
    interface: tuple[str, ...] = ("in_channels", "out_channels", "patch_size")
    """Keys of the denoiser's configuration that say what goes in and comes out: a student of a
    shape of its own takes them from its teacher."""
    compiles_by_block: bool = True
    """Whether the denoiser is compiled by its repeated blocks, which takes seconds and loses
    nothing where all the work is in them; else whole, which takes a minute."""
    no_negative: str | None = None
    """The text that guides where no negative prompt is given and the stock call would then not
    guide; None: it guides, by what `encode_no_negative` gives."""
    guidance_argument: str = "guidance_scale"
    """The call's argument that means classifier-free guidance."""
    no_guidance: float = 1.0
    """Its value for none."""
    casts_latents: bool = True
    """Whether the stock call casts latents to the VAE's type before it decodes them; where it does
    not, the student's card does."""
    starts_in_float32: bool = False
    """Whether the stock call draws noise in float32, whatever the type of the embeddings."""
    in_float32: frozenset[tuple[str | int, ...]] = frozenset()
    """Places of the network's arguments, beside timestep and states, that are float32 in the stock
    call of lower precision, too."""
    stock_multiple: int = 1
    """Pixels of which the stock call wants heights and widths to be multiples, whatever the VAE."""
    bytes_per_prompt: int | None = None
    """That are stored; None: by `stored_tokens` and the network's width."""
    image: str = "images[0]"
    """Where that call's result holds the image, e.g. `images[0]`."""
    clip: str | None = None
    """Where it holds all frames of the first clip; None: the family makes single images."""

    def call_options(self, max_sequence_length: int) -> Mapping[str, object]:
        """Arguments that a call of the pipeline for one sample needs beside the usual ones."""
        return {}

    def frames(self, size: Size) -> Mapping[str, int]:
        """The call's argument for the frames of a clip, where it takes one."""
        return {"num_frames": size.num_frames} if self.clip else {}

    def readers(self, pipeline: Pipeline, max_sequence_length: int) -> Sequence[Reader]:
        """The tokenizers, and how much each reads of a prompt, to check that nothing is cut."""
        ...

    def encode(
        self, pipeline: Pipeline, prompts: Sequence[str], max_sequence_length: int
    ) -> list[Conditioning]:
        """Encode prompts as the stock pipeline does; each unpadded, on the CPU."""
        ...

    def encode_image(self, pipeline: Pipeline, image: Image.Image | None) -> Conditioning:
        """What is stored of a prompt's image, beside the prompt; unpadded, on the CPU.

        Args:
            image: None for a negative prompt, which has none.
        """
        return {}

    def stored_tokens(self, max_sequence_length: int) -> int | None:
        """How many text tokens are stored of each prompt; None: as many as it has."""
        return None

    def encode_negative(
        self, pipeline: Pipeline, prompt: str | None, max_sequence_length: int
    ) -> Conditioning:
        """The negative prompt, or what the stock pipeline takes where none is given; unpadded."""
        if prompt is None:
            return self.encode_no_negative(pipeline, max_sequence_length)
        return self.encode(pipeline, [prompt], max_sequence_length)[0]

    def encode_no_negative(self, pipeline: Pipeline, max_sequence_length: int) -> Conditioning:
        """What the stock pipeline takes for the negative prompt where none is given; unpadded."""
        return self.encode(pipeline, [self.no_negative or ""], max_sequence_length)[0]

    def is_cut(self, pipeline: Pipeline, prompt: str, encoded: Conditioning) -> bool:
        """Whether the end of a prompt is not in what it was encoded to; where `readers` tell how
        much is read, they told it before."""
        return False

    def pad(self, prompts: Sequence[Conditioning], max_sequence_length: int) -> Conditioning:
        """Stack unpadded prompts to a batch, padded exactly as the stock pipeline pads."""
        ...

    def latent_shape(self, pipeline: Pipeline, size: Size) -> tuple[int, ...]:
        """Shape of one sample's latents as the scheduler sees them.

        Raises ValueError for a size that the model cannot make; several frames are refused before
        where `clip` is None.
        """
        ...

    def noise(self, pipeline: Pipeline, seeds: Sequence[int], setting: Setting) -> torch.Tensor:
        """The noise that the stock call draws with a CPU generator of each seed.

        Returns what the call takes as `latents`, (b, *latent) float32 on the CPU.
        """
        return draw_noise(seeds, self.latent_shape(pipeline, setting.size))

    def set_timesteps(
        self, scheduler: Scheduler, steps: int, latent_shape: tuple[int, ...]
    ) -> None:
        """Set a scheduler's timesteps as the stock pipeline's call would."""
        scheduler.set_timesteps(steps)

    def has_guidance_embedding(self, denoiser_config: Mapping[str, Any]) -> bool:
        """Whether the network takes the guidance scale as an input: one call per step, not two."""
        return False

    def kept_config(
        self, denoiser_config: Mapping[str, Any], layers: Sequence[int]
    ) -> Mapping[str, object]:
        """What else changes in a denoiser's configuration when only some blocks are kept.

        Raises ValueError for a block that the network cannot do without.
        """
        return {}

    def calls_per_walk(
        self, denoiser_config: Mapping[str, Any], setting: Setting, num_steps: int
    ) -> int:
        """Forward passes for one sample and all its steps."""
        parts = setting.parts(range(num_steps), num_steps)
        return sum(
            len(steps) * self.calls_per_step(denoiser_config, each.guidance_scale)
            for steps, each in parts
        )

    def calls_per_step(self, denoiser_config: Mapping[str, Any], guidance_scale: float) -> int:
        """Forward passes for one sample and step, whichever network makes them.

        A second network's own scale does not count: stock pipelines look at `guidance_scale` alone,
        and make both passes for a scale of 1.0 too.
        """
        return 2 if guidance_scale > 1.0 and not self.has_guidance_embedding(denoiser_config) else 1

    def stock_timestep(self, float32_timestep: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """The network's `timestep` as the stock call with states of `dtype` computes it.

        `float32_timestep`: what the same call computes with float32 states.
        """
        return float32_timestep

    def vae_latents(self, latents: torch.Tensor, setting: Setting) -> torch.Tensor:
        """A sampler's latents (b, *latent) in the shape that the VAE takes, (b, c, ...)."""
        return latents

    def vae_input(
        self, latents: torch.Tensor, setting: Setting, vae_config: Mapping[str, Any]
    ) -> torch.Tensor:
        """A sampler's latents (b, *latent) as the stock call gives them to the VAE."""
        return denormalised(self.vae_latents(latents, setting), vae_config)

    def latents_of(self, states: torch.Tensor) -> torch.Tensor:
        """The latents (b, *latent) that a scheduler's states are, where a pipeline hands them to it
        in another layout."""
        return states

    def call_arguments(
        self, pipeline: Pipeline, prompts: Conditioning, negative: Conditioning, setting: Setting
    ) -> Mapping[str, object]:
        """What the stock call takes beside noise, size and steps: embeddings and guidance.

        `prompts` and `negative` are padded batches on the device, in the request's type.
        """
        ...

    def images(self, result: torch.Tensor, size: Size) -> torch.Tensor:
        """The images (b, 3, h, w), or clips (b, f, 3, h, w), in what the stock call returns."""
        return result

    def generate(self, pipeline: Pipeline, request: Request) -> torch.Tensor | None:
        """Call the stock pipeline once, with stored embeddings and the samples' own noise.

        Returns images (b, 3, h, w) or clips (b, f, 3, h, w) in [0, 1] if `decode`, else None.
        """
        device, setting = pipeline._execution_device, request.setting
        prompts = on(request.conditioning, device, request.dtype)
        negative = on(request.negative, device, request.dtype)
        latents = request.latents
        if latents is None:
            latents = self.noise(pipeline, request.seeds, setting)
        dtype = torch.float32 if self.starts_in_float32 else request.dtype
        with beginning(pipeline, request.latents):
            result: torch.Tensor = pipeline(
                **self.call_arguments(pipeline, prompts, negative, setting),
                latents=latents.to(device, dtype),
                height=setting.size.height,
                width=setting.size.width,
                **self.frames(setting.size),
                num_inference_steps=request.steps,
                output_type="pt" if request.decode else "latent",
                return_dict=False,
                **as_annotated(pipeline, request.further),
            )[0]
        return self.images(result, setting.size) if request.decode else None

    def predict(
        self,
        denoiser: Denoiser,
        noisy: torch.Tensor,
        timestep: torch.Tensor,
        conditioning: Conditioning,
        setting: Setting,
    ) -> torch.Tensor:
        """One conditional forward pass, fed as the stock pipeline feeds it.

        noisy (b, *latent) already divided by its schedule's scale, timestep (b,), conditioning
        padded; returns (b, *latent).
        """
        ...

    def predict_until(
        self,
        denoiser: Denoiser,
        noisy: torch.Tensor,
        timestep: torch.Tensor,
        until: torch.Tensor,
        conditioning: Conditioning,
        setting: Setting,
    ) -> torch.Tensor:
        """`predict` for a step that ends at the timesteps `until` (b,), which only the networks of
        flow maps are told."""
        return self.predict(denoiser, noisy, timestep, conditioning, setting)


def denormalised(latents: torch.Tensor, config: Mapping[str, Any]) -> torch.Tensor:
    """Latents (b, c, ...) as the VAE made them, by its configuration, as stock pipelines do it."""
    scale = config.get("scaling_factor", None) or 1.0
    shift = config.get("shift_factor", None) or 0.0
    mean, std = config.get("latents_mean", None), config.get("latents_std", None)
    if mean is None or std is None:
        return latents / scale + shift
    shape = (1, -1, *[1] * (latents.ndim - 2))
    return latents * latents.new_tensor(std).view(shape) / scale + latents.new_tensor(mean).view(
        shape
    )


def as_annotated(pipeline: Pipeline, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments of a stock call with tuples for lists where it takes tuples; YAML has lists."""
    kinds = inspect.signature(type(pipeline).__call__).parameters
    return {
        name: tuple(value)
        if isinstance(value, list) and "tuple" in str(kinds[name].annotation).lower()
        else value
        for name, value in arguments.items()
    }
