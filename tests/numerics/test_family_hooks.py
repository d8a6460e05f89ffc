"""What an adapter says of its family against the stock classes: sizes, blocks, arguments, calls."""

import inspect
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from diffusers import AutoencoderKL

from distillery.config.parsing import parse
from distillery.config.teacher import Teacher
from distillery.families import Family, Request, Setting, Size, family_named
from distillery.families.protocol import Denoiser
from distillery.student.layers import blocks_of
from distillery.teacher.loading import denoisers_of
from families import CASES
from families.case import FamilyCase
from families.made import made_teacher
from runs import loaded

MULTIPLES = {
    "wan": 8 * 2,
    "sdxl": 8,
    "sd": 8,
    "pixart": 8 * 2,
    "sana": 32,
    "sd3": 8 * 2,
    "flux": 8 * 2,
    "qwen_image": 4 * 2,
}
"""Pixels: the side of a latent times the patch of a transformer; of
Sana what its stock call asks for, since the tiny VAE's latents are finer."""
WIDTHS = (
    "in_channels",
    "out_channels",
    "text_dim",
    "caption_channels",
    "joint_attention_dim",
    "pooled_projection_dim",
    "guidance_embeds",
    "addition_time_embed_dim",
    "projection_class_embeddings_input_dim",
)
"""Names that networks have for the sizes of what goes in and comes out."""
STEPS = 2


@dataclass
class Subject:
    """A case's stock pipeline; a VAE of its own depth tells `factor * patch` from their sum."""

    case: FamilyCase
    pipeline: Any

    @property
    def family(self) -> Family:
        return family_named(self.case.family)

    @property
    def denoiser(self) -> Denoiser:
        found = getattr(self.pipeline, self.family.denoisers[0])
        assert isinstance(found, torch.nn.Module)
        return found

    @property
    def parameters(self) -> Any:
        """Of the stock call."""
        return inspect.signature(type(self.pipeline).__call__).parameters

    @property
    def size(self) -> dict[str, int]:
        """Of an image; not square."""
        multiple = MULTIPLES[self.case.family]
        return {"height": 3 * multiple, "width": 2 * multiple}

    def generate(self, guidance_scale: float) -> None:
        """One sample through the family's own call."""
        family = self.family
        prompt = family.encode(self.pipeline, ["a red dog"], self.case.length)
        negative = family.encode_negative(self.pipeline, None, self.case.length)
        family.generate(
            self.pipeline,
            Request(
                seeds=[5],
                conditioning=family.pad(prompt, self.case.length),
                negative=family.pad([negative], self.case.length),
                steps=STEPS,
                setting=Setting(Size(**self.size), guidance_scale),
                decode=False,
                dtype=torch.float32,
            ),
        )


@pytest.fixture(scope="module", params=CASES, ids=lambda case: case.name)
def subject(request: Any, tmp_path_factory: pytest.TempPathFactory) -> Subject:
    case: FamilyCase = request.param
    folder = made_teacher(tmp_path_factory, case)
    fields = {"path": str(folder), "dtype": "float32", "height": case.height, "width": case.width}
    pipeline = loaded(parse(Teacher, fields | dict(case.teacher), "test"))
    if isinstance(pipeline.vae, AutoencoderKL):
        kept = {name: it for name, it in pipeline.components.items() if name != "vae"}
        if "safety_checker" in kept:
            kept["requires_safety_checker"] = False
        pipeline = type(pipeline)(**kept, vae=deeper(pipeline.vae))
        pipeline.set_progress_bar_config(disable=True)
    return Subject(case, pipeline)


def deeper(vae: AutoencoderKL) -> AutoencoderKL:
    """A VAE of four levels, an eighth of an image's side, with the latents of another."""
    changes = {
        "block_out_channels": (8, 16, 16, 16),
        "down_block_types": ("DownEncoderBlock2D",) * 4,
        "up_block_types": ("UpDecoderBlock2D",) * 4,
    }
    made = AutoencoderKL.from_config({**vae.config, **changes})
    assert isinstance(made, AutoencoderKL)
    return made


