"""Make the demo's teacher of clips, from the demo's VAE and for its judge.

    python -m resources.demo_video.make all --device cuda --compile --record
    python -m resources.demo_video.make all --tiny --out /tmp/demo-video    # a smoke test on a CPU

Stages: vae, teacher (needs vae), score (needs both). A stage that record.json lists as done with
the same settings is left alone, so an interrupted run resumes where it stopped. All ends after
--minutes on a GPU that is fast enough for the rest, because the trainings take what time there is.

Writes under --out: teacher/, a Diffusers WanPipeline folder; record.json, how it was made and its
scores; samples.png, what it draws.
"""

import argparse
import os
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path

import torch
from diffusers import AutoencoderKLWan
from resources.demo import teacher, vae, words
from resources.demo.make import Common, StageRecord, run_stages
from resources.demo.pool import Pool, draw_pool
from resources.demo.training import Plan, TimedPlan, count_parameters, folder_bytes
from resources.demo_video.clips import draw_chunk
from resources.demo_video.score import score_clips

DEMO = Path(__file__).parents[1] / "demo"
STATISTICS_CLIPS = 2048
TEXT_FEATURES = 96
# Samples at the most, batch size, peak learning rate, averaging.
PLANS = {"vae": Plan(640_000, 32, 1e-3, 0.999), "teacher": Plan(24_000_000, 1024, 2e-3, 0.9995)}
TINY = {"vae": Plan(4, 2, 1e-3, 0.999), "teacher": Plan(32, 8, 2e-3, 0.9995)}
# Of all the time, what the VAE trains; and what is left of it to encode, compile and score.
VAE_SHARE = 0.36
REST_SECONDS = 60.0


@dataclass(frozen=True)
class Settings(Common):
    """The command line."""

    clips: int
    plans: dict[str, Plan]
    minutes: float
    deadline: float
    """By the monotonic clock, in seconds."""
    compiled: bool
    recorded: bool
    score_prompts: int

    @cached_property
    def pool(self) -> Pool:
        """Draw the training clips when a stage first asks, and keep them on the device."""
        start = time.monotonic()
        pool = draw_pool(self.clips, seed=self.seed, workers=self.workers, draw_chunk=draw_chunk)
        print(f"pool: {len(pool.captions)} clips in {time.monotonic() - start:.1f} s", flush=True)
        kept = slice(self.clips)
        return Pool(pool.images[kept].to(self.device), pool.captions[kept], pool.scenes[kept])


