"""Draw with a student that is in memory: the stock pipeline around it, without a copy of it."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Self

import torch

from distillery.config.section import Dtype
from distillery.config.teacher import Teacher
from distillery.families import Family, Request, Setting, family_named
from distillery.families.protocol import Conditioning, Denoiser, Pipeline
from distillery.files import read_json
from distillery.identity import SampleId, noise_seed
from distillery.pixels import Pixels, as_bytes
from distillery.teacher.decoding import guard_decoding
from distillery.teacher.find import INDEX, components_left_out, find_teacher
from distillery.teacher.loading import retell_timestep, torch_dtype
from distillery.training.dataset import student_scheduler
from distillery.training.inspection import inspecting


@dataclass(frozen=True)
class Drawer:
    """A pipeline whose network is the student, and what its call takes.

    Attributes:
        pipeline: with the student, its scheduler and the teacher's VAE, without text encoders.
        family: of the teacher.
        denoiser: the student, the very object.
        recipe: of the targets.
        steps: of the student.
        device, dtype: of the forward pass; the VAE decodes in its own type.
    """

    pipeline: Pipeline
    family: Family
    denoiser: Denoiser
    recipe: Mapping[str, Any]
    steps: int
    device: torch.device
    dtype: torch.dtype

    @classmethod
    def around(
        cls,
        denoiser: Denoiser,
        teacher: Teacher,
        recipe: Mapping[str, Any],
        steps: int,
        device: torch.device,
        dtype: Dtype,
    ) -> Self:
        """Build the pipeline; of the teacher's weights the VAE's alone are read.

        Raises:
            FileNotFoundError: the teacher's folder is not whole.
        """
        import diffusers
        from diffusers.utils.logging import disable_progress_bar

        disable_progress_bar()
        folder, family = find_teacher(teacher), family_named(recipe["family"])
        absent: dict[str, object] = dict.fromkeys(
            (*family.text_components, *family.denoisers[1:], *components_left_out(folder))
        )
        own = {
            family.denoisers[0]: denoiser,
            "scheduler": student_scheduler(recipe, steps),
            **family.single_network,
        }
        # Of the very class: DiffusionPipeline itself does not know which components a class takes
        # as optional, and would load the teacher's network over the one that it is given.
        pipeline_class = getattr(diffusers, read_json(folder / INDEX)["_class_name"])
        pipeline = pipeline_class.from_pretrained(
            folder,
            dtype={"default": torch.float32, "vae": torch_dtype(teacher.vae_dtype)},
            variant=teacher.variant,
            local_files_only=True,
            **(absent | own),
        )
        assert getattr(pipeline, family.denoisers[0]) is denoiser, "the student itself"
        pipeline.set_progress_bar_config(disable=True)
        pipeline.vae.requires_grad_(False).to(device)
        guard_decoding(pipeline)
        _decode_without_autocast(pipeline, device)
        return cls(pipeline, family, denoiser, recipe, steps, device, torch_dtype(dtype))

    def draw(
        self, seed: int, sample: SampleId, prompt: Conditioning, negative: Conditioning
    ) -> Pixels:
        """One picture (h, w, 3), as the student draws it now; one at a time takes least memory.

        Args:
            seed: of the run.
            sample: whose noise it begins with.
            prompt, negative: unpadded embeddings; the second only fills the call's place.
        """
        length = int(self.recipe["max_sequence_length"])
        request = Request(
            seeds=[noise_seed(seed, sample)],
            conditioning=self.family.pad([prompt], length),
            negative=self.family.pad([negative], length),
            steps=self.steps,
            setting=self._setting(),
            decode=True,
        )
        with inspecting(self.denoiser, self.device, self.dtype), self._timesteps_retold():
            pictures = self.family.generate(self.pipeline, request)
        assert pictures is not None
        return as_bytes(pictures).cpu()[0].numpy()

    @contextmanager
    def _timesteps_retold(self) -> Iterator[None]:
        """Autocast leaves the pipeline's states, and so its timesteps, in float32."""

        def enter(
            _module: Denoiser, args: tuple[Any, ...], kwargs: dict[str, Any]
        ) -> tuple[tuple[Any, ...], dict[str, Any]]:
            return args, retell_timestep(kwargs, self.dtype, self.family)

        hook = self.denoiser.register_forward_pre_hook(enter, with_kwargs=True)
        try:
            yield
        finally:
            hook.remove()

    def _setting(self) -> Setting:
        """Without guidance; a network that takes the scale as an input is told its targets'."""
        is_told = self.family.embeds_guidance(self.denoiser.config)  # type: ignore[arg-type]
        scale = self.recipe["guidance_scale"] if is_told else 1.0
        return Setting(self.recipe["height"], self.recipe["width"], scale)


def _decode_without_autocast(pipeline: Pipeline, device: torch.device) -> None:
    """Let the VAE decode in its own type: lower ones shift colours.

    Pipelines whose schedulers take the network's type hand over latents of that type.
    """
    decode = pipeline.vae.decode

    def precise(latents: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        with torch.autocast(device.type, enabled=False):
            return decode(latents.to(pipeline.vae.dtype), *args, **kwargs)

    pipeline.vae.decode = precise
