"""Previews: images of held-out prompts while the student trains."""

from typing import Annotated

from pydantic import Field

from distillery.config.section import Count, CountOrNone, NoResult, Section


class Previews(Section):
    """Images of the first held-out prompts, drawn during the training; no result depends on them.

    Every process draws its share. It takes the VAE's memory, and the time of the images.
    """

    every_samples: Annotated[CountOrNone, NoResult] = Field(
        0,
        description="training samples between two previews; 0: none, and no VAE beside the "
        "student. Later you can ask for those of any kept checkpoint, by their file: `snakemake "
        "--cores all results/{run}/student/previews/samples-000000003200/sheet.png --configfile "
        "config/mine.yaml`",
    )
    num_prompts: Annotated[Count, NoResult] = Field(
        8,
        description="draw the first so many held-out prompts, each from the noise of its first "
        "sample; best a multiple of the number of processes",
    )
