"""Scores of the demo's teacher of clips by the demo's judge, which sees the middle frame."""

from functools import partial
from pathlib import Path

import numpy as np
import torch
from resources.demo.scenes import CLIP_SHARES, choose_captions
from resources.demo.score import (
    BATCH,
    FULL_STEPS,
    Bench,
    ScoreRow,
    choose_guidance,
    contact_sheet,
    generated_frames,
    load_bench,
    score_row,
    to_pil,
)
from resources.demo.vae import to_pixels
from resources.demo_video.clips import CLIP_PX, NUM_FRAMES, draw_clip

FEW_STEPS = (4, 2)
MIDDLE = NUM_FRAMES // 2
NUM_SEEDS = 2
SHEET_FRAMES = (0, 3, 5, 8)
SHEET_CLIPS = 4


def draw_clips(bench: Bench) -> torch.Tensor:
    """Draw the real clips (clips, f, 3, h, w) of the requests."""
    clips = np.stack([draw_clip(caption, seed) for caption, seed in bench.requests])
    return torch.from_numpy(clips).permute(0, 1, 4, 2, 3).to(bench.pipeline.device)


@torch.no_grad()
def reconstruct(bench: Bench, clips: torch.Tensor) -> torch.Tensor:
    """Send clips (clips, f, 3, h, w) through the VAE."""
    vae, parts = bench.pipeline.vae, []
    for part in torch.split(clips, BATCH // NUM_FRAMES):
        latents = vae.encode(to_pixels(part.transpose(1, 2))).latent_dist.mode()
        pixels = vae.decode(latents).sample.transpose(1, 2)
        parts.append(((pixels + 1.0) * 127.5).round().to(torch.uint8))
    return torch.cat(parts)


def motion(clips: torch.Tensor) -> float:
    """Return the mean square change of a pixel of clips (clips, f, ...) from frame to frame."""
    return float(clips.float().diff(dim=1).square().mean())


def clip_row(
    bench: Bench,
    name: str,
    clips: torch.Tensor,
    real: torch.Tensor,
    settings: dict[str, float] | None = None,
) -> ScoreRow:
    """Judge clips, print the result and return it as a row; motion is relative to real clips."""
    ratio = {"motion": round(motion(clips) / motion(real), 3)}
    return score_row(bench, name, to_pil(clips[:, MIDDLE]), {**(settings or {}), **ratio})


def teacher_row(
    real: torch.Tensor, bench: Bench, num_steps: int, guidance_scale: float
) -> tuple[ScoreRow, torch.Tensor]:
    """Generate and judge at one setting."""
    clips = generated_frames(bench, num_steps, guidance_scale, CLIP_PX, NUM_FRAMES)
    settings = {"num_inference_steps": num_steps, "guidance_scale": guidance_scale}
    return clip_row(bench, "teacher", clips, real, settings), clips


def score_clips(
    folder: Path, judge: Path, *, num_prompts: int, seed: int, device: str
) -> dict[str, object]:
    """Choose the guidance scale on training captions, score everything on held-out ones.

    Also writes samples.png: four frames each of real clips, through the VAE, at full steps, and at
    4 and 2 steps without guidance.
    """

    def bench_of(num_seeds: int, *, held_out: bool) -> Bench:
        captions = choose_captions(num_prompts, held_out=held_out, seed=seed, shares=CLIP_SHARES)
        return load_bench(folder, captions, num_seeds, device, judge)

    known = bench_of(1, held_out=False)
    scale, choice = choose_guidance(known, partial(teacher_row, draw_clips(known)))
    bench = bench_of(NUM_SEEDS, held_out=True)
    real = draw_clips(bench)
    decoded = reconstruct(bench, real)
    rows = [clip_row(bench, "real", real, real), clip_row(bench, "through the VAE", decoded, real)]
    rows[-1]["mse"] = round(float((decoded.float() - real.float()).div(127.5).square().mean()), 6)
    shown = [real, decoded]
    for num_steps in (FULL_STEPS, *FEW_STEPS):
        for guidance_scale in (scale, 1.0):
            row, clips = teacher_row(real, bench, num_steps, guidance_scale)
            rows.append(row)
            if (num_steps == FULL_STEPS) == (guidance_scale == scale):
                shown.append(clips)
    frames = [clips[::NUM_SEEDS][:SHEET_CLIPS, SHEET_FRAMES].flatten(0, 1) for clips in shown]
    sheet = contact_sheet([to_pil(row) for row in frames], SHEET_CLIPS * len(SHEET_FRAMES))
    sheet.save(folder / "samples.png")
    return {"guidance_scale": scale, "choice_on_training_prompts": choice, "held_out": rows}
