"""The image grid: which samples are shown, and each as a data URI of moderate size."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from distillery.images import find_moments, is_preview, thin_out
from distillery.measures.manifests import ModelSamples
from distillery.noise import SampleId
from distillery.report.html import SMALL_PX, THUMBNAIL_PX, inline, link_to
from distillery.report.inputs import Input, inputs_of
from distillery.run_folder import RunFolder
from distillery.store.tables import read_table

MAX_SHOWN = 24
"""Samples in the grid; the rest is linked."""
NUM_OPEN = 6
"""Of each group in sight; the others are folded."""
NUM_WORST = 6
"""Of those, samples with the student's worst value of a metric, for each of two metrics."""
LEAST_COLUMN_PX, GAP_PX, FRAME_PX = 96, 10, 28
"""Of a card, as in report.css: 6rem, the gap of a strip, padding and border of both sides."""
LARGE_COLUMN_PX = 280
"""A card of larger images has so much for each of them."""
NUM_LEADING, LEADING_PX = 6, 200
"""Samples on the first screen, and the width down to which their images are scaled."""
MAX_MOMENTS = 6
"""Columns of previews in the report."""
MAX_PROMPTS = 8
"""Rows of it."""


@dataclass(frozen=True)
class Cell:
    """One image or clip with its scores; None where a score was not measured."""

    model: str
    uri: str
    link: str
    width: int
    height: int
    is_small: bool
    is_black: bool
    clip_score: float | None
    rank: int | None
    psnr_db: float | None
    still: str | None = None


@dataclass(frozen=True)
class Row:
    """One sample by every model, and what they were given beside the prompt."""

    prompt_id: str
    index: int
    prompt: str
    images: tuple[Cell, ...]
    input: Input | None = None


@dataclass(frozen=True)
class LeadingRow:
    """One model's images on the first screen."""

    model: str
    network_calls: int
    images: tuple[Cell, ...]


@dataclass(frozen=True)
class Lead:
    """The first screen: a row for each model, a column for each prompt.

    Attributes:
        kind: of the samples, see `ModelSamples.kind`.
        inputs: of the prompts; empty where they have no images.
    """

    prompts: tuple[str, ...]
    rows: tuple[LeadingRow, ...]
    how_chosen: str
    kind: str
    inputs: Sequence[Input] = ()


@dataclass(frozen=True)
class Group:
    """Rows that are shown for one reason."""

    title: str
    rows: tuple[Row, ...]


@dataclass(frozen=True)
class Grid:
    """All that is shown, and of how many."""

    groups: tuple[Group, ...]
    num_shown: int
    num_samples: int

    @property
    def is_small(self) -> bool:
        """Whether images are shown enlarged, at exactly twice their size."""
        return self.groups[0].rows[0].images[0].is_small

    @property
    def image_px(self) -> int:
        """Width at which an image is shown."""
        return max(image.width for image in self.groups[0].rows[0].images)

    @property
    def num_columns(self) -> int:
        """Models, and the input before them where prompts have one."""
        row = self.groups[0].rows[0]
        return len(row.images) + (row.input is not None)

    @property
    def card_px(self) -> int:
        """Least width of a card; one of small images shows every model without scrolling."""
        if not self.is_small:
            return self.num_columns * LARGE_COLUMN_PX
        column_px = max(self.image_px, LEAST_COLUMN_PX)
        return self.num_columns * column_px + (self.num_columns - 1) * GAP_PX + FRAME_PX


def make_grid(
    samples: Mapping[str, ModelSamples],
    scores: pd.DataFrame | None,
    student: str | None,
    output_folder: Path,
) -> Grid:
    """Choose and inline the images.

    Args:
        samples: each model's samples, in the order of the columns; all of the same prompts.
        student: whose worst samples are shown.
        output_folder: where the report will lie; links are relative to it.
    """
    table = next(iter(samples.values())).table
    chosen = choose_rows(table, scores, student)
    inputs = GridInputs(samples, _score_lookup(scores), output_folder)
    groups = tuple(
        Group(title, tuple(inputs.row(number) for number in numbers))
        for title, numbers in chosen.items()
        if numbers
    )
    return Grid(groups, sum(len(group.rows) for group in groups), len(table))


