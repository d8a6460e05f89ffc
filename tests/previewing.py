"""Tiny trainings that draw previews, and what these leave behind."""

import tiny
from distillery.files import write_json
from distillery.telemetry import Reporter
from distillery.training.previews import Previews
from distillery.training.run import PreviewPaths

NUM_PROMPTS = 3
IDS = [f"p{row:03d}" for row in range(NUM_PROMPTS)]
MOMENTS = [0, 32, 64]
FAST = {"learning_rate": 0.1}
"""So that the images change within 64 samples."""


def arguments(data, output, every_samples=32, num_prompts=NUM_PROMPTS, teacher=None, **settings):
    """The command line of a training whose previews are of the train split's first prompts.

    `teacher` are keys of that section.
    """
    tiny.write_training_job(output, **FAST | settings)
    section = {
        "path": str(data / "teacher"), "dtype": "float32", "height": tiny.HEIGHT,
        "width": tiny.WIDTH, "max_sequence_length": tiny.MAX_TOKENS,
    } | (teacher or {})  # fmt: skip
    write_json(
        output / "config/previews.json",
        {
            "seed": 0,
            "teacher": section,
            "student": {"steps": 4},
            "previews": {"every_samples": every_samples, "num_prompts": num_prompts},
        },
    )
    return [*tiny.train_arguments(data, output), *preview_options(data, output)]


def preview_options(data, output):
    """The part of the command line that says what previews read and write."""
    places = {
        "--previews": output / "student/previews",
        "--previews-config": output / "config/previews.json",
        "--eval-prompts": data / "prompts/train.parquet",
        "--eval-embeddings": data / "embeddings/train/manifest.json",
    }
    return [word for option, place in places.items() for word in (option, str(place))]


def share_of(data, output, rank):
    """The previews of one of two processes; nothing is drawn yet."""
    arguments(data, output)
    paths = PreviewPaths(
        previews=output / "previews",
        previews_config=output / "config/previews.json",
        eval_prompts=data / "prompts/train.parquet",
        eval_embeddings=data / "embeddings/train/manifest.json",
    )
    reporter = Reporter(output / "telemetry", "training", "training", "cpu")
    return Previews(paths, (rank, 2), "recipe", reporter)


def images(folder):
    """Every image by its path, as bytes."""
    root = folder / "student/previews"
    return {path.relative_to(root).as_posix(): path.read_bytes() for path in root.glob("*/p*.png")}


def expected(moments=MOMENTS):
    """The paths of the images of some moments."""
    return {f"samples-{seen:012d}/{prompt_id}.png" for seen in moments for prompt_id in IDS}
