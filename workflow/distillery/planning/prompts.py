"""The plan of prompts: negative prompts that nothing would use, and signs that mean nothing."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sized
from pathlib import Path

import pandas as pd

from distillery.config.jobs import freeze, prompts_stage, read_frozen
from distillery.config.run import Config, RunConfig
from distillery.config.sampling import resolve_sampling
from distillery.config.section import Split
from distillery.config.teacher import Teacher
from distillery.encodings import LOST, find_misread
from distillery.families import Family
from distillery.generation.embeddings import check_texts
from distillery.input_images import find_left_out
from distillery.notes import Note, advice, doubt, error
from distillery.planning.overlooked import on_older
from distillery.planning.there import has_changed
from distillery.prompt_files import name_separator, separator_of
from distillery.prompts import NEGATIVE, own_negatives
from distillery.run_folder import RunFolder
from distillery.teacher.folder import PipelineFolder
from distillery.teacher.loading import load_tokenizers
from distillery.words import listed

WEIGHTS = re.compile(
    r"\([^()]*[^()\s\d]\s*:\s*\d*\.?\d+\s*\)"  # (word:1.3), not (16:9)
    r"|\(\([^()]+\)\)|\[\[[^\[\]]+\]\]|<lora:[^<>]+>"
)
"""Attention weights and adapters as some tools read them out of a prompt."""


def on_made(
    config: RunConfig, prompts: Mapping[str, pd.DataFrame], run_folder: RunFolder
) -> Iterator[Note]:
    """Prompts that are others than those in use, where Snakemake would keep the latter.

    It compares dates: a file of an older date than the table that was made from it, under the same
    settings, is not read again. A plan that was made since knows the new content alone.

    Args:
        prompts: the table of each split, as the files are now.
        run_folder: with the tables that are in use, if any.
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
        if source is None or not made.is_file() or not has_changed(made, prompts[split], False):
            continue  # changed images alone make the table again, see `dates.hidden_outputs`
        made_ns = made.stat().st_mtime_ns
        # That of both splits, of an earlier release, is dated by the other split too.
        dated = [Path(source), *([frozen] if stage != "prompts" else [])]
        if all(path.stat().st_mtime_ns <= made_ns for path in dated):
            yield on_older(source, "what this run has made of it")


def on_sequence_length(teacher: Teacher, family: Family) -> Iterator[Note]:
    """A length that the stock call refuses, or that it does not take."""
    given, longest = teacher.max_sequence_length, family.longest_sequence
    if given is None or longest is None:
        return
    where, pipeline = f"teacher.max_sequence_length is {given}", family.pipeline_classes[0]
    if given != longest and "max_sequence_length" not in family.call_options(given):
        yield error(
            where,
            f", and has no effect: the CLIP encoders of {pipeline} read {longest} tokens",
            f"use null or {longest}",
        )
    elif given > longest:
        yield error(
            where,
            f", and {pipeline} takes {longest} at the most",
            f"use 1 to {longest}, or null for {family.max_sequence_length}",
        )


def check_all_texts(
    teacher: Teacher, folder: PipelineFolder, prompts: Mapping[str, pd.DataFrame]
) -> None:
    """Raise ValueError for prompts of any split that encoding would refuse.

    On one core a prompt takes some tenths of a millisecond.
    """
    tables = prompts.values()
    texts = [teacher.negative_prompt, *(text for table in tables for text in table.prompt)]
    texts += [text for table in tables for text in own_negatives(table)]
    check_texts(teacher, folder, load_tokenizers(folder), dict.fromkeys(texts))


def on_negatives(
    config: RunConfig, prompts: Mapping[str, pd.DataFrame], folder: PipelineFolder
) -> Iterator[Note]:
    """Negative prompts of single prompts that nothing uses: an error where no split's are used.

    Args:
        prompts: the table of each split.
    """
    with_negatives = [split for split, table in prompts.items() if any(own_negatives(table))]
    guided = guided_splits(config, folder)
    idle = [split for split in with_negatives if split not in guided]
    why = (
        "without guidance (guidance_scale is 1.0, or the network takes the scale as an input) a "
        "negative prompt changes nothing"
    )
    if idle and not guided:
        yield error(
            " and ".join(f"prompts.{split}" for split in idle),
            f": the column {NEGATIVE} has texts, and {why}",
            "raise a guidance_scale of targets or samples, or remove the column",
        )
        return
    for split in idle:
        yield advice(f"the column {NEGATIVE} of the {split} prompts", f" is not used: {why}")


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


def on_both_splits(prompts: Mapping[str, pd.DataFrame]) -> Iterator[Note]:
    """Held-out prompts, and their noise, that the student also learns from."""
    texts, ids = (
        len(set(prompts["train"][column]) & set(prompts["eval"][column]))
        for column in ("prompt", "prompt_id")
    )
    if texts:
        yield doubt(
            f"{texts} prompts of prompts.eval",
            " are also in prompts.train: on them the scores say what the student remembers, not "
            "what it has learned",
        )
    if ids:
        yield doubt(
            f"{ids} prompt ids of prompts.eval",
            " are also in prompts.train: equal ids have equal noise, so the student is judged on "
            "noise that it has learned from",
            "begin the ids of one file otherwise",
        )


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


def _texts(prompts: Mapping[str, pd.DataFrame]) -> dict[str, None]:
    """All that is written, each once."""
    return dict.fromkeys(
        text
        for table in prompts.values()
        for text in (*table["prompt"], *filter(None, own_negatives(table)))
    )


def on_misread(prompts: Mapping[str, pd.DataFrame]) -> Iterator[Note]:
    """How many prompts a conversion has damaged, which no check of a file's bytes sees."""
    texts = [text for text in _texts(prompts) if not text.isascii()]
    misread = [(text, meant) for text in texts if (meant := find_misread(text))]
    lost = [text for text in texts if LOST in text]
    if misread:
        text, meant = misread[0]
        yield doubt(
            f"{_have(misread)} characters as of UTF-8",
            f" that was read as another encoding, such as {text[:60]!r} for {meant[:60]!r}",
            "convert the original again, as UTF-8",
        )
    if lost:
        yield doubt(
            f"{_have(lost)} the sign {LOST}",
            f" for characters that were lost, such as {lost[0][:60]!r}",
            "convert the original again",
        )


def _have(texts: Sized) -> str:
    return f"{len(texts):,} prompts have" if len(texts) > 1 else "1 prompt has"


def on_images(prompts: Mapping[str, pd.DataFrame]) -> Iterator[Note]:
    """How many images have more than is read of them."""
    found = [find_left_out(table) for table in prompts.values()]
    transparent = list(dict.fromkeys(path for one in found for path in one.transparent))
    animated = list(dict.fromkeys(path for one in found for path in one.animated))
    if transparent:
        yield advice(
            _images_have(transparent, "transparent pixels"),
            ", which are read as the colours beneath them",
            "paint such images on a background to choose it",
        )
    if animated:
        yield advice(
            _images_have(animated, "several frames"),
            ", of which the first is read",
            "save the one that is meant",
        )


def _images_have(paths: list[str], what: str) -> str:
    count = f"{len(paths):,} images have" if len(paths) > 1 else "1 image has"
    return f"{count} {what}, such as {paths[0]!r}"


def on_weights(prompts: Mapping[str, pd.DataFrame]) -> Iterator[Note]:
    """How many prompts hold attention weights, which other tools read and Diffusers does not."""
    found = [match[0] for text in _texts(prompts) if (match := WEIGHTS.search(text))]
    if found:
        cause = f" weights such as {found[0][:60]!r}: Diffusers reads them as text"
        yield doubt(_have(found), cause)
