"""Draw the README's image: some prompts of a finished run, a row a model, from the same noise.

python -m resources.demo.strip results/demo
python -m resources.demo.strip results/mine --models teacher student --output mine.png
"""

import argparse
from collections.abc import Sequence
from pathlib import Path
from textwrap import wrap

import pandas as pd
from PIL import Image, ImageDraw, ImageFont

from distillery.files import atomic_path

MODELS = ("teacher", "student", "untrained")
NUM_PROMPTS = 6
IMAGE_PX, GAP_PX, LABEL_PX, PROMPT_PX = 160, 10, 110, 104
PAPER, INK = (255, 255, 255), (60, 66, 75)


def main(argv: Sequence[str] | None = None) -> int:
    """Parse, draw."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("run", type=Path, help="results/{run} of a finished run")
    parser.add_argument("--models", nargs="+", default=MODELS, help="rows, from the top")
    parser.add_argument("--num-prompts", type=int, default=NUM_PROMPTS, help="columns")
    parser.add_argument("--output", type=Path, default=Path("docs/images/demo.png"))
    arguments = parser.parse_args(argv)
    rows = [read_row(arguments.run, model, arguments.num_prompts) for model in arguments.models]
    with atomic_path(arguments.output) as temporary:
        draw_strip(rows).save(temporary, format="PNG", optimize=True)
    return 0


def read_row(run: Path, model: str, num_prompts: int) -> pd.DataFrame:
    """The first image of each of the first prompts, with the path of its file."""
    folder = run / "samples" / model
    if not (folder / "manifest.parquet").is_file():
        there = ", ".join(path.parent.name for path in run.glob("samples/*/manifest.parquet"))
        raise SystemExit(f"error: {folder} has no manifest.parquet; sampled were: {there or '-'}")
    table = pd.read_parquet(folder / "manifest.parquet")
    table = table[table["index"] == 0].head(num_prompts).reset_index(drop=True)
    return table.assign(path=[folder / file for file in table["file"]])


def draw_strip(rows: Sequence[pd.DataFrame]) -> Image.Image:
    """Rows of `read_row` as one image; all must be of the same prompts and the same noise."""
    first = rows[0]
    for row in rows[1:]:
        if not row[["prompt_id", "noise_seed"]].equals(first[["prompt_id", "noise_seed"]]):
            raise SystemExit("error: the models were sampled for other prompts or from other noise")
    step = IMAGE_PX + GAP_PX
    size = (LABEL_PX + step * len(first), step * len(rows) + PROMPT_PX)
    strip = Image.new("RGB", size, PAPER)
    draw, font = ImageDraw.Draw(strip), ImageFont.load_default(13)
    for number, row in enumerate(rows):
        label = f"{row['model'].iloc[0]}\n{row['network_calls'].iloc[0]} network\ncalls"
        draw.text((GAP_PX, number * step + IMAGE_PX // 3), label, INK, font)
        for column, path in enumerate(row["path"]):
            with Image.open(path) as opened:
                image = opened.convert("RGB").resize((IMAGE_PX, IMAGE_PX))
            strip.paste(image, (LABEL_PX + column * step, number * step))
    for column, prompt in enumerate(first["prompt"]):
        text = "\n".join(wrap(prompt, 24))
        draw.text((LABEL_PX + column * step, len(rows) * step), text, INK, font)
    return strip


if __name__ == "__main__":
    raise SystemExit(main())
