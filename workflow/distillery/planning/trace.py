"""The plan of `teacher.trace`: what a pipeline without an adapter can be asked for."""

import re
from collections.abc import Iterator, Mapping

import pandas as pd

from distillery.config.run import Config, RunConfig
from distillery.families import FAMILIES
from distillery.input_images import IMAGE, SHA256
from distillery.notes import Note, advice, error
from distillery.planning.call import known_arguments
from distillery.schedulers import ADVICE, has_levels
from distillery.teacher.folder import PipelineFolder
from distillery.teacher.solver import load_scheduler

GIVEN = re.compile(
    r"(negative_)?(prompt(_[234])?$|pooled)|.*(embeds|mask)(_|$)|"
    r"num_(inference_steps|images|frames)|frames$|"
    r"(height|width|latents|generator|output_type|return_dict|max_sequence_length|callback)"
)
"""Arguments that every call is given in any case."""


def on_trace(
    config: RunConfig, folder: PipelineFolder, prompts: Mapping[str, pd.DataFrame]
) -> Iterator[Note]:
    """Arguments that the stock call does not know, images that are not there, and what needs an
    adapter.

    Args:
        prompts: the table of each split.
    """
    trace = config.teacher.trace
    if trace is None:
        return
    known = known_arguments(folder)
    if trace.image is not None:
        yield from _on_images(config, prompts)
    named = [(f"teacher.trace.unguided.{name}", name) for name in trace.unguided]
    named += [(f"teacher.trace.always.{name}", name) for name in trace.always]
    named += [(f"teacher.trace.image is {it!r}", it) for it in [trace.image] if it is not None]
    taken = {"guidance_scale", *trace.unguided, trace.image}
    for where, name in named:
        if name not in known:
            yield error(
                where,
                f": the call of {folder.class_name} has no such argument",
                f"it takes {', '.join(known)}",
            )
        elif GIVEN.match(name) or (name in trace.always and name in taken):
            yield error(
                where,
                ": other keys of the configuration, or the stage itself, give this argument",
                "remove it",
            )
    scale = next(iter(trace.unguided.items()), None)
    if scale and not isinstance(scale[1], int | float):
        yield error(
            f"teacher.trace.unguided.{scale[0]} is {scale[1]!r}",
            ": the first argument is the guidance scale",
            "give the number that switches guidance off, 1.0 or 0.0 in most calls",
        )
    if config.teacher.negative_prompt is not None and "negative_prompt" not in known:
        yield error(
            "teacher.negative_prompt",
            f": the call of {folder.class_name} takes none",
            "remove it",
        )
    if any(folder.class_name in family.pipeline_classes for family in FAMILIES):
        yield advice(
            "teacher.trace is set",
            f", and {folder.class_name} has an adapter, which knows more of it than a trace",
            "remove teacher.trace, unless the adapter refuses this one",
        )
    if isinstance(config, Config):
        yield from _on_student(config, folder)


def _on_images(config: RunConfig, prompts: Mapping[str, pd.DataFrame]) -> Iterator[Note]:
    """Prompts without images, and calls for several."""
    for split, table in prompts.items():
        if SHA256 not in table:
            yield error(
                f"{config.prompts.file(split)} has no column {IMAGE}",
                ", and teacher.trace.image is set",
                "name an image for each prompt, or remove the key",
            )
    sizes = {"samples.batch_size": config.samples.batch_size}
    if isinstance(config, Config):
        sizes["targets.batch_size"] = config.targets.batch_size
    for key, size in sizes.items():
        if size not in (1, "auto"):
            yield error(
                f"{key} is {size}",
                ": a call with an image is for one prompt, for many pipelines take several images "
                "for one",
                "use 1 or auto",
            )


def _on_student(config: Config, folder: PipelineFolder) -> Iterator[Note]:
    training, cure = config.training, "it needs a class with an adapter"
    if len(folder.denoisers) > 1:
        yield error(f"the teacher has the networks {', '.join(folder.denoisers)}", " and "
                    "teacher.trace is set: how its class draws with one, as a student has, is not "
                    "known", cure)  # fmt: skip
    scheduler = load_scheduler(folder, config.teacher)
    if not has_levels(scheduler):
        yield error(f"the teacher's scheduler is {type(scheduler).__name__}", ", whose noise "
                    "levels are not known or which draws noise in its steps", ADVICE)  # fmt: skip
    if config.student.init == "time_embeddings":
        yield error("student.init is time_embeddings", " and teacher.trace is set: which of its "
                    "weights embed the time is not known", cure)  # fmt: skip
    if config.student.is_flow_map and folder.is_to_be_learnt:
        yield error("student.init is flow_map", " and teacher.trace is set: Diffusers has a "
                    "network with a second time for Wan alone", "use init: teacher")  # fmt: skip
    if folder.is_to_be_learnt:
        return
    learnt = folder.family.learnt  # type: ignore[attr-defined]
    if not training.reads_trajectories and learnt.drawn is None:
        yield error("training.phases learns from nothing that is stored", " and the first job saw "
                    "no way from its seeds' noise to a call's first state",
                    "let the first phase learn: stored")  # fmt: skip
    if training.decodes and learnt.decoded is None:
        yield error("training.phases has perceptual_weight", " and the first job saw no way from "
                    "a state to what the VAE decodes: the call does more than scale, shift and "
                    "order its numbers, or the VAE's decoder has no up_blocks", cure)  # fmt: skip
