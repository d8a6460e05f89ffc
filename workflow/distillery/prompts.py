"""Read prompt files to one checked table, and split one file into train and eval prompts.

A bad row is named with its line, and nothing is generated until all are good. A column that asks
for something that this workflow would not do is refused, so that no image stands beside a
setting that it was not made with.
"""

import hashlib
import io
import json
import re
import unicodedata
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from math import floor, isnan
from pathlib import Path
from typing import Any

import pandas as pd

from distillery.encodings import explain_control, find_control
from distillery.input_images import IMAGE, SHA256, add_images, own_images
from distillery.noise import check_prompt_id, shorten
from distillery.prompt_files import read_rows

REQUIRED = ("prompt_id", "prompt")
NEGATIVE = "negative_prompt"
"""A prompt's own negative prompt; an empty cell means the run's."""
SIZE = ("height", "width")
"""A prompt's own size in pixels, both or neither; empty cells mean the run's."""
TEXTS = (*REQUIRED, NEGATIVE)
OURS = (*TEXTS, *SIZE)
RESERVED = (
    "index", "noise_seed", "file", "sha256", "latents_file", "latents_sha256", "model", "steps",
    "guidance_scale", "network_calls", "width", "height", "is_black", "recipe", "shard",
)  # fmt: skip
"""Columns of the samples' manifest that are ours; a prompt file's own stand beside them."""
RESERVED_FOR_PAIRS = ("guidance_scale_2",)
"""One more of them, where a teacher of two networks has two scales."""
RESERVED_FOR_CLIPS = ("num_frames", "fps")
RESERVED_FOR_SHARDS = ("file_begin", "file_bytes", "latents_begin", "latents_bytes")
RESERVED_BY_DATASET = ("file_name", "device", "seconds")
"""Columns that a data set's tables have beside those."""
RESERVED_FURTHER = (
    *RESERVED_FOR_PAIRS, *RESERVED_FOR_CLIPS, *RESERVED_FOR_SHARDS, *RESERVED_BY_DATASET,
)  # fmt: skip
SAID_ELSEWHERE = {
    "rename it to negative_prompt, which each prompt may have": "negative_prompt negative_prompts "
    "negative negatives neg neg_prompt uncond uncond_prompt",
    "all text encoders read the column prompt": "prompt prompt_2 prompt_3 negative_prompt_2 "
    "negative_prompt_3",
    "the noise follows from the run's seed and the prompt's id": "seed seeds noise_seed "
    "base_seed generator",
    "a prompt's own size is height and width, in pixels": "height width resolution size "
    "image_size aspect_ratio ratio original_size target_size negative_original_size "
    "negative_target_size crops_coords_top_left negative_crops_coords_top_left "
    "use_resolution_binning",
    "a run has clips of one length and speed, teacher.num_frames and teacher.fps": "num_frames fps "
    "frame_rate",
    "guidance is of a whole model, targets.guidance_scale and samples.models": "guidance "
    "guidance_scale guidance_scale_2 guidance_rescale cfg cfg_scale true_cfg_scale true_cfg "
    "skip_guidance_layers skip_layer_guidance_scale skip_layer_guidance_stop "
    "skip_layer_guidance_start",
    "steps are of a whole model, targets.steps and samples.models": "steps num_steps "
    "num_inference_steps inference_steps sampling_steps timesteps sigmas denoising_end",
    "the sampler is teacher.scheduler": "scheduler scheduler_name sampler sampler_name eta mu",
    "adapters are of a whole run, teacher.adapters": "lora loras lora_scale lora_weight adapter "
    "adapters cross_attention_kwargs joint_attention_kwargs attention_kwargs",
    "teacher.path names the model": "model model_id model_name checkpoint refiner",
    "samples.images_per_prompt says how many images": "num_images images_per_prompt "
    "num_images_per_prompt num_videos_per_prompt",
    "the text encoders read prompts in one way, teacher.max_sequence_length": "clip_skip "
    "max_sequence_length clean_caption complex_human_instruction",
    "an image is made from text and noise alone": "ip_adapter_image ip_adapter_image_embeds "
    "negative_ip_adapter_image negative_ip_adapter_image_embeds ip_adapter ip_adapter_scale "
    "init_image mask_image control_image controlnet strength denoise denoising_strength hires "
    "hires_fix",
}
"""Why a column would change nothing, and names that such columns have: arguments of stock calls for
one image, and what other tools call them."""
LIKE_PROMPT = ("prompt", "prompts", "caption", "text")
LIKE_ID = ("prompt_id", "id")
INVISIBLE = ("Cc", "Cf", "Mn", "Zl", "Zp", "Zs")
"""Unicode categories that leave no mark by themselves; below, letters that do not either."""
INVISIBLE_LETTERS = "\u115f\u1160\u2800\u3164\uffa0"
MAX_PROBLEMS_SHOWN = 20
MAX_DIGITS = 5
"""Of an image's height or width."""
BAD = -1
"""In place of pixels."""


