"""A whole run of a released shape through Snakemake: what it costs, beside what its plan said.

    PYTHONPATH=workflow:tests python benchmarks/whole_runs.py z-image --folder DIR --output z.json

For teachers that are traced, and for clips, whose prompts other benchmarks cannot make up. Weights
are random. Network, VAE and scheduler are as released; text encoders have the released width and
few layers, the tokenizer spells letters, steps and prompts are few. Measured:

peak    a large bfloat16 matrix product on the same GPU, short and sustained
stock   the stock pipeline, eager, at the stages' batch size: a step of a guided call
stages  of the workflow: rate after each job's first batch, memory, seconds from start to end

One step of a guided call takes two forward passes a sample, an update three.
"""

import argparse
import json
import subprocess
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import diffusers
import pandas as pd
import torch
import yaml
from models import FLUX2_KLEIN, TERA, WAN_SMALL, WAN_TI2V, Z_IMAGE, Model
from stages import random_network
from stock import measure_peaks, timed
from torch.utils.flop_counter import FlopCounterMode
from transformers import Qwen3Config, Qwen3ForCausalLM, Qwen3Model, UMT5Config, UMT5EncoderModel

from distillery.files import read_json, write_json
from distillery.hardware import describe_hardware, versions
from distillery.telemetry import Event, read_events
from families.t5 import tiny_t5_tokenizer
from traced.parts import chat_tokenizer

ROOT = Path(__file__).parents[1]
STEPS, SEGMENTS, UPDATES = 8, 4, 8
STOCK_STEPS = (2, 6)
WRITE_EVERY_S = 60.0
LORA = {"rank": 64, "targets": ["to_q", "to_k", "to_v", "to_out.0"]}
COLOURS, THINGS = ("red", "blue", "green", "white"), ("cat", "boat", "house", "tree", "lamp")


@dataclass(frozen=True)
class Run:
    """What is run.

    Attributes:
        model: as released.
        trace: the section `teacher.trace`; None where the class has an adapter.
        text_layers: of a reader of text with chat turns; 0: UMT5.
        batch_size: of targets, samples and each update.
        num_prompts: to learn from.
        student: the section, but for its steps.
    """

    model: Model
    trace: Mapping[str, Any] | None
    text_layers: int
    batch_size: int
    num_prompts: int
    student: Mapping[str, Any]

    @property
    def size(self) -> dict[str, int]:
        """As the section `teacher` has it."""
        frames = {"num_frames": self.model.num_frames} if self.model.num_frames > 1 else {}
        return {"height": self.model.height, "width": self.model.width, **frames}


UNGUIDED = {"unguided": {"guidance_scale": 1.0}}
AS_LORA = {"init": "lora", "lora": LORA}
RUNS = {
    "z-image": Run(Z_IMAGE, {"unguided": {"guidance_scale": 0.0}}, 4, 4, 20, AS_LORA),
    "flux2-klein": Run(FLUX2_KLEIN, UNGUIDED, 28, 4, 20, AS_LORA),
    "wan-1.3b-clip": Run(replace(WAN_SMALL, num_frames=81), None, 0, 1, 4, {"init": "teacher"}),
    "wan-ti2v-5b-clip": Run(WAN_TI2V, UNGUIDED, 0, 1, 3, AS_LORA),
}
"""Clips of as many frames as are released; Wan 1.3B has 81 of 480 x 832."""


def make_teacher(run: Run, folder: Path) -> None:
    """Save the pipeline in bfloat16."""
    model = run.model
    name, class_name, config = model.denoiser
    scheduler_class, scheduler_config = model.scheduler
    parts: dict[str, Any] = {
        name: random_network(class_name, config),
        "vae": random_network(*model.vae),
        "scheduler": getattr(diffusers, scheduler_class)(**scheduler_config),
        **text_parts(run),
    }
    kind = getattr(diffusers, model.pipeline)
    kind(**parts, **model.index).save_pretrained(folder)


