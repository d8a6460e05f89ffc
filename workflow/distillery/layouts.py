"""Lay out a run's images as the scripts of public benchmarks read them, and read their prompts.

First a prompt table from the benchmark's own files, to be named as prompts.eval:

    python -m distillery.layouts geneval --prompts geneval/prompts/evaluation_metadata.jsonl \\
        --table config/prompts/geneval.csv

Then, from the finished run, a folder for each model:

    python -m distillery.layouts geneval --prompts geneval/prompts/evaluation_metadata.jsonl \\
        --run results/mine --output layouts/geneval

Images are linked, or copied to another disk or out of tars, and never drawn again. The benchmark's
own script scores them; nothing of it is part of Distillery. --prompts names, by benchmark:

    geneval   evaluation_metadata.jsonl of djghosh13/geneval
    geneval2  geneval2_data.jsonl of facebookresearch/GenEval2
    dpg       the folder dpg_bench/prompts of TencentQQGYLab/ELLA
    hpsv2     the folder of anime.json, concept-art.json, paintings.json, photo.json of HPDv2
"""

import csv
import io
import json
import sys
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from PIL import Image

from distillery.cli import logged_parser
from distillery.encodings import decode
from distillery.files import atomic_path, write_text
from distillery.measures.manifests import ModelSamples, read_samples
from distillery.noise import check_prompt_id, shorten
from distillery.prompt_files import LINE_END
from distillery.run_folder import RunFolder
from distillery.telemetry import explain_errors
from distillery.words import counted

Rows = Sequence[int]
"""Of a model's table of images."""


@dataclass(frozen=True)
class Entry:
    """One prompt of a benchmark.

    Attributes:
        name: of its folder or file in the layout.
        category: of the benchmark's own division; empty without one.
        line: of the benchmark's file, where its script reads it again.
    """

    name: str
    prompt: str
    category: str = ""
    line: str = ""


class Layout(ABC):
    """A benchmark: how its prompts are read, and where its script looks for images.

    Attributes:
        usual: images of each prompt in published scores.
        script: that scores a folder, from a clone of its repository.
    """

    name: ClassVar[str]
    usual: ClassVar[int] = 1
    script: ClassVar[str]

    @abstractmethod
    def read(self, prompts: Path) -> Iterator[Entry]:
        """The prompts in their order; raises ValueError for what is not there."""

    @abstractmethod
    def write(
        self, entries: Mapping[Entry, Rows], model: ModelSamples, folder: Path, final: Path
    ) -> None:
        """Write a model's images to a folder, which will be renamed to `final`."""

    def check(self, model: ModelSamples) -> None:
        """Raise ValueError for images that the script would misread."""
        if model.num_frames > 1:
            raise ValueError(f"{model.model} has clips, and {self.name} scores images")

    def command(self, folder: Path, model: ModelSamples, num_images: int) -> str:
        """What scores a folder."""
        return self.script.format(folder=folder.resolve())


class GenEval(Layout):
    """Ghosh et al. 2023 (arXiv:2310.11513): a folder for each prompt, with its line of metadata."""

    name = "geneval"
    usual = 4
    script = (
        "python evaluation/evaluate_images.py {folder} --outfile {folder}.jsonl "
        "--model-path DETECTOR, then python evaluation/summary_scores.py {folder}.jsonl"
    )

    def read(self, prompts: Path) -> Iterator[Entry]:
        """The number of a line names its folder."""
        for number, (line, found) in enumerate(_read_lines(prompts, "prompt", "tag")):
            yield Entry(f"{number:05d}", found["prompt"], found["tag"], line)

    def write(
        self, entries: Mapping[Entry, Rows], model: ModelSamples, folder: Path, final: Path
    ) -> None:
        """{number}/metadata.jsonl and {number}/samples/0000.png and so on."""
        for entry, rows in entries.items():
            write_text(folder / entry.name / "metadata.jsonl", f"{entry.line}\n")
            for index, row in enumerate(rows):
                model.put_image(row, folder / entry.name / f"samples/{index:04d}.png")


class GenEval2(Layout):
    """Kamath et al. 2025 (arXiv:2512.16853): one image of each prompt, and JSON that finds it."""

    name = "geneval2"
    script = (
        "python evaluation.py --benchmark_data geneval2_data.jsonl --image_filepath_data "
        "{folder}/image_paths.json --method soft_tifa_gm --output_file {folder}.json"
    )

    def read(self, prompts: Path) -> Iterator[Entry]:
        """The number of atoms is the category."""
        for number, (_, found) in enumerate(_read_lines(prompts, "prompt", "atom_count")):
            atoms = counted(int(found["atom_count"]), "atom")
            yield Entry(f"{number:05d}", found["prompt"], atoms)

    def write(
        self, entries: Mapping[Entry, Rows], model: ModelSamples, folder: Path, final: Path
    ) -> None:
        """The first image of each prompt; paths that hold wherever the script is started."""
        paths = {}
        for entry, rows in entries.items():
            model.put_image(rows[0], folder / f"images/{entry.name}.png")
            paths[entry.prompt] = str(final.resolve() / f"images/{entry.name}.png")
        text = json.dumps(paths, ensure_ascii=False, indent=1)
        write_text(folder / "image_paths.json", f"{text}\n")


