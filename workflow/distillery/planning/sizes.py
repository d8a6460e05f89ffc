"""The plan of sizes: what prompts with a height and width of their own ask of the teacher."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping

import pandas as pd

from distillery.config.run import Config, RunConfig
from distillery.config.section import Split
from distillery.config.ways import Rollouts, Stored
from distillery.families import Size
from distillery.notes import Note, doubt, error
from distillery.planning.page import TIMES
from distillery.prompts import own_sizes
from distillery.teacher.folder import PipelineFolder
from distillery.teacher.skeleton import load_skeleton
from distillery.words import counted

SIZES_LEARNED = (Stored, Rollouts)
"""Ways to learn that take batches of any size."""


def count_sizes(table: pd.DataFrame, usual: Size) -> dict[Size, int]:
    """How many prompts are of each size, the most frequent first."""
    return dict(Counter(usual.each(own_sizes(table))).most_common())


def sizes_of(tables: Iterable[pd.DataFrame], usual: Size) -> list[Size]:
    """All sizes that prompts have."""
    return list(dict.fromkeys(size for table in tables for size in count_sizes(table, usual)))


def share_of_usual(table: pd.DataFrame, usual: Size) -> float:
    """The mean number of pixels of a prompt's image, over the teacher's: what bytes go by."""
    counts = count_sizes(table, usual)
    pixels = sum(size.height * size.width * count for size, count in counts.items())
    return pixels / (len(table) * usual.height * usual.width)


def describe_sizes(prompts: Mapping[str, pd.DataFrame], usual: Size) -> str:
    """Of the prompts of all splits; "" where all are of one."""
    counts = Counter[Size]()
    for table in prompts.values():
        counts.update(count_sizes(table, usual))
    if list(counts) == [usual]:
        return ""
    told = [f"{size.height} {TIMES} {size.width} of {count:,}" for size, count in counts.items()]
    return ", ".join(told)


def on_sizes(
    config: RunConfig, folder: PipelineFolder, prompts: Mapping[str, pd.DataFrame]
) -> list[Note]:
    """Sizes that the teacher cannot make, and ways to learn that take one alone.

    A size of which there are few trajectories is seen as often as all others, in batches that hold
    some of them twice.
    """
    notes, skeleton = list[Note](), load_skeleton(folder)
    for size, whose in _own(config, prompts):
        try:
            folder.family.latent_shape(skeleton, size)
        except ValueError as refused:
            # It speaks of the run's keys, and a prompt's columns have their last part as a name.
            cause = f" cannot be made: {str(refused).replace('teacher.', '')}"
            notes.append(error(whose, cause))
    if isinstance(config, Config):
        usual = Size.of(config.teacher)
        learned = count_sizes(prompts["train"], usual)
        if set(learned) != {usual}:
            notes += [*_on_ways(config), *_on_few(config, learned)]
    return notes


def on_traced_sizes(
    config: RunConfig, folder: PipelineFolder, prompts: Mapping[str, pd.DataFrame]
) -> Iterator[Note]:
    """Sizes of prompts where the teacher is still to be learnt, which is done at one size."""
    usual = Size.of(config.teacher)
    for size, whose in _own(config, prompts) if folder.is_to_be_learnt else ():
        yield error(
            whose,
            f" cannot be made at {size.height} {TIMES} {size.width}: teacher.trace is set, and its "
            "pipeline is traced at one size",
            f"use {usual.height} {TIMES} {usual.width}, as teacher.height and width say",
        )


def _own(config: RunConfig, prompts: Mapping[str, pd.DataFrame]) -> Iterator[tuple[Size, str]]:
    """Each size of a split's prompts that is not the teacher's, and whose it is."""
    usual = Size.of(config.teacher)
    splits: tuple[Split, ...] = ("train", "eval")
    for split in (it for it in splits if it in prompts):
        for size, count in count_sizes(prompts[split], usual).items():
            if size != usual:
                of = f"{counted(count, 'prompt')} of {config.prompts.file(split)}"
                yield size, f"{of} ({_ids_of(prompts[split], size)})"


def _ids_of(table: pd.DataFrame, size: Size) -> str:
    """The first prompts of a size."""
    ids = [
        str(name)
        for name, own in zip(table["prompt_id"], own_sizes(table), strict=True)
        if own == (size.height, size.width)
    ]
    return ", ".join(ids[:3]) + ", …" * (len(ids) > 3)


def _on_ways(config: Config) -> Iterator[Note]:
    """Ways that learn at one size."""
    training = config.training
    for phase in training.phases:
        if not isinstance(phase, SIZES_LEARNED):
            cause = ", and prompts of the train split have sizes of their own"
            yield error(
                f"training.phases has {phase.learn}",
                cause,
                "learn stored and by rollouts, or take the teacher's size",
            )
    if training.decodes:
        yield error(
            "perceptual_weight is set",
            ", and prompts of the train split have sizes of their own",
            "remove it, or take the teacher's size",
        )


def _on_few(config: Config, sizes: Mapping[Size, int]) -> Iterator[Note]:
    """Sizes of fewer segments than an update takes."""
    per_prompt = config.targets.samples_per_prompt * config.student.items_per_trajectory
    for size, count in sizes.items():
        if count * per_prompt < config.training.global_batch_size:
            yield doubt(
                f"{counted(count, 'prompt')} of {size.height} {TIMES} {size.width} pixels",
                f" give fewer segments than training.global_batch_size, "
                f"{config.training.global_batch_size}, of which each batch is of one size: some "
                "stand in it twice",
                "take more such prompts, or a nearer size",
            )
