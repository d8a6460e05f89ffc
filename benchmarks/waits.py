"""What it costs an update to wait for the GPU, and where it does.

    PYTHONPATH=workflow python benchmarks/waits.py sdxl --folder DIR --output waits.json

One process trains a student of a released shape from stored numbers, by the loop's own functions.
Three ways of an update take turns, so that a warm or slow GPU hits all alike:

one     as the loop does it: one read of losses and gradient norm, before the weights are updated
three   one read more for the gradient norm, and a copy from the host's memory, as it was before
none    nothing is read: the least that an update can take, of no use for a training

PyTorch then names each wait of one update (`torch.cuda.set_sync_debug_mode`).
"""

import argparse
import statistics
import time
import warnings
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import torch
from stages import make_teacher
from training_inputs import training_job, write_inputs
from training_speed import TRAINED

from distillery.files import write_json
from distillery.hardware import describe_hardware, versions
from distillery.telemetry import Reporter
from distillery.training import parallel
from distillery.training.batch import Batch
from distillery.training.distributed import RankInfo
from distillery.training.fitting import micro_batches_for
from distillery.training.health import StopRequest, Watchdog
from distillery.training.microbatch import MicroBatches, accumulate_what_fits
from distillery.training.run import Paths, Run, prepare
from distillery.training.state import TrainingState, new_state, update_average
from distillery.training.update import LocalUpdate, check_finite, reduce_totals
from distillery.training.ways import way_at

Read = Callable[[LocalUpdate, torch.Tensor, Run], None]


def read_once(local: LocalUpdate, grad_norm: torch.Tensor, run: Run) -> None:
    """As the loop does."""
    check_finite(reduce_totals(local, grad_norm, run), local, run)


def read_thrice(local: LocalUpdate, grad_norm: torch.Tensor, run: Run) -> None:
    """The norm is read by itself, and a number copied to the GPU from memory that is not pinned."""
    float(grad_norm)
    grad_norm.new_tensor([0.0])
    read_once(local, grad_norm, run)


def read_nothing(local: LocalUpdate, grad_norm: torch.Tensor, run: Run) -> None:
    """No wait."""


READS: dict[str, Read] = {"one": read_once, "three": read_thrice, "none": read_nothing}


def update(state: TrainingState, batch: Batch, cut: MicroBatches, run: Run, read: Read) -> None:
    """One update, as in `training.loop.loop`."""
    losses = way_at(state.samples_seen, run.training).losses
    local = accumulate_what_fits(state.denoiser, batch, cut, losses, run)
    grad_norm = parallel.clip_gradients(state.denoiser.parameters(), run.training.max_grad_norm)
    read(local, grad_norm, run)
    state.optimizer.step()
    state.optimizer.zero_grad(set_to_none=True)
    update_average(state, run.training)


def open_run(folder: Path, batch: int, model_name: str) -> Run:
    """The run of one process on the first GPU."""
    job = training_job(TRAINED[model_name], folder, {"global_batch_size": batch})
    paths = Paths(
        student=folder / "student/initial",
        targets=folder / "targets/manifest.json",
        embeddings=folder / "embeddings/manifest.json",
        prompts=folder / "prompts/train.parquet",
        checkpoints=folder / "checkpoints",
        trained=folder / "trained",
        losses=folder / "loss.parquet",
    )
    device = torch.device("cuda", 0)
    reporter = Reporter(folder / "telemetry", "training", "training", "cuda")
    return prepare(job, paths, RankInfo(), device, reporter, StopRequest(), Watchdog(0, 0))


def measure(
    run: Run, student: Path, updates: int, rounds: int
) -> tuple[dict[str, list[float]], dict[str, int]]:
    """Seconds per update, by way and round; and the waits of one update of the loop, by place."""
    state = new_state(student, run)
    state.denoiser.train()
    cut = micro_batches_for(state, run)[False]
    batches = run.batches.read(0, run.device)
    seconds: dict[str, list[float]] = {name: [] for name in READS}
    for read in READS.values():  # allocates and chooses kernels
        update(state, next(batches), cut, run, read)
    for _ in range(rounds):
        for name, read in READS.items():
            torch.cuda.synchronize()
            begin_s = time.perf_counter()
            for _ in range(updates):
                update(state, next(batches), cut, run, read)
            torch.cuda.synchronize()
            seconds[name].append((time.perf_counter() - begin_s) / updates)
    return seconds, waits_of(lambda: update(state, next(batches), cut, run, read_once))


def waits_of(work: Callable[[], object]) -> dict[str, int]:
    """How often some work waits for the GPU, by file and line."""
    torch.cuda.set_sync_debug_mode("warn")
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        work()
    torch.cuda.set_sync_debug_mode("default")
    places = (
        f"{Path(it.filename).name}:{it.lineno}" for it in told if "synchronizing" in str(it.message)
    )
    return dict(Counter(places))


def main() -> int:
    """Parse, measure, write."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", choices=TRAINED)
    parser.add_argument("--folder", type=Path, required=True, help="for weights and results")
    parser.add_argument("--output", type=Path, required=True, help="JSON")
    parser.add_argument("--batch", type=int, default=8, help="samples per update")
    parser.add_argument("--updates", type=int, default=10, help="per round and way")
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    model, folder = TRAINED[arguments.model], arguments.folder
    if not (folder / "teacher/model_index.json").is_file():
        make_teacher(model, folder / "teacher")
    write_inputs(model, folder, 64)  # of random numbers
    run = open_run(folder, arguments.batch, arguments.model)
    seconds, waits = measure(run, folder / "student/initial", arguments.updates, arguments.rounds)
    medians = {name: statistics.median(found) for name, found in seconds.items()}
    results = {
        "model": asdict(model),
        "hardware": describe_hardware(),
        "versions": versions(),
        "batch": arguments.batch,
        "seconds_per_update": seconds,
        "median_s": medians,
        "slower_than_without": {name: it / medians["none"] - 1 for name, it in medians.items()},
        "waits_of_an_update": waits,
    }
    write_json(arguments.output, results)
    print(medians, results["slower_than_without"], waits, sep="\n")  # noqa: T201
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
