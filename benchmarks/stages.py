"""The product's stages on a teacher of random weights, run as the workflow runs them, and timed."""

import os
import subprocess
import sys
import time
from datetime import datetime
from pathlib import Path
from typing import Any

import diffusers
import pandas as pd
import torch
from models import Model

from distillery.config.jobs import EmbeddingsJob, SamplesJob, TargetsJob
from distillery.config.run import Embeddings, Targets
from distillery.config.sampling import Sampling
from distillery.config.teacher import Teacher
from distillery.families import family_of
from distillery.files import remove, write_json
from distillery.generation.embeddings import embeddings_recipe
from distillery.hardware import visible_ids
from distillery.store.chunks import ChunkIdentity, chunk_folder, chunk_path, write_chunk
from distillery.store.embeddings import distinct_texts, members_of, pack
from distillery.store.shards import Manifest, describe_chunk
from distillery.teacher.folder import PipelineFolder
from distillery.telemetry import read_events

ROOT = Path(__file__).parents[1]


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
    model: Model, teacher: Teacher, folder: Path, num_samples: int, few_steps: int
) -> None:
    """Prompts, random embeddings and the frozen configurations of both stages, and nothing else."""
    remove(folder / "run")
    table = pd.DataFrame(
        {
            "prompt_id": [f"p{row:05d}" for row in range(num_samples)],
            "prompt": [f"prompt number {row}" for row in range(num_samples)],
        }
    )
    run = folder / "run"
    (run / "prompts").mkdir(parents=True, exist_ok=True)
    table.to_parquet(run / "prompts/table.parquet", index=False)
    write_embeddings(model, teacher, Path(teacher.path), table, run / "embeddings")
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
    job = EmbeddingsJob(teacher=teacher, embeddings=Embeddings())
    recipe = embeddings_recipe(job, PipelineFolder(folder))
    texts = distinct_texts(table, None).texts
    generator = torch.Generator().manual_seed(0)
    prompts = [
        {
            name: torch.randn(shape, generator=generator).bfloat16()
            for name, shape in model.prompt.items()
        }
        for _ in texts
    ]
    recipe_hash = recipe.hash
    chunks = chunk_folder(root, recipe_hash)
    identity = ChunkIdentity(recipe_hash, members_of(texts))
    write_chunk(chunk_path(chunks, 0), pack(prompts), identity, {})
    record = describe_chunk(chunks, 0, root, identity.members, len(texts))
    Manifest(recipe.to_json(), recipe_hash, (record,)).write(root / "manifest.json")


def run_stage(
    folder: Path, stage: str, num_gpus: int, compiling: str, num_samples: int
) -> dict[str, Any]:
    """Run a stage as the workflow does, one job per GPU; rates from its own telemetry."""
    run = folder / "run"
    output = run / f"{stage}-{num_gpus}" / ("few" if stage == "samples" else "")
    ending = "parquet" if stage == "samples" else "json"
    config = {"targets": "targets.json", "samples": "samples-few.json"}[stage]
    devices = visible_ids() or [str(index) for index in range(num_gpus)]
    if not torch.cuda.is_available():
        devices = [""] * num_gpus
    begin = time.time()
    jobs = [
        subprocess.Popen(
            [
                *(sys.executable, "-m", f"distillery.stages.{stage}"),
                *("--config", str(run / "config" / config)),
                *("--prompts", str(run / "prompts/table.parquet")),
                *("--embeddings", str(run / "embeddings/manifest.json")),
                *("--shard", f"{part}/{num_gpus}"),
                *("--output", str(output / f"shard-{part}-of-{num_gpus}.{ending}")),
                *("--compile", compiling),
                *("--log-file", str(run / f"logs/{stage}-{num_gpus}-{part}.log")),
                *(("--model", "few") if stage == "samples" else ()),
            ],
            env={**os.environ, "CUDA_VISIBLE_DEVICES": devices[part]},
        )
        for part in range(num_gpus)
    ]
    statuses = [job.wait() for job in jobs]
    seconds = time.time() - begin
    if any(statuses):
        raise SystemExit(f"{stage} ended with {statuses}: see {run / 'logs'}")
    logs = [run / f"logs/{stage}-{num_gpus}-{part}.log" for part in range(num_gpus)]
    return {
        **from_telemetry(run, begin, num_gpus),
        "ready_after_s": [loaded_s(log) - begin for log in logs],
        "seconds": seconds,
        "num_samples": num_samples,
        "compiled": compiling == "always",
        "num_gpus": num_gpus,
    }


def loaded_s(log: Path) -> float:
    """Unix time at which a job said that its pipeline is loaded; the first step follows at once."""
    (line,) = (line for line in log.read_text().splitlines() if "pipeline is loaded" in line)
    return datetime.strptime(line[:23], "%Y-%m-%d %H:%M:%S,%f").timestamp()


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
        "images_per_s": [
            sum(event.num_items for event in events[1:]) / span
            for events, span in zip(by_job.values(), spans, strict=True)
        ],
        "ends_after_s": [events[-1].end_s - begin for events in by_job.values()],
        "busy_share": spent / sum(spans),
        "first_batch_s": [events[0].end_s - events[0].begin_s for events in by_job.values()],
        "begins_after_s": [events[0].begin_s - begin for events in by_job.values()],
    }
