"""A teacher with the released shapes of SDXL and no weights: sparse files of the right length.

The plan reads shapes, sizes and hashes, never a weight, so it plans the released model with it.
"""

import json
import struct
from pathlib import Path

import diffusers
import torch
from end_to_end import CLIP_BIG_G, CLIP_L
from models import SDXL
from transformers import CLIPTextModel, CLIPTextModelWithProjection

from families.clip import tiny_clip_tokenizer

VARIANT = "fp16"


def make_sparse_sdxl(folder: Path) -> None:
    """Write the pipeline's folder, weights of the variant `fp16` included, as holes."""
    tokenizer = tiny_clip_tokenizer()
    tokenizer.model_max_length = 77
    with torch.device("meta"):
        parts = {
            "text_encoder": CLIPTextModel(CLIP_L),
            "text_encoder_2": CLIPTextModelWithProjection(CLIP_BIG_G),
            "vae": diffusers.AutoencoderKL(**SDXL.vae[1]),
            "unet": diffusers.UNet2DConditionModel(**SDXL.denoiser[2]),
        }
    scheduler = getattr(diffusers, SDXL.scheduler[0])(**SDXL.scheduler[1])
    pipeline = diffusers.StableDiffusionXLPipeline(
        **parts,
        tokenizer=tokenizer,
        tokenizer_2=tokenizer,
        scheduler=scheduler,
        add_watermarker=False,
    )
    pipeline.save_config(folder)
    for name in ("tokenizer", "tokenizer_2", "scheduler"):
        getattr(pipeline, name).save_pretrained(folder / name)
    for name, part in parts.items():
        is_text = name.startswith("text")
        (part.config.save_pretrained if is_text else part.save_config)(folder / name)
        stem = "model" if is_text else "diffusion_pytorch_model"
        write_holes(folder / name / f"{stem}.{VARIANT}.safetensors", part)


def write_holes(path: Path, part: torch.nn.Module) -> None:
    """Write a safetensors file of a module's shapes in float16, whose numbers take no disk."""
    header, end = {}, 0
    for name, tensor in part.state_dict().items():
        begin, end = end, end + 2 * tensor.numel()
        header[name] = {
            "dtype": "F16",
            "shape": list(tensor.shape),
            "data_offsets": [begin, end],
        }
    text = json.dumps(header).encode()
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        file.truncate(8 + len(text) + end)
