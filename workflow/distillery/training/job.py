"""One process of a training: its place among the others, from its command line to its status."""

import os
from contextlib import suppress
from pathlib import Path

from distillery.config.jobs import TrainingJob
from distillery.hardware import device_label, select_device
from distillery.run_folder import RunFolder
from distillery.store.belonging import check_student_of
from distillery.telemetry import reporting
from distillery.training import distributed
from distillery.training.health import Peers, Stopped, StopRequest, Watchdog
from distillery.training.loop import train
from distillery.training.nodes import meet
from distillery.training.run import Paths, Run, prepare


def train_here(
    job: TrainingJob,
    paths: Paths,
    run_folder: RunFolder,
    telemetry: Path | None = None,
    *,
    name: str,
    stop: StopRequest,
    cpu_threads: int,
    log: Path | None,
    loaded_s: float,
) -> bool:
    """Find this process's place among the others and train; True when the training is finished.

    Args:
        job: frozen configuration.
        paths: inputs and outputs.
        run_folder: results/{run}.
        telemetry: folder to write, instead of results/{run}/telemetry.
        name: of this job, `training`, or `training-{n}-rounds` for one that ends after so many.
        stop: set by a signal.
        cpu_threads: of this process where there is no GPU.
        log: for where it hangs.
        loaded_s: what this process took to be here.
    """
    check_student_of(run_folder, paths.student, is_trained=False)
    ranks = distributed.detect_rank(os.environ)
    watchdog = Watchdog(ranks.rank, job.training.hang_timeout_s, log)
    with watchdog.watching():
        device = distributed.start(ranks, select_device(cpu_threads), job.training.timeout_s)
        ranks, watchdog.peers = meet(ranks, run_folder.path)
        folder = telemetry or run_folder.telemetry
        process = name if ranks.is_main else f"{name}-rank-{ranks.rank}"
        label, finished = device_label(device), False
        # What was stopped is not done, and must not be reported so: `Stopped` goes through.
        reported = reporting(folder, "training", process, label, log, loaded_s)
        with suppress(Stopped), reported as reporter:
            run = prepare(job, paths, ranks, device, reporter, stop, watchdog)
            train_or_stop(run, paths)
            run.dataset.close()
            finished = True
        watchdog.peers = Peers()  # from here on each goes when it is done
        distributed.stop()
    return finished


def train_or_stop(run: Run, paths: Paths) -> None:
    """Train to the end.

    Raises Stopped after a signal; rank 0, which wrote the checkpoint, says so.
    """
    if train(run, paths):
        return
    if run.ranks.is_main:
        run.reporter.warning("stopped by a signal, a checkpoint is saved: start again to resume")
    raise Stopped
