"""Wan2.1 with several frames: the second of two states is of four of them."""

from dataclasses import replace

from families.wan import CASE as WAN

CASE = replace(WAN, name="wan-clip", num_frames=5)
