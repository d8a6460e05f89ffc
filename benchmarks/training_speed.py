"""Speed of training at full size: released configurations, random weights and stored targets.

    PYTHONPATH=workflow python benchmarks/training_speed.py sdxl --folder DIR --output sdxl.json

The arithmetic does not depend on the weights or on what is learned, so random ones serve. Measured:

peak      a large bfloat16 matrix product on the same GPU, short and sustained
stored    distillery.stages.training as the workflow starts it, on each number of GPUs: samples/s,
          memory, waiting for data, and the stall of one checkpoint
online    the same with `learn: online`, the teacher in each place that is asked for;
          with `own_gpus` one GPU less trains
finish    the same in an adversarial finish; its cost is what its update takes over a stored one's

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
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import torch
from models import MODELS, WAN_SMALL, Model, count_teraflops
from stages import make_teacher
from stock import measure_peaks
from training_inputs import STUDENT_STEPS, training_job, write_inputs

from distillery.files import remove, write_json
from distillery.hardware import describe_hardware, versions, visible_ids
from distillery.telemetry import Event, read_events

ROOT = Path(__file__).parents[1]
TRAINED: Mapping[str, Model] = {**MODELS, "wan-1.3b": WAN_SMALL}
MODULE = ("-m", "distillery.stages.training")
PEAKS = ("peaks_tflops", "sustained_tflops")
"""Of each GPU: a product that takes a moment, and one that meets the power limit."""
MOSTLY_FREE = 0.9
"""Of a GPU's memory, when those that used it are gone."""


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


def finish_cost(trainings: Mapping[str, Mapping[str, Any]]) -> dict[str, float]:
    """What an update of the finish takes over one of stored targets alone, on so many GPUs."""
    finishes = [name for name in trainings if name.startswith("finish-")]
    plain = {name: f"stored-{name.removeprefix('finish-')}" for name in finishes}
    return {
        name: trainings[other]["samples_per_s"] / trainings[name]["samples_per_s"]
        for name, other in plain.items()
    }


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
    parser.add_argument("--finish", action="store_true", help="an adversarial one beside it")
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
        results["finish_cost"] = finish_cost(results["trainings"])
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
        if arguments.finish:  # all but the first update
            samples = num_samples_of(arguments) - arguments.batch
            ways["finish"] = {
                "phases": [
                    {"learn": "stored", "samples": arguments.batch},
                    {"learn": "adversarial", "samples": samples},
                ]
            }
        for steps in arguments.teacher_steps:
            for residence in arguments.residences:
                online = {"learn": "online", "samples": num_samples_of(arguments), "steps": steps}
                ways[f"online-{residence}-{steps}"] = {
                    "phases": [online],
                    "teacher_residence": residence,
                }
        for way, settings in ways.items():
            name = f"{way}-{num_gpus}"
            found[name] = partial(measure_one, model, arguments, results, name, num_gpus, settings)
    return found


def num_samples_of(arguments: argparse.Namespace) -> int:
    """The length of each training, which is killed long before its end."""
    updates: int = (arguments.updates + arguments.warm) * 4
    return updates * int(arguments.batch)


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
    settings.setdefault("phases", [{"learn": "stored", "samples": num_samples_of(arguments)}])
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
