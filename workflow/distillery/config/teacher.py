"""The section `teacher`: which model is distilled, and how its stock pipeline is loaded and called.

Pairs of settings that cannot work together are refused here, each with the reason.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, JsonValue, PrivateAttr

from distillery.config.section import Dtype, NoResult, OnlyIfSet, Section, Small
from distillery.files import JsonObject, read_sealed
from distillery.notes import Note, error

FPS = 16
"""Of Wan."""
LONGEST_S = 65
"""A frame of a PNG is shown for 65,535 ms at most, and equal ones are written once."""


Quantization = Literal["int8", "nf4"]


class Adapter(Section):
    """A LoRA or DoRA that changes the teacher."""

    path: str = Field(
        min_length=1,
        description="a safetensors file, a folder that holds one, or the id of a hub repository",
    )
    scale: float = Field(1.0, description="strength of the adapter; 1.0 is as trained")
    weight_name: str | None = Field(
        None, description="file name in the folder or repository, if it holds several"
    )
    expert: str | None = Field(
        None,
        description="which of several networks the adapter changes; null: the first",
    )


class Trace(Section):
    """How a pipeline without an adapter is called, to learn what it gives its network."""

    unguided: dict[str, JsonValue] = Field(
        description="arguments of the stock call that switch its guidance off, the scale's first, "
        "e.g. `{guidance_scale: 0.0}`; `{}` where the network takes the scale as an input"
    )
    always: dict[str, JsonValue] = Field(
        {},
        description="further arguments of every call, the student's too",
    )
    image: Annotated[str | None, OnlyIfSet] = Field(
        None,
        description="the argument that takes an image beside the prompt, `image` in most calls: "
        "each prompt's own, of the column `image`. null: prompts have none",
    )


class Teacher(Section):
    """The model that is distilled, and how its stock pipeline is loaded and called."""

    path: str = Field(
        min_length=1, description="a Diffusers folder, or the id of a repository on the hub"
    )
    revision: str | None = Field(None, description="commit of a hub repository")
    variant: str | None = Field(
        None,
        description="which set of weight files to read, e.g. fp16 for "
        "`diffusion_pytorch_model.fp16.safetensors`; a component that lacks it is read from its "
        "plain files",
    )
    weights: Annotated[str | dict[str, str] | None, OnlyIfSet] = Field(
        None,
        description="a safetensors or GGUF file, here or as owner/name/file on the hub, whose "
        "weights replace those of `path`: a whole pipeline's, such as an SDXL checkpoint, or one "
        "network's; `{component: file}` names the component. null: none",
    )
    dtype: Dtype = Field(
        "bfloat16",
        description="number type of weights and activations. Samples hold their latents in it, as "
        "the stock pipeline does; targets are solved in float32",
    )
    vae_dtype: Dtype = Field(
        "float32",
        description="number type of the VAE. Lower precision takes less memory and shifts "
        "colours. An image that comes out black or not finite is decoded again in float32",
    )
    vae_tiling: Annotated[bool, OnlyIfSet] = Field(
        False,
        description="decode large images and clips in overlapping tiles, blended where they meet: "
        "less memory, slightly other pixels",
    )
    adapters: tuple[Adapter, ...] = Field(
        (),
        description="LoRA and DoRA adapters, in Diffusers' format or one that it converts. The "
        "student starts from the adapted teacher",
    )
    fuse_adapters: bool = Field(
        True,
        description="true: add adapters to the weights, in float32. false: compute them beside "
        "the weights at each call, which is slower and keeps their own weights in float32",
    )
    quantization: Annotated[Quantization | None, OnlyIfSet] = Field(
        None,
        description="pack the large matrices of the teacher's networks while they run: int8 "
        "halves the memory of weights in bfloat16, nf4 quarters it and needs bitsandbytes. The "
        "student starts from the weights as they were. null: not",
    )
    attention: str | None = Field(
        None,
        description="Diffusers' attention backend, e.g. native, flash, sage, _native_cudnn; "
        "null: Diffusers chooses. It changes the last bits of a result",
    )
    offload: Annotated[Literal["none", "model", "sequential"], NoResult] = Field(
        "none",
        description="keep weights in host memory. model: a component is on the GPU only while it "
        "works. sequential: a single layer is, which is far slower. Needs a GPU",
    )
    num_gpus: Annotated[Small, NoResult] = Field(
        1, description="GPUs per job; with several, the networks' blocks are spread over them"
    )
    height: Small = Field(description="pixels")
    width: Small = Field(description="pixels")
    num_frames: Annotated[Small, OnlyIfSet] = Field(
        1, description="of a sample; 1 is an image, more a clip, for families that make videos"
    )
    fps: Annotated[Small, OnlyIfSet] = Field(
        FPS, description="frames of a clip per second when it is played"
    )
    negative_prompt: str | None = Field(
        None,
        description="prompt of the unconditional branch; null: what the stock pipeline uses if "
        "none is given. FLUX's and Qwen-Image's would then not guide: with a guidance_scale above "
        "1.0 by a second call, null is the empty prompt for FLUX and a blank for Qwen-Image",
    )
    max_sequence_length: Small | None = Field(
        None,
        description="number of text tokens that prompts are padded to; null: the stock "
        "pipeline's default. The plan refuses more than the stock call takes",
    )
    long_prompts: Literal["refuse", "truncate"] = Field(
        "refuse", description="what to do with a prompt that has more tokens than the model reads"
    )
    scheduler: dict[str, bool | int | float | str] | None = Field(
        None,
        description="the solver: `class`, the name of a Diffusers scheduler, and those of its "
        "settings that differ from the released ones; null: as released",
    )
    call: Annotated[dict[str, JsonValue] | None, OnlyIfSet] = Field(
        None,
        description="further arguments of the stock pipeline's call that change what the teacher "
        "draws, e.g. `{guidance_rescale: 0.7}`. Trajectories and the teacher's samples are drawn "
        "with them, so that the student learns the result; null: none",
    )

    trace: Annotated[Trace | None, OnlyIfSet] = Field(
        None,
        description="learn the pipeline from its own calls, in a job before all others: for a "
        "class that has no adapter. null: its class has one",
    )
    _signature: JsonObject | None = PrivateAttr(None)

    @property
    def signature(self) -> JsonObject | None:
        """What was learnt of a traced pipeline; no setting, but a file of the run."""
        return self._signature

    @property
    def image_argument(self) -> str | None:
        """The argument of its calls that takes a prompt's image, if any does."""
        return None if self.trace is None else self.trace.image

    @property
    def not_learnt(self) -> "Teacher":
        """The same before anything was learnt."""
        return Teacher(**dict(self))

    def learn_from(self, signature: Path) -> None:
        """Read what was learnt, if it is traced and something was."""
        if self.trace is not None and signature.is_file():
            self._signature = read_sealed(signature)

    def faults(self) -> Iterator[Note]:
        """A clip that no file holds, two ways to save memory, settings that forbid each other."""
        seconds = self.num_frames / self.fps
        if seconds > LONGEST_S:
            yield error(
                f"teacher.num_frames is {self.num_frames}",
                f" and teacher.fps is {self.fps}: a clip of {seconds:.0f} s, and its file holds "
                f"{LONGEST_S} s",
                f"set fps to {-(-self.num_frames // LONGEST_S)} or more, or fewer frames",
            )
        if self.num_gpus > 1 and self.offload != "none":
            yield error(
                f"teacher.num_gpus is {self.num_gpus}",
                f" and teacher.offload is {self.offload!r}: weights lie either on several GPUs or "
                "in the host's memory",
                "set num_gpus: 1 or offload: none",
            )
        beside = bool(self.adapters) and not self.fuse_adapters
        if beside and (self.offload == "sequential" or self.num_gpus > 1):
            place = "offload: sequential" if self.num_gpus == 1 else f"num_gpus: {self.num_gpus}"
            yield error(
                "teacher.fuse_adapters is false",
                f" with {place}: an adapter beside the weights reads a layer that is not on its "
                "device at that moment",
                "set fuse_adapters: true",
            )
        if self.quantization == "nf4" and (self.offload == "sequential" or self.num_gpus > 1):
            place = "offload: sequential" if self.num_gpus == 1 else f"num_gpus: {self.num_gpus}"
            yield error(
                "teacher.quantization is 'nf4'",
                f" with {place}: Accelerate does not move weights that bitsandbytes has packed",
                "set quantization: int8, or offload: none or model with num_gpus: 1",
            )
        if beside and self.quantization is not None:
            yield error(
                "teacher.fuse_adapters is false",
                f" with quantization: {self.quantization}: an adapter beside the weights changes "
                "packed ones only approximately",
                "set fuse_adapters: true; they are fused before the weights are packed",
            )
        if self.vae_dtype != "float32" and self.offload == "sequential":
            yield error(
                f"teacher.vae_dtype is {self.vae_dtype!r}",
                " with offload: sequential: a black image is decoded again in float32, and weights "
                "that come layer by layer cannot be cast for that",
                "set vae_dtype: float32 or offload: model",
            )
