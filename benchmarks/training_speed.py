"""Speed of training at full size: released configurations, random weights and stored targets.

    PYTHONPATH=workflow python benchmarks/training_speed.py sdxl --folder DIR --output sdxl.json

The arithmetic does not depend on the weights or on what is learned, so random ones serve. Measured:

peak      a large bfloat16 matrix product on the same GPU, short and sustained
stored    distillery.stages.training as the workflow starts it, on each number of GPUs: samples/s,
          memory, waiting for data, and the stall of one checkpoint
online    the same with `training.targets: online`, the teacher in each place that is asked for;
          with `own_gpus` one GPU less trains

MFU is three forward passes' FLOPs a sample over the peak; what is computed again for gradient
checkpointing does not count.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd
import psutil
import torch
from models import MODELS, WAN, Model, count_teraflops
from stages import make_teacher, write_embeddings
from stock import measure_peaks

from distillery.config.jobs import TargetsJob, TrainingJob
from distillery.config.run import Targets
from distillery.config.student import Student
from distillery.config.teacher import Teacher
from distillery.config.training import Training
from distillery.files import hash_json, read_json, remove, write_json
from distillery.generation.targets import targets_recipe
from distillery.hardware import describe_hardware, versions, visible_ids
from distillery.stages.student import build_student
from distillery.store.chunks import ChunkIdentity, chunk_folder, chunk_path, write_chunk
from distillery.store.shards import Manifest, describe_chunk
from distillery.store.trajectories import knots_of
from distillery.teacher.folder import PipelineFolder
from distillery.telemetry import Event, read_events

ROOT = Path(__file__).parents[1]
WAN_SMALL = replace(
    WAN,
    denoiser=(
        *WAN.denoiser[:2],
        {**WAN.denoiser[2], "num_attention_heads": 12, "ffn_dim": 8960, "num_layers": 30},
    ),
)
"""Wan2.1-T2V-1.3B as released."""
TRAINED: Mapping[str, Model] = {**MODELS, "wan-1.3b": WAN_SMALL}
STUDENT_STEPS = 4
CHUNK_SIZE = 16
MODULE = ("-m", "distillery.stages.training")
PEAKS = ("peaks_tflops", "sustained_tflops")
"""Of each GPU: a product that takes a moment, and one that meets the power limit."""
MOSTLY_FREE = 0.9
"""Of a GPU's memory, when those that used it are gone."""


def write_inputs(model: Model, folder: Path, num_trajectories: int) -> None:
    """Prompts, random embeddings, random trajectories and the untrained student, once."""
    if (folder / "student/initial").is_dir():
        return
    teacher = teacher_of(model, folder)
    table = pd.DataFrame(
        {
            "prompt_id": [f"p{row:05d}" for row in range(num_trajectories)],
            "prompt": [f"prompt number {row}" for row in range(num_trajectories)],
        }
    )
    (folder / "prompts").mkdir(parents=True, exist_ok=True)
    table.to_parquet(folder / "prompts/train.parquet", index=False)
    write_embeddings(model, teacher, folder / "teacher", table, folder / "embeddings")
    write_targets(model, folder, num_trajectories)
    build_student(training_job(model, folder, {}), folder / "student/initial")


def teacher_of(model: Model, folder: Path) -> Teacher:
    """The section `teacher` of all stages."""
    return Teacher(
        path=str(folder / "teacher"), dtype="bfloat16", height=model.height, width=model.width
    )


