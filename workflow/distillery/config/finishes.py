"""What may follow, in one training, what is learned from the teacher's own trajectories."""

from typing import Annotated

from pydantic import Field

from distillery.config.section import Count, CountOrNone, Positive, Section, Small


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
