"""A model's images on one sheet, each with its prompt below."""

from io import BytesIO
from math import ceil, sqrt
from pathlib import Path

from distillery.images import thin_out, write_sheet
from distillery.measures.manifests import read_samples

MAX_PROMPTS = 64
"""On a sheet, spread evenly over the table; the gallery has all."""
MAX_IMAGES = 8
"""Of a prompt."""


def make_sheet(manifest: Path, output: Path) -> None:
    """Write the sheet: a row for each prompt, or a square where each has one image.

    Args:
        manifest: of the model's samples.
        output: the PNG to write.
    """
    samples = read_samples(manifest.parent.name, manifest)
    prompts = samples.table.reset_index().groupby("prompt_id", sort=False).indices.values()
    rows = [
        [
            (str(samples.table["prompt"].iloc[row]), BytesIO(samples.read_bytes(row)))
            for row in of_prompt[:MAX_IMAGES]
        ]
        for of_prompt in thin_out(list(prompts), MAX_PROMPTS)
    ]
    if max(map(len, rows)) == 1:
        each = [entry for row in rows for entry in row]
        size = ceil(sqrt(len(each)))
        rows = [each[first : first + size] for first in range(0, len(each), size)]
    write_sheet(output, rows)
