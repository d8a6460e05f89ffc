"""The training: what is learned, how fast, and what a machine does at once."""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from distillery.config.section import Count, Section, need_multiple

Objective = Literal["segment", "direct", "reflow"]
Loss = Literal["mse", "huber", "pseudo_huber"]
Momentum = Annotated[float, Field(ge=0, lt=1)]


class Training(Section):
    """How the student learns. Progress is counted in samples: one stored segment is one sample."""

    objective: Objective = Field(
        "segment",
        description="what a step is asked for. segment: to land on the trajectory's next knot; "
        "direct: to land on its clean end from every knot; reflow: the straight line between its "
        "noise and its clean end",
    )
    loss: Loss = Field("mse", description="of a prediction against its target")
    huber_width: Annotated[float, Field(gt=0)] = Field(
        1.0, description="error at which huber and pseudo_huber turn from square to linear"
    )
    num_samples: Count = Field(description="length of the training")
    global_batch_size: Count = Field(description="samples an update, over all processes")
    micro_batch_size: Count | None = Field(
        None, description="samples a process takes at once; null: its whole share"
    )
    learning_rate: Annotated[float, Field(gt=0)] = Field(1e-4, description="the highest, of AdamW")
    schedule: Literal["constant", "cosine"] = Field(
        "cosine", description="of the learning rate after the warm-up; cosine ends at zero"
    )
    warmup_samples: Annotated[int, Field(ge=0)] = Field(
        0, description="samples over which the learning rate rises from zero"
    )
    weight_decay: Annotated[float, Field(ge=0)] = Field(0.0, description="decoupled, of AdamW")
    betas: tuple[Momentum, Momentum] = Field((0.9, 0.95), description="momenta of AdamW")
    max_grad_norm: Annotated[float, Field(gt=0)] = Field(
        1.0, description="the gradient's norm is clipped to it"
    )
    ema_half_life_samples: Annotated[int, Field(ge=0)] = Field(
        0, description="of the averaged weights that are exported; 0: no averaging"
    )
    dtype: Literal["float32", "bfloat16"] = Field(
        "bfloat16",
        description="of the forward pass; master weights are float32. float16 would need loss "
        "scaling, which is not offered",
    )
    log_every_samples: Count = Field(1024, description="between two rows of the loss table")
    save_every_samples: Count = Field(16384, description="between two checkpoints")
    keep_checkpoints: Count = Field(2, description="older ones are removed")
    timeout_s: Count = Field(600, description="of a collective; long work never happens inside one")

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.micro_batch_size is not None:
            need_multiple(
                "training.global_batch_size",
                self.global_batch_size,
                "training.micro_batch_size",
                self.micro_batch_size,
            )
        for key in ("num_samples", "log_every_samples", "save_every_samples"):
            batch_size = self.global_batch_size
            need_multiple(
                f"training.{key}", getattr(self, key), "training.global_batch_size", batch_size
            )
        return self
