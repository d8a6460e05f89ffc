"""Scores of the demo teacher by the demo judge, both as loaded from disk."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from diffusers import DiffusionPipeline, WanPipeline
from PIL import Image
from resources.demo.images import IMAGE_PX, draw
from resources.demo.scenes import caption_of, choose_captions, near_misses, scene_of
from resources.demo.vae import to_images, to_pixels
from resources.demo.words import MAX_TOKENS, token_ids
from transformers import CLIPModel, CLIPProcessor

FULL_STEPS = 24
GUIDANCE_SCALES = (2.0, 3.0, 4.0, 5.0)
FEW_STEPS = (12, 8, 4)
# Percent points of R@1.
RECALL_TOLERANCE = 1.0
BATCH = 256

Images = list[Image.Image]
ScoreRow = dict[str, float | str]


@dataclass(frozen=True)
class Bench:
    """What a measurement needs: the two models from disk, and which captions to draw."""

    pipeline: WanPipeline
    judge: CLIPModel
    processor: CLIPProcessor
    captions: Sequence[str]
    """The prompts to tell apart."""
    num_seeds: int
    """Images per prompt."""

    @property
    def requests(self) -> list[tuple[str, int]]:
        """Return (caption, seed) of every image, seeds unequal everywhere."""
        return [
            (caption, number * self.num_seeds + k)
            for number, caption in enumerate(self.captions)
            for k in range(self.num_seeds)
        ]


def load_bench(
    folder: Path, captions: Sequence[str], num_seeds: int, device: str, judge: Path | None = None
) -> Bench:
    """Load teacher and judge, the folder's own by default, the way a user does, in float32."""
    judge = judge or folder / "judge"
    pipeline = DiffusionPipeline.from_pretrained(folder / "teacher").to(device)
    pipeline.set_progress_bar_config(disable=True)
    model = CLIPModel.from_pretrained(judge, dtype=torch.float32).to(device).eval()
    processor = CLIPProcessor.from_pretrained(judge)
    return Bench(pipeline, model, processor, captions, num_seeds)


def draw_all(bench: Bench) -> Images:
    """Draw the real images of the requests."""
    return [draw(caption, seed) for caption, seed in bench.requests]


@torch.no_grad()
def reconstruct_all(bench: Bench, images: Images) -> Images:
    """Send images through the VAE."""
    vae = bench.pipeline.vae
    array = np.stack([np.asarray(image) for image in images])
    result: Images = []
    for part in torch.split(torch.from_numpy(array).permute(0, 3, 1, 2), BATCH):
        latents = vae.encode(to_pixels(part.to(vae.device))).latent_dist.mode()
        result += to_pil(to_images(vae.decode(latents).sample))
    return result


def to_pil(images: torch.Tensor) -> Images:
    """Turn uint8 images (b, 3, h, w) into images."""
    return [Image.fromarray(p) for p in images.permute(0, 2, 3, 1).cpu().numpy()]


def generate_all(bench: Bench, num_steps: int, guidance_scale: float) -> Images:
    """Generate the requests with the stock pipeline, each from its own CPU generator."""
    return to_pil(generated_frames(bench, num_steps, guidance_scale, IMAGE_PX, 1)[:, 0])


def generated_frames(
    bench: Bench, num_steps: int, guidance_scale: float, size_px: int, num_frames: int
) -> torch.Tensor:
    """Return uint8 clips (clips, f, 3, h, w) of the requests by the stock pipeline."""
    parts: list[torch.Tensor] = []
    requests = bench.requests
    for first in range(0, len(requests), BATCH):
        part = requests[first : first + BATCH]
        frames = bench.pipeline(
            prompt=[caption for caption, _ in part],
            height=size_px,
            width=size_px,
            num_frames=num_frames,
            num_inference_steps=num_steps,
            guidance_scale=guidance_scale,
            max_sequence_length=MAX_TOKENS,
            generator=[torch.Generator().manual_seed(seed) for _, seed in part],
            output_type="pt",
        ).frames
        parts.append((frames * 255.0).round().to(torch.uint8))
    return torch.cat(parts)


@torch.no_grad()
def text_features(bench: Bench, captions: Sequence[str]) -> torch.Tensor:
    """Return the judge's features (captions, d) of captions, of length one."""
    ids, mask = token_ids(bench.processor.tokenizer, captions, bench.judge.device)
    parts = [
        bench.judge.get_text_features(*part).pooler_output
        for part in zip(torch.split(ids, BATCH), torch.split(mask, BATCH), strict=True)
    ]
    return F.normalize(torch.cat(parts), dim=-1)


