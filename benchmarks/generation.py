"""Speed of generation at full size: released configurations, random weights, the product's stages.

    PYTHONPATH=workflow python benchmarks/generation.py sdxl --folder /tmp/bench --output sdxl.json

The arithmetic of a network does not depend on its weights, so random ones serve. Text encoders are
left out, as they are in the stages themselves, and prompts are random embeddings. Measured:

peak        a large bfloat16 matrix product on the same GPU
stock       Diffusers in bfloat16, one prompt a call, PNG saved with its defaults
stock-batch Diffusers in bfloat16, eager, latents only, at the stage's batch size
targets     scripts/targets.py as the workflow runs it, one process a GPU
precision   error of one forward pass to float32, stock bfloat16's and the stages'
samples     scripts/samples.py with few steps and no guidance: what a student costs

A stage's rate is that of its batches after each job's first, which also compiles; its `seconds` are
those of the whole stage, start and tail included.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import diffusers
import pandas as pd
import torch
from models import MODELS, Model, random_prompt
from precision import measure_precision

from distillery.config.jobs import EmbeddingsJob, SamplesJob, Sampling, TargetsJob
from distillery.config.run import Embeddings, Targets
from distillery.config.section import Dtype
from distillery.config.teacher import Teacher
from distillery.families import family_of
from distillery.files import hash_json, write_json
from distillery.hardware import describe_hardware
from distillery.identity import SampleId, draw_noise
from distillery.stages.embeddings import embeddings_recipe
from distillery.store.chunks import ChunkIdentity, chunk_folder, chunk_path, write_chunk
from distillery.store.embeddings import distinct_texts, members_of, pack
from distillery.store.shards import Manifest, describe_chunk
from distillery.teacher.find import fingerprint
from distillery.telemetry import read_events

ROOT = Path(__file__).parents[1]
TERA = 1e12


def make_teacher(model: Model, folder: Path) -> None:
    """Save the pipeline with random weights in bfloat16, its VAE too, without text encoders."""
    name, class_name, config = model.denoiser
    parts = {name: (class_name, config), "vae": model.vae}
    index: dict[str, Any] = {"_class_name": model.pipeline, **model.index}
    for part, (part_class, part_config) in parts.items():
        network = random_network(part_class, part_config)
        network.save_pretrained(folder / part)
        index[part] = ["diffusers", part_class]
    scheduler_class, scheduler_config = model.scheduler
    scheduler = getattr(diffusers, scheduler_class)(**scheduler_config)
    scheduler.save_pretrained(folder / "scheduler")
    index["scheduler"] = ["diffusers", scheduler_class]
    for part in family_of(model.pipeline).text_components:
        index[part] = [None, None]
    write_json(folder / "model_index.json", index)


def random_network(class_name: str, config: dict[str, Any]) -> Any:
    """A network of small random weights, made on the GPU."""
    with torch.device("meta"):
        network = getattr(diffusers, class_name).from_config(config)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    network = network.to(torch.bfloat16).to_empty(device=device)
    generator = torch.Generator(device).manual_seed(0)
    for tensor in (*network.parameters(), *network.buffers()):
        if tensor.is_floating_point():
            tensor.data.normal_(0.0, 0.02, generator=generator)
    return network


def write_run(
    model: Model, folder: Path, num_samples: int, few_steps: int, vae_dtype: Dtype
) -> None:
    """Prompts, random embeddings and the frozen configurations of both stages."""
    teacher = Teacher(
        path=str(folder / "teacher"),
        dtype="bfloat16",
        vae_dtype=vae_dtype,
        height=model.height,
        width=model.width,
    )
    table = pd.DataFrame(
        {
            "prompt_id": [f"p{row:05d}" for row in range(num_samples)],
            "prompt": [f"prompt number {row}" for row in range(num_samples)],
        }
    )
    run = folder / "run"
    (run / "prompts").mkdir(parents=True, exist_ok=True)
    table.to_parquet(run / "prompts/table.parquet", index=False)
    write_embeddings(model, teacher, folder / "teacher", table, run / "embeddings")
    targets = Targets(
        steps=model.steps,
        guidance_scale=model.guidance_scale,
        batch_size=model.batch_size,
        chunk_size=model.batch_size,
    )
    write_json(
        run / "config/targets.json",
        TargetsJob(seed=0, teacher=teacher, targets=targets).model_dump(mode="json"),
    )
    sampling = Sampling(
        source="teacher",
        steps=few_steps,
        guidance_scale=1.0,
        trained_guidance_scale=None,
        num_prompts=None,
        images_per_prompt=1,
        batch_size=model.batch_size,
    )
    write_json(
        run / "config/samples-few.json",
        SamplesJob(seed=0, teacher=teacher, sampling=sampling).model_dump(mode="json"),
    )


def write_embeddings(
    model: Model, teacher: Teacher, folder: Path, table: pd.DataFrame, root: Path
) -> None:
    """Random embeddings in the store's format."""
    family = family_of(model.pipeline)
    job = EmbeddingsJob(teacher=teacher, embeddings=Embeddings())
    recipe = embeddings_recipe(job, family, fingerprint(folder))
    texts, _ = distinct_texts(table, None)
    generator = torch.Generator().manual_seed(0)
    prompts = [
        {
            name: torch.randn(shape, generator=generator).bfloat16()
            for name, shape in model.prompt.items()
        }
        for _ in texts
    ]
    recipe_hash = hash_json(recipe)
    chunks = chunk_folder(root, recipe_hash)
    identity = ChunkIdentity(recipe_hash, members_of(texts))
    write_chunk(chunk_path(chunks, 0), pack(prompts), identity, {})
    record = describe_chunk(chunks, 0, root, identity.members, len(texts))
    Manifest(recipe, recipe_hash, (record,)).write(root / "manifest.json")


