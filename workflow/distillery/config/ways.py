"""What a training does, phase after phase: a list that the user writes.

    phases:
      - {learn: stored, samples: 40000}
      - {learn: rounds, samples: 20000, count: 2}
      - {learn: rollouts, samples: 8000, perceptual_weight: 0.1}

Each way to learn is one class here, and its behaviour one file of `training/ways/`. All that a
training, its plan and its report must know of its phases folds over the list.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate, groupby, pairwise
from operator import attrgetter
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self, TypeVar

from pydantic import AfterValidator, Field

from distillery.config.section import (
    TAG,
    Count,
    CountOrNone,
    Positive,
    Section,
    Small,
    check_multiple,
)
from distillery.words import counted

if TYPE_CHECKING:
    from distillery.config.training import Training

TRAINING_PASSES = 3
"""Of the student in an update, for each sample: forward, and backward as two."""
ADVERSARIAL_PASSES = 5
"""Of the frozen network of an adversarial finish, for each image that the student has drawn: it
looks at the image and sends a gradient back to it, which takes no gradient of its weights and so
one pass; then it looks at three other kinds of images, while the heads learn."""
Passes = tuple[float, float]
"""Of the student, and guided steps of the teacher."""


class Phase(Section):
    """What all ways to learn have; what most of them have stands here."""

    order: ClassVar[int]
    """Phases come in this order, of equal ones only one."""
    title: ClassVar[str] = ""
    """What the plan and the chart of the learning rate call it; "": what every training has."""
    restarts: ClassVar[bool] = True
    """Whether the learning rate begins anew, so that what is before it is a whole training."""
    reads: ClassVar[bool] = True
    """Whether it learns from stored trajectories."""
    waits: ClassVar[bool] = False
    """Whether jobs of its own come before each time that it runs."""
    asks: ClassVar[bool] = False
    """Whether a teacher is beside the student."""
    whole: ClassVar[bool] = False
    """Whether a sample is all steps of the student, one after another."""
    why_segment: ClassVar[str] = ""
    """Why it needs the objective `segment`; "": it takes any."""
    learn: str
    samples: Count

    @property
    def meaning(self) -> str:
        """What happens in it, for the plan."""
        return ""

    @property
    def times(self) -> int:
        """How often it runs, one after another."""
        return 1

    @property
    def judging(self) -> tuple[int, int]:
        """For an image that the student has drawn: passes of a second network that says where it
        should go and learns from it, and steps of the teacher. Only of a way that has such a
        network, which then acts from here to the training's end."""
        return 0, 0

    @property
    def directs(self) -> bool:
        """Whether a second network says where the student should draw."""
        return self.judging != (0, 0)

    @property
    def trains_copy(self) -> bool:
        """Whether a second copy of the student learns beside it."""
        return False

    @property
    def keeps_frozen(self) -> bool:
        """Whether the untrained student stays in memory beside it."""
        return False

    @property
    def decodes(self) -> bool:
        """Whether images are decoded, which takes the teacher's VAE."""
        return False

    def passes(self, steps: int, between: int, judging: tuple[int, int]) -> Passes:
        """Of all samples of one time, beyond plain updates.

        Args:
            steps: of the student.
            between: the teacher's steps for one of them.
            judging: of the second network that acts meanwhile; (0, 0) without one.
        """
        return 0.0, 0.0

    def refusals(self, span: "Span", training: "Training") -> Iterator[str]:
        """Why it cannot be, beyond what holds for all ways.

        Args:
            span: of its first time, whose `key` begins messages.
            training: whose phase it is.
        """
        yield from ()

    def in_recipe(self, begin: int) -> dict[str, Any]:
        """Its part of a recipe. Recipes name a way and what it has, as they did before there was a
        list, so that trainings stay what they were.

        Args:
            begin: samples seen before it.
        """
        settings = self.model_dump(mode="json", exclude={TAG})
        return {self.learn: settings}

    def words(self) -> str:
        """What its samples are."""
        raise NotImplementedError


