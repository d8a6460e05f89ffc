"""Networks whose weights are in a file of their own, in whichever layout other tools write.

Diffusers converts such a file while it reads it, and takes the network's configuration from a
folder. The plan has the file's header converted in the same way, so that a file of another model is
told before anything is loaded.
"""

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeVar

import torch
from safetensors.torch import load_file

from distillery.config.teacher import Teacher
from distillery.files import MAX_THREADS, read_json
from distillery.hub import download_file, explain_hub
from distillery.notes import Note, error
from distillery.teacher.components import INDEX, unusable
from distillery.teacher.unread import named
from distillery.teacher.weights import CONFIG, INTEGERS, SUFFIX, Tensor, read_header

Content = TypeVar("Content")
ON_HUB = re.compile(r"(?P<repository>[^/\s]+/[^/\s]+)/(?P<file>[^\s]+)")
DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "BF16": torch.bfloat16,
    "F16": torch.float16,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
    "I64": torch.int64,
    "I32": torch.int32,
    "U8": torch.uint8,
    "I8": torch.int8,
}
NAMES = {dtype: name for name, dtype in DTYPES.items()}
PACKED = re.compile(
    r"(scale_weight|scale_input|weight_scale(_\d)?|input_scale|scaled_fp8|comfy_quant|absmax|"
    r"qweight|quant_map|quant_state\..*|smooth_factor)$"
)
"""Ends of names of tensors that belong to quantised weights. Diffusers reads such a file as if the
numbers beside them were the weights."""
GGUF = ".gguf"
SHAPE = "comfy.gguf.orig_shape."
"""Of a tensor: the beginning of a key of a GGUF file."""
TEXT = ("CLIPTextModel", "CLIPTextModelWithProjection", "T5EncoderModel")
"""Classes of text encoders that Diffusers reads from the file of a whole pipeline."""
VAE = ("first_stage_model.", "vae.")
"""Beginnings of the VAE's tensors in the file of a whole pipeline."""
T5 = ("text_encoders.t5xxl.transformer.",)
CLIP = (
    (
        "cond_stage_model.transformer.",
        "cond_stage_model.model.",
        "conditioner.embedders.0.transformer.",
        "conditioner.embedders.0.model.",
        "text_encoders.clip_l.transformer.",
    ),
    ("conditioner.embedders.1.model.", "text_encoders.clip_g.transformer."),
)
"""The same of the T5 encoder, and of the first and the second CLIP text encoder."""
NEAR = 0.9
"""Share of a network's tensors from which on a file that has them is no other model's."""
DAMAGED = (
    "almost all others fit, so it is damaged or cut, or of a variant of this model: get it again"
)
DOUBTFUL = "it is damaged or cut, get it again, or of another model"
INCOMPLETE = "it is cut or incomplete, get it again, or of a larger model"
IDLE = ("position_ids", "logit_scale")
"""Ends of a text encoder's tensors that no network has, and that files without one may hold."""


def find_files(
    teacher: Teacher, path: Path, index: Mapping[str, Any], denoisers: Sequence[str]
) -> dict[str, Path]:
    """The files that `teacher.weights` names, by component.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: it holds no weights that Diffusers reads, or none of such a component.
    """
    if teacher.weights is None:
        return {}
    if isinstance(teacher.weights, str):
        file = _find(teacher.weights)
        files = dict.fromkeys(_components_in(file, index, denoisers), file)
    else:
        files = {name: _find(file) for name, file in teacher.weights.items()}
    models = {name: _model_of(index[name]) for name in index}
    networks = [name for name, model in models.items() if model is not None]
    for name, file in files.items():
        if name not in networks:
            raise ValueError(
                f"teacher.weights names {name!r}: the networks of {path} are {', '.join(networks)}"
            )
        if not (hasattr(models[name], "from_single_file") or models[name].__name__ in TEXT):
            raise ValueError(
                f"teacher.weights: {file} is for {name}, and Diffusers reads no single file for a "
                f"{models[name].__name__}: convert it into a folder"
            )
    return files


