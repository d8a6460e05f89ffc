"""The plan of prompts: negative prompts that nothing would use, and signs that mean nothing."""

import re
from collections.abc import Iterable, Mapping, Sized
from pathlib import Path

import pandas as pd

from distillery.config.jobs import freeze, prompts_stage, read_frozen, resolve_sampling
from distillery.config.run import Config, RunConfig
from distillery.config.section import Split
from distillery.config.teacher import Teacher
from distillery.encodings import LOST, find_misread
from distillery.families import Family
from distillery.planning.overlooked import older_than_made
from distillery.planning.there import has_changed
from distillery.prompt_files import name_separator, separator_of
from distillery.prompts import NEGATIVE, own_negatives
from distillery.run_folder import RunFolder
from distillery.teacher.folder import PipelineFolder
from distillery.words import listed

WEIGHTS = re.compile(
    r"\([^()]*[^()\s\d]\s*:\s*\d*\.?\d+\s*\)"  # (word:1.3), not (16:9)
    r"|\(\([^()]+\)\)|\[\[[^\[\]]+\]\]|<lora:[^<>]+>"
)
"""Attention weights and adapters as some tools read them out of a prompt."""


def check_made(
    config: RunConfig, prompts: Mapping[str, pd.DataFrame], run_folder: RunFolder
) -> None:
    """Refuse prompts that are others than those in use, where Snakemake would keep the latter.

    It compares dates: a file of an older date than the table that was made from it, under the same
    settings, is not read again. A plan that was made since knows the new content alone.

    Args:
        config: of the run.
        prompts: the table of each split, as the files are now.
        run_folder: with the tables that are in use, if any.

    Raises:
        ValueError: a file has other prompts, and an older date.
    """
    splits: tuple[Split, ...] = ("train", "eval")
    for split in splits:
        stage = prompts_stage(config, run_folder, split)
        frozen = run_folder.config(stage)
        try:
            if stage != "prompts" and read_frozen(frozen) != freeze(config, stage):
                continue  # which Snakemake sees
        except (FileNotFoundError, ValueError):  # the job that reads it says what is damaged
            continue
        made, source = run_folder.prompts(split), config.prompts.file(split)
        if source is None or not made.is_file() or not has_changed(made, prompts[split]):
            continue
        made_ns = made.stat().st_mtime_ns
        # That of both splits, of an earlier release, is dated by the other split too.
        dated = [Path(source), *([frozen] if stage != "prompts" else [])]
        if all(path.stat().st_mtime_ns <= made_ns for path in dated):
            raise ValueError(older_than_made(source, "what this run has made of it"))


def check_sequence_length(teacher: Teacher, family: Family) -> None:
    """Raise ValueError for a length that the stock call refuses, or that it does not take."""
    given, longest = teacher.max_sequence_length, family.longest_sequence
    if given is None or longest is None:
        return
    if given != longest and "max_sequence_length" not in family.call_options(given):
        raise ValueError(
            f"teacher.max_sequence_length is {given}, and has no effect: the CLIP encoders of "
            f"{family.pipeline_classes[0]} read {longest} tokens; use null or {longest}"
        )
    if given > longest:
        raise ValueError(
            f"teacher.max_sequence_length is {given}, and {family.pipeline_classes[0]} takes "
            f"{longest} at the most; use 1 to {longest}, or null for {family.max_sequence_length}"
        )


def check_negatives(
    config: RunConfig, prompts: Mapping[str, pd.DataFrame], folder: PipelineFolder
) -> list[str]:
    """Find negative prompts of single prompts that nothing uses.

    Args:
        config: of the run.
        prompts: the table of each split.
        folder: of the teacher.

    Returns:
        A line of advice for a split whose negative prompts nothing uses.

    Raises:
        ValueError: nothing uses any of them.
    """
    with_negatives = [split for split, table in prompts.items() if any(own_negatives(table))]
    guided = guided_splits(config, folder)
    idle = [split for split in with_negatives if split not in guided]
    why = (
        "without guidance (guidance_scale is 1.0, or the network takes the scale as an input) a "
        "negative prompt changes nothing"
    )
    if idle and not guided:
        raise ValueError(
            f"{' and '.join(f'prompts.{split}' for split in idle)}: the column {NEGATIVE} has "
            f"texts, and {why}: raise a guidance_scale of targets or samples, or remove the column"
        )
    return [f"the column {NEGATIVE} of the {split} prompts is not used: {why}" for split in idle]


def guided_splits(config: RunConfig, folder: PipelineFolder) -> set[str]:
    """The splits that a guided network reads: train for the targets, eval for the images."""
    models = [resolve_sampling(config, model) for model in config.samples.models]
    scales = {"eval": [model.guidance_scale for model in models]}
    if isinstance(config, Config):
        scales["train"] = [config.targets.guidance_scale]
    family, network = folder.family, folder.denoiser_config
    return {
        split
        for split, split_scales in scales.items()
        if any(family.calls_per_step(network, scale or 1.0) > 1 for scale in split_scales)
    }


def describe_files(paths: Iterable[str]) -> str:
    """The prompt files, with what separates the columns of a table where that is no comma."""
    separators = {path: separator_of(Path(path)) for path in dict.fromkeys(paths)}
    return listed(
        [
            path
            if separator is None or separator == ","
            else f"{path} (columns by {name_separator(separator)})"
            for path, separator in separators.items()
        ]
    )


def count_repeated(table: pd.DataFrame) -> int:
    """Prompts whose text another one before them has; each makes images of its own."""
    return int(table["prompt"].duplicated().sum())


def advise_misread(prompts: Mapping[str, pd.DataFrame]) -> list[str]:
    """How many prompts a conversion has damaged, which no check of a file's bytes sees."""
    texts = dict.fromkeys(
        text
        for table in prompts.values()
        for text in (*table["prompt"], *filter(None, own_negatives(table)))
        if not text.isascii()
    )
    misread = [(text, meant) for text in texts if (meant := find_misread(text))]
    lost = [text for text in texts if LOST in text]
    notes = []
    if misread:
        text, meant = misread[0]
        notes.append(
            f"{_have(misread)} characters as of UTF-8 that was read as another encoding, such as "
            f"{text[:60]!r} for {meant[:60]!r}: convert the original again, as UTF-8"
        )
    if lost:
        notes.append(
            f"{_have(lost)} the sign {LOST} for characters that were lost, such as "
            f"{lost[0][:60]!r}: convert the original again"
        )
    return notes


def _have(texts: Sized) -> str:
    return f"{len(texts):,} prompts have" if len(texts) > 1 else "1 prompt has"


def advise_weights(prompts: Mapping[str, pd.DataFrame]) -> list[str]:
    """How many prompts hold attention weights, which other tools read and Diffusers does not."""
    texts = {
        text: match[0]
        for table in prompts.values()
        for text in (*table["prompt"], *filter(None, own_negatives(table)))
        if (match := WEIGHTS.search(text)) is not None
    }
    if not texts:
        return []
    example = next(iter(texts.values()))
    return [f"{_have(texts)} weights such as {example[:60]!r}: Diffusers reads them as text"]