class Stored(Phase):
    """Learn from the teacher's stored trajectories."""

    order = 0
    restarts = False
    learn: Literal["stored"] = "stored"
    samples: Count = Field(description="samples of this phase")

    def in_recipe(self, begin: int) -> dict[str, Any]:
        """Nothing: it is what every training has."""
        return {}

    def words(self) -> str:
        """See `Phase`."""
        return f"{self.samples:,} from the teacher's stored trajectories"


class Rounds(Phase):
    """Learn in rounds from states that the student visits itself: jobs store them, other jobs let
    the teacher walk on from them to the next knot, and half of each batch is of these."""

    order = 1
    title = "rounds"
    waits = True
    why_segment = "the teacher walks to the next knot"
    learn: Literal["rounds"] = "rounds"
    samples: Count = Field(description="samples of each round")
    count: Small = Field(1, description="number of rounds")

    @property
    def meaning(self) -> str:
        """Of the jobs before each round."""
        return "jobs store states of the student, and where the teacher goes from them"

    @property
    def times(self) -> int:
        """One after another."""
        return self.count

    def refusals(self, span: "Span", training: "Training") -> Iterator[str]:
        """It needs a student that has learned something, and no other such way."""
        if span.begin == 0:
            yield (
                f"{span.key} is rounds and comes first: the student must have learned something "
                "before it is sent out; begin with {learn: stored, samples: …}"
            )
        for place, phase in enumerate(training.phases):
            if phase.asks:
                yield (
                    f"{span.key} is rounds and training.phases.{place} is "
                    f"{phase.learn}: both learn from states that the student visits, from "
                    "stored ones or at once; leave one of them out"
                )

    def in_recipe(self, begin: int) -> dict[str, Any]:
        """Under its own name."""
        return {"rounds": {"count": self.count, "samples": self.samples}}

    def words(self) -> str:
        """See `Phase`."""
        return (
            f"{counted(self.count, 'round')} of {self.samples:,}, half of them from states that "
            "the student visited before the round"
        )


class DistributionMatching(Section):
    """How a student's images are drawn towards the teacher's as a whole, beside its targets."""

    weight: Positive = Field(
        0.1, description="of this gradient, beside one of the targets' loss in the same images"
    )
    learning_rate: Annotated[float, Field(gt=0, le=10)] = Field(
        1e-4, description="AdamW's, of the network that learns what the student draws; constant"
    )
    updates: Small = Field(5, description="of that network, for each of the student's")


class Online(Phase):
    """Learn from a teacher beside the student: the student walks from the stored noise by its own
    steps, and the teacher says where to go from there, which costs its steps in every update."""

    order = 2
    title = "finish"
    reads = False
    asks = True
    why_segment = "the teacher is asked for the next knot"
    learn: Literal["online"] = "online"
    samples: Count = Field(description="samples of this phase")
    steps: Count | None = Field(
        None,
        description="steps of the teacher from a visited state to the next knot, of first order; "
        "null: all that it has there, with its own solver",
    )
    distribution_matching: DistributionMatching | None = Field(
        None,
        description="also draw the student's images towards what the guided teacher draws as a "
        "whole: a second copy of the student learns to denoise what the student draws, and the "
        "student moves to where the teacher's denoising differs from that copy's. It acts on its "
        "last step and on rollouts. null: no",
    )

    @property
    def meaning(self) -> str:
        """With what learns beside."""
        more = ", and a second network that learns what the student draws"
        return f"targets by a teacher beside the student{more * self.directs}"

    @property
    def judging(self) -> tuple[int, int]:
        """The copy's, with distribution matching."""
        matching = self.distribution_matching
        return (1 + TRAINING_PASSES * matching.updates, 1) if matching else (0, 0)

    @property
    def trains_copy(self) -> bool:
        """With distribution matching."""
        return self.distribution_matching is not None

    def of_sample(self, steps: int, between: int) -> Passes:
        """Passes of one sample: on the student's walk to where it stands, on average, and the steps
        that the teacher takes from there. With distribution matching, for one of a student's steps:
        it draws, the copy looks and learns, and the teacher looks."""
        visit, looks = (steps - 1) / 2, float(self.steps or between)
        if self.directs:
            judged, asked = self.judging
            visit += (1 + judged) / steps
            looks += asked / steps
        return visit, looks

    def passes(self, steps: int, between: int, judging: tuple[int, int]) -> Passes:
        """Those of each sample."""
        visit, looks = self.of_sample(steps, between)
        return self.samples * visit, self.samples * looks

    def refusals(self, span: "Span", training: "Training") -> Iterator[str]:
        """A student in parts cannot walk."""
        if training.parallel == "fsdp":
            yield (
                f"training.parallel is fsdp and {span.key} is online: ranks walk different "
                "numbers of steps, and a sharded student needs all for each; use ddp"
            )
        if self.distribution_matching:
            yield from _refuse_idle(f"{span.key}.distribution_matching", training)

    def in_recipe(self, begin: int) -> dict[str, Any]:
        """As settings that stood beside each other."""
        matching = self.distribution_matching
        return {
            "targets": "online",
            "finish_samples": self.samples if begin else None,
            "online_steps": self.steps,
        } | ({"distribution_matching": matching.model_dump(mode="json")} if matching else {})

    def words(self) -> str:
        """See `Phase`."""
        matched = " and distribution matching" if self.distribution_matching else ""
        return f"{self.samples:,} with online targets{matched}"


