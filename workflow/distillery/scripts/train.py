"""Train the student from stored trajectories, on one process or many; goes on where it stopped.

python -m distillery.scripts.train --config results/demo/config/training.json \\
    --student results/demo/student/initial --targets results/demo/targets/manifest.json \\
    --embeddings results/demo/embeddings/train/manifest.json \\
    --prompts results/demo/prompts/train.parquet --checkpoints results/demo/student/checkpoints \\
    --trained results/demo/student/trained --losses results/demo/student/loss.parquet

On all GPUs of a machine put `torchrun --standalone --nproc-per-node gpu` in the place of `python`;
under SLURM `srun --ntasks-per-node N python`. The number of processes changes neither the order of
the samples nor, beyond rounding, the result.

SIGTERM, SIGUSR1, SIGHUP or Ctrl-C: the update under way is finished, a checkpoint saved, and the
exit status is 75 (EX_TEMPFAIL): start it again to go on. Ctrl-C again, 3 s later or more, ends it
without the checkpoint; other signals may repeat. torchrun itself reports 1 for any process that did
not end with 0, and passes SIGUSR1 on with `--signals-to-handle SIGTERM,SIGINT,SIGHUP,SIGUSR1`.

A process that makes no progress for `training.hang_timeout_s` says where it hangs and ends with 1.
"""

import argparse
import os
from contextlib import suppress
from pathlib import Path

from distillery.command import run_folder, stage_parser
from distillery.config.jobs import TrainingJob, read_job
from distillery.hardware import device_label, select_device
from distillery.telemetry import explain_errors, reporting
from distillery.training import distributed
from distillery.training.inputs import add_inputs, read_inputs
from distillery.training.loop import train
from distillery.training.peers import Peers, meet
from distillery.training.previews.pictures import PreviewPaths
from distillery.training.run import Paths, Run, prepare
from distillery.training.stopping import EXIT_INTERRUPTED, Stopped, StopRequest
from distillery.training.watchdog import Watchdog


def main(argv: list[str] | None = None) -> int:
    """Parse, train; returns 0, 75 after a signal, or an error's status."""
    distributed.die_with_launcher(os.environ)
    parser = stage_parser(__doc__)
    add_inputs(parser)
    parser.add_argument("--trained", type=Path, required=True, help="folder to write")
    parser.add_argument("--losses", type=Path, required=True, help="table to write")
    parser.add_argument("--telemetry", type=Path, help="default: results/{run}/telemetry")
    add_previews(parser)
    arguments = parser.parse_args(argv)
    finished = False

    def body() -> None:
        nonlocal finished
        stop = StopRequest()
        with stop.listening():
            finished = work(arguments, stop)

    status = explain_errors(body, arguments.log)
    return status or (0 if finished else EXIT_INTERRUPTED)


def add_previews(parser: argparse.ArgumentParser) -> None:
    """The options of pictures drawn meanwhile."""
    group = parser.add_argument_group("previews", "all four or none")
    group.add_argument("--previews", type=Path, help="folder to write")
    group.add_argument("--previews-config", type=Path, help="results/{run}/config/previews.json")
    group.add_argument("--eval-prompts", type=Path, help="table of the eval split")
    group.add_argument("--eval-embeddings", type=Path, help="manifest of the eval split")


def work(arguments: argparse.Namespace, stop: StopRequest) -> bool:
    """Find this process's place and train; True when the training is finished."""
    job = read_job(arguments.config, TrainingJob)
    place = distributed.find_place(os.environ)
    watchdog = Watchdog(place.rank, job.training.hang_timeout_s, arguments.log)
    with watchdog.watching():
        device = distributed.start(
            place, select_device(arguments.cpu_threads), job.training.timeout_s
        )
        watchdog.peers = meet()
        folder = arguments.telemetry or run_folder(arguments.config) / "telemetry"
        name = "train" if place.is_main else f"train-rank-{place.rank}"
        label, finished = device_label(device), False
        # What was stopped is not done, and must not be reported so: `Stopped` goes through.
        with suppress(Stopped), reporting(folder, "train", name, label, arguments.log) as reporter:
            paths = _paths(arguments)
            run = prepare(job, paths, place, device, reporter, stop, watchdog)
            train_or_stop(run, paths)
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
    if run.place.is_main:
        run.reporter.warning("stopped by a signal, a checkpoint is saved: start again to go on")
    raise Stopped


def _paths(arguments: argparse.Namespace) -> Paths:
    """What the command line says of inputs and outputs."""
    return Paths(
        **vars(read_inputs(arguments)),
        trained=arguments.trained,
        losses=arguments.losses,
        previews=_preview_paths(arguments),
    )


def _preview_paths(arguments: argparse.Namespace) -> PreviewPaths | None:
    """What the command line says of previews."""
    given = {
        "--previews": arguments.previews,
        "--previews-config": arguments.previews_config,
        "--eval-prompts": arguments.eval_prompts,
        "--eval-embeddings": arguments.eval_embeddings,
    }
    missing = [option for option, value in given.items() if value is None]
    if len(missing) == len(given):
        return None
    if missing:
        raise ValueError(f"previews need {', '.join(missing)} too: give all of {', '.join(given)}")
    return PreviewPaths(
        config=arguments.previews_config,
        prompts=arguments.eval_prompts,
        embeddings=arguments.eval_embeddings,
        folder=arguments.previews,
    )


if __name__ == "__main__":
    distributed.leave(main())
