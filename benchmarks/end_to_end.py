"""SDXL's released shapes from prompts to report through Snakemake, then its card's code alone.

    PYTHONPATH=workflow:tests python benchmarks/end_to_end.py --folder /tmp/sdxl --output out.json

The weights are random, the tokenizer spells letters, all else is as released: networks of every
component, scheduler, 1024 pixels, bfloat16 beside a float32 VAE. The steps are few, so the images
show noise; what is tested is that each stage runs at this size in the default types, and that the
student's card and the report draw the product's own image in plain Diffusers.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import time
from html import unescape
from pathlib import Path
from typing import Any

import diffusers
import numpy as np
import pandas as pd
import torch
import yaml
from models import SDXL
from PIL import Image
from transformers import CLIPTextConfig, CLIPTextModel, CLIPTextModelWithProjection

from distillery.files import write_json
from distillery.hardware import describe_hardware, versions
from families.clip import tiny_clip_tokenizer

ROOT = Path(__file__).parents[1]
ENDS = {"bos_token_id": 52, "eos_token_id": 53, "pad_token_id": 53}
"""Of the tokenizer that spells letters."""
CLIP_L = CLIPTextConfig(
    hidden_size=768,
    intermediate_size=3072,
    num_hidden_layers=12,
    num_attention_heads=12,
    projection_dim=768,
    **ENDS,
)
CLIP_BIG_G = CLIPTextConfig(
    hidden_size=1280,
    intermediate_size=5120,
    num_hidden_layers=32,
    num_attention_heads=20,
    hidden_act="gelu",
    projection_dim=1280,
    **ENDS,
)
SSD_1B = {
    "transformer_layers_per_block": [1, [2, 2], [4, 4]],
    "reverse_transformer_layers_per_block": [[4, 4, 10], [2, 1, 1], 1],
    "mid_block": "resnet",
}
"""The student's shape: half of the teacher's, so that its checkpoints fit a small disk."""
ROUNDED_NOISE = """import torch
drawn = torch.randn
torch.randn = lambda *shape, dtype=None, **rest: drawn(*shape, **rest).to(dtype or torch.float32)
"""
"""How PyTorch 2.13 draws in bfloat16, for 2.11, which draws other numbers than in float32."""
COLOURS, THINGS = ("red", "blue", "green", "white"), ("cat", "boat", "house", "tree", "lamp")


def make_sdxl(folder: Path) -> None:
    """Save the pipeline with each class's own random initial weights, in bfloat16."""
    torch.manual_seed(0)
    tokenizer = tiny_clip_tokenizer()
    tokenizer.model_max_length = 77
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    with device:
        parts = {
            "text_encoder": CLIPTextModel(CLIP_L),
            "text_encoder_2": CLIPTextModelWithProjection(CLIP_BIG_G),
            "vae": diffusers.AutoencoderKL(**SDXL.vae[1]),
            "unet": diffusers.UNet2DConditionModel(**SDXL.denoiser[2]),
        }
    pipeline = diffusers.StableDiffusionXLPipeline(
        **{name: part.to(torch.bfloat16) for name, part in parts.items()},
        tokenizer=tokenizer,
        tokenizer_2=tokenizer,
        scheduler=getattr(diffusers, SDXL.scheduler[0])(**SDXL.scheduler[1]),
        add_watermarker=False,
    )
    pipeline.save_pretrained(folder)


def write_run(folder: Path, arguments: argparse.Namespace) -> Path:
    """Prompt files and the configuration; what it leaves out has the product's defaults."""
    prompts = [f"a {colour} {thing}" for colour in COLOURS for thing in THINGS]
    held_out = arguments.eval_prompts
    for split, texts in {"train": prompts[held_out:], "eval": prompts[:held_out]}.items():
        ids = [f"{split}-{row:04d}" for row in range(len(texts))]
        pd.DataFrame({"prompt_id": ids, "prompt": texts}).to_csv(
            folder / f"{split}.csv", index=False
        )
    config = {
        "run": "sdxl",
        "prompts": {split: str(folder / f"{split}.csv") for split in ("train", "eval")},
        "teacher": {
            "path": str(folder / "teacher"),
            "dtype": "bfloat16",
            "height": SDXL.height,
            "width": SDXL.width,
        },
        "targets": {
            "steps": 8,
            "guidance_scale": SDXL.guidance_scale,
            "num_segments": 4,
            "batch_size": 4,
            "chunk_size": 4,
            "num_shards": 1,
        },
        "student": {"init": "layers", "unet": SSD_1B, "steps": 4},
        "training": {
            "phases": [{"learn": "stored", "samples": 64}],
            "global_batch_size": 16,
            "keep_checkpoints": 1,
        },
        "hardware": {"compile": "never"},
        "samples": {
            "num_shards": 1,
            "batch_size": 4,
            "models": {
                "teacher": {"source": "teacher"},
                "teacher-4-steps": {"source": "teacher", "steps": 4},
                "teacher-4-steps-unguided": {
                    "source": "teacher",
                    "steps": 4,
                    "guidance_scale": 1.0,
                },
                "untrained": {"source": "untrained"},
                "student": {"source": "student"},
            },
        },
        "evaluation": {"judge": "resources/demo/judge"},
    }
    path = folder / "sdxl.yaml"
    path.write_text(yaml.safe_dump(config, sort_keys=False), encoding="utf-8")
    return path


