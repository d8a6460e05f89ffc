"""Draw the images of one model with a stock pipeline that is loaded when the first is missing."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import pandas as pd
import torch

from distillery.config.jobs import SamplesJob
from distillery.config.section import Compile
from distillery.families import Setting, Size
from distillery.families.protocol import Pipeline
from distillery.files import hash_json
from distillery.generation.generator import Calls, Generator
from distillery.generation.sample_folder import SampleFolder
from distillery.generation.sample_store import SampleStore
from distillery.generation.sample_tars import SampleTars
from distillery.generation.save_threads import SaveThreads
from distillery.generation.trajectory import record
from distillery.generation.walk import even, num_looks, solver_of
from distillery.images import as_bytes
from distillery.model_folder import check_student
from distillery.noise import SampleId, all_samples
from distillery.prompts import own_sizes
from distillery.store.embeddings import EmbeddingStore
from distillery.store.trajectories import rows_of_chunks
from distillery.teacher.adapters import teacher_hash
from distillery.teacher.decoding import is_finite, pop_decode_seconds
from distillery.teacher.folder import PipelineFolder, find_teacher
from distillery.teacher.loading import load_student, load_teacher, torch_dtype, unpacked_of
from distillery.teacher.solver import solver_settings
from distillery.telemetry import Reporter

NOT_DECODED = "its decoded values are not finite"
AUTO_UNIT = 32
"""Images that are made together where `batch_size` is `auto`, in batches of what fits."""
NOT_IN_RECIPE = {
    "num_prompts",
    "guidance_scale",
    "guidance_scale_2",
    "trained_guidance_scale",
    "grid",
    "store",
    "images_per_shard",
}
"""`num_prompts` only decides which images are made, and a store where they lie; the scales that are
used are written themselves, and so is a grid that is not the stock call's."""


