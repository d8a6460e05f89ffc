"""The teacher of online targets, wherever it is: here, on one rank, or in a process of its own.

It answers for states of several segments or noise levels. The process of its own is on GPUs that no
rank trains on. The first rank of each node starts it; the ranks of the node ask it over a socket.
It is no member of their group, so it may wait for hours while they learn from stored targets. It
ends when the last of them has gone, and with the one that has started it.
"""

import multiprocessing
import os
import signal
import sys
import tempfile
import time
import traceback
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.connection import Client, Connection, Listener, wait
from pathlib import Path
from typing import Literal

import torch
import torch.distributed as dist

from distillery.config.teacher import Teacher
from distillery.generation.teacher_walk import TeacherWalk
from distillery.hardware import visible_ids
from distillery.store.embeddings import EmbeddingStore
from distillery.store.recipes import TargetsRecipe
from distillery.store.tables import read_table
from distillery.training.distributed import die_with_parent
from distillery.training.health import SIGNALS, START_LIMIT_S, Watchdog

POLL_S = 0.1

Question = Literal["advance", "clean"]
"""What is asked about states; a method of `TeacherWalk`."""


class TargetTeacher(ABC):
    """A teacher, wherever it is."""

    @abstractmethod
    def ask(
        self,
        question: Question,
        states: torch.Tensor,
        numbers: Sequence[int],
        prompt_rows: Sequence[int],
    ) -> torch.Tensor:
        """Answers (b, *latent) float32; all ranks call it together, with as many states as each
        has, maybe none.

        Args:
            states: (b, *latent) float32, with their scale.
            numbers: b of the student's segments, or of the teacher's steps.
            prompt_rows: b rows of the prompt table.
        """

    def advance(
        self, states: torch.Tensor, segments: Sequence[int], prompt_rows: Sequence[int]
    ) -> torch.Tensor:
        """The states at the ends of segments, from those at their beginnings; see `ask`."""
        return self.ask("advance", states, segments, prompt_rows)

    def clean(
        self, states: torch.Tensor, steps: Sequence[int], prompt_rows: Sequence[int]
    ) -> torch.Tensor:
        """The clean latents that the guided teacher sees in states at the noise levels of its
        steps; see `ask`."""
        return self.ask("clean", states, steps, prompt_rows)

    def advance_all(
        self, states: torch.Tensor, segment: int, prompt_rows: Sequence[int]
    ) -> torch.Tensor:
        """As `advance`, for the same states of one segment on every rank: each for itself."""
        return self.advance(states, [segment] * len(states), prompt_rows)

    def close(self) -> None:  # noqa: B027 (most have nothing to do)
        """No more will be asked."""


@dataclass(frozen=True)
class OwnTeacher(TargetTeacher):
    """A teacher in this process.

    Attributes:
        walk: of it.
        size: samples of one call.
    """

    walk: TeacherWalk
    size: int

    def ask(
        self,
        question: Question,
        states: torch.Tensor,
        numbers: Sequence[int],
        prompt_rows: Sequence[int],
    ) -> torch.Tensor:
        """In calls of one number each, since a stock call has one timestep for all."""
        answer = self.walk.advance if question == "advance" else self.walk.clean
        answers = torch.empty_like(states)
        for number in sorted(set(numbers)):
            wanted = [row for row, own in enumerate(numbers) if own == number]
            for start in range(0, len(wanted), self.size):
                part = wanted[start : start + self.size]
                prompts = [prompt_rows[row] for row in part]
                answers[part] = answer(states[part], number, prompts).to(answers.device)
        return answers


