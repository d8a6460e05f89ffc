"""The training: what is learned, how fast, and what a machine does at once."""

from collections.abc import Iterator
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from distillery.config.phases import Phases, on_phases
from distillery.config.section import (
    BatchSize,
    Compile,
    Count,
    CountOrNone,
    NoResult,
    OnlyIfSet,
    Positive,
    Small,
    on_multiple,
    without_result,
)
from distillery.config.student import Student
from distillery.notes import Note, error

Objective = Literal["segment", "direct", "reflow"]
Parallel = Literal["auto", "ddp", "fsdp"]
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
OPTIONAL = ("held_out_prompts",)
"""What a training may be without; its recipe is then as it was before there was such a thing."""
Momentum = Annotated[float, Field(ge=0, lt=1)]


class Training(Phases):
    """How the student learns. Progress is counted in samples: one stored segment is one sample."""

    objective: Objective = Field(
        "segment",
        description="what a student's step should do. segment: land on the trajectory's next "
        "knot. direct: land on its clean end, from every knot. reflow: follow the straight line "
        "from its noise to its clean end",
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
    held_out_prompts: CountOrNone = Field(
        0,
        description="so many of prompts.train, spread evenly over them, are not learned from: the "
        "loss on their trajectories is measured some 20 times, and shows when the student begins "
        "to learn the others by heart. 0: none. Not where all targets are online",
    )
    seed: Annotated[Count | None, OnlyIfSet] = Field(
        None,
        description="of the order of samples and of what a training draws, 1 or more; null: the "
        "run's seed. Runs that differ in it alone show what chance does to a student; targets and "
        "images stay as they are",
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
        "at the last, so with a warm-up the rate stays a little below learning_rate; it begins "
        "anew at each round, and at a phase online or adversarial",
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

    def faults(self) -> Iterator[Note]:
        """Numbers that batches do not divide, and settings that would have no effect."""
        size = "training.global_batch_size", self.global_batch_size
        if self.micro_batch_size != "auto":
            yield from on_multiple(*size, "training.micro_batch_size", self.micro_batch_size)
        for key in ("log_every_samples", "save_every_samples"):
            yield from on_multiple(f"training.{key}", getattr(self, key), *size)
        if not isinstance(self.timestep_weights, str) and not any(self.timestep_weights):
            yield error(
                "training.timestep_weights",
                " are all zero: nothing would be learned",
                "give at least one segment a positive weight",
            )
        yield from on_phases(self)
        if self.warmup_samples > self.num_samples:
            yield error(
                f"training.warmup_samples is {self.warmup_samples}",
                f", all phases together have {self.num_samples} samples: the rate would never rise",
                "use a tenth of it or less",
            )
        if self.teacher_rank and self.teacher_residence != "one_rank":
            yield error(
                f"training.teacher_rank is {self.teacher_rank}",
                f" and training.teacher_residence is {self.teacher_residence}: only one_rank puts "
                "the teacher on one process",
                "set that, or leave teacher_rank out",
            )
        if self.held_out_prompts and not self.reads_trajectories:
            yield error(
                f"training.held_out_prompts is {self.held_out_prompts}",
                " and all targets are online: the loss is measured on stored trajectories",
                "begin training.phases with {learn: stored, samples: …}, or set held_out_prompts: "
                "0",
            )

    def seed_in(self, seed: int) -> int:
        """Of the order of samples and of all that the training draws, in a run of this seed."""
        return self.seed or seed

    @property
    def of_recipe(self) -> dict[str, Any]:
        """The settings that change a result, without those of what is not used."""
        left_out = {"phases", "seed", *without_result(type(self))}
        settings = self.model_dump(mode="json", exclude=left_out)
        used = {name: value for name, value in settings.items() if value or name not in OPTIONAL}
        return used | self.in_recipe


def on_held_out(num_held_out: int, num_prompts: int) -> Iterator[Note]:
    """Where no prompt would be left to learn from."""
    if num_held_out >= num_prompts:
        yield error(
            f"training.held_out_prompts is {num_held_out}",
            f" and there are {num_prompts} prompts to learn from",
            f"hold out fewer, say {num_prompts // 20}",
        )


def on_batch_size(
    training: Training, num_processes: int, kind: Literal["error", "doubt"] = "error"
) -> Iterator[Note]:
    """Where some process would learn from no sample in an update.

    A doubt where `num_processes` are guessed, as in a plan; Snakemake knows before the first job.
    """
    size = training.global_batch_size
    if size < num_processes:
        yield Note(
            kind,
            f"training.global_batch_size is {size}",
            f" and there are {num_processes} processes, each of which needs a sample of every "
            "update",
            f"raise it to {num_processes} or more, or start {size} with snakemake --resources "
            f"gpu={size}, without GPUs with hardware.cpu_processes: {size}",
        )


def on_teacher_rank(training: Training, num_processes: int) -> Iterator[Note]:
    """Where no process has the number of the one with the teacher."""
    is_of_one = training.asks and training.teacher_residence == "one_rank"
    if is_of_one and training.teacher_rank >= num_processes:
        yield error(
            f"training.teacher_rank is {training.teacher_rank}",
            f" and there are {num_processes} processes",
            f"use a number up to {num_processes - 1}",
        )


def on_flow_map(training: Training, student: Student) -> Iterator[Note]:
    """What a student of any number of steps does not learn by."""
    if not student.is_flow_map:
        return
    where = "student.init is 'flow_map'"
    if training.objective != "segment":
        yield error(
            where,
            f" and training.objective is {training.objective!r}: it learns to land on the knots "
            "that its steps end on",
            "leave objective out",
        )
    if training.timestep_weights != "uniform":
        yield error(
            where,
            " and training.timestep_weights is set: it learns steps of several lengths from one "
            "state, not segments",
            "leave timestep_weights out",
        )
    for span in training.spans:
        if span.phase.learn != "stored":
            yield error(
                where,
                f" and {span.key} is {span.phase.learn}: steps of several lengths are learned from "
                "stored trajectories alone",
                f"leave {span.phase.learn} out, or write student.init: teacher",
            )


def on_num_weights(weights: TimestepWeights, steps: int) -> Iterator[Note]:
    """Where listed weights are not one for each of the student's `steps`."""
    if not isinstance(weights, str) and len(weights) != steps:
        yield error(
            f"training.timestep_weights lists {len(weights)} weights",
            f", student.steps is {steps}",
            f"give {steps}, one per segment from the noise on, or write uniform or min_snr",
        )
