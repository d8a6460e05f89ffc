"""How a model is sampled: what it leaves open is filled in, and told by the key that it is from."""

from typing import Annotated, Literal

from distillery.config.run import Config, RunConfig
from distillery.config.samples import IMAGES_PER_SHARD, SampleStoreName, Source
from distillery.config.section import BatchSize, Count, Interval, OnlyIfSet, Section, Small

SAME_FOR_ALL_MODELS = (
    "num_prompts", "images_per_prompt", "batch_size", "store", "images_per_shard"
)  # fmt: skip
"""Of a model's sampling, what `samples` says once."""


class Sampling(Section):
    """One model's sampling with every default resolved.

    `guidance_scale` is None for a student sampled as it was trained: without guidance, or, where
    the network takes the scale as an input, with `trained_guidance_scale`, that of its targets.
    `guidance_scale_2` is None where all networks are guided alike, `guidance_interval` where all
    steps are.
    """

    source: Source
    steps: Small
    guidance_scale: float | None
    guidance_scale_2: float | None = None
    guidance_interval: Annotated[Interval | None, OnlyIfSet] = None
    grid: Annotated[Literal["even"] | None, OnlyIfSet] = None
    trained_guidance_scale: float | None
    num_prompts: Count | None
    images_per_prompt: Count
    batch_size: BatchSize
    store: Annotated[SampleStoreName, OnlyIfSet] = "files"
    images_per_shard: Annotated[Count, OnlyIfSet] = IMAGES_PER_SHARD


def resolve_sampling(config: RunConfig, model: str) -> Sampling:
    """Fill the steps and the guidance that a sampled model leaves open.

    A model with a guidance scale of its own takes neither the second one of the targets nor their
    interval: they belong together, and a model of guidance 1.0 shall have none at all.
    """
    chosen = config.samples.models[model]
    steps, trained = chosen.steps, None
    guidance_scale, guidance_scale_2 = chosen.guidance_scale, chosen.guidance_scale_2
    interval = chosen.guidance_interval
    if isinstance(config, Config) and chosen.source == "teacher":
        steps = steps or config.targets.steps
        if guidance_scale is None:
            guidance_scale = config.targets.guidance_scale
            guidance_scale_2 = guidance_scale_2 or config.targets.guidance_scale_2
            interval = interval or config.targets.guidance_interval
    elif isinstance(config, Config):
        steps = steps or config.student.steps
        trained = config.targets.guidance_scale
    assert steps is not None, "a run without training gives them, see GeneratingConfig"
    return Sampling(
        source=chosen.source,
        steps=steps,
        guidance_scale=guidance_scale,
        guidance_scale_2=guidance_scale_2,
        guidance_interval=None if interval == (0.0, 1.0) else interval,
        grid=chosen.grid,
        trained_guidance_scale=trained,
        num_prompts=config.samples.num_prompts,
        images_per_prompt=config.samples.images_per_prompt,
        batch_size=config.samples.batch_size,
        store=config.samples.store,
        images_per_shard=config.samples.images_per_shard,
    )


def teachers_calls(config: RunConfig) -> dict[str, tuple[int, float]]:
    """Steps and guidance of the teacher's calls, by the section that says them."""
    calls: dict[str, tuple[int, float]] = {}
    if isinstance(config, Config):
        calls["targets"] = config.targets.steps, config.targets.guidance_scale
    for name, model in config.samples.models.items():
        if model.source == "teacher":
            sampling = resolve_sampling(config, name)
            assert sampling.guidance_scale is not None, "as of steps"
            calls[f"samples.models.{name}"] = sampling.steps, sampling.guidance_scale
    return calls


def user_key(config: RunConfig, stage: str, key: str) -> str:
    """The key of the configuration that a value of a stage's frozen file comes from.

    Of a value that a sampled model leaves open, `targets.steps` for instance, it is the key that it
    comes from now: the file does not tell where an earlier value came from.

    Args:
        stage: as `freeze` takes it.
        key: with dots, as `sampling.steps`.
    """
    if key == "version":
        return f"this release's version of {stage}"
    section, _, name = key.partition(".")
    if section != "sampling":
        return key
    model = stage.removeprefix("samples-")
    if name in SAME_FOR_ALL_MODELS:
        return f"samples.{name}"
    if name == "trained_guidance_scale":
        return "targets.guidance_scale"
    return _inherited(config, model, name) or f"samples.models.{model}.{name}"


def _inherited(config: RunConfig, model: str, name: str) -> str | None:
    """The key outside of `samples` that a model takes a value from; as in `resolve_sampling`."""
    chosen = config.samples.models[model]
    follows_scale = name in ("guidance_scale_2", "guidance_interval")
    own_guidance = follows_scale and chosen.guidance_scale is not None
    if not isinstance(config, Config) or getattr(chosen, name) is not None or own_guidance:
        return None
    if chosen.source == "teacher":
        return f"targets.{name}"
    return "student.steps" if name == "steps" else None