class Adversarial(Phase):
    """Learn to pass for the teacher, from stored trajectories alone: heads on the frozen untrained
    student learn to tell what the student draws from the trajectories' own images, and the student
    to pass. Meant to sharpen students of few steps; short finishes gained nothing where they were
    measured."""

    order = 2
    title = "finish"
    why_segment = "it acts on where the last segment ends"
    learn: Literal["adversarial"] = "adversarial"
    samples: Count = Field(description="samples of this phase")
    weight: Positive = Field(
        0.1, description="of this loss, beside that of the targets in the same images"
    )
    learning_rate: Annotated[float, Field(gt=0, le=10)] = Field(
        5e-4, description="Adam's, of the heads that tell the images apart; constant"
    )
    smoothness: Annotated[float, Field(ge=0, le=1e6)] = Field(
        1.0,
        description="weight of the heads' change under a little noise, which keeps them from "
        "being sure of pixels (approximate R1)",
    )
    warmup_samples: CountOrNone = Field(
        0, description="samples at its beginning in which the heads learn and the student is spared"
    )

    @property
    def meaning(self) -> str:
        """Who learns what."""
        return "heads learn to tell the student's images from the trajectories'"

    @property
    def judging(self) -> tuple[int, int]:
        """The heads'."""
        return ADVERSARIAL_PASSES, 0

    @property
    def keeps_frozen(self) -> bool:
        """The heads look through it."""
        return True

    def passes(self, steps: int, between: int, judging: tuple[int, int]) -> Passes:
        """Drawing and judging in each sample's last step."""
        judged, _ = self.judging
        # While the heads warm up nothing flows back to the image; that may last into the rollouts.
        spared = min(self.warmup_samples, self.samples) / steps
        spared += max(self.warmup_samples - self.samples, 0)
        return self.samples * (1 + judged) / steps - spared, 0.0

    def refusals(self, span: "Span", training: "Training") -> Iterator[str]:
        """Heads must see several images, and their warm-up end."""
        if training.global_batch_size == 1:
            yield (
                f"training.global_batch_size is 1 and {span.key} is adversarial: heads that see "
                "one image an update learn nothing of images; use 32 or more"
            )
        last = training.num_samples - training.global_batch_size - span.begin
        if self.warmup_samples > max(last, 0):
            yield (
                f"{span.key}.warmup_samples is {self.warmup_samples}, and the last update begins "
                f"{last} samples into this phase, so the student would never learn from it: use "
                f"{last} or fewer"
            )
        yield from _refuse_idle(span.key, training)

    def words(self) -> str:
        """See `Phase`."""
        return f"an adversarial finish of {self.samples:,}"


