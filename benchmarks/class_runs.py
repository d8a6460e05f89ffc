"""A whole run of every class that a trace passes, from the signature to images.

    PYTHONPATH=workflow:tests python benchmarks/class_runs.py --output class_runs.json \
        [--dtype bfloat16] [CLASS ...]

Signature, plan, targets, training, export, images of teacher and student. Each class is a tiny
pipeline with random weights (`tests/traced/`), trained for one update. Compared with stock calls of
its folder, and of the exported student's:

trajectories  the largest distance of an end, relative to its largest number; of a teacher in
              bfloat16, whose states targets keep in float32, that is the stock call's rounding
teacher, student  the largest distance of an image's pixels, in levels of 255

docs/families.md tells which hold. What was measured before is kept, so that a walk can go on.
"""

import argparse
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from distillery.files import read_json, write_json
from distillery.hardware import describe_hardware, versions
from distillery.pipeline import STAGES
from distillery.planning.plan import make_plan
from traced import ROWS
from traced.whole import off_images, off_trajectories, traced_run


def main() -> None:
    """Run the classes that are named, or all, and write after each."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("classes", nargs="*", metavar="CLASS")
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--dtype", choices=["float32", "bfloat16"], default="float32")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    passing = [name for name, row in ROWS.items() if not row.refused]
    known = read_json(arguments.output)["classes"] if arguments.output.is_file() else {}
    for name in arguments.classes or [name for name in passing if name not in known]:
        begin = time.perf_counter()
        with tempfile.TemporaryDirectory() as folder:
            found = measured(name, Path(folder), arguments.dtype)
        found["seconds"] = round(time.perf_counter() - begin, 1)
        sys.stderr.write(f"{name} {found}\n")
        known[name] = found
        about = {"hardware": describe_hardware(), "versions": versions()}
        write_json(arguments.output, {"classes": known, **about})


def measured(name: str, folder: Path, dtype: str) -> dict[str, Any]:
    """How far a run comes from its stock calls, or why it came to no end.

    One sample a call, since in bfloat16 calls of several round otherwise.
    """
    folder = Path(os.path.realpath(folder))
    try:
        run = traced_run(
            name,
            folder,
            teacher={"dtype": dtype},
            targets={"batch_size": 1},
            training={"dtype": dtype},
            samples={"batch_size": 1},
        )
        make_plan(STAGES, run.config, run.files.plan)
        run.ready_to_train()
        run.encode("eval")
        run.samples()
        run.samples(model="student", pipeline=run.train_and_export())
        return {
            "trajectories": off_trajectories(run),
            "teacher": off_images(run, "teacher"),
            "student": off_images(run, "student"),
        }
    except Exception as error:  # whatever one class raises, the others go on
        return {"error": f"{type(error).__name__}: {error}"}


if __name__ == "__main__":
    main()