def build_vae() -> AutoencoderKLWan:
    """Return the demo's VAE, which knows single frames, with what it does in time to be learned.

    It begins by keeping the last frame of each four and drawing that four times: what halves and
    doubles the frames copies, and taps that look back are zero, as a single frame left them.
    """
    model: AutoencoderKLWan = AutoencoderKLWan.from_pretrained(DEMO / "teacher" / "vae")
    with torch.no_grad():
        for module in model.modules():
            if getattr(module, "time_conv", None) is not None:
                weight = module.time_conv.weight.zero_()
                num_out, num_in = weight.shape[:2]
                weight[:, :, -1, 0, 0] = torch.eye(num_in).repeat(num_out // num_in, 1)
                module.time_conv.bias.zero_()
    return model


def timed(plan: Plan, seconds: float) -> TimedPlan:
    """Return a plan that ends after so many seconds, or by its samples."""
    return TimedPlan(**asdict(plan), max_seconds=max(seconds, 1.0))


def make_vae(settings: Settings) -> StageRecord:
    """Train the VAE on clips and write it into the teacher's folder."""
    model = build_vae().to(settings.device)
    # Shapes never change here: the best kernels for them are worth a search.
    torch.backends.cudnn.benchmark = True
    log = vae.train_vae(
        model,
        settings.pool,
        timed(settings.plans["vae"], VAE_SHARE * 60.0 * settings.minutes),
        seed=settings.seed,
        device=settings.device,
        compiled=settings.compiled,
        recorded=settings.recorded,
    )
    torch.backends.cudnn.benchmark = False
    # Statistics of the weights that users load: those on disk are rounded.
    model.to(torch.bfloat16).float()
    vae.measure_latents(model, settings.pool.images[:STATISTICS_CLIPS])
    model.to(torch.bfloat16).save_pretrained(settings.out / "teacher" / "vae")
    return {"parameters": count_parameters(model), "log": log}


def make_teacher(settings: Settings) -> StageRecord:
    """Train transformer and text encoder and write the whole pipeline."""
    tokenizer = words.train_t5_tokenizer(words.sample_captions(settings.seed))
    text_encoder = teacher.build_text_encoder(tokenizer, TEXT_FEATURES).to(settings.device)
    transformer = teacher.build_transformer(128, 5, 256, TEXT_FEATURES).to(settings.device)
    if settings.compiled:
        transformer.compile_repeated_blocks(fullgraph=True)
    decoder = AutoencoderKLWan.from_pretrained(settings.out / "teacher" / "vae")
    decoder = decoder.to(settings.device).eval().requires_grad_(False)
    log = teacher.train_teacher(
        transformer,
        text_encoder,
        tokenizer,
        decoder,
        settings.pool,
        timed(settings.plans["teacher"], settings.deadline - REST_SECONDS - time.monotonic()),
        seed=settings.seed,
        device=settings.device,
        recorded=settings.recorded,
    )
    teacher.save_teacher(transformer, text_encoder, tokenizer, decoder, settings.out / "teacher")
    return {
        "parameters_transformer": count_parameters(transformer),
        "parameters_text_encoder": count_parameters(text_encoder),
        "log": log,
    }


def make_score(settings: Settings) -> StageRecord:
    """Score the teacher as loaded from disk."""
    # As exact as on a CPU: no TF32 here.
    torch.set_float32_matmul_precision("highest")
    torch.backends.cudnn.allow_tf32 = False
    scores = score_clips(
        settings.out,
        DEMO / "judge",
        num_prompts=settings.score_prompts,
        seed=settings.seed,
        device=str(settings.device),
    )
    return {**scores, "bytes_on_disk": folder_bytes(settings.out / "teacher")}


STAGES: dict[str, Callable[[Settings], StageRecord]] = {
    "vae": make_vae,
    "teacher": make_teacher,
    "score": make_score,
}


def stage_settings(stage: str, settings: Settings) -> StageRecord:
    """Return what a stage's result depends on, as JSON values."""
    if stage == "score":
        return {"prompts": settings.score_prompts}
    plan = asdict(settings.plans[stage])
    return {"seed": settings.seed, "clips": settings.clips, "minutes": settings.minutes, **plan}


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("stage", choices=(*STAGES, "all"))
    parser.add_argument("--out", type=Path, default=Path("resources/demo_video"))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--workers", type=int, default=os.cpu_count(), help="drawing processes")
    parser.add_argument("--clips", type=int, default=120_000, help="drawn for training")
    parser.add_argument("--minutes", type=float, default=9.0, help="for all stages together")
    parser.add_argument("--compile", action="store_true", help="torch.compile the networks")
    parser.add_argument("--record", action="store_true", help="train as CUDA graphs")
    parser.add_argument("--redo", action="store_true", help="even if the record has the stage")
    parser.add_argument("--tiny", action="store_true", help="everything so small that it is quick")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the stages asked for."""
    args = parse(argv)
    # TF32 where a matrix product is not in bf16 anyway.
    torch.set_float32_matmul_precision("high")
    settings = Settings(
        out=args.out,
        seed=args.seed,
        device=torch.device(args.device),
        workers=args.workers,
        clips=32 if args.tiny else args.clips,
        plans=TINY if args.tiny else PLANS,
        minutes=args.minutes,
        deadline=time.monotonic() + 60.0 * args.minutes,
        compiled=args.compile,
        recorded=args.record,
        score_prompts=2 if args.tiny else 128,
    )
    run_stages("resources.demo_video.make", argv, args, settings, STAGES, stage_settings)
    return 0


if __name__ == "__main__":
    sys.exit(main())
