"""Pages of all images, beside them: to filter by words and by category, sort by scores, enlarge and
compare."""

import json
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pandas as pd

from distillery.files import atomic_path, read_sealed, write_text
from distillery.input_images import MAX_THREADS, InputImage, own_images
from distillery.measures.lists import MEASURES
from distillery.measures.manifests import KEY, ModelSamples, check_pairs, check_scored, read_samples
from distillery.report.categories import CATEGORY, as_name
from distillery.report.html import ICON, link_to, own_file, page_environment
from distillery.report.image_grid import spread
from distillery.report.inputs import read_input
from distillery.report.roles import MARKS, Part, SameImages, find_same, usual_part
from distillery.run_folder import RunFolder
from distillery.store.marks import hash_made_of, mark_of
from distillery.store.sample_files import is_of_tars
from distillery.store.tables import read_table
from distillery.words import noun_of

PER_PAGE = 200
"""Samples on a page, each with an image of every model; images load as they come into view."""
CLIPS_PER_PAGE = 40
"""Of clips, whose files are as many times larger as they have frames."""
SCORES = {measure.in_scores: measure.sorts for measure in MEASURES if measure.sorts}
"""Columns of the scores by which samples can be sorted, and their names on the page."""
FORMS = {
    measure.in_scores: (0, "") if measure.column else (measure.form.digits, measure.form.unit)
    for measure in MEASURES
    if measure.sorts
}
"""Digits and unit of each; a column that a measure makes its number from is a whole number."""
FIRST_PARTS: frozenset[Part] = frozenset({"reference", "student", "untrained"})
MAX_COLUMNS = 4
"""Of more models the main ones are shown until others are chosen."""
DIGITS = 4
VIEWER_PX = 4096
"""Width of the image beside a prompt, at most: it can be enlarged as the samples can."""
MOST, MOST_OF_TARS = 20_000, 400
"""Samples in the gallery: of more, the best and the worst by each score, and others spread evenly.
Of tars they are copied beside the pages, an image of 1024 px some 1.5 MB."""
IMAGES = "images"
"""Folder beside the pages, of images that no page can link to."""
INPUTS = "inputs"
"""Folder beside the pages, of the images beside prompts: pages still have them where results are
moved."""


@dataclass(frozen=True)
class Shot:
    """One image: its file below the model's folder, and the scores that it has."""

    file: str
    scores: Mapping[str, float]


@dataclass(frozen=True)
class Given:
    """The image beside a prompt: its file beside the pages, or why there is none."""

    file: str
    lost: str


@dataclass(frozen=True)
class Sample:
    """One prompt and noise by every model, in their order."""

    prompt_id: str
    index: int
    prompt: str
    shots: tuple[Shot, ...]
    category: str = ""
    input: Given | None = None