def codes(run: Path, seed: int, prompt: str) -> dict[str, str]:
    """The Python of the card and of the report, drawing one prompt with one seed."""
    card = (run / "student/pipeline/README.md").read_text(encoding="utf-8")
    page = (run / "report/index.html").read_text(encoding="utf-8")
    of_card = re.findall(r"```python\n(.*?)```", card, re.DOTALL)[0]
    of_report = next(
        code
        for code in re.findall(r"<pre[^>]*>(?:<code[^>]*>)?(.*?)</", page, re.DOTALL)
        if "from_pretrained" in code
    )
    of_card = of_card.replace("'path/to/this/folder'", repr(str(run / "student/pipeline")))
    of_card = of_card.replace("'a prompt'", repr(prompt))
    of_card = of_card.replace("manual_seed(0)", f"manual_seed({seed})")
    of_report = unescape(of_report).replace("'results/sdxl/", f"'{run}/")
    return {"card": of_card, "report": of_report}


def compare(code: str, ours: Path, folder: Path) -> dict[str, float]:
    """Run code in a process that cannot import Distillery; how far its image is from ours."""
    folder.mkdir()
    script = folder / "alone.py"
    script.write_text(code, encoding="utf-8")
    paths = [path for path in os.environ.get("PYTHONPATH", "").split(":") if "site" in path]
    environment = os.environ | {"PYTHONPATH": ":".join(paths)}
    begin = time.time()
    subprocess.run([sys.executable, script.name], cwd=folder, env=environment, check=True)
    images = [np.asarray(Image.open(path), dtype=np.int16) for path in (folder / "image.png", ours)]
    difference = np.abs(images[0] - images[1])
    return {
        "seconds": round(time.time() - begin, 1),
        "max_of_255": int(difference.max()),
        "mean_of_255": float(difference.mean()),
    }


def main(argv: list[str] | None = None) -> int:
    """Make the teacher, run the workflow, then the printed code; write what came out."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--folder", type=Path, required=True, help="for weights and prompts")
    parser.add_argument("--output", type=Path, required=True, help="JSON")
    parser.add_argument("--eval-prompts", type=int, default=8)
    arguments = parser.parse_args(argv)
    arguments.folder.mkdir(parents=True, exist_ok=True)
    begin = time.time()
    make_sdxl(arguments.folder / "teacher")
    results: dict[str, Any] = {
        "hardware": describe_hardware(),
        "versions": versions(),
        "seconds_teacher": round(time.time() - begin, 1),
    }
    config, begin = write_run(arguments.folder, arguments), time.time()
    done = subprocess.run(
        ["snakemake", "--cores", "all", "--configfile", str(config)], cwd=ROOT, check=False
    )
    results |= {"exit_status": done.returncode, "seconds": round(time.time() - begin, 1)}
    write_json(arguments.output, results)
    if done.returncode:
        return done.returncode
    run = ROOT / "results/sdxl"
    first = pd.read_parquet(run / "samples/student/manifest.parquet").iloc[0]
    ours = run / "samples/student" / first["file"]
    printed = codes(run, int(first["noise_seed"]), str(first["prompt"]))
    rounded = {f"{name}, rounded noise": ROUNDED_NOISE + code for name, code in printed.items()}
    for name, code in (printed | rounded).items():
        results[name] = compare(code, ours, arguments.folder / name.replace(", ", "-"))
        write_json(arguments.output, results)
    results["metrics"] = json.loads((run / "report/metrics.json").read_text(encoding="utf-8"))
    write_json(arguments.output, results)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
