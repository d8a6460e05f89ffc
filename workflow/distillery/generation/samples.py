"""Make one shard of a model's images; only what is missing or damaged is made."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import torch

from distillery.config.jobs import SamplesJob, as_frozen
from distillery.config.section import Compile
from distillery.files import hash_file
from distillery.generation.chunked import what_was_made
from distillery.generation.sample_folder import SampleFolder, SaveThreads
from distillery.generation.sample_maker import SampleMaker
from distillery.noise import noise_seed
from distillery.prompts import REQUIRED, RESERVED, RESERVED_FOR_CLIPS, RESERVED_FOR_PAIRS, SIZE
from distillery.run_folder import RunFolder
from distillery.stage import balanced_range
from distillery.store.belonging import check_student_of, hash_making
from distillery.store.chunks import DamagedChunkError
from distillery.store.tables import read_table, write_table
from distillery.telemetry import Reporter

MAX_FAILURES_SHOWN = 20


@dataclass(frozen=True)
class Inputs:
    """What a samples job reads.

    Attributes:
        prompts: table of the eval split.
        embeddings: manifest of the eval split.
        pipeline: folder of the student's pipeline, trained or not; none for the teacher.
    """

    prompts: Path
    embeddings: Path
    pipeline: Path | None


def make_samples(
    job: SamplesJob,
    model: str,
    inputs: Inputs,
    shard: tuple[int, int],
    output: Path,
    device: torch.device,
    reporter: Reporter,
    compile_: Compile = "auto",
    run_folder: RunFolder | None = None,
) -> None:
    """Make one shard's images, each saved as it is made; only what is missing is computed.

    Args:
        model: name of the column in the comparison, for the table.
        shard: the i-th of n balanced ranges of groups, from 0.
        output: the shard's table (Parquet) to write; images go to folders beside it.
        compile_: networks on a GPU; auto: large ones in long runs.
        run_folder: that a student has to belong to; None: to any.

    Raises:
        ValueError: some prompts failed, all others were made first; or there is no pipeline folder
            for a student, or one for a teacher, or that of another run's student.
    """
    if run_folder is not None and inputs.pipeline is not None:
        check_student_of(run_folder, inputs.pipeline, job.sampling.source == "student")
    table = read_table(inputs.prompts)
    maker = SampleMaker(
        job, table, inputs.embeddings, inputs.pipeline, output.parent, device, reporter, compile_
    )
    units = maker.units()
    shard_units = [units[index] for index in balanced_range(len(units), *shard)]
    rows = [row for unit in shard_units for row in unit]
    failures, num_found = list[str](), 0
    threads = SaveThreads(maker.setting.size.num_frames)
    with reporter.progress(len(rows), " images") as bar, threads as savers:
        for unit in shard_units:
            missing = [row for row in unit if not maker.sample_folder.is_done(row)]
            bar.find(len(unit) - len(missing))
            num_found += len(unit) - len(missing)
            failures += _make_unit(maker, model, unit, missing, savers, reporter)
            bar.update(len(missing))
    num_made = len(rows) - num_found - len(failures)
    reporter.info(what_was_made(num_made, len(failures), len(rows), "images"))
    _raise_failures(failures, len(rows), maker.advice_on(failures), reporter)
    records = [describe(maker, row, model, shard, table) for row in rows]
    _tell_black(maker.sample_folder, rows, reporter)
    second = [name for name in RESERVED_FOR_PAIRS if name in maker.setting.guidance]
    of_clips = RESERVED_FOR_CLIPS if maker.setting.size.is_clip else ()
    columns = [*REQUIRED, *RESERVED, *second, *of_clips, *_extra_columns(table)]
    made_with = hash_making(as_frozen(job), inputs.embeddings, inputs.pipeline)
    write_table(pd.DataFrame(records, columns=columns), output, made_with)


def _raise_failures(failures: Sequence[str], total: int, advice: str, reporter: Reporter) -> None:
    """Raise ValueError that names images that could not be made, if any; `advice` is its end."""
    for failure in failures:
        reporter.info(f"not made: {failure}")
    if failures:
        raise ValueError(
            f"{len(failures)} of {total} images could not be made, the others are saved:"
            + "".join(f"\n  {failure}" for failure in failures[:MAX_FAILURES_SHOWN])
            + "\n  the log names all of them" * (len(failures) > MAX_FAILURES_SHOWN)
            + f"\n  {advice}" * bool(advice)
        )


def _tell_black(sample_folder: SampleFolder, rows: Sequence[int], reporter: Reporter) -> None:
    """Name the black images. They are kept: a prompt may ask for one, and nothing is NaN here."""
    names = [sample_folder.name(row) for row in rows if sample_folder.is_black(row)]
    if names:
        shown = ", ".join(names[:MAX_FAILURES_SHOWN])
        reporter.warning(
            f"{len(names)} images are black, every pixel is 0 though all values are finite: "
            f"{shown}{' ...' * (len(names) > MAX_FAILURES_SHOWN)}; they are kept, and is_black in "
            "the table marks them"
        )


def _make_unit(
    maker: SampleMaker,
    model: str,
    rows: Sequence[int],
    missing: Sequence[int],
    savers: SaveThreads,
    reporter: Reporter,
) -> list[str]:
    """Make what is missing of one group; returns a line for each image that failed."""
    sample_folder = maker.sample_folder
    if not missing:
        return []
    names = [sample_folder.name(row) for row in missing]
    try:
        facts = {"model": model, "recipe": sample_folder.recipe_hash, "samples": names}
        with reporter.work(len(missing), **facts) as more:
            failures = maker.make(rows, missing, savers)
            # The whole group is decoded for what is missing of it.
            more["decode_s"] = maker.pop_decode_seconds()
            return failures
    except DamagedChunkError:
        raise  # of the embeddings: every other batch would say the same
    except (ValueError, RuntimeError) as error:
        reporter.info(f"a batch failed ({', '.join(names)}): {error}")
        return [f"{name}: {error}" for name in names]


def describe(
    maker: SampleMaker, row: int, model: str, shard: tuple[int, int], table: pd.DataFrame
) -> dict[str, Any]:
    """One row of the manifest, with the user's own columns last."""
    sample_folder, sampling = maker.sample_folder, maker.job.sampling
    sample = sample_folder.samples[row]
    image, latents = sample_folder.image(row), sample_folder.latents(row)
    prompt_row = table.iloc[row // sampling.images_per_prompt]
    size = maker.sizes[row // sampling.images_per_prompt]
    return {
        "prompt_id": sample.prompt_id,
        "prompt": sample_folder.prompt(row),
        "index": sample.index,
        "noise_seed": noise_seed(maker.job.seed, sample),
        "file": image.relative_to(sample_folder.root).as_posix(),
        "sha256": hash_file(image),
        "latents_file": latents.relative_to(sample_folder.root).as_posix(),
        "latents_sha256": hash_file(latents),
        "model": model,
        "steps": sampling.steps,
        **maker.setting.guidance,
        "network_calls": maker.num_calls,
        "width": size.width,
        "height": size.height,
        "num_frames": size.num_frames,
        "fps": maker.job.teacher.fps,
        "is_black": sample_folder.is_black(row),
        "recipe": sample_folder.recipe_hash,
        "shard": f"{shard[0]}/{shard[1]}",
        **{name: prompt_row[name] for name in _extra_columns(table)},
    }


def _extra_columns(table: pd.DataFrame) -> list[str]:
    """The user's own columns of the prompt file."""
    return [name for name in table.columns if name not in (*REQUIRED, *SIZE)]
