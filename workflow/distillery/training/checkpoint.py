"""The whole state of a training on disk.

A checkpoint is a folder `samples-000012800` with safetensors for the weights, their average and the
optimizer, the loss history as Parquet, and `state.json`, written last, with the hash of every other
file. The folder gets its name in one rename. So a checkpoint is whole, or it is not taken.
"""

from __future__ import annotations

import fcntl
import re
import tempfile
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from math import nan
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd
import torch
from safetensors.torch import load_file, save_file

from distillery.config.parsing import flatten
from distillery.files import JsonObject, atomic_path, hash_files, read_sealed, remove, write_sealed
from distillery.locks import hold
from distillery.model_folder import copy_permissions, full_disk_as_os_error
from distillery.store.chunks import chunk_folder
from distillery.store.tables import read_table, seal_table
from distillery.telemetry import Reporter
from distillery.training import distributed
from distillery.training.parallel import load_full, shard_like
from distillery.training.state import TrainingState, Window
from distillery.training.watchers.alarms import ROLLOUT

if TYPE_CHECKING:  # previews of a run are drawn from checkpoints
    from distillery.training.run import Run

STATE = "state.json"
WEIGHTS = "weights.safetensors"
AVERAGE = "average.safetensors"
OPTIMIZER = "optimizer.safetensors"
COMPANION = "companion.safetensors"
COMPANION_OPTIMIZER = "companion_optimizer.safetensors"
"""Of what learns beside the student; else they are not there."""
LOSSES = "losses.parquet"
FORMAT = 2
NAME = r"samples-\d{12}"
RECIPE = "recipe.json"
"""Beside the checkpoints: what their training depends on, to say why another does not take them."""
STORED_ALONE = frozenset(
    {"targets", "distribution_matching", "adversarial", "rounds", "held_out_prompts"}
)
"""Keys that the recipe of a training from stored trajectories alone does not have."""
MAX_SHOWN = 3
LOCK = ".lock"
"""Locked by rank 0 of the training that writes in a folder; says which process that is."""


def checkpoint_path(root: Path, samples_seen: int) -> Path:
    """The folder of one checkpoint; names sort by age."""
    return root / f"samples-{samples_seen:012d}"


@dataclass(frozen=True)
class Snapshot:
    """A state that training no longer changes.

    Attributes:
        tensors: {file: {name: tensor}} in host memory, see `tensors_of`.
        history: rows of loss.parquet.
        window: losses since the last row.
        samples_seen: position in the stream.
    """

    tensors: Mapping[str, Mapping[str, torch.Tensor]]
    history: list[dict[str, float]]
    window: Window
    samples_seen: int

    @property
    def num_bytes(self) -> int:
        """Of all tensors."""
        return sum(tensor.nbytes for file in self.tensors.values() for tensor in file.values())


def tensors_of(state: TrainingState) -> Iterator[tuple[str, str, torch.Tensor]]:
    """(file, name, tensor) of all that is saved, in the same order on every rank."""
    for name, parameter in state.trainable.items():
        yield WEIGHTS, name, parameter.detach()
    for name, value in state.average.items():
        yield AVERAGE, name, value
    for name, value in _optimizer_tensors(state.trainable, state.optimizer).items():
        yield OPTIMIZER, name, value
    if state.companion is not None:
        for name, parameter in state.companion.trainable.items():
            yield COMPANION, name, parameter.detach()
        copied = _optimizer_tensors(state.companion.trainable, state.companion.optimizer)
        for name, value in copied.items():
            yield COMPANION_OPTIMIZER, name, value


def write(snapshot: Snapshot, root: Path, recipe_hash: str, keep: int) -> Path:
    """Write a checkpoint atomically, then remove older ones until `keep` are left.

    Raises OSError where it cannot be written; the older ones then stay.
    """
    path = checkpoint_path(root, snapshot.samples_seen)
    with atomic_path(path) as temporary:
        temporary.mkdir()
        files = [*_TENSOR_FILES, *(snapshot.tensors.keys() - set(_TENSOR_FILES))]
        with ThreadPoolExecutor() as threads:
            # Lets go of Python's lock since safetensors 0.8: the training continues meanwhile.
            for written in [
                threads.submit(_save, dict(snapshot.tensors.get(file, {})), temporary / file)
                for file in files
            ]:
                written.result()
        seal_table(loss_table(snapshot.history), temporary / LOSSES)
        digests = hash_files(temporary / file for file in (*files, LOSSES))
        write_sealed(
            temporary / STATE,
            {
                "format": FORMAT,
                "recipe": recipe_hash,
                "samples_seen": snapshot.samples_seen,
                "window": asdict(snapshot.window),
                "files": {path.name: digest for path, digest in digests.items()},
            },
        )
        copy_permissions(temporary)
    # A newer one was damaged, or this one would not have been made: it must not count.
    for old in [other for other in _all(root) if other.name < path.name][keep - 1 :]:
        remove(old)
    return path