class Dpg(Layout):
    """DPG-Bench, Hu et al. 2024 (arXiv:2403.05135): four images of each prompt in one picture."""

    name = "dpg"
    usual = 4
    script = "PIC_NUM={num_images} bash dpg_bench/dist_eval.sh {folder} {edge}"

    def read(self, prompts: Path) -> Iterator[Entry]:
        """A file for each prompt, whose name its picture has."""
        if not prompts.is_dir():
            raise ValueError(f"{prompts} is no folder: give the one with a .txt for each prompt")
        files = sorted(prompts.glob("*.txt"))
        if not files:
            raise ValueError(f"{prompts} has no .txt: give the folder with one for each prompt")
        for file in files:
            yield Entry(file.stem, decode(file.read_bytes(), file).strip())

    def check(self, model: ModelSamples) -> None:
        """The script cuts squares of one size out of each picture."""
        super().check(model)
        sizes = set(zip(model.table["width"], model.table["height"], strict=True))
        if len(sizes) > 1 or len(set(next(iter(sizes)))) > 1:
            named = ", ".join(f"{width} by {height}" for width, height in sorted(sizes))
            raise ValueError(
                f"images of {model.model} are {named} pixels, and DPG-Bench cuts squares of one "
                "size: sample with equal teacher.height and teacher.width"
            )

    def write(
        self, entries: Mapping[Entry, Rows], model: ModelSamples, folder: Path, final: Path
    ) -> None:
        """{name}.png: one image as it is, or up to four, two in a row."""
        folder.mkdir()
        for entry, rows in entries.items():
            path = folder / f"{entry.name}.png"
            if len(rows) == 1:
                model.put_image(rows[0], path)
            else:
                _in_a_square([model.read_image(row) for row in rows[: self.usual]]).save(path)

    def command(self, folder: Path, model: ModelSamples, num_images: int) -> str:
        """With the images in each picture, and their edge."""
        edge = int(model.table["width"].iloc[0])
        number = min(num_images, self.usual)
        return self.script.format(folder=folder.resolve(), num_images=number, edge=edge)


class HpsV2(Layout):
    """Wu et al. 2023 (arXiv:2306.09341): a folder for each of four styles, images by number."""

    name = "hpsv2"
    script = "python -c \"import hpsv2; hpsv2.evaluate('{folder}', hps_version='v2.1')\""
    styles = ("anime", "concept-art", "paintings", "photo")

    def read(self, prompts: Path) -> Iterator[Entry]:
        """Four lists of prompts."""
        for style in self.styles:
            path = prompts / f"{style}.json"
            if not path.is_file():
                raise ValueError(
                    f"{path} is not there: give the folder with {', '.join(self.styles)} as .json"
                )
            try:
                found = json.loads(decode(path.read_bytes(), path))
            except json.JSONDecodeError as error:
                raise ValueError(f"{path} is no JSON: {error}") from error
            is_list = isinstance(found, list) and found
            if not is_list or not all(isinstance(it, str) for it in found):
                raise ValueError(f"{path} is no list of prompts")
            for number, prompt in enumerate(found):
                yield Entry(f"{style}/{number:05d}", prompt, style)

    def write(
        self, entries: Mapping[Entry, Rows], model: ModelSamples, folder: Path, final: Path
    ) -> None:
        """{style}/{number}.jpg: the script's own name for it; it opens what is in it, a PNG."""
        for entry, rows in entries.items():
            model.put_image(rows[0], folder / f"{entry.name}.jpg")


LAYOUTS: Mapping[str, Layout] = {it.name: it for it in (GenEval(), GenEval2(), Dpg(), HpsV2())}


def _read_lines(path: Path, *keys: str) -> Iterator[tuple[str, Mapping[str, str]]]:
    """The lines of a JSONL file, as they are and read; each must have some keys."""
    if not path.is_file():
        raise ValueError(f"{path} is no file: give the benchmark's own file of prompts")
    for number, line in enumerate(LINE_END.split(decode(path.read_bytes(), path)), start=1):
        if not line.strip():
            continue
        try:
            found = json.loads(line)
        except json.JSONDecodeError as error:
            raise ValueError(f"{path} line {number} is no JSON: {error}") from error
        missing = [key for key in keys if not isinstance(found, dict) or key not in found]
        if missing:
            raise ValueError(
                f"{path} line {number} has no {missing[0]}: it is no file of this benchmark"
            )
        yield line, found