@dataclass(frozen=True)
class TeacherOfOneRank(TargetTeacher):
    """A teacher in one process, which answers all: each rank gets the answers to its own states.

    Attributes:
        rank: that has the teacher.
        own: that teacher, on this rank; None on the others.
        num_ranks: how many there are.
        this_rank: this process's number.
        watchdog: of this process.
    """

    rank: int
    own: OwnTeacher | None
    num_ranks: int
    this_rank: int
    watchdog: Watchdog

    def advance_all(
        self, states: torch.Tensor, segment: int, prompt_rows: Sequence[int]
    ) -> torch.Tensor:
        """The teacher's rank for all."""
        ends = torch.empty_like(states)
        if self.own is not None:
            ends = self.own.advance_all(states, segment, prompt_rows)
        dist.broadcast(ends, src=self.rank)
        return ends

    def ask(
        self,
        question: Question,
        states: torch.Tensor,
        numbers: Sequence[int],
        prompt_rows: Sequence[int],
    ) -> torch.Tensor:
        """Gather all states, padded to the longest part, and scatter the teacher's answers."""
        about = torch.tensor(
            [list(numbers), list(prompt_rows)], dtype=torch.int64, device=states.device
        )
        self.watchdog.heartbeat("states for the teacher", waits=True)
        sizes = self._sizes(states)
        if not max(sizes):
            return states
        all_states = self._gather(states, sizes)
        all_about = self._gather(about.T.contiguous(), sizes)
        answers: list[torch.Tensor] | None = None
        if self.own is not None:
            assert all_states is not None
            assert all_about is not None
            self.watchdog.heartbeat("answers for all ranks", joint=True, limit_s=START_LIMIT_S)
            of_all = torch.cat(all_about).T.tolist()
            answer = self.own.ask(question, torch.cat(all_states), *of_all)
            answers = [_padded(part, max(sizes)) for part in torch.split(answer, sizes)]
        self.watchdog.heartbeat("answers of the teacher", waits=True, limit_s=START_LIMIT_S)
        received = _padded(torch.empty_like(states), max(sizes))
        dist.scatter(received, answers, src=self.rank)
        return received[: len(states)]

    def _sizes(self, states: torch.Tensor) -> list[int]:
        """How many states each rank has."""
        own = torch.tensor([len(states)], device=states.device)
        sizes = [torch.empty_like(own) for _ in range(self.num_ranks)]
        dist.all_gather(sizes, own)
        return [int(size) for size in torch.cat(sizes).tolist()]

    def _gather(self, values: torch.Tensor, sizes: Sequence[int]) -> list[torch.Tensor] | None:
        """The values of every rank without their padding, on the teacher's rank."""
        padded, is_here = _padded(values, max(sizes)), self.this_rank == self.rank
        received = [torch.empty_like(padded) for _ in sizes] if is_here else None
        dist.gather(padded, received, dst=self.rank)
        if received is None:
            return None
        return [part[:size] for part, size in zip(received, sizes, strict=True)]


def _padded(values: torch.Tensor, size: int) -> torch.Tensor:
    """With as many rows as the largest part has."""
    missing = size - len(values)
    return torch.cat([values, values.new_zeros(missing, *values.shape[1:])])


@dataclass(frozen=True)
class Work:
    """What the process needs to answer.

    Attributes:
        teacher: section of the configuration; `num_gpus` of them are its own.
        recipe: of the targets.
        embeddings: manifest of the prompts'.
        prompts: table of them.
        segments: the student's steps.
        steps: of the teacher in each; None: all that it has there.
        size: samples of one call.
        num_clients: ranks that will ask.
        cpu_threads: where there is no GPU.
    """

    teacher: Teacher
    recipe: TargetsRecipe
    embeddings: Path
    prompts: Path
    segments: int
    steps: int | None
    size: int
    num_clients: int
    cpu_threads: int