def check_prompt_file(path: Path) -> None:
    """Raise FileNotFoundError where there is no such file."""
    if not path.is_file():
        what = "is no file" if path.exists() else "does not exist"
        raise FileNotFoundError(
            f"the prompt file {path} {what}: create it, or correct the path under `prompts` in the "
            "configuration"
        )


def read_prompts(
    path: Path,
    notes: Sequence[str] = (),
    numbered: str = "p",
    takes_images: bool = True,
    size: tuple[int, int] | None = None,
) -> pd.DataFrame:
    """Read and check a prompt file.

    Args:
        path: .csv, .tsv, .jsonl or .parquet with the columns `prompt` and, if prompts have names,
            `prompt_id` (more columns are kept), or .txt with one prompt per line.
        notes: columns that are kept and change nothing, though their names may say otherwise.
        numbered: what the ids of prompts without one begin with: p00000, p00001, ...
        takes_images: whether the teacher is given a column `image`.
        size: height and width that images must have; None: any.

    Returns:
        One row per prompt in the file's order; `prompt_id` and `prompt` are strings and come first.
        A column `negative_prompt` holds strings, empty where the run's is meant; `height` and
        `width` are integers or missing. A column `image` holds paths from here, and `image_sha256`
        the hashes of the files.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: not UTF-8, empty, a column missing, of several types or with a meaning that it
            would not have, or bad rows, all named with their lines.
    """
    check_prompt_file(path)
    rows = read_rows(path)
    table, lines = rows.table, rows.lines
    _check_columns([str(name) for name in table.columns], path, notes)
    if table.empty:
        raise ValueError(f"{path} holds no prompts: write at least one")
    if "prompt_id" not in table:
        # By lines, so that an empty one moves no ids.
        table["prompt_id"] = [f"{numbered}{line - rows.first:05d}" for line in lines]
    if NEGATIVE in table:
        table[NEGATIVE] = _without_blanks(table[NEGATIVE])
    _check_rows(table, lines, path)
    if SIZE[0] in table:
        _read_sizes(table, lines, path)
    if IMAGE in table and IMAGE not in notes:
        _check_takes_images(takes_images, path)
        problems = add_images(table, path.parent, size)
        _refuse_rows([f"{_unit(path)} {lines[row]}: {it}" for row, it in problems], path)
    _check_types(table, lines, path)
    others = [column for column in table.columns if column not in REQUIRED]
    return table[[*REQUIRED, *others]].reset_index(drop=True)


def _check_takes_images(takes_images: bool, path: Path) -> None:
    """Raise ValueError for images that nothing is given."""
    if not takes_images:
        raise ValueError(
            f"{path} has a column {IMAGE}, and this run's teacher is given none: set "
            "teacher.trace.image to the argument of its call that takes one (a pipeline without an "
            "adapter, see docs/teachers.md), or remove the column, or list it under prompts.notes"
        )


def own_negatives(table: pd.DataFrame) -> list[str | None]:
    """Each row's own negative prompt; None where it has the run's."""
    if NEGATIVE not in table:
        return [None] * len(table)
    return [value or None for value in table[NEGATIVE]]


def own_sizes(table: pd.DataFrame) -> list[tuple[int, int] | None]:
    """Each row's own height and width; None where it has the run's."""
    if SIZE[0] not in table:
        return [None] * len(table)
    pairs = zip(*(table[name] for name in SIZE), strict=True)
    return [None if pd.isna(height) else (int(height), int(width)) for height, width in pairs]


def texts_of_rows(table: pd.DataFrame, guided: bool) -> list[list[str]]:
    """The texts that an image of each row is made from: the prompt and, guided, its own negative
    prompt.

    One text where there is none of its own, so that a file without such a column has the same
    digests as ever.
    """
    rows = zip(table["prompt"].tolist(), own_negatives(table), strict=True)
    return [[prompt, own] if guided and own is not None else [prompt] for prompt, own in rows]


def made_of_rows(table: pd.DataFrame, guided: bool, sized: bool = True) -> list[list[Any]]:
    """What an image of each row is made from: `texts_of_rows` and, where it has one of its own, the
    size; where it is made from an image, its hash.

    Args:
        sized: whether the table's sizes are the prompts' own, and not those of a whole run.
    """
    texts = texts_of_rows(table, guided)
    sizes = own_sizes(table) if sized else [None] * len(table)
    return [
        [
            *own,
            *([] if size is None else [list(size)]),
            *([] if image is None else [{IMAGE: image.sha256}]),
        ]
        for own, size, image in zip(texts, sizes, own_images(table), strict=True)
    ]


