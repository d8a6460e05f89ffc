"""A small run with images and a judge: a real CLIP of tiny size, images drawn here."""

import hashlib
import json
import shutil
from copy import copy

import numpy as np
import pandas as pd
import torch
from PIL import Image, ImageDraw
from safetensors.numpy import save_file
from transformers import (
    CLIPConfig,
    CLIPModel,
    CLIPProcessor,
    CLIPTokenizer,
    Dinov2Config,
    Dinov2Model,
    ResNetConfig,
    ResNetModel,
    SiglipConfig,
    SiglipModel,
)
from transformers.models.bit.image_processing_pil_bit import BitImageProcessorPil
from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil
from transformers.models.convnext.image_processing_pil_convnext import ConvNextImageProcessorPil
from transformers.models.siglip.image_processing_pil_siglip import SiglipImageProcessorPil

from distillery.config.jobs import EvaluationJob
from distillery.config.samples import Evaluation
from distillery.files import hash_file
from distillery.images import write_png
from distillery.measures.score import evaluate
from distillery.telemetry import Reporter

CPU = torch.device("cpu")
COLOURS = ("red", "green", "blue", "orange", "purple", "black")
SHAPES = ("circle", "square")
PROMPTS = [f"a {colour} {shape}" for colour in COLOURS for shape in SHAPES]
MAX_TOKENS = 8
FPS = 8


class Code:
    """Runs when it is unpickled."""

    def __reduce__(self):
        return exec, ("raise SystemExit('was run')",)


def make_judge(folder):
    """A random CLIP with a tokenizer trained on the prompts; real classes, 80,000 weights."""
    letters = list("abcdefghijklmnopqrstuvwxyz")
    vocab = ["<|startoftext|>", "<|endoftext|>", *letters, *(f"{letter}</w>" for letter in letters)]
    untrained = CLIPTokenizer({token: number for number, token in enumerate(vocab)}, merges=[])
    tokenizer = untrained.train_new_from_iterator(PROMPTS, vocab_size=700)
    shared = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2}
    shared |= {"num_attention_heads": 2, "projection_dim": 16}
    text = shared | {"vocab_size": len(tokenizer), "max_position_embeddings": MAX_TOKENS}
    text |= {"bos_token_id": tokenizer.bos_token_id, "eos_token_id": tokenizer.eos_token_id}
    vision = shared | {"image_size": 32, "patch_size": 8}
    torch.manual_seed(0)
    config = CLIPConfig(text_config=text, vision_config=vision, projection_dim=16)
    CLIPModel(config).save_pretrained(folder)
    images = CLIPImageProcessorPil(
        size={"shortest_edge": 32}, crop_size={"height": 32, "width": 32}
    )
    CLIPProcessor(images, tokenizer).save_pretrained(folder)


