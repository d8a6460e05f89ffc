"""Wan2.1 with several frames: the second of two states is of four of them."""

from families.case import FamilyCase
from tiny import HEIGHT, MAX_TOKENS, WIDTH, make_tiny_wan

CASE = FamilyCase(
    name="wan-clip",
    family="wan",
    make=make_tiny_wan,
    height=HEIGHT,
    width=WIDTH,
    num_frames=5,
    max_tokens=MAX_TOKENS,
)
