"""A teacher and a store of trajectories so small that a test makes them in a second.

Both are the real thing: Diffusers classes saved by Diffusers, files written by the store. Only the
weights and the latents are random.
"""

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from diffusers import (
    AutoencoderKLWan,
    UniPCMultistepScheduler,
    WanPipeline,
    WanTransformer3DModel,
)
from transformers import T5Tokenizer, UMT5Config, UMT5EncoderModel

from distillery.config.jobs import TrainingJob, read_job
from distillery.families import family_named, grid_of
from distillery.files import hash_json, write_json
from distillery.schedulers import plain_config
from distillery.store.chunks import ChunkIdentity, chunk_folder, chunk_path, write_chunk
from distillery.store.embeddings import distinct_texts, members_of, pack
from distillery.store.shards import Manifest, describe_chunk
from distillery.store.trajectories import knots_of
from distillery.student.build import build_student
from training_phases import phases

HEIGHT = WIDTH = 32
MAX_TOKENS = 12
TEXT_FEATURES = 32
LATENT_CHANNELS = 4
LATENT_SHAPE = (LATENT_CHANNELS, 1, 4, 4)
WORDS = ("a", "red", "green", "blue", "dog", "cat", "bird", "house", "on", "the", "hill", "in")
COLORS, ANIMALS = ("red", "green", "blue"), ("dog", "cat", "bird")


def tiny_prompts(num_prompts: int) -> pd.DataFrame:
    """A prompt table of `num_prompts` different lengths of prompts, some of them equal."""
    endings = ("", " on the hill", " in the house")
    prompts = [
        f"a {COLORS[row % 3]} {ANIMALS[row // 3 % 3]}{endings[row // 9 % 3]}"
        for row in range(num_prompts)
    ]
    ids = [f"p{row:03d}" for row in range(num_prompts)]
    return pd.DataFrame({"prompt_id": ids, "prompt": prompts})


def make_tiny_wan(folder: Path, seed: int = 0, num_layers: int = 2) -> None:
    """Save a WanPipeline with random weights: 32 pixels, latents (4, 1, 4, 4), under 1 MB."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        tokenizer = tiny_tokenizer()
        pipeline = WanPipeline(
            tokenizer=tokenizer,
            text_encoder=tiny_text_encoder(len(tokenizer)),
            vae=tiny_vae(),
            scheduler=tiny_scheduler(),
            transformer=tiny_transformer(num_layers),
        )
    pipeline.save_pretrained(folder)


def tiny_transformer(num_layers: int = 2) -> WanTransformer3DModel:
    """A denoiser of 24 features; its output layer is enlarged, so that it does something."""
    transformer = WanTransformer3DModel(
        num_attention_heads=2,
        attention_head_dim=12,
        in_channels=LATENT_CHANNELS,
        out_channels=LATENT_CHANNELS,
        text_dim=TEXT_FEATURES,
        freq_dim=16,
        ffn_dim=48,
        num_layers=num_layers,
        rope_max_seq_len=32,
    )
    torch.nn.init.normal_(transformer.proj_out.weight, std=0.2)
    return transformer


def tiny_vae() -> AutoencoderKLWan:
    """A decoder to images of 8 times the latents' side."""
    return AutoencoderKLWan(
        base_dim=4,
        z_dim=LATENT_CHANNELS,
        dim_mult=[1, 1, 1, 1],
        num_res_blocks=1,
        temperal_downsample=[False, True, True],
        latents_mean=[0.0] * LATENT_CHANNELS,
        latents_std=[1.0] * LATENT_CHANNELS,
    )


def tiny_text_encoder(vocab_size: int) -> UMT5EncoderModel:
    """A text encoder of one layer."""
    return UMT5EncoderModel(
        UMT5Config(
            vocab_size=vocab_size,
            d_model=TEXT_FEATURES,
            d_kv=16,
            d_ff=64,
            num_layers=1,
            num_heads=2,
            dropout_rate=0.0,
        )
    )