def make_dino(folder):
    """A random DINOv2 of 8 features; as the real ones, made for larger images than it gets."""
    shared = {"hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2}
    torch.manual_seed(0)
    Dinov2Model(Dinov2Config(**shared, image_size=32, patch_size=4)).save_pretrained(folder)
    sizes = {"size": {"shortest_edge": 16}, "crop_size": {"height": 16, "width": 16}}
    BitImageProcessorPil(**sizes).save_pretrained(folder)


def make_siglip(folder):
    """A random SigLIP of 8 features, without its tokenizer."""
    shared = {"hidden_size": 8, "intermediate_size": 16, "num_hidden_layers": 1}
    shared |= {"num_attention_heads": 2}
    vision = shared | {"image_size": 16, "patch_size": 4}
    torch.manual_seed(0)
    config = SiglipConfig(text_config=shared | {"vocab_size": 20}, vision_config=vision)
    SiglipModel(config).save_pretrained(folder)
    SiglipImageProcessorPil(size={"height": 16, "width": 16}).save_pretrained(folder)


def make_resnet(folder):
    """A random ResNet of 12 features, whose pooled output has a height and a width."""
    torch.manual_seed(0)
    config = ResNetConfig(embedding_size=8, hidden_sizes=[8, 12], depths=[1, 1])
    ResNetModel(config).save_pretrained(folder)
    ConvNextImageProcessorPil(size={"shortest_edge": 32}).save_pretrained(folder)


def draw(prompt, shift):
    """The prompt's image, 48 × 48; `shift` moves it and changes its brightness."""
    _, colour, shape = prompt.split()
    image = Image.new("RGB", (48, 48), (240 - shift, 240, 240))
    box = (10 + shift, 10, 36 + shift, 36)
    pen = ImageDraw.Draw(image)
    (pen.ellipse if shape == "circle" else pen.rectangle)(box, fill=colour)
    return image


def draw_clip(prompt, shift, num_frames, speed):
    """Frames of `draw`, each moved by `speed` from the one before, (f, h, w, 3)."""
    return np.stack([np.asarray(draw(prompt, shift + speed * it)) for it in range(num_frames)])


def make_samples(
    folder, model, steps, guidance_scale, shift, images_per_prompt=2, num_frames=1, speed=1
):
    """One model's samples folder as the samples stage leaves it; clips where it has frames."""
    of_clips = {"num_frames": num_frames, "fps": FPS} if num_frames > 1 else {}
    rows = []
    for number, prompt in enumerate(PROMPTS):
        for index in range(images_per_prompt):
            name = f"eval-{number:02d}/{index}"
            image_path = folder / f"{name}.png"
            image_path.parent.mkdir(parents=True, exist_ok=True)
            if of_clips:
                clip = draw_clip(prompt, shift + index, num_frames, speed)
                write_png(image_path, clip, {}, FPS)
            else:
                draw(prompt, shift + index).save(image_path)
            latents = np.full((4, 1, 6, 6), number + 0.1 * shift, dtype=np.float32)
            save_file({"latents": latents}, folder / f"{name}.safetensors")
            rows.append(
                {
                    "prompt_id": f"eval-{number:02d}",
                    "prompt": prompt,
                    "index": index,
                    "noise_seed": 1000 * number + index,
                    "file": f"{name}.png",
                    "sha256": hashlib.sha256(image_path.read_bytes()).hexdigest(),
                    "latents_file": f"{name}.safetensors",
                    "latents_sha256": hash_file(folder / f"{name}.safetensors"),
                    "is_black": False,
                    "model": model,
                    "steps": steps,
                    "guidance_scale": guidance_scale,
                    "network_calls": steps * (2 if guidance_scale > 1 else 1),
                    **of_clips,
                }
            )
    pd.DataFrame(rows).to_parquet(folder / "manifest.parquet", index=False)
    return folder / "manifest.parquet"


class Run:
    """The inputs of `evaluate` and its outputs, read back."""

    def __init__(self, folder, judge, num_frames=1):
        self.folder = folder
        shapes = {"teacher": (24, 4.0, 0), "few": (4, 4.0, 5)}
        shapes |= {"student": (4, 1.0, 1), "untrained": (4, 1.0, 7)}
        self.manifests = {
            name: make_samples(
                folder / f"samples/{name}",
                name,
                *shape,
                num_frames=num_frames,
                speed=2 if name == "teacher" else 1,
            )
            for name, shape in shapes.items()
        }
        chosen = Evaluation(judge=judge, reference="teacher", num_resamples=200)
        self.job = EvaluationJob(evaluation=chosen, models=tuple(self.manifests))
        self._write_to(folder)

    def copy(self, folder):
        """The same inputs in another folder, which may be changed."""
        other = copy(self)
        shutil.copytree(self.folder / "samples", folder / "samples")
        other.folder = folder
        other.manifests = {
            name: folder / path.relative_to(self.folder) for name, path in self.manifests.items()
        }
        other._write_to(folder)
        return other

    def _write_to(self, folder):
        self.quality = folder / "evaluation/quality.json"
        self.scores = folder / "evaluation/scores.parquet"

    def evaluate(self):
        reporter = Reporter(self.folder / "telemetry", "evaluation", "evaluation", "cpu")
        evaluate(self.job, list(self.manifests.values()), self.quality, self.scores, reporter, CPU)
        return json.loads(self.quality.read_text()), pd.read_parquet(self.scores)

    def edit(self, model, change):
        table = pd.read_parquet(self.manifests[model])
        change(table).to_parquet(self.manifests[model], index=False)
