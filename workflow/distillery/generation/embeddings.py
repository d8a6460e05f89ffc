"""Every distinct prompt of a table is encoded once."""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from itertools import chain
from pathlib import Path

import torch

from distillery.config.jobs import EmbeddingsJob
from distillery.config.teacher import Teacher
from distillery.families import Conditioning, Family
from distillery.families.protocol import Pipeline
from distillery.families.text import MAX_PROMPTS_NAMED, TEXT, check_lengths
from distillery.files import hash_json
from distillery.generation.chunked import (
    ChunkPlan,
    NotFiniteError,
    advise_not_finite,
    make_chunks,
)
from distillery.notes import Note, noting, refuse
from distillery.store.embeddings import (
    Negative,
    Pictured,
    Text,
    distinct_texts,
    members_of,
    pack,
    written,
)
from distillery.store.recipes import EmbeddingsRecipe
from distillery.store.tables import read_table
from distillery.teacher.adapters import text_hash
from distillery.teacher.components import is_component
from distillery.teacher.folder import PipelineFolder, find_teacher
from distillery.teacher.loading import load_encoders, load_teacher
from distillery.teacher.tokenizers import check_tokenizers, check_told_apart, tokenizers_of
from distillery.telemetry import Reporter

UNROUNDED = ("WanImageToVideoPipeline",)
"""Classes whose call reads its image in float32, whatever the teacher's type."""


def embeddings_recipe(job: EmbeddingsJob, folder: PipelineFolder) -> EmbeddingsRecipe:
    """Everything that an embedding depends on beside its text."""
    teacher, family = job.teacher, folder.family
    return EmbeddingsRecipe(
        kind="embeddings",
        version=job.version,
        family=family.name,
        teacher=text_hash(teacher, folder),
        dtype=teacher.dtype,
        negative_prompt=teacher.negative_prompt,
        max_sequence_length=teacher.max_sequence_length or family.max_sequence_length,
        long_prompts=teacher.long_prompts,
        signature=hash_json(folder.signature["learnt"]["encodings"]) if folder.signature else None,
        images=_images_hash(teacher, folder) if teacher.image_argument else None,
    )


def _images_hash(teacher: Teacher, folder: PipelineFolder) -> str:
    """Of what an image's encoding depends on beside the image."""
    encoders = [
        name for name in all_but_text(folder)
        if name not in folder.denoisers and name in folder.components
    ]  # fmt: skip
    return hash_json(
        {
            "components": folder.fingerprint(encoders),
            "vae_dtype": teacher.vae_dtype,
            "size": [teacher.height, teacher.width, teacher.num_frames],
            "trace": teacher.trace.model_dump(mode="json") if teacher.trace else None,
        }
        | ({"rounded": "as the stock call"} if _is_rounded(teacher, folder) else {})
    )


def _is_rounded(teacher: Teacher, folder: PipelineFolder) -> bool:
    """Whether the call rounds an image between the type of its states and the VAE's; what was
    stored of such images was once rounded otherwise."""
    return teacher.dtype != teacher.vae_dtype and folder.class_name not in UNROUNDED


def check_texts(
    teacher: Teacher, folder: PipelineFolder, pipeline: Pipeline, texts: Iterable[str | None]
) -> None:
    """Raise ValueError for prompts that the teacher would not read as they are written.

    Args:
        teacher: of the run; with `long_prompts: truncate` no lengths are looked at.
        pipeline: with the tokenizers at least.
        texts: the prompts, and the negative prompt if there is one.
    """
    written = [text for text in texts if text is not None]
    check_tokenizers(folder, pipeline)
    notes: list[Note] = []
    with noting(notes):
        if teacher.long_prompts == "refuse":
            length = teacher.max_sequence_length or folder.family.max_sequence_length
            check_lengths(folder.family.readers(pipeline, length), written)
    with noting(notes):
        check_told_apart(tokenizers_of(folder, pipeline), written)
    refuse(notes)