def text_parts(run: Run) -> dict[str, Any]:
    """A tokenizer that spells, and a text encoder of the released width."""
    torch.manual_seed(0)
    with torch.device("cuda" if torch.cuda.is_available() else "cpu"):
        if not run.text_layers:
            tokenizer = tiny_t5_tokenizer()
            shape = UMT5Config(
                vocab_size=len(tokenizer), d_model=4096, d_kv=64, d_ff=10240, num_layers=2
            )
            encoder: Any = UMT5EncoderModel(shape)
        else:
            tokenizer = chat_tokenizer()
            config = Qwen3Config(
                vocab_size=len(tokenizer),
                hidden_size=2560,
                intermediate_size=512,
                num_hidden_layers=run.text_layers,
                num_attention_heads=32,
                num_key_value_heads=8,
                head_dim=128,
            )
            of_klein = run.model is FLUX2_KLEIN
            encoder = (Qwen3ForCausalLM if of_klein else Qwen3Model)(config)
    return {"tokenizer": tokenizer, "text_encoder": encoder.to(torch.bfloat16)}


def write_run(run: Run, folder: Path, name: str, compiling: str) -> Path:
    """Prompt files and the configuration; what it leaves out has the product's defaults."""
    words = [f"a {colour} {thing}" for colour in COLOURS for thing in THINGS]
    texts = [f"{words[row % len(words)]} {row}" for row in range(run.num_prompts + run.batch_size)]
    for split, chosen in {
        "train": texts[: run.num_prompts],
        "eval": texts[run.num_prompts :],
    }.items():
        ids = [f"{split}-{row:04d}" for row in range(len(chosen))]
        table = pd.DataFrame({"prompt_id": ids, "prompt": chosen})
        table.to_csv(folder / f"{split}.csv", index=False)
    config = {
        "run": name,
        "prompts": {split: str(folder / f"{split}.csv") for split in ("train", "eval")},
        "teacher": {
            "path": str(folder / "teacher"),
            "dtype": "bfloat16",
            "vae_dtype": "bfloat16",
            **run.size,
            **({"trace": run.trace} if run.trace else {}),
        },
        "targets": {
            "steps": STEPS,
            "guidance_scale": run.model.guidance_scale,
            "num_segments": SEGMENTS,
            "batch_size": run.batch_size,
            "chunk_size": run.batch_size,
            "num_shards": 1,
        },
        "student": {"steps": SEGMENTS, **run.student},
        "training": {
            "phases": [{"learn": "stored", "samples": UPDATES * run.batch_size}],
            "global_batch_size": run.batch_size,
            "log_every_samples": run.batch_size,
            "held_out_prompts": 0,
            "keep_checkpoints": 1,
        },
        "hardware": {"compile": compiling, "cpu_processes": 1},
        "samples": {
            "num_shards": 1,
            "batch_size": run.batch_size,
            "models": {"teacher": {"source": "teacher"}, "student": {"source": "student"}},
        },
        "evaluation": {"judge": "resources/demo/judge"},
    }
    path = folder / f"{name}.yaml"
    path.write_text(yaml.safe_dump(config, sort_keys=False), encoding="utf-8")
    return path


