"""Train the student from its targets, on one process or many; resumes where it stopped.

python -m distillery.stages.training --config results/demo/config/training.json \\
    --student results/demo/student/initial --targets results/demo/targets/manifest.json \\
    --embeddings results/demo/embeddings/train/manifest.json \\
    --prompts results/demo/prompts/train.parquet --checkpoints results/demo/student/checkpoints \\
    --trained results/demo/student/trained --losses results/demo/student/loss.parquet

On all GPUs of a machine put `torchrun --standalone --nproc-per-node gpu` in the place of `python`;
under SLURM `srun --ntasks-per-node N python`. The number of processes changes neither the order of
the samples nor, beyond rounding, the result.

SIGTERM, SIGUSR1, SIGHUP or Ctrl-C: the update under way is finished, a checkpoint saved, and the
exit status is 75 (EX_TEMPFAIL): start it again to resume. Ctrl-C again, 3 s later or more, ends it
without the checkpoint; other signals may repeat. torchrun itself reports 1 for any process that did
not end with 0, and passes SIGUSR1 on with `--signals-to-handle SIGTERM,SIGINT,SIGHUP,SIGUSR1`.

A process that makes no progress for `training.hang_timeout_s` says where it hangs and ends with 1.
"""

import os

from distillery.config.run import Config
from distillery.config.ways import TRAINING_PASSES
from distillery.importing import importing
from distillery.planning.passes import finish_passes
from distillery.stage import Calls, Key, Passes, Stage, named, one, rounds, to_train


def updates(config: Config, calls: Calls, key: Key) -> Passes:
    """Of an update of one sample, with its part of what finishes have beyond updates."""
    finish = finish_passes(config, calls.per_step) * (1 / config.training.samples_of_jobs[-1])
    return finish + Passes(student=TRAINING_PASSES)


STAGE: Stage = Stage(
    name="training",
    makes="distillery.training.loop:train_here",
    keys=to_train(one),
    writes=lambda config, run, key: [run.student("trained"), run.loss],
    frozen=named("training", "previews"),
    gpus="all",
    loads="training",
    items=lambda config, counts, key: config.training.samples_of_jobs[-1],
    passes=updates,
    colour=2,
)
BEFORE_ROUND: Stage = Stage(
    name="training_before_round",
    makes=STAGE.makes,
    # By how many rounds are over.
    keys=to_train(lambda config: [{"round": str(n)} for n in range(len(rounds(config)))]),
    writes=lambda config, run, key: [
        run.student(f"trained-{key['round']}-rounds"),
        run.loss_after(key["round"]),
    ],
    frozen=named("training-{round}-rounds", "previews"),
    gpus="all",
    loads="training",
    items=lambda config, counts, key: config.training.samples_of_jobs[int(key["round"])],
    passes=lambda config, calls, key: Passes(student=TRAINING_PASSES),
    in_turn=True,
    colour=3,
)


def main(argv: list[str] | None = None) -> int:
    """Train; returns 0, 75 after a signal, or an error's status."""
    with importing():
        from distillery import cli
        from distillery.telemetry import explain_errors, loaded_for_s
        from distillery.training import distributed
        from distillery.training.health import EXIT_INTERRUPTED, StopRequest
        from distillery.training.loop import train_here
        from distillery.training.nodes import check_seen

    distributed.die_with_launcher(os.environ)
    arguments = cli.parser_of(train_here, __doc__, computes=True).parse_args(argv)
    finished = False

    def body() -> None:
        nonlocal finished
        check_seen(arguments.config, distributed.detect_rank(os.environ))
        stop = StopRequest()
        with stop.listening():
            finished = train_here(
                **cli.values_of(train_here, arguments),
                name=arguments.config.stem,
                stop=stop,
                cpu_threads=arguments.cpu_threads,
                log=arguments.log,
                loaded_s=loaded_for_s(argv),
            )

    status = explain_errors(body, arguments.log)
    return status or (0 if finished else EXIT_INTERRUPTED)


if __name__ == "__main__":
    from distillery.training.distributed import leave

    leave(main())
