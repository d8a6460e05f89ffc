"""The judge: a CLIP model that embeds images and prompts in one space.

Any CLIP in transformers format serves: the demo's small one, openai/clip-vit-large-patch14 and
PickScore, a CLIP that has learned which of two images people choose, are loaded by the same lines.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from pickle import UnpicklingError
from typing import TYPE_CHECKING

import numpy as np
import torch
from safetensors import SafetensorError

from distillery.files import could_be_hub_id, read_json
from distillery.hub import check_reachable, explain_hub, explain_missing
from distillery.importing import importing
from distillery.measures.intervals import FloatArray
from distillery.measures.vision import BATCH_SIZE, VisionModel, as_array, in_batches

if TYPE_CHECKING:
    from transformers import CLIPModel, CLIPProcessor

KEY = "evaluation.judge"
GIVE_A_JUDGE = (
    "give a folder with a CLIP model in transformers format, or a hub id such as "
    "openai/clip-vit-large-patch14"
)


@dataclass(frozen=True)
class Judge:
    """A CLIP model, its preprocessing, and where it runs."""

    model: "CLIPModel"
    processor: "CLIPProcessor"
    device: torch.device

    @property
    def max_tokens(self) -> int:
        """Text positions of the model; longer prompts are cut."""
        return int(self.model.config.text_config.max_position_embeddings)

    @property
    def scale(self) -> float:
        """What cosines are multiplied by in the model's own score of an image and a prompt."""
        return math.exp(self.model.logit_scale.item())

    @property
    def vision(self) -> VisionModel:
        """The half that embeds images."""
        return VisionModel(self.model, self.processor.image_processor, self.device)


def load_judge(judge: str, device: torch.device, key: str = KEY) -> Judge:
    """Load a judge in float32 from a folder or from the hub.

    Args:
        key: of the configuration that names it.

    Images are resized by PIL on every machine: transformers would choose torchvision where that
    is installed, whose pixels differ slightly.

    Raises:
        ValueError: there is no such folder, or it does not hold a CLIP model with its processor;
            or its weights are damaged, or a pickle that could run code.
    """
    with importing():
        from transformers import CLIPConfig, CLIPModel, CLIPProcessor

    _check_exists(judge, key)
    try:
        _check_is_clip(judge, CLIPConfig.get_config_dict(judge)[0], key)
        model = CLIPModel.from_pretrained(judge, dtype=torch.float32)
        processor = CLIPProcessor.from_pretrained(judge, backend="pil")
    except UnpicklingError as error:
        raise ValueError(
            f"{key} is {judge!r}: its weights are a pickle of more than tensors, which "
            "could run code and is not loaded; use a model with safetensors"
        ) from error
    except (OSError, SafetensorError, LookupError, RuntimeError) as error:
        raise ValueError(
            f"{key} is {judge!r}, which cannot be loaded as a CLIP model with its "
            f"processor: {explain_hub(judge, error)}"
        ) from error
    return Judge(model.eval().to(device), processor, device)


def check_judge(judge: str, key: str = KEY) -> int:
    """The number of features of a judge, found without its weights.

    Of one on the hub only config.json is fetched.

    Raises:
        ValueError: there is no such folder or repository, or what it holds is no CLIP model.
    """
    from transformers import CLIPConfig

    _check_exists(judge, key)
    if Path(judge).is_dir():
        path = Path(judge) / "config.json"
        config = read_json(path) if path.is_file() else {}
    else:
        setting = f"{key} is {judge!r}"
        check_reachable(setting, judge)
        try:
            config = CLIPConfig.get_config_dict(judge)[0]
        except OSError as error:
            raise ValueError(explain_missing(setting, judge, error)) from error
    _check_is_clip(judge, config, key)
    return int(CLIPConfig.from_dict(config).projection_dim)


def _check_exists(judge: str, key: str) -> None:
    """Say plainly that a folder is missing; the hub's own message would speak of repository ids."""
    if not Path(judge).is_dir() and not could_be_hub_id(judge):
        raise ValueError(f"{key} is {judge!r}: there is no such folder; {GIVE_A_JUDGE}")


def _check_is_clip(judge: str, config: Mapping[str, object], key: str) -> None:
    """Raise ValueError for another model, by its config.json.

    Transformers only warns of it, and scores with random weights in place of those that it lacks.
    """
    model_type = config.get("model_type")
    if model_type != "clip":
        what = (
            "a model of the type " + repr(model_type)
            if model_type
            else "no model in transformers format"
        )
        raise ValueError(f"{key} is {judge!r}, which is {what}; {GIVE_A_JUDGE}")


@torch.inference_mode()
def embed_prompts(judge: Judge, prompts: Sequence[str]) -> FloatArray:
    """Text embeddings, not normalised, shape (p, d); prompts beyond `max_tokens` are cut."""
    parts = []
    for batch in in_batches(prompts, BATCH_SIZE):
        inputs = judge.processor(
            text=batch,
            padding=True,
            truncation=True,
            max_length=judge.max_tokens,
            return_tensors="pt",
        ).to(judge.device)
        output = judge.model.get_text_features(**inputs)
        parts.append(as_array(getattr(output, "pooler_output", output)))
    return np.concatenate(parts)


@dataclass(frozen=True)
class Readings:
    """How a judge reads prompts: it may lower-case, and cuts what is too long.

    Attributes:
        distinct: of prompts that it reads alike, by their tokens, the first.
        row_of: each prompt's row in `distinct`.
        num_cut: prompts that are longer than it reads.
    """

    distinct: list[str]
    row_of: dict[str, int]
    num_cut: int


def read_prompts(judge: Judge, prompts: Iterable[str]) -> Readings:
    """Find the prompts that a judge cannot tell apart: no image finds its own among them."""
    tokenizer, length = judge.processor.tokenizer, judge.max_tokens
    texts = list(dict.fromkeys(prompts))
    read = [tuple(tokenizer(text, truncation=True, max_length=length).input_ids) for text in texts]
    first: dict[tuple[int, ...], str] = {}
    for text, tokens in zip(texts, read, strict=True):
        first.setdefault(tokens, text)
    rows = {tokens: row for row, tokens in enumerate(first)}
    return Readings(
        distinct=list(first.values()),
        row_of={text: rows[tokens] for text, tokens in zip(texts, read, strict=True)},
        num_cut=sum(len(tokenizer(text).input_ids) > length for text in texts),
    )
