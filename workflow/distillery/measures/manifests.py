"""Read what the samples stage lists: images, final latents, and the models that made them."""

import io
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
from PIL import Image
from safetensors.numpy import load

from distillery.files import hash_file, hash_json, repair_hint
from distillery.images import Pixels, poster, read_png
from distillery.noise import SampleId
from distillery.run_folder import RunFolder
from distillery.store.lacking import tables_listing
from distillery.store.sample_files import LATENTS, SampleFile, sample_file
from distillery.store.tables import read_table
from distillery.words import noun_of

COLUMNS = (
    "prompt_id", "prompt", "index", "noise_seed", "file", "sha256", "latents_file",
    "latents_sha256", "model", "steps", "guidance_scale", "network_calls", "is_black",
)  # fmt: skip
KEY = ["prompt_id", "index"]
MAX_NAMED = 5
"""Ids named in one message."""


@dataclass(frozen=True)
class ModelSamples:
    """The samples of one model.

    Attributes:
        model: its name in `samples.models`.
        folder: what the table's files are relative to.
        table: the manifest, one row per image, sorted by (prompt_id, index).
    """

    model: str
    folder: Path
    table: pd.DataFrame

    @property
    def steps(self) -> int:
        """Denoising steps of each image."""
        return int(self.table["steps"].iloc[0])

    @property
    def guidance_scale(self) -> float:
        """Classifier-free guidance; 1.0 means off."""
        return float(self.table["guidance_scale"].iloc[0])

    @property
    def guidance_scale_2(self) -> float | None:
        """Of the teacher's second network; None where both have the same."""
        column = "guidance_scale_2"
        return float(self.table[column].iloc[0]) if column in self.table else None

    @property
    def network_calls(self) -> int:
        """Forward passes of the denoiser for one image."""
        return int(self.table["network_calls"].iloc[0])

    @property
    def num_frames(self) -> int:
        """Of each clip; 1 of images."""
        return int(self.table["num_frames"].iloc[0]) if "num_frames" in self.table else 1

    @property
    def fps(self) -> int:
        """Frames of a clip per second; 1 of images."""
        return int(self.table["fps"].iloc[0]) if self.num_frames > 1 else 1

    @property
    def kind(self) -> str:
        """What a sample is, in words; of an image nothing more is to be said."""
        noun = noun_of(self.num_frames)
        return (
            noun
            if noun == "image"
            else f"{noun} of {self.num_frames} frames, {self.fps} per second"
        )

    @property
    def num_black(self) -> int:
        """Images whose every pixel is 0."""
        return int(self.table["is_black"].sum())

    @property
    def digest(self) -> str:
        """SHA-256 over the hashes of all images and latents; the same wherever the run lies."""
        columns = [*KEY, "sha256", "latents_sha256"]
        return hash_json({column: self.table[column].tolist() for column in columns})

    def row_of(self, sample: SampleId) -> int | None:
        """The row of a sample; None where there is none."""
        is_it = (self.table["prompt_id"] == sample.prompt_id) & (
            self.table["index"] == sample.index
        )
        return next(iter(np.flatnonzero(is_it).tolist()), None)

    def image(self, row: int) -> SampleFile:
        """The image of one row."""
        return sample_file(self.folder, self.table, row)

    def put_image(self, row: int, path: Path) -> None:
        """Give an image another path, if its bytes are as listed; errors as of `read_pixels`."""
        self.read_bytes(row)
        self.image(row).put(path)

    def read_bytes(self, row: int) -> bytes:
        """The PNG of one image; errors as of `read_pixels`."""
        return self._read(self.image(row))

    def read_image(self, row: int) -> Image.Image:
        """One image for a still page, of a clip its poster; errors as of `read_pixels`."""
        return poster(self.read_pixels(row))

    def read_pixels(self, row: int) -> Pixels:
        """One image (h, w, 3) or clip (f, h, w, 3), checked against the manifest's hash.

        Raises:
            ValueError: the file is missing, or is not the one the manifest was written for.
        """
        with Image.open(io.BytesIO(self.read_bytes(row))) as opened:
            return read_png(opened)

    def read_latents(self, row: int) -> npt.NDArray[np.float32]:
        """The final latents of one image, shape (c, f, h, w); errors as of `read_pixels`."""
        file = sample_file(self.folder, self.table, row, LATENTS)
        tensors = load(self._read(file))
        if "latents" not in tensors:
            raise ValueError(f"{file} holds {sorted(tensors)}: a tensor named 'latents' is needed")
        return np.asarray(tensors["latents"], dtype=np.float32)

    def _read(self, file: SampleFile) -> bytes:
        """A listed file's bytes, which must have the hash that the manifest gives."""
        content = file.read()
        if content is None or not file.is_of(content):
            why = "is not there" if content is None else "is not what its manifest lists"
            hint = repair_hint(*file.remade_without, *tables_listing(self.folder, file.name))
            raise ValueError(f"{file} of {self.model!r} {why}: {hint}")
        return content


