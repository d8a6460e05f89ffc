"""The samples stage: pictures of held-out prompts, from the teacher or the student alike."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from PIL import Image, PngImagePlugin

from distillery.families import Family, Request, Setting
from distillery.families.protocol import Pipeline
from distillery.files import atomic_path, hash_file, hash_json, read_json
from distillery.identity import SampleId, draw_noise, noise_seed
from distillery.jobs import SamplesJob
from distillery.loading import load_pipeline, load_teacher
from distillery.prompts import REQUIRED, RESERVED
from distillery.stages.targets import all_samples
from distillery.store.chunks import ChunkIdentity, is_intact, write_chunk
from distillery.store.embeddings import EmbeddingStore
from distillery.store.shards import balanced_range
from distillery.teacher import MODEL_CONFIG, family_in, find_teacher, fingerprint
from distillery.telemetry import Reporter
from distillery.trajectory import record

PNG_COMPRESSION = 1
"""zlib level. A 1024 px picture takes 92 ms of a core at level 1 and 241 ms at the default 6."""

MAX_FAILURES_SHOWN = 20
NOT_IN_RECIPE = {"num_prompts", "trained_guidance_scale"}
"""How many prompts there are decides which pictures are made; the scale used is written itself."""


@dataclass(frozen=True)
class Inputs:
    """What a samples job reads.

    Attributes:
        prompts: the eval table (Parquet).
        embeddings: manifest of its embeddings.
        pipeline: folder of the student's pipeline; None samples the teacher.
    """

    prompts: Path
    embeddings: Path
    pipeline: Path | None


def make_samples(
    job: SamplesJob,
    model: str,
    inputs: Inputs,
    shard: tuple[int, int],
    output: Path,
    device: torch.device,
    reporter: Reporter,
) -> None:
    """Make one shard's pictures, each saved as it is made; only what is missing is computed.

    Args:
        job: frozen configuration.
        model: name of the column in the comparison, for the table.
        inputs: what is read.
        shard: (i, n): this job makes the i-th of n balanced ranges of batches.
        output: the shard's table (Parquet) to write; pictures go to folders beside it.
        device: for the pipeline.
        reporter: of this job.

    Raises:
        ValueError: some prompts failed, all others were made first; or there is no pipeline folder
            for a student, or one for a teacher.
    """
    table = pd.read_parquet(inputs.prompts)
    painter = Painter(job, inputs, table, output.parent, device)
    num_batches = -(-len(painter.samples) // job.sampling.batch_size)
    mine = balanced_range(num_batches, *shard)
    first = mine.start * job.sampling.batch_size
    last = min(mine.stop * job.sampling.batch_size, len(painter.samples))
    failures: list[str] = []
    with reporter.progress(max(last - first, 0), "image") as bar:
        for batch in mine:
            rows = painter.rows_of(batch)
            failures += _make_batch(painter, rows, reporter)
            bar.update(len(rows))
    if failures:
        raise ValueError(
            f"{len(failures)} of {last - first} pictures could not be made, the others are saved:"
            + "".join(f"\n  {failure}" for failure in failures[:MAX_FAILURES_SHOWN])
            + "\n  the log names all of them" * (len(failures) > MAX_FAILURES_SHOWN)
        )
    records = [painter.describe(row, model, shard) for row in range(first, last)]
    with atomic_path(output) as temporary:
        pd.DataFrame(records, columns=painter.columns()).to_parquet(temporary, index=False)


def _make_batch(painter: "Painter", rows: Sequence[int], reporter: Reporter) -> list[str]:
    """Make what is missing of one batch; returns a line for each picture that failed."""
    missing = [row for row in rows if not painter.is_done(row)]
    if not missing:
        return []
    try:
        with reporter.work(len(missing)):
            return painter.paint(rows, missing)
    except (ValueError, RuntimeError) as error:
        names = ", ".join(painter.samples[row].prompt_id for row in rows)
        reporter.info(f"a batch failed ({names}): {error}")
        return [f"{painter.samples[row].prompt_id}: {error}" for row in missing]


class Painter:
    """Makes and checks the pictures of one model."""

    def __init__(
        self, job: SamplesJob, inputs: Inputs, table: pd.DataFrame, root: Path, device: torch.device
    ) -> None:
        """Nothing heavy is loaded until the first missing picture."""
        _check_source(job, inputs.pipeline)
        self.job = job
        self.table = table
        self.root = root
        self.device = device
        chosen = table.head(job.sampling.num_prompts or len(table))
        self.samples = all_samples(chosen, job.sampling.images_per_prompt)
        self.store = EmbeddingStore(inputs.embeddings, table)
        self.folder = inputs.pipeline or find_teacher(job.teacher)
        self.family: Family = family_in(self.folder)
        self.length = job.teacher.max_sequence_length or self.family.max_sequence_length
        self.is_student = inputs.pipeline is not None
        self.embeds_guidance = self.family.embeds_guidance(
            read_json(self.folder / self.family.denoisers[0] / MODEL_CONFIG)
        )
        self.setting = Setting(job.teacher.height, job.teacher.width, self._guidance_scale())
        self.recipe_hash = hash_json(self._recipe())
        self._pipeline: Pipeline = None

    def _guidance_scale(self) -> float:
        """The one asked for; without, a student is told no other than it was trained with."""
        sampling = self.job.sampling
        trained = sampling.trained_guidance_scale if self.embeds_guidance else None
        return sampling.guidance_scale or trained or 1.0

    def _recipe(self) -> dict[str, Any]:
        """Everything that a picture depends on beside its sample's identity."""
        return {
            "kind": "samples",
            "version": self.job.version,
            "pipeline": fingerprint(self.folder),
            "embeddings": self.store.recipe_hash,
            "seed": self.job.seed,
            "dtype": self.job.teacher.dtype,
            "height": self.job.teacher.height,
            "width": self.job.teacher.width,
            "max_sequence_length": self.length,
            "scheduler": None if self.is_student else self.job.teacher.scheduler,
            **self.job.sampling.model_dump(mode="json", exclude=NOT_IN_RECIPE),
            "guidance_scale": self.setting.guidance_scale,
        }

    @property
    def pipeline(self) -> Pipeline:
        """The pipeline without its text encoder."""
        if self._pipeline is None:
            teacher, absent = self.job.teacher, self.family.text_components
            if self.is_student:
                self._pipeline = load_pipeline(self.folder, teacher.dtype, self.device, absent)
            else:
                self._pipeline = load_teacher(teacher, self.folder, self.device, absent)
        return self._pipeline

    def rows_of(self, batch: int) -> range:
        """The samples of one batch; batches do not depend on shards."""
        size = self.job.sampling.batch_size
        return range(batch * size, min((batch + 1) * size, len(self.samples)))

    def _prompt(self, row: int) -> str:
        return str(self.table["prompt"].iloc[row // self.job.sampling.images_per_prompt])

    def _identity(self, row: int) -> ChunkIdentity:
        """Recipe and member of one picture, as in its PNG and beside its latents."""
        sample = self.samples[row]
        member = {"samples": [[sample.prompt_id, sample.index, self._prompt(row)]]}
        return ChunkIdentity(self.recipe_hash, hash_json(member))

    def _picture(self, sample: SampleId) -> Path:
        return self.root / sample.prompt_id / f"{sample.index}.png"

    def _latents(self, sample: SampleId) -> Path:
        return self._picture(sample).with_suffix(".safetensors")

    def is_done(self, row: int) -> bool:
        """Whether picture and latents are there, whole, and of this recipe."""
        sample, identity = self.samples[row], self._identity(row)
        try:
            latents_done = is_intact(self._latents(sample), identity)
        except ValueError:  # latents of an earlier recipe: they are derived, so they are replaced
            latents_done = False
        return latents_done and _is_picture(self._picture(sample), identity)

    def paint(self, rows: Sequence[int], missing: Sequence[int]) -> list[str]:
        """Run the pipeline on one whole batch and save the missing pictures of it.

        Returns a line for each picture whose latents are not finite; nothing is saved for it.
        """
        size = self.job.sampling.batch_size
        padded = [*rows, *[rows[-1]] * (size - len(rows))]
        request = self._request(padded)
        with record(self.pipeline.scheduler, [request.steps]) as trajectory:
            pictures = self.family.generate(self.pipeline, request)
        latents_b = trajectory.states[request.steps].cpu()
        failures = []
        for position, row in enumerate(rows):
            if row not in missing:
                continue
            if not latents_b[position].isfinite().all():
                failures.append(f"{self.samples[row].prompt_id}: its latents are not finite")
                continue
            self._save(row, pictures[position], latents_b[position])
        return failures

    def _request(self, rows: Sequence[int]) -> Request:
        """The pipeline call of one padded batch."""
        job, family = self.job, self.family
        shape = family.latent_shape(self.pipeline, job.teacher.height, job.teacher.width)
        per_prompt = job.sampling.images_per_prompt
        conditioning = [self.store.row(row // per_prompt) for row in rows]
        return Request(
            noise=draw_noise(job.seed, [self.samples[row] for row in rows], shape),
            conditioning=family.pad(conditioning, self.length),
            negative=family.pad([self.store.negative] * len(rows), self.length),
            steps=job.sampling.steps,
            setting=self.setting,
            decode=True,
        )

    def _save(self, row: int, picture: Image.Image, latents: torch.Tensor) -> None:
        """Save latents, then the picture: who finds the picture finds both."""
        sample, identity = self.samples[row], self._identity(row)
        about = {"samples": [f"{sample.prompt_id}/{sample.index}"]}
        write_chunk(self._latents(sample), {"latents": latents}, identity, about)
        text = PngImagePlugin.PngInfo()
        text.add_text("recipe", identity.recipe)
        text.add_text("members", identity.members)
        text.add_itxt("prompt", self._prompt(row))
        with atomic_path(self._picture(sample)) as temporary:
            picture.save(temporary, format="PNG", pnginfo=text, compress_level=PNG_COMPRESSION)

    def describe(self, row: int, model: str, shard: tuple[int, int]) -> dict[str, Any]:
        """One row of the manifest, with the user's own columns last."""
        sample, sampling = self.samples[row], self.job.sampling
        picture, latents = self._picture(sample), self._latents(sample)
        takes_two_calls = self.setting.guidance_scale > 1.0 and not self.embeds_guidance
        prompt_row = self.table.iloc[row // sampling.images_per_prompt]
        return {
            "prompt_id": sample.prompt_id,
            "prompt": self._prompt(row),
            "index": sample.index,
            "noise_seed": noise_seed(self.job.seed, sample),
            "file": picture.relative_to(self.root).as_posix(),
            "sha256": hash_file(picture),
            "latents_file": latents.relative_to(self.root).as_posix(),
            "latents_sha256": hash_file(latents),
            "model": model,
            "steps": sampling.steps,
            "guidance_scale": self.setting.guidance_scale,
            "network_calls": sampling.steps * (2 if takes_two_calls else 1),
            "width": self.job.teacher.width,
            "height": self.job.teacher.height,
            "recipe": self.recipe_hash,
            "shard": f"{shard[0]}/{shard[1]}",
            **{name: prompt_row[name] for name in self._extra_columns()},
        }

    def _extra_columns(self) -> list[str]:
        """The user's own columns of the prompt file."""
        return [name for name in self.table.columns if name not in REQUIRED]

    def columns(self) -> list[str]:
        """The names in `describe`, for a shard without pictures."""
        return [*REQUIRED, *RESERVED, *self._extra_columns()]


def _check_source(job: SamplesJob, pipeline: Path | None) -> None:
    """Raise ValueError where the teacher would be sampled for the student, or the reverse."""
    source = job.sampling.source
    if (source == "student") != (pipeline is not None):
        given = "none is given" if pipeline is None else f"{pipeline} is given"
        raise ValueError(
            f"this model samples the {source} and as its pipeline {given}: use --pipeline with the "
            "student's folder for a student, and not at all for the teacher"
        )


def _is_picture(path: Path, identity: ChunkIdentity) -> bool:
    """Whether a PNG is there, undamaged (all its CRCs hold), and of this recipe and prompt."""
    if not path.is_file():
        return False
    try:
        with Image.open(path) as picture:
            picture.verify()
        with Image.open(path) as picture:
            found = getattr(picture, "text", {})
    except (OSError, SyntaxError, ValueError):
        return False
    return (found.get("recipe"), found.get("members")) == (identity.recipe, identity.members)
