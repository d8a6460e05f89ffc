"""What a job reports to people: its log file, a progress bar, and events for the report's timeline.

Events never enter a manifest: they hold times and host names, and a result must not. Each job
appends to results/{run}/telemetry/{job}.jsonl, so an interrupted job's first try stays visible.
"""

import json
import logging
import os
import resource
import socket
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import psutil
from tqdm import tqdm

from distillery.locks import FULL
from distillery.typed import COMMAND
from distillery.watched import goes_to

if TYPE_CHECKING:
    import torch

EventKind = Literal["start", "work", "save", "alarm", "measure", "end"]
PERSISTENT_ITEMS = 4
"""Up to this many items there is no progress bar, not even on a terminal."""
NOTE_S = 1.0
"""Between two notes of how far a job is."""
INTERRUPTED = "interrupted: what is finished is kept, rerun to resume"
RUN_NOTE = "DISTILLERY_RUN_NOTE"
"""Environment variable of a Snakemake that is itself a job: the job's note of how far it is."""
OF_A_RUN = " jobs"
"""What such a note counts; seconds and hours alike, so that their speed tells nothing."""


@dataclass(frozen=True)
class Event:
    """One line of a telemetry file.

    Attributes:
        kind: start and end of the job, one piece of work in it, one checkpoint, which is written
            beside the work, or what was measured once and is in `facts`.
        stage: rule name, e.g. "targets".
        job: unique in the run, e.g. "targets-0-of-4".
        device: "cpu", or "cuda" and the visible device, e.g. "cuda:GPU-1a2b".
        begin_s, end_s: Unix time of the piece of work; of the whole job for an end.
        num_items: samples, prompts or images done in it.
        facts: anything else, e.g. the chunk that was made, or the peak memory of a training.
    """

    kind: EventKind
    stage: str
    job: str
    device: str
    host: str
    begin_s: float
    end_s: float
    num_items: int = 0
    facts: dict[str, Any] = field(default_factory=dict)


class ProgressBar(tqdm):  # type: ignore[type-arg]
    """A bar on a terminal, and a note beside the telemetry for who watches all jobs at once."""

    def __init__(self, note: Path, device: str, **settings: Any) -> None:
        """`note` is written over; `settings` are tqdm's."""
        self._note, self._noted_s = note, 0.0
        initial = settings.get("initial", 0)
        self._facts = {"device": device, "unit": settings["unit"], "total": settings["total"]}
        self._facts |= {"initial": initial, "done": initial, "begin_s": time.time()}
        self._facts["found"] = initial
        super().__init__(**settings)
        self._write_note()

    def update(self, n: float | None = 1) -> bool | None:
        """So many more items are done."""
        self._facts["done"] += n or 0
        is_last = self._facts["done"] == self._facts["total"]
        if is_last or time.time() - self._noted_s >= NOTE_S:
            self._write_note()
        return super().update(n)

    def find(self, n: int) -> None:
        """So many more items were there before this job."""
        self._facts["found"] += n
        self.update(n)

    def _write_note(self) -> None:
        """One that cannot be written is left out."""
        self._noted_s = time.time()
        with suppress(OSError):
            self._note.write_text(json.dumps(self._facts | {"at_s": self._noted_s}))


def note_of_run(num_jobs: int) -> ProgressBar | None:
    """For a Snakemake that is a job: its note, which counts jobs; None for all others."""
    path = os.environ.get(RUN_NOTE)
    if path is None:
        return None
    return ProgressBar(Path(path), "", total=num_jobs, unit=OF_A_RUN, disable=True)


SHOWN = "shown"
"""Attribute of a log record that goes to stderr though it is no warning."""


