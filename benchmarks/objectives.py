"""Which objective, shape and number of steps: an honest table from one store of trajectories.

    PYTHONPATH=workflow python benchmarks/objectives.py --folder /tmp/objectives --jobs 12

Trains every objective (segment, direct, reflow, segment with a finishing phase of rollouts, of
online targets, of these with distribution matching, or with an adversarial loss, and segment with
rounds) for students of the teacher's shape, half and a quarter of its blocks, or as a
LoRA of it, at 1, 2, 4 and 8 steps, from stores of several sizes, for equally many samples; and
draws held-out prompts with each, at the same noise as the teacher. A rollout's sample costs `steps`
passes of the student, any other sample one; what a finish or a round asks the teacher or its heads
comes on top. The teacher itself follows at several numbers of steps, guided and not.

Cells run side by side on one GPU or on the CPU, each worker doing many. A finished one is not
repeated: start the same line again to resume. Results: table.md in the folder, and for each cell
cells/*.json and *.png, its first images below the teacher's. For stores of more prompts than the
demo's table has:

    python -m resources.demo.scenes --prompts /tmp/prompts --num-train 8192
    PYTHONPATH=workflow python benchmarks/objectives.py --folder /tmp/objectives --jobs 12 \\
        --prompts /tmp/prompts/demo-train.csv --stores 1024x2 8192x2 8192x8
"""

import argparse
import multiprocessing
import sys
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ProcessPoolExecutor, as_completed
from fnmatch import fnmatch
from pathlib import Path

import torch
import yaml
from cell_images import time_sampling
from cells import prepare, run_cell
from lab import OBJECTIVES, SHAPES, Bench, Cell, Json, Store, cached, keep

from distillery.files import write_text
from distillery.hardware import describe_hardware, versions

ROOT = Path(__file__).parents[1]
Timing = tuple[str, bool, int]
"""Shape, whether guided, and steps, which alone say how long sampling takes."""
Times = dict[Timing, float]
"""Seconds of sampling."""
STEPS = (1, 2, 4, 8)
COLUMNS = (
    "shape",
    "steps",
    "objective",
    "store",
    "CLIP score",
    "of the teacher's, %",
    "Fréchet, of floor",
    "coverage",
    "detail",
    "latent MSE",
    "pixel RMS of 255",
    "diversity",
    "training s",
    "sampling s",
)


def main(argv: list[str] | None = None) -> int:
    """Prepare the store, fill the cells, time the sampling, write the table."""
    arguments = parse(argv)
    bench = bench_of(arguments)
    settings = bench.raw | {
        name: getattr(arguments, name)
        for name in (
            "rollout_share",
            "rounds",
            "rounds_share",
            "matching_weight",
            "adversarial_weight",
            "images_per_prompt",
            "num_prompts",
        )
    }
    begin = time.time()
    prepare(bench, map(Store.named, arguments.stores))
    say(f"stores and references ready after {time.time() - begin:.1f} s")
    cells = cells_of(arguments, bench.config().targets.steps)
    failed = fill(
        bench, cells, settings, arguments.jobs, lambda: write_table(bench, cells, settings)
    )
    made = [cell for cell in cells if cached(path_of(bench, cell), settings)]
    num_rows = write_table(
        bench, cells, settings, time_all(bench, made, settings, arguments.repeats)
    )
    say(f"{num_rows} of {len(cells)} cells in {time.time() - begin:.1f} s: {bench.folder}/table.md")
    return 1 if failed else 0


def write_table(
    bench: Bench, cells: Iterable[Cell], settings: Json, times: Times | None = None
) -> int:
    """The table of the cells that are there, so that one which is cut short has its rows too."""
    rows = [row for cell in cells if (row := cached(path_of(bench, cell), settings))]
    timed = [row | {"sampling_s": (times or {}).get(key_of(row))} for row in rows]
    write_text(bench.folder / "table.md", table(timed, bench))
    return len(rows)