def make_lead(
    samples: Mapping[str, ModelSamples],
    models: Sequence[str | None],
    output_folder: Path,
    chosen: Sequence[int] | None = None,
) -> Lead | None:
    """A few images of the models that matter; None without two of them.

    Args:
        samples: each model's samples; all of the same prompts.
        models: names in the order of the rows; those without samples are left out.
        output_folder: where the report will lie; links are relative to it.
        chosen: rows of the tables; None: some at equal distances.
    """
    names = [name for name in dict.fromkeys(models) if name is not None and name in samples]
    if len(names) < 2:
        return None
    table = samples[names[0]].table
    how_chosen = "" if chosen is not None else ", chosen at equal distances over all of them"
    if chosen is None:
        chosen = spread(range(len(table)), NUM_LEADING)
    inputs = GridInputs(samples, {}, output_folder, LEADING_PX)
    rows = tuple(
        LeadingRow(
            name,
            samples[name].network_calls,
            tuple(inputs.image(samples[name], number) for number in chosen),
        )
        for name in names
    )
    prompts = tuple(str(table["prompt"].iloc[number]) for number in chosen)
    given = inputs_of(table, chosen, LEADING_PX)
    return Lead(prompts, rows, how_chosen, samples[names[0]].kind, given)


def choose_rows(
    table: pd.DataFrame, scores: pd.DataFrame | None, student: str | None
) -> dict[str, list[int]]:
    """Title to row numbers of `table`: spread over all samples, then where the student is worst.

    No sample is shown twice.
    """
    worst: dict[str, list[int]] = {}
    if scores is not None and student is not None:
        worst = _choose_worst(table, scores[scores["model"] == student], student)
    taken = {number for numbers in worst.values() for number in numbers}
    rest = [number for number in range(len(table)) if number not in taken]
    evenly = spread(rest, MAX_SHOWN - len(taken))
    return {"Spread evenly over the held-out prompts": evenly} | worst


