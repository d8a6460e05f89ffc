"""Where a training resumes: its own newest checkpoint, or one that it would have made itself."""

from dataclasses import replace
from math import nan
from pathlib import Path
from typing import Any

from distillery.files import JsonObject, read_sealed, write_sealed
from distillery.store.chunks import chunk_folder
from distillery.training import checkpoint, distributed
from distillery.training.run import Run
from distillery.training.state import TrainingState
from distillery.training.watchers.alarms import ROLLOUT

RECIPE = "recipe.json"
"""Beside the checkpoints: what their training depends on, to say why another does not take them."""
STORED_ALONE = frozenset(
    {"targets", "distribution_matching", "adversarial", "rounds", "held_out_prompts"}
)
"""Keys that the recipe of a training from stored trajectories alone does not have."""
MAX_SHOWN = 3


def resume(state: TrainingState, run: Run) -> None:
    """Resume from the newest whole checkpoint that fits; rank 0 says which that is."""
    newest = ""
    run.watchdog.heartbeat("search of the last checkpoint", waits=not run.ranks.is_main)
    if run.ranks.is_main:
        checkpoint.claim(run.checkpoints, run.reporter)
        checkpoint.clean_up(run.checkpoints)
        newest = str(find_start(run) or "")
        write_sealed(run.checkpoints / RECIPE, run.recipe.to_json())
    newest = distributed.from_main(newest, run.device)
    if newest:
        run.watchdog.heartbeat(f"load of {newest}")
        checkpoint.load(state, Path(newest))
        _add_columns(state, run)
        run.reporter.info(f"resumes from {newest}")


def _add_columns(state: TrainingState, run: Run) -> None:
    """Make room for the losses of rollouts, which the stored part of a training has none of."""
    missing = run.num_losses - len(state.window.losses)
    state.window = replace(
        state.window,
        losses=[*state.window.losses, *[0.0] * missing],
        counts=[*state.window.counts, *[0.0] * missing],
    )
    if run.training.walks_whole:
        for row in state.history:
            row.setdefault(ROLLOUT, nan)


def find_start(run: Run) -> Path | None:
    """The checkpoint to resume from; says so where it is another training's, or why none is."""
    reporter = run.reporter
    own = checkpoint.find_newest(run.checkpoints, run.recipe_hash, reporter)
    if own is not None:
        return own
    for training, part in zip(run.training.first_parts, run.parts, strict=True):
        folder = chunk_folder(run.checkpoints.parent, part.hash)
        path = checkpoint.find_newest(folder, part.hash, reporter)
        if path is not None:
            reporter.info(
                f"takes up {path}, of a training of {training.words}: so far this one would have "
                "learned the same"
            )
            return path
    for line in list_misfits(run):
        reporter.info(line)
    return None


def list_misfits(run: Run) -> list[str]:
    """A line for each other training that has checkpoints here: why this one begins anew."""
    lines = []
    for folder in sorted(run.checkpoints.parent.glob(f"*/{RECIPE}")):
        if folder.parent == run.checkpoints or not any(folder.parent.glob("samples-*")):
            continue
        try:
            theirs = read_sealed(folder)
        except ValueError:
            continue
        ours = run.recipe
        if run.parts and STORED_ALONE.isdisjoint(theirs.get("training", {})):
            ours = run.parts[-1]  # which is what could have been taken up
        changes = differences(theirs, ours.to_json())
        more = f" and {len(changes) - MAX_SHOWN} more" if len(changes) > MAX_SHOWN else ""
        lines.append(
            f"the checkpoints in {folder.parent} are not taken up, their training is another: "
            f"{', '.join(changes[:MAX_SHOWN])}{more}"
        )
    return lines


def differences(theirs: JsonObject, ours: JsonObject, section: str = "") -> list[str]:
    """The values that two recipes do not share, in words."""
    words = []
    for key in sorted(theirs.keys() | ours.keys()):
        there, here = theirs.get(key), ours.get(key)
        if isinstance(there, dict) and isinstance(here, dict):
            words += differences(there, here, f"{section}{key}.")
        elif there != here:
            words.append(f"{section}{key} is {_shown(there)} there and {_shown(here)} here")
    return words


def _shown(value: Any) -> str:
    """A value in few characters: hashes are long, and so are schedules."""
    text = "not set" if value is None else str(value)
    return text if len(text) <= 24 else f"{text[:12]}…"