class Reporter:
    """The voice of one job. Make it with `reporting`."""

    def __init__(self, folder: Path, stage: str, job: str, device: str) -> None:
        """Events go to `folder/{job}.jsonl`."""
        self.path = folder / f"{job}.jsonl"
        self.stage = stage
        self.job = job
        self.device = device
        self.logger = logging.getLogger(f"distillery.{job}")
        self._failed = self._torn = False
        folder.mkdir(parents=True, exist_ok=True)

    def emit(
        self, kind: EventKind, begin_s: float, end_s: float, num_items: int = 0, **facts: Any
    ) -> None:
        """Append one event; a line is written at once, so parallel readers see whole lines.

        One that cannot be written, on a full disk say, is left out: no work is lost for it.
        """
        event = Event(
            kind, self.stage, self.job, self.device, socket.gethostname(),
            begin_s, end_s, num_items, facts,
        )  # fmt: skip
        line = json.dumps(vars(event)) + "\n"
        try:
            with self.path.open("a", encoding="utf-8") as file:
                file.write("\n" + line if self._torn else line)
            self._torn = False
        except OSError as error:
            self._torn = True  # perhaps in the middle of the line
            if not self._failed:
                _say(
                    f"warning: {self.job} continues without telemetry that it cannot write: {error}"
                )
            self._failed = True

    @contextmanager
    def work(self, num_items: int, **facts: Any) -> Iterator[dict[str, Any]]:
        """Time a piece of work and emit it when it succeeds, with the memory that the job has held;
        facts may be added meanwhile."""
        begin_s = time.time()
        yield facts
        facts["peak_memory_bytes"] = peak_memory_bytes()
        self.emit("work", begin_s, time.time(), num_items, **facts)

    def progress(self, total: int, unit: str, initial: int = 0) -> ProgressBar:
        """A progress bar, on a terminal to be seen; named by job and device."""
        return ProgressBar(
            self.path.with_suffix(".progress"),
            self.device,
            total=total,
            initial=initial,
            unit=unit,
            desc=f"{self.job} [{self.device}]",
            disable=not sys.stderr.isatty() or total <= PERSISTENT_ITEMS,
            leave=False,
            mininterval=0.5,
        )

    def info(self, message: str) -> None:
        """A line in the job's log."""
        self.logger.info(message)

    def milestone(self, message: str) -> None:
        """A line in the job's log; on stderr too where no terminal shows a bar instead."""
        self.logger.info(message, extra={SHOWN: not sys.stderr.isatty()})

    def warning(self, message: str) -> None:
        """A line in the job's log and on the terminal."""
        self.logger.warning(message)


def loaded_for_s(argv: Sequence[str] | None) -> float:
    """Seconds since this process began, which Python spends on imports; of a job it is a part.

    Args:
        argv: words that a program gave to a stage that it calls, which then is no process: 0.
    """
    return 0.0 if argv is not None else max(0.0, time.time() - psutil.Process().create_time())


@contextmanager
def reporting(
    folder: Path, stage: str, job: str, device: str, log: Path | None, loaded_s: float = 0.0
) -> Iterator[Reporter]:
    """Open a job's log and event file, and emit its start and end.

    Args:
        folder: results/{run}/telemetry.
        stage, job, device: see `Event`.
        log: the job's own log file, or None to log to stderr.
        loaded_s: as much earlier it began: what its imports took.
    """
    reporter = Reporter(folder, stage, job, device)
    _set_up_logging(reporter, log)
    begin_s = time.time() - loaded_s
    facts = _placement() | {"gpu": _gpu_name(device), "command": os.environ.get(COMMAND)}
    reporter.emit("start", begin_s, begin_s, pid=os.getpid(), **facts)
    reporter.info(f"{stage} begins on {device}")
    yield reporter
    end_s = time.time()
    reporter.emit("end", begin_s, end_s)
    reporter.info(f"{stage} done in {end_s - begin_s:.1f} s")


def _gpu_name(device: str) -> str | None:
    """Of the device that this process computes on; None on the CPU."""
    if not device.startswith("cuda"):
        return None
    import torch  # there already: the device was found with it

    return torch.cuda.get_device_name()


