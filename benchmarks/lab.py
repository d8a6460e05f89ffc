"""Students of the demo's teacher, several trainings of each: what makes one better, with intervals.

    python -m resources.demo.scenes --prompts /tmp/prompts --num-train 8192 --num-eval 512
    PYTHONPATH=workflow python benchmarks/lab.py --folder /tmp/lab --prompts /tmp/prompts

benchmarks/lab.yaml says which students there are. All learn from one store of trajectories; each is
trained with several seeds, and draws the same held-out prompts with the same noise. The teacher
itself follows at several numbers of steps, guided and not. Intervals hold what other prompts and
other trainings would have given (benchmarks/over_seeds.py); what a student gained against another
is compared prompt by prompt.

Cells run side by side on all GPUs, or on the CPU; a finished one is not repeated: start the same
line again to resume. Results: lab.json in the folder, lab.md made from it, and each cell's first
images below the teacher's in cells/*.png. `--table FILE.json` draws the table again, of several
files too.
"""

import argparse
import multiprocessing
import sys
import time
from collections.abc import Iterable, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from fnmatch import fnmatch
from multiprocessing.queues import Queue
from pathlib import Path
from typing import Any

import numpy as np
import torch
from cells import make_shard, prepare, run_cell
from lab_students import Cell, Json, Lab
from over_seeds import Estimate, gain, median, of_intervals, ratio

from distillery.files import read_json, write_json, write_text
from distillery.hardware import describe_hardware, versions
from distillery.store.shards import merge_targets

ROOT = Path(__file__).parents[1]
HERE = Path(__file__).parent
COLUMNS = (
    "student",
    "steps",
    "seeds",
    "CLIP score, of the teacher's, %",
    "gain, points",
    "Fréchet, of floor",
    "detail",
    "diversity",
    "GPU s",
)


def main(argv: list[str] | None = None) -> int:
    """Prepare the store, fill the cells, write the table."""
    arguments = parse(argv)
    if arguments.table:
        sys.stdout.write("\n".join(table(read_json(path)) for path in arguments.table))
        return 0
    lab = Lab.read(
        arguments.plan, arguments.config, arguments.prompts, arguments.folder,
        arguments.shrink, arguments.device,
    )  # fmt: skip
    begin = time.time()
    cells = chosen(lab, arguments.only)
    gpus = torch.cuda.device_count() if arguments.device == "cuda" else 0
    prepare(lab)
    with workers(arguments.jobs, gpus) as pool:
        shards = max(gpus, 1)
        made = pool.map(make_shard, [lab] * shards, range(shards), [shards] * shards)
        merge_targets(list(made), lab.targets)
        say(f"store and reference ready after {time.time() - begin:.1f} s")
        failed = fill(lab, cells, pool, arguments.jobs / max(gpus, 1))
    say(f"{len(cells) - failed} of {len(cells)} cells in {time.time() - begin:.1f} s")
    return 1 if failed else 0


