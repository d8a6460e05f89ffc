"""The plan of guidance: a second scale is only for a teacher whose pipeline uses it."""

from distillery.config.jobs import resolve_sampling
from distillery.config.run import Config, RunConfig
from distillery.teacher.folder import PipelineFolder


def check_second_scale(config: RunConfig, folder: PipelineFolder) -> None:
    """Check every `guidance_scale_2` of a run.

    Args:
        config: of the run.
        folder: of the teacher.

    Raises:
        ValueError: the teacher draws with one network, or guidance is off.
    """
    if isinstance(config, Config):
        targets = config.targets
        _check_pair("targets", targets.guidance_scale, targets.guidance_scale_2, folder)
    for name in config.samples.models:
        model = resolve_sampling(config, name)
        key = f"samples.models.{name}"
        _check_pair(key, model.guidance_scale, model.guidance_scale_2, folder)


def _check_pair(
    section: str, first: float | None, second: float | None, folder: PipelineFolder
) -> None:
    """Raise ValueError for a second scale that the stock pipeline would refuse or not look at."""
    if second is None:
        return
    setting = f"{section}.guidance_scale_2 is {second}"
    if draws_with_one_network(folder):
        raise ValueError(
            f"{setting}: the teacher draws with one network, guidance_scale is all of its "
            "guidance; remove guidance_scale_2"
        )
    if first == 1.0 and second != 1.0:
        raise ValueError(
            f"{setting} and guidance_scale is 1.0, with which the stock pipeline guides neither "
            "network; raise guidance_scale, or remove guidance_scale_2"
        )


def draws_with_one_network(folder: PipelineFolder) -> bool:
    """Whether a pipeline has the settings that its family gives to one of a single network."""
    settings = folder.family.single_network
    return all(folder.index.get(name) == value for name, value in settings.items())
