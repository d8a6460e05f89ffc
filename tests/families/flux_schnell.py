"""FLUX.1-schnell as released: no guidance, no shift."""

from pathlib import Path

from diffusers import FlowMatchEulerDiscreteScheduler

from families.case import FamilyCase
from families.flux_dev import tiny_flux
from tiny import MAX_TOKENS


def make(folder: Path) -> None:
    scheduler = FlowMatchEulerDiscreteScheduler(shift=1.0)
    tiny_flux(scheduler, guidance_embeds=False).save_pretrained(folder)


CASE = FamilyCase(
    name="flux-schnell",
    family="flux",
    make=make,
    height=32,
    width=24,
    max_tokens=MAX_TOKENS,
    guidance_scale=1.0,
)
