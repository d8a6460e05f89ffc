"""The plan of the disk: what each stage leaves there, and the most that lies there at once.

Small files (tables, logs, the report) are not counted. Images are counted without compression.
"""

import os
import shutil
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import pandas as pd

from distillery.config.run import Config, RunConfig
from distillery.config.teacher import Teacher
from distillery.config.training import Training
from distillery.files import readable
from distillery.model_folder import LINKED_BYTES
from distillery.notes import Note, error
from distillery.run_folder import RunFolder
from distillery.store.embeddings import distinct_texts
from distillery.student.info import StudentInfo
from distillery.teacher.folder import PipelineFolder
from distillery.teacher.loading import load_tokenizers
from distillery.teacher.memory import ITEM_BYTES

CHANNELS = 3
"""Bytes of a pixel in an image that nothing compresses; a photograph takes about half of it."""
LATENT_BYTES = 4
MASTER_BYTES = 4
"""Of a weight in student/initial and student/trained, float32 whatever the teacher's type."""
TEXT_WIDTHS = ("joint_attention_dim", "caption_channels", "text_dim", "cross_attention_dim")
"""What networks call the features of a text token; the first that one has."""
MAX_COUNTED = 1000
"""Prompts whose tokens are counted, spread over all."""


@dataclass(frozen=True)
class Sizes:
    """Bytes of one run.

    Attributes:
        stages: what each stage leaves.
        passing: beside it for a while: a checkpoint that is written before an old one is removed.
    """

    stages: Mapping[str, int]
    passing: int = 0

    @property
    def peak(self) -> int:
        """The most at once."""
        return sum(self.stages.values()) + self.passing


def embeddings_bytes(
    teacher: Teacher, folder: PipelineFolder, prompts: Mapping[str, pd.DataFrame]
) -> int:
    """Bytes of all text embeddings: each distinct text, negative ones too, once per split."""
    config = folder.denoiser_config
    width = next((int(config[name]) for name in TEXT_WIDTHS if config.get(name)), 0)
    texts = [
        text if isinstance(text, str) else text.text or ""
        for table in prompts.values()
        for text in distinct_texts(table, teacher.negative_prompt).texts
    ]
    tokens = _mean_tokens(teacher, folder, texts)
    return int(len(texts) * tokens * width * ITEM_BYTES[teacher.dtype])


