"""The training: what is learned, how fast, and what a machine does at once."""

from itertools import pairwise
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, model_validator

from distillery.config.finishes import (
    Adversarial,
    DistributionMatching,
    Rounds,
    check_adversarial,
    check_online,
    check_rounds,
)
from distillery.config.section import (
    BatchSize,
    Compile,
    Count,
    CountOrNone,
    NoResult,
    Positive,
    Section,
    Small,
    check_multiple,
    without_result,
)

Objective = Literal["segment", "direct", "reflow", "prediction"]
Parallel = Literal["auto", "ddp", "fsdp"]
TargetsFrom = Literal["stored", "online"]
Place = Literal["every_rank", "one_rank", "own_gpus", "shared", "cpu"]
TeacherResidence = Literal["auto"] | Place
Loss = Literal["mse", "huber", "pseudo_huber"]
TimestepWeights = (
    Literal["uniform", "min_snr"]
    | Annotated[tuple[Annotated[float, Field(ge=0)], ...], Field(min_length=1)]
)
MicroBatchSize = Annotated[
    BatchSize, BeforeValidator(lambda value: "auto" if value is None else value)
]
"""Files of earlier versions hold null for the whole share."""
OF_ONLINE = ("targets", "finish_samples", "online_steps", "distribution_matching")
"""Settings of online targets."""
OPTIONAL = ("distribution_matching", "adversarial", "rounds", "held_out_prompts")
"""What a training may be without; its recipe is then as it was before there was such a thing."""
AFTER_ROUNDS = (*OF_ONLINE, "adversarial", "rollout_samples", "perceptual_weight")
"""Settings of what follows the teacher's trajectories and the rounds."""
Momentum = Annotated[float, Field(ge=0, lt=1)]


