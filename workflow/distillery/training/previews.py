"""Images of held-out prompts from the student as it is now, while it learns or afterwards.

The stock pipeline is put around the student in memory, without a copy of it. A process draws its
share of the prompts, between two updates, and saves beside the next ones. Nothing in here talks to
another process, and no failure in here ends a training.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import torch

from distillery.config.jobs import PreviewsJob, TrainingJob, read_job
from distillery.config.section import Dtype
from distillery.config.teacher import Teacher
from distillery.families import Family, Request, Setting, Size
from distillery.families.any_flow import AnyFlow
from distillery.families.protocol import Denoiser, Pipeline
from distillery.generation.generator import Calls
from distillery.images import Pixels, as_bytes, is_preview, moment_folder, write_png, write_sheets
from distillery.model_folder import hash_model
from distillery.noise import SampleId
from distillery.prompts import own_sizes
from distillery.schedulers import Scheduler
from distillery.stage import balanced_range
from distillery.store.chunks import chunk_folder
from distillery.store.embeddings import EmbeddingStore
from distillery.store.recipes import TargetsRecipe
from distillery.store.tables import read_table
from distillery.student.on_disk import load_trainable
from distillery.student.schedule import student_scheduler
from distillery.teacher.decoding import guard_decoding
from distillery.teacher.folder import PipelineFolder, find_teacher
from distillery.teacher.loading import load_network, read_files, torch_dtype
from distillery.teacher.rounding import cast_timestep
from distillery.telemetry import Reporter
from distillery.training.checkpoint import checkpoint_path, read_student
from distillery.training.data import SegmentDataset
from distillery.training.run import Inputs, PreviewPaths, open_dataset, training_recipe
from distillery.training.update import inspecting
from distillery.training.watchers.alarms import IMAGE_ALARMS, Alarms, judge_image


@dataclass(frozen=True)
class PreviewPipeline:
    """A pipeline whose network is the student, and what its call takes.

    Attributes:
        pipeline: with the student, its scheduler and the teacher's VAE, without text encoders.
        family: of the student.
        denoiser: the student, the very object.
        recipe: of the targets.
        steps: of the student.
        device, dtype: of the forward pass; the VAE decodes in its own type.
    """

    pipeline: Pipeline
    family: Family
    denoiser: Denoiser
    recipe: TargetsRecipe
    steps: int
    device: torch.device
    dtype: torch.dtype

    @classmethod
    def around(
        cls,
        denoiser: Denoiser,
        teacher: Teacher,
        dataset: SegmentDataset,
        device: torch.device,
        dtype: Dtype,
    ) -> Self:
        """Build the pipeline; of the teacher's weights only the VAE's are read.

        Args:
            dataset: that the student learns from.

        Raises:
            FileNotFoundError: the teacher's folder is not whole.
        """
        from diffusers.utils.logging import disable_progress_bar

        disable_progress_bar()
        folder, family = find_teacher(teacher), dataset.family
        recipe, steps = dataset.recipe, dataset.steps
        scheduler = student_scheduler(recipe, steps, dataset.any_step)
        if isinstance(family, AnyFlow):
            vae = load_network(folder, "vae", torch_dtype(teacher.vae_dtype))
            pipeline = family.around(denoiser, vae, scheduler)
        else:
            pipeline = _teachers_pipeline(folder, teacher, family, denoiser, scheduler)
        assert getattr(pipeline, family.denoisers[0]) is denoiser, "the student itself"
        pipeline.set_progress_bar_config(disable=True)
        pipeline.vae.requires_grad_(False).to(device)
        guard_decoding(pipeline, teacher.vae_tiling)
        return cls(pipeline, family, denoiser, recipe, steps, device, torch_dtype(dtype))

    def calls(
        self,
        store: EmbeddingStore,
        samples: Sequence[SampleId],
        own_sizes: Sequence[tuple[int, int] | None],
        seed: int,
    ) -> Calls:
        """What the pipeline is called with, one sample of each prompt of the store."""
        setting = self._setting()
        return Calls(
            family=self.family,
            store=store,
            samples=samples,
            samples_per_prompt=1,
            sizes=setting.size.each(own_sizes),
            seed=seed,
            steps=self.steps,
            setting=setting,
            max_sequence_length=self.recipe.max_sequence_length,
            decode=True,
            dtype=torch.float32,
        )

    def draw(self, request: Request) -> Pixels:
        """One image or clip, as the student draws it now; one at a time takes least memory."""
        with inspecting(self.denoiser, self.device, self.dtype), self._network_alone():
            images = self.family.generate(self.pipeline, request)
        assert images is not None
        return as_bytes(images).cpu()[0].numpy()

    @contextmanager
    def _network_alone(self) -> Iterator[None]:
        """Autocast for the network alone, as in a stock call: solvers and VAEs keep their types.

        The pipeline's states, and so its timesteps, are float32. Within `inspecting` the weights
        are cast once for all steps.
        """
        kind, casts, computing = self.device.type, self.dtype != torch.float32, ExitStack()

        def enter(
            _module: Denoiser, args: tuple[Any, ...], kwargs: dict[str, Any]
        ) -> tuple[tuple[Any, ...], dict[str, Any]]:
            computing.enter_context(torch.autocast(kind, self.dtype, enabled=casts))
            return cast_timestep(self.denoiser, args, kwargs, self.dtype, self.family)

        def leave(*_called: Any) -> None:
            computing.close()

        hooks = (
            self.denoiser.register_forward_pre_hook(enter, with_kwargs=True),
            self.denoiser.register_forward_hook(leave, always_call=True),
        )
        try:
            with torch.autocast(kind, enabled=False):
                yield
        finally:
            for hook in hooks:
                hook.remove()

    def _setting(self) -> Setting:
        """Without guidance; a network that takes the scale as an input gets its targets'."""
        is_guided_by_input = self.family.has_guidance_embedding(self.denoiser.config)  # type: ignore[arg-type]
        scale = self.recipe.guidance_scale if is_guided_by_input else 1.0
        return Setting(Size.of(self.recipe), scale)