def make_gallery(manifests: Sequence[Path], scores: Path | None, output: Path) -> None:
    """Write the pages and, for filtering and sorting over all of them, their rows as a script.

    Models whose images are the same have one column.

    Args:
        manifests: of the models' samples, in the order of the columns.
        scores: scores.parquet; None where nothing was scored.
        output: folder to write; its links to the images are relative to it.

    Raises:
        ValueError: a manifest that cannot be read, models of other prompts or noises, or scores of
            other images.
    """
    listed = [read_samples(path.parent.name, path) for path in manifests]
    for model in listed:
        check_pairs(listed[0], model)
    by_name = {model.model: model for model in listed}
    run = RunFolder(output.parent)
    if scores and run.quality.is_file():
        check_scored(run, read_sealed(run.quality), by_name)
    same = find_same(by_name)
    models = [model for model in listed if model.model not in same.kept]
    noun = noun_of(models[0].num_frames)
    per_page = CLIPS_PER_PAGE if noun == "clip" else PER_PAGE
    template = page_environment().get_template("gallery/page.html.j2")
    columns = columns_of(models, same, output)
    mark = mark_of(hash_made_of([*manifests, *([scores] if scores else [])]))
    with atomic_path(output) as folder:
        folder.mkdir()
        found = read_table(scores) if scores else None
        total, rows = len(models[0].table), choose(models, found)
        models = [replace(model, table=model.table.iloc[rows]) for model in models]
        given = write_inputs(own_images(models[0].table), folder)
        write_images(models, folder)
        samples = gather(models, found, given)
        pages = [samples[start : start + per_page] for start in range(0, len(samples), per_page)]
        present = {name for sample in samples for shot in sample.shots for name in shot.scores}
        scored = [name for name in SCORES if name in present]
        several = bool(models[0].table["prompt_id"].duplicated().any())
        has_blind = len(columns) > 1 or several
        for number, page in enumerate(pages, 1):
            text = template.render(
                run=output.parent.name,
                noun=noun,
                kind=models[0].kind,
                style=own_file("gallery/gallery.css"),
                script=own_file("gallery/gallery.js"),
                models=columns,
                num_columns=len(columns) + (given[0] is not None),
                second=_second(models),
                samples=page,
                number=number,
                icon=ICON,
                forms=FORMS,
                has_blind=has_blind,
                names=[name_of(page) for page in range(1, len(pages) + 1)],
                num_samples=len(samples),
                num_left_out=total - len(samples),
                scored={name: SCORES[name] for name in scored},
                categories=list(dict.fromkeys(it.category for it in samples if it.category)),
            )
            write_text(folder / name_of(number), f"{text.rstrip()}\n{mark}")
        if has_blind:
            shared = {"noun": noun, "models": columns, "second": _second(models)}
            write_blind(folder, output.parent.name, several, shared)
        write_text(folder / "rows.js", rows_script(columns, samples, scored, per_page))


def columns_of(
    models: Sequence[ModelSamples], same: SameImages, output: Path
) -> list[dict[str, Any]]:
    """What the pages know of each model; which are shown at first, where there are many."""
    columns: list[dict[str, Any]] = [
        {
            "name": same.label(model.model),
            "key": model.model,
            "folder": folder_of(model, output),
            "glyph": MARKS[usual_part(model)].glyph,
            "colour": MARKS[usual_part(model)].colour,
            "digest": model.digest,
            "is_first": len(models) <= MAX_COLUMNS or usual_part(model) in FIRST_PARTS,
        }
        for model in models
    ]
    if any(column["is_first"] for column in columns):
        return columns
    return [column | {"is_first": True} for column in columns]


def write_blind(folder: Path, run: str, has_several: bool, shared: Mapping[str, Any]) -> None:
    """The page that asks for the better of two images, beside the gallery's.

    Args:
        has_several: whether a prompt has several images, which may be asked about, too.
        shared: what both pages are told.
    """
    text = (
        page_environment()
        .get_template("gallery/blind.html.j2")
        .render(
            run=run,
            icon=ICON,
            style=own_file("gallery/gallery.css"),
            script=own_file("gallery/blind.js"),
            has_several=has_several,
            **shared,
        )
    )
    write_text(folder / "blind.html", text)


def choose(models: Sequence[ModelSamples], scores: pd.DataFrame | None) -> list[int]:
    """The rows that are shown, in order: all, or so many by the scores of the second model."""
    table = models[0].table
    most = MOST_OF_TARS if is_of_tars(table) else MOST
    if len(table) <= most:
        return list(range(len(table)))
    chosen = set[int]()
    if scores is not None:
        own = scores[scores["model"] == models[_second(models)].model]
        names = [name for name in SCORES if name in own]
        own = table[KEY].merge(own[[*KEY, *names]], on=KEY, how="left")
        for name in names:
            order = own[name].dropna().sort_values(kind="stable").index
            number = most // (4 * len(names))
            chosen |= {*order[:number], *order[-number:]}
    rest = [row for row in range(len(table)) if row not in chosen]
    return sorted(chosen | set(spread(rest, most - len(chosen))))


def folder_of(model: ModelSamples, gallery: Path) -> str:
    """Where a page finds a model's images."""
    is_copied = is_of_tars(model.table)
    return link_to(gallery / IMAGES / model.model if is_copied else model.folder, gallery)


