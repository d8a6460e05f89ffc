"""Speed of generation at full size: released configurations, random weights, the product's stages.

    PYTHONPATH=workflow python benchmarks/generation.py sdxl --folder /tmp/bench --output sdxl.json

The arithmetic of a network does not depend on its weights, so random ones serve. Text encoders are
left out, as they are in the stages themselves, and prompts are random embeddings. Measured:

peak        a large bfloat16 matrix product on the same GPU, and on each of them
stock       Diffusers in bfloat16, one prompt per call, PNG saved with its defaults
stock-batch Diffusers in bfloat16, eager, latents only, at the stage's batch size
targets     distillery.stages.targets as the workflow runs it, one process per GPU
precision   error of a call of the network to float32, stock bfloat16's and the stages'
samples     distillery.stages.samples with few steps and no guidance: what a student costs

A stage's rate is that of its batches after each job's first, which also compiles; its `seconds` are
those of the whole stage, start and tail included, and `ready_after_s` the time from the start of
its processes to the first denoising step.
"""

import argparse
import json
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
from models import MODELS, Model, count_teraflops
from precision import measure_precision
from stages import make_teacher, run_stage, write_run
from stock import Stock, measure_peaks

from distillery.config.teacher import Teacher
from distillery.files import write_json
from distillery.hardware import describe_hardware, versions


def parse(argv: list[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", choices=MODELS)
    parser.add_argument("--folder", type=Path, required=True, help="for weights and results")
    parser.add_argument("--output", type=Path, required=True, help="JSON")
    parser.add_argument("--num-gpus", type=int, nargs="+", default=[1])
    parser.add_argument("--stock", type=int, default=4, help="stock repeats; 0: not measured")
    parser.add_argument("--stock-batches", type=int, default=2, help="in eager mode, likewise")
    parser.add_argument("--eager", type=int, default=0, help="targets per GPU without compiling")
    parser.add_argument("--targets", type=int, default=96, help="targets per GPU; 0: not measured")
    parser.add_argument("--samples", type=int, default=0, help="images per GPU")
    parser.add_argument("--few-steps", type=int, default=4)
    parser.add_argument("--batch-size", type=int, help="of the stages; else the model's")
    parser.add_argument("--vae-dtype", default="float32")
    parser.add_argument("--attention", help="teacher.attention of the stages")
    parser.add_argument("--precision", action="store_true", help="errors to float32, too")
    return parser.parse_args(argv)


def teacher_of(model: Model, folder: Path, arguments: argparse.Namespace) -> Teacher:
    """The section `teacher` of the stages' configuration."""
    return Teacher(
        path=str(folder / "teacher"),
        dtype="bfloat16",
        vae_dtype=arguments.vae_dtype,
        attention=arguments.attention,
        height=model.height,
        width=model.width,
    )


def main(argv: list[str] | None = None) -> int:
    """Parse, measure; the file is written after each measurement."""
    arguments = parse(argv)
    model, folder = MODELS[arguments.model], arguments.folder
    model = replace(model, batch_size=arguments.batch_size or model.batch_size)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if not (folder / "teacher/model_index.json").is_file():
        make_teacher(model, folder / "teacher")
    results: dict[str, Any] = {
        "model": asdict(model),
        "options": {
            name: value
            for name, value in vars(arguments).items()
            if name not in ("model", "folder", "output")
        },
        "teraflops_a_call": count_teraflops(model, folder / "teacher"),
        "hardware": describe_hardware(),
        "versions": versions(),
        "stages": {},
    }
    for name, found in measurements(model, arguments, device):
        stages = results["stages"] if name.startswith("stage ") else results
        stages |= found if name == "peak" else {name.removeprefix("stage "): found}
        write_json(arguments.output, results)
        print(name, json.dumps(found), flush=True)  # noqa: T201
    print(explain(model, results))  # noqa: T201
    return 0


def measurements(
    model: Model, arguments: argparse.Namespace, device: torch.device
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Each measurement by its name, as it is made."""
    folder = arguments.folder
    if device.type == "cuda":
        yield "peak", measure_peaks()
    if arguments.stock or arguments.stock_batches:
        stock = Stock(model, folder, device)
        if arguments.stock:
            yield "stock", stock.measure(1, model.steps, arguments.stock)
        if arguments.stock_batches:
            batch = stock.measure(model.batch_size, model.steps, arguments.stock_batches)
            yield "stock-batch", batch
        del stock
    if arguments.precision:
        yield (
            "precision",
            measure_precision(model, teacher_of(model, folder, arguments), device),
        )
    torch.cuda.empty_cache()
    yield from measure_stages(model, arguments)


def measure_stages(
    model: Model, arguments: argparse.Namespace
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Each stage at each number of GPUs, with as many samples per GPU every time."""
    wanted = [
        (stage, per_gpu, compiling)
        for stage, per_gpu, compiling in (
            ("targets", arguments.eager, "never"),
            ("targets", arguments.targets, "always"),
            ("samples", arguments.samples, "always"),
        )
        if per_gpu
    ]
    teacher = teacher_of(model, arguments.folder, arguments)
    for num_gpus in arguments.num_gpus:
        for stage, per_gpu, compiling in wanted:
            folder = arguments.folder / f"{stage}-{compiling}-{num_gpus}"
            total = per_gpu * num_gpus
            write_run(model, teacher, folder, total, arguments.few_steps)
            found = run_stage(folder, stage, num_gpus, compiling, total)
            yield f"stage {stage}-{compiling}-{num_gpus}", found


def explain(model: Model, results: dict[str, Any]) -> str:
    """Each rate, its shares of both peaks, its ratio to stock; the efficiency of several GPUs.

    Efficiency compares whole stages that give every GPU as much: the seconds of one GPU, over
    those of several.
    """
    per_image = model.steps * model.calls_per_step * results["teraflops_a_call"]
    peak = results.get("peak_tflops", float("nan"))
    sustained = results.get("sustained_tflops", [float("nan")])[0]
    rates = {
        name: results[name]["images_per_s"] for name in ("stock", "stock-batch") if name in results
    }
    stages = results["stages"]
    rates |= {name: found["images_per_s_per_gpu"] for name, found in stages.items()}
    lines = []
    for name, images_per_s in rates.items():
        line = f"{name:24s} {images_per_s:7.3f} images/s per GPU"
        if not name.startswith("samples"):
            teraflops = images_per_s * per_image
            line += f", {teraflops:.0f} TFLOP/s: {teraflops / peak:.1%} of the peak of {peak:.0f}"
            line += f", {teraflops / sustained:.1%} of {sustained:.0f} sustained"
            if "stock" in rates:
                line += f", {images_per_s / rates['stock']:.2f} x stock"
        lines.append(line)
    for name, found in stages.items():
        alone = stages.get(f"{name.rpartition('-')[0]}-1")
        if alone and found["num_gpus"] > 1:
            efficiency = alone["seconds"] / found["seconds"]
            lines.append(f"{name:24s} {found['seconds']:7.1f} s, efficiency {efficiency:.1%}")
    return "\n".join(lines)


if __name__ == "__main__":
    raise SystemExit(main())
