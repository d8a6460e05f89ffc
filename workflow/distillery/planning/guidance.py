"""The plan of guidance: a second scale is only for a teacher whose pipeline uses it."""

from collections.abc import Iterator

from distillery.config.jobs import resolve_sampling
from distillery.config.run import Config, RunConfig
from distillery.notes import Note, advice, error
from distillery.teacher.folder import PipelineFolder


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
