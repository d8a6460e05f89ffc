"""A pipeline without its weights: what its networks take, and whether files and settings fit."""

from collections.abc import Iterable, Iterator
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import torch

from distillery.config.teacher import Teacher
from distillery.families.protocol import Denoiser, Pipeline
from distillery.files import read_json
from distillery.notes import Note, error, noting, refuse
from distillery.teacher.adapters import check_adapters
from distillery.teacher.components import INDEX, check_classes, library_of, unusable
from distillery.teacher.folder import PipelineFolder
from distillery.teacher.known import check_texts_present
from distillery.teacher.placement import check_attention
from distillery.teacher.single_file import on_file
from distillery.teacher.solver import load_scheduler
from distillery.teacher.unread import Read, on_read, read_by_diffusers, read_by_transformers
from distillery.teacher.weights import CONFIG, check_counts, check_fit, check_layers


def load_skeleton(folder: PipelineFolder) -> Pipeline:
    """The pipeline with its shapes but without weights: denoisers and VAE on the meta device.

    Callers share it, and change nothing in it: a large one takes seconds.

    Raises ValueError that names the component which cannot be made of its files.
    """
    files = sorted((folder.path / INDEX, *folder.path.glob("*/*.json")))
    return _load_skeleton(folder, tuple((path, path.stat().st_mtime_ns) for path in files))


@lru_cache(maxsize=1)
def _load_skeleton(folder: PipelineFolder, _dates: tuple[tuple[Path, int], ...]) -> Pipeline:
    components, settings = folder.pipeline_class._get_signature_keys(folder.pipeline_class)
    parts: dict[str, Any] = dict.fromkeys(components)
    # Diffusers ignores settings that its class does not know.
    parts |= {name: folder.index[name] for name in settings if name in folder.index}
    with unusable(folder.path / "scheduler"):
        parts["scheduler"] = load_scheduler(folder)
    for name in (*folder.family.denoisers, "vae"):
        if name in folder.components:
            parts[name] = skeleton_of(folder, name)
    with unusable(folder.path / INDEX):
        return folder.pipeline_class(**parts)


def skeleton_of(folder: PipelineFolder, name: str) -> torch.nn.Module:
    """A network of Diffusers, or a text encoder of Transformers, on the meta device."""
    path, tensors = folder.path / name, folder.tensors.get(name)
    with unusable(path / CONFIG), torch.device("meta"):
        check_counts(path / CONFIG, tensors)
        model = getattr(library_of(folder.index[name]), folder.components[name])
        skeleton: torch.nn.Module
        if hasattr(model, "load_config"):
            skeleton = model.from_config(model.load_config(path))
        else:
            skeleton = model(model.config_class.from_pretrained(path))
            skeleton.tie_weights()  # type: ignore[operator]
    return skeleton


def hollow(folder: PipelineFolder, name: str, dtype: torch.dtype) -> Denoiser:
    """A network with its configuration and empty weights, for calls that end before it."""
    network = skeleton_of(folder, name)
    for module in network.modules():
        held: tuple[dict[str, Any], ...] = (module._parameters, module._buffers)
        for tensors in held:
            for key, tensor in [*tensors.items()]:
                if tensor is not None:
                    own = dtype if tensor.is_floating_point() else tensor.dtype
                    empty = torch.empty(0, dtype=own)
                    is_weight = isinstance(tensor, torch.nn.Parameter)
                    tensors[key] = torch.nn.Parameter(empty, False) if is_weight else empty
    return network


def check_options(teacher: Teacher, folder: PipelineFolder) -> None:
    """Raise ValueError if adapters, attention or tiling do not fit the teacher; reads no weights of
    it."""
    if teacher.vae_tiling and not hasattr(skeleton_of(folder, "vae"), "use_tiling"):
        raise ValueError("teacher.vae_tiling is true: this VAE cannot decode in tiles; remove it")
    if not teacher.adapters and teacher.attention is None:
        return
    denoisers: dict[str, Denoiser] = {name: skeleton_of(folder, name) for name in folder.denoisers}
    notes: list[Note] = []
    with noting(notes):
        for denoiser in denoisers.values():
            if teacher.attention is not None:
                check_attention(denoiser, teacher.attention, teacher.dtype)
    with noting(notes):
        check_adapters(denoisers, partial(skeleton_of, folder), teacher, folder)
    refuse(notes)


def on_networks(folder: PipelineFolder) -> Iterator[Note]:
    """Weights that are not those of the network that config.json describes, and tensors that no
    network knows; reads headers alone. Raises ValueError for what no network can be made of."""
    family = folder.family
    check_texts_present(folder)
    needed = {*family.denoisers, "vae", "scheduler", *family.text_components}
    loaded = needed & folder.components.keys() - set(family.may_lack)
    check_classes(folder.path / INDEX, folder.index, folder.pipeline_class, loaded)
    there = needed & folder.components.keys()
    packed = list(on_packed(folder, there - folder.files.keys()))
    if packed:  # their tensors are not those of a network
        yield from packed
        return
    pipeline = load_skeleton(folder)
    networks = {name: getattr(pipeline, name) for name in (*folder.denoisers, "vae")}
    for name in networks.keys() - folder.files.keys():
        check_layers(folder.path / name, networks[name].state_dict(), folder.tensors[name])
    for name in folder.family.text_components:
        if "text_encoder" in name and name in folder.components:
            networks[name] = skeleton_of(folder, name)
    for name, network in networks.items():
        if name in folder.files:
            tensors = folder.tensors[name]
            yield from on_file(folder.files[name], folder.path / name, network, tensors)
        else:
            check_fit(folder.path / name, network, folder.tensors[name])
            yield from on_read(folder.path / name, _read(folder, name, network))


def on_packed(folder: PipelineFolder, components: Iterable[str]) -> Iterator[Note]:
    """Components of a folder that were saved with quantised weights."""
    for name in sorted(components):
        path = folder.path / name / CONFIG
        packing = read_json(path).get("quantization_config") if path.is_file() else None
        if packing:
            method = packing.get("quant_method", "no method named")
            yield error(
                f"{folder.path / name} holds quantised weights ({method})",
                ": the student starts from the teacher's numbers, and adapters change them",
                "use the model as it was released; teacher.quantization packs it where it runs",
            )


def _read(folder: PipelineFolder, name: str, network: torch.nn.Module) -> Read:
    """How the library of a component reads its weights."""
    tensors = folder.tensors[name]
    if name not in folder.family.text_components:
        return read_by_diffusers(network, tensors)
    return read_by_transformers(type(network), folder.path / name, tensors)
