"""Distil a text-to-image diffusion teacher into a few-step student."""

__version__ = "0.1.0"
