"""Previews while a training learns."""

import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager

import torch

from distillery.training import parallel
from distillery.training.health import START_LIMIT_S
from distillery.training.previews import PreviewPipeline, Previews
from distillery.training.run import PreviewPaths, Run
from distillery.training.state import TrainingState
from distillery.training.watchers import Moment, Watcher


class LivePreviews(Watcher):
    """One process's previews.

    Every process draws between the same two updates and then meets the others in the next
    collective, so the training stands still for as long as the largest share takes. No process
    waits for another where their number divides the number of prompts.

    Attributes:
        share: this process's; None where nothing is to be drawn.
        drew_s: that it last took.
    """

    def __init__(self, state: TrainingState, run: Run, paths: PreviewPaths | None) -> None:
        """Nothing is loaded before the first missing image.

        Raises:
            ValueError: the student is sharded over the processes.
        """
        self._state, self._run, self.share = state, run, _share_of(paths, run)
        self._drawer: PreviewPipeline | None = None
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="previews")
        self._saving: Future[None] | None = None
        self.drew_s = 0.0
        if self.share is not None and parallel.is_sharded(state.denoiser):
            raise ValueError(
                f"previews.every_samples is {self.share.job.previews.every_samples} and the "
                "student is sharded over the processes (fsdp): each of its forward passes needs "
                "all of them, so no process can draw alone; set previews.every_samples: 0 and draw "
                "from a checkpoint, snakemake --cores all "
                "results/{run}/student/previews/samples-000000003200/sheet.png "
                "--configfile config/mine.yaml, "
                "or set training.parallel: ddp"
            )

    def close(self, wait: bool) -> None:
        """End; after an error of the training without waiting for images."""
        self._thread.shutdown(wait=wait)
        if wait:
            self._check_saved()

    def is_due(self, moment: Moment) -> bool:
        """Whether a moment is to be shown; all processes agree on it."""
        return self.share is not None and self.share.is_due(
            moment.seen, moment.training.num_samples
        )

    def show(self, moment: Moment) -> bool:
        """Draw what is missing of this moment, if it is to be shown; returns whether it is."""
        is_due, begin_s = self.is_due(moment), time.time()
        if is_due and not self._must_stop(moment):
            self._draw(moment)
        self.drew_s = time.time() - begin_s
        moment.interval.drawing_s += self.drew_s
        return is_due

    def _draw(self, moment: Moment) -> None:
        """A failure is logged, and the training continues."""
        assert self.share is not None
        self._check_saved()
        self._run.watchdog.heartbeat("previews", limit_s=START_LIMIT_S)
        try:
            with averaged(self._state):
                pixels = self.share.draw_missing(
                    self._get_drawer(self.share), moment.seen, lambda: self._must_stop(moment)
                )
        except Exception as error:
            self._warn(f"previews after {moment.seen} samples were not drawn here: {error!r}")
            return
        finally:
            # The training's next peak must not find the decoder's memory taken.
            if self._run.device.type == "cuda":
                torch.cuda.empty_cache()
        self._saving = self._thread.submit(self.share.save, pixels, moment.seen)

    def _must_stop(self, moment: Moment) -> bool:
        """Whether this process was asked to stop, and leaves the rest for the next start; of a
        finished training there may be none."""
        return self._run.stop.asked and not moment.is_last

    def _get_drawer(self, share: Previews) -> PreviewPipeline:
        """The pipeline, built when it is first needed."""
        if self._drawer is None:
            run = self._run
            self._drawer = PreviewPipeline.around(
                self._state.denoiser,
                share.job.teacher,
                run.dataset,
                run.device,
                run.training.dtype,
            )
        return self._drawer

    def _check_saved(self) -> None:
        """Wait for the images under way; what went wrong with them is logged."""
        saving, self._saving = self._saving, None
        error = saving.exception() if saving is not None and not saving.cancelled() else None
        if error is not None:
            self._warn(f"previews were not saved here: {error!r}")

    def _warn(self, message: str) -> None:
        self._run.reporter.warning(f"{message}; the training continues")


@contextmanager
def averaged(state: TrainingState) -> Iterator[None]:
    """The averaged weights, where there are any, in the network's place for a while; no copies."""
    trainable = state.trainable
    before = {name: trainable[name].data for name in state.average}
    try:
        for name, value in state.average.items():
            trainable[name].data = value
        yield
    finally:
        for name, value in before.items():
            trainable[name].data = value


def _share_of(paths: PreviewPaths | None, run: Run) -> Previews | None:
    """This process's share of the previews, if there are any."""
    if paths is None:
        return None
    ranks = (run.ranks.rank, run.ranks.world_size)
    previews = Previews(paths, ranks, run.recipe_hash, run.reporter)
    return previews if previews.job.previews.every_samples else None
