"""Make the embedded demo teacher and judge.

    python -m resources.demo.make all --device cuda --compile --record vae judge teacher
    python -m resources.demo.make teacher --redo                   # one stage again
    python -m resources.demo.make all --tiny --out /tmp/demo       # a smoke test on one CPU core

Stages: vae, judge (needs vae), teacher (needs vae), score (needs all). A stage that record.json
lists as done with the same settings is left alone, so an interrupted run resumes where it stopped.

Writes under --out:
    teacher/       a Diffusers WanPipeline folder      record.json    how all this was made, scores
    judge/         a transformers CLIP folder          samples.png    what it looks like
"""

import argparse
import datetime
import json
import os
import platform
import shlex
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property, partial
from importlib.metadata import version
from pathlib import Path
from typing import TypeVar

import torch
from diffusers import AutoencoderKLWan, DiffusionPipeline
from resources.demo import judge as judges
from resources.demo import score, teacher, vae, words
from resources.demo.pool import Pool, draw_pool
from resources.demo.training import Plan, count_parameters, folder_bytes

PACKAGES = ("torch", "diffusers", "transformers", "tokenizers", "safetensors", "pillow")
STATISTICS_IMAGES = 8192
# Samples, batch size, peak learning rate, averaging: as measured for the committed weights.
PLANS = {
    "vae": Plan(1_500_000, 128, 2e-3, 0.999),
    "judge": Plan(4_000_000, 1024, 1e-3, 0.999),
    "teacher": Plan(11_000_000, 1024, 1.5e-3, 0.9995),
}
TINY = {"images": 256, "samples": 32, "batch": 16, "score_prompts": 8, "score_seeds": 1}


@dataclass(frozen=True)
class Common:
    """What the command lines of both demos have."""

    out: Path
    seed: int
    device: torch.device
    workers: int


@dataclass(frozen=True)
class Settings(Common):
    """The command line."""

    images: int
    plans: dict[str, Plan]
    compiled: bool
    recorded: frozenset[str]
    resume_teacher: bool
    score_prompts: int
    score_seeds: int

    @cached_property
    def pool(self) -> Pool:
        """Draw the training images when a stage first asks, and keep them on the device."""
        start = time.monotonic()
        pool = draw_pool(self.images, seed=self.seed, workers=self.workers)
        seconds = time.monotonic() - start
        print(f"pool: {len(pool.captions)} images in {seconds:.1f} s", flush=True)
        return Pool(pool.images.to(self.device), pool.captions, pool.scenes)


StageRecord = dict[str, object]
Own = TypeVar("Own", bound=Common)


def make_vae(settings: Settings) -> StageRecord:
    """Train the VAE and write it into the teacher's folder."""
    model = vae.build_vae().to(settings.device)
    plan = settings.plans["vae"]
    log = vae.train_vae(
        model,
        settings.pool,
        plan,
        seed=settings.seed,
        device=settings.device,
        compiled=settings.compiled,
        recorded="vae" in settings.recorded,
    )
    # Statistics of the weights that users load: those on disk are rounded.
    model.to(torch.bfloat16).float()
    vae.measure_latents(model, settings.pool.images[:STATISTICS_IMAGES])
    model.to(torch.bfloat16).save_pretrained(settings.out / "teacher" / "vae")
    return {
        "parameters": count_parameters(model),
        "latents_mean": model.config.latents_mean,
        "latents_std": model.config.latents_std,
        "log": log,
    }


def load_vae(settings: Settings) -> AutoencoderKLWan:
    """Load the finished VAE in float32."""
    model = AutoencoderKLWan.from_pretrained(settings.out / "teacher" / "vae")
    return model.to(settings.device).eval().requires_grad_(False)


def make_judge(settings: Settings) -> StageRecord:
    """Train the judge and write its folder."""
    tokenizer = words.train_clip_tokenizer(words.sample_captions(settings.seed))
    processor = judges.build_processor(tokenizer)
    model = judges.build_judge(tokenizer).to(settings.device)
    log = judges.train_judge(
        model,
        processor,
        load_vae(settings),
        settings.pool,
        settings.plans["judge"],
        seed=settings.seed,
        device=settings.device,
        recorded="judge" in settings.recorded,
    )
    judges.save_judge(model, processor, settings.out / "judge")
    return {"parameters": count_parameters(model), "log": log}


def make_teacher(settings: Settings) -> StageRecord:
    """Train transformer and text encoder and write the whole pipeline."""
    if settings.resume_teacher:
        before = DiffusionPipeline.from_pretrained(settings.out / "teacher")
        tokenizer = before.tokenizer
        transformer, text_encoder = before.transformer, before.text_encoder
    else:
        tokenizer = words.train_t5_tokenizer(words.sample_captions(settings.seed))
        transformer = teacher.build_transformer()
        text_encoder = teacher.build_text_encoder(tokenizer)
    transformer.to(settings.device)
    text_encoder.to(settings.device)
    if settings.compiled:
        transformer.compile_repeated_blocks(fullgraph=True)
    decoder = load_vae(settings)
    log = teacher.train_teacher(
        transformer,
        text_encoder,
        tokenizer,
        decoder,
        settings.pool,
        settings.plans["teacher"],
        seed=settings.seed,
        device=settings.device,
        recorded="teacher" in settings.recorded,
    )
    teacher.save_teacher(transformer, text_encoder, tokenizer, decoder, settings.out / "teacher")
    return {
        "parameters_transformer": count_parameters(transformer),
        "parameters_text_encoder": count_parameters(text_encoder),
        "log": log,
    }


