"""Make one shard of a model's images; only what is missing or damaged is made."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
import torch

from distillery.config.jobs import SamplesJob, as_frozen
from distillery.config.section import Compile
from distillery.generation.chunked import what_was_made
from distillery.generation.sample_maker import SampleMaker
from distillery.generation.save_threads import SaveThreads
from distillery.noise import SampleId, noise_seed
from distillery.prompts import (
    REQUIRED,
    RESERVED,
    RESERVED_FOR_CLIPS,
    RESERVED_FOR_PAIRS,
    RESERVED_FOR_SHARDS,
    SIZE,
)
from distillery.run_folder import RunFolder
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
    store = maker.sample_store
    parts = store.parts(maker.units(), shard)
    total = sum(len(unit) for _, units in parts for unit in units)
    failures, num_found, tables = list[str](), 0, list[pd.DataFrame]()
    threads = SaveThreads(maker.setting.size.num_frames)
    with reporter.progress(total, " images") as bar, threads as savers:
        for number, units in parts:
            store.begin(number, units)
            failed = list[str]()
            for unit in units:
                missing = [row for row in unit if not store.is_done(row)]
                bar.find(len(unit) - len(missing))
                num_found += len(unit) - len(missing)
                failed += _make_unit(maker, model, unit, missing, savers, reporter)
                bar.update(len(missing))
            savers.wait()
            store.finish()
            failures += failed
            if not failures:
                rows = [row for unit in units for row in unit]
                tables.append(describe(maker, rows, model, shard, table))
    num_made = total - num_found - len(failures)
    reporter.info(what_was_made(num_made, len(failures), total, "images"))
    _raise_failures(failures, total, maker.advice_on(failures), reporter)
    listed = pd.concat(tables, ignore_index=True) if tables else _no_rows(maker, table)
    _tell_black(listed, reporter)
    made_with = hash_making(as_frozen(job), inputs.embeddings, inputs.pipeline)
    write_table(listed, output, made_with)


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


def _tell_black(table: pd.DataFrame, reporter: Reporter) -> None:
    """Name the black images. They are kept: a prompt may ask for one, and nothing is NaN here."""
    black = table[table["is_black"].astype(bool)]
    if len(black):
        first = black.head(MAX_FAILURES_SHOWN)
        names = map(SampleId, first["prompt_id"], first["index"])
        reporter.warning(
            f"{len(black)} images are black, every pixel is 0 though all values are finite: "
            f"{', '.join(map(str, names))}{' ...' * (len(black) > len(first))}; they are kept, and "
            "is_black in the table marks them"
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
    store = maker.sample_store
    if not missing:
        return []
    names = [store.name(row) for row in missing]
    try:
        facts = {"model": model, "recipe": store.recipe_hash, "samples": names}
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
    maker: SampleMaker,
    rows: Sequence[int],
    model: str,
    shard: tuple[int, int],
    table: pd.DataFrame,
) -> pd.DataFrame:
    """Rows of the manifest, with the user's own columns last."""
    store, sampling = maker.sample_store, maker.job.sampling
    places = [row // sampling.images_per_prompt for row in rows]
    samples = [store.samples[row] for row in rows]
    sizes = [maker.sizes[place] for place in places]
    extra = table[_extra_columns(table)].iloc[places].reset_index(drop=True)
    found = pd.DataFrame(store.record(row) for row in rows)
    listed = found.assign(
        prompt_id=[sample.prompt_id for sample in samples],
        prompt=[store.prompt(row) for row in rows],
        index=[sample.index for sample in samples],
        noise_seed=[noise_seed(maker.job.seed, sample) for sample in samples],
        model=model,
        steps=sampling.steps,
        network_calls=maker.num_calls,
        width=[size.width for size in sizes],
        height=[size.height for size in sizes],
        num_frames=[size.num_frames for size in sizes],
        fps=maker.job.teacher.fps,
        recipe=store.recipe_hash,
        shard=f"{shard[0]}/{shard[1]}",
        **maker.setting.guidance,
    )
    own = [name for name in RESERVED_FOR_SHARDS if name in found]
    return pd.concat([listed[[*_our_columns(maker), *own]], extra], axis="columns")


def _our_columns(maker: SampleMaker) -> list[str]:
    """What every table of a model has beside the user's own columns."""
    second = [name for name in RESERVED_FOR_PAIRS if name in maker.setting.guidance]
    of_clips = RESERVED_FOR_CLIPS if maker.setting.size.is_clip else ()
    return [*REQUIRED, *RESERVED, *second, *of_clips]


def _no_rows(maker: SampleMaker, table: pd.DataFrame) -> pd.DataFrame:
    """The table of a job that has nothing to make."""
    return pd.DataFrame(columns=[*_our_columns(maker), *_extra_columns(table)])


def _extra_columns(table: pd.DataFrame) -> list[str]:
    """The user's own columns of the prompt file."""
    return [name for name in table.columns if name not in (*REQUIRED, *SIZE)]