def write_targets(model: Model, folder: Path, num_trajectories: int) -> None:
    """Random states in the store's format, under the recipe that the targets stage would write."""
    targets = Targets(
        steps=model.steps,
        guidance_scale=model.guidance_scale,
        num_segments=STUDENT_STEPS,
        batch_size=CHUNK_SIZE,
        chunk_size=CHUNK_SIZE,
    )
    job = TargetsJob(seed=0, teacher=teacher_of(model, folder), targets=targets)
    embeddings = read_json(folder / "embeddings/manifest.json")["recipe_hash"]
    recipe = targets_recipe(job, PipelineFolder(folder / "teacher"), embeddings)
    recipe_hash = recipe.hash
    root = folder / "targets"
    chunks = chunk_folder(root, recipe_hash)
    num_knots = len(knots_of(model.steps, STUDENT_STEPS))
    generator = torch.Generator().manual_seed(0)
    records = []
    for index, start in enumerate(range(0, num_trajectories, CHUNK_SIZE)):
        rows = range(start, min(start + CHUNK_SIZE, num_trajectories))
        shape = (len(rows), num_knots, *recipe.latent_shape)
        tensors = {
            "noisy": torch.randn(shape, generator=generator),
            "prompt_row": torch.tensor(list(rows)),
        }
        identity = ChunkIdentity(recipe_hash, hash_json({"rows": list(rows)}))
        write_chunk(chunk_path(chunks, index), tensors, identity, {})
        records.append(describe_chunk(chunks, index, root, identity.members, len(rows)))
    Manifest(recipe.to_json(), recipe_hash, tuple(records)).write(root / "manifest.json")


def training_job(model: Model, folder: Path, settings: Mapping[str, Any]) -> TrainingJob:
    """The frozen configuration; `settings` are keys of the section `training`."""
    sizes = {"num_samples": 1 << 29, "global_batch_size": 64, "ema_half_life_samples": 64000}
    return TrainingJob(
        seed=0,
        teacher=teacher_of(model, folder),
        student=Student(steps=STUDENT_STEPS),
        training=Training(**(sizes | dict(settings))),
    )


def training_command(folder: Path, run: Path, num_processes: int) -> list[str]:
    """torchrun over `distillery.stages.training`."""
    places = {
        "--config": run / "config/training.json",
        "--student": folder / "student/initial",
        "--targets": folder / "targets/manifest.json",
        "--embeddings": folder / "embeddings/manifest.json",
        "--prompts": folder / "prompts/train.parquet",
        "--checkpoints": run / "student/checkpoints",
        "--trained": run / "student/trained",
        "--losses": run / "student/loss.parquet",
        "--telemetry": run / "telemetry",
        "--log-file": run / "logs/training.log",
    }
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    options = [word for name, place in places.items() for word in (name, str(place))]
    return [*launcher, f"--nproc-per-node={num_processes}", *MODULE, *options]


def run_training(
    model: Model,
    folder: Path,
    run: Path,
    num_gpus: int,
    settings: Mapping[str, Any],
    wanted: int,
) -> tuple[list[Event], "MostMemory"]:
    """Start a training, let it log so many intervals, and kill it; its events, and its memory.

    Nothing is lost by that but the end, which would write a student of random numbers.
    """
    write_json(
        run / "config/training.json", training_job(model, folder, settings).model_dump(mode="json")
    )
    ids = visible_ids() or tuple(map(str, range(num_gpus)))
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": ",".join(ids[:num_gpus])}
    begin_s = time.time()
    apart = settings.get("teacher_residence") == "own_gpus"
    memory = MostMemory(num_gpus)
    job = subprocess.Popen(
        training_command(folder, run, max(num_gpus - apart, 1)),
        env=environment,
        start_new_session=True,
    )
    try:
        while job.poll() is None and len(intervals(run, "training")) < wanted:
            time.sleep(1.0)
            memory.look(job.pid)
    finally:
        if job.poll() is None:
            os.killpg(job.pid, signal.SIGKILL)
        job.wait()
        wait_for_memory(num_gpus)
    events = [event for event in read_events(run / "telemetry") if event.begin_s >= begin_s]
    if len(intervals(run, "training")) < wanted:
        raise SystemExit(f"the training ended with {job.returncode}: see {run / 'logs'}")
    return events, memory


class MostMemory:
    """The most memory that a training and all its processes took, looked at now and then.

    Attributes:
        host: bytes; a page that several processes map counts once (PSS).
        gpus: bytes of each GPU, with what CUDA itself takes.
    """

    def __init__(self, num_gpus: int) -> None:
        """Before it starts."""
        self.host = 0
        self._free = [torch.cuda.mem_get_info(index)[0] for index in range(num_gpus)]
        self.gpus = [0] * num_gpus

    def look(self, pid: int) -> None:
        """At the processes that `pid` has started."""
        host = 0
        with suppress(psutil.Error):
            for process in psutil.Process(pid).children(recursive=True):
                with suppress(psutil.Error):
                    host += process.memory_full_info().pss
        self.host = max(self.host, host)
        for index, free in enumerate(self._free):
            used = free - torch.cuda.mem_get_info(index)[0]
            self.gpus[index] = max(self.gpus[index], used)

    def to_json(self) -> dict[str, Any]:
        """In GiB."""
        return {"host_gib": self.host / 2**30, "gpus_gib": [used / 2**30 for used in self.gpus]}