def parse(argv: list[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--folder", type=Path, help="for the store and the results")
    parser.add_argument("--plan", type=Path, default=HERE / "lab.yaml")
    parser.add_argument("--config", type=Path, default=ROOT / "config/config.yaml")
    parser.add_argument("--prompts", type=Path, help="folder with demo-train.csv, demo-eval.csv")
    parser.add_argument("--only", nargs="+", metavar="PATTERN", default=["*"], help="by name")
    parser.add_argument("--jobs", type=int, default=2, help="cells side by side")
    parser.add_argument("--shrink", type=int, default=1, help="divide all samples, to try it")
    parser.add_argument("--device", choices=("cuda", "cpu"), default=default_device())
    parser.add_argument("--table", nargs="+", type=Path, metavar="JSON", help="draw it again")
    arguments = parser.parse_args(argv)
    if not arguments.table and not arguments.folder:
        parser.error("give --folder, or --table with results")
    return arguments


def default_device() -> str:
    """The GPU where there is one."""
    return "cuda" if torch.cuda.is_available() else "cpu"


def chosen(lab: Lab, patterns: Iterable[str]) -> list[Cell]:
    """The students of these names with all seeds, and the teacher.

    Raises SystemExit where there is none.
    """
    names = [
        name for name in lab.plan.students if any(fnmatch(name, pattern) for pattern in patterns)
    ]
    if not names:
        raise SystemExit(f"--only: none of {', '.join(lab.plan.students)}")
    return lab.cells(names) + lab.teacher_cells


def workers(jobs: int, gpus: int) -> ProcessPoolExecutor:
    """Processes that are started once and do many cells, each with one GPU.

    They are spawned, since CUDA does not outlive a fork, and no daemons, since a training starts
    processes that read ahead.
    """
    context = multiprocessing.get_context("spawn")
    places = context.Queue()
    for number in range(jobs):
        places.put(number % gpus if gpus else -1)
    return ProcessPoolExecutor(
        jobs, mp_context=context, initializer=start_worker, initargs=(places,)
    )


def start_worker(places: "Queue[int]") -> None:
    """One thread each: there are as many workers as there should be busy cores."""
    torch.set_num_threads(1)
    place = places.get()
    if place >= 0:
        torch.cuda.set_device(place)  # imports have asked for GPUs, so the environment is too late


def fill(lab: Lab, cells: Iterable[Cell], pool: ProcessPoolExecutor, beside: float) -> int:
    """Run the cells that are not there, each after the one that it waits for; how many failed.

    A failed one is named and leaves the others alone. The table is written after each.
    """
    cells = list(cells)
    done = {cell for cell in cells if rows_of(lab, cell)}
    left = [cell for cell in cells if cell not in done]
    running: dict[Future[list[Json]], Cell] = {}
    num_left, failed = len(left), 0
    while left or running:
        for cell in [it for it in left if before(lab, it) in {None, *done}]:
            left.remove(cell)
            running[pool.submit(run_cell, lab, cell)] = cell
        if not running:
            say(f"not made, since what they wait for is not: {', '.join(it.key for it in left)}")
            return failed + len(left)
        for future in wait(running, return_when=FIRST_COMPLETED).done:
            cell, error = running.pop(future), future.exception()
            if error is None:
                rows = [row | {"beside": beside} for row in future.result()]
                write_json(path_of(lab, cell), settings(lab, cell) | {"rows": rows})
                done.add(cell)
            failed += error is not None
            so_far = f"{num_left - len(left) - len(running)} of {num_left}"
            say(f"{so_far}: {cell.key} {repr(error) if error else 'done'}")
        write_table(lab, cells)
    write_table(lab, cells)
    return failed


def before(lab: Lab, cell: Cell) -> Cell | None:
    """The training that a cell waits for."""
    after = None if cell.is_teacher else lab.student_of(cell).after
    return Cell(after, cell.seed) if after else None


def settings(lab: Lab, cell: Cell) -> Json:
    """What a result depends on."""
    config = lab.config(cell).model_dump(mode="json")
    return {"config": config, "held_out": lab.plan.held_out.model_dump(mode="json")}


def path_of(lab: Lab, cell: Cell) -> Path:
    """A cell's result."""
    return lab.folder / "cells" / f"{cell.key}.json"


def rows_of(lab: Lab, cell: Cell) -> list[Json]:
    """A result that is there and was made with these settings."""
    path = path_of(lab, cell)
    found: Json = read_json(path) if path.is_file() else {}
    rows = found.pop("rows", [])
    return rows if found == settings(lab, cell) else []


def write_table(lab: Lab, cells: Iterable[Cell]) -> None:
    """Results of the cells that are there, so that a lab which is cut short has its rows too."""
    rows = [row for cell in cells for row in rows_of(lab, cell)]
    summary = summarise(lab, rows)
    write_json(lab.folder / "lab.json", summary)
    write_text(lab.folder / "lab.md", table(summary))


def summarise(lab: Lab, rows: Iterable[Json]) -> Json:
    """All estimates, with what they are of."""
    by_student: dict[tuple[str, int], list[Json]] = {}
    for row in rows:
        by_student.setdefault((row["name"], row["steps"]), []).append(row)
    hardware = describe_hardware()
    return {
        "plan": lab.plan.model_dump(mode="json"),
        "shrink": lab.shrink,
        "gpus": [gpu["name"] for gpu in hardware["gpus"]],
        "num_cores": hardware["num_cores"],
        "versions": versions(),
        "store_bytes": sum(it.stat().st_size for it in lab.targets.parent.rglob("*.safetensors")),
        "students": [
            estimates(lab, name, steps, by_student) for name, steps in by_student
        ],
    }  # fmt: skip


def estimates(
    lab: Lab, name: str, steps: int, by_student: Mapping[tuple[str, int], list[Json]]
) -> Json:
    """A student's row, over its seeds."""
    rows = by_student[name, steps]
    clip, reference = arrays(rows, "clip"), arrays(rows, "clip_of_teacher")[0]
    detail = arrays(rows, "detail").reshape(len(rows), lab.plan.held_out.prompts, -1)
    found: dict[str, Estimate] = {
        "clip": ratio(clip, reference),
        "detail": median(detail),
        "diversity": ratio(arrays(rows, "spread"), arrays(rows, "spread_of_teacher")[0]),
    }
    if all(row.get("frechet") and None not in row["frechet"] for row in rows):
        found["frechet"] = of_intervals(arrays(rows, "frechet"))
    student = lab.plan.students.get(name)
    other = by_student.get((student.against, steps)) if student and student.against else None
    if other:
        found["gain"] = gain(clip, arrays(other, "clip"), reference)
    return {
        "name": name,
        "steps": steps,
        "seeds": [row["seed"] for row in rows],
        "against": student.against if student else None,
        "gpu_s": float(np.mean([row["training_s"] / row["beside"] for row in rows])),
        "latent_mse": float(arrays(rows, "latent_mse").mean()),
        "coverage": float(arrays(rows, "coverage").mean()) if "coverage" in rows[0] else None,
    } | {key: estimate.as_json for key, estimate in found.items()}


def arrays(rows: Iterable[Mapping[str, Any]], key: str) -> Any:
    """A measure of all seeds (s, ...)."""
    return np.array([row[key] for row in rows], dtype=np.float64)


def table(summary: Json) -> str:
    """The Markdown table of a lab's results."""
    plan, shrink = summary["plan"], summary["shrink"]
    store, held_out = plan["store"], plan["held_out"]
    where = ", ".join(sorted(set(summary["gpus"]))) or f"{summary['num_cores']} CPU cores"
    known = ", ".join(f"{name} {version}" for name, version in sorted(summary["versions"].items()))
    head = (
        f"{store['prompts']} prompts of {store['noises']} noises "
        f"({summary['store_bytes'] / 2**30:.2f} GiB), {held_out['prompts']} "
        f"held-out prompts of {held_out['images']} images"
        f"{f', all samples divided by {shrink}' * (shrink > 1)}. "
        f"{len(summary['gpus']) or 'No'} GPUs; {where}; {known}. Brackets hold 95 % intervals over "
        "prompts and seeds. GPU seconds are those of one training, by the share that it had of a "
        "GPU."
    )
    rows = [f"| {' | '.join(COLUMNS)} |", "|---" * len(COLUMNS) + "|"]
    return "\n".join([head, "", *rows, *map(line_of, summary["students"]), ""])


def line_of(row: Json) -> str:
    """One row of the table."""
    values = (
        row["name"] if any(row["seeds"]) else f"teacher, {row['name']}",
        str(row["steps"]),
        str(len(row["seeds"])) if any(row["seeds"]) else "",
        shown(row["clip"], 100, 1),
        f"{shown(row['gain'], 100, 1)} over {row['against']}" if "gain" in row else "",
        shown(row.get("frechet"), 1, 2),
        shown(row["detail"], 1, 3),
        shown(row["diversity"], 1, 3),
        f"{row['gpu_s']:.0f}" if row["gpu_s"] else "",
    )
    return f"| {' | '.join(values)} |"


def shown(found: Json | None, times: float, digits: int) -> str:
    """A mean and its interval."""
    if found is None:
        return ""
    mean, low, high = (f"{found[key] * times:.{digits}f}" for key in ("mean", "low", "high"))
    return f"{mean} ({low} to {high})"


def say(line: str) -> None:
    """Progress, at once."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    raise SystemExit(main())