def parse(argv: list[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--folder", type=Path, required=True, help="for the store and the results")
    parser.add_argument("--config", type=Path, default=ROOT / "config/config.yaml")
    parser.add_argument("--jobs", type=int, default=2, help="cells side by side")
    parser.add_argument("--objectives", nargs="+", choices=OBJECTIVES, default=list(OBJECTIVES))
    shapes = [name for name in SHAPES if name != "lora"]
    parser.add_argument("--shapes", nargs="+", choices=SHAPES, default=shapes)
    parser.add_argument("--steps", nargs="+", type=int, choices=STEPS, default=list(STEPS))
    parser.add_argument(
        "--only", nargs="+", metavar="PATTERN", help="of these cells, by name: 'half-*-4-*'"
    )
    parser.add_argument("--num-samples", type=int, default=25600, help="length of each training")
    parser.add_argument("--batch-size", type=int, default=64, help="samples per update")
    parser.add_argument("--learning-rate", type=float, default=5e-4)
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
    parser.add_argument("--compile", choices=("never", "always"), default="never")
    parser.add_argument("--rollout-share", type=float, default=0.2, help="of the finishing phase")
    parser.add_argument("--matching-weight", type=float, default=0.1)
    parser.add_argument("--adversarial-weight", type=float, default=0.1)
    parser.add_argument("--rounds", type=int, default=4, help="of the objective with rounds")
    parser.add_argument("--rounds-share", type=float, default=0.5, help="of all of them")
    parser.add_argument("--prompts", type=Path, help="to learn from; default: the configuration's")
    parser.add_argument(
        "--stores", nargs="+", default=["1024x2"], help="PROMPTSxNOISES, of the first prompts"
    )
    parser.add_argument("--num-prompts", type=int, default=64, help="held out, the first so many")
    parser.add_argument("--images-per-prompt", type=int, default=4, help="at least 2")
    parser.add_argument("--repeats", type=int, default=3, help="of each timing of the sampling")
    parser.add_argument("--device", choices=("cuda", "cpu"), default=default_device())
    return parser.parse_args(argv)


def default_device() -> str:
    """The GPU where there is one."""
    return "cuda" if torch.cuda.is_available() else "cpu"


def bench_of(arguments: argparse.Namespace) -> Bench:
    """The configuration, with one store for all cells and one training's settings for all."""
    raw: Json = yaml.safe_load(arguments.config.read_text())
    size = arguments.batch_size
    on_gpu = arguments.device == "cuda"
    num_segments = max(arguments.steps)
    if arguments.prompts:
        raw["prompts"] |= {"train": str(arguments.prompts)}
    raw["targets"] |= {
        "num_segments": num_segments,
        "batch_size": 1024 if on_gpu else 16,
        "chunk_size": 1024 if on_gpu else 64,
    }
    raw["training"] |= {
        "objective": "segment",
        "phases": [{"learn": "stored", "samples": arguments.num_samples}],
        "global_batch_size": size,
        "micro_batch_size": size,
        "learning_rate": arguments.learning_rate,
        "dtype": arguments.dtype,
        "warmup_samples": arguments.num_samples // 20,
        "ema_half_life_samples": arguments.num_samples // 10,
        "log_every_samples": size * max(1, arguments.num_samples // size // 20),
        "save_every_samples": arguments.num_samples,
        "keep_checkpoints": 1,
        "compile": arguments.compile,
    }
    raw.pop("previews", None)
    raw["student"] = {"steps": num_segments}
    raw["samples"] |= {"batch_size": 128 if on_gpu else 16}
    return Bench(
        folder=arguments.folder,
        raw=raw,
        rollout_share=arguments.rollout_share,
        rounds=arguments.rounds,
        rounds_share=arguments.rounds_share,
        matching_weight=arguments.matching_weight,
        adversarial_weight=arguments.adversarial_weight,
        images_per_prompt=arguments.images_per_prompt,
        num_prompts=arguments.num_prompts,
        device=arguments.device,
    )


def cells_of(arguments: argparse.Namespace, teacher_steps: int) -> list[Cell]:
    """All rows of the table; long ones first, so that no worker is left with one at the end."""
    students = [
        Cell(objective, shape, steps, store)
        for steps in sorted(arguments.steps, reverse=True)
        for objective in reversed(arguments.objectives)
        for shape in arguments.shapes
        for store in arguments.stores
        if steps > 1 or objective != "segment+rounds"  # whose only state would be the noise
    ]
    teachers = [
        Cell(guidance, "teacher", steps)
        for steps in sorted({*arguments.steps, teacher_steps}, reverse=True)
        for guidance in ("guided", "unguided")
    ]
    cells, patterns = students + teachers, arguments.only or ["*"]
    chosen = [cell for cell in cells if any(fnmatch(cell.name, it) for it in patterns)]
    if not chosen:
        names = ", ".join(cell.name for cell in cells)
        raise SystemExit(f"--only {' '.join(patterns)}: none of {names}")
    return chosen


def path_of(bench: Bench, cell: Cell) -> Path:
    """A cell's result."""
    return bench.folder / "cells" / f"{cell.name}.json"


def fill(
    bench: Bench, cells: Iterable[Cell], settings: Json, jobs: int, after_each: Callable[[], object]
) -> int:
    """Run the cells that are not there; a failed one is named and leaves the others alone.

    Workers are started once and do many cells. They are spawned, since CUDA does not outlive a
    fork, and no daemons, since a training starts processes that read ahead.
    """
    missing = [cell for cell in cells if cached(path_of(bench, cell), settings) is None]
    context, failed = multiprocessing.get_context("spawn"), 0
    with ProcessPoolExecutor(jobs, mp_context=context, initializer=start_worker) as pool:
        futures = {pool.submit(run_cell, bench, cell): cell for cell in missing}
        for number, future in enumerate(as_completed(futures), 1):
            cell, error = futures[future], future.exception()
            if error is None:
                keep(path_of(bench, cell), settings, future.result() | {"jobs": jobs})
            failed += error is not None
            say(f"{number} of {len(missing)}: {cell.name} {repr(error) if error else 'done'}")
            after_each()
    return failed


def start_worker() -> None:
    """One thread each: there are as many workers as there should be busy cores."""
    torch.set_num_threads(1)


def time_all(bench: Bench, cells: Iterable[Cell], settings: Json, repeats: int) -> Times:
    """Seconds of sampling, measured alone; what was learned does not matter for them."""
    found: Times = {}
    for cell in cells:
        key = (cell.shape, cell.objective == "guided", cell.steps)
        if key in found:
            continue
        path = bench.folder / "timings" / f"{cell.name}.json"
        row = cached(path, settings) or {"sampling_s": time_sampling(bench, cell, repeats)}
        keep(path, settings, row)
        found[key] = float(row["sampling_s"])
    return found


def key_of(row: Json) -> Timing:
    """Which timing a row has."""
    return str(row["shape"]), row["objective"] == "guided", int(row["steps"])


def table(rows: list[Json], bench: Bench) -> str:
    """The Markdown table, students by steps and shape, then the teacher."""
    order = [*SHAPES, "teacher"]
    names = [*OBJECTIVES, "guided", "unguided"]
    rows = sorted(
        rows,
        key=lambda it: (
            order.index(it["shape"]),
            it["steps"],
            names.index(it["objective"]),
            trajectories_of(it),
        ),
    )
    training, hardware = bench.raw["training"], describe_hardware()
    compiled = training["compile"] == "always"
    jobs = " or ".join(map(str, sorted({row["jobs"] for row in rows})))
    gpus = ", ".join(str(gpu["name"]) for gpu in hardware["gpus"])
    where = gpus or f"{hardware['num_cores']} CPU cores"
    head = [
        f"{training['phases'][0]['samples']} samples of {training['global_batch_size']} an update "
        f"at {training['learning_rate']} in {training['dtype']}{', compiled' * compiled}, "
        f"a share of {bench.rollout_share} of rollouts or online targets where named, "
        f"{bench.rounds} rounds of a share of {bench.rounds_share} in all, "
        f"distribution matching of weight {bench.matching_weight}, "
        f"an adversarial loss of weight {bench.adversarial_weight}; "
        f"{bench.num_prompts} held-out prompts with {bench.images_per_prompt} images each. "
        f"Seconds of training with {jobs} cells side by side, of sampling 100 images alone. "
        f"On {where}; {', '.join(f'{key} {it}' for key, it in versions().items())}. "
        "Brackets hold 95 % intervals.",
        "",
        f"| {' | '.join(COLUMNS)} |",
        "|---" * len(COLUMNS) + "|",
    ]
    return "\n".join([*head, *map(line_of, rows), ""])


def trajectories_of(row: Json) -> int:
    """Of a row's store; none for the teacher."""
    store = Store.named(row["store"]) if row["store"] else Store(0, 0)
    return store.num_prompts * store.per_prompt


def line_of(row: Json) -> str:
    """One row of the table."""
    training = f"{row['training_s']:.1f}" if row["training_s"] else ""
    sampling = "" if row["sampling_s"] is None else f"{row['sampling_s']:.3f}"
    values = (
        row["store"],
        f"{row['clip_score']:.4f}",
        with_interval(row["clip_ratio"], 100, 1),
        with_interval(row.get("frechet"), 1, 2),
        f"{row['coverage']:.3f}" if "coverage" in row else "",
        f"{row['detail']:.2f}",
        f"{row['latent_mse']:.4f}",
        f"{row['pixel_rms']:.1f}",
        f"{row['diversity']:.3f}",
        training,
        sampling,
    )
    return f"| {row['shape']} | {row['steps']} | {row['objective']} | {' | '.join(values)} |"


def with_interval(found: list[float | None] | None, times: float, digits: int) -> str:
    """A mean and its interval, as far as there are such."""
    if found is None:
        return ""
    mean, *ends = ("" if it is None else f"{it * times:.{digits}f}" for it in found)
    return f"{mean} ({' to '.join(ends)})" if all(ends) else mean


def say(line: str) -> None:
    """Progress, at once."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    raise SystemExit(main())