def held_out(prompts: Sequence[str], fraction: float) -> list[bool]:
    """Which prompts of one file are held out, about `fraction` of them.

    It follows from a prompt's text alone, without case and white space: added or moved rows change
    nothing for the others, prompts that are alike are on the same side, and a larger fraction keeps
    what a smaller one held out.

    Raises ValueError, with a fraction that works, where one side would be empty.
    """
    places = [_place(prompt) for prompt in prompts]
    chosen = [place < fraction for place in places]
    problem = f"prompts.eval_fraction is {fraction} and holds out"
    if not any(chosen):
        least = floor(min(places) * 1000 + 1) / 1000
        raise ValueError(
            f"{problem} none of {len(prompts)} prompts: use {least} or more, add prompts, or name "
            "a file of its own as prompts.eval"
        )
    if all(chosen):
        raise ValueError(
            f"{problem} all {len(prompts)} prompts, so that none is left to learn from: lower it, "
            "or add prompts"
        )
    return chosen


def _place(prompt: str) -> float:
    """A number between 0 and 1 by the hash of a text."""
    text = " ".join(prompt.casefold().split())
    digest = hashlib.sha256(f"held out\n{text}".encode()).digest()
    return int.from_bytes(digest[:6], "big") / 2**48


def _check_columns(columns: Sequence[str], path: Path, notes: Sequence[str]) -> None:
    """Raise ValueError for a column that is missing, taken, or would not do what it says."""
    if "prompt" not in columns:
        like = [name for name in columns if _is_any(name, LIKE_PROMPT)]
        advice = f"rename {like[0]!r} to prompt" if like else "name the columns in the first line"
        raise ValueError(
            f"{path} has no column prompt (it has: {', '.join(columns) or 'none'}): {advice}"
        )
    taken = [
        name
        for name in columns
        if (name == SHA256 and IMAGE in columns)
        or (name in (*RESERVED, *RESERVED_FURTHER) and (name not in SIZE or name in notes))
    ]
    if taken:
        raise ValueError(
            f"{path} has columns named {', '.join(taken)}, which the tables of samples use "
            "themselves: rename them"
        )
    lone = [name for name in SIZE if name in columns]
    if len(lone) == 1:
        other = next(name for name in SIZE if name not in lone)
        raise ValueError(
            f"{path} has a column {lone[0]} and none {other}: a prompt's own size has both"
        )
    unsaid = [name for name in columns if name not in (*OURS, *notes)]
    ids = [name for name in unsaid if _is_any(name, LIKE_ID) and "prompt_id" not in columns]
    if ids:
        raise ValueError(
            f"{path} has no column prompt_id, but {ids[0]!r}: rename it to prompt_id, or list it "
            "under prompts.notes to have the prompts numbered"
        )
    reasons = [
        f"{name} ({reason})"
        for name in unsaid
        for reason, names in SAID_ELSEWHERE.items()
        if _is_any(name, names.split())
    ]
    if reasons:
        raise ValueError(
            f"{path} has columns that would change no image: {'; '.join(reasons)}. Remove them, "
            "or list them under prompts.notes to keep them beside the images"
        )


def _is_any(name: str, known: Iterable[str]) -> bool:
    """Whether a column is named so, however its words are joined."""
    return _compact(name) in map(_compact, known)


def _compact(name: str) -> str:
    """A name without case, without what stands between its words, and without what is not seen."""
    return "".join(it for it in re.sub(r"[\s_.-]+", "", name.casefold()) if _is_visible(it))


def _without_blanks(column: pd.Series) -> pd.Series:
    """Texts, the empty one where nothing would be seen; what is no text stays."""
    texts = column.astype(object).mask(column.isna(), "")
    return texts.map(lambda text: text if not isinstance(text, str) or _is_visible(text) else "")


def _is_visible(text: str) -> bool:
    """Whether anything would be seen of a text: a zero-width space is no prompt."""
    return any(
        unicodedata.category(letter) not in INVISIBLE and letter not in INVISIBLE_LETTERS
        for letter in text
    )


def _check_rows(table: pd.DataFrame, lines: list[int], path: Path) -> None:
    """Raise one ValueError that names every bad row (the first twenty of them)."""
    unit = _unit(path)
    problems: list[str] = []
    first_line: dict[str, tuple[int, str]] = {}
    texts = [name for name in TEXTS if name in table]
    for line, *values in zip(lines, *(table[name] for name in texts), strict=True):
        if not all(isinstance(value, str) for value in values):
            problems.append(f"{unit} {line}: {_no_text(texts, values)}")
            continue
        prompt_id, prompt = values[:2]
        try:
            check_prompt_id(prompt_id)
        except ValueError as error:
            problems.append(f"{unit} {line}: {error}")
        before, as_written = first_line.setdefault(prompt_id.lower(), (line, prompt_id))
        if before != line:
            problems.append(f"{unit} {line}: {_same_id(prompt_id, as_written, f'{unit} {before}')}")
        if not _is_visible(prompt):
            problems.append(f"{unit} {line}: the prompt of {shorten(prompt_id)} is empty")
        problems += [f"{unit} {line}: {it}" for it in _controls(texts[1:], values[1:])]
    _refuse_rows(problems, path)