def _teachers_pipeline(
    folder: PipelineFolder,
    teacher: Teacher,
    family: Family,
    denoiser: Denoiser,
    scheduler: Scheduler,
) -> Pipeline:
    """The teacher's pipeline with a student and its scheduler, without what encodes prompts."""
    absent: dict[str, object] = dict.fromkeys(
        (*family.text_components, *family.denoisers[1:], *folder.components_left_out)
    )
    dtypes = {"default": torch.float32, "vae": torch_dtype(teacher.vae_dtype)}
    own = {
        **read_files(folder, dtypes, absent.keys() | set(family.denoisers)),
        family.denoisers[0]: denoiser,
        "scheduler": scheduler,
        **family.single_network,
    }
    # Of the very class: DiffusionPipeline itself does not know which components a class takes
    # as optional, and would load the teacher's network over the one that it is given.
    return folder.pipeline_class.from_pretrained(
        folder.path,
        dtype=dtypes,
        variant=folder.variant,
        local_files_only=True,
        **(absent | own),
    )


class Previews:
    """One process's share of the previews of one training."""

    def __init__(
        self,
        paths: PreviewPaths,
        shard: tuple[int, int],
        training: str,
        reporter: Reporter,
    ) -> None:
        """Nothing is drawn yet.

        Args:
            shard: (rank, processes): which of the prompts are drawn here.
            training: hash of the training's recipe, which each image carries.
        """
        self.job = read_job(paths.previews_config, PreviewsJob)
        self._root = paths.previews
        table = read_table(paths.eval_prompts)
        self._store = EmbeddingStore(paths.eval_embeddings, table)
        self._table = table.head(self.job.previews.num_prompts)
        self._mine = balanced_range(len(self._table), *shard)
        self._training = training
        self._reporter = reporter
        self._alarms = Alarms(reporter, training)

    def is_due(self, samples_seen: int, num_samples: int) -> bool:
        """Whether this moment of a training of so many samples is shown; the last one always is."""
        every = self.job.previews.every_samples
        return every > 0 and (samples_seen % every == 0 or samples_seen == num_samples)

    @property
    def prompts(self) -> dict[str, str]:
        """Texts by id, of all previews, those of other processes too."""
        ids, texts = (self._table[name].astype(str).tolist() for name in ("prompt_id", "prompt"))
        return dict(zip(ids, texts, strict=True))

    @property
    def prompt_ids(self) -> list[str]:
        """Of all previews."""
        return list(self.prompts)

    def image(self, row: int, samples_seen: int) -> Path:
        """Where the image of a prompt lies."""
        return moment_folder(self._root, samples_seen) / f"{self.prompt_ids[row]}.png"

    def missing(self, samples_seen: int) -> list[int]:
        """This process's prompts without a whole image of this training at this moment."""
        drawn = self.drawn(self._mine, samples_seen)
        return [row for row in self._mine if row not in drawn]

    def drawn(self, rows: Iterable[int], samples_seen: int) -> set[int]:
        """Those of some prompts, of other processes too, with a whole image of this training."""
        texts = list(self.prompts.values())
        # A listing asks the file server; what a client remembers as missing an open may not.
        there = set(moment_folder(self._root, samples_seen).glob("*.png"))
        images = {row: self.image(row, samples_seen) for row in rows}
        return {
            row
            for row, image in images.items()
            if image in there and is_preview(image, self._training, texts[row])
        }

    def moments(self, up_to: int) -> list[int]:
        """When there are images of, of this training or another, in order."""
        folders = self._root.glob("samples-*")
        numbers = (folder.name.removeprefix("samples-") for folder in folders)
        return sorted(seen for seen in map(int, filter(str.isdecimal, numbers)) if seen <= up_to)

    def draw(self, drawer: PreviewPipeline, row: int, samples_seen: int) -> Pixels:
        """Draw one prompt, and raise an alarm if nothing is on it."""
        prompt_id, samples = self.prompt_ids[row], [SampleId(name, 0) for name in self.prompt_ids]
        calls = drawer.calls(self._store, samples, own_sizes(self._table), self.job.seed)
        pixels = drawer.draw(calls.request([row]))
        self._alarms.tell(IMAGE_ALARMS, judge_image(prompt_id, pixels), samples_seen, prompt_id)
        return pixels

    def draw_missing(
        self,
        drawer: PreviewPipeline,
        samples_seen: int,
        must_stop: Callable[[], bool] = lambda: False,
    ) -> dict[int, Pixels]:
        """Draw this process's missing images, by row; the rest is left when it must stop."""
        pixels = {}
        for row in self.missing(samples_seen):
            if must_stop():
                break
            pixels[row] = self.draw(drawer, row, samples_seen)
        return pixels

    def save(self, pixels: dict[int, Pixels], samples_seen: int) -> None:
        """Save images by row, then the contact sheets."""
        for row, image in pixels.items():
            texts = {"training": self._training, "prompt": self.prompts[self.prompt_ids[row]]}
            write_png(self.image(row, samples_seen), image, texts, self.job.teacher.fps)
        write_sheets(self._root, samples_seen, self.prompts, self._training)