class Rollouts(Phase):
    """Learn from whole walks: the student takes all its steps from the noise, and the loss is on
    where it ends. The gradient goes through all steps, which takes student.steps times the
    activations."""

    order = 3
    title = "rollouts"
    restarts = False
    whole = True
    learn: Literal["rollouts"] = "rollouts"
    samples: Count = Field(description="samples of this phase")
    perceptual_weight: Annotated[float, Field(ge=0, le=1e6)] = Field(
        0.0,
        description="weight of the distance in the features of the teacher's VAE decoder, added "
        "to the loss; 0: none, and no VAE is loaded",
    )

    @property
    def meaning(self) -> str:
        """In one sentence."""
        return "the student takes all its steps, and the loss is on where it ends"

    @property
    def decodes(self) -> bool:
        """For the perceptual loss."""
        return self.perceptual_weight > 0

    def passes(self, steps: int, between: int, judging: tuple[int, int]) -> Passes:
        """All steps, and the judging of where they end."""
        judged, asked = judging
        # The images of rollouts are judged too: each is drawn by all steps.
        drawn = steps + judged if judged else 0
        student = self.samples * ((steps - 1) * TRAINING_PASSES + drawn)
        return float(student), float(self.samples * asked)

    def in_recipe(self, begin: int) -> dict[str, Any]:
        """As settings that stood beside each other."""
        return {"rollout_samples": self.samples, "perceptual_weight": self.perceptual_weight}

    def words(self) -> str:
        """See `Phase`."""
        return f"{self.samples:,} whole rollouts"


NO_ROLLOUTS: dict[str, Any] = {"rollout_samples": 0, "perceptual_weight": 0.0}
"""What recipes say where there are none."""


def _refuse_idle(key: str, training: "Training") -> Iterator[str]:
    """Where what acts on the last step would have no weight there."""
    weights = training.timestep_weights
    if not isinstance(weights, str) and weights[-1] == 0:
        yield (
            f"{key} is set and the last of training.timestep_weights is 0: it acts where the last "
            "segment ends; give that a positive weight, or leave it out"
        )


AnyPhase = Annotated[Stored | Rounds | Online | Adversarial | Rollouts, Field(discriminator=TAG)]
Found = TypeVar("Found", bound=Phase)


WAYS: tuple[type[Phase], ...] = (Stored, Rounds, Online, Adversarial, Rollouts)


def _in_order() -> str:
    """All ways in words, as they may follow one another."""
    groups = groupby(sorted(WAYS, key=attrgetter("order")), key=attrgetter("order"))
    names = ([str(way.model_fields[TAG].default) for way in group] for _, group in groups)
    return ", ".join(map(" or ".join, names))


IN_ORDER = _in_order()


@dataclass(frozen=True)
class Span:
    """A phase's place in the stream of samples; each time that it runs has its own.

    Attributes:
        phase: whose place it is.
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

    def is_directed(self, samples_seen: int) -> bool:
        """Whether a second network acts in the update that begins after so many samples."""
        director = self.director
        return director is not None and samples_seen >= director.begin

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


def check_phases(training: "Training") -> None:
    """Raise ValueError, with all reasons, for phases that cannot be, or would teach nothing."""
    orders = [phase.order for phase in training.phases]
    if sorted(set(orders)) != orders:
        ways = [phase.learn for phase in training.phases]
        raise ValueError(
            f"training.phases are {', '.join(ways)}: write them in the order {IN_ORDER}, each at "
            "most once; no other order was tried"
        )
    if found := list(_refusals(training)):
        raise ValueError("\n  ".join(found))


def _refusals(training: "Training") -> Iterator[str]:
    size = training.global_batch_size
    for span in training.spans:
        if span.begin != span.since:
            continue
        phase, way = span.phase, span.phase.learn
        check_multiple(f"{span.key}.samples", phase.samples, "training.global_batch_size", size)
        if training.objective != "segment" and phase.why_segment:
            yield (
                f"training.objective is {training.objective!r} and {span.key} is {way}: "
                f"{phase.why_segment}; use objective: segment, or leave {way} out"
            )
        yield from phase.refusals(span, training)