@dataclass(frozen=True)
class ImageBatch:
    """A batch of images on its way to the disk.

    Attributes:
        pixels: (b, h, w, 3) uint8, of clips (b, f, h, w, 3).
        latents: (b, *latent) float32.
        is_decoded: (b,) bool, whether the VAE's values are finite.
    """

    pixels: torch.Tensor
    latents: torch.Tensor
    is_decoded: torch.Tensor

    @property
    def is_spoiled(self) -> torch.Tensor:
        """Which images are black or not finite; (b,) bool."""
        is_black = (self.pixels.flatten(1) == 0).all(dim=1)
        return ~is_finite(self.latents) | ~self.is_decoded | is_black

    def cpu(self) -> "ImageBatch":
        """A copy on the host."""
        return ImageBatch(self.pixels.cpu(), self.latents.cpu(), self.is_decoded.cpu())

    def replaced(self, which: torch.Tensor, again: "ImageBatch") -> "ImageBatch":
        """With the images `which` (b,) taken from another try."""

        def mix(first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
            return torch.where(which.view(-1, *[1] * (first.ndim - 1)), second, first)

        return ImageBatch(
            mix(self.pixels, again.pixels),
            mix(self.latents, again.latents),
            mix(self.is_decoded, again.is_decoded),
        )

    def problem(self, place: int) -> str | None:
        """Why an image cannot be saved; a black one of finite values can."""
        latents = self.latents[place]
        if not latents.isfinite().all():
            return "its latents are not finite"
        if not self.is_decoded[place]:
            return (
                f"{NOT_DECODED}, not even in float32, although its latents are "
                f"(the largest is {latents.abs().max():.3g})"
            )
        return None


class SampleMaker:
    """Makes the images of one model."""

    def __init__(
        self,
        job: SamplesJob,
        table: pd.DataFrame,
        embeddings: Path,
        pipeline: Path | None,
        root: Path,
        device: torch.device,
        reporter: Reporter,
        compiling: Compile = "never",
    ) -> None:
        """Nothing heavy is loaded until the first missing image.

        Args:
            pipeline: folder of the student's pipeline, trained or not; None for the teacher.
            root: folder of the images.
        """
        _check_source(job, pipeline)
        sampling = job.sampling
        self.job = job
        self.device = device
        self.reporter = reporter
        self.store = EmbeddingStore(embeddings, table)
        self.is_student = pipeline is not None
        if pipeline is not None:
            check_student(pipeline)
        self.folder = PipelineFolder(pipeline) if pipeline else find_teacher(job.teacher)
        self.family = self.folder.family
        self.length = job.teacher.max_sequence_length or self.family.max_sequence_length
        self.setting = Setting(
            Size.of(job.teacher),
            self._guidance_scale(),
            sampling.guidance_scale_2,
            sampling.guidance_interval,
        )
        self.unit = AUTO_UNIT if sampling.batch_size == "auto" else sampling.batch_size
        sampled = table.head(sampling.num_prompts or len(table))
        samples = all_samples(sampled["prompt_id"], sampling.images_per_prompt)
        self.sizes = self.setting.size.each(own_sizes(sampled))
        self.sample_store = self._open_store(root, table, samples)
        self._generator = Generator(
            self._calls(),
            self._load,
            sampling.batch_size,
            self.unit,
            device,
            reporter,
            compiling,
            None if self.is_student else unpacked_of(job.teacher, self.folder),
        )

    def _open_store(
        self, root: Path, table: pd.DataFrame, samples: Sequence[SampleId]
    ) -> SampleStore:
        """Where `samples.store` has them."""
        sampling = self.job.sampling
        what = (root, table, samples, sampling.images_per_prompt, hash_json(self._recipe()))
        how = (self._is_guided, self.job.teacher.fps)
        if sampling.store == "files":
            return SampleFolder(*what, *how)
        return SampleTars(*what, *how, sampling.images_per_shard, self.job.seed)

    def _calls(self) -> Calls:
        """What the pipeline is called with."""
        sampling = self.job.sampling
        return Calls(
            family=self.family,
            store=self.store,
            samples=self.sample_store.samples,
            samples_per_prompt=sampling.images_per_prompt,
            sizes=self.sizes,
            seed=self.job.seed,
            steps=sampling.steps,
            setting=self.setting,
            max_sequence_length=self.length,
            decode=True,
            dtype=torch_dtype(self.job.teacher.dtype),
            further=self._further,
        )

    @property
    def _further(self) -> dict[str, Any]:
        """Arguments of the teacher's calls alone."""
        return {} if self.is_student else self.job.teacher.call or {}

    def _guidance_scale(self) -> float:
        """The one asked for; without, the trained scale where the network takes one, else 1.0."""
        sampling = self.job.sampling
        is_guided_by_input = self.family.has_guidance_embedding(self.folder.denoiser_config)
        trained = sampling.trained_guidance_scale if is_guided_by_input else None
        return sampling.guidance_scale or trained or 1.0

    def _recipe(self) -> dict[str, Any]:
        """Everything that an image depends on beside its sample's identity."""
        return {
            "kind": "samples",
            "version": self.job.version,
            "pipeline": (
                self.folder.fingerprint()
                if self.is_student
                else teacher_hash(self.job.teacher, self.folder)
            ),
            "embeddings": self.store.recipe_hash,
            "seed": self.job.seed,
            "dtype": self.job.teacher.dtype,
            "vae_dtype": self.job.teacher.vae_dtype,
            "attention": self.job.teacher.attention,
            "height": self.job.teacher.height,
            "width": self.job.teacher.width,
            **({"vae_tiling": True} if self.job.teacher.vae_tiling else {}),
            **self._clip_recipe(),
            "max_sequence_length": self.length,
            "scheduler": self._solver_recipe(),
            **self.job.sampling.model_dump(mode="json", exclude=NOT_IN_RECIPE),
            **({"grid": self.job.sampling.grid} if self.job.sampling.grid else {}),
            **self.setting.guidance,
            **({"call": self._further} if self._further else {}),
        }

    def _clip_recipe(self) -> dict[str, int]:
        """Frames, and how fast they are played; nothing of single images."""
        teacher = self.job.teacher
        is_clip = self.setting.size.is_clip
        return {"num_frames": teacher.num_frames, "fps": teacher.fps} if is_clip else {}

    def _solver_recipe(self) -> dict[str, Any] | None:
        """`teacher.scheduler` with what its class takes over from the folder's."""
        teacher = self.job.teacher
        if self.is_student or teacher.scheduler is None:
            return None
        return teacher.scheduler | solver_settings(self.folder, teacher)

    @cached_property
    def num_looks(self) -> int:
        """Timesteps at which the network is asked for one image."""
        return num_looks(self.folder, self.job.teacher, self.job.sampling)

    @property
    def _is_guided(self) -> bool:
        network, scale = self.folder.denoiser_config, self.setting.guidance_scale
        return self.family.calls_per_step(network, scale) > 1

    @property
    def num_calls(self) -> int:
        """Forward passes of the network for one image."""
        network = self.folder.denoiser_config
        return self.family.calls_per_walk(network, self.setting, self.num_looks)

    def _load(self) -> Pipeline:
        """The pipeline without its text encoder."""
        load = load_student if self.is_student else load_teacher
        teacher, sampling = self.job.teacher, self.job.sampling
        pipeline = load(teacher, self.folder, self.device, self.family.text_components)
        if not self.is_student:
            for size in dict.fromkeys(self.sizes):
                shape = self.family.latent_shape(pipeline, size)
                solver_of(self.family, pipeline.scheduler, sampling.steps, shape, sampling.grid)
            if sampling.grid is not None:
                pipeline.scheduler = even(pipeline.scheduler)
        return pipeline

    def units(self) -> list[Sequence[int]]:
        """The samples in groups of one size that are made together; they do not depend on
        shards."""
        return rows_of_chunks(self.sizes, self.job.sampling.images_per_prompt, self.unit)

    def make(self, rows: Sequence[int], missing: Sequence[int], savers: SaveThreads) -> list[str]:
        """Make one whole group and save the missing images of it.

        An image that is black or not finite is made once more in float32. Returns a line for each
        that is not finite even so; nothing is saved for it.
        """
        failures = []
        for batch, drawn in self._generator.map(rows, self._run_carefully):
            for place, row in enumerate(batch):
                if row not in missing:
                    continue
                problem = drawn.problem(place)
                if problem is not None:
                    failures.append(f"{self.sample_store.name(row)}: {problem}")
                    continue
                pixels, latents = drawn.pixels[place].numpy(), drawn.latents[place].clone()
                save = partial(self.sample_store.save, row, pixels, latents)
                savers.submit(save, self.sample_store.keep)
        return failures

    def advice_on(self, failures: Sequence[str]) -> str:
        """What to do about images whose latents alone are finite; "" where there are none."""
        if not any(NOT_DECODED in failure for failure in failures):
            return ""
        vae = self.folder.read_from("vae")
        return f"if latents of such a size are usual, the VAE in {vae} is damaged: get it again"

    def pop_decode_seconds(self) -> float:
        """How long the decoder has run since this was last asked."""
        return pop_decode_seconds(self._generator.pipeline)

    def _run_carefully(self, rows: Sequence[int], size: int) -> ImageBatch:
        """`_run`, and again in float32 for what came out black or not finite; on the CPU."""
        drawn = self._run(rows, size)
        # Found where the images are: on the CPU the GPU would wait for it, 60 ms per batch of 8.
        spoiled = drawn.is_spoiled.cpu()
        drawn = drawn.cpu()
        spoiled[len(rows) :] = False
        if not spoiled.any():
            return drawn
        ids = ", ".join(
            self.sample_store.name(rows[place]) for place in spoiled.nonzero().flatten()
        )
        if not self._generator.can_be_in_float32:
            self.reporter.warning(f"black or not finite: {ids}")
            return drawn
        self.reporter.warning(f"black or not finite, made again in float32: {ids}")
        with self._generator.in_float32():
            again = self._run(rows, size).cpu()
        return drawn.replaced(spoiled, again)

    def _run(self, rows: Sequence[int], size: int) -> ImageBatch:
        """One call of the pipeline, padded to `size`, on the device.

        Images are made bytes there: rounded as Diffusers rounds, but before a quarter of the data
        crosses to the host.
        """
        last = self.num_looks
        with record(self._generator.pipeline.scheduler, [last]) as trajectory:
            images = self._generator.run(rows, size)
        assert images is not None
        latents = self.family.latents_of(trajectory.states[last])
        return ImageBatch(as_bytes(images), latents, is_finite(images))


def _check_source(job: SamplesJob, pipeline: Path | None) -> None:
    """Raise ValueError where the teacher would be sampled for the student, or the reverse."""
    source = job.sampling.source
    if (source != "teacher") != (pipeline is not None):
        given = "no --pipeline was given" if pipeline is None else f"--pipeline is {pipeline}"
        raise ValueError(
            f"this model's source is {source!r}, but {given}: use results/{{run}}/student/pipeline "
            "for the student, student/untrained for the untrained one, and none for the teacher"
        )
