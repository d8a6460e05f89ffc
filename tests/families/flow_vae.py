"""A tiny VAE of SD3's and FLUX's kind."""

from diffusers import AutoencoderKL

from families.sdxl import tiny_kl


def tiny_flow_kl() -> AutoencoderKL:
    """Of half the image's side; its latents are shifted, too."""
    vae = tiny_kl()
    vae.register_to_config(shift_factor=0.06, scaling_factor=1.5)
    return vae
