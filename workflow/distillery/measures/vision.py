"""Vision models: features of images, from any model of transformers that gives one row an image.

CLIP and SigLIP have projected image features; DINOv2 and others a pooled output, which of DINOv2 is
the normalised class token.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from pickle import UnpicklingError
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import torch
from PIL import Image
from safetensors import SafetensorError

from distillery.files import could_be_hub_id
from distillery.hub import check_reachable, explain_hub
from distillery.measures.intervals import FloatArray

if TYPE_CHECKING:
    from transformers import BaseImageProcessor, PreTrainedModel

Item = TypeVar("Item")
BATCH_SIZE = 64
WEIGHTS = ("*.safetensors", "*.bin")
NOT_LOADED = (OSError, SafetensorError, LookupError, RuntimeError, ValueError, ImportError)
"""What transformers raises for a folder that it cannot load, of many kinds."""


@dataclass(frozen=True)
class VisionModel:
    """A network, its preprocessing, and where it runs."""

    model: "PreTrainedModel"
    processor: "BaseImageProcessor"
    device: torch.device


def load_vision_model(setting: str, path: str, device: torch.device) -> VisionModel:
    """Load a vision model in float32 from a folder or from the hub; PIL resizes its images.

    Args:
        setting: the key that names it, for messages.

    Raises:
        ValueError: there is no such folder, or it holds no vision model with its image processor;
            or its weights are damaged, a pickle that could run code, or not all there.
    """
    from transformers import AutoModel  # heavy, and needed only here

    _check_exists(setting, path)
    try:
        processor = _load_processor(path)
        model, found = AutoModel.from_pretrained(
            path, dtype=torch.float32, trust_remote_code=False, output_loading_info=True
        )
    except UnpicklingError as error:
        raise ValueError(
            f"{setting} is {path!r}: its weights are a pickle of more than tensors, which could "
            "run code and is not loaded; use a model with safetensors"
        ) from error
    except NOT_LOADED as error:
        raise _not_loaded(setting, path, error) from error
    missing = sorted(found["missing_keys"])
    if missing:
        raise ValueError(
            f"{setting} is {path!r}, whose weights lack {len(missing)} tensors ({missing[0]}, …): "
            "they would be random numbers; use a whole model"
        )
    return VisionModel(model.eval().to(device), processor, device)


def check_vision_model(setting: str, path: str) -> int:
    """The number of features of a vision model, found without its weights.

    An empty image goes through the network on the meta device, so only config.json and the image
    processor's settings are read, or fetched from the hub.

    Raises:
        ValueError: there is no such folder, or it holds no vision model with its image processor,
            or one that gives no row of features for an image.
    """
    from transformers import AutoConfig, AutoModel

    _check_exists(setting, path)
    try:
        processor = _load_processor(path)
        config = AutoConfig.from_pretrained(path, trust_remote_code=False)
        with torch.device("meta"):
            model = AutoModel.from_config(config, trust_remote_code=False).eval()
    except NOT_LOADED as error:
        raise _not_loaded(setting, path, error) from error
    folder = Path(path)
    if folder.is_dir() and not any(any(folder.glob(pattern)) for pattern in WEIGHTS):
        raise ValueError(f"{setting} is {path!r}: the folder holds no weights (model.safetensors)")
    try:
        inputs = processor(images=[Image.new("RGB", (64, 64))], return_tensors="pt").to("meta")
        return int(image_features(model, inputs).shape[1])
    except (TypeError, AttributeError, LookupError, RuntimeError, ValueError) as error:
        raise ValueError(
            f"{setting} is {path!r}, a {type(model).__name__}, which gives no features of an image "
            "alone; use a vision model such as CLIP, SigLIP or DINOv2"
        ) from error


def _load_processor(path: str) -> "BaseImageProcessor":
    from transformers import AutoImageProcessor

    return AutoImageProcessor.from_pretrained(path, backend="pil", trust_remote_code=False)


def _check_exists(setting: str, path: str) -> None:
    """Raise ValueError that says plainly what is missing: a folder, or the way to the hub."""
    if not Path(path).is_dir() and not could_be_hub_id(path):
        raise ValueError(
            f"{setting} is {path!r}: there is no such folder; give a folder with a vision model in "
            "transformers format, or a hub id such as facebook/dinov2-base"
        )
    if not Path(path).is_dir():
        check_reachable(f"{setting} is {path!r}", path)


def _not_loaded(setting: str, path: str, error: Exception) -> ValueError:
    return ValueError(
        f"{setting} is {path!r}, which cannot be loaded as a vision model with its image "
        f"processor: {explain_hub(path, error)}"
    )


def image_features(model: "PreTrainedModel", inputs: Any) -> torch.Tensor:
    """One row of features for each image, shape (b, d), of what the processor gives.

    Raises:
        ValueError: the network gives another output.
        TypeError: it takes more than images.
    """
    project = getattr(model, "get_image_features", model)
    output = project(**inputs)
    features = getattr(output, "pooler_output", output)  # some versions give the tensor itself
    # ResNet's pooled output is (b, d, 1, 1).
    if not isinstance(features, torch.Tensor) or features.shape[2:].numel() != 1:
        raise ValueError("no row of features for each image")
    return features.flatten(1)


@torch.inference_mode()
def embed_images(vision: VisionModel, images: Iterable[Image.Image]) -> FloatArray:
    """Image features, not normalised, shape (b, d)."""
    parts = []
    for batch in in_batches(images, BATCH_SIZE):
        inputs = vision.processor(images=batch, return_tensors="pt").to(vision.device)
        parts.append(as_array(image_features(vision.model, inputs)))
    return np.concatenate(parts)


def as_array(features: torch.Tensor) -> FloatArray:
    """Features as numbers of double precision in the host's memory."""
    return np.asarray(features.double().cpu().numpy(), dtype=np.float64)


def in_batches(items: Iterable[Item], size: int) -> Iterator[list[Item]]:
    """Lists of up to `size` items, read one list at a time."""
    iterator = iter(items)
    while batch := list(islice(iterator, size)):
        yield batch
