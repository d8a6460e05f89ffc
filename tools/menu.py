"""Write what each shipped configuration costs to its head, as its plan says it at released shapes.

python tools/menu.py           rewrites the heads of config/*.yaml
python tools/menu.py --check   writes nothing; exit status 1 if one of them is out of date

Nothing is downloaded: teachers are folders of the released shapes without weights. Hours are given
where a rate of a network of the same shape and image size was measured on an H200.
"""

import argparse
import json
import os
import re
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

ROOT = Path(__file__).resolve().parents[1]
for part in ("benchmarks", "tests", "workflow"):
    if str(ROOT / part) not in sys.path:
        sys.path.append(str(ROOT / part))

import pandas as pd
import yaml
from models import MODELS
from released import RELEASED, make_released, write_lora

from distillery.config.run import Config, RunConfig, parse_config
from distillery.files import read_json, readable, write_json, write_text
from distillery.hash_cache import CACHE_VARIABLE
from distillery.pipeline import STAGES
from distillery.planning.plan import make_plan

DISK_BYTES = 1 << 50
"""Free on the disk of a plan here, so that none is refused for this machine's."""
HEAD = re.compile(r"^#\n# Planned .*\n(?:#   .*\n)+", flags=re.MULTILINE)
TARGETS_RATES = {"sdxl": "sdxl", "flux": "flux", "wan": "wan"}
"""Family to the file benchmarks/{name}_h200_2026-11-21.json."""
TRAINING_RATES = {"sdxl": "training_sdxl_h200_2026-11-22.json"}
"""Family to a training of a student of the teacher's shape."""
WIDTH = 100


@dataclass(frozen=True)
class Entry:
    """How a shipped configuration is planned.

    Attributes:
        num_prompts: that a user is expected to bring; None: those of the file.
        gpu: as in hardware.gpu; None: as the file says, else the CPU.
    """

    num_prompts: int | None = None
    gpu: str | None = None


MENU = {
    "config": Entry(),
    "demo-my-lora": Entry(),
    "demo-video": Entry(),
    "dataset": Entry(),
    "preference-sdxl": Entry(None, "H200-141GB"),
    "sdxl-4-steps": Entry(10_000, "H200-141GB"),
    "sdxl-my-lora-4-steps": Entry(250, "H200-141GB"),
    "sdxl-24gb": Entry(10_000, "RTX4090-24GB"),
    "sdxl-cluster": Entry(100_000),
    "flux-lora-4-steps": Entry(10_000, "H200-141GB"),
    "z-image-4-steps": Entry(10_000, "H200-141GB"),
    "flux2-klein-4-steps": Entry(10_000, "H200-141GB"),
    "wan2.2-4-steps": Entry(10_000, "H200-141GB x 4"),
}


@dataclass(frozen=True)
class Planned:
    """A shipped configuration with its plan.

    Attributes:
        config: as planned, with stand-ins for what would be downloaded.
        plan: as in plan.json.
    """

    config: RunConfig
    plan: dict[str, Any]


def plan_shipped(name: str, teachers: Path, folder: Path) -> Planned:
    """The plan of config/{name}.yaml at released shapes.

    Args:
        name: of the file.
        teachers: folder where teachers are made once, for all configurations.
        folder: for prompts and results.
    """
    entry = MENU[name]
    raw = yaml.safe_load((ROOT / "config" / f"{name}.yaml").read_text(encoding="utf-8"))
    for split in ("train", "eval"):
        if raw["prompts"].get(split):
            raw["prompts"][split] = str(_prompts(raw["prompts"][split], entry.num_prompts, folder))
    stand_in(raw, teachers)
    if entry.gpu:
        raw["hardware"] = {**raw.get("hardware", {}), "gpu": entry.gpu}
    config = parse_config(raw, name)
    output = folder / "results" / name / "plan.json"
    with offline_and_roomy(teachers):
        make_plan(STAGES, config, output)
    return Planned(config, read_json(output))