@contextmanager
def calls_of(subject: Subject) -> Iterator[list[dict[str, Any]]]:
    """The arguments of all calls of the networks meanwhile, by name."""
    calls: list[dict[str, Any]] = []

    def note(module: Any, args: Any, kwargs: Any) -> None:
        bound = inspect.signature(type(module).forward).bind(module, *args, **kwargs).arguments
        calls.append({name: value for name, value in bound.items() if name != "self"})

    networks = denoisers_of(subject.pipeline, subject.family).values()
    hooks = [it.register_forward_pre_hook(note, with_kwargs=True) for it in networks]
    try:
        yield calls
    finally:
        for hook in hooks:
            hook.remove()


def test_a_size_fits_by_its_exact_multiple(subject: Subject) -> None:
    """And then the latents have the shape that the stock call makes."""
    multiple, family = MULTIPLES[subject.case.family], subject.family
    base = subject.size
    for name in base:
        fits = base | {name: base[name] + multiple}
        shape = family.latent_shape(subject.pipeline, Size(**fits))
        assert stock_latents(subject, fits).shape == (1, *shape)
        noise = family.noise(subject.pipeline, [5], Setting(Size(**fits), 1.0))
        assert noise.shape == (1, *shape)
        for off in {1, multiple // 2, multiple - 1}:
            nearest = f"multiple of {multiple}; use"
            with pytest.raises(ValueError, match=rf"teacher\.{name} is \d+.*{nearest}"):
                family.latent_shape(subject.pipeline, Size(**(base | {name: base[name] + off})))


def test_frames_fit_by_their_exact_multiple(subject: Subject) -> None:
    """One and so many more; a family of images has the argument nowhere."""
    family, size = subject.family, subject.size
    assert (family.clip is not None) == ("num_frames" in subject.parameters)
    if family.clip is None:
        assert family.frames(Size(**size)) == {}
        return
    multiple = subject.pipeline.vae_scale_factor_temporal
    for times in (0, 1, 2):
        fits = size | {"num_frames": 1 + times * multiple}
        shape = family.latent_shape(subject.pipeline, Size(**fits))
        assert stock_latents(subject, fits).shape == (1, *shape)
    for off in (1, multiple - 1):
        nearest = 1 + multiple * (1 if off == 1 else 2)
        wrong = size | {"num_frames": 1 + multiple + off}
        with pytest.raises(ValueError, match=rf"teacher\.num_frames is \d+.*use {nearest}$"):
            family.latent_shape(subject.pipeline, Size(**wrong))


def stock_latents(subject: Subject, size: dict[str, int]) -> torch.Tensor:
    """What the stock call makes of a text at a size."""
    found = subject.pipeline(
        "a red dog",
        **{**subject.family.frames(Size(**size)), **size},
        num_inference_steps=STEPS,
        output_type="latent",
        **subject.family.call_options(subject.case.length),
    )[0]
    assert isinstance(found, torch.Tensor)
    return found


@pytest.mark.parametrize("scale", [1.0, 1.5, 3.0])
def test_the_calls_of_a_step_are_those_that_the_pipeline_makes(
    subject: Subject, scale: float
) -> None:
    with calls_of(subject) as calls:
        subject.generate(scale)
    rows = sum(len(next(iter(call.values()))) for call in calls)
    assert rows == STEPS * subject.family.calls_per_step(subject.denoiser.config, scale)  # type: ignore[arg-type]


def test_blocks_are_the_networks_own_lists(subject: Subject) -> None:
    """Those of the classes that Diffusers calls repeated, in the order they run."""
    network = subject.denoiser
    kinds = getattr(network, "_repeated_blocks", None) or getattr(network, "_no_split_modules", ())
    lists = {
        name: module
        for name, module in network.named_children()
        if isinstance(module, torch.nn.ModuleList) and type(module[0]).__name__ in kinds
    }
    assert list(blocks_of(network)) == list(lists)
    ran: list[str] = []
    hooks = [
        block.register_forward_pre_hook(lambda *_, at=name: ran.append(at))
        for name, row in lists.items()
        for block in row
    ]
    subject.generate(1.0)
    for hook in hooks:
        hook.remove()
    once = [name for name, row in lists.items() for _ in row]
    assert ran[: len(once)] == once


def test_arguments_are_those_of_the_stock_call(subject: Subject) -> None:
    family, parameters = subject.family, subject.parameters
    assert family.guidance_argument in parameters
    options = family.call_options(family.max_sequence_length)
    assert set(options) <= set(parameters)
    if "max_sequence_length" in parameters:
        assert options["max_sequence_length"] == parameters["max_sequence_length"].default
        assert family.call_options(33)["max_sequence_length"] == 33
    else:  # what CLIP reads, of every released one
        assert family.max_sequence_length == 77


def test_without_guidance_the_stock_call_warns_of_nothing(
    subject: Subject, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As Qwen-Image's does where it is given a negative prompt that it will not use."""
    told: list[str] = []
    module: Any = sys.modules[type(subject.pipeline).__module__]
    monkeypatch.setattr(module.logger, "warning", lambda text, *_: told.append(text))
    subject.generate(1.0)
    assert told == []


def test_nothing_rewrites_the_prompt_or_the_size(subject: Subject) -> None:
    """Whatever the stock pipeline's own defaults are, and whether bs4 is installed or not."""
    options = subject.family.call_options(subject.case.length)
    for name in {"clean_caption", "use_resolution_binning"} & set(subject.parameters):
        assert options[name] is False
    given: list[object] = []
    watched = ("encode_prompt", "_text_preprocessing")
    has = [name for name in watched if takes_caption_cleaning(subject.pipeline, name)]
    for name in has:
        setattr(subject.pipeline, name, noting(getattr(subject.pipeline, name), given))
    try:
        subject.generate(3.0)
        for reader in subject.family.readers(subject.pipeline, subject.case.length):
            reader.clean("a red dog")
    finally:
        for name in has:
            delattr(subject.pipeline, name)
    assert bool(given) == ("clean_caption" in subject.parameters)
    assert not any(given)


def takes_caption_cleaning(pipeline: Any, name: str) -> bool:
    """Whether a pipeline has such a method, and it can rewrite a prompt."""
    method = getattr(pipeline, name, None)
    return method is not None and "clean_caption" in inspect.signature(method).parameters


def noting(method: Any, given: list[object]) -> Any:
    """The method, which also notes what it is told of caption cleaning."""
    signature = inspect.signature(method)

    def call(*args: Any, **kwargs: Any) -> Any:
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        given.append(bound.arguments["clean_caption"])
        return method(*args, **kwargs)

    return call


def test_the_interface_holds_every_size_of_what_goes_in_and_out(subject: Subject) -> None:
    """A network of another such size does not take the teacher's inputs, or answers otherwise."""
    network, interface = subject.denoiser, subject.family.interface
    config = network.config
    assert set(interface) <= set(config), "no key that the network does not have"  # type: ignore[call-overload]
    with calls_of(subject) as calls:
        subject.generate(1.0)
    names = [*WIDTHS, *(() if "caption_channels" in config else ("cross_attention_dim",))]  # type: ignore[operator]
    for name in names:
        if config.get(name) is None:  # type: ignore[union-attr]
            continue
        if not survives(network, name, calls[0]):
            assert name in interface


def survives(network: Any, name: str, arguments: dict[str, Any]) -> bool:
    """Whether a network with another value of one key takes and gives what this one does."""
    value = network.config[name]
    other = not value if isinstance(value, bool) else 2 * value
    with torch.no_grad():
        expected = network(**arguments)[0]
        try:
            changed = type(network).from_config({**network.config, name: other})
            return bool(changed(**arguments)[0].shape == expected.shape)
        except (RuntimeError, TypeError, ValueError):
            return False