def wait_for_memory(num_gpus: int) -> None:
    """Until the killed processes have given back the memory of their GPUs, a minute at most."""
    begin_s = time.monotonic()
    for index in range(num_gpus):
        while time.monotonic() < begin_s + 60:
            free, total = torch.cuda.mem_get_info(index)
            if free > MOSTLY_FREE * total:
                break
            time.sleep(0.5)


def intervals(run: Path, job: str) -> list[Event]:
    """The log intervals that one rank has reported, in their order."""
    if not (run / "telemetry").is_dir():
        return []
    events = read_events(run / "telemetry")
    return [event for event in events if event.kind == "work" and event.job == job]


def speed(events: list[Event], num_gpus: int, teraflops: float, warm: int) -> dict[str, Any]:
    """Samples per second over all ranks, TFLOP/s, memory and waiting, after the warm intervals.

    Args:
        events: of all ranks of one training.
        num_gpus: how many ranks.
        teraflops: of one forward pass for one sample.
        warm: log intervals that are not counted.
    """
    by_rank: dict[str, list[Event]] = {}
    for event in events:
        if event.kind == "work":
            by_rank.setdefault(event.job, []).append(event)
    counted = {job: found[warm:] for job, found in by_rank.items()}
    main = counted["training"]
    seconds = main[-1].end_s - main[0].begin_s
    num_samples = sum(event.num_items for event in main) * len(counted)
    samples_per_s = num_samples / seconds
    rates = sorted(event.num_items * len(counted) / (event.end_s - event.begin_s) for event in main)
    return {
        "samples_per_s": samples_per_s,
        "least": rates[0],
        "most": rates[-1],
        "intervals": len(rates),
        "seconds": seconds,
        "tflops_per_gpu": 3 * teraflops * samples_per_s / num_gpus,
        "peak_memory_gib": {
            job: max(event.facts["peak_memory_bytes"] for event in found) / 2**30
            for job, found in counted.items()
        },
        "waiting_share": sum(event.facts.get("waiting_s", 0.0) for event in main) / seconds,
    }


def break_even(
    trainings: Mapping[str, Mapping[str, Any]], trajectories_per_s: float
) -> dict[str, float]:
    """After how many epochs storing the targets first, on the same GPUs, has cost less time.

    A trajectory costs its making once and gives `STUDENT_STEPS` samples in each epoch, in every one
    of which the teacher in the loop costs its time again.

    Args:
        trainings: by name, `{way}-{number of GPUs}`, with samples_per_s over all of them.
        trajectories_per_s: of the targets stage on one GPU.
    """
    found = {}
    for name, training in trainings.items():
        way, _, num_gpus = name.rpartition("-")
        stored = trainings.get(f"stored-{num_gpus}")
        if way == "stored" or stored is None:
            continue
        making_s = 1 / (trajectories_per_s * max(int(num_gpus), 1))
        saved_s = 1 / training["samples_per_s"] - 1 / stored["samples_per_s"]
        found[name] = making_s / (STUDENT_STEPS * saved_s)
    return found


