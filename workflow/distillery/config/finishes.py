"""What may follow, in one training, what is learned from the teacher's own trajectories, and what
it needs of the training's other settings."""

from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from distillery.config.section import (
    Count,
    CountOrNone,
    Positive,
    Section,
    Small,
    check_multiple,
)

if TYPE_CHECKING:
    from distillery.config.training import Training


class DistributionMatching(Section):
    """How a student's images are drawn towards the teacher's as a whole, beside its targets."""

    weight: Positive = Field(
        0.1, description="of this gradient, beside one of the targets' loss in the same images"
    )
    learning_rate: Annotated[float, Field(gt=0, le=10)] = Field(
        1e-4, description="AdamW's, of the network that learns what the student draws; constant"
    )
    updates: Small = Field(5, description="of that network, for each of the student's")


class Adversarial(Section):
    """A finish in which the student's images learn to pass for the teacher's stored ones."""

    samples: Count = Field(
        description="how many of num_samples, before the rollouts, are this finish"
    )
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


class Rounds(Section):
    """Learning from states that the student visits itself, which jobs of their own store."""

    count: Small = Field(
        description="how often: the student's states are stored, the teacher walks on from them, "
        "and the student learns from both these and the teacher's trajectories"
    )
    samples: Count = Field(
        description="how many of num_samples, before a finish and the rollouts, each of them is"
    )


def check_online(training: "Training") -> None:
    """Raise ValueError for online targets that cannot be, or settings of them without them."""
    if training.teacher_rank and training.teacher_residence != "one_rank":
        raise ValueError(
            f"training.teacher_rank is {training.teacher_rank} and training.teacher_residence is "
            f"{training.teacher_residence}: only one_rank puts the teacher on one process; set "
            "that, or leave teacher_rank out"
        )
    if training.targets == "stored":
        for key in ("finish_samples", "online_steps", "distribution_matching"):
            value = getattr(training, key)
            if value is not None:
                shown = "set" if isinstance(value, Section) else value
                raise ValueError(
                    f"training.{key} is {shown} and training.targets is stored: "
                    "no teacher is asked; set training.targets: online, or leave it out"
                )
        return
    if training.objective != "segment":
        raise ValueError(
            f"training.objective is {training.objective!r} and training.targets is online: the "
            "teacher is asked for the next knot; use segment, or stored targets"
        )
    if training.parallel == "fsdp":
        raise ValueError(
            "training.parallel is fsdp and training.targets is online: ranks walk different "
            "numbers of steps, and a sharded student needs all for each; use ddp"
        )
    if training.rollouts_begin == 0:
        raise ValueError(
            "training.targets is online and all of training.num_samples are rollouts, which "
            "have stored targets: lower training.rollout_samples, or write targets: stored"
        )
    if training.finish_samples is not None:
        _check_length("training.finish_samples", training.finish_samples, training)


def _check_length(key: str, samples: int, training: "Training") -> None:
    """Raise ValueError for a finish longer than what precedes the rollouts, or of half a batch."""
    most = training.rollouts_begin
    if samples > most:
        raise ValueError(
            f"{key} is {samples}, and {most} of training.num_samples are no rollouts: use {most} "
            "or fewer"
        )
    size = training.global_batch_size
    check_multiple(key, samples, "training.global_batch_size", size)


def check_adversarial(training: "Training") -> None:
    """Raise ValueError for an adversarial finish that cannot be, or would teach nothing."""
    if training.adversarial is None:
        return
    if training.targets == "online":
        raise ValueError(
            "training.adversarial is set and training.targets is online: it learns from stored "
            "trajectories; set targets: stored, or use distribution_matching"
        )
    if training.objective != "segment":
        raise ValueError(
            f"training.objective is {training.objective!r} and training.adversarial is set: it "
            "acts on where the last segment ends; use objective: segment"
        )
    if training.global_batch_size == 1:
        raise ValueError(
            "training.global_batch_size is 1 and training.adversarial is set: heads that see "
            "one image an update learn nothing of images; use 32 or more"
        )
    if training.rollouts_begin == 0:
        raise ValueError(
            "training.adversarial is set and all of training.num_samples are rollouts, which "
            "follow it: lower training.rollout_samples, or leave adversarial out"
        )
    samples = training.adversarial.samples
    _check_length("training.adversarial.samples", samples, training)
    last = samples + training.rollout_samples - training.global_batch_size
    if training.adversarial.warmup_samples > last:
        raise ValueError(
            f"training.adversarial.warmup_samples is {training.adversarial.warmup_samples}, and "
            f"the last update begins {last} samples into the finish, so the student would "
            f"never learn from it: use {last} or fewer"
        )


def check_rounds(training: "Training") -> None:
    """Raise ValueError for rounds that cannot be."""
    if training.rounds is None:
        return
    if training.targets == "online":
        raise ValueError(
            "training.rounds is set and training.targets is online: both learn from states "
            "that the student visits, from stored ones or at once; leave one of them out"
        )
    if training.objective != "segment":
        raise ValueError(
            f"training.objective is {training.objective!r} and training.rounds is set: the teacher "
            "walks to the next knot; use objective: segment"
        )
    check_multiple(
        "training.rounds.samples",
        training.rounds.samples,
        "training.global_batch_size",
        training.global_batch_size,
    )
    if training.rounds_begin <= 0:
        raise ValueError(
            f"training.rounds are {training.rounds.count} of {training.rounds.samples} samples, "
            f"and {training.finish_begins} of training.num_samples are no finish and no rollouts: "
            "the student must have learned something before it is sent out; raise num_samples, or "
            "lower rounds.samples"
        )