def _find(named_file: str) -> Path:
    """A file, downloaded where it is one of a hub repository."""
    file, setting = Path(named_file), f"teacher.weights: {named_file!r}"
    if file.suffix.lower() not in (SUFFIX, GGUF):
        raise ValueError(
            f"{setting} is no safetensors file and no GGUF file; others may run code when they are "
            "loaded and are not read: convert it"
        )
    if file.suffix.lower() == GGUF and find_spec("gguf") is None:
        raise ValueError(f"{setting}: the package that reads it is missing: pip install gguf")
    on_hub = ON_HUB.fullmatch(named_file)
    if file.is_file():
        return file
    if on_hub is None or Path(on_hub["repository"]).exists():
        raise FileNotFoundError(f"{setting}: there is no such file")
    try:
        return download_file(on_hub["repository"], on_hub["file"])
    except (OSError, ValueError) as problem:
        raise FileNotFoundError(
            f"{setting}: there is no such file, and it could not be had from the hub: "
            f"{explain_hub(on_hub['repository'], problem)}"
        ) from problem


def _components_in(file: Path, index: Mapping[str, Any], denoisers: Sequence[str]) -> Iterator[str]:
    """The components that a file holds: a network, or that of a whole pipeline and more."""
    if len(denoisers) > 1:
        raise ValueError(
            f"teacher.weights is {str(file)!r}, and the teacher has the networks "
            f"{', '.join(denoisers)}: write {{{denoisers[0]}: file}}"
        )
    header = _header(file)
    yield denoisers[0]
    if any(name.startswith(VAE) for name in header):
        yield "vae"
    # Of an encoder that is there in part too, so that the plan names what is missing of it.
    for name in index:
        if _of_encoder(header, _beginnings(index, name)):
            yield name


def _model_of(entry: Any) -> Any:
    """The class of a network, by its entry in model_index.json; None for what is none."""
    import diffusers
    import transformers

    if not isinstance(entry, list) or len(entry) != 2 or not isinstance(entry[1], str):
        return None
    model = getattr(diffusers, entry[1], None) or getattr(transformers, entry[1], None)
    is_network = isinstance(model, type) and issubclass(model, torch.nn.Module)
    return model if is_network else None


def _beginnings(index: Mapping[str, Any], name: str) -> tuple[str, ...]:
    """Of a text encoder's tensors in the file of a whole pipeline; none of other components."""
    classes = {it: getattr(_model_of(entry), "__name__", "") for it, entry in index.items()}
    if classes[name] not in TEXT:
        return ()
    if classes[name].startswith("T5"):
        return T5
    place = sorted(it for it in classes if classes[it].startswith("CLIPText")).index(name)
    return CLIP[place] if place < len(CLIP) else ()


def _of_encoder(tensors: Mapping[str, Content], beginnings: tuple[str, ...]) -> dict[str, Content]:
    """The tensors of one text encoder, among those of a whole pipeline."""
    return {
        name: value
        for name, value in tensors.items()
        if name.startswith(beginnings) and not name.endswith(IDLE)
    }


def _check_recognised(tensors: Mapping[str, torch.Tensor]) -> None:
    """Raise KeyError for the tensor by which Diffusers knows a CLIP text encoder's layout, where it
    alone is missing."""
    from diffusers.loaders import single_file_utils as utils

    signs = [key for kind, key in utils.CHECKPOINT_KEY_NAMES.items() if "clip" in kind]
    for beginning in (it for place in CLIP for it in place):
        (sign,) = (key for key in signs if key.startswith(beginning))
        if sign not in tensors and any(name.startswith(beginning) for name in tensors):
            raise KeyError(sign)


