"""A small run's results with everything that a report can show, and its page in parts."""

import json
from dataclasses import asdict, fields
from html.parser import HTMLParser

import pandas as pd

from distillery.files import write_json, write_sealed
from distillery.pipeline import STAGES
from distillery.report import page
from distillery.run_folder import RunFolder
from distillery.schedule import Schedule
from distillery.store.recipes import TrainingRecipe
from distillery.student.info import StudentInfo
from events import event, run_events
from judging import Run, make_judge


def make_results(folder, num_frames=1):
    """results/tiny with everything that a report can show; of clips where there are frames."""
    make_judge(folder / "judge")
    run = Run(folder, str(folder / "judge"), num_frames)
    run.evaluate()
    recipes = {
        "targets": {"kind": "targets", "steps": 24},
        "embeddings/train": {"kind": "embeddings", "negative_prompt": ""},
    }
    for name, recipe in recipes.items():
        manifest = {"recipe": recipe, "recipe_hash": "ab" * 32, "num_samples": 64, "chunks": [{}]}
        write_sealed(folder / name / "manifest.json", manifest)
    (folder / "student/pipeline").mkdir(parents=True)
    write_call(folder, {"num_inference_steps": 4, "guidance_scale": 1.0, "num_frames": 1})
    write_loss(folder / "student/loss.parquet")
    write_telemetry(folder, run_events())
    (folder / "telemetry/evaluation.jsonl").unlink()
    write_json(folder / "plan.json", {"advice": ["more prompts would help"]})
    origin = StudentInfo("config", "transformer", None, 1_000, 2_000, 750, 1_000, ("a", "b"))
    write_sealed(folder / "student/initial/distillery.json", {"student": asdict(origin)})


def write_telemetry(folder, events):
    (folder / "telemetry").mkdir(exist_ok=True)
    for told in events:
        with (folder / "telemetry" / f"{told.job}.jsonl").open("a") as file:
            file.write(json.dumps(vars(told)) + "\n")


def write_call(folder, arguments, image="frames[0][0]"):
    """What the export says of its pipeline."""
    (folder / "student/pipeline").mkdir(parents=True, exist_ok=True)
    call = {
        "arguments": arguments,
        "dtypes": {"default": "bfloat16", "vae": "float32"},
        "cast_latents": False,
        "image": image,
        "absent": {},
    }
    write_sealed(folder / "student/pipeline/distillery.json", {"call": call})


def write_loss(path):
    steps = range(1, 33)
    table = pd.DataFrame(
        {
            "samples_seen": [32 * step for step in steps],
            "loss": [1.0 / step for step in steps],
            "grad_norm": [0.5 for _ in steps],
            "learning_rate": [1e-4 / step for step in steps],
            "loss_segment_0": [2.0 / step for step in steps],
            "loss_segment_1": [0.5 / step for step in steps],
        }
    )
    table.to_parquet(path, index=False)


def write(config, folder):
    page.write_report(
        config, RunFolder(folder), folder / "index.html", folder / "metrics.json", STAGES
    )
    return (folder / "index.html").read_text(), json.loads((folder / "metrics.json").read_text())


def write_trained(folder, config, timesteps=(1.0,)):
    """A trained student, and what the telemetry says of its training and of one before it."""
    states = (1.0,) * len(timesteps) + (0.0,)
    schedule = Schedule(timesteps, *[states] * (len(fields(Schedule)) - 1))
    recipe = TrainingRecipe(
        kind="training", version=1, seed=0, steps=1, schedule=schedule, latent_shape=(1,),
        guidance_scale=1.0, initial="a", targets="b", rounds=("c", "d"),
        training=config.training.of_recipe,
    )  # fmt: skip
    about = {"recipe": recipe.to_json(), "recipe_hash": recipe.hash}
    (folder / "student/trained").mkdir()
    write_sealed(folder / "student/trained/distillery.json", about)
    first = (recipe.first_parts(config.training) or [recipe])[-1]
    for seen, hash_ in ((512, first.hash), (1024, recipe.hash)):
        facts = {"samples_seen": seen, "recipe": hash_, "peak_memory_bytes": 1}
        write_telemetry(folder, [event("work", "training", seen, seen + 1, 512, **facts)])


class Page(HTMLParser):
    """Collects what a page loads, links, says and nests."""

    VOID = ("meta", "img", "link", "br", "hr", "input", "source")

    def __init__(self, html):
        super().__init__()
        self.elements, self.open, self.words = [], [], []
        self.feed(html)

    def handle_starttag(self, name, attributes):
        self.elements.append((name, dict(attributes)))
        if name not in self.VOID:
            self.open.append(name)

    def handle_endtag(self, name):
        assert self.open.pop() == name

    def handle_data(self, data):
        self.words.append(data)

    def all(self, name):
        return [attributes for found, attributes in self.elements if found == name]