def _placement() -> dict[str, Any]:
    """Which devices this process may see, and which SLURM job and node it runs in."""
    names = {
        "visible_devices": "CUDA_VISIBLE_DEVICES",
        "slurm_job": "SLURM_JOB_ID",
        "slurm_node": "SLURMD_NODENAME",
    }
    return {fact: os.environ.get(variable) for fact, variable in names.items()}


class LogFile(logging.FileHandler):
    """A log file that drops lines on a full disk; the job's own error says why it ends."""

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 (logging's name)
        """Ignore an OSError; for all others print a traceback, as the base class does."""
        if not isinstance(sys.exc_info()[1], OSError):
            super().handleError(record)


def _set_up_logging(reporter: Reporter, log: Path | None) -> None:
    """Everything to the log file; warnings and milestones also to stderr. Every line names job and
    device."""
    form = logging.Formatter(
        f"%(asctime)s %(levelname)s {reporter.job} [{reporter.device}] %(message)s"
    )
    handlers: list[logging.Handler] = []
    if not goes_to(log):
        handlers.append(logging.StreamHandler(sys.stderr))
    if log is not None:
        log.parent.mkdir(parents=True, exist_ok=True)
        for handler in handlers:
            handler.addFilter(_is_for_stderr)
        handlers.append(LogFile(log, encoding="utf-8"))
    for handler in handlers:
        handler.setFormatter(form)
    logging.basicConfig(level=logging.INFO, handlers=handlers, force=True)
    for noisy in ("httpx", "matplotlib", "PIL", "huggingface_hub"):
        logging.getLogger(noisy).setLevel(logging.WARNING)


def _is_for_stderr(record: logging.LogRecord) -> bool:
    return record.levelno >= logging.WARNING or getattr(record, SHOWN, False)


def explain_errors(main: Callable[[], None], log: Path | None = None) -> int:
    """Run a script's body and return its exit status.

    What a user can fix (a value, a file, the disk) prints its message alone, with the traceback in
    the log. Anything else is our fault and prints its traceback. Ctrl-C is neither.

    Args:
        log: the job's log file, to which an error is appended; there may be none.
    """
    try:
        main()
    except (ValueError, OSError) as error:
        is_disk_full = isinstance(error, OSError) and error.errno in FULL
        cure = ": free some space and rerun, what is finished is kept" * is_disk_full
        _tell(f"error: {error}{cure}", traceback.format_exc(), log)
        return 1
    except KeyboardInterrupt:
        _tell(INTERRUPTED, "", log)
        return 130
    except Exception:
        _tell(traceback.format_exc(), "", log)
        return 1
    return 0


def _tell(message: str, detail: str, log: Path | None) -> None:
    """The message to the terminal, message and detail to the log, if it can be written."""
    if not goes_to(log):
        _say(f"\n{message}\n")
    if log is None:
        return
    try:
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("a", encoding="utf-8") as file:
            file.write(f"{message}\n{detail}")
    except OSError as error:
        _say(f"warning: the log does not have it: {error}")


def _say(text: str) -> None:
    """A line on the terminal; it may be a file on a full disk, and there is nowhere else to go."""
    with suppress(OSError):
        print(text, file=sys.stderr)  # noqa: T201


def read_events(folder: Path) -> list[Event]:
    """All events of a run by their begin; a line that is torn or damaged is skipped."""
    events = []
    for path in sorted(folder.glob("*.jsonl")):
        for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
            try:
                events.append(Event(**json.loads(line)))
            except (json.JSONDecodeError, TypeError):
                continue
    return sorted(events, key=lambda event: event.begin_s)


def peak_memory_bytes(device: "torch.device | None" = None) -> int:
    """The most memory this process has held: reserved on its GPU, or resident on the host.

    Args:
        device: None is the GPU where one is in use.
    """
    torch = sys.modules.get("torch")
    on_gpu = torch is not None and torch.cuda.is_initialized()
    if torch is not None and (on_gpu if device is None else device.type == "cuda"):
        return int(torch.cuda.max_memory_reserved(device))
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