def _prompts(path: str, number: int | None, folder: Path) -> Path:
    """A prompt file, or its prompts with a number each until there are so many."""
    if number is None:
        return ROOT / path
    texts = pd.read_csv(ROOT / path)["prompt"].tolist()
    rows = [f"{texts[row % len(texts)]} {row}" for row in range(number)]
    written = folder / f"{number}.csv"
    folder.mkdir(parents=True, exist_ok=True)
    pd.DataFrame({"prompt": rows}).to_csv(written, index=False)
    return written


def stand_in(raw: dict[str, Any], teachers: Path) -> None:
    """Replace what a configuration would download or takes from the user, in place.

    The stand-ins' tokenizers are no measure of a prompt's length, so it is not refused.
    """
    teacher = raw["teacher"]
    if teacher["path"] not in RELEASED:
        teacher["path"] = str(ROOT / teacher["path"])
        if "evaluation" in raw:
            raw["evaluation"]["judge"] = str(ROOT / raw["evaluation"]["judge"])
        return
    folder = teachers / teacher["path"].rpartition("/")[2]
    if not folder.is_dir():
        words = pd.read_csv(ROOT / "config/prompts/preference.csv")["prompt"]
        with offline_and_roomy(teachers):
            make_released(RELEASED[teacher["path"]], folder, words)
    teacher |= {"path": str(folder), "long_prompts": "truncate"}
    for adapter in teacher.get("adapters", []):
        adapter["path"] = str(teachers / "my-lora.safetensors")
        write_lora(Path(adapter["path"]))
    if "evaluation" in raw:
        judge = teachers / "judge"
        write_json(judge / "config.json", {"model_type": "clip", "projection_dim": 768})
        raw["evaluation"]["judge"] = str(judge)


@contextmanager
def offline_and_roomy(teachers: Path) -> Iterator[None]:
    """With a cache of hashes of its own, and a disk that no plan fills.

    Whether a stand-in's tokenizer tells 100,000 prompts apart says nothing of the released one.
    """
    roomy = type("Usage", (), {"free": DISK_BYTES})
    cache = {CACHE_VARIABLE: str(teachers / "cache"), "CUDA_VISIBLE_DEVICES": ""}
    told_apart = "distillery.generation.embeddings.check_told_apart"
    with (
        patch.dict(os.environ, cache),
        patch("shutil.disk_usage", return_value=roomy),
        patch(told_apart),
    ):
        yield


def head_of(name: str, planned: Planned) -> str:
    """The comment that goes to a configuration's head."""
    entry, plan, config = MENU[name], planned.plan, planned.config
    gpu = f"on {config.hardware.gpu}" if config.hardware.gpu else "on the CPU"
    number = f"{entry.num_prompts:,} prompts" if entry.num_prompts else "the prompts below"
    if config.teacher.trace:
        known = dict(fact for part in plan["page"]["parts"] for fact in part["facts"])
        facts = [("memory", f"of weights: {known['memory of weights']}")]
        facts += [("calls", known["trajectories"])]
    else:
        facts = [("disk", _disk(plan)), ("memory", _memory(plan)), ("calls", _calls(plan, config))]
        facts += [("hours", hours) for hours in [_hours(config, plan)] if hours]
    lines = [f"# Planned with {number}, {gpu} (tools/menu.py writes this from the plan):"]
    for fact, text in facts:
        lines += _wrapped(f"#   {fact:<7} ", text)
    return "\n".join(lines) + "\n"


def _wrapped(label: str, text: str) -> list[str]:
    lines, indent = [label], "#   " + " " * (len(label) - 4)
    for word in text.split(" "):
        if len(lines[-1]) + len(word) > WIDTH:
            lines.append(indent)
        lines[-1] += f"{word} "
    return [line.rstrip() for line in lines]


def _disk(plan: Mapping[str, Any]) -> str:
    stages = plan["disk"]["stages"]
    parts = [f"{stage} {readable(size)}" for stage, size in stages.items() if size]
    return f"{readable(plan['disk']['planned_bytes'])} at the most: {', '.join(parts)}"


