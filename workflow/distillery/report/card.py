"""The model card with what was measured: to be published instead of the pipeline's own.

The pipeline's card is written before anything is sampled, and its samples depend on that folder. So
the one with images and scores lies beside the report.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from huggingface_hub import EvalResult, ModelCard
from PIL import Image, ImageDraw, ImageFont

from distillery.files import atomic_path, write_text
from distillery.images import frames_of, thin_out
from distillery.input_images import own_images
from distillery.measures.lists import MEASURES
from distillery.measures.manifests import ModelSamples
from distillery.report.html import SMALL_PX
from distillery.report.image_grid import NUM_LEADING, spread
from distillery.report.roles import Roles
from distillery.report.tables import Table
from distillery.report.verdict import Check, Claims
from distillery.run_folder import STRIP
from distillery.words import counted, listed_numbers

STRIP_PX = 256
"""Edge of an image in the strip, at most; small ones are enlarged to twice their size."""
GAP_PX, LABEL_PX = 6, 24
"""Between images, and the height of a row's label."""
NUM_STILLS = 3
"""Frames of each clip in the strip, the first and the last among them: motion is seen in them."""
BEFORE = "## The right call"
"""Section of the pipeline's card that images and scores come before."""


def write_card(
    pipeline_card: Path,
    samples: Mapping[str, ModelSamples],
    roles: Roles,
    quality: Mapping[str, Any],
    claims: Claims,
    checks: Sequence[Check],
    table: Table,
    folder: Path,
    mark: str = "",
) -> None:
    """Write README.md, which ends with a mark, and strip.png."""
    named = (roles.reference, roles.student, roles.untrained, roles.rival)
    there = [name for name in dict.fromkeys(named) if name is not None and name in samples]
    models = roles.same.shown(there)
    labels = [roles.label(name) for name in models]
    calls = [
        f"{label}, {counted(samples[name].network_calls, 'network call')}"
        for name, label in zip(models, labels, strict=True)
    ]
    first = samples[models[0]]
    rows = spread(range(len(first.table)), NUM_LEADING // len(stills_of(first)))
    folder.mkdir(parents=True, exist_ok=True)
    inputs = read_inputs(first, rows)
    given = ["input"] if inputs else []
    with atomic_path(folder / STRIP) as temporary:
        strip = draw_strip([samples[name] for name in models], rows, [*given, *calls], inputs)
        strip.save(temporary, format="PNG")
    card = ModelCard(pipeline_card.read_text(encoding="utf-8"))
    data: Any = card.data
    data.model_name = str(card.text).strip().splitlines()[0].removeprefix("# ")
    data.eval_results = _results(quality, roles)
    sections = [
        "## What it draws", "", f"![{', '.join([*given, *labels])}]({STRIP})", "",
        f"{_columns(first, len(rows))}", "",
        "## How good it is", "", *_paragraphs(claims), *_answers(checks),
        *_table(table, models, roles), "",
        f"{quality['num_prompts']} held-out prompts, intervals of 95 %; judge: "
        f"{quality['judge']}.", "", "",
    ]  # fmt: skip
    before, _, rest = str(card.text).partition(BEFORE)
    card.text = before + "\n".join(sections) + BEFORE + rest
    write_text(folder / "README.md", f"{str(card).rstrip()}\n{mark}")


def read_inputs(model: ModelSamples, rows: Sequence[int]) -> list[Image.Image]:
    """The images beside the prompts of some rows; none where one is gone or has changed."""
    images = own_images(model.table.iloc[list(rows)])
    try:
        return [image.open() for image in images if image is not None]
    except (OSError, ValueError):
        return []


def draw_strip(
    models: Sequence[ModelSamples],
    rows: Sequence[int],
    labels: Sequence[str],
    inputs: Sequence[Image.Image] = (),
) -> Image.Image:
    """A row of images for each model under its label, of the same samples; of clips some frames of
    each. Above them the input images, each over the first frame of what was made from it."""
    images = [[frame for row in rows for frame in _read_stills(model, row)] for model in models]
    width, height = images[0][0].size
    share = 2.0 if width <= SMALL_PX else min(1.0, STRIP_PX / max(width, height))
    size = max(1, round(width * share)), max(1, round(height * share))
    blank = Image.new("RGB", size, "white")
    beside = [blank] * (len(stills_of(models[0])) - 1)
    above = [[it for given in inputs for it in (given, *beside)]] if inputs else []
    lines = [*above, *images]
    way = Image.Resampling.NEAREST if share > 1 else Image.Resampling.LANCZOS
    step_x, step_y = size[0] + GAP_PX, LABEL_PX + size[1] + GAP_PX
    whole = step_x * len(images[0]) - GAP_PX, step_y * len(lines) - GAP_PX
    strip = Image.new("RGB", whole, "white")
    pen, font = ImageDraw.Draw(strip), ImageFont.load_default(LABEL_PX * 2 // 3)
    for y, (label, line) in enumerate(zip(labels, lines, strict=True)):
        pen.text((0, y * step_y + LABEL_PX // 2), label, "black", font, anchor="lm")
        for x, image in enumerate(line):
            strip.paste(image.resize(size, way), (x * step_x, y * step_y + LABEL_PX))
    return strip


def stills_of(model: ModelSamples) -> list[int]:
    """The frames that are in the strip; of an image the only one."""
    return thin_out(range(model.num_frames), NUM_STILLS)


def _read_stills(model: ModelSamples, row: int) -> list[Image.Image]:
    frames = frames_of(model.read_pixels(row))
    return [Image.fromarray(frames[number]) for number in stills_of(model)]


def _columns(model: ModelSamples, num_rows: int) -> str:
    """What is in the strip's columns."""
    if model.num_frames == 1:
        return "Each column is one held-out prompt and one noise."
    numbers = listed_numbers([number + 1 for number in stills_of(model)])
    return (
        f"Columns: {counted(num_rows, 'held-out prompt')} with one noise each, frames {numbers} of "
        f"{model.num_frames}."
    )


def _results(quality: Mapping[str, Any], roles: Roles) -> list[EvalResult]:
    """The student's scores in the form that the hub lists."""
    assert roles.student is not None
    facts = quality["models"][roles.student]
    against = facts["against"].get(roles.reference, {})
    scores = {}
    for measure in MEASURES:
        if measure.is_in_card:
            scores[measure.name, measure.title] = facts.get(measure.name)
        if measure.is_in_card and measure.ratio:
            key = measure.ratio_key
            scores[key, f"{measure.title}, of {roles.whose}"] = against.get(key)
    return [
        EvalResult(
            task_type="text-to-video" if quality.get("num_frames") else "text-to-image",
            dataset_type="prompts",
            dataset_name=f"{quality['num_prompts']} held-out prompts",
            metric_type=kind,
            metric_name=name,
            metric_value=round(score["mean"], 4),
        )
        for (kind, name), score in scores.items()
        if score is not None and score["mean"] is not None
    ]


def _paragraphs(claims: Claims) -> list[str]:
    """The report's sentences, a paragraph each."""
    said = (claims.headline, claims.worth, claims.weakness, claims.summary)
    return [line for text in said if text for line in (text, "")]


def _answers(checks: Sequence[Check]) -> list[str]:
    """What was asked of the student, in Markdown."""
    if not checks:
        return []
    rows = (f"| {it.question} | {it.outcome}: {it.finding} |" for it in checks)
    return ["| asked | answer |", "|---|---|", *rows, ""]


def _table(table: Table, models: Sequence[str], roles: Roles) -> list[str]:
    """The metrics of some models, in Markdown."""
    lines = [
        f"| | {' | '.join(column.title for column in table.columns)} |",
        "|---" * (1 + len(table.columns)) + "|",
    ]
    for name in models:
        cells = (
            (cell.text or "\N{EN DASH}") + (f" ({cell.low_high})" if cell.low_high else "")
            for cell in table.rows[name]
        )
        lines.append(f"| {roles.label(name)} | {' | '.join(cells)} |")
    return lines
