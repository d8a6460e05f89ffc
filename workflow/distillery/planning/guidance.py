"""The plan of guidance: what of it a pipeline has no use for, and students guided once more."""

import re
from collections.abc import Iterator

from distillery.config.run import Config, RunConfig
from distillery.config.samples import SampledModel
from distillery.config.sampling import Sampling, resolve_sampling
from distillery.config.section import steps_within
from distillery.config.teacher import Teacher
from distillery.notes import Note, advice, doubt, error
from distillery.teacher.folder import PipelineFolder

BY_STEPS = re.compile(r"skip_(guidance_layers|layer_guidance_)|cfg_trunc_ratio$")
"""Arguments of stock calls that begin or end at a share of the call's own steps."""


def on_second_scale(config: RunConfig, folder: PipelineFolder) -> Iterator[Note]:
    """Every `guidance_scale_2` of a run that the stock pipeline would refuse or not look at."""
    pairs = {
        f"samples.models.{name}": resolve_sampling(config, name) for name in config.samples.models
    }
    targets = {"targets": config.targets} if isinstance(config, Config) else {}
    for section, given in (targets | pairs).items():
        second = given.guidance_scale_2
        where = f"{section}.guidance_scale_2 is {second}"
        if second is not None and draws_with_one_network(folder):
            yield error(
                where,
                ": the teacher draws with one network, guidance_scale is all of its guidance",
                "remove guidance_scale_2",
            )
        elif given.guidance_scale == 1.0 and second not in (None, 1.0):
            yield error(
                where,
                " and guidance_scale is 1.0, with which the stock pipeline guides neither network",
                "raise guidance_scale, or remove guidance_scale_2",
            )


def on_interval(config: RunConfig, folder: PipelineFolder) -> Iterator[Note]:
    """Intervals of guidance that change nothing, or that a stock call would misread."""
    intervals = {f"samples.models.{name}": it.guidance_interval
                 for name, it in config.samples.models.items()}  # fmt: skip
    if isinstance(config, Config):
        intervals["targets"] = config.targets.guidance_interval
    for key, interval in intervals.items():
        if interval is not None:
            where = f"{key}.guidance_interval is {list(interval)}"
            yield from _on_call(where, config.teacher, folder)
    for name, model in config.samples.models.items():
        yield from _on_sampled(f"samples.models.{name}", model, resolve_sampling(config, name))


def _on_call(where: str, teacher: Teacher, folder: PipelineFolder) -> Iterator[Note]:
    """What the stock call has no use for, or counts otherwise."""
    if not folder.family.guidance_argument:
        cause = f": the call of {folder.class_name} takes no scale of guidance"
        yield error(where, cause, "remove it")
    for name in teacher.call or {}:
        if BY_STEPS.match(name):
            cause = f", and teacher.call.{name} goes by the steps of one call, while the steps "
            cause += "outside of the interval are calls of their own"
            yield error(where, cause, "remove one of them")


def _on_sampled(key: str, model: SampledModel, sampling: Sampling) -> Iterator[Note]:
    """An interval of a model that changes nothing, its own or that of targets."""
    interval = sampling.guidance_interval
    if interval is None:
        return
    where = f"{key}.guidance_interval is {list(interval)}"
    guided = steps_within(interval, sampling.steps)
    is_own = model.guidance_interval is not None
    if is_own and sampling.guidance_scale == 1.0:
        yield error(where, ", and with its guidance_scale of 1.0 no step is guided", "remove it")
    elif is_own and len(guided) == sampling.steps:
        cause = f", which has the middles of all its {sampling.steps} steps"
        yield error(where, cause, "make it narrower, or remove it")
    elif not guided:
        taken = "" if is_own else ", as in targets"
        cause = f"{taken}, which has the middle of none of its {sampling.steps} steps: it is not "
        cause += "guided"
        yield doubt(where, cause, "give it a guidance_interval that is wider")


def on_guided_students(config: Config, folder: PipelineFolder) -> Iterator[Note]:
    """Students that would be guided once more, by extra calls; a network that takes the scale as an
    input gets one anyway."""
    for name, model in config.samples.models.items():
        scale, family = model.guidance_scale or 1.0, folder.family
        if model.source != "teacher" and family.calls_per_step(folder.denoiser_config, scale) > 1:
            yield advice(
                f"samples.models.{name}.guidance_scale is {scale:g}",
                ": the student learns the guided teacher's answers and is best without guidance of "
                "its own, which doubles its network calls too",
            )


def draws_with_one_network(folder: PipelineFolder) -> bool:
    """Whether a pipeline has the settings that its family gives to one of a single network."""
    settings = folder.family.single_network
    return all(folder.index.get(name) == value for name, value in settings.items())