class Training(Section):
    """How the student learns. Progress is counted in samples: one stored segment is one sample."""

    objective: Objective = Field(
        "segment",
        description="what a student's step should do. segment: land on the trajectory's next "
        "knot. direct: land on its clean end, from every knot. reflow: follow the straight line "
        "from its noise to its clean end. prediction: give the teacher's guided prediction "
        "(guidance distillation), for a student of many small steps; needs targets.predictions",
    )
    targets: TargetsFrom = Field(
        "stored",
        description="where targets come from. stored: the teacher's trajectories. online: the "
        "student walks from the stored noise by its own steps, and a teacher beside it says where "
        "to go from there, which costs its steps in every update",
    )
    finish_samples: Count | None = Field(
        None,
        description="how many of num_samples, before the rollouts, have online targets; null: "
        "all. Needs targets: online",
    )
    online_steps: Count | None = Field(
        None,
        description="steps of the teacher from a visited state to the next knot, of first order; "
        "null: all that it has there, with its own solver. Needs targets: online",
    )
    teacher_residence: Annotated[TeacherResidence, NoResult] = Field(
        "auto",
        description="where the teacher of online targets is. every_rank: each process has its own "
        "beside the student. one_rank: one process has it and answers all, which then wait. "
        "shared: in the host's memory, one copy for all processes of a node; layers come to each "
        "GPU as they run. cpu: there too, and computes there. own_gpus: in a process of its own on "
        "each node, on teacher.num_gpus GPUs that train no student. auto: own_gpus if "
        "teacher.num_gpus is more than 1, else every_rank if both fit a GPU, else shared",
    )
    teacher_rank: Annotated[CountOrNone, NoResult] = Field(
        0, description="the process that has the teacher with teacher_residence: one_rank"
    )
    distribution_matching: DistributionMatching | None = Field(
        None,
        description="also draw the student's images towards what the guided teacher draws as a "
        "whole: a second copy of the student learns to denoise what the student draws, and the "
        "student moves to where the teacher's denoising differs from that copy's. It acts on its "
        "last step and on rollouts. null: no. Needs targets: online",
    )
    rounds: Rounds | None = Field(
        None,
        description="learn in rounds from states that the student visits itself: jobs store them, "
        "other jobs let the teacher walk on from them to the next knot, and half of each batch is "
        "of these. For students of several steps. null: no. Needs targets: stored",
    )
    adversarial: Adversarial | None = Field(
        None,
        description="finish with an adversarial loss from stored trajectories alone: heads on the "
        "frozen untrained student learn to tell what the student draws from the trajectories' own "
        "images, and the student to pass. Meant to sharpen students of few steps; short finishes "
        "gained nothing where they were measured. null: no",
    )
    held_out_prompts: CountOrNone = Field(
        0,
        description="so many of prompts.train, spread evenly over them, are not learned from: the "
        "loss on their trajectories is measured some 20 times, and shows when the student begins "
        "to learn the others by heart. 0: none. Not with targets: online alone",
    )
    loss: Loss = Field("mse", description="loss of a prediction against its target")
    huber_width: Positive = Field(
        1.0, description="error at which huber and pseudo_huber turn from square to linear"
    )
    timestep_weights: TimestepWeights = Field(
        "uniform",
        description="weights of the segments in the gradient, scaled to a mean of one; logged "
        "losses are unweighted. uniform; min_snr: by the signal-to-noise ratio, at most 5, for "
        "the network's own prediction type; or a list with one weight per segment",
    )
    num_samples: Count = Field(description="length of the training, in samples")
    rollout_samples: CountOrNone = Field(
        0,
        description="how many of num_samples, at the end, are rollouts: the student takes all "
        "its steps from the noise, and the loss is on where it ends. The gradient goes through "
        "all steps, which takes student.steps times the activations; 0: none",
    )
    perceptual_weight: Annotated[float, Field(ge=0, le=1e6)] = Field(
        0.0,
        description="weight of the distance in the features of the teacher's VAE decoder, added "
        "to the loss of rollouts; 0: none, and no VAE is loaded",
    )
    global_batch_size: Small = Field(description="samples per update, over all processes")
    micro_batch_size: Annotated[MicroBatchSize, NoResult] = Field(
        "auto",
        description="samples per forward and backward pass of a process; auto: its whole local "
        "batch, halved until it fits the GPU",
    )
    learning_rate: Annotated[float, Field(gt=0, le=10)] = Field(
        1e-4,
        description="AdamW's highest learning rate; warm-up and schedule multiply it by "
        "factors up to 1",
    )
    schedule: Literal["constant", "cosine"] = Field(
        "cosine",
        description="factor of the learning rate. cosine: falls from 1 at the first sample to 0 "
        "at the last, so with a warm-up the rate stays a little below learning_rate; with "
        "finish_samples once over the stored targets, and once more from there",
    )
    warmup_samples: CountOrNone = Field(
        0, description="samples over which a second factor of the learning rate rises from 0 to 1"
    )
    weight_decay: Annotated[float, Field(ge=0, le=10)] = Field(
        0.0, description="AdamW's decoupled weight decay"
    )
    betas: tuple[Momentum, Momentum] = Field((0.9, 0.95), description="AdamW's beta1 and beta2")
    max_grad_norm: Positive = Field(1.0, description="clip the gradient to this norm")
    ema_half_life_samples: CountOrNone = Field(
        0,
        description="half-life, in samples, of the running average (EMA) of the weights, which "
        "is what is exported; 0: no averaging",
    )
    dtype: Literal["float32", "bfloat16"] = Field(
        "bfloat16",
        description="number type of the forward pass; master weights are float32. float16 would "
        "need loss scaling, which is not offered",
    )
    tf32: bool = Field(
        True,
        description="allow TF32 in float32 matrix products on a GPU: 10 bits of mantissa instead "
        "of 23, several times faster",
    )
    parallel: Annotated[Parallel, NoResult] = Field(
        "auto",
        description="how several processes train. ddp: each holds the whole student. fsdp: each "
        "holds a part of the weights, their average and the optimizer's state. auto: ddp if it "
        "fits a GPU",
    )
    gradient_checkpointing: Annotated[bool | Literal["auto"], NoResult] = Field(
        "auto",
        description="compute blocks again in the backward pass: a third more time, little memory "
        "for activations. auto: if the weights leave little of the GPU, or if a single sample "
        "does not fit otherwise",
    )
    compile: Annotated[Compile, NoResult] = Field(
        "auto",
        description="whether to compile the student; auto: a large one on a GPU in a long "
        "training, where it saves more than the minutes that it takes",
    )
    log_every_samples: Annotated[Count, NoResult] = Field(
        1024, description="samples between two rows of the loss table"
    )
    save_every_samples: Annotated[Count, NoResult] = Field(
        16384, description="samples between two checkpoints"
    )
    keep_checkpoints: Annotated[Small, NoResult] = Field(
        2,
        description="number of checkpoints to keep, with rounds of each part before a round too; "
        "older ones are removed",
    )
    timeout_s: Annotated[Count, NoResult] = Field(
        1800,
        description="time limit of a collective, in seconds. Must be longer than what one "
        "process may do alone while others wait (15 minutes: checking a checkpoint's files, "
        "waiting for the disk)",
    )
    hang_timeout_s: Annotated[CountOrNone, NoResult] = Field(
        45,
        description="a process that makes no progress for so many seconds (a micro-batch is "
        "progress) reports where it hangs and ends; one that waits for another gets a fifth "
        "more. The limit is at least three times what the step took before, and 15 minutes in "
        "the first update and in rollouts. 0: never, e.g. in a debugger",
    )

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.micro_batch_size != "auto":
            check_multiple(
                "training.global_batch_size",
                self.global_batch_size,
                "training.micro_batch_size",
                self.micro_batch_size,
            )
        for key in ("num_samples", "rollout_samples", "log_every_samples", "save_every_samples"):
            batch_size = self.global_batch_size
            check_multiple(
                f"training.{key}", getattr(self, key), "training.global_batch_size", batch_size
            )
        if self.warmup_samples > self.num_samples:
            raise ValueError(
                f"training.warmup_samples is {self.warmup_samples}, training.num_samples is "
                f"{self.num_samples}: the rate would never rise; use a tenth of it or less"
            )
        self._check_rollout()
        check_online(self)
        check_adversarial(self)
        check_rounds(self)
        self._check_weights()
        if self.held_out_prompts and not self.reads_trajectories:
            raise ValueError(
                f"training.held_out_prompts is {self.held_out_prompts} and all targets are online: "
                "the loss is measured on stored trajectories; set training.finish_samples, or "
                "held_out_prompts: 0"
            )
        return self

    @property
    def online_samples(self) -> int:
        """How many samples have online targets."""
        if self.targets == "stored":
            return 0
        most = self.rollouts_begin
        return most if self.finish_samples is None else self.finish_samples

    @property
    def rollouts_begin(self) -> int:
        """Samples seen before the first rollout."""
        return self.num_samples - self.rollout_samples

    @property
    def online_begins(self) -> int:
        """Samples seen before the first online target, which rollouts may follow."""
        return self.rollouts_begin - self.online_samples

    @property
    def finish_samples_in_all(self) -> int:
        """How many samples a finish of either kind has."""
        return self.adversarial.samples if self.adversarial else self.online_samples

    @property
    def finish_begins(self) -> int:
        """Samples seen before the first of a finish, which rollouts may follow."""
        return self.rollouts_begin - self.finish_samples_in_all

    @property
    def rounds_begin(self) -> int:
        """Samples seen before the first round, if there is one."""
        in_all = self.rounds.count * self.rounds.samples if self.rounds else 0
        return self.finish_begins - in_all

    @property
    def round_numbers(self) -> range:
        """From 1; empty without rounds."""
        return range(1, self.rounds.count + 1) if self.rounds else range(0)

    @property
    def restarts(self) -> list[int]:
        """Samples seen before each round and the finish: there the learning rate begins anew."""
        begins = []
        if self.rounds:
            begins = list(range(self.rounds_begin, self.finish_begins, self.rounds.samples))
        return begins + [self.finish_begins] * (self.finish_samples_in_all > 0)

    def up_to_round(self, count: int) -> "Training":
        """The training that does what this one does until so many rounds are over."""
        changes = {name: type(self).model_fields[name].default for name in AFTER_ROUNDS}
        rounds = self.rounds.model_copy(update={"count": count}) if self.rounds and count else None
        end = self.rounds_begin + (count * self.rounds.samples if self.rounds else 0)
        return self.model_copy(update=changes | {"rounds": rounds, "num_samples": end})

    @property
    def of_jobs(self) -> "list[Training]":
        """What the jobs of it do, one after another: each up to a round, the last all of it."""
        return [*map(self.up_to_round, range(len(self.round_numbers))), self]

    @property
    def samples_of_jobs(self) -> list[int]:
        """Samples that each of them learns from."""
        ends = [part.num_samples for part in self.of_jobs]
        return [end - begin for begin, end in pairwise([0, *ends])]

    @property
    def earlier_parts(self) -> "list[Training]":
        """The trainings that do a first part of one with rounds or a finish, the longest first.

        They have the same samples in the same order at the same learning rates.
        """
        has_finish = self.finish_samples_in_all > 0
        counts = range(len(self.round_numbers) + has_finish)
        parts = [self.up_to_round(count) for count in reversed(counts)]
        return [part for part in parts if 0 < part.num_samples < self.num_samples]

    @property
    def of_recipe(self) -> dict[str, Any]:
        """The settings that change a result, without those of what is not used."""
        settings = self.model_dump(mode="json", exclude=set(without_result(type(self))))
        # As in recipes from before there was a choice.
        unused = [name for name in OPTIONAL if not settings[name]]
        unused += OF_ONLINE if self.targets == "stored" else ()
        return {name: value for name, value in settings.items() if name not in unused}

    @property
    def reads_trajectories(self) -> bool:
        """Whether it learns anything from the teacher's stored trajectories."""
        return self.online_samples < self.num_samples

    def _check_rollout(self) -> None:
        if self.rollout_samples > self.num_samples:
            raise ValueError(
                f"training.rollout_samples is {self.rollout_samples}, training.num_samples is "
                f"{self.num_samples}: it is a part of it; use {self.num_samples} or fewer"
            )
        if self.perceptual_weight > 0 and self.rollout_samples == 0:
            raise ValueError(
                f"training.perceptual_weight is {self.perceptual_weight} and "
                "training.rollout_samples is 0: only what the student's own steps end on is "
                "decoded; set training.rollout_samples, or perceptual_weight: 0"
            )

    def _check_weights(self) -> None:
        if not isinstance(self.timestep_weights, str) and not any(self.timestep_weights):
            raise ValueError(
                "training.timestep_weights are all zero: nothing would be learned; give at least "
                "one segment a positive weight"
            )
        directed = "adversarial" if self.adversarial else "distribution_matching"
        has_directions = getattr(self, directed) is not None
        if has_directions and self.timestep_weights[-1] == 0:
            raise ValueError(
                f"training.{directed} is set and the last of training.timestep_weights is 0: "
                "it acts where the last segment ends; give that a positive weight, or leave "
                f"{directed} out"
            )


