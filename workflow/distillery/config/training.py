"""The training: what is learned, how fast, and what a machine does at once."""

from typing import Annotated, Literal, Self

from pydantic import BeforeValidator, Field, model_validator

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
)

Objective = Literal["segment", "direct", "reflow", "prediction"]
Parallel = Literal["auto", "ddp", "fsdp"]
Loss = Literal["mse", "huber", "pseudo_huber"]
TimestepWeights = (
    Literal["uniform", "min_snr"]
    | Annotated[tuple[Annotated[float, Field(ge=0)], ...], Field(min_length=1)]
)
MicroBatchSize = Annotated[
    BatchSize, BeforeValidator(lambda value: "auto" if value is None else value)
]
"""Files of earlier versions hold null for the whole share."""
Momentum = Annotated[float, Field(ge=0, lt=1)]


class Training(Section):
    """How the student learns. Progress is counted in samples: one stored segment is one sample."""

    objective: Objective = Field(
        "segment",
        description="what a step is asked for. segment: to land on the trajectory's next knot; "
        "direct: to land on its clean end from every knot; reflow: the straight line between its "
        "noise and its clean end; prediction: the teacher's guided prediction there, which is "
        "guidance distillation: it needs targets.predictions, and a student of many small steps",
    )
    loss: Loss = Field("mse", description="of a prediction against its target")
    huber_width: Positive = Field(
        1.0, description="error at which huber and pseudo_huber turn from square to linear"
    )
    timestep_weights: TimestepWeights = Field(
        "uniform",
        description="of the segments in the gradient, scaled to a mean of one; logged losses stay "
        "unweighted. uniform; min_snr: by the signal-to-noise ratio, at most 5, in the network's "
        "own prediction type; or a list of one weight a segment",
    )
    num_samples: Count = Field(description="length of the training")
    rollout_samples: CountOrNone = Field(
        0,
        description="the last so many of num_samples are whole trajectories: the student takes all "
        "its steps from the noise, the loss is on where it ends, its gradient goes through them "
        "all (student.steps times the activations); 0: none",
    )
    perceptual_weight: Annotated[float, Field(ge=0, le=1e6)] = Field(
        0.0,
        description="of the distance in the features of the teacher's VAE decoder, added to the "
        "loss of rollout_samples; 0: none, and no VAE is loaded",
    )
    global_batch_size: Small = Field(description="samples per update, over all processes")
    micro_batch_size: Annotated[MicroBatchSize, NoResult] = Field(
        "auto",
        description="samples a process takes at once; auto: its whole share, halved until it fits "
        "the GPU's memory",
    )
    learning_rate: Annotated[float, Field(gt=0, le=10)] = Field(
        1e-4, description="of AdamW; warm-up and schedule multiply it by factors up to 1"
    )
    schedule: Literal["constant", "cosine"] = Field(
        "cosine",
        description="factor of the learning rate. cosine: falls from 1 at the first sample to 0 at "
        "the last, so that after a warm-up the highest rate is a little below learning_rate",
    )
    warmup_samples: CountOrNone = Field(
        0, description="samples over which another factor of the learning rate rises from 0 to 1"
    )
    weight_decay: Annotated[float, Field(ge=0, le=10)] = Field(
        0.0, description="decoupled, of AdamW"
    )
    betas: tuple[Momentum, Momentum] = Field((0.9, 0.95), description="momenta of AdamW")
    max_grad_norm: Positive = Field(1.0, description="the gradient's norm is clipped to it")
    ema_half_life_samples: CountOrNone = Field(
        0,
        description="half-life in samples of the running average of the weights; the average is "
        "what is exported; 0: no averaging",
    )
    dtype: Literal["float32", "bfloat16"] = Field(
        "bfloat16",
        description="of the forward pass; master weights are float32. float16 would need loss "
        "scaling, which is not offered",
    )
    tf32: bool = Field(
        True,
        description="float32 matrix products of the training on a GPU read 10 bits of mantissa "
        "(TF32): several times faster; false: all 23",
    )
    parallel: Annotated[Parallel, NoResult] = Field(
        "auto",
        description="several processes. ddp: a whole student on each; fsdp: each holds a part of "
        "the weights, their averages and the optimizer; auto: ddp if that fits a GPU",
    )
    gradient_checkpointing: Annotated[bool | Literal["auto"], NoResult] = Field(
        "auto",
        description="blocks are computed again in the backward pass, which takes a third more time "
        "and little memory for activations; auto: where weights leave little of the GPU, or a "
        "single sample does not fit",
    )
    compile: Annotated[Compile, NoResult] = Field(
        "auto",
        description="whether the student is compiled; auto: a large one on a GPU in a long "
        "training, where the minutes that it takes are won back",
    )
    log_every_samples: Annotated[Count, NoResult] = Field(
        1024, description="between two rows of the loss table"
    )
    save_every_samples: Annotated[Count, NoResult] = Field(
        16384, description="between two checkpoints"
    )
    keep_checkpoints: Annotated[Small, NoResult] = Field(2, description="older ones are removed")
    timeout_s: Annotated[Count, NoResult] = Field(
        1800,
        description="of a collective; longer than what one process may do alone while others wait "
        "(15 minutes: checking a checkpoint's files, waiting for the disk)",
    )
    hang_timeout_s: Annotated[CountOrNone, NoResult] = Field(
        45,
        description="a process without progress for so long (a micro-batch is progress) reports "
        "where it hangs and ends, a fifth later if it waits for another; three times what it took "
        "before, if that is longer; 15 minutes until the first update is done and in rollouts. "
        "0: never, e.g. in a debugger",
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
        self._check_weights()
        return self

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


def check_num_weights(weights: TimestepWeights, steps: int) -> None:
    """Raise ValueError where listed weights are not one for each of the student's `steps`."""
    if not isinstance(weights, str) and len(weights) != steps:
        raise ValueError(
            f"training.timestep_weights lists {len(weights)} weights, student.steps is {steps}: "
            f"give {steps}, one per segment from the noise on, or write uniform or min_snr"
        )