def parse(argv: list[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", choices=TRAINED)
    parser.add_argument("--folder", type=Path, required=True, help="for weights and results")
    parser.add_argument("--output", type=Path, required=True, help="JSON")
    parser.add_argument("--num-gpus", type=int, nargs="+", default=[1])
    parser.add_argument("--batch", type=int, default=64, help="global batch at every GPU count")
    parser.add_argument("--updates", type=int, default=10, help="counted, of each training")
    parser.add_argument(
        "--warm",
        type=int,
        default=2,
        help="not counted, before them: they compile, allocate and open the data, and the host's "
        "memory for a checkpoint is taken beside them",
    )
    parser.add_argument("--trajectories", type=int, default=128)
    parser.add_argument("--settings", type=json.loads, default={}, help="JSON, of `training`")
    parser.add_argument(
        "--teacher-steps",
        type=int,
        nargs="*",
        default=[],
        help="online targets beside it, with so many teacher steps for each",
    )
    parser.add_argument(
        "--residences",
        nargs="+",
        default=["every_rank"],
        help="where the teacher of online targets is",
    )
    parser.add_argument(
        "--trajectories-per-s",
        type=float,
        help="of the targets stage on one such GPU (benchmarks/generation.py): says when it has "
        "paid for itself",
    )
    parser.add_argument("--checkpoint", action="store_true", help="save one on the way")
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> int:
    """Parse, measure, write after each measurement."""
    arguments = parse(argv)
    model, folder = TRAINED[arguments.model], arguments.folder
    if not (folder / "teacher/model_index.json").is_file():
        make_teacher(model, folder / "teacher")
    write_inputs(model, folder, arguments.trajectories)
    on_gpu = torch.cuda.is_available()
    peaks = measure_peaks() if on_gpu else {}
    if on_gpu:
        torch.cuda.empty_cache()
    results: dict[str, Any] = {
        "model": asdict(model),
        "hardware": describe_hardware(),
        "versions": versions(),
        "batch": arguments.batch,
        "settings": arguments.settings,
        "peaks": peaks,
        "teraflops_forward": count_teraflops(model, folder / "teacher"),
        "trainings": {},
    }
    for name, measure in measurements(model, arguments, results).items():
        results["trainings"][name] = measure()
        if arguments.trajectories_per_s:
            results["break_even_epochs"] = break_even(
                results["trainings"], arguments.trajectories_per_s
            )
        print(name, json.dumps(results["trainings"][name]), flush=True)  # noqa: T201
        write_json(arguments.output, results)
    return 0


def measurements(
    model: Model, arguments: argparse.Namespace, results: Mapping[str, Any]
) -> dict[str, Callable[[], dict[str, Any]]]:
    """What is measured, by name, in the order of the command line."""
    found: dict[str, Callable[[], dict[str, Any]]] = {}
    for num_gpus in arguments.num_gpus:
        ways: dict[str, dict[str, Any]] = {"stored": {}}
        for steps in arguments.teacher_steps:
            for residence in arguments.residences:
                ways[f"online-{residence}-{steps}"] = {
                    "targets": "online",
                    "online_steps": steps,
                    "teacher_residence": residence,
                }
        for way, settings in ways.items():
            name = f"{way}-{num_gpus}"
            found[name] = partial(measure_one, model, arguments, results, name, num_gpus, settings)
    return found


def measure_one(
    model: Model,
    arguments: argparse.Namespace,
    results: Mapping[str, Any],
    name: str,
    num_gpus: int,
    way: Mapping[str, Any],
) -> dict[str, Any]:
    """One training on one number of GPUs; `way` are settings of its targets."""
    batch, updates = arguments.batch, arguments.updates
    last = updates + arguments.warm
    # Half-way: after the save some updates must run beside the writing.
    save_every = max(arguments.warm + updates // 2, 1) if arguments.checkpoint else 2 * last
    settings = {
        "global_batch_size": batch,
        "log_every_samples": batch,
        "save_every_samples": batch * save_every,
        **arguments.settings,
        **way,
    }
    settings["num_samples"] = batch * last * 4
    run = arguments.folder / "runs" / arguments.output.stem / name
    remove(run)
    events, memory = run_training(model, arguments.folder, run, num_gpus, settings, last)
    found = speed(events, max(num_gpus, 1), results["teraflops_forward"], arguments.warm)
    peaks = {name: results["peaks"][name] for name in PEAKS if name in results["peaks"]}
    found["mfu"] = {name: found["tflops_per_gpu"] / min(peak) for name, peak in peaks.items()}
    found["most_memory"] = memory.to_json()
    saves = [event.facts for event in events if event.kind == "save"]
    return found | ({"saves": saves} if saves else {})


if __name__ == "__main__":
    raise SystemExit(main())
