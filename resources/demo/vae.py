"""The VAE of the demo teachers: a tiny AutoencoderKLWan, trained on single frames or on clips."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
import torch.nn.functional as F
from diffusers import AutoencoderKLWan
from diffusers.models.autoencoders.autoencoder_kl_wan import WanCausalConv3d, WanResample
from resources.demo.pool import Pool
from resources.demo.training import LossParts, LossRow, Plan, fit, generator_for

LATENT_CHANNELS = 16
# Per latent element, against a reconstruction error per pixel value. Much more, and channels that
# carry little collapse to pure noise, which the teacher would then have to learn.
KL_WEIGHT = 1e-4
# Objects cover a tenth of an image, and what is hard about them is their edges: errors count so
# many times more for each unit (half a pixel's range) by which a pixel leaves its surroundings.
EDGE_WEIGHT = 10.0
SURROUNDINGS_PX = 9
# Of clips: the error's change from frame to frame, against the error itself. What moves is small
# and blurs, so that a clip loses motion in the VAE: after 370 updates 0.76 is left, 0.72 without.
CHANGE_WEIGHT = 1.0
# Logarithm of the posterior's variance before training: a decoder learns nothing from latents that
# drown in noise of deviation one.
INITIAL_LOG_VARIANCE = -6.0
ENCODE_BATCH = 512  # frames


def build_vae() -> AutoencoderKLWan:
    """Return the untrained VAE: 8 times smaller in height and width, 16 channels.

    A single frame meets only the last of the three temporal taps of each kernel (zeros stand
    before it). The others are set to zero: they stay so in training, and compress to nothing.
    """
    vae = AutoencoderKLWan(
        base_dim=16,
        decoder_base_dim=16,
        z_dim=LATENT_CHANNELS,
        dim_mult=[1, 2, 3, 3],
        num_res_blocks=1,
        latents_mean=[0.0] * LATENT_CHANNELS,
        latents_std=[1.0] * LATENT_CHANNELS,
    )
    with torch.no_grad():
        for module in vae.modules():
            if isinstance(module, WanCausalConv3d):
                module.weight[:, :, :-1].zero_()
        vae.quant_conv.bias[LATENT_CHANNELS:].fill_(INITIAL_LOG_VARIANCE)
    return vae


class OneFrameConv(WanCausalConv3d):  # type: ignore[misc]  # the base class is untyped
    """The same convolution for inputs of one frame, a third of the arithmetic."""

    def forward(self, x: torch.Tensor, cache_x: torch.Tensor | None = None) -> torch.Tensor:
        """Convolve (b, c, 1, h, w) with the last temporal tap."""
        assert x.shape[2] == 1
        assert cache_x is None
        width, _, height, _, _, _ = self._padding
        taps = self.weight[:, :, -1]
        out = F.conv2d(x[:, :, 0], taps, self.bias, self.stride[1:], (height, width))
        return out.unsqueeze(2)


class ClipConv(WanCausalConv3d):  # type: ignore[misc]  # the base class is untyped
    """The same convolution for whole clips; channels last in memory halve an update on a GPU."""

    def forward(self, x: torch.Tensor, cache_x: torch.Tensor | None = None) -> torch.Tensor:
        """Convolve (b, c, f, h, w), zeros before the first frame where the kernel pads."""
        assert cache_x is None
        out: torch.Tensor = super().forward(x.contiguous(memory_format=torch.channels_last_3d))
        return out


class ClipResample(WanResample):  # type: ignore[misc]  # the base class is untyped
    """The same resampling for whole clips, whose first frame stands for itself in time."""

    def forward(
        self, x: torch.Tensor, feat_cache: None = None, feat_idx: Sequence[int] = ()
    ) -> torch.Tensor:
        """Resample (b, c, f, h, w); what is 3d changes the number of frames after the first."""
        del feat_idx
        assert feat_cache is None
        if self.mode == "upsample3d":
            pairs = self.time_conv(x[:, :, 1:]).unflatten(1, (2, -1))
            x = torch.cat([x[:, :, :1], pairs.movedim(1, 3).flatten(2, 3)], dim=2)
        x = super().forward(x.contiguous(memory_format=torch.channels_last_3d))
        if self.mode == "downsample3d":
            x = torch.cat([x[:, :, :1], self.time_conv(x)], dim=2)
        return x


IN_ONE_CALL = {WanCausalConv3d: ClipConv, WanResample: ClipResample}


@contextmanager
def in_one_call(vae: AutoencoderKLWan, *, clips: bool = False) -> Iterator[None]:
    """Within this context the VAE takes single frames only, and computes the same faster.

    With `clips`, its encoder and decoder take whole clips, and compute what `encode` and `decode`
    do a few frames after the other through a cache.
    """
    swapped = IN_ONE_CALL if clips else {WanCausalConv3d: OneFrameConv}
    stock = {module: type(module) for module in vae.modules() if type(module) in swapped}
    for module, kind in stock.items():
        module.__class__ = swapped[kind]
    try:
        yield
    finally:
        for module, kind in stock.items():
            module.__class__ = kind


def to_pixels(images: torch.Tensor) -> torch.Tensor:
    """Turn uint8 images (b, 3, h, w), or clips (b, 3, f, h, w), into videos in [-1, 1]."""
    videos = images if images.dim() == 5 else images.unsqueeze(2)
    return videos.float() / 127.5 - 1.0


def to_images(pixels: torch.Tensor) -> torch.Tensor:
    """Turn one-frame videos (b, 3, 1, h, w) in [-1, 1] into uint8 images (b, 3, h, w)."""
    return ((pixels[:, :, 0].float() + 1.0) * 127.5).round().clamp(0, 255).to(torch.uint8)


def edge_weights(pixels: torch.Tensor) -> torch.Tensor:
    """Return what pixels of videos (b, 3, f, h, w) count, (b, 1, f, h, w), mean 1."""
    frames = pixels.transpose(1, 2).flatten(0, 1)
    around = F.avg_pool2d(frames, SURROUNDINGS_PX, 1, SURROUNDINGS_PX // 2, count_include_pad=False)
    weights = 1.0 + EDGE_WEIGHT * (frames - around).abs().amax(dim=1, keepdim=True)
    return (weights / weights.mean()).unflatten(0, (len(pixels), -1)).transpose(1, 2)


def train_vae(
    vae: AutoencoderKLWan,
    pool: Pool,
    plan: Plan,
    *,
    seed: int,
    device: torch.device,
    compiled: bool,
    recorded: bool,
) -> list[LossRow]:
    """Train the VAE on L1 and squared error of the pixels, most at edges, and a weak KL term."""
    random = generator_for(seed, "vae", device)
    images, clips = pool.images, pool.images.dim() == 5
    encoder = torch.compile(vae.encoder) if compiled else vae.encoder
    decoder = torch.compile(vae.decoder) if compiled else vae.decoder

    def losses() -> LossParts:
        index = torch.randint(len(images), (plan.batch_size,), generator=random, device=device)
        clean = to_pixels(images[index])
        # Encoder and decoder are called as a whole: encode() and decode() take frames in turn.
        mean, log_var = vae.quant_conv(encoder(clean)).float().chunk(2, dim=1)
        noise = torch.randn(mean.shape, generator=random, device=device)
        latents = mean + torch.exp(0.5 * log_var) * noise
        error = decoder(vae.post_quant_conv(latents)).float() - clean
        kl = 0.5 * (mean.square() + log_var.exp() - 1.0 - log_var).mean()
        weights, l1, mse = edge_weights(clean), error.abs(), error.square()
        loss = (weights * (l1 + mse)).mean() + KL_WEIGHT * kl
        parts = {"l1": l1.mean(), "mse": mse.mean(), "kl": kl}
        if clips:
            change = error.diff(dim=2)
            changes = weights[:, :, 1:] * (change.abs() + change.square())
            loss = loss + CHANGE_WEIGHT * changes.mean()
            parts["change"] = change.square().mean()
        return {"loss": loss, **parts}

    with in_one_call(vae, clips=clips):
        return fit("vae", [vae], losses, plan, random, recorded=recorded)


@torch.no_grad()
def measure_latents(vae: AutoencoderKLWan, images: torch.Tensor) -> None:
    """Write mean and deviation per channel of the images' latents into the VAE's configuration.

    The stock pipeline undoes (z - mean) / std with these two before it decodes.
    """
    latents = torch.cat(
        [
            vae.encode(to_pixels(part)).latent_dist.mode()
            for part in torch.split(images, ENCODE_BATCH // images[0, 0].shape[:-2].numel())
        ]
    )
    mean = latents.mean(dim=(0, 2, 3, 4)).tolist()
    std = latents.std(dim=(0, 2, 3, 4)).tolist()
    vae.register_to_config(
        latents_mean=[round(v, 5) for v in mean], latents_std=[round(v, 5) for v in std]
    )


def latent_statistics(vae: AutoencoderKLWan) -> tuple[torch.Tensor, torch.Tensor]:
    """Return mean and deviation of the latents, each (1, c, 1, 1, 1), on the VAE's device."""
    shape = (1, LATENT_CHANNELS, 1, 1, 1)
    mean = torch.tensor(vae.config.latents_mean, device=vae.device)
    std = torch.tensor(vae.config.latents_std, device=vae.device)
    return mean.view(shape), std.view(shape)