def measure_peak() -> float:
    """TFLOP/s of an 8192³ bfloat16 product of random numbers, the median of 10."""
    left, right = (torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    seconds = timed(lambda: left @ right, repeats=10)
    return 2 * 8192**3 / statistics.median(seconds) / TERA


def timed(work: Callable[[], object], repeats: int) -> list[float]:
    """Seconds of each repeat, after one that is not counted."""
    seconds = []
    for _ in range(repeats + 1):
        torch.cuda.synchronize()
        begin = time.perf_counter()
        work()
        torch.cuda.synchronize()
        seconds.append(time.perf_counter() - begin)
    return seconds[1:]


def measure_stock(model: Model, folder: Path, repeats: int) -> dict[str, Any]:
    """Images a second of the stock pipeline: alone to a PNG, and in a batch to latents."""
    pipeline = diffusers.DiffusionPipeline.from_pretrained(
        folder / "teacher", dtype=torch.bfloat16
    ).to("cuda")
    pipeline.set_progress_bar_config(disable=True)

    def save_one() -> None:
        result = pipeline(**stock_call(model, pipeline, 1), output_type="pil").to_tuple()[0][0]
        picture = result[0] if isinstance(result, list) else result
        picture.save(folder / "stock.png")

    def batch() -> None:
        pipeline(**stock_call(model, pipeline, model.batch_size), output_type="latent")

    alone, together = timed(save_one, repeats), timed(batch, 2)
    return {
        "stock": rate(alone, 1),
        "stock-batch": rate(together, model.batch_size),
    }


def stock_call(model: Model, pipeline: Any, batch_size: int) -> dict[str, Any]:
    """Arguments of a plain call with embeddings, as a user would write it."""
    family = family_of(model.pipeline)
    shape = family.latent_shape(pipeline, model.height, model.width)
    samples = [SampleId(f"p{row}", 0) for row in range(batch_size)]
    noise = draw_noise(0, samples, shape).to("cuda", torch.bfloat16)
    length = max(size[0] for size in model.prompt.values())
    batch = family.pad([random_prompt(model)] * batch_size, length)
    embeds = {
        "prompt_embeds": batch["prompt_embeds"].cuda(),
        **({"pooled_prompt_embeds": batch["pooled"].cuda()} if "pooled" in batch else {}),
    }
    if model.calls_per_step == 2:
        embeds |= {f"negative_{name}": torch.zeros_like(value) for name, value in embeds.items()}
    options = {"num_frames": 1} if model.pipeline == "WanPipeline" else {}
    return {
        **embeds,
        **options,
        "latents": noise,
        "height": model.height,
        "width": model.width,
        "num_inference_steps": model.steps,
        "guidance_scale": model.guidance_scale,
    }


def rate(seconds: list[float], num_images: int) -> dict[str, Any]:
    """Images a second: median, least and most."""
    rates = sorted(num_images / second for second in seconds)
    return {
        "images_per_s": statistics.median(rates),
        "least": rates[0],
        "most": rates[-1],
        "repeats": len(rates),
    }


def run_stage(
    folder: Path, stage: str, num_gpus: int, compiling: str, num_samples: int
) -> dict[str, Any]:
    """Run a stage as the workflow does, one job a GPU; rates from its own telemetry."""
    run = folder / "run"
    output = {
        "targets": lambda part: run / f"targets-{num_gpus}/shard-{part}-of-{num_gpus}.json",
        "samples": lambda part: run / f"samples-{num_gpus}/few/shard-{part}-of-{num_gpus}.parquet",
    }[stage]
    config = {"targets": "targets.json", "samples": "samples-few.json"}[stage]
    for path in (run / "telemetry").glob("*.jsonl"):
        path.unlink()
    begin = time.time()
    jobs = [
        subprocess.Popen(
            [
                *(sys.executable, str(ROOT / f"scripts/{stage}.py")),
                *("--config", str(run / "config" / config)),
                *("--prompts", str(run / "prompts/table.parquet")),
                *("--embeddings", str(run / "embeddings/manifest.json")),
                *("--shard", f"{part}/{num_gpus}"),
                *("--output", str(output(part))),
                *("--compile", compiling),
                *("--log-file", str(run / f"logs/{stage}-{num_gpus}-{part}.log")),
                *(("--model", "few") if stage == "samples" else ()),
            ],
            env={**os.environ, "CUDA_VISIBLE_DEVICES": str(part)},
        )
        for part in range(num_gpus)
    ]
    statuses = [job.wait() for job in jobs]
    seconds = time.time() - begin
    if any(statuses):
        raise SystemExit(f"{stage} ended with {statuses}: see {run / 'logs'}")
    return {
        **from_telemetry(run, begin, num_gpus),
        "seconds": seconds,
        "num_samples": num_samples,
        "compiled": compiling == "always",
        "num_gpus": num_gpus,
    }


def from_telemetry(run: Path, begin: float, num_gpus: int) -> dict[str, Any]:
    """Rate over the batches after each job's first, and when the first batch began."""
    events = [event for event in read_events(run / "telemetry") if event.kind == "work"]
    by_job: dict[str, list[Any]] = {}
    for event in events:
        by_job.setdefault(event.job, []).append(event)
    later = [event for events in by_job.values() for event in events[1:]]
    spent = sum(event.end_s - event.begin_s for event in later)
    # Whole-job time after the first batch: saving that the GPU had to wait for counts too.
    spans = [events[-1].end_s - events[0].end_s for events in by_job.values()]
    return {
        "images_per_s_per_gpu": sum(event.num_items for event in later) / sum(spans),
        "busy_share": spent / sum(spans),
        "first_batch_s": [events[0].end_s - events[0].begin_s for events in by_job.values()],
        "begins_after_s": [events[0].begin_s - begin for events in by_job.values()],
    }


def main(argv: list[str] | None = None) -> int:
    """Parse, measure, write."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", choices=MODELS)
    parser.add_argument("--folder", type=Path, required=True, help="for weights and results")
    parser.add_argument("--output", type=Path, required=True, help="JSON")
    parser.add_argument("--num-gpus", type=int, nargs="+", default=[1])
    parser.add_argument("--targets", type=int, default=96, help="samples a GPU; 0: not measured")
    parser.add_argument("--samples", type=int, default=0, help="pictures a GPU")
    parser.add_argument("--few-steps", type=int, default=4)
    parser.add_argument("--vae-dtype", default="float32")
    parser.add_argument("--eager", type=int, default=0, help="targets a GPU without compiling, too")
    parser.add_argument("--precision", action="store_true", help="errors to float32, too")
    parser.add_argument("--stock", type=int, default=4, help="stock repeats; 0: not measured")
    arguments = parser.parse_args(argv)
    model, folder = MODELS[arguments.model], arguments.folder
    results: dict[str, Any] = {
        "model": asdict(model),
        "hardware": describe_hardware(),
        "versions": {"torch": torch.__version__, "diffusers": diffusers.__version__},
        "vae_dtype": arguments.vae_dtype,
        "few_steps": arguments.few_steps,
        "peak_tflops": measure_peak(),
        "stages": {},
    }
    if not (folder / "teacher/model_index.json").is_file():
        make_teacher(model, folder / "teacher")
    if arguments.stock:
        results |= measure_stock(model, folder, arguments.stock)
    torch.cuda.empty_cache()
    if arguments.precision:
        results["precision"] = measure_precision(model, folder)
        print("precision", json.dumps(results["precision"]), flush=True)  # noqa: T201
    measure_stages(model, arguments, results)
    explain(model, results)
    write_json(arguments.output, results)
    return 0


def measure_stages(model: Model, arguments: argparse.Namespace, results: dict[str, Any]) -> None:
    """Each stage at each number of GPUs, with as many samples a GPU every time."""
    wanted = [
        (stage, per_gpu, compiling)
        for stage, per_gpu, compiling in (
            ("targets", arguments.eager, "never"),
            ("targets", arguments.targets, "always"),
            ("samples", arguments.samples, "always"),
        )
        if per_gpu
    ]
    for num_gpus in arguments.num_gpus:
        for stage, per_gpu, compiling in wanted:
            folder = arguments.folder / f"{stage}-{compiling}-{num_gpus}"
            folder.mkdir(parents=True, exist_ok=True)
            if not (folder / "teacher").exists():
                (folder / "teacher").symlink_to((arguments.folder / "teacher").resolve())
            total = per_gpu * num_gpus
            write_run(model, folder, total, arguments.few_steps, arguments.vae_dtype)
            found = run_stage(folder, stage, num_gpus, compiling, total)
            results["stages"][f"{stage}-{compiling}-{num_gpus}"] = found
            print(stage, compiling, num_gpus, json.dumps(found), flush=True)  # noqa: T201


def explain(model: Model, results: dict[str, Any]) -> None:
    """Print each rate with its share of the peak and its ratio to stock."""
    per_image = model.steps * model.calls_per_step * model.teraflops
    rates = {
        name: results[name]["images_per_s"] for name in ("stock", "stock-batch") if name in results
    }
    rates |= {name: found["images_per_s_per_gpu"] for name, found in results["stages"].items()}
    for name, images_per_s in rates.items():
        share = images_per_s * per_image / results["peak_tflops"]
        ratio = images_per_s / rates["stock"] if "stock" in rates else float("nan")
        note = (
            ""
            if name.startswith("samples")
            else f", {share:.1%} of {results['peak_tflops']:.0f} TFLOP/s"
        )
        print(f"{name:24s} {images_per_s:7.3f} images/s a GPU, {ratio:.2f} x stock{note}")  # noqa: T201


if __name__ == "__main__":
    raise SystemExit(main())