def measure_stock(run: Run, folder: Path) -> dict[str, Any]:
    """A step of the stock pipeline's guided call, and what a forward pass for one sample counts."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    pipeline: Any = diffusers.DiffusionPipeline.from_pretrained(
        folder / "teacher", dtype=torch.bfloat16
    ).to(device)
    pipeline.set_progress_bar_config(disable=True)

    def call(steps: int, batch_size: int, **options: Any) -> None:
        arguments = {"guidance_scale": run.model.guidance_scale, **run.size, **options}
        prompts = ["a red cat"] * batch_size
        pipeline(prompt=prompts, num_inference_steps=steps, output_type="latent", **arguments)

    seconds = {
        steps: timed(
            lambda steps=steps: call(steps, run.batch_size),  # type: ignore[misc]
            2,
            lambda: call(2, run.batch_size),
            device,
        )
        for steps in STOCK_STEPS
    }
    few, more = STOCK_STEPS
    step_s = (min(seconds[more]) - min(seconds[few])) / (more - few)
    unguided = (run.trace or UNGUIDED)["unguided"]
    with FlopCounterMode(display=False) as counter:
        call(1, 1, **unguided)
    counts = counter.get_flop_counts()
    network = run.model.denoiser[1]
    return {
        "step_s": step_s,
        "sample_steps_per_s": run.batch_size / step_s,
        "teraflops_a_call": sum(counts[network].values()) / TERA,
    }


def of_stages(events: list[Event]) -> dict[str, Any]:
    """Each stage's rate after its jobs' first batch, most memory, and time from start to end."""
    by_stage: dict[str, list[Event]] = {}
    for event in events:
        by_stage.setdefault(event.stage, []).append(event)
    found = {}
    for stage, its in by_stage.items():
        work = [event for event in its if event.kind == "work"]
        later = work[1:]
        span = work[-1].end_s - work[0].end_s if later else 0.0
        memory = [event.facts.get("peak_memory_bytes", 0) for event in its]
        found[stage] = {
            "items": sum(event.num_items for event in work),
            "items_per_s": sum(event.num_items for event in later) / span if span else None,
            "first_s": work[0].end_s - work[0].begin_s if work else None,
            "seconds": max(event.end_s for event in its) - min(event.begin_s for event in its),
            "peak_memory_gib": max(memory) / 2**30,
        }
    return found


def explain(run: Run, results: Mapping[str, Any]) -> str:
    """Rates as shares of the peaks."""
    teraflops = results["stock"]["teraflops_a_call"]
    peak = results.get("peak_tflops", float("nan"))
    sustained = results.get("sustained_tflops", [float("nan")])[0]
    passes = {"stock": 2.0, "targets": 2.0 * STEPS, "training": 3.0}
    rates = {"stock": results["stock"]["sample_steps_per_s"]}
    rates |= {stage: found["items_per_s"] for stage, found in results["stages"].items()}
    lines = []
    for name, rate in rates.items():
        if name in passes and rate:
            spent = rate * passes[name] * teraflops
            shares = f"{spent / peak:.1%} of {peak:.0f}, {spent / sustained:.1%} of {sustained:.0f}"
            lines.append(f"{name:10s} {rate:8.3f} per s, {spent:.0f} TFLOP/s: {shares} sustained")
    return "\n".join(lines)


def _ended(process: "subprocess.Popen[bytes]") -> int | None:
    """Its status, which is waited for; None after a while."""
    try:
        return process.wait(WRITE_EVERY_S)
    except subprocess.TimeoutExpired:
        return None


def _so_far(name: str, begin: float) -> dict[str, Any]:
    """What a run has written until now: a machine may go before the run ends."""
    written = ROOT / "results" / name
    files = {"plan": written / "plan.json", "signature": written / "signature.json"}
    return {
        "seconds": round(time.time() - begin, 1),
        "stages": of_stages(list(read_events(written / "telemetry"))),
        **{name: read_json(path) for name, path in files.items() if path.is_file()},
    }


def main(argv: list[str] | None = None) -> int:
    """Make the teacher, measure the stock call, run the workflow, write what came out."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("run", choices=RUNS)
    parser.add_argument("--folder", type=Path, required=True, help="for weights and prompts")
    parser.add_argument("--output", type=Path, required=True, help="JSON")
    parser.add_argument("--compile", default="auto", help="hardware.compile")
    parser.add_argument("--offload", help="teacher.offload")
    parser.add_argument("--no-stock", action="store_true", help="the stages alone")
    parser.add_argument("--until", help="a file of the run, e.g. targets/manifest.json; else all")
    arguments = parser.parse_args(argv)
    run, folder = RUNS[arguments.run], arguments.folder / arguments.run
    folder.mkdir(parents=True, exist_ok=True)
    begin = time.time()
    results: dict[str, Any] = {"hardware": describe_hardware(), "versions": versions()}
    if not (folder / "teacher/model_index.json").is_file():
        make_teacher(run, folder / "teacher")
        results["seconds_teacher"] = round(time.time() - begin, 1)
    if torch.cuda.is_available():
        results |= measure_peaks()
    if not arguments.no_stock:
        results["stock"] = measure_stock(run, folder)
        write_json(arguments.output, results)
        torch.cuda.empty_cache()
    config, begin = write_run(run, folder, arguments.run, arguments.compile), time.time()
    offload = ["--config", f"teacher={{offload: {arguments.offload}}}"] if arguments.offload else []
    wanted = [f"results/{arguments.run}/{arguments.until}"] if arguments.until else []
    command = ["snakemake", "--cores", "all", *wanted, "--configfile", str(config), *offload]
    with subprocess.Popen(command, cwd=ROOT) as snakemake:
        while (status := _ended(snakemake)) is None:
            write_json(arguments.output, results | _so_far(arguments.run, begin))
    results |= {"exit_status": status, **_so_far(arguments.run, begin)}
    write_json(arguments.output, results)
    print(json.dumps(results["stages"], indent=1))  # noqa: T201
    if "stock" in results:
        print(explain(run, results))  # noqa: T201
    return status


if __name__ == "__main__":
    raise SystemExit(main())