_TENSOR_FILES = (WEIGHTS, OPTIMIZER, AVERAGE)


def _save(tensors: dict[str, torch.Tensor], path: Path) -> None:
    """`save_file`, for which a full disk is an OSError, as it is for all that writes files."""
    with full_disk_as_os_error(path):
        save_file(tensors, path)


def loss_table(history: list[dict[str, float]]) -> pd.DataFrame:
    """The loss history as loss.parquet holds it."""
    table = pd.DataFrame(history)
    return table.astype({"samples_seen": "int64"}) if len(table) else table


def find_newest(root: Path, recipe_hash: str, reporter: Reporter) -> Path | None:
    """The newest whole checkpoint of a recipe; damaged ones are skipped with a warning."""
    for path in _all(root):
        problem = find_problem(path, recipe_hash)
        if problem is None:
            return path
        reporter.warning(f"the checkpoint {path} is skipped: {problem}")
    return None


def claim(root: Path, reporter: Reporter) -> None:
    """Make the folder, and keep other trainings out of it until this process ends, however it does.

    Raises:
        OSError: no files can be made there.
        BlockingIOError: another training writes there.
    """

    def in_use(holder: str) -> BlockingIOError:
        return BlockingIOError(
            f"another training, {holder}, writes its checkpoints to {root}: wait for it or "
            "end it, then run again; to train two at once, give this one another `run` name"
        )

    path = root / LOCK
    try:
        root.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=root):
            hold(path, in_use, reporter.warning, fcntl.lockf)
    except BlockingIOError:
        raise
    except OSError as error:
        why = f"no checkpoints can be written, {error.strerror}"
        where = path if error.filename == str(path) else root
        raise OSError(error.errno, why, str(where)) from error


def clean_up(root: Path) -> None:
    """Remove what a killed process left half written; only after `claim`."""
    for path in root.glob(".samples-*.tmp"):
        remove(path)


def load(state: TrainingState, path: Path) -> None:
    """Load a checkpoint into `state`, which was made anew for the same configuration."""
    about = read_sealed(path / STATE)
    _fill(state.trainable, load_file(path / WEIGHTS))
    _fill(state.average, load_file(path / AVERAGE))
    _restore_optimizer(state.trainable, state.optimizer, load_file(path / OPTIMIZER))
    if state.companion is not None and (path / COMPANION).is_file():
        trainable = state.companion.trainable
        _fill(trainable, load_file(path / COMPANION))
        _restore_optimizer(
            trainable, state.companion.optimizer, load_file(path / COMPANION_OPTIMIZER)
        )
    history = read_table(path / LOSSES).to_dict("records") if about["samples_seen"] else []
    state.history = [{str(key): value for key, value in row.items()} for row in history]
    state.samples_seen = about["samples_seen"]
    state.window = Window(**about["window"])


def read_student(root: Path, samples_seen: int, recipe_hash: str) -> dict[str, torch.Tensor]:
    """What a kept checkpoint would export: averaged weights, or without averaging the weights.

    Raises ValueError where there is none of this recipe at this position, or it is damaged.
    """
    path = checkpoint_path(root, samples_seen)
    problem = find_problem(path, recipe_hash)
    if problem is not None:
        kept = [str(int(folder.name.removeprefix("samples-"))) for folder in _all(root)]
        raise ValueError(
            f"the checkpoint {path} cannot be used: {problem}; kept are those after "
            f"{', '.join(reversed(kept)) or 'no'} samples, see training.keep_checkpoints"
        )
    return load_file(path / AVERAGE) or load_file(path / WEIGHTS)


def _all(root: Path) -> list[Path]:
    """All checkpoints, the newest first; a user's copy under another name is none."""
    return sorted(filter(is_one, root.glob("samples-*")), reverse=True)


def is_one(path: Path) -> bool:
    """Whether a folder's name is that of a checkpoint."""
    return re.fullmatch(NAME, path.name) is not None


