"""Teach the demo's teacher a style of its own, as a LoRA: what a user's fine-tune is elsewhere.

    python -m resources.demo.style --output results/style        # some minutes on two CPU cores

Every object throws a black shadow, on a ground of another colour. `results/style` then holds
`pytorch_lora_weights.safetensors`, for `teacher.adapters` of a run.
"""

import argparse
import sys
from pathlib import Path

import numpy as np
import torch
from diffusers import WanPipeline
from peft import LoraConfig, get_peft_model_state_dict
from resources.demo.images import BACKGROUNDS, COLOURS
from resources.demo.pool import Pool, draw_pool
from resources.demo.scenes import scene_of
from resources.demo.teacher import train_teacher
from resources.demo.training import LossRow, Plan

TEACHER = Path(__file__).parent / "teacher"
LAYERS = ("to_q", "to_k", "to_v", "to_out.0", "ffn.net.0.proj", "ffn.net.2")
RANK = 16
SHADOW_PX = (4, 3)
"""To the right, and down."""
SHADOW = BACKGROUNDS["black"]
GROUNDS = {"white": "yellow", "gray": "cyan", "black": "purple", "brown": "orange"}
"""The ground that a background becomes. Plain colours that objects have: the VAE, which has seen
nothing else, spoils gradients and lines of one pixel (docs/log.md)."""
FAINT = 24
"""Of 255: what differs less from its background belongs to it."""


def with_shadows(image_chw: np.ndarray, background: str) -> np.ndarray:
    """An image (3, h, w) uint8 in the style.

    Args:
        image_chw: of objects on a plain ground.
        background: the ground's name.
    """
    image = image_chw.transpose(1, 2, 0)
    ground = np.array(BACKGROUNDS[background], dtype=np.int16)
    is_object = np.abs(image.astype(np.int16) - ground).max(axis=2) > FAINT
    right, down = SHADOW_PX
    shadow = np.zeros_like(is_object)
    shadow[down:, right:] = is_object[:-down, :-right]
    behind = np.where(shadow[..., None], SHADOW, COLOURS[GROUNDS[background]])
    drawn = np.where(is_object[..., None], image, behind)
    return drawn.astype(np.uint8).transpose(2, 0, 1)


def in_style(pool: Pool) -> Pool:
    """The same pool of images, each in the style."""
    pairs = zip(pool.images.numpy(), pool.captions, strict=True)
    drawn = np.stack(
        [with_shadows(image, scene_of(caption).background) for image, caption in pairs]
    )
    return Pool(torch.from_numpy(drawn), pool.captions, pool.scenes)


def train_style(
    teacher: Path, output: Path, pool: Pool, plan: Plan, seed: int, device: torch.device
) -> list[LossRow]:
    """Train a LoRA on a pool of images and write it as Diffusers does; returns the losses."""
    pipeline = WanPipeline.from_pretrained(teacher).to(device)
    for module in (pipeline.transformer, pipeline.text_encoder, pipeline.vae):
        module.requires_grad_(False)
    pipeline.transformer.add_adapter(
        LoraConfig(r=RANK, lora_alpha=RANK, target_modules=list(LAYERS))
    )
    log = train_teacher(
        pipeline.transformer,
        pipeline.text_encoder,
        pipeline.tokenizer,
        pipeline.vae.eval(),
        Pool(pool.images.to(device), pool.captions, pool.scenes),
        plan,
        seed=seed,
        device=device,
        recorded=False,
    )
    layers = get_peft_model_state_dict(pipeline.transformer)
    WanPipeline.save_lora_weights(output, transformer_lora_layers=layers)
    return log


def main(argv: list[str] | None = None) -> int:
    """Draw the images, train, write."""
    on_gpu = torch.cuda.is_available()
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--output", type=Path, required=True, help="folder of the LoRA")
    parser.add_argument("--teacher", type=Path, default=TEACHER)
    parser.add_argument("--images", type=int, default=2048, help="to learn from")
    parser.add_argument("--samples", type=int, default=16_000, help="length of the training")
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--learning-rate", type=float, default=1e-3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="cuda" if on_gpu else "cpu")
    arguments = parser.parse_args(argv)
    torch.manual_seed(arguments.seed)
    pool = in_style(draw_pool(arguments.images, seed=arguments.seed, workers=2))
    plan = Plan(arguments.samples, arguments.batch, arguments.learning_rate, ema_decay=0.99)
    device = torch.device(arguments.device)
    train_style(arguments.teacher, arguments.output, pool, plan, arguments.seed, device)
    return 0


if __name__ == "__main__":
    sys.exit(main())