def check_held_out(num_held_out: int, num_prompts: int) -> None:
    """Raise ValueError where no prompt would be left to learn from."""
    if num_held_out >= num_prompts:
        raise ValueError(
            f"training.held_out_prompts is {num_held_out} and there are {num_prompts} prompts to "
            f"learn from: hold out fewer, say {num_prompts // 20}"
        )


def check_batch_size(training: Training, num_processes: int) -> None:
    """Raise ValueError where some process would learn from no sample in an update."""
    size = training.global_batch_size
    if size < num_processes:
        raise ValueError(
            f"training.global_batch_size is {size} and there are {num_processes} processes, each "
            f"of which needs a sample of every update: raise it to {num_processes} or more, or "
            f"start {size} with snakemake --resources gpu={size}, without GPUs with "
            f"hardware.cpu_processes: {size}"
        )


def check_teacher_rank(training: Training, num_processes: int) -> None:
    """Raise ValueError where no process has the number of the one with the teacher."""
    is_of_one = training.targets == "online" and training.teacher_residence == "one_rank"
    if is_of_one and training.teacher_rank >= num_processes:
        raise ValueError(
            f"training.teacher_rank is {training.teacher_rank} and there are {num_processes} "
            f"processes: use a number up to {num_processes - 1}"
        )


def check_num_weights(weights: TimestepWeights, steps: int) -> None:
    """Raise ValueError where listed weights are not one for each of the student's `steps`."""
    if not isinstance(weights, str) and len(weights) != steps:
        raise ValueError(
            f"training.timestep_weights lists {len(weights)} weights, student.steps is {steps}: "
            f"give {steps}, one per segment from the noise on, or write uniform or min_snr"
        )
