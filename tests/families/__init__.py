"""One file a family: how to make a tiny one with random weights, of the real Diffusers classes.

A new family adds a file with a `CASE` and its name to the list below; the tests in
tests/numerics/test_families.py then hold its adapter to everything that is promised.
"""

from importlib import import_module

from families.case import FamilyCase

FILES = (
    "wan",
    "wan_two_experts",
    "wan_clip",
    "sdxl",
    "sd15",
    "sd21",
    "pixart",
    "sana",
    "sd3",
    "sd3_without_t5",
    "flux_dev",
    "flux_schnell",
    "flux_true_guidance",
    "qwen_image",
)
CASES: list[FamilyCase] = [import_module(f"families.{name}").CASE for name in FILES]
