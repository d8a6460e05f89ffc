"""Random legal configurations of the demo's teacher: what checks of many runs walk over."""

import copy
import random
from collections.abc import Iterator
from typing import Any

import yaml

from checkout import REPOSITORY
from distillery.config.run import RunConfig, parse_config

DEMO: dict[str, Any] = yaml.safe_load((REPOSITORY / "config/config.yaml").read_text())


def random_configs(number: int, seed: int = 0) -> Iterator[RunConfig]:
    """So many legal ones; the same for the same seed."""
    rng = random.Random(seed)
    while number:
        raw = _draw(rng)
        try:
            config = parse_config(raw, "random")
        except ValueError:
            continue
        number -= 1
        yield config


def _draw(rng: random.Random) -> dict[str, Any]:
    """A run, which may be illegal; one in four only generates."""
    raw = copy.deepcopy(DEMO)
    raw["seed"] = rng.choice([0, 0, 7])
    raw["teacher"] |= {
        "num_gpus": rng.choice([1, 1, 1, 2]),
        "offload": rng.choice(["none", "none", "model"]),
    }
    raw["samples"] |= {"num_shards": rng.randint(1, 4), "images_per_prompt": rng.randint(1, 3)}
    models = raw["samples"]["models"]
    for name in rng.sample(sorted(models), rng.randrange(len(models))):
        if name != "teacher":
            del models[name]
    if rng.random() < 0.25:
        return _generating(raw, rng)
    steps = rng.choice([8, 24])
    raw["targets"] |= {
        "steps": steps,
        "num_shards": rng.randint(1, 5),
        "samples_per_prompt": rng.randint(1, 3),
        "guidance_scale": rng.choice([1.0, 3.0]),
    }
    raw["student"] |= {"steps": rng.choice([1, 2, 4])}
    if rng.random() < 0.3:
        raw["student"] |= {"init": "lora", "lora": {"rank": rng.choice([4, 16])}}
    raw["training"] = _training(rng)
    raw["previews"] = {"every_samples": rng.choice([0, raw["training"]["num_samples"] // 2])}
    if rng.random() < 0.2:
        raw["evaluation"]["vision_models"] = {"one": "a/b", "two": "c/d"}
    return raw


def _generating(raw: dict[str, Any], rng: random.Random) -> dict[str, Any]:
    for section in ("targets", "student", "training", "previews", "evaluation"):
        raw.pop(section, None)
    raw["prompts"].pop("train", None)
    raw["samples"].pop("steps", None)
    steps = rng.choice([4, 8, 24])
    model = {"source": "teacher", "steps": steps, "guidance_scale": rng.choice([1.0, 3.0])}
    raw["samples"]["models"] = {"teacher": model}
    raw["dataset"] = {"pairs": rng.choice(["none", "all"])}
    return raw


def _training(rng: random.Random) -> dict[str, Any]:
    """A section `training`; about one in two is legal."""
    size = rng.choice([1, 8, 32])

    def some(most: int = 40) -> int:
        return size * rng.randrange(1, most)

    raw: dict[str, Any] = {
        "num_samples": some(200),
        "global_batch_size": size,
        "objective": rng.choice(["segment"] * 6 + ["direct", "reflow"]),
        "schedule": rng.choice(["cosine", "constant"]),
        "ema_half_life_samples": rng.choice([0, some()]),
    }
    if rng.random() < 0.4:
        raw["rounds"] = {"count": rng.randint(1, 4), "samples": some()}
    if rng.random() < 0.3:
        raw["adversarial"] = {"samples": some(), "warmup_samples": rng.choice([0, size, 5 * size])}
    if rng.random() < 0.3:
        raw |= {"targets": "online"}
        raw |= {"finish_samples": some(80)} if rng.random() < 0.6 else {}
        raw |= {"distribution_matching": {}} if rng.random() < 0.3 else {}
    if rng.random() < 0.3:
        raw |= {"rollout_samples": some(60)}
        raw |= {"perceptual_weight": 0.1} if rng.random() < 0.5 else {}
    return raw