@dataclass(frozen=True)
class TeacherProcess(TargetTeacher):
    """The other side of it, in a rank."""

    connection: Connection
    watchdog: Watchdog

    def close(self) -> None:
        """Let the process end, which waits for all ranks of its node."""
        self.connection.close()

    def ask(
        self,
        question: Question,
        states: torch.Tensor,
        numbers: Sequence[int],
        prompt_rows: Sequence[int],
    ) -> torch.Tensor:
        """Ask, and wait for the answer, which may come after those to other ranks."""
        self.watchdog.heartbeat(
            "answer of the teacher's process", waits=True, limit_s=START_LIMIT_S
        )
        about = (list(numbers), list(prompt_rows))
        try:
            self.connection.send((question, states.cpu().numpy(), *about))
            answer = self.connection.recv()
        except (EOFError, OSError) as error:
            raise RuntimeError(
                "the teacher's process has ended; its own lines say why. Start again to resume"
            ) from error
        if isinstance(answer, str):
            raise RuntimeError(f"the teacher's process has failed: {answer}")
        return torch.from_numpy(answer).to(states.device)


def start_or_join(
    work: Work, name: str, starts: bool, device: torch.device, watchdog: Watchdog
) -> TeacherProcess:
    """Start a node's teacher, or wait until it answers.

    Args:
        name: of this training on this node, the same for all its ranks and for no others.
        starts: whether this rank is the node's first.

    Raises:
        RuntimeError: the process has ended before it could answer.
    """
    process, address = _start(work, name, device) if starts else None, _address(name)
    watchdog.heartbeat("start of the teacher's process", waits=not starts, limit_s=START_LIMIT_S)
    while True:
        try:
            return TeacherProcess(Client(address, "AF_UNIX", authkey=name.encode()), watchdog)
        except (FileNotFoundError, ConnectionRefusedError):
            if process is not None and process.exitcode is not None:
                raise RuntimeError(
                    f"the teacher's process has ended with status {process.exitcode}; its own "
                    "lines say why"
                ) from None
            time.sleep(POLL_S)


def _address(name: str) -> str:
    """Where a node's teacher listens: on Linux no file, which would have a longest name."""
    file = f"distillery-teacher-{name}"
    return f"\0{file}" if sys.platform == "linux" else str(Path(tempfile.gettempdir()) / file)


def _start(work: Work, name: str, device: torch.device) -> multiprocessing.context.SpawnProcess:
    """Start the process on the last GPUs that are visible here."""
    before = os.environ.get("CUDA_VISIBLE_DEVICES")
    if device.type == "cuda":
        ids = visible_ids() or tuple(map(str, range(torch.cuda.device_count())))
        os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(ids[-work.teacher.num_gpus :])
    process = multiprocessing.get_context("spawn").Process(
        target=_serve, args=(work, name, device.type, os.getpid()), daemon=True
    )
    try:
        process.start()
    finally:
        if before is not None:
            os.environ["CUDA_VISIBLE_DEVICES"] = before
        elif device.type == "cuda":
            del os.environ["CUDA_VISIBLE_DEVICES"]
    return process


def _serve(work: Work, name: str, device: str, parent: int) -> None:
    """What the process does."""
    die_with_parent()
    if os.getppid() != parent:
        return
    # It answers until the ranks, which are signalled too, have saved and left.
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    if device == "cpu":
        torch.set_num_threads(work.cpu_threads)
    store = EmbeddingStore(work.embeddings, read_table(work.prompts), is_verified=True)
    walk = TeacherWalk.load(
        work.teacher,
        work.recipe,
        store,
        work.segments,
        work.steps,
        torch.device(device, 0) if device == "cuda" else torch.device(device),
    )
    own = OwnTeacher(walk, work.size)
    size, key = work.num_clients, name.encode()
    with Listener(_address(name), "AF_UNIX", backlog=size, authkey=key) as listener:
        clients = [listener.accept() for _ in range(size)]
    while clients:
        for client in wait(clients):
            assert isinstance(client, Connection)
            if not _answer(own, client):
                clients.remove(client)


def _answer(own: OwnTeacher, client: Connection) -> bool:
    """Answer one rank; False if it has gone."""
    try:
        question, states, *about = client.recv()
    except (EOFError, OSError):
        return False
    answer: object
    try:
        answer = own.ask(question, torch.from_numpy(states), *about).cpu().numpy()
    except Exception as error:
        traceback.print_exc()
        answer = f"{type(error).__name__}: {error}"
    client.send(answer)
    return True