def tensors_in(file: Path, entry: Sequence[str], component: Path) -> dict[str, Tensor]:
    """The tensors that a file has for a network, by the names that its library gives them.

    Args:
        entry: of the network in model_index.json.
        component: folder with its config.json.

    Raises ValueError for a damaged file, and for one that is of another model.
    """
    header = _header(file)
    packed = [
        name
        for name, one in header.items()
        if PACKED.search(name)
        or one.dtype not in DTYPES
        or (one.dtype in INTEGERS and name.endswith(".weight"))
    ]
    if packed:
        raise ValueError(
            f"teacher.weights: {file} holds quantised weights ({named(packed)}) in a form that "
            "Diffusers does not read from a single file: use the file in bfloat16 or float16"
        )
    model = _model_of(entry)
    try:
        if hasattr(model, "from_single_file"):
            converted = _convert(_empty(header, "meta"), model, component)
        else:
            with torch.device("cpu"):
                loaded = _load(_empty(header, "cpu"), model, component).named_parameters()
            converted = {name: value for name, value in loaded if not value.is_meta}
    except KeyError as problem:
        cause = f": it lacks {problem.args[0]}"
        cure = f"{DOUBTFUL}; then {_base_of(file)}"
        raise ValueError(str(error(_misfit(file, component), cause, cure))) from problem
    except Exception as problem:  # of any class, and seldom with a name in it
        said = f"{type(problem).__name__}: {' '.join(str(problem).split())[:200]}"
        cure = f"{DOUBTFUL}; then {_base_of(file)}"
        raise ValueError(f"{_misfit(file, component)} ({said}); {cure}") from problem
    return {
        name: Tensor(tuple(value.shape), NAMES[value.dtype]) for name, value in converted.items()
    }


def _header(file: Path) -> dict[str, Tensor]:
    """The tensors of a file by their names in it; raises ValueError for a damaged file."""
    if file.suffix.lower() != GGUF:
        return dict(read_header(file))
    with unusable(file):
        return {name: Tensor(shape, "F32") for name, (shape, _) in _packed_in(file).items()}


def _packed_in(file: Path) -> dict[str, tuple[tuple[int, ...], Any]]:
    """The tensors of a GGUF file, each with its shape before it was packed."""
    from gguf import GGUFReader

    reader = GGUFReader(file)
    # Of a shape that GGUF does not have, such as a convolution's, a note has the original.
    own = {
        name.removeprefix(SHAPE): tuple(map(int, field.contents()))
        for name, field in reader.fields.items()
        if name.startswith(SHAPE)
    }
    return {
        one.name: (own.get(one.name, tuple(int(size) for size in reversed(one.shape))), one)
        for one in reader.tensors
    }


def _unpack(file: Path, dtype: torch.dtype) -> dict[str, torch.Tensor]:
    """The tensors of a GGUF file as numbers, packed ones in `dtype`; takes a core's second for some
    50 million of them."""
    from gguf import GGMLQuantizationType, dequantize

    plain = (GGMLQuantizationType.F32, GGMLQuantizationType.F16)

    def unpack(item: tuple[str, tuple[tuple[int, ...], Any]]) -> tuple[str, torch.Tensor]:
        name, (shape, one) = item
        if one.tensor_type in plain:
            return name, torch.from_numpy(one.data.copy()).reshape(shape)
        numbers = torch.from_numpy(dequantize(one.data, one.tensor_type))
        return name, numbers.reshape(shape).to(dtype)

    with ThreadPoolExecutor(min(MAX_THREADS, os.cpu_count() or 1)) as threads:
        return dict(threads.map(unpack, _packed_in(file).items()))


def _empty(header: Mapping[str, Tensor], device: str) -> dict[str, torch.Tensor]:
    """Tensors as a file's header tells them: on the CPU, where the meta device does not serve, each
    a view of one number."""
    return {
        name: torch.zeros((), dtype=DTYPES[one.dtype], device=device).expand(one.shape)
        for name, one in header.items()
    }


def _convert(
    tensors: dict[str, torch.Tensor], model: Any, component: Path
) -> Mapping[str, torch.Tensor]:
    """Tensors by Diffusers' names, as its `from_single_file` gives them to the network."""
    from diffusers.loaders import single_file_model as loader

    config = model.load_config(component)
    with torch.device("meta"):
        own = model.from_config(config).state_dict()
    # Diffusers converts also a file in its own layout of which a tensor is missing.
    if own.keys() >= tensors.keys():
        return tensors
    if not loader._should_convert_state_dict_to_diffusers(own, tensors):
        return tensors
    known = loader.SINGLE_FILE_LOADABLE_CLASSES
    convert = known[loader._get_single_file_loadable_mapping_class(model)]["checkpoint_mapping_fn"]
    converted: Mapping[str, torch.Tensor] = convert(config=config, checkpoint=tensors)
    return converted