@torch.no_grad()
def image_features(bench: Bench, images: Images) -> torch.Tensor:
    """Return the judge's features (images, d) of images, of length one."""
    parts: list[torch.Tensor] = []
    for first in range(0, len(images), BATCH):
        pixels = bench.processor(images=images[first : first + BATCH], return_tensors="pt")
        parts.append(bench.judge.get_image_features(**pixels.to(bench.judge.device)).pooler_output)
    return F.normalize(torch.cat(parts), dim=-1)


def judge_all(bench: Bench, images: Images) -> ScoreRow:
    """Return how well images (num_seeds for each prompt, in order) show their prompts.

    recall_at_1_percent: the prompt is the nearest of all the prompts.
    near_miss_percent: it is nearer than every caption that differs by one word or one exchange.
    clip_score: the mean cosine of an image with its prompt.
    """
    seen = image_features(bench, images)
    cosines = seen @ text_features(bench, bench.captions).T
    own = torch.arange(len(bench.captions), device=seen.device).repeat_interleave(bench.num_seeds)
    score = cosines.gather(1, own[:, None]).squeeze(1)
    passed = 0
    for number, caption in enumerate(bench.captions):
        near = [caption_of(scene) for scene in near_misses(scene_of(caption))]
        mine = slice(number * bench.num_seeds, (number + 1) * bench.num_seeds)
        best_other = (seen[mine] @ text_features(bench, near).T).amax(dim=1)
        passed += int((score[mine] > best_other).sum())
    return {
        "recall_at_1_percent": round(100.0 * float((cosines.argmax(1) == own).float().mean()), 2),
        "near_miss_percent": round(100.0 * passed / len(images), 2),
        "clip_score": round(float(score.mean()), 4),
    }


def score_row(
    bench: Bench, name: str, images: Images, settings: dict[str, float] | None = None
) -> ScoreRow:
    """Judge images, print the result and return it as a row."""
    row: ScoreRow = {"images": name, **(settings or {}), **judge_all(bench, images)}
    print("score:", "  ".join(f"{key} {value}" for key, value in row.items()), flush=True)
    return row


def teacher_row(bench: Bench, num_steps: int, guidance_scale: float) -> tuple[ScoreRow, Images]:
    """Generate and judge at one setting."""
    images = generate_all(bench, num_steps, guidance_scale)
    settings = {"num_inference_steps": num_steps, "guidance_scale": guidance_scale}
    return score_row(bench, "teacher", images, settings), images


def choose_guidance(
    bench: Bench, row: Callable[[Bench, int, float], tuple[ScoreRow, object]] = teacher_row
) -> tuple[float, list[ScoreRow]]:
    """Return the least guidance that is within a point of the best R@1 at full steps, and all rows.

    The least, because guidance beyond need distorts: few steps cannot follow it.
    """
    rows = [row(bench, FULL_STEPS, scale)[0] for scale in GUIDANCE_SCALES]
    recalls = [float(found["recall_at_1_percent"]) for found in rows]
    good = [
        scale
        for scale, recall in zip(GUIDANCE_SCALES, recalls, strict=True)
        if recall >= max(recalls) - RECALL_TOLERANCE
    ]
    return min(good), rows


def contact_sheet(rows: Sequence[Images], columns: int = 12) -> Image.Image:
    """Lay out the first images of each row, 4 pixels apart."""
    cell = rows[0][0].width + 4
    sheet = Image.new("RGB", (columns * cell, len(rows) * cell), (255, 255, 255))
    for y, images in enumerate(rows):
        for x, image in enumerate(images[:columns]):
            sheet.paste(image, (x * cell + 2, y * cell + 2))
    return sheet


def score_teacher(
    folder: Path, *, num_prompts: int, num_seeds: int, seed: int, device: str
) -> dict[str, object]:
    """Choose the guidance scale on training captions, score everything on held-out ones.

    The held-out captions are those of config/prompts/demo-eval.csv when seed is 0 and
    num_prompts is 256. Also writes samples.png: real, through the VAE, full steps, few steps with
    guidance, few steps without.
    """
    known = choose_captions(num_prompts, held_out=False, seed=seed)
    scale, choice = choose_guidance(load_bench(folder, known, 1, device))
    bench = load_bench(
        folder, choose_captions(num_prompts, held_out=True, seed=seed), num_seeds, device
    )
    real = draw_all(bench)
    decoded = reconstruct_all(bench, real)
    rows = [score_row(bench, "real", real), score_row(bench, "through the VAE", decoded)]
    shown = [real, decoded]
    for num_steps in (FULL_STEPS, *FEW_STEPS):
        for guidance_scale in (scale, 1.0):
            row, images = teacher_row(bench, num_steps, guidance_scale)
            rows.append(row)
            if num_steps == FEW_STEPS[-1] or (guidance_scale == scale and num_steps == FULL_STEPS):
                shown.append(images)
    contact_sheet([images[::num_seeds] for images in shown]).save(folder / "samples.png")
    return {"guidance_scale": scale, "choice_on_training_prompts": choice, "held_out": rows}
