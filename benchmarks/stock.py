"""What the stages are compared with: matrix products on the same GPU, and the stock pipeline."""

import statistics
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import diffusers
import torch
from models import TERA, Model, padded_prompts

from distillery.families import family_of

PRODUCT_TERAFLOPS = 2 * 8192**3 / TERA
NUM_SUSTAINED = 2000


def measure_peaks() -> dict[str, Any]:
    """TFLOP/s of an 8192³ bfloat16 product of random numbers on each GPU: short, and sustained.

    Short is the median of 10. Sustained is the mean over about 3 s: the GPU meets its power limit.
    """
    short, sustained = [], []
    for index in range(torch.cuda.device_count()):
        device = torch.device("cuda", index)
        left, right = (
            torch.randn(8192, 8192, device=device, dtype=torch.bfloat16) for _ in range(2)
        )
        one, many = partial(multiply, left, right, 1), partial(multiply, left, right, NUM_SUSTAINED)
        short.append(PRODUCT_TERAFLOPS / statistics.median(timed(one, 10, one, device)))
        (seconds,) = timed(many, 1, one, device)
        sustained.append(NUM_SUSTAINED * PRODUCT_TERAFLOPS / seconds)
    return {"peak_tflops": short[0], "peaks_tflops": short, "sustained_tflops": sustained}


def multiply(left: torch.Tensor, right: torch.Tensor, times: int) -> None:
    """The same matrix product several times; nothing is kept."""
    for _ in range(times):
        torch.matmul(left, right)


def timed(
    work: Callable[[], object], repeats: int, warm_up: Callable[[], object], device: torch.device
) -> list[float]:
    """Seconds of each repeat, after a warm-up."""
    warm_up()
    seconds = []
    for _ in range(repeats):
        synchronize(device)
        begin = time.perf_counter()
        work()
        synchronize(device)
        seconds.append(time.perf_counter() - begin)
    return seconds


def synchronize(device: torch.device) -> None:
    """Wait for the GPU, if it is one."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


class Stock:
    """The stock pipeline in bfloat16, called with embeddings as a user would."""

    def __init__(self, model: Model, folder: Path, device: torch.device) -> None:
        """Load it."""
        self.model, self.folder, self.device = model, folder, device
        absent = dict.fromkeys(family_of(model.pipeline).text_components)
        self.pipeline: Any = diffusers.DiffusionPipeline.from_pretrained(
            folder / "teacher", dtype=torch.bfloat16, **absent
        ).to(device)
        self.pipeline.set_progress_bar_config(disable=True)

    def measure(self, batch_size: int, steps: int, repeats: int) -> dict[str, Any]:
        """Images per second after a call of two steps, alone to a PNG or in a batch to latents."""
        work = self._save_one if batch_size == 1 else partial(self._batch, batch_size)
        seconds = timed(partial(work, steps), repeats, partial(work, 2), self.device)
        return rate(seconds, batch_size)

    def _save_one(self, steps: int) -> None:
        result = self.pipeline(**self._call(1, steps), output_type="pil").to_tuple()[0][0]
        image = result[0] if isinstance(result, list) else result
        image.save(self.folder / "stock.png")

    def _batch(self, batch_size: int, steps: int) -> None:
        self.pipeline(**self._call(batch_size, steps), output_type="latent")

    def _call(self, batch_size: int, steps: int) -> dict[str, Any]:
        """Arguments of a plain call."""
        model = self.model
        batch = padded_prompts(model, batch_size)
        embeds = {
            "prompt_embeds": batch["prompt_embeds"],
            **({"pooled_prompt_embeds": batch["pooled"]} if "pooled" in batch else {}),
        }
        embeds = {name: value.to(self.device) for name, value in embeds.items()}
        if model.calls_per_step == 2:
            embeds |= {f"negative_{name}": torch.zeros_like(it) for name, it in embeds.items()}
        return {
            **embeds,
            **({"num_frames": 1} if model.pipeline == "WanPipeline" else {}),
            "generator": [torch.Generator().manual_seed(row) for row in range(batch_size)],
            "height": model.height,
            "width": model.width,
            "num_inference_steps": steps,
            "guidance_scale": model.guidance_scale,
        }


def rate(seconds: list[float], num_images: int) -> dict[str, Any]:
    """Images per second: median, least and most."""
    rates = sorted(num_images / second for second in seconds)
    return {
        "images_per_s": statistics.median(rates),
        "least": rates[0],
        "most": rates[-1],
        "repeats": len(rates),
    }