def _memory(plan: Mapping[str, Any]) -> str:
    jobs = [f"{name} {readable(size)}" for name, size in plan["memory"]["jobs"].items()]
    where = "GPU" if plan["planned_gpus"]["count"] else "process"
    if "training" in plan:
        jobs.append(f"training {readable(plan['training']['bytes_per_device'])}")
    return f"per {where}, without activations: {', '.join(jobs)}"


def _calls(plan: Mapping[str, Any], config: RunConfig) -> str:
    """Network calls by what they are for."""
    work = plan["work"]
    if not isinstance(config, Config):
        return f"{work['teacher_calls']:,} of the teacher for {work['num_images']:,} images"
    return (
        f"{work['teacher_calls']:,} of the teacher for {work['num_trajectories']:,} trajectories; "
        f"{config.training.num_samples:,} samples of the training"
    )


def _hours(config: RunConfig, plan: Mapping[str, Any]) -> str:
    """GPU-hours of an H200 by measured rates, "" where there is none."""
    told, family = [], plan["teacher"]["family"]
    per_call = _seconds_per_call(config, family)
    if per_call is not None:
        seconds, file = per_call
        what = "targets" if isinstance(config, Config) else "images, without decoding"
        hours = plan["work"]["teacher_calls"] * seconds / 3600
        told.append(f"{what} {hours:.2g} (rate of benchmarks/{file})")
    trained = TRAINING_RATES.get(family)
    if isinstance(config, Config) and trained and _is_of_the_teachers_shape(config):
        benchmark = _benchmark(trained)
        rate = benchmark["trainings"]["stored-1"]["samples_per_s"]
        hours = config.training.num_samples / rate / 3600
        told.append(f"training {hours:.2g} (batch {benchmark['batch']}, benchmarks/{trained})")
    return f"of one H200: {'; '.join(told)}" if told else ""


def _seconds_per_call(config: RunConfig, family: str) -> tuple[float, str] | None:
    """Of the teacher's network, for one image or half of a guided pair; and the rate's file."""
    name, model = TARGETS_RATES.get(family), MODELS.get(family)
    size = (config.teacher.height, config.teacher.width)
    if name is None or model is None or size != (model.height, model.width):
        return None
    file = f"{name}_h200_2026-11-21.json"
    found = _benchmark(file)
    rate = found["stages"]["targets-always-1"]["images_per_s_per_gpu"]
    calls = found["model"]["steps"] * found["model"]["calls_per_step"]
    return 1 / (rate * calls), file


def _is_of_the_teachers_shape(config: Config) -> bool:
    size = (config.teacher.height, config.teacher.width)
    return config.student.init == "teacher" and size == (1024, 1024)


def _benchmark(file: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((ROOT / "benchmarks" / file).read_text(encoding="utf-8"))
    return found


def with_head(text: str, head: str) -> str:
    """A configuration with this below its first comments, in place of what it has there."""
    lines = HEAD.sub("", text, count=1).splitlines(keepends=True)
    end = next(place for place, line in enumerate(lines) if not line.startswith("#"))
    return "".join([*lines[:end], "#\n", head, *lines[end:]])


def main(argv: list[str] | None = None) -> int:
    """Plan all, then write or compare."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--check", action="store_true", help="compare, write nothing")
    arguments = parser.parse_args(argv)
    stale = []
    with tempfile.TemporaryDirectory() as temporary:
        for name in MENU:
            path = ROOT / "config" / f"{name}.yaml"
            text = path.read_text(encoding="utf-8")
            planned = plan_shipped(name, Path(temporary) / "teachers", Path(temporary) / name)
            written = with_head(text, head_of(name, planned))
            stale += [(path, written)] if written != text else []
    for path, written in stale:
        if arguments.check:
            print(f"error: {path} is out of date: run python tools/menu.py", file=sys.stderr)
        else:
            write_text(path, written)
    return int(bool(stale) and arguments.check)


if __name__ == "__main__":
    raise SystemExit(main())
