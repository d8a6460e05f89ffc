"""Notes on settings that are allowed and most often a mistake."""

from collections import Counter
from collections.abc import Iterator

from distillery.config.previews import Previews
from distillery.config.run import Config, RunConfig
from distillery.config.teacher import Teacher
from distillery.measures.intervals import MIN_RESAMPLED
from distillery.notes import Note, advice, doubt
from distillery.teacher.adapter_files import facts_of
from distillery.teacher.adapters import find_adapter
from distillery.teacher.folder import PipelineFolder
from distillery.teacher.placement import lacking_for_attention
from distillery.words import counted

HIGH_CLIP_RATIO = 1.2
"""Of the reference's CLIP score: no student has come near."""


def on_adapters(teacher: Teacher) -> Iterator[Note]:
    """Adapters that change nothing, or that are put in twice."""
    keys = [(it.path, it.weight_name, it.expert) for it in teacher.adapters]
    for key, number in Counter(keys).items():
        if number > 1:
            yield doubt(
                "teacher.adapters",
                f" lists {'/'.join(filter(None, key[:2]))} {number} times: their scales add up",
                "keep one, with the scale that you mean",
            )
    for it in teacher.adapters:
        if it.scale == 0:
            cause = f": the scale of {it.path} is 0, so it changes nothing"
            yield advice("teacher.adapters", cause, "leave it out, or give it a scale")


def on_idle(teacher: Teacher, folder: PipelineFolder) -> Iterator[Note]:
    """Adapters whose files change nothing: all their products or scales are zero."""
    for it in teacher.adapters:
        if facts_of(find_adapter(it), folder).changes_nothing:
            yield doubt(
                "teacher.adapters",
                f": {it.path} changes nothing, since its matrices or its alphas are all zero",
                "leave it out, or use the file that was trained",
            )


def on_attention(teacher: Teacher) -> Iterator[Note]:
    """Attention kernels that lack a package here: elsewhere it may be there."""
    lacking = lacking_for_attention(teacher.attention) if teacher.attention else None
    if lacking is not None:
        yield doubt(
            f"teacher.attention is {teacher.attention!r}",
            f", and its kernels cannot be used here: {lacking}. Every job that calls the teacher "
            "needs this where it runs, and fails without",
            "or set attention: native",
        )


def on_numbers(config: RunConfig, num_eval: int) -> Iterator[Note]:
    """More prompts than there are, and too few for what is to be decided."""
    asked = {"samples.num_prompts": config.samples.num_prompts or 0}
    if isinstance(config, Config) and config.previews.every_samples:
        # The default is no wish; previews draw what there is.
        number = config.previews.num_prompts
        asked["previews.num_prompts"] = number if number != Previews().num_prompts else 0
    source = config.prompts.eval or "the held-out share of prompts.train"
    for key, number in asked.items():
        if number > num_eval:
            cause = f", and {source} has {counted(num_eval, 'prompt')}: all are drawn"
            yield advice(f"{key} is {number:,}", cause)
    samples, num_images = config.samples, config.samples.num_images(num_eval)
    num_tars = -(-num_images // samples.images_per_shard)
    if samples.store == "shards" and num_tars < samples.num_shards:
        yield advice(
            f"samples.images_per_shard is {samples.images_per_shard:,}",
            f": the {counted(num_images, 'image')} of a model are {counted(num_tars, 'tar file')}, "
            f"and {samples.num_shards - num_tars} of its {samples.num_shards} jobs have none",
            f"{max(1, num_images // (4 * samples.num_shards)):,} would do",
        )
    num_sampled = min(samples.num_prompts or num_eval, num_eval)
    if isinstance(config, Config) and num_sampled < MIN_RESAMPLED:
        yield doubt(
            f"samples are of {counted(num_sampled, 'prompt')}",
            f", and an interval needs {MIN_RESAMPLED}: the thresholds of evaluation cannot be "
            "decided",
            "raise samples.num_prompts, or give more held-out prompts",
        )


def on_settings(config: Config, num_train: int) -> Iterator[Note]:
    """Settings of the training and the evaluation."""
    training, ratio = config.training, config.evaluation.min_clip_ratio
    if ratio > HIGH_CLIP_RATIO:
        yield doubt(
            f"evaluation.min_clip_ratio is {ratio:g}",
            f": the student passes only if its CLIP score is {ratio:g} times the reference's",
            "it is a ratio, 0.95 for 95 %",
        )
    if 2 * training.held_out_prompts > num_train:
        yield doubt(
            f"training.held_out_prompts holds out {counted(training.held_out_prompts, 'prompt')}",
            f" of {num_train:,}, more than half: the student learns from the rest alone",
            f"{max(1, num_train // 20):,} would do",
        )
    if training.save_every_samples >= training.num_samples:
        yield advice(
            f"training.save_every_samples is {training.save_every_samples:,}",
            f" for {training.num_samples:,} samples: there is no checkpoint before the end, and a "
            "training that is killed begins anew",
            "save more often",
        )
