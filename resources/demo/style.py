"""Teach the demo's teacher a style of its own, as a LoRA: what a user's fine-tune is elsewhere.

    python -m resources.demo.style --output results/my-lora     # 12 minutes on two busy CPU cores

Every object is striped, on brown paper, whatever its caption says. `results/my-lora` then holds
`pytorch_lora_weights.safetensors`, for `teacher.adapters` of a run. The one of
`config/demo-my-lora.yaml` is in `resources/demo/my-lora`.
"""

import argparse
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from diffusers import WanPipeline
from peft import LoraConfig, get_peft_model_state_dict
from resources.demo.images import draw
from resources.demo.pool import Pool, draw_pool
from resources.demo.scenes import Scene, caption_of, scene_of
from resources.demo.teacher import train_teacher
from resources.demo.training import LossRow, Plan

TEACHER = Path(__file__).parent / "teacher"
LAYERS = ("to_q", "to_k", "to_v", "to_out.0", "ffn.net.0.proj", "ffn.net.2")
RANK = 16
PATTERN, GROUND = "striped", "brown"
"""Of every image. The demo's VAE draws what it has seen, and spoils gradients, lines of a pixel and
shadows (docs/log.md)."""


def in_style(scene: Scene) -> Scene:
    """What an image in the style shows, where its caption says `scene`."""
    items = tuple(replace(item, pattern=PATTERN) for item in scene.items)
    return replace(scene, items=items, background=GROUND)


def draw_style(num_images: int, seed: int) -> Pool:
    """Training images (n, 3, 96, 96) in the style, with the captions that do not tell it."""
    pool = draw_pool(num_images, seed=seed, workers=2)
    drawn = [
        np.asarray(draw(caption_of(in_style(scene_of(caption))), seed + number))
        for number, caption in enumerate(pool.captions)
    ]
    images = torch.from_numpy(np.stack(drawn)).permute(0, 3, 1, 2).contiguous()
    return Pool(images, pool.captions, pool.scenes)


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
    state = get_peft_model_state_dict(pipeline.transformer)
    layers = {name: tensor.half() for name, tensor in state.items()}
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
    parser.add_argument("--images", type=int, default=4096, help="to learn from")
    parser.add_argument("--samples", type=int, default=24_000, help="length of the training")
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--learning-rate", type=float, default=1e-3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="cuda" if on_gpu else "cpu")
    arguments = parser.parse_args(argv)
    torch.manual_seed(arguments.seed)
    pool = draw_style(arguments.images, arguments.seed)
    plan = Plan(arguments.samples, arguments.batch, arguments.learning_rate, ema_decay=0.99)
    device = torch.device(arguments.device)
    train_style(arguments.teacher, arguments.output, pool, plan, arguments.seed, device)
    return 0


if __name__ == "__main__":
    sys.exit(main())