def write_images(models: Sequence[ModelSamples], gallery: Path) -> None:
    """Copy images out of tars, each checked."""
    for model in models:
        if is_of_tars(model.table):
            files = file_names(model)
            with ThreadPoolExecutor(MAX_THREADS) as pool:
                paths = (gallery / IMAGES / model.model / file for file in files)
                list(pool.map(model.put_image, range(len(files)), paths))


def file_names(model: ModelSamples) -> list[str]:
    """The names of the images below `folder_of`."""
    names = model.table["file"]
    return (names.str.partition("/")[2] if is_of_tars(model.table) else names).tolist()


def _second(models: Sequence[ModelSamples]) -> int:
    """The model beside the first unless another is chosen: the student, or the last."""
    names = [model.model for model in models]
    return names.index("student") if "student" in names else len(names) - 1


def name_of(page: int) -> str:
    """The file of a page, from 1."""
    return "index.html" if page == 1 else f"page-{page}.html"


def write_inputs(images: Sequence[InputImage | None], gallery: Path) -> list[Given | None]:
    """Write each image once, and say for all of them where it is."""

    def write(image: InputImage) -> Given:
        found = read_input(image, VIEWER_PX)
        if found.lost:
            return Given("", found.lost)
        file = f"{INPUTS}/{image.sha256}.webp"
        (gallery / file).write_bytes(found.content)
        return Given(file, "")

    by_path = {image.path: image for image in images if image is not None}
    if by_path:
        (gallery / INPUTS).mkdir()
    with ThreadPoolExecutor(MAX_THREADS) as pool:
        written = dict(zip(by_path, pool.map(write, by_path.values()), strict=True))
    return [None if image is None else written[image.path] for image in images]


def gather(
    models: Sequence[ModelSamples], scores: pd.DataFrame | None, given: Sequence[Given | None]
) -> list[Sample]:
    """All samples in the order of the manifests."""
    found: dict[tuple[str, str, int], Mapping[str, float]] = {}
    if scores is not None:
        scores = models[0].table[KEY].merge(scores, on=KEY)
        for row in scores.to_dict(orient="records"):
            values = {name: row[name] for name in SCORES if name in row}
            found[row["model"], row["prompt_id"], int(row["index"])] = {
                name: round(float(value), DIGITS)
                for name, value in values.items()
                if value is not None and not pd.isna(value)
            }
    files = list(map(file_names, models))
    first = models[0].table
    categories = map(as_name, first[CATEGORY] if CATEGORY in first else [""] * len(first))
    keys = zip(first["prompt_id"], first["index"], first["prompt"], categories, strict=True)
    return [
        Sample(
            str(prompt_id),
            int(index),
            str(prompt),
            tuple(
                Shot(str(each[row]), found.get((model.model, prompt_id, int(index)), {}))
                for model, each in zip(models, files, strict=True)
            ),
            category,
            given[row],
        )
        for row, (prompt_id, index, prompt, category) in enumerate(keys)
    ]


def rows_script(
    models: Sequence[Mapping[str, Any]],
    samples: Sequence[Sample],
    scored: Sequence[str],
    per_page: int,
) -> str:
    """A script that holds all rows: a page that is opened as a file may load nothing else."""
    rows = [
        [
            sample.prompt_id,
            sample.index,
            sample.prompt,
            [[shot.file, *(shot.scores.get(name) for name in scored)] for shot in sample.shots],
            *([sample.category] if sample.category or sample.input else []),
            *([[sample.input.file, sample.input.lost]] if sample.input else []),
        ]
        for sample in samples
    ]
    content = {
        "models": list(models),
        "scored": list(scored),
        "forms": {name: FORMS[name] for name in scored},
        "rows": rows,
        "perPage": per_page,
    }
    # A script ends at the first "</script", and prompts are users' text.
    text = json.dumps(content, ensure_ascii=False, separators=(",", ":")).replace("</", "<\\/")
    return f"const GALLERY = {text};\n"
