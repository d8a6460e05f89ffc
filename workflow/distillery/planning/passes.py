"""How much each job computes, in forward passes of the teacher's network."""

from collections.abc import Mapping

from distillery.config.jobs import resolve_sampling
from distillery.config.run import Config, RunConfig
from distillery.teacher.folder import PipelineFolder

OF_AN_UPDATE = 3
"""Forward passes that a forward and a backward pass take."""


def passes_per_job(
    config: RunConfig, num_eval: int, calls: Mapping[str, int], folder: PipelineFolder, size: float
) -> dict[str, float]:
    """Passes of one job of each rule that has many.

    Args:
        config: of the run.
        num_eval: held-out prompts.
        calls: of the teacher in all, for `targets` and for one round.
        folder: of the teacher.
        size: parameters of the student over those of the teacher.
    """
    passes = {"samples": _of_samples(config, num_eval, folder, size)}
    if isinstance(config, Config):
        shards, training = config.targets.num_shards, config.training
        per_round = training.rounds.samples if training.rounds else 0
        passes |= {
            "targets": calls["targets"] / shards,
            "round_targets": calls["round"] / shards,
            "training": OF_AN_UPDATE * size * training.num_samples,
            "training_before_round": OF_AN_UPDATE * size * per_round,
        }
    return {rule: number for rule, number in passes.items() if number}


def _of_samples(config: RunConfig, num_eval: int, folder: PipelineFolder, size: float) -> float:
    """Of one job that draws, in the mean over the models."""
    samples = config.samples
    calls = 0.0
    for name, model in samples.models.items():
        calls += calls_per_image(config, name, folder) * (
            1.0 if model.source == "teacher" else size
        )
    images = samples.num_images(num_eval)
    return images * calls / max(len(samples.models) * samples.num_shards, 1)


def calls_per_image(config: RunConfig, name: str, folder: PipelineFolder) -> int:
    """Network calls for one image of a sampled model."""
    model = resolve_sampling(config, name)
    scale = model.guidance_scale or 1.0
    return model.steps * folder.family.calls_per_step(folder.denoiser_config, scale)


def calls_of_samples(config: RunConfig, num_eval: int, folder: PipelineFolder) -> int:
    """Network calls for the images of all models, whatever the size of their network."""
    images = config.samples.num_images(num_eval)
    return images * sum(calls_per_image(config, name, folder) for name in config.samples.models)
