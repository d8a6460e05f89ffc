"""What a training does, phase after phase: a list that the user writes.

    phases:
      - {learn: stored, samples: 40000}
      - {learn: rounds, samples: 20000, count: 2}
      - {learn: rollouts, samples: 8000, perceptual_weight: 0.1}

All that a training, its plan and its report must know of its phases folds over the list.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Annotated, Any, Self, TypeVar

from pydantic import AfterValidator, Field

from distillery.config.section import Section, on_multiple
from distillery.config.ways import IN_ORDER, AnyPhase, Passes, Phase
from distillery.notes import Note, error

if TYPE_CHECKING:
    from distillery.config.training import Training

Found = TypeVar("Found", bound=Phase)
NO_ROLLOUTS: dict[str, Any] = {"rollout_samples": 0, "perceptual_weight": 0.0}
"""What recipes say where there are none."""


@dataclass(frozen=True)
class Span:
    """A phase's place in the stream of samples; each time that it runs has its own.

    Attributes:
        begin, end: samples seen before it, and after it.
        place: of the phase in the list.
        number: of the time, from 1, where jobs of its own come before each; else 0.
        since: samples seen before the first time.
    """

    phase: Phase
    begin: int
    end: int
    place: int
    number: int = 0
    since: int = 0

    @property
    def key(self) -> str:
        """Of the configuration."""
        return f"training.phases.{self.place}"

    @property
    def title(self) -> str:
        """What begins here, in few words."""
        return f"round {self.number}" if self.number else self.phase.title


def _some(phases: tuple[Phase, ...]) -> tuple[Phase, ...]:
    """Raise ValueError where there are none."""
    if not phases:
        raise ValueError(
            "training.phases is empty: say what is learned, such as {learn: stored, samples: 8000}"
        )
    return phases


class Phases(Section):
    """A training's phases, and what follows from them."""

    phases: Annotated[tuple[AnyPhase, ...], AfterValidator(_some)] = Field(
        description=f"what is learned, one phase after another: {IN_ORDER}, each at most once"
    )

    @property
    def spans(self) -> list[Span]:
        """Of all phases, one for each time that one runs."""
        parts = [
            (place, phase, number if phase.waits else 0)
            for place, phase in enumerate(self.phases)
            for number in range(1, phase.times + 1)
        ]
        ends = list(accumulate(phase.samples for _, phase, _ in parts))
        spans: list[Span] = []
        for (place, phase, number), end in zip(parts, ends, strict=True):
            begin = end - phase.samples
            since = spans[-1].since if spans and spans[-1].place == place else begin
            spans.append(Span(phase, begin, end, place, number, since))
        return spans

    @property
    def num_samples(self) -> int:
        """Length of the training, in samples."""
        return sum(phase.samples * phase.times for phase in self.phases)

    def at(self, samples_seen: int) -> Span:
        """Where the update is that begins after so many samples; the last one at the end."""
        spans = self.spans
        return next((span for span in spans if samples_seen < span.end), spans[-1])

    def of(self, way: type[Found]) -> Found | None:
        """The phase of a way, if there is one."""
        return next((phase for phase in self.phases if isinstance(phase, way)), None)

    @property
    def director(self) -> Span | None:
        """Where a second network begins to say where the student should draw, if one does."""
        return next((span for span in self.spans if span.phase.directs), None)

    @property
    def asks(self) -> bool:
        """Whether a teacher is beside the student at some time."""
        return any(phase.asks for phase in self.phases)

    @property
    def reads_trajectories(self) -> bool:
        """Whether anything is learned from the teacher's stored trajectories."""
        return any(phase.reads for phase in self.phases)

    @property
    def trains_copy(self) -> bool:
        """Whether a second copy of the student learns beside it at some time."""
        return any(phase.trains_copy for phase in self.phases)

    @property
    def keeps_frozen(self) -> bool:
        """Whether the untrained student is beside it at some time."""
        return any(phase.keeps_frozen for phase in self.phases)

    @property
    def decodes(self) -> bool:
        """Whether images are decoded at some time."""
        return any(phase.decodes for phase in self.phases)

    @property
    def whole_begins(self) -> int:
        """Samples seen before the first whole walk of the student, or the end."""
        begins = (span.begin for span in self.spans if span.phase.whole)
        return next(begins, self.num_samples)

    @property
    def walks_whole(self) -> bool:
        """Whether there are whole walks."""
        return any(phase.whole for phase in self.phases)

    @property
    def restarts(self) -> list[int]:
        """Samples seen where the learning rate begins anew."""
        return [span.begin for span in self.spans if span.phase.restarts]

    @property
    def round_numbers(self) -> range:
        """Of the times before which jobs of their own come, from 1."""
        return range(1, 1 + sum(span.number > 0 for span in self.spans))

    def until(self, end: int) -> Self:
        """The training that does what this one does until so many samples, where a phase or a time
        of one ends."""
        kept: list[Phase] = []
        for span in self.spans:
            if span.end > end:
                break
            if span.number > 1:
                kept.pop()
            of_times = {"count": span.number} if span.number else {}
            kept.append(span.phase.model_copy(update=of_times))
        return self.model_copy(update={"phases": tuple(kept)})

    def up_to_round(self, count: int) -> Self:
        """The training that does what this one does until so many rounds are over."""
        rounds = [span for span in self.spans if span.number]
        ends = [span.begin for span in rounds] + [span.end for span in rounds[-1:]]
        if count >= len(ends):
            raise ValueError(f"{count} rounds are asked for, and there are {len(rounds)}")
        return self.until(ends[count])

    @property
    def of_jobs(self) -> list[Self]:
        """What the jobs of it do, one after another: each up to a round, the last all of it."""
        return [*(self.until(span.begin) for span in self.spans if span.number), self]

    @property
    def samples_of_jobs(self) -> list[int]:
        """Samples that each of them learns from."""
        ends = [part.num_samples for part in self.of_jobs]
        return [end - begin for begin, end in pairwise([0, *ends])]

    @property
    def first_parts(self) -> list[Self]:
        """The trainings that do a first part of this one, the longest first.

        They have the same samples in the same order at the same learning rates.
        """
        return [self.until(begin) for begin in reversed(self.restarts) if begin > 0]

    def passes(self, steps: int, between: int) -> Passes:
        """Of all samples, beyond plain updates; `Phase.passes` says of what."""
        director = self.director
        judging = director.phase.judging if director else (0, 0)
        found = [(phase.times, phase.passes(steps, between, judging)) for phase in self.phases]
        return sum(n * each[0] for n, each in found), sum(n * each[1] for n, each in found)

    @property
    def words(self) -> str:
        """What the samples are, in their order."""
        return ", then ".join(phase.words() for phase in self.phases)

    @property
    def is_plain(self) -> bool:
        """Whether all is learned in the way that every training has."""
        return not any(phase.title for phase in self.phases)

    @property
    def in_recipe(self) -> dict[str, Any]:
        """What a recipe says of the phases."""
        begins = {span.place: span.since for span in self.spans}
        found: dict[str, Any] = {"num_samples": self.num_samples} | NO_ROLLOUTS
        for place, phase in enumerate(self.phases):
            found |= phase.in_recipe(begins[place])
        return found


def on_phases(training: "Training") -> Iterator[Note]:
    """Phases that cannot be, or would teach nothing."""
    orders = [phase.order for phase in training.phases]
    if sorted(set(orders)) != orders:
        ways = [phase.learn for phase in training.phases]
        yield error(
            f"training.phases are {', '.join(ways)}",
            "",
            f"write them in the order {IN_ORDER}, each at most once; no other order was tried",
        )
        return
    size = training.global_batch_size
    for span in training.spans:
        if span.begin != span.since:
            continue
        phase, way = span.phase, span.phase.learn
        yield from on_multiple(
            f"{span.key}.samples", phase.samples, "training.global_batch_size", size
        )
        if training.objective != "segment" and phase.why_segment:
            yield error(
                f"training.objective is {training.objective!r}",
                f" and {span.key} is {way}: {phase.why_segment}",
                f"use objective: segment, or leave {way} out",
            )
        yield from phase.refusals(span, training)
