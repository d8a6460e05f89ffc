"""The demo teacher: a tiny WanPipeline, its transformer and text encoder trained together."""

from pathlib import Path

import torch
import torch.nn.functional as F
from diffusers import (
    AutoencoderKLWan,
    UniPCMultistepScheduler,
    WanPipeline,
    WanTransformer3DModel,
)
from resources.demo.pool import Pool
from resources.demo.training import (
    LossParts,
    LossRow,
    Plan,
    fit,
    forget_origin,
    generator_for,
    load_as_float32,
)
from resources.demo.vae import LATENT_CHANNELS, encode_images
from resources.demo.words import token_ids
from transformers import PreTrainedTokenizerBase, UMT5Config, UMT5EncoderModel

TEXT_FEATURES = 128
HEAD_FEATURES = 32  # of the text encoder
NUM_HEADS = 4  # of the transformer
CAPTION_DROPOUT = 0.1
# Training noise levels: most are drawn where the image takes shape (logit-normal), some evenly,
# so that the first and last steps of a sampler are known too.
LOGIT_MEAN = 0.5
LOGIT_STD = 1.2
EVEN_SHARE = 0.15
TIMESTEPS = 1000.0


def build_transformer(
    width: int = 192,
    num_layers: int = 6,
    ffn_width: int = 768,
    text_features: int = TEXT_FEATURES,
) -> WanTransformer3DModel:
    """Return the untrained denoiser, 3.9 million parameters by default."""
    return WanTransformer3DModel(
        num_attention_heads=NUM_HEADS,
        attention_head_dim=width // NUM_HEADS,
        in_channels=LATENT_CHANNELS,
        out_channels=LATENT_CHANNELS,
        num_layers=num_layers,
        ffn_dim=ffn_width,
        text_dim=text_features,
        freq_dim=64,
        rope_max_seq_len=64,
    )


def build_text_encoder(
    tokenizer: PreTrainedTokenizerBase, features: int = TEXT_FEATURES
) -> UMT5EncoderModel:
    """Return the untrained text encoder, 0.35 million parameters by default, no dropout."""
    config = UMT5Config(
        vocab_size=len(tokenizer),
        d_model=features,
        d_kv=HEAD_FEATURES,
        d_ff=2 * features,
        num_layers=2,
        num_heads=features // HEAD_FEATURES,
        dropout_rate=0.0,
    )
    model: UMT5EncoderModel = UMT5EncoderModel(config)
    return model


def build_scheduler() -> UniPCMultistepScheduler:
    """Return the scheduler as the released Wan2.2 configures it."""
    return UniPCMultistepScheduler(
        prediction_type="flow_prediction",
        use_flow_sigmas=True,
        flow_shift=3.0,
        solver_order=2,
        num_train_timesteps=int(TIMESTEPS),
    )


def sample_sigma(batch_size: int, random: torch.Generator, device: torch.device) -> torch.Tensor:
    """Return noise levels (b,) in (0, 1) to train at."""
    logits = LOGIT_MEAN + LOGIT_STD * torch.randn(batch_size, generator=random, device=device)
    even = torch.rand(batch_size, generator=random, device=device)
    use_even = torch.rand(batch_size, generator=random, device=device) < EVEN_SHARE
    return torch.where(use_even, even, logits.sigmoid())


def encode_text(
    text_encoder: UMT5EncoderModel, ids: torch.Tensor, mask: torch.Tensor
) -> torch.Tensor:
    """Return text features (b, l, d) as WanPipeline makes them: zeros beyond a text's length.

    The mask (b, l) goes in as what is added to the attention scores, (b, 1, 1, l): to make that
    of a plain mask, transformers looks at its values, and a recorded step cannot.
    """
    added = (1.0 - mask[:, None, None, :].float()) * torch.finfo(torch.float32).min
    hidden: torch.Tensor = text_encoder(ids, added).last_hidden_state
    return hidden * mask.unsqueeze(-1)


def train_teacher(
    transformer: WanTransformer3DModel,
    text_encoder: UMT5EncoderModel,
    tokenizer: PreTrainedTokenizerBase,
    vae: AutoencoderKLWan,
    pool: Pool,
    plan: Plan,
    *,
    seed: int,
    device: torch.device,
    recorded: bool,
) -> list[LossRow]:
    """Train by rectified flow: predict noise - clean at (1 - sigma) clean + sigma noise."""
    random = generator_for(seed, "teacher", device)
    latents = encode_images(vae, pool.images)
    ids, mask = token_ids(tokenizer, pool.captions, device)
    no_ids, no_mask = token_ids(tokenizer, [""], device)

    def losses() -> LossParts:
        size = (plan.batch_size,)
        index = torch.randint(len(latents), size, generator=random, device=device)
        dropped = torch.rand((*size, 1), generator=random, device=device) < CAPTION_DROPOUT
        text = encode_text(
            text_encoder,
            torch.where(dropped, no_ids, ids[index]),
            torch.where(dropped, no_mask, mask[index]),
        )
        clean = latents[index].float()
        noise = torch.randn(clean.shape, generator=random, device=device)
        sigma = sample_sigma(plan.batch_size, random, device)
        level = sigma.view(-1, 1, 1, 1, 1)
        noisy = (1.0 - level) * clean + level * noise
        predicted = transformer(noisy, TIMESTEPS * sigma, text).sample
        return {"loss": F.mse_loss(predicted.float(), noise - clean)}

    return fit("teacher", [transformer, text_encoder], losses, plan, random, recorded=recorded)


def save_teacher(
    transformer: WanTransformer3DModel,
    text_encoder: UMT5EncoderModel,
    tokenizer: PreTrainedTokenizerBase,
    vae: AutoencoderKLWan,
    folder: Path,
) -> None:
    """Write the whole pipeline as a Diffusers folder with bfloat16 weights, loaded as float32."""
    pipeline = WanPipeline(
        tokenizer=tokenizer,
        text_encoder=text_encoder,
        vae=vae,
        scheduler=build_scheduler(),
        transformer=transformer,
    )
    pipeline.to(torch.bfloat16).save_pretrained(folder)
    load_as_float32(folder / "text_encoder")
    forget_origin(folder / "vae")