def _in_a_square(images: Sequence[Image.Image]) -> Image.Image:
    """Up to four images of one size, two in a row, the first at the upper left."""
    width, height = images[0].size
    square = Image.new("RGB", (2 * width, 2 * height))
    for number, image in enumerate(images):
        square.paste(image, (width * (number % 2), height * (number // 2)))
    return square


# ---- the table -----------------------------------------------------------------------------------


def write_table(layout: Layout, prompts: Path, table: Path) -> str:
    """Write the benchmark's prompts, with its categories, as a prompt table; tell what is next.

    Raises ValueError for files that are not there or not whole, and for a table of another name.
    """
    if table.suffix != ".csv":
        raise ValueError(f"{table} is to be CSV: give --table a name that ends in .csv")
    entries = list(layout.read(prompts))
    if not entries:
        raise ValueError(f"{prompts} has no prompts: copy or download it again")
    if empty := [entry.name for entry in entries if not entry.prompt.strip()]:
        raise ValueError(f"{prompts}: prompt {empty[0]} is empty; copy or download it again")
    has_categories = any(entry.category for entry in entries)
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(("prompt_id", "prompt", *(["category"] if has_categories else [])))
    for entry in entries:
        prompt_id = f"{layout.name}-{entry.name.replace('/', '-')}"
        check_prompt_id(prompt_id)
        writer.writerow((prompt_id, entry.prompt, *([entry.category] if has_categories else [])))
    if table.exists():
        raise ValueError(f"{table} exists already: choose another name, or remove it first")
    write_text(table, text.getvalue())
    return (
        f"{table}: {counted(len(entries), 'prompt')}. In the configuration: prompts: {{eval: "
        f"{table}}} and samples: {{images_per_prompt: {layout.usual}}}"
    )


# ---- the layout ----------------------------------------------------------------------------------


def lay_out(
    layout: Layout, prompts: Path, run: RunFolder, models: Sequence[str], output: Path
) -> list[str]:
    """Write a folder of each model's images; nothing is written unless all can be.

    Args:
        prompts: the benchmark's own file or folder.
        models: whose images; none: all that the run has.
        output: gets a folder with each model's name.

    Returns:
        For each model what is there, and what scores it.

    Raises:
        ValueError: prompts that are missing here or there, or images that cannot be laid out.
    """
    entries = list(layout.read(prompts))
    found = [path.parent.name for path in sorted(run.sample_folder.glob("*/manifest.parquet"))]
    chosen = list(models) or found
    if not chosen:
        raise ValueError(f"{run.path} has no images: make them first, by snakemake")
    planned = {}
    for name in chosen:
        model = read_samples(name, run.samples(name))
        planned[output / name] = model, rows_of(entries, model)
        if (output / name).exists():
            raise ValueError(f"{output / name} exists already: remove it first")
        layout.check(model)
    lines = []
    for folder, (model, rows) in planned.items():
        with atomic_path(folder) as temporary:
            layout.write(rows, model, temporary, folder)
        number = min(map(len, rows.values()))
        usual = "" if number >= layout.usual else f" ({layout.usual} are usual)"
        images = counted(number, "image")
        lines.append(f"{folder}: {counted(len(rows), 'prompt')}, {images} of each{usual}")
        lines.append(f"  score it: {layout.command(folder, model, number)}")
    return lines


def rows_of(entries: Sequence[Entry], model: ModelSamples) -> dict[Entry, Rows]:
    """The rows of each prompt's images, by its text; of a text that stands twice each its own.

    Raises ValueError unless every prompt of the benchmark has images: a score of some is another.
    """
    of_ids: dict[tuple[str, str], list[int]] = defaultdict(list)
    keys = zip(model.table["prompt"].str.strip(), model.table["prompt_id"], strict=True)
    for row, key in enumerate(keys):
        of_ids[key].append(row)
    waiting: dict[str, list[list[int]]] = defaultdict(list)
    for (text, _), rows in of_ids.items():
        waiting[text].append(rows)
    placed: dict[Entry, Rows] = {}
    lacking = []
    for entry in entries:
        own = waiting[entry.prompt.strip()]
        if own:
            placed[entry] = own.pop(0)
        else:
            lacking.append(entry)
    if lacking:
        raise ValueError(
            f"{model.model} has no images of {len(lacking):,} of {len(entries):,} prompts of the "
            f"benchmark, such as {shorten(lacking[0].prompt)}: make its prompts the run's with "
            "--table, and sample all of them (samples.num_prompts: null)"
        )
    return placed


def main(argv: list[str] | None = None) -> int:
    """Write a table of prompts, or folders of images."""
    parser = logged_parser(__doc__)
    parser.add_argument("benchmark", choices=LAYOUTS)
    parser.add_argument("--prompts", type=Path, required=True, help="the benchmark's own")
    parser.add_argument("--table", type=Path, help="the prompt table to write")
    parser.add_argument("--run", type=Path, help="results/{run}, whose images are laid out")
    parser.add_argument("--models", nargs="+", default=[], help="of samples.models; without: all")
    parser.add_argument("--output", type=Path, help="folder that gets one for each model")
    arguments = parser.parse_args(argv)
    layout, run, output = LAYOUTS[arguments.benchmark], arguments.run, arguments.output
    if (arguments.table is None) == (run is None) or (run is None) != (output is None):
        parser.error("give --table, or --run and --output")

    def make() -> None:
        if run is None:
            lines = [write_table(layout, arguments.prompts, arguments.table)]
        else:
            lines = lay_out(layout, arguments.prompts, RunFolder(run), arguments.models, output)
        print("\n".join(lines), file=sys.stderr)

    return explain_errors(make, arguments.log)


if __name__ == "__main__":
    raise SystemExit(main())
