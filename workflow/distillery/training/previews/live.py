"""Previews while the training goes on: drawn between two updates, saved beside the next ones."""

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import torch

from distillery.pixels import Pixels
from distillery.training import parallel
from distillery.training.previews.drawing import Drawer
from distillery.training.run import Run
from distillery.training.state import TrainingState
from distillery.training.watchdog import START_LIMIT_S


class LivePreviews:
    """One process's previews; `close` it at the end.

    Every process draws between the same two updates and then meets the others in the next
    collective, so the training stands still for as long as the largest share takes: with a number
    of prompts that the number of processes divides, nobody waits for anybody.
    """

    def __init__(self, state: TrainingState, run: Run) -> None:
        """Nothing is loaded before the first missing picture.

        Raises:
            ValueError: the student is sharded over the processes.
        """
        self._state, self._run, self._previews = state, run, run.previews
        self._drawer: Drawer | None = None
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="previews")
        self._saving: Future[None] | None = None
        if self._previews is not None and parallel.is_sharded(state.denoiser):
            raise ValueError(
                f"previews.every_samples is {self._previews.job.previews.every_samples} and the "
                "student is sharded over the processes (fsdp): each of its forward passes needs "
                "all of them, so no process can draw alone; set previews.every_samples: 0 and draw "
                "from a checkpoint, snakemake --cores all "
                "results/{run}/student/previews/samples-000000003200/sheet.png "
                "--configfile config/mine.yaml, "
                "or set training.parallel: ddp"
            )

    def close(self, wait: bool) -> None:
        """End; after an error of the training nobody waits for pictures."""
        self._thread.shutdown(wait=wait)
        if wait:
            self._check_saved()

    @property
    def is_due(self) -> bool:
        """Whether this moment is to be shown, which all processes agree in."""
        seen, previews = self._state.samples_seen, self._previews
        return previews is not None and previews.is_due(seen, self._run.training.num_samples)

    def draw_if_due(self) -> dict[Path, Pixels]:
        """Draw what is missing of this moment, if it is to be shown; pictures (h, w, 3) by path.

        Who is asked to stop leaves the rest for the next start, unless the training is finished:
        then there may be none. A failure is told in the log, and the training goes on.
        """
        seen, previews = self._state.samples_seen, self._previews
        if previews is None or not self.is_due or self._must_stop():
            return {}
        self._check_saved()
        self._run.watchdog.beat("previews", limit_s=START_LIMIT_S)
        try:
            with averaged(self._state):
                pixels = previews.draw_missing(self._get_drawer(), seen, self._must_stop)
        except Exception as error:
            self._warn(f"previews after {seen} samples were not drawn here: {error!r}")
            return {}
        finally:
            # The training's next peak must not find the decoder's memory taken.
            if self._run.device.type == "cuda":
                torch.cuda.empty_cache()
        self._saving = self._thread.submit(previews.save, pixels, seen)
        return {previews.picture(row, seen): picture for row, picture in pixels.items()}

    def _must_stop(self) -> bool:
        """Whether this process was asked to stop, and what it leaves will be drawn later."""
        is_finished = self._state.samples_seen == self._run.training.num_samples
        return self._run.stop.asked and not is_finished

    def _get_drawer(self) -> Drawer:
        """The pipeline, built when it is first needed."""
        assert self._previews is not None
        if self._drawer is None:
            run, job = self._run, self._previews.job
            self._drawer = Drawer.around(
                self._state.denoiser,
                job.teacher,
                run.dataset.recipe,
                run.dataset.steps,
                run.device,
                run.training.dtype,
            )
        return self._drawer

    def _check_saved(self) -> None:
        """Wait for the pictures under way; what went wrong with them is told in the log."""
        saving, self._saving = self._saving, None
        error = saving.exception() if saving is not None and not saving.cancelled() else None
        if error is not None:
            self._warn(f"previews were not saved here: {error!r}")

    def _warn(self, message: str) -> None:
        self._run.reporter.warning(f"{message}; the training goes on")


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
