"""The student: which network it is, and how many steps it samples with."""

from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import Field, field_validator

from distillery.config.section import Count, OnlyIfSet, Positive, Section, Small
from distillery.notes import Note, error

Init = Literal["teacher", "layers", "config", "lora", "time_embeddings", "flow_map"]
Dropped = Literal["discard", "average"]
LayersRule = Literal["even", "first", "last", "ends"]
MidBlock = Literal["keep", "resnet", "none"]
KEYS_OF: dict[Init, tuple[str, ...]] = {
    "teacher": (),
    "layers": ("layers", "num_layers", "unet"),
    "config": ("config",),
    "lora": ("lora",),
    "time_embeddings": (),
    "flow_map": (),
}
"""Each init and its keys, exactly one of which is given."""
OF_TEACHER: tuple[Init, ...] = ("lora", "time_embeddings")
"""Those of which little is trained, and stored beside links to the teacher's own network."""


class Unet(Section):
    """What a smaller UNet keeps, in the words of Diffusers' UNet2DConditionModel.

    `layers_per_block: 1` is BK-SDM-Base, with `mid_block: none` BK-SDM-Small (Kim et al. 2023,
    arXiv:2305.15798); SSD-1B keeps the pairs and drops layers of their transformers (Gupta et al.
    2024, arXiv:2401.02677).
    """

    layers_per_block: Count | tuple[Count, ...] | None = Field(
        None,
        description="pairs of a ResNet and an attention block to keep per down stage (up stages "
        "keep one more): one number, or one per down stage; null: all",
    )
    transformer_layers_per_block: Count | tuple[Count | tuple[Count, ...], ...] | None = Field(
        None,
        description="layers to keep per transformer that has more: one number, or one entry per "
        "down stage, a number or a list with one per pair; null: all. The mid block takes the "
        "first number of the last stage",
    )
    reverse_transformer_layers_per_block: tuple[Count | tuple[Count, ...], ...] | None = Field(
        None,
        description="the same for the up stages, in the order they run; null: as the down "
        "stages. Required if transformer_layers_per_block contains lists",
    )
    mid_block: MidBlock = Field(
        "keep",
        description="keep: all of it; resnet: only its first ResNet, as SSD-1B; none: remove it",
    )

    def faults(self) -> Iterator[Note]:
        """Numbers that the up stages lack, and a UNet that stays as it is."""
        down = self.transformer_layers_per_block
        is_nested = isinstance(down, tuple) and any(isinstance(stage, tuple) for stage in down)
        if is_nested and self.reverse_transformer_layers_per_block is None:
            yield error(
                f"student.unet.transformer_layers_per_block is {_listed(down)}",
                " and reverse_transformer_layers_per_block is null",
                "the up stages have one pair more than the down stages, so give their numbers too",
            )
        if self == type(self).model_construct():
            yield error(
                "student.unet",
                " keeps everything",
                "set layers_per_block, transformer_layers_per_block or mid_block, or write init: "
                "teacher",
            )


class Lora(Section):
    """Low-rank additions to the teacher's weights, which alone are trained (arXiv:2106.09685)."""

    rank: Small = Field(
        64, description="rank of each addition, at most the smaller side of its layer"
    )
    alpha: Positive | None = Field(
        None, description="additions are scaled by alpha / rank; null: alpha is the rank"
    )
    targets: tuple[Annotated[str, Field(min_length=1)], ...] = Field(
        ("to_q", "to_k", "to_v", "to_out.0"),
        description="linear and convolution layers that get an addition, by the ends of their "
        "names",
        json_schema_extra={"minItems": 1},
    )

    @field_validator("targets")
    @classmethod
    def _check_targets(cls, targets: tuple[str, ...]) -> tuple[str, ...]:
        """Raise ValueError for none, which would train nothing."""
        if not targets:
            raise ValueError(
                "student.lora.targets is []: no layer would be trained; name at least one by the "
                "end of its name, such as to_q, or leave the key out for attention's layers"
            )
        return targets