def read_samples(model: str, path: Path) -> ModelSamples:
    """Read a samples manifest and check that it can be scored.

    Raises:
        ValueError: no such file, a missing column, no rows, a sample twice, or mixed settings.
    """
    if not path.is_file():
        raise ValueError(f"{path} is not there: generate the samples of {model!r} first")
    table = read_table(path)
    missing = [column for column in COLUMNS if column not in table.columns]
    if missing:
        tables = sorted(path.parent.glob("*.parquet"))
        raise ValueError(f"{path} has no column {', '.join(missing)}: {repair_hint(*tables)}")
    if table.empty:
        raise ValueError(f"{path} lists no image: generate the samples of {model!r} first")
    twice = table.duplicated(KEY)
    if twice.any():
        raise ValueError(f"{path} lists samples twice: {name_ids(table[twice])}")
    for column in ("steps", "guidance_scale", "network_calls"):
        if table[column].nunique() != 1:
            values = ", ".join(str(value) for value in sorted(table[column].unique()))
            raise ValueError(f"{path} mixes {column} {values}: one model samples in one way")
    return ModelSamples(model, path.parent, table.sort_values(KEY, ignore_index=True))


def check_pairs(reference: ModelSamples, other: ModelSamples) -> None:
    """Raise ValueError, naming ids, unless both have the same samples from the same noise."""
    for have, lack in ((reference, other), (other, reference)):
        merged = have.table[KEY].merge(lack.table[KEY], on=KEY, how="left", indicator=True)
        missing = merged[merged["_merge"] == "left_only"]
        if len(missing):
            raise ValueError(
                f"{lack.model!r} lacks {len(missing)} samples that {have.model!r} has: "
                f"{name_ids(missing)}; generate them, or remove the model from samples.models"
            )
    for column in ("prompt", "noise_seed"):
        differs = reference.table[column] != other.table[column]
        if differs.any():
            tables = [*reference.folder.glob("*.parquet"), *other.folder.glob("*.parquet")]
            raise ValueError(
                f"{other.model!r} and {reference.model!r} differ in {column} of "
                f"{name_ids(reference.table[differs])}, samples of two runs are mixed: "
                f"{repair_hint(*sorted(tables))}"
            )


def why_not_scored(
    run: RunFolder, quality: Mapping[str, Any], samples: Mapping[str, ModelSamples]
) -> str:
    """Why quality.json is not of a run's images and scores; "" where it is, or does not tell.

    Earlier releases did not write there what they scored. Raises ValueError for damaged scores.
    """
    scored = quality.get("models", {})
    others = [
        name
        for name, found in samples.items()
        if "images" in scored.get(name, {}) and scored[name]["images"] != found.digest
    ]
    if others:
        return f"it scores other images of {', '.join(others)} than this run's"
    if run.scores.is_file() and quality.get("scores") not in (None, hash_file(run.scores)):
        read_table(run.scores)  # a damaged one is told as such
        return f"it was not made with {run.scores}"
    return ""


def check_scored(
    run: RunFolder, quality: Mapping[str, Any], samples: Mapping[str, ModelSamples]
) -> None:
    """Raise ValueError for scores that are not of a run's images: of another run, or earlier."""
    why = why_not_scored(run, quality, samples)
    if why:
        raise ValueError(f"{run.quality}: {why}: {repair_hint(run.quality, run.scores)}")


def name_ids(table: pd.DataFrame) -> str:
    """The first few samples of a table as prompt_id/index."""
    shown = table.head(MAX_NAMED)
    names = [str(SampleId(*key)) for key in zip(shown["prompt_id"], shown["index"], strict=True)]
    more = len(table) - len(names)
    return ", ".join(names) + (f" and {more} more" if more > 0 else "")
