"""The plan of the disk: what each stage leaves there, and the most that lies there at once.

Small files (tables, logs, the report) are not counted. Images are counted without compression.
"""

import os
import shutil
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import pandas as pd

from distillery.config.run import Config, RunConfig
from distillery.config.student import OF_TEACHER
from distillery.config.teacher import Teacher
from distillery.config.training import Training
from distillery.families import Size
from distillery.files import readable
from distillery.model_folder import LINKED_BYTES
from distillery.notes import Note, error
from distillery.planning.sizes import share_of_usual
from distillery.planning.work import Work
from distillery.run_folder import RunFolder
from distillery.stage import encoded_splits
from distillery.store.embeddings import distinct_texts, written
from distillery.student.info import StudentInfo
from distillery.teacher.folder import PipelineFolder
from distillery.teacher.loading import is_in_folder, load_tokenizers
from distillery.teacher.memory import ITEM_BYTES, item_bytes
from distillery.teacher.weights import weights_of

CHANNELS = 3
"""Bytes of a pixel in an image that nothing compresses; a photograph takes about half of it."""
LATENT_BYTES = 4
MASTER_BYTES = 4
"""Of a weight in student/initial and student/trained, float32 whatever the teacher's type; beside
additions lie the teacher's own files, as links."""
TEXT_WIDTHS = ("joint_attention_dim", "caption_channels", "text_dim", "cross_attention_dim")
"""What networks call the features of a text token; the first that one has."""
MAX_COUNTED = 1000
"""Prompts whose tokens are counted, spread over all."""


@dataclass(frozen=True)
class Store:
    """What a stage leaves there.

    Attributes:
        stage: that writes it.
        num_bytes: in the end.
        present: bytes that are there already, and need no more space.
        smaller: what takes less space.
        passing: bytes beside it for a while: a checkpoint that is written before an old one goes.
    """

    name: str
    stage: str
    num_bytes: int
    present: int
    smaller: str
    passing: int = 0


def embeddings_bytes(
    teacher: Teacher, folder: PipelineFolder, prompts: Mapping[str, pd.DataFrame]
) -> int:
    """Bytes of all text embeddings: each distinct text, negative ones too, once per split."""
    config = folder.denoiser_config
    width = next((int(config[name]) for name in TEXT_WIDTHS if config.get(name)), 0)
    texts = [
        written(text) or ""
        for table in prompts.values()
        for text in distinct_texts(table, teacher.negative_prompt).texts
    ]
    if folder.family.bytes_per_prompt is not None:
        return len(texts) * folder.family.bytes_per_prompt
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
    initial = trained = student.num_parameters * MASTER_BYTES
    additions = student.trained_parameters * MASTER_BYTES * (student.init in OF_TEACHER)
    if additions:
        initial, trained = _base_bytes(config.teacher, student, folder, run_folder)
    network = student.num_parameters * ITEM_BYTES[config.teacher.dtype]
    pipeline = network + _shared_bytes(folder, run_folder)
    pipeline += sum(
        folder.parameters[name] * item_bytes(config.teacher, name)
        for name in folder.files.keys() - set(folder.denoisers)
    )
    has_untrained = any(model.source == "untrained" for model in config.samples.models.values())
    own = initial + trained + (1 + has_untrained) * pipeline + 3 * additions
    # Before each round it is written, too.
    return own + len(config.training.round_numbers) * (trained + pipeline + 2 * additions)


def _base_bytes(
    teacher: Teacher, student: StudentInfo, folder: PipelineFolder, run_folder: Path
) -> tuple[int, int]:
    """Bytes of the network beside additions, in the untrained and in the trained student."""
    network = student.network
    if is_in_folder(teacher, folder, network):
        files = weights_of(folder.path / network, folder.chosen_variant(network))
        initial = _copied_bytes(files, run_folder)
    else:
        initial = student.num_parameters * MASTER_BYTES
    return initial, initial if initial < LINKED_BYTES else 0


def _shared_bytes(folder: PipelineFolder, run_folder: Path) -> int:
    """Bytes of the teacher's other components in the student's pipeline: large files are hard
    links, which take no space, unless they lie on another file system."""
    networks = {folder.path / name for name in (*folder.denoisers, *folder.files)}
    files = (path for path in _files(folder.path) if path.parent not in networks)
    return _copied_bytes(files, run_folder)


def _copied_bytes(files: Iterable[Path], run_folder: Path) -> int:
    """Bytes of the files that are copied into a run, since no hard link is made of them."""
    device = run_folder.stat().st_dev
    statuses = [path.stat() for path in files]
    return sum(it.st_size for it in statuses if it.st_dev != device or it.st_size < LINKED_BYTES)


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
    """Bytes of one image, or clip."""
    return teacher.num_frames * teacher.height * teacher.width * CHANNELS


def previews_bytes(config: Config, num_prompts: int) -> int:
    """Bytes of all moments' previews, the untrained student's among them."""
    every = config.previews.every_samples
    if not every:
        return 0
    moments = config.training.num_samples // every + 1
    return moments * min(config.previews.num_prompts, num_prompts) * image_bytes(config.teacher)


