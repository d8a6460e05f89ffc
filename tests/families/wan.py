"""Wan2.1: one network, UniPC on a flow."""

from families.case import FamilyCase
from tiny import HEIGHT, MAX_TOKENS, WIDTH, make_tiny_wan

CASE = FamilyCase(
    name="wan", family="wan", make=make_tiny_wan, height=HEIGHT, width=WIDTH, max_tokens=MAX_TOKENS
)
