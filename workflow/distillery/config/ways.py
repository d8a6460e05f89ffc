"""The ways to learn: each is one class here, and its behaviour one file of `training/ways/`.

What a training, its plan and its report must know of a phase, its class says; `phases` folds over
the list.
"""

from collections.abc import Iterator
from itertools import groupby
from operator import attrgetter
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import Field

from distillery.config.section import (
    TAG,
    Count,
    CountOrNone,
    OnlyIfSet,
    Positive,
    Section,
    Small,
)
from distillery.notes import Note, error
from distillery.words import counted

if TYPE_CHECKING:
    from distillery.config.phases import Span
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
    keeps_frozen: ClassVar[bool] = False
    """Whether the untrained student stays in memory beside it."""
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

    def refusals(self, span: "Span", training: "Training") -> Iterator[Note]:
        """What it may not be, beyond what holds for all ways.

        Args:
            span: of its first time, whose `key` begins messages.
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

    def refusals(self, span: "Span", training: "Training") -> Iterator[Note]:
        """It needs a student that has learned something, and no other such way."""
        if span.begin == 0:
            yield error(
                f"{span.key} is rounds",
                " and comes first: the student must have learned something before it is sent out",
                "begin with {learn: stored, samples: …}",
            )
        for place, phase in enumerate(training.phases):
            if phase.asks:
                yield error(
                    f"{span.key} is rounds",
                    f" and training.phases.{place} is {phase.learn}: both learn from states that "
                    "the student visits, from stored ones or at once",
                    "leave one of them out",
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

    def refusals(self, span: "Span", training: "Training") -> Iterator[Note]:
        """A student in parts cannot walk."""
        if training.parallel == "fsdp":
            yield error(
                "training.parallel is fsdp",
                f" and {span.key} is online: ranks walk different numbers of steps, and a sharded "
                "student needs all for each",
                "use ddp",
            )
        if self.distribution_matching:
            yield from _on_idle(f"{span.key}.distribution_matching", training)

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


class Finish(Phase):
    """A second loss on what the student draws, in features of the frozen untrained student."""

    order = 2
    title = "finish"
    keeps_frozen = True
    why_segment = "it acts on where the last segment ends"


class Adversarial(Finish):
    """Learn to pass for the teacher, from stored trajectories alone: heads on the frozen untrained
    student learn to tell what the student draws from the trajectories' own images, and the student
    to pass. Meant to sharpen students of few steps; short finishes gained nothing where they were
    measured."""

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
    at: Annotated[Literal["ends", "knots"], OnlyIfSet] = Field(
        "ends",
        description="what is told apart. ends: the images on which last steps end; knots: where "
        "each step ends, from the trajectory's own state there, at that knot's noise",
    )
    loss: Annotated[Literal["softplus", "hinge"], OnlyIfSet] = Field(
        "softplus", description="of the heads; with hinge they stop where they are sure"
    )
    weigh_tokens: Annotated[bool, OnlyIfSet] = Field(
        False,
        description="tokens count by how far the student's features are from those of the "
        "trajectory's own image; false: all alike",
    )

    @property
    def meaning(self) -> str:
        """Who learns what."""
        return "heads learn to tell the student's images from the trajectories'"

    @property
    def judging(self) -> tuple[int, int]:
        """The heads'."""
        return ADVERSARIAL_PASSES, 0

    def passes(self, steps: int, between: int, judging: tuple[int, int]) -> Passes:
        """Drawing and judging in each sample's last step, or in every step."""
        judged, _ = self.judging
        judged_of = 1 if self.at == "knots" else steps
        # While the heads warm up nothing flows back to the image; that may last into the rollouts.
        spared = min(self.warmup_samples, self.samples) / judged_of
        spared += max(self.warmup_samples - self.samples, 0)
        return self.samples * (1 + judged) / judged_of - spared, 0.0

    def refusals(self, span: "Span", training: "Training") -> Iterator[Note]:
        """Heads must see several images, and their warm-up end."""
        if training.global_batch_size == 1:
            yield error(
                "training.global_batch_size is 1",
                f" and {span.key} is adversarial: heads that see one image an update learn nothing "
                "of images",
                "use 32 or more",
            )
        last = training.num_samples - training.global_batch_size - span.begin
        if self.warmup_samples > max(last, 0):
            yield error(
                f"{span.key}.warmup_samples is {self.warmup_samples}",
                f", and the last update begins {last} samples into this phase, so the student "
                "would never learn from it",
                f"use {last} or fewer",
            )
        yield from _on_idle(span.key, training)

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


def _on_idle(key: str, training: "Training") -> Iterator[Note]:
    """Where what acts on the last step would have no weight there."""
    weights = training.timestep_weights
    if not isinstance(weights, str) and weights[-1] == 0:
        yield error(
            f"{key} is set",
            " and the last of training.timestep_weights is 0: it acts where the last segment ends",
            "give that a positive weight, or leave it out",
        )


AnyPhase = Annotated[Stored | Rounds | Online | Adversarial | Rollouts, Field(discriminator=TAG)]
WAYS: tuple[type[Phase], ...] = (Stored, Rounds, Online, Adversarial, Rollouts)


def _in_order() -> str:
    """All ways in words, as they may follow one another."""
    groups = groupby(sorted(WAYS, key=attrgetter("order")), key=attrgetter("order"))
    names = ([str(way.model_fields[TAG].default) for way in group] for _, group in groups)
    return ", ".join(map(" or ".join, names))


IN_ORDER = _in_order()