def _mean_tokens(teacher: Teacher, folder: PipelineFolder, texts: list[str]) -> float:
    """Tokens of a stored prompt: its padded length, or its own where padding is not stored."""
    family = folder.family
    length = teacher.max_sequence_length or family.max_sequence_length
    padded = family.stored_tokens(length)
    if padded is not None:
        return padded
    readers = family.readers(load_tokenizers(folder), length)
    chosen = texts[:: -(-len(texts) // MAX_COUNTED)]
    counts = [
        len(reader.tokenizer(reader.clean(text), verbose=False).input_ids)
        for reader in readers
        for text in chosen
    ]
    return min(sum(counts) / len(counts), length)


def student_bytes(
    config: Config, student: StudentInfo, folder: PipelineFolder, run_folder: Path
) -> int:
    """Bytes of the untrained and the trained student, and of their pipelines where sampled."""
    additions = student.trained_parameters if student.init == "lora" else 0
    whole = (student.num_parameters + additions) * MASTER_BYTES
    network = student.num_parameters * ITEM_BYTES[config.teacher.dtype]
    pipeline = network + _shared_bytes(folder, run_folder)
    has_untrained = any(model.source == "untrained" for model in config.samples.models.values())
    own = 2 * whole + (1 + has_untrained) * pipeline + additions * MASTER_BYTES
    # Before each round it is written, too.
    return own + len(config.training.round_numbers) * (whole + pipeline)


def _shared_bytes(folder: PipelineFolder, run_folder: Path) -> int:
    """Bytes of the teacher's other components in the student's pipeline: large files are hard
    links, which take no space, unless they lie on another file system."""
    networks = {folder.path / name for name in folder.denoisers}
    total = 0
    for path in (path.resolve() for path in _files(folder.path) if path.parent not in networks):
        status = path.stat()
        linked = status.st_dev == run_folder.stat().st_dev and status.st_size >= LINKED_BYTES
        total += 0 if linked else status.st_size
    return total


def checkpoint_bytes(training: Training, num_trained: int) -> int:
    """Bytes of one checkpoint: weights, two moments and, if kept, the average, in float32; with
    distribution matching those of the copy too. Heads are small."""
    tensors = 3 + bool(training.ema_half_life_samples)
    return num_trained * MASTER_BYTES * (tensors + 3 * training.trains_copy)


def num_checkpoints(training: Training) -> tuple[int, int]:
    """How many are kept at the end, and how many lie there at once.

    Each job of a training with rounds has a folder of its own, which keeps its last ones.
    """
    every, keep = training.save_every_samples, training.keep_checkpoints
    kept = most = begin = 0
    for part in training.of_jobs:
        saves = -(-part.num_samples // every) - begin // every
        most = max(most, kept + min(keep + 1, saves))
        kept += min(keep, saves)
        begin = part.num_samples
    return kept, most


def samples_bytes(config: RunConfig, num_prompts: int, shape: tuple[int, ...]) -> int:
    """Bytes of all models' images and latents."""
    samples = config.samples
    each = image_bytes(config.teacher) + prod(shape) * LATENT_BYTES
    per_model = samples.num_images(num_prompts)
    return per_model * len(samples.models) * each


def image_bytes(teacher: Teacher) -> int:
    """Bytes of one image."""
    return teacher.height * teacher.width * CHANNELS


def previews_bytes(config: Config, num_prompts: int) -> int:
    """Bytes of all moments' previews, the untrained student's among them."""
    every = config.previews.every_samples
    if not every:
        return 0
    moments = config.training.num_samples // every + 1
    return moments * min(config.previews.num_prompts, num_prompts) * image_bytes(config.teacher)


def plan_disk(
    config: Config,
    student: StudentInfo,
    prompts: Mapping[str, pd.DataFrame],
    targets: int,
    rounds_bytes: int,
    shape: tuple[int, ...],
    folder: PipelineFolder,
    run_folder: RunFolder,
) -> Sizes:
    """What a run that distils writes.

    Args:
        config: of the run.
        student: as planned.
        prompts: tables of both splits.
        targets: bytes of all trajectories.
        rounds_bytes: of each round's states, and of the teacher's answers.
        shape: of one latent.
        folder: of the teacher.
        run_folder: results/{run}, which exists.
    """
    one = checkpoint_bytes(config.training, student.trained_parameters)
    kept, most = num_checkpoints(config.training)
    stages = {
        "embeddings": embeddings_bytes(config.teacher, folder, prompts),
        "targets": targets,
        "student": student_bytes(config, student, folder, run_folder.path),
        "checkpoints": kept * one,
        "samples": samples_bytes(config, len(prompts["eval"]), shape),
        "previews": previews_bytes(config, len(prompts["eval"])),
    }
    if rounds := config.training.round_numbers:
        stages["rounds"] = len(rounds) * rounds_bytes
    return Sizes(stages, (most - kept) * one)


def compare_disk(sizes: Sizes, run_folder: RunFolder, chunks: Path) -> dict[str, Any]:
    """What is planned, beside what the disk of a run has.

    What a stage has written already needs no more space: of the targets those of this recipe, in
    the folder `chunks`, of the others all that lies in their folders.
    """
    written_bytes = _present(run_folder, chunks)
    return {
        "stages": dict(sizes.stages),
        "planned_bytes": sizes.peak,
        "free_bytes": free_bytes(run_folder),
        "present_bytes": sum(min(it, written_bytes[stage]) for stage, it in sizes.stages.items()),
    }


def free_bytes(run_folder: RunFolder) -> int:
    """Of the disk that it is on."""
    return shutil.disk_usage(run_folder.path).free


def on_disk(disk: Mapping[str, Any], run_folder: RunFolder) -> Iterator[Note]:
    """Too little space, by what `compare_disk` gives."""
    need, free, present = (disk[f"{name}_bytes"] for name in ("planned", "free", "present"))
    if need > free + present:
        yield error(
            f"the run needs {readable(need)} of disk",
            f" ({summarise_sizes(disk['stages'])}), {readable(need - free - present)} more than "
            f"there is: {run_folder} has {readable(free)} free and holds {readable(present)} of it",
            f"free some space, {_advise(disk['stages'])}, or make results/ a link to a larger disk",
        )


def summarise_sizes(stages: Mapping[str, int]) -> str:
    """Stages with their sizes, in one line."""
    return ", ".join(f"{stage} {readable(size)}" for stage, size in stages.items() if size)


def _advise(stages: Mapping[str, int]) -> str:
    """What makes the largest stage smaller."""
    return {
        "embeddings": "take fewer prompts",
        "targets": "lower targets.samples_per_prompt or targets.num_segments, store targets.dtype: "
        "bfloat16",
        "rounds": "lower targets.samples_per_prompt, store targets.dtype: bfloat16",
        "student": "keep fewer blocks with student.init: layers",
        "checkpoints": "lower training.keep_checkpoints, train additions with student.init: lora",
        "samples": "lower samples.num_prompts or samples.images_per_prompt",
        "previews": "raise previews.every_samples",
    }[max(stages, key=lambda stage: stages[stage])]


def _present(run_folder: RunFolder, chunks: Path) -> dict[str, int]:
    """Bytes that lie there already, by stage."""
    return {
        "embeddings": _size(_files(run_folder.embedding_folder)),
        "targets": _size(chunks.glob("chunk-*.safetensors")),
        "rounds": _size(_files(run_folder.rounds)),
        "student": sum(
            _size(_files(folder))
            for name in ("initial", "trained*", "pipeline", "*-rounds")
            for folder in run_folder.student(name).parent.glob(name)
        ),
        "checkpoints": _size(_files(run_folder.checkpoints)),
        "samples": _size(_files(run_folder.sample_folder)),
        "previews": _size(_files(run_folder.previews)),
    }


def _files(folder: Path) -> Iterable[Path]:
    """Every file below a folder."""
    return (Path(root) / name for root, _, names in os.walk(folder) for name in names)


def _size(paths: Iterable[Path]) -> int:
    """Bytes of files; a hard link takes none."""
    statuses = (path.lstat() for path in paths)
    return sum(status.st_size for status in statuses if status.st_nlink == 1)