def recipe_of(path: Path) -> str | None:
    """The hash of its training's recipe; None where it does not tell."""
    try:
        return str(read_sealed(path / STATE)["recipe"])
    except (OSError, ValueError, KeyError):
        return None


def find_problem(path: Path, recipe_hash: str | None = None) -> str | None:
    """Why a checkpoint cannot be used, or None; reads every byte of it.

    Args:
        recipe_hash: of the training; None takes one of any.
    """
    if not (path / STATE).is_file():
        return f"it has no {STATE}"
    try:
        about = read_sealed(path / STATE)
    except ValueError:
        return f"{STATE} is damaged, or of another version"
    if about["format"] != FORMAT:
        return f"its format is {about['format']}, this is {FORMAT}"
    if recipe_hash not in (None, about["recipe"]):
        return f"it is of recipe {about['recipe'][:12]}"
    files: dict[str, str] = about["files"]
    for file in files:
        if not (path / file).is_file():
            return f"{file} is missing"
    digests = hash_files(path / file for file in files)
    damaged = [file for file, digest in files.items() if digests[path / file] != digest]
    return f"{', '.join(damaged)} is damaged" if damaged else None


@torch.no_grad()
def _fill(tensors: Mapping[str, torch.Tensor], values: Mapping[str, torch.Tensor]) -> None:
    """Write saved values into tensors of the same names."""
    assert tensors.keys() == values.keys(), "a checkpoint of this recipe has the same parameters"
    for name, tensor in tensors.items():
        load_full(tensor, values[name])


def _optimizer_tensors(
    trainable: Mapping[str, torch.nn.Parameter], optimizer: torch.optim.Optimizer
) -> dict[str, torch.Tensor]:
    """The optimizer's state as `{parameter}/{entry}`, e.g. `proj_out.weight/exp_avg`."""
    names = list(trainable)
    entries: dict[int, dict[str, Any]] = optimizer.state_dict()["state"]
    return {
        f"{names[index]}/{entry}": value
        for index, values in entries.items()
        for entry, value in values.items()
    }


def _restore_optimizer(
    trainable: Mapping[str, torch.nn.Parameter],
    optimizer: torch.optim.Optimizer,
    tensors: Mapping[str, torch.Tensor],
) -> None:
    """The inverse of `_optimizer_tensors`; settings stay those of the configuration."""
    index_of = {name: index for index, name in enumerate(trainable)}
    entries: dict[int, dict[str, torch.Tensor]] = {}
    for key, value in tensors.items():
        name, _, entry = key.rpartition("/")
        entries.setdefault(index_of[name], {})[entry] = shard_like(value, trainable[name])
    groups = optimizer.state_dict()["param_groups"]
    optimizer.load_state_dict({"state": entries, "param_groups": groups})


# ---- where a training resumes: its newest checkpoint, or one that it would have made itself -----


def resume(state: TrainingState, run: Run) -> None:
    """Resume from the newest whole checkpoint that fits; rank 0 says which that is."""
    newest = ""
    run.watchdog.heartbeat("search of the last checkpoint", waits=not run.ranks.is_main)
    if run.ranks.is_main:
        claim(run.checkpoints, run.reporter)
        clean_up(run.checkpoints)
        newest = str(find_start(run) or "")
        write_sealed(run.checkpoints / RECIPE, run.recipe.to_json())
    newest = distributed.from_main(newest, run.device)
    if newest:
        run.watchdog.heartbeat(f"load of {newest}")
        load(state, Path(newest))
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
    own = find_newest(run.checkpoints, run.recipe_hash, reporter)
    if own is not None:
        return own
    for training, part in zip(run.training.first_parts, run.parts, strict=True):
        folder = chunk_folder(run.checkpoints.parent, part.hash)
        path = find_newest(folder, part.hash, reporter)
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


def differences(theirs: JsonObject, ours: JsonObject) -> list[str]:
    """The values that two recipes do not share, in words."""
    there, here = flatten(theirs), flatten(ours)
    return [
        f"{key} is {_shown(there.get(key))} there and {_shown(here.get(key))} here"
        for key in sorted(there.keys() | here.keys())
        if there.get(key) != here.get(key)
    ]


def _shown(value: Any) -> str:
    """A value in few characters: hashes are long, and so are schedules."""
    text = "not set" if value is None else str(value)
    return text if len(text) <= 24 else f"{text[:12]}…"