@torch.no_grad()
def encode_images(vae: AutoencoderKLWan, images: torch.Tensor) -> torch.Tensor:
    """Return normalised latents (b, 16, 1, h/8, w/8) in float16 of uint8 images (b, 3, h, w).

    Clips (b, 3, f, h, w) have a latent frame for the first and one for each four that follow.
    """
    mean, std = latent_statistics(vae)
    parts: list[torch.Tensor] = []
    batch = ENCODE_BATCH // images[0, 0].shape[:-2].numel()
    with in_one_call(vae, clips=images.dim() == 5):
        for part in torch.split(images, batch):
            latents = vae.quant_conv(vae.encoder(to_pixels(part)))[:, :LATENT_CHANNELS].float()
            parts.append(((latents - mean) / std).half())
    return torch.cat(parts)


@torch.no_grad()
def decode_latents(vae: AutoencoderKLWan, latents: torch.Tensor) -> torch.Tensor:
    """Return uint8 images (b, 3, h, w) of normalised latents (b, 16, 1, h/8, w/8)."""
    mean, std = latent_statistics(vae)
    with in_one_call(vae):
        decoded = [
            to_images(vae.decode(part.float() * std + mean).sample)
            for part in torch.split(latents, ENCODE_BATCH)
        ]
    return torch.cat(decoded)