class Student(Section):
    """The network that learns, and the number of steps it samples with."""

    init: Init = Field(
        "teacher",
        description="teacher: same shape and weights. layers: only some of its blocks. config: a "
        "shape of your own, with the teacher's weights where names and shapes agree. lora: the "
        "teacher itself, with only low-rank additions trained. time_embeddings: the teacher "
        "itself, with only the weights trained by which the time acts on its blocks. flow_map: "
        "the teacher with a second time, at which its step ends: one student for student.steps "
        "steps and for each number that divides them (Wan alone)",
    )
    layers: tuple[Annotated[int, Field(ge=0)], ...] | None = Field(
        None, description="indices of the teacher's blocks to keep, for init: layers"
    )
    num_layers: Small | None = Field(
        None, description="instead of layers: how many blocks to keep; layers_rule chooses them"
    )
    layers_rule: LayersRule = Field(
        "even",
        description="which blocks are kept: even (spaced, first and last included), first, last, "
        "or ends (half from either end); also for a UNet's transformer layers",
    )
    dropped: Annotated[Dropped, OnlyIfSet] = Field(
        "discard",
        description="what becomes of a transformer's other blocks. discard: nothing. average: each "
        "block that is kept begins as the mean of itself and those that are dropped next to it "
        "(arXiv:2602.17047)",
    )
    unet: Unet | None = Field(None, description="what to keep of a UNet, for init: layers")
    config: str | None = Field(
        None, description="for init: config: a JSON file like config.json of the teacher's network"
    )
    lora: Lora | None = Field(None, description="for init: lora; {} takes the defaults")
    start_from: Annotated[str | None, OnlyIfSet] = Field(
        None,
        description="the folder of a trained student, `results/{run}/student/trained` of another "
        "run or an exported pipeline, that takes the teacher's place in `init`: it is cut or "
        "trained on. The targets stay the teacher's. null: start from the teacher",
    )
    from_run: Annotated[str | None, OnlyIfSet] = Field(
        None,
        description="the folder of another run, `results/{run}`, whose finished student is drawn "
        "and scored where it is; nothing is trained here. Its training, targets and teacher must "
        "be these. null: this run trains its own",
    )
    expert: str | None = Field(
        None,
        description="which of several networks the student starts from. Wan2.2-A14B has "
        "transformer (for the noisier states) and transformer_2",
    )
    steps: Small = Field(
        4,
        description="denoising steps, without guidance; with init: flow_map the most that it takes",
    )

    @property
    def is_flow_map(self) -> bool:
        """Whether it learns to take several numbers of steps."""
        return self.init == "flow_map"

    @property
    def numbers_of_steps(self) -> tuple[int, ...]:
        """All that it learns to take, ascending."""
        return divisors(self.steps) if self.is_flow_map else (self.steps,)

    @property
    def items_per_trajectory(self) -> int:
        """Steps of one trajectory that it learns in one pass: of each number of steps as many."""
        return len(self.numbers_of_steps) * self.steps

    def faults(self) -> Iterator[Note]:
        """Keys that this init does not take or lacks, and blocks that cannot be kept."""
        yield from self._on_keys()
        if self.is_flow_map and self.steps == 1:
            yield error(
                "student.init is 'flow_map'",
                " and student.steps is 1: it learns to take several numbers of steps, and there "
                "would be one",
                "write more steps, such as 4 or 8, or init: teacher",
            )
        if self.layers is not None and list(self.layers) != sorted(set(self.layers)):
            where = f"student.layers is {_listed(self.layers)}"
            yield error(where, "", "write each block once, ascending")
        if self.start_from is not None and self.init in OF_TEACHER:
            yield error(
                f"student.start_from is {self.start_from!r}",
                f" and student.init is {self.init!r}, which is stored beside the teacher's weights",
                "use init: teacher, layers or config",
            )
        if self.layers == ():
            yield error("student.layers is empty", "", "keep at least one block")
        if self.dropped != "discard" and self.layers is None and self.num_layers is None:
            yield error(
                f"student.dropped is {self.dropped!r}",
                " but has no effect",
                "set layers or num_layers, which drop a transformer's blocks, or remove dropped",
            )
        of_unet = self.unet is not None and self.unet.transformer_layers_per_block is not None
        if self.layers_rule != "even" and self.num_layers is None and not of_unet:
            yield error(
                f"student.layers_rule is {self.layers_rule!r}",
                " but has no effect",
                "set num_layers or unet.transformer_layers_per_block, or remove layers_rule",
            )

    def _on_keys(self) -> Iterator[Note]:
        """An error unless exactly what this init needs is there."""
        wanted = KEYS_OF[self.init]
        keys = [key for allowed in KEYS_OF.values() for key in allowed]
        present = [key for key in keys if getattr(self, key) is not None]
        if set(present) <= set(wanted) and len(present) == bool(wanted):
            return
        values = " and ".join(
            f"student.{key} is {_shown(getattr(self, key))}" for key in present or wanted
        )
        cure = f"give {' or '.join(wanted)}" if wanted else "remove it, or choose another init"
        yield error(f"student.init is {self.init!r}", f" and {values}", cure)


def divisors(number: int) -> tuple[int, ...]:
    """All of them, ascending."""
    return tuple(each for each in range(1, number + 1) if number % each == 0)


def _shown(value: object) -> str:
    """A value for a message, as YAML writes it; a section is only called given."""
    if value is None:
        return "null"
    return "given" if isinstance(value, Section) else str(_listed(value))


def _listed(value: object) -> object:
    """Tuples as the lists that a user wrote."""
    return [_listed(item) for item in value] if isinstance(value, tuple) else value
