"""The judge of the demo: a tiny CLIP that tells which caption an image shows."""

import math
from pathlib import Path

import torch
import torch.nn.functional as F
from diffusers import AutoencoderKLWan
from resources.demo.images import IMAGE_PX
from resources.demo.pool import GROUP, Pool
from resources.demo.training import LossParts, LossRow, Plan, fit, generator_for, load_as_float32
from resources.demo.vae import decode_latents, encode_images
from resources.demo.words import MAX_TOKENS, token_ids
from transformers import (
    CLIPConfig,
    CLIPImageProcessor,
    CLIPModel,
    CLIPProcessor,
    PreTrainedTokenizerBase,
)

PROJECTION = 64
# Part of the training images that has been through the VAE, with noise on its latents up to this
# many of their deviations: what a few-step sampler leaves behind looks like that.
DECODED_SHARE = 0.5
MAX_LATENT_NOISE = 0.25
MAX_PIXEL_NOISE = 0.05
MAX_LOGIT_SCALE = math.log(100.0)


def build_judge(tokenizer: PreTrainedTokenizerBase) -> CLIPModel:
    """Return the untrained CLIP model: images of 96 pixels, texts of up to 32 tokens."""
    text = {
        "vocab_size": len(tokenizer),
        "hidden_size": 96,
        "intermediate_size": 384,
        "num_hidden_layers": 3,
        "num_attention_heads": 3,
        "max_position_embeddings": MAX_TOKENS,
        "hidden_act": "gelu",
        "projection_dim": PROJECTION,
        "bos_token_id": tokenizer.bos_token_id,
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
    }
    vision = {
        "hidden_size": 96,
        "intermediate_size": 384,
        "num_hidden_layers": 5,
        "num_attention_heads": 3,
        "image_size": IMAGE_PX,
        "patch_size": 8,
        "hidden_act": "gelu",
        "projection_dim": PROJECTION,
    }
    config = CLIPConfig(text_config=text, vision_config=vision, projection_dim=PROJECTION)
    model: CLIPModel = CLIPModel(config)
    return model


def build_processor(tokenizer: PreTrainedTokenizerBase) -> CLIPProcessor:
    """Return the processor: images to [-1, 1] at 96 pixels, texts to tokens."""
    images = CLIPImageProcessor(
        size={"shortest_edge": IMAGE_PX},
        crop_size={"height": IMAGE_PX, "width": IMAGE_PX},
        image_mean=[0.5, 0.5, 0.5],
        image_std=[0.5, 0.5, 0.5],
    )
    return CLIPProcessor(image_processor=images, tokenizer=tokenizer)


@torch.no_grad()
def decoded_images(
    vae: AutoencoderKLWan, images: torch.Tensor, random: torch.Generator
) -> torch.Tensor:
    """Return the images (b, 3, h, w) as the VAE gives them back from slightly noisy latents."""
    parts: list[torch.Tensor] = []
    for part in torch.split(images, 4096):
        latents = encode_images(vae, part).float()
        level = MAX_LATENT_NOISE * torch.rand(
            (len(part), 1, 1, 1, 1), generator=random, device=part.device
        )
        noise = torch.randn(latents.shape, generator=random, device=part.device)
        parts.append(decode_latents(vae, latents + level * noise))
    return torch.cat(parts)


def _blurred(pixels: torch.Tensor, share: torch.Tensor) -> torch.Tensor:
    """Mix images (b, 3, h, w) with their Gaussian blur of one pixel, by a share (b, 1, 1, 1)."""
    offsets = torch.arange(-2.0, 3.0, device=pixels.device)
    kernel = torch.exp(-0.5 * offsets.square())
    kernel = (kernel / kernel.sum()).expand(3, 1, 5)
    blurred = F.pad(pixels, (2, 2, 2, 2), mode="replicate")
    blurred = F.conv2d(blurred, kernel.unsqueeze(-1), groups=3)
    blurred = F.conv2d(blurred, kernel.unsqueeze(-2), groups=3)
    return torch.lerp(pixels, blurred.to(pixels.dtype), share)


def augmented(images: torch.Tensor, random: torch.Generator) -> torch.Tensor:
    """Turn uint8 images (b, 3, h, w) into pixels in [-1, 1], slightly blurred, noisy, dimmed."""
    batch = len(images)

    def uniform(channels: int) -> torch.Tensor:
        shape = (batch, channels, 1, 1)
        return torch.rand(shape, generator=random, device=images.device)

    pixels = images.float() / 127.5 - 1.0
    pixels = _blurred(pixels, uniform(1))
    pixels = pixels * (0.95 + 0.1 * uniform(1)) + 0.1 * (uniform(3) - 0.5)
    noise = torch.randn(pixels.shape, generator=random, device=images.device)
    return pixels + MAX_PIXEL_NOISE * uniform(1) * noise


def contrastive_loss(
    images_bd: torch.Tensor, texts_bd: torch.Tensor, scenes: torch.Tensor, scale: torch.Tensor
) -> torch.Tensor:
    """Return CLIP's symmetric loss, where all captions of one scene (b,) count as right."""
    logits = scale * F.normalize(images_bd, dim=-1) @ F.normalize(texts_bd, dim=-1).T
    right = (scenes[:, None] == scenes[None, :]).float()
    right = right / right.sum(dim=1, keepdim=True)
    return 0.5 * (F.cross_entropy(logits, right) + F.cross_entropy(logits.T, right))


def train_judge(
    judge: CLIPModel,
    processor: CLIPProcessor,
    vae: AutoencoderKLWan,
    pool: Pool,
    plan: Plan,
    *,
    seed: int,
    device: torch.device,
    recorded: bool,
) -> list[LossRow]:
    """Train the judge on whole groups of neighbours, so that every batch has hard negatives."""
    random = generator_for(seed, "judge", device)
    ids, _ = token_ids(processor.tokenizer, pool.captions, device)
    # What the text model makes of a plain padding mask is this, as its features are read at the
    # first end-of-text token and padding only comes after it.
    causal = torch.ones((1, 1, MAX_TOKENS, MAX_TOKENS), dtype=torch.bool, device=device).tril()
    scenes = pool.scenes.to(device)
    num_decoded = int(DECODED_SHARE * len(pool.captions))
    decoded = decoded_images(vae, pool.images[:num_decoded], random)
    images = torch.cat([decoded, pool.images[num_decoded:]])
    num_groups = len(pool.captions) // GROUP
    members = torch.arange(GROUP, device=device)

    def losses() -> LossParts:
        size = (plan.batch_size // GROUP, 1)
        groups = torch.randint(num_groups, size, generator=random, device=device)
        index = (GROUP * groups + members).flatten()
        seen = judge.get_image_features(augmented(images[index], random)).pooler_output
        read = judge.get_text_features(ids[index], causal).pooler_output
        scale = judge.logit_scale.clamp(max=MAX_LOGIT_SCALE).exp()
        loss = contrastive_loss(seen.float(), read.float(), scenes[index], scale)
        return {"loss": loss, "scale": scale}

    return fit("judge", [judge], losses, plan, random, recorded=recorded)


def save_judge(judge: CLIPModel, processor: CLIPProcessor, folder: Path) -> None:
    """Write the judge as a transformers CLIP folder with float16 weights, loaded as float32."""
    judge.half().save_pretrained(folder)
    load_as_float32(folder)
    processor.save_pretrained(folder)