def make_embeddings(
    job: EmbeddingsJob, prompts: Path, output: Path, device: torch.device, reporter: Reporter
) -> None:
    """Encode the distinct prompts of a table, and the negative prompts, to chunk files.

    Args:
        prompts: table of the split.
        output: the manifest to write; the chunks go beside it.
        device: for the text encoder.
    """
    folder = find_teacher(job.teacher)
    family = folder.family
    recipe = embeddings_recipe(job, folder)
    length = recipe.max_sequence_length
    texts = distinct_texts(read_table(prompts), job.teacher.negative_prompt).texts
    size = job.embeddings.chunk_size
    groups = [texts[start : start + size] for start in range(0, len(texts), size)]
    plans = [
        ChunkPlan(index, members_of(group), range(len(group)), {"num_texts": len(group)})
        for index, group in enumerate(groups)
    ]
    pipeline: Pipeline = None

    def make(plan: ChunkPlan) -> Mapping[str, torch.Tensor]:
        nonlocal pipeline
        group = groups[plan.index]
        if pipeline is None:
            pipeline = _load_encoders(job.teacher, folder, texts, length, device)
        encoded = encode_texts(family, pipeline, group, length, job.embeddings.batch_size)
        _check_finite(group, encoded, job.teacher, folder)
        if job.teacher.long_prompts == "refuse":
            _check_read(family, pipeline, group, encoded)
        return pack(encoded)

    make_chunks(recipe.to_json(), plans, (0, 1), make, output, reporter, " texts")


def _load_encoders(
    teacher: Teacher,
    folder: PipelineFolder,
    texts: Sequence[Text],
    length: int,
    device: torch.device,
) -> Pipeline:
    """What encodes these texts, which are checked; images need more than the text encoders."""
    if not teacher.image_argument:
        pipeline = load_teacher(teacher, folder, device, leave_out=all_but_text(folder))
        check_texts(teacher, folder, pipeline, map(written, texts))
        with suppress(AttributeError):  # a few ask their network while they encode, as Bria
            if folder.is_traced:
                encode_texts(folder.family, pipeline, texts[:1], length, 1)
            return pipeline
    pipeline = load_encoders(teacher, folder, device)
    check_texts(teacher, folder, pipeline, map(written, texts))
    return pipeline


def encode_texts(
    family: Family, pipeline: Pipeline, texts: Sequence[Text], length: int, batch_size: int
) -> list[Conditioning]:
    """Encode prompts in batches, and negative prompts one by one as the family does them; each
    distinct image once."""
    prompts = [str(written(text)) for text in texts if not isinstance(text, Negative)]
    of_prompts = chain.from_iterable(
        family.encode(pipeline, prompts[start : start + batch_size], length)
        for start in range(0, len(prompts), batch_size)
    )
    of_texts = [
        family.encode_negative(pipeline, text.text, length)
        if isinstance(text, Negative)
        else next(of_prompts)
        for text in texts
    ]
    images = [text.image if isinstance(text, Pictured) else None for text in texts]
    of_images = {
        image: family.encode_image(pipeline, None if image is None else image.open())
        for image in dict.fromkeys(images)
    }
    return [{**text, **of_images[image]} for text, image in zip(of_texts, images, strict=True)]


def _check_read(
    family: Family, pipeline: Pipeline, texts: Sequence[Text], encoded: Sequence[Conditioning]
) -> None:
    """Raise ValueError that names prompts of which the pipeline does not read the end."""
    cut = [
        repr(text[:60])
        for text, prompt in zip(map(_of_prompt, texts), encoded, strict=True)
        if text is not None and family.is_cut(pipeline, text, prompt)
    ]
    if cut:
        raise ValueError(
            f"{len(cut)} prompts are longer than the teacher reads, for they are the same without "
            "their last word: shorten them, raise teacher.max_sequence_length where the model "
            "allows it, or cut them knowingly with teacher.long_prompts: truncate: "
            + ", ".join(cut[:MAX_PROMPTS_NAMED])
        )


def _of_prompt(text: Text) -> str | None:
    return None if isinstance(text, Negative) else written(text)


def _check_finite(
    texts: Sequence[Text], encoded: Sequence[Conditioning], teacher: Teacher, folder: PipelineFolder
) -> None:
    """Raise NotFiniteError that names the prompts; T5 encoders overflow in float16."""
    bad = [
        repr(written(text) or "")
        for text, prompt in zip(texts, encoded, strict=True)
        if not all(value.isfinite().all() for value in prompt.values())
    ]
    if bad:
        encoders = [name for name in folder.components if name.startswith(TEXT[1])]
        weights = [folder.read_from(name) for name in encoders]
        advice = advise_not_finite(teacher.dtype, weights)
        raise NotFiniteError("the text encoder", bad, advice)


def all_but_text(folder: PipelineFolder) -> tuple[str, ...]:
    """The model components that encoding does not need."""
    return tuple(
        name
        for name, value in folder.index.items()
        if is_component(value) and not name.startswith((*TEXT, "scheduler"))
    )