def stores_of_generating(
    config: RunConfig,
    folder: PipelineFolder,
    prompts: Mapping[str, pd.DataFrame],
    shape: tuple[int, ...],
    run: RunFolder,
) -> tuple[Store, ...]:
    """Of every run.

    Args:
        prompts: tables of its splits.
    """
    made = {key["split"]: prompts[key["split"]] for key in encoded_splits(config)}
    embeddings = embeddings_bytes(config.teacher, folder, made)
    share = share_of_usual(prompts["eval"], Size.of(config.teacher))
    samples = round(samples_bytes(config, len(prompts["eval"]), shape) * share)
    return (
        Store(
            "embeddings",
            "embeddings",
            embeddings,
            _size(_files(run.embedding_folder)),
            "take fewer prompts",
        ),
        Store(
            "samples",
            "samples",
            samples,
            _size(_files(run.sample_folder)),
            "lower samples.num_prompts or samples.images_per_prompt",
        ),
    )


def stores_of_distilling(
    config: Config,
    student: StudentInfo,
    work: Work,
    folder: PipelineFolder,
    run: RunFolder,
    chunks: Path,
) -> tuple[Store, ...]:
    """Of a run that distils, beyond those of every run.

    Args:
        run: whose folder exists.
        chunks: folder of the targets of this recipe; what others left there is of no use.
    """
    one = checkpoint_bytes(config.training, student.trained_parameters)
    kept, most = num_checkpoints(config.training)
    names = ("initial", "*trained*", "pipeline", "*-rounds")
    folders = {it for name in names for it in run.student(name).parent.glob(name)}
    return (
        Store(
            "targets",
            "targets",
            0 if config.targets.from_run else work.targets_bytes,
            _size(chunks.glob("chunk-*.safetensors")),
            "lower targets.samples_per_prompt or targets.num_segments, store targets.dtype: "
            "bfloat16",
        ),
        Store(
            "student",
            "student",
            student_bytes(config, student, folder, run.path),
            _size(path for it in folders for path in _files(it)),
            "keep fewer blocks with student.init: layers",
        ),
        Store(
            "rounds",
            "round_states",
            len(config.training.round_numbers) * work.round_bytes,
            _size(_files(run.rounds)),
            "lower targets.samples_per_prompt, store targets.dtype: bfloat16",
        ),
        Store(
            "checkpoints",
            "training",
            kept * one,
            _size(_files(run.checkpoints)),
            "lower training.keep_checkpoints, train additions with student.init: lora",
            passing=(most - kept) * one,
        ),
        Store(
            "previews",
            "training",
            previews_bytes(config, work.num_prompts["eval"]),
            _size(_files(run.previews)),
            "raise previews.every_samples",
        ),
    )


def plan_disk(stores: Iterable[Store], run: RunFolder) -> dict[str, Any]:
    """What is planned, beside what the disk of a run has."""
    rows = list(stores)
    return {
        "stages": {row.name: row.num_bytes for row in rows if row.num_bytes},
        "planned_bytes": sum(row.num_bytes + row.passing for row in rows),
        "free_bytes": shutil.disk_usage(run.path).free,
        "present_bytes": sum(min(row.num_bytes, row.present) for row in rows),
    }


def lacking_bytes(disk: Mapping[str, Any]) -> int:
    """More than there is, by what `plan_disk` gives; negative where it is enough."""
    return int(disk["planned_bytes"] - disk["free_bytes"] - disk["present_bytes"])


def on_disk(stores: Iterable[Store], disk: Mapping[str, Any], run: RunFolder) -> Iterator[Note]:
    """Too little space, by what `plan_disk` gives of these stores."""
    lacking = lacking_bytes(disk)
    if lacking > 0:
        need, free, present = (disk[f"{name}_bytes"] for name in ("planned", "free", "present"))
        largest = max(stores, key=lambda store: store.num_bytes)
        yield error(
            f"the run needs {readable(need)} of disk",
            f" ({summarise_sizes(disk['stages'])}), {readable(lacking)} more than there is: {run} "
            f"has {readable(free)} free and holds {readable(present)} of it",
            f"free some space, {largest.smaller}, or make results/ a link to a larger disk",
        )


def summarise_sizes(stages: Mapping[str, int]) -> str:
    """Stages with their sizes, in one line."""
    return ", ".join(f"{stage} {readable(size)}" for stage, size in stages.items())


def _files(folder: Path) -> Iterable[Path]:
    return (Path(root) / name for root, _, names in os.walk(folder) for name in names)


def _size(paths: Iterable[Path]) -> int:
    """Bytes of files; one that is linked from elsewhere takes none."""
    statuses = [path.lstat() for path in paths]
    links = Counter(status.st_ino for status in statuses)
    sizes = {it.st_ino: it.st_size for it in statuses if it.st_nlink == links[it.st_ino]}
    return sum(sizes.values())
