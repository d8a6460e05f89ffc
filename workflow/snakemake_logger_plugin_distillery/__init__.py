"""Snakemake's logger plugin `distillery`: it finds plugins by the names of their packages."""

from distillery.terminal.handler import LogHandler, LogHandlerSettings

__all__ = ["LogHandler", "LogHandlerSettings"]
