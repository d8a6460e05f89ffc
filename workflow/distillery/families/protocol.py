"""What the rest of Distillery may ask of a model family, and the words it is asked in.

A family answers by calling the stock Diffusers pipeline, never by rewriting it. All that differs
between Wan, SDXL, SD3 or FLUX is behind this protocol; there is no `if family ==` elsewhere.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from PIL import Image

from distillery.schedule import PredictionType

Conditioning = Mapping[str, torch.Tensor]
"""What a prompt becomes. For one prompt: name to (l, ...), unpadded. For a batch: (b, l, ...)."""

Pipeline = Any
"""A Diffusers pipeline; Diffusers ships no types."""
Scheduler = Any
"""A Diffusers scheduler."""
Denoiser = torch.nn.Module


@dataclass(frozen=True)
class Schedule:
    """A scheduler's grid for one number of steps, as numbers.

    Attributes:
        timesteps: one a step, as the network receives them (int or float by the scheduler's type).
        alphas, sigmas: one a state, so one more than steps; the last state is clean (1, 0).
    """

    timesteps: tuple[int | float, ...]
    alphas: tuple[float, ...]
    sigmas: tuple[float, ...]


@dataclass(frozen=True)
class Request:
    """One call of the stock pipeline for a batch.

    Attributes:
        noise: (b, *latent) float32 on the CPU.
        conditioning, negative: padded batches; negative is used with guidance only.
        steps: denoising steps.
        guidance_scale: 1.0 is off.
        height, width: pixels.
        decode: whether pictures are wanted, or the latents alone.
    """

    noise: torch.Tensor
    conditioning: Conditioning
    negative: Conditioning
    steps: int
    guidance_scale: float
    height: int
    width: int
    decode: bool


class Family(Protocol):
    """The adapter of one model family."""

    name: str
    pipeline_classes: tuple[str, ...]
    denoiser: str
    """Name of the pipeline's component that denoises."""
    text_components: tuple[str, ...]
    """Names of the components that only encode prompts; not loaded once embeddings exist."""
    max_sequence_length: int
    """Text tokens that the stock pipeline pads to by default."""
    blocks: str
    """Attribute of the denoiser that lists its repeated blocks."""
    blocks_config: str
    """Key of the denoiser's configuration that counts them."""
    call_options: Mapping[str, object]
    """Arguments that a call of the pipeline for one picture needs beside the usual ones."""
    picture: str
    """Where that call's result holds the picture, e.g. `images[0]`."""

    def encode(
        self, pipeline: Pipeline, prompts: Sequence[str], max_sequence_length: int
    ) -> list[Conditioning]:
        """Encode prompts as the stock pipeline does; each unpadded, on the CPU.

        Raises ValueError for a prompt of more tokens than `max_sequence_length`.
        """
        ...

    def pad(self, prompts: Sequence[Conditioning], max_sequence_length: int) -> Conditioning:
        """Stack unpadded prompts to a batch, padded exactly as the stock pipeline pads."""
        ...

    def latent_shape(self, pipeline: Pipeline, height: int, width: int) -> tuple[int, ...]:
        """Shape of one sample's latents; raises ValueError for a size the model cannot make."""
        ...

    def generate(self, pipeline: Pipeline, request: Request) -> list[Image.Image]:
        """Call the stock pipeline once. Pictures if `decode`, else an empty list."""
        ...

    def predict(
        self,
        denoiser: Denoiser,
        noisy: torch.Tensor,
        timestep: torch.Tensor,
        conditioning: Conditioning,
    ) -> torch.Tensor:
        """One conditional forward pass, fed as the stock pipeline feeds it.

        noisy (b, *latent), timestep (b,), conditioning padded; returns (b, *latent).
        """
        ...

    def prediction_type(self, scheduler: Scheduler) -> PredictionType:
        """What the denoiser predicts, by its scheduler's configuration."""
        ...

    def schedule(self, scheduler: Scheduler, steps: int) -> Schedule:
        """The grid of `steps` steps that the stock pipeline would use."""
        ...

    def few_step_scheduler(self, scheduler: Scheduler, steps: int) -> Scheduler:
        """A deterministic first-order scheduler on the same grid, for the student's export."""
        ...