def _choose_worst(table: pd.DataFrame, scores: pd.DataFrame, student: str) -> dict[str, list[int]]:
    """The student's farthest from the reference, then the least like their prompt."""
    ordered = table[["prompt_id", "index"]].merge(scores, on=["prompt_id", "index"], how="left")
    num_worst = min(NUM_WORST, len(ordered) // 4)
    farthest = ordered["psnr_db"].dropna().sort_values(kind="stable").index[:num_worst]
    rest = ordered.drop(index=farthest)
    rest = rest.sort_values(["rank", "clip_score"], ascending=[False, True], kind="stable")
    return {
        f"Farthest from the reference: lowest PSNR of {student}": [int(row) for row in farthest],
        f"Least like the prompt: lowest retrieval rank of {student}": [
            int(row) for row in rest.index[:num_worst]
        ],
    }


def spread(items: Sequence[int], count: int) -> list[int]:
    """Up to `count` items at equal distances, the first among them."""
    if len(items) <= count:
        return list(items)
    return [items[position * len(items) // count] for position in range(count)]


@dataclass(frozen=True)
class GridInputs:
    """What a row of the grid is made of."""

    samples: Mapping[str, ModelSamples]
    scores: Mapping[tuple[str, str, int], Mapping[str, Any]]
    output_folder: Path
    width: int = THUMBNAIL_PX

    def row(self, number: int) -> Row:
        """One sample by every model."""
        table = next(iter(self.samples.values())).table
        first = table.iloc[number]
        images = tuple(self.image(model, number) for model in self.samples.values())
        given = next(iter(inputs_of(table, [number], self.width)), None)
        return Row(
            str(first["prompt_id"]), int(first["index"]), str(first["prompt"]), images, given
        )

    def image(self, model: ModelSamples, number: int) -> Cell:
        """One image of one model."""
        row = model.table.iloc[number]
        scores = self.scores.get((model.model, str(row["prompt_id"]), int(row["index"])), {})
        shown = inline(model.read_bytes(number), model.fps, self.width)
        is_small = shown.width <= SMALL_PX
        scale = 2 if is_small else 1
        return Cell(
            model=model.model,
            uri=shown.uri,
            link=link_to(model.image(number).page, self.output_folder),
            width=shown.width * scale,
            height=shown.height * scale,
            is_small=is_small,
            is_black=bool(row["is_black"]),
            clip_score=_number(scores.get("clip_score")),
            rank=None if scores.get("rank") is None else int(scores["rank"]),
            psnr_db=_number(scores.get("psnr_db")),
            still=shown.still,
        )


def _score_lookup(scores: pd.DataFrame | None) -> dict[tuple[str, str, int], Mapping[str, Any]]:
    """Scores by (model, prompt id, index)."""
    if scores is None:
        return {}
    rows = scores.to_dict(orient="records")
    return {(row["model"], row["prompt_id"], int(row["index"])): _named(row) for row in rows}


def _named(row: Mapping[Any, Any]) -> Mapping[str, Any]:
    """A record with text keys."""
    return {str(key): value for key, value in row.items()}


def _number(value: float | None) -> float | None:
    """A finite score or None; tables hold NaN where nothing was measured."""
    return None if value is None or pd.isna(value) else float(value)


# ---- previews -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Shown:
    """One image of the sheet."""

    uri: str
    link: str
    width: int
    height: int
    still: str | None


@dataclass(frozen=True)
class PreviewSheet:
    """Previews over time.

    Attributes:
        moments: samples seen, one a column.
        rows: prompt and its images, one a moment; and the teacher's, or None.
        inputs: one a row; empty where prompts have no images.
    """

    moments: Sequence[int]
    rows: Sequence[tuple[str, Sequence[Shown], Shown | None]]
    inputs: Sequence[Input] = ()

    @property
    def has_teacher(self) -> bool:
        """Whether there is a last column."""
        return any(teacher is not None for *_, teacher in self.rows)


def gather_previews(
    run_folder: RunFolder,
    recipes: Sequence[str],
    teacher: ModelSamples | None,
    output_folder: Path,
    fps: int,
) -> PreviewSheet | None:
    """The previews of this training, thinned out; None without any.

    Args:
        recipes: as for `gather_training`.
        teacher: the model whose samples have the same noise and many steps, for the last column.
        output_folder: where the report will lie; links are relative to it.
        fps: frames of a clip per second.
    """
    root, table = run_folder.previews, run_folder.prompts("eval")
    if not table.is_file():
        return None
    first = read_table(table).head(MAX_PROMPTS).set_index("prompt_id", drop=False)
    texts = first["prompt"]
    prompts = {
        str(name): str(text)
        for name, text in texts.items()
        if any(
            is_preview(path, recipe, text)
            for path in root.glob(f"samples-*/{name}.png")
            for recipe in recipes
        )
    }
    if not prompts:
        return None
    found = {moment for recipe in recipes for moment in find_moments(root, prompts, recipe)}
    moments = thin_out(sorted(found), MAX_MOMENTS)
    if not moments:
        return None
    rows = []
    for name, text in prompts.items():
        shown = [_show_file(moment / f"{name}.png", output_folder, fps) for moment in moments]
        number = None if teacher is None else teacher.row_of(SampleId(name, 0))
        last = None
        if teacher is not None and number is not None:
            page = teacher.image(number).page
            last = _show(teacher.read_bytes(number), page, output_folder, fps)
        rows.append((text, shown, last))
    seen = [int(moment.name.split("-")[1]) for moment in moments]
    return PreviewSheet(seen, rows, inputs_of(first.loc[list(prompts)], range(len(prompts))))


def _show_file(path: Path, output_folder: Path, fps: int) -> Shown:
    return _show(path.read_bytes(), path, output_folder, fps)


def _show(content: bytes, page: Path, output_folder: Path, fps: int) -> Shown:
    it = inline(content, fps)
    return Shown(it.uri, link_to(page, output_folder), it.width, it.height, it.still)