def _load(tensors: dict[str, torch.Tensor], model: Any, component: Path) -> torch.nn.Module:
    """A network with the tensors of a single file, in their types; Diffusers' loader uses them
    up."""
    from diffusers.loaders import single_file_utils as utils

    of_folder = {"config": str(component.parent), "subfolder": component.name}
    load = utils.create_diffusers_clip_model_from_ldm
    if hasattr(model, "from_single_file"):
        network = model.from_single_file(tensors, **of_folder, local_files_only=True)
    else:
        index = read_json(component.parent / INDEX)
        tensors = _of_encoder(tensors, _beginnings(index, component.name))
        if model.__name__.startswith("T5"):
            load = utils.create_diffusers_t5_model_from_checkpoint
        else:
            _check_recognised(tensors)
        network = load(model, tensors, **of_folder, local_files_only=True)
        network.tie_weights()
    assert isinstance(network, torch.nn.Module)
    return network


def read_network(
    file: Path, entry: Sequence[str], component: Path, dtype: torch.dtype
) -> torch.nn.Module:
    """A network with the weights of a file, on the CPU, in evaluation mode and in the types in
    which its library would have loaded it from a folder; arguments as of `tensors_in`."""
    with unusable(file):
        tensors = _unpack(file, dtype) if file.suffix.lower() == GGUF else load_file(file)
        network = _load(tensors, _model_of(entry), component)
    kept = set(getattr(network, "_keep_in_fp32_modules", None) or ())
    if not hasattr(network, "from_single_file") and dtype != torch.float16:
        kept = set()  # Transformers keeps them from float16 alone
    for name, tensor in network.state_dict(keep_vars=True).items():
        if tensor.is_floating_point():
            is_kept = bool(kept & set(name.split(".")))
            tensor.data = tensor.data.to(torch.float32 if is_kept else dtype)
    vars(network).pop("hf_device_map", None)  # a network from a folder has none
    return network.eval()


def on_file(
    file: Path, component: Path, network: torch.nn.Module, tensors: Mapping[str, Tensor]
) -> Iterator[Note]:
    """A file of another network than a folder describes; the network is on the meta device.

    Args:
        tensors: what `tensors_in` gives for it.
    """
    own = network.state_dict()
    shapes = {name: tuple(value.shape) for name, value in own.items() if name in tensors}
    other = [name for name, shape in shapes.items() if tensors[name].shape != shape]
    lacking = [name for name, _ in network.named_parameters() if name not in tensors]
    unknown = [name for name in tensors if name not in own]
    is_near = len(lacking) + len(other) + len(unknown) <= (1 - NEAR) * len(own)
    cure = DAMAGED if is_near else _base_of(file)
    if lacking and not (is_near or other or unknown):
        cure = f"{INCOMPLETE}; then {_base_of(file)}"
    for names, what in (
        (lacking, "lacks {} of its tensors"),
        (other, "has {} of its tensors in another shape"),
        (unknown, "has {} tensors that it does not"),
    ):
        if names:
            cause = f": it {what.format(len(names))}, such as {named(names)}"
            yield error(_misfit(file, component), cause, cure)
            return


def _misfit(file: Path, component: Path) -> str:
    return f"teacher.weights: {file} does not fit the network that {component / CONFIG} describes"


def _base_of(file: Path) -> str:
    """What to do with a file of another model."""
    base = guess_base(file)
    known = f"its base is {base}, by its tensors: " if base else ""
    return f"{known}give the folder of its own base model as teacher.path (docs/teachers.md)"


def guess_base(file: Path) -> str | None:
    """The hub's id of the released model that a single file is made of, by its tensors."""
    from diffusers.loaders import single_file_utils as utils

    if file.suffix.lower() not in (SUFFIX, GGUF) or not file.is_file():
        return None
    try:
        header = _header(file)
    except ValueError:
        return None
    try:
        kind = utils.infer_diffusers_model_type(header)
    except Exception:  # it looks into shapes that only released models have
        return None
    if kind == "v1" and utils.CHECKPOINT_KEY_NAMES["clip"] not in header:
        return None  # what Diffusers takes for anything unknown
    base: str = utils.DIFFUSERS_DEFAULT_PIPELINE_PATHS[kind]["pretrained_model_name_or_path"]
    return base