def draw_kept(
    job: TrainingJob,
    inputs: Inputs,
    samples_seen: int,
    paths: PreviewPaths,
    device: torch.device,
    reporter: Reporter,
) -> None:
    """Draw what is missing of a checkpoint's previews, and write its contact sheet.

    Args:
        job: frozen configuration of the training.
        inputs: of the training, with its checkpoints.
        samples_seen: of the checkpoint.
        paths: what previews read and write.
        device: for the student and the VAE.
        reporter: of this job.

    Raises:
        ValueError: no such checkpoint of this configuration is kept, or it is damaged.
    """
    dataset = open_dataset(job, inputs)
    initial = hash_model(inputs.student)
    recipe = training_recipe(job, dataset, initial)
    recipe_hash = recipe.hash
    # A training with rounds or a finish takes up checkpoints of those that do its first part.
    hashes = [recipe_hash, *(part.hash for part in recipe.first_parts(job.training))]
    own = next((it for it in hashes if is_kept(inputs.checkpoints, it, samples_seen)), recipe_hash)
    weights = read_student(chunk_folder(inputs.checkpoints, own), samples_seen, own)
    denoiser = load_trainable(inputs.student, torch_dtype(job.training.dtype))
    denoiser.load_state_dict(weights, strict=False)
    previews = Previews(paths, (0, 1), recipe_hash, reporter)
    drawer = PreviewPipeline.around(
        denoiser.to(device),
        previews.job.teacher,
        dataset,
        device,
        job.training.dtype,
    )
    missing = previews.missing(samples_seen)
    with reporter.work(len(missing)):
        previews.save(previews.draw_missing(drawer, samples_seen), samples_seen)


def is_kept(checkpoints: Path, recipe_hash: str, samples_seen: int) -> bool:
    """Whether a training's checkpoint at a position is there."""
    return checkpoint_path(chunk_folder(checkpoints, recipe_hash), samples_seen).is_dir()
