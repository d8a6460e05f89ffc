"""A FLUX without embedded guidance that is guided all the same, by a second call per step."""

from dataclasses import replace

from families import flux_schnell

CASE = replace(
    flux_schnell.CASE,
    name="flux-true-guidance",
    guidance_scale=3.0,
    guidance_argument="true_cfg_scale",
    no_negative="",
)