def _unit(path: Path) -> str:
    """What messages count in a file."""
    return "row" if path.suffix.lower() == ".parquet" else "line"


def _refuse_rows(problems: Sequence[str], path: Path) -> None:
    """Raise ValueError that names the first of some bad rows, if there are any."""
    if problems:
        shown = "\n  ".join(problems[:MAX_PROBLEMS_SHOWN])
        more = len(problems) - MAX_PROBLEMS_SHOWN
        rest = f"\n  and {more} more" if more > 0 else ""
        raise ValueError(f"{path} has bad rows; nothing was generated:\n  {shown}{rest}")


def _read_sizes(table: pd.DataFrame, lines: list[int], path: Path) -> None:
    """Make both columns integers, or missing; raise ValueError that names every bad row."""
    pairs = list(zip(*(map(_pixels, table[name]) for name in SIZE), strict=True))
    problems = []
    for row, (line, pair) in enumerate(zip(lines, pairs, strict=True)):
        for name, pixels in zip(SIZE, pair, strict=True):
            if pixels == BAD:
                value = table[name].iloc[row]
                problems.append(f"{_unit(path)} {line}: {name} is {value!r:.60}, and no pixels")
        if pair.count(None) == 1:
            problems.append(
                f"{_unit(path)} {line}: {SIZE[pair.index(None)]} is missing, and "
                f"{SIZE[1 - pair.index(None)]} is not: a size of its own has both"
            )
    _refuse_rows(problems, path)
    for place, name in enumerate(SIZE):
        table[name] = pd.array([pair[place] for pair in pairs], dtype="Int64")


def _pixels(value: object) -> int | None:
    """What a cell says; None where it is empty, BAD where it is no whole number above zero."""
    if value is None or value is pd.NA or (isinstance(value, float) and isnan(value)):
        return None
    text = str(value).strip()
    if not text:
        return None
    number = text.removesuffix(".0")
    is_whole = number.isascii() and number.isdecimal() and len(number) <= MAX_DIGITS
    return (int(number) if is_whole else 0) or BAD


def _no_text(names: Sequence[str], values: Sequence[object]) -> str:
    """The problem of values that are numbers, or missing."""
    name, value = next(
        pair for pair in zip(names, values, strict=True) if not isinstance(pair[1], str)
    )
    is_missing = value is None or value is pd.NA or (isinstance(value, float) and isnan(value))
    what = "missing" if is_missing else f"{value!r:.60}"
    return f"{', '.join(names[:-1])} and {names[-1]} must be text, and {name} is {what}"


def _controls(names: Sequence[str], values: Sequence[str]) -> list[str]:
    """The problems of texts with characters that nobody types."""
    places = [(name, text, find_control(text)) for name, text in zip(names, values, strict=True)]
    return [
        f"character {place + 1} of {name} is {explain_control(text[place])}"
        for name, text, place in places
        if place is not None
    ]


def _same_id(prompt_id: str, other: str, where: str) -> str:
    """The problem of an id that is there already, perhaps in another case."""
    if prompt_id == other:
        return f"prompt id {shorten(prompt_id)} is already on {where}: each id may stand once"
    return (
        f"prompt id {shorten(prompt_id)} differs from {shorten(other)} on {where} only in case: "
        "both would be one folder on some file systems; rename one"
    )


def _check_types(table: pd.DataFrame, lines: list[int], path: Path) -> None:
    """Raise ValueError that names the first value by which a column cannot be stored as Parquet.

    Only JSON has columns of several types, which pandas holds as objects.
    """
    for name, column in table.items():
        if column.dtype != object or _is_storable(column):
            continue
        row = bisect_left(
            range(1, len(column)), True, key=lambda count: not _is_storable(column.head(count))
        )
        value = json.dumps(column.iloc[row], ensure_ascii=False, default=str)
        problem = "has another type than those before it" if row else "fits no column of a table"
        raise ValueError(
            f"{path} cannot be read: line {lines[row]}: {name} is {value:.80}, which {problem}; "
            f"write values of one type in all rows of {name}, as text if need be"
        )


def _is_storable(column: pd.Series) -> bool:
    """Whether a column can be written as Parquet; pyarrow says no in many ways."""
    try:
        column.to_frame("column").to_parquet(io.BytesIO(), index=False)
    except (ValueError, TypeError, OverflowError, NotImplementedError):
        return False
    return True