def tiny_tokenizer() -> T5Tokenizer:
    """A T5 tokenizer that knows `WORDS` as whole pieces and spells out everything else."""
    specials = [("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0)]
    words = [(f"▁{word}", -3.0) for word in WORDS]
    letters = [(chr(code), -20.0) for code in range(ord("a"), ord("z") + 1)]
    return T5Tokenizer(
        vocab=[*specials, *words, ("▁", -20.0), *letters],
        extra_ids=0,
        model_max_length=MAX_TOKENS,
        padding_side="right",
    )


def tiny_scheduler() -> UniPCMultistepScheduler:
    """The scheduler as the released Wan configures it."""
    return UniPCMultistepScheduler(
        prediction_type="flow_prediction", use_flow_sigmas=True, flow_shift=3.0, solver_order=2
    )


def make_tiny_store(
    folder: Path,
    num_prompts: int = 6,
    samples_per_prompt: int = 2,
    steps: int = 8,
    num_segments: int = 4,
    chunk_size: int = 4,
    seed: int = 0,
) -> None:
    """Write a run's prompts, embeddings and targets as the stages would, from random numbers.

    Writes `prompts/train.parquet`, `embeddings/train/manifest.json` and `targets/manifest.json`
    under `folder`. The trajectories are smooth random curves from noise to a clean latent; the
    schedule is that of `tiny_scheduler`.
    """
    table = tiny_prompts(num_prompts)
    prompts = folder / "prompts" / "train.parquet"
    prompts.parent.mkdir(parents=True, exist_ok=True)
    table.to_parquet(prompts, index=False)
    embeddings_hash = _write_embeddings(folder / "embeddings" / "train", table, chunk_size, seed)
    recipe = _targets_recipe(embeddings_hash, steps, num_segments, samples_per_prompt, seed)
    _write_targets(folder / "targets", recipe, num_prompts * samples_per_prompt, chunk_size)


def make_tiny_run(folder: Path, *, config: dict[str, Any] | None = None, **store: int) -> None:
    """A run that is ready to train: teacher, store, `config/training.json`, `student/initial`.

    `config` holds keys of the section `training` that differ from `TRAINING`; `store` goes to
    `make_tiny_store`.
    """
    make_tiny_wan(folder / "teacher")
    make_tiny_store(folder, **store)
    write_training_job(folder, **(config or {}))
    build_student(
        read_job(folder / "config" / "training.json", TrainingJob), folder / "student" / "initial"
    )


TRAINING: dict[str, Any] = {
    "phases": phases(stored=64),
    "global_batch_size": 8,
    "learning_rate": 1e-3,
    "warmup_samples": 16,
    "ema_half_life_samples": 16,
    "dtype": "float32",
    "tf32": False,
    "log_every_samples": 8,
    "save_every_samples": 16,
    "timeout_s": 60,
}


def write_training_job(folder: Path, *, steps: int = 4, seed: int = 0, **training: Any) -> None:
    """Write `config/training.json` of a tiny run."""
    job = {
        "version": 1,
        "seed": seed,
        "teacher": {
            "path": str(folder / "teacher"),
            "dtype": "float32",
            "height": HEIGHT,
            "width": WIDTH,
            "max_sequence_length": MAX_TOKENS,
        },
        "student": {"steps": steps},
        "training": TRAINING | training,
    }
    write_json(folder / "config" / "training.json", job)


def train_arguments(folder: Path, output: Path | None = None) -> list[str]:
    """The training's command line: data from one folder, config and results in another."""
    output = output or folder
    places = {
        "--student": folder / "student/initial",
        "--targets": folder / "targets/manifest.json",
        "--embeddings": folder / "embeddings/train/manifest.json",
        "--prompts": folder / "prompts/train.parquet",
        "--config": output / "config/training.json",
        "--checkpoints": output / "student/checkpoints",
        "--trained": output / "student/trained",
        "--losses": output / "student/loss.parquet",
        "--log-file": output / "logs/training.log",
    }
    return [word for option, place in places.items() for word in (option, str(place))]


def _write_embeddings(root: Path, table: pd.DataFrame, chunk_size: int, seed: int) -> str:
    """Random unpadded embeddings of each distinct text; returns the recipe's hash."""
    recipe = {"kind": "embeddings", "family": "wan", "negative_prompt": "", "seed": seed}
    texts = distinct_texts(table, "").texts
    generator = torch.Generator().manual_seed(seed)
    groups = [texts[start : start + chunk_size] for start in range(0, len(texts), chunk_size)]
    chunks = []
    for group in groups:
        lengths = [len(text.split()) + 1 if isinstance(text, str) else 1 for text in group]
        embeds = [torch.randn(length, TEXT_FEATURES, generator=generator) for length in lengths]
        chunks.append((pack([{"prompt_embeds": tokens} for tokens in embeds]), group))
    members = [members_of(group) for group in groups]
    _write_store(root, recipe, [tensors for tensors, _ in chunks], members, list(map(len, groups)))
    return hash_json(recipe)


def _targets_recipe(
    embeddings_hash: str, steps: int, num_segments: int, samples_per_prompt: int, seed: int
) -> dict[str, Any]:
    """A recipe with the keys that a targets stage writes and training reads."""
    family, scheduler = family_named("wan"), tiny_scheduler()
    knots = knots_of(steps, num_segments)
    return {
        "kind": "targets",
        "version": 1,
        "family": family.name,
        "teacher": "tiny",
        "embeddings": embeddings_hash,
        "scheduler": plain_config(scheduler),
        "prediction_type": "flow_prediction",
        "steps": steps,
        "guidance_scale": 4.0,
        "knots": list(knots),
        "schedule": asdict(grid_of(family, scheduler, steps, LATENT_SHAPE).subset(knots)),
        "latent_shape": list(LATENT_SHAPE),
        "height": HEIGHT,
        "width": WIDTH,
        "max_sequence_length": MAX_TOKENS,
        "negative_prompt": "",
        "dtype": "float32",
        "stored_dtype": "float32",
        "seed": seed,
        "samples_per_prompt": samples_per_prompt,
        "batch_size": 2,
        "chunk_size": 4,
    }


def _write_targets(root: Path, recipe: dict[str, Any], num_samples: int, chunk_size: int) -> None:
    """Curves `alpha clean + sigma noise + bend alpha sigma` through the knots."""
    generator = torch.Generator().manual_seed(recipe["seed"] + 1)
    schedule = recipe["schedule"]
    alpha, sigma = (
        torch.tensor(schedule[name]).float().view(1, -1, 1, 1, 1, 1)
        for name in ("alphas", "sigmas")
    )
    chunks, sizes, members = [], [], []
    for start in range(0, num_samples, chunk_size):
        rows = list(range(start, min(start + chunk_size, num_samples)))
        noise, bend, clean = (
            torch.randn(len(rows), 1, *LATENT_SHAPE, generator=generator) for _ in range(3)
        )
        chunks.append(
            {
                "noisy": alpha * (0.5 * clean) + sigma * noise + 0.1 * alpha * sigma * bend,
                "prompt_row": torch.tensor([row // recipe["samples_per_prompt"] for row in rows]),
                "timesteps": torch.tensor(schedule["timesteps"], dtype=torch.float64),
                "alphas": torch.tensor(schedule["alphas"], dtype=torch.float64),
                "sigmas": torch.tensor(schedule["sigmas"], dtype=torch.float64),
                "scales": torch.tensor(schedule["scales"], dtype=torch.float64),
            }
        )
        sizes.append(len(rows))
        members.append(hash_json({"rows": rows}))
    _write_store(root, recipe, chunks, members, sizes)


def _write_store(
    root: Path,
    recipe: dict[str, Any],
    chunks: Sequence[dict[str, torch.Tensor]],
    members: Sequence[str],
    sizes: Sequence[int],
) -> None:
    """Chunk files and their manifest."""
    recipe_hash = hash_json(recipe)
    folder = chunk_folder(root, recipe_hash)
    records = []
    for index, (tensors, digest, size) in enumerate(zip(chunks, members, sizes, strict=True)):
        path = chunk_path(folder, index)
        write_chunk(path, tensors, ChunkIdentity(recipe_hash, digest), {})
        records.append(describe_chunk(folder, index, root, digest, size))
    Manifest(recipe, recipe_hash, tuple(records)).write(root / "manifest.json")