def make_score(settings: Settings) -> StageRecord:
    """Score teacher and judge as loaded from disk."""
    # As exact as on a CPU: no TF32 here.
    torch.set_float32_matmul_precision("highest")
    torch.backends.cudnn.allow_tf32 = False
    result = score.score_teacher(
        settings.out,
        num_prompts=settings.score_prompts,
        num_seeds=settings.score_seeds,
        seed=settings.seed,
        device=str(settings.device),
    )
    sizes = {name: folder_bytes(settings.out / name) for name in ("teacher", "judge")}
    return {**result, "bytes_on_disk": sizes}


STAGES: dict[str, Callable[[Settings], StageRecord]] = {
    "vae": make_vae,
    "judge": make_judge,
    "teacher": make_teacher,
    "score": make_score,
}


def stage_settings(stage: str, settings: Settings) -> StageRecord:
    """Return what a stage's result depends on, as JSON values."""
    if stage == "score":
        return {"prompts": settings.score_prompts, "images_per_prompt": settings.score_seeds}
    return {"seed": settings.seed, "images": settings.images, **asdict(settings.plans[stage])}


def hardware(device: torch.device) -> str:
    """Return what the stage ran on, without naming the machine."""
    if device.type == "cuda":
        return f"{torch.cuda.get_device_name(device)}, {os.cpu_count()} CPU cores"
    return f"{platform.machine()} CPU, {torch.get_num_threads()} of {os.cpu_count()} cores"


def run_stage(
    stage: str,
    make: Callable[[], StageRecord],
    wanted: StageRecord,
    settings: Common,
    redo: bool,
    command: str,
) -> None:
    """Run one stage unless the record says that it is done, and enter it in the record."""
    path = settings.out / "record.json"
    record = json.loads(path.read_text()) if path.exists() else {}
    if not redo and record.get(stage, {}).get("settings") == wanted:
        print(f"{stage}: done before with these settings", flush=True)
        return
    start = time.monotonic()
    result = make()
    record[stage] = {
        "command": command,
        "date": datetime.datetime.now(tz=datetime.UTC).date().isoformat(),
        "hardware": hardware(settings.device),
        "versions": {"python": platform.python_version(), **{p: version(p) for p in PACKAGES}},
        "settings": wanted,
        "seconds": round(time.monotonic() - start, 1),
        **result,
    }
    path.write_text(json.dumps(record, indent=1) + "\n")
    print(f"{stage}: {record[stage]['seconds']} s", flush=True)


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("stage", choices=(*STAGES, "all"))
    parser.add_argument("--out", type=Path, default=Path("resources/demo"))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--workers", type=int, default=os.cpu_count(), help="drawing processes")
    parser.add_argument("--images", type=int, default=320_000, help="drawn for training")
    for stage in PLANS:
        parser.add_argument(f"--{stage}-samples", type=int, help="0: leave it untrained")
        parser.add_argument(f"--{stage}-batch", type=int)
    parser.add_argument("--score-prompts", type=int, default=256)
    parser.add_argument("--score-seeds", type=int, default=4, help="images per prompt")
    parser.add_argument("--compile", action="store_true", help="torch.compile vae and teacher")
    parser.add_argument(
        "--record", nargs="*", default=[], choices=PLANS, help="stages to train as CUDA graphs"
    )
    parser.add_argument("--resume-teacher", action="store_true", help="start from its folder")
    parser.add_argument("--redo", action="store_true", help="even if the record has the stage")
    parser.add_argument("--tiny", action="store_true", help="everything so small that it is quick")
    return parser.parse_args(argv)


def plan_of(stage: str, args: argparse.Namespace) -> Plan:
    """Return a stage's plan with the sizes of the command line."""
    values = asdict(PLANS[stage])
    if args.tiny:
        values |= {"num_samples": TINY["samples"], "batch_size": TINY["batch"]}
    given = {
        "num_samples": getattr(args, f"{stage}_samples"),
        "batch_size": getattr(args, f"{stage}_batch"),
    }
    return Plan(**values | {key: value for key, value in given.items() if value is not None})


def run_stages(
    module: str,
    argv: Sequence[str] | None,
    args: argparse.Namespace,
    settings: Own,
    stages: Mapping[str, Callable[[Own], StageRecord]],
    depends_on: Callable[[str, Own], StageRecord],
) -> None:
    """Run the stages asked for. Where the results are written is no part of the command that the
    record has."""
    settings.out.mkdir(parents=True, exist_ok=True)
    kept = list(sys.argv[1:] if argv is None else argv)
    if "--out" in kept:
        del kept[kept.index("--out") : kept.index("--out") + 2]
    command = f"python -m {module} {shlex.join(kept)}"
    for stage in stages if args.stage == "all" else (args.stage,):
        torch.manual_seed(settings.seed)
        make, wanted = partial(stages[stage], settings), depends_on(stage, settings)
        run_stage(stage, make, wanted, settings, args.redo, command)


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
        images=TINY["images"] if args.tiny else args.images,
        plans={stage: plan_of(stage, args) for stage in PLANS},
        compiled=args.compile,
        recorded=frozenset(args.record),
        resume_teacher=args.resume_teacher,
        score_prompts=TINY["score_prompts"] if args.tiny else args.score_prompts,
        score_seeds=TINY["score_seeds"] if args.tiny else args.score_seeds,
    )
    run_stages("resources.demo.make", argv, args, settings, STAGES, stage_settings)
    return 0


if __name__ == "__main__":
    sys.exit(main())
