"""Memory and time of what handles each sample, without drawing any: a million in minutes.

    python benchmarks/many_samples.py --samples 100000 1000000 --folder /tmp/many

Writes the tars of one model from one tiny image, tables as the samples stage does, merges them,
verifies the run and makes its gallery, each step in a process of its own; prints a row for each
with the seconds of a core and the most memory beyond what its imports take.
"""

import argparse
import json
import resource
import shutil
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import torch

from distillery.families import Size
from distillery.generation.sample_store import Encoded
from distillery.generation.sample_tables import merge_samples
from distillery.generation.sample_tars import SampleTars
from distillery.generation.samples import describe
from distillery.images import as_png
from distillery.noise import all_samples
from distillery.planning.verify import verify
from distillery.prompts import read_prompts
from distillery.report.gallery import make_gallery
from distillery.run_folder import RunFolder
from distillery.store.chunks import ChunkIdentity, as_chunk
from distillery.store.tables import read_table, write_table
from distillery.telemetry import Reporter

UNIT, NUM_SHARDS, MODEL = 8, 4, "teacher"


def write_prompts(run: RunFolder, count: int) -> None:
    """A prompt file of so many distinct prompts."""
    run.path.mkdir(parents=True, exist_ok=True)
    with (run.path / "prompts.csv").open("w") as file:
        file.write("prompt_id,prompt\n")
        file.writelines(
            f"p{row:08d},a photo of {row} red houses on a hill under a clear sky in the evening\n"
            for row in range(count)
        )


def prompts(run: RunFolder) -> None:
    """Read and check the prompt file, as the prompts stage does."""
    run.prompts("eval").parent.mkdir(exist_ok=True)
    write_table(read_prompts(run.path / "prompts.csv"), run.prompts("eval"))


def samples(run: RunFolder) -> None:
    """Each shard's tars and table."""
    table = read_table(run.prompts("eval"))
    store = SampleTars(
        run.samples(MODEL).parent, table, all_samples(table["prompt_id"], 1), 1, "a" * 64,
        images_per_tar=min(10_000, len(table) // NUM_SHARDS),
    )  # fmt: skip
    image = as_png(np.zeros((8, 8, 3), np.uint8) + 7, {})
    latents = as_chunk({"latents": torch.zeros(4, 1, 1, 1)}, ChunkIdentity("a", "b"), {})
    maker: Any = SimpleNamespace(
        sample_store=store,
        job=SimpleNamespace(
            seed=0,
            sampling=SimpleNamespace(images_per_prompt=1, steps=24),
            teacher=SimpleNamespace(fps=1),
        ),
        sizes=[Size(8, 8)] * len(table),
        setting=SimpleNamespace(guidance={"guidance_scale": 3.0}, size=Size(8, 8)),
        num_calls=48,
    )
    units = [range(first, min(first + UNIT, len(table))) for first in range(0, len(table), UNIT)]
    for shard in range(NUM_SHARDS):
        parts = []
        for number, part in store.parts(units, (shard, NUM_SHARDS)):
            store.begin(number, part)
            rows = [row for unit in part for row in unit]
            for row in rows:
                if not store.is_done(row):
                    store.keep(Encoded(row, image, latents, is_black=False))
            store.finish()
            parts.append(describe(maker, rows, MODEL, (shard, NUM_SHARDS), table))
        path = run.samples_shard(MODEL, f"{shard}-of-{NUM_SHARDS}")
        write_table(pd.concat(parts, ignore_index=True), path)


def again(run: RunFolder) -> None:
    """The same where all is there: every file is read and hashed."""
    samples(run)


def merge(run: RunFolder) -> None:
    """One manifest, after every file was read and hashed."""
    shards = range(NUM_SHARDS)
    paths = [run.samples_shard(MODEL, f"{shard}-of-{NUM_SHARDS}") for shard in shards]
    merge_samples(paths, run.samples(MODEL))


def verified(run: RunFolder) -> None:
    """Every file is read and hashed once more."""
    found = verify(run, Reporter(run.telemetry, "verify", "verify", "cpu"))
    assert not found.damages, found.damages[0].why


def scores(run: RunFolder) -> None:
    """Scores out of a generator, for the gallery to choose by."""
    table = read_table(run.samples(MODEL), ("prompt_id", "index", "model"))
    values = np.random.default_rng(0).random((2, len(table)))
    run.scores.parent.mkdir(exist_ok=True)
    write_table(table.assign(clip_score=values[0], psnr_db=values[1]), run.scores)


def gallery(run: RunFolder) -> None:
    """The best and the worst of all."""
    make_gallery([run.samples(MODEL)], run.scores, run.gallery)


STEPS = {it.__name__: it for it in (prompts, samples, again, merge, verified, scores, gallery)}


def measured(step: str, run: RunFolder) -> dict[str, float]:
    """Seconds of a core that a step takes, and MiB beyond those of its imports."""
    before, begin_s = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.process_time()
    STEPS[step](run)
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return {"s": time.process_time() - begin_s, "mib": (most - before) / 1024}


def tell(line: str) -> None:
    """A line of the table."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def main(argv: list[str] | None = None) -> int:
    """Measure all steps at each number of samples."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--samples", type=int, nargs="+", default=[100_000, 1_000_000])
    parser.add_argument("--folder", type=Path, required=True, help="5 GB per million samples")
    parser.add_argument("--step", choices=STEPS, help=argparse.SUPPRESS)
    arguments = parser.parse_args(argv)
    if arguments.step:
        tell(json.dumps(measured(arguments.step, RunFolder(arguments.folder))))
        return 0
    tell("| samples | step | CPU s | CPU s per 100,000 | MiB | MiB per 100,000 |")
    tell("|---" * 6 + "|")
    for count in arguments.samples:
        run = RunFolder(arguments.folder / str(count))
        write_prompts(run, count)
        for step in STEPS:
            command = [sys.executable, __file__, "--folder", str(run.path), "--step", step]
            told = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout
            found, share = json.loads(told.splitlines()[-1]), count / 100_000
            cells = [f"{value:.1f}" for key in found for value in (found[key], found[key] / share)]
            tell(f"| {count:,} | {step} | {' | '.join(cells)} |")
        shutil.rmtree(run.path)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
