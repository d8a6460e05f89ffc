"""Teachers with images in the default types: bfloat16 networks beside a VAE in float32.

The code of the student's card is run as it stands, and the teacher's pipeline with its lines that
cast what enters the VAE and leaves it: a stock call in two types does not do without.
"""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from diffusers import DiffusionPipeline
from PIL import Image, ImageSequence
from safetensors.torch import load_file

from distillery.config.jobs import TargetsJob
from distillery.families.of_images import ImageEncodings
from distillery.families.recording import cut
from distillery.families.traced import Traced
from distillery.generation.trajectory import record
from distillery.images import read_png
from distillery.store.embeddings import EmbeddingStore
from distillery.store.tables import read_table
from distillery.student.usage import CAST, CAST_IMAGE, IMAGE
from distillery.teacher.folder import find_teacher
from distillery.teacher.solver import load_scheduler
from runs import Run
from stranger import Stranger, code_in, filled_in
from traced import few_spacings
from traced.pictured import CASES, image_run
from traced.whole import SCALE, STEPS, arguments, negative, seed_of
from training_phases import phases


@pytest.fixture(scope="module", params=CASES)
def run(request: Any, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """With targets, a trained student and images; one sample a call, as a user makes it."""
    own = CASES[request.param][1]
    run = image_run(
        request.param,
        tmp_path_factory.mktemp("run"),
        teacher={"height": 32, "width": 32, "max_sequence_length": 16, **own, "dtype": "bfloat16"},
        targets={"batch_size": 1, "num_shards": 1},
        training={"phases": phases(stored=8), "dtype": "bfloat16"},
        samples={"batch_size": 1, "num_shards": 1, "num_prompts": 2},
    )
    with few_spacings():
        run.sign()
    for split in ("train", "eval"):
        run.encode(split)
    run.all_targets()
    run.samples()
    run.samples(model="student", pipeline=run.train_and_export())
    return run


def teacher_pipeline(run: Run) -> Any:
    """The stock one, with the card's casts."""
    teacher = run.config.teacher
    found = find_teacher(teacher)
    pipeline = DiffusionPipeline.from_pretrained(
        found.path,
        dtype={"default": torch.bfloat16, "vae": torch.float32},
        **dict.fromkeys(found.components_left_out),
    )
    pipeline.set_progress_bar_config(disable=True)
    pipeline.scheduler = load_scheduler(found, teacher)
    exec("\n".join((*CAST, *CAST_IMAGE)), {"pipeline": pipeline})
    return pipeline


def called(run: Run, row: Any) -> dict[str, Any]:
    """The arguments of the teacher's call for a row of a prompt table."""
    seed = seed_of(run, row["prompt_id"])
    given = arguments(run, row["prompt"], seed, SCALE, STEPS) | negative(run)
    return given | {"image": Image.open(row["image"]).convert("RGB")}


def test_the_guided_teachers_latents_are_the_stock_calls(run: Run) -> None:
    """Of its samples: targets keep their states in float32."""
    table, pipeline = read_table(run.prompts("eval")), teacher_pipeline(run)
    for number in (0, 1):
        row = table.iloc[number]
        with record(pipeline.scheduler, [STEPS]) as trajectory, torch.no_grad():
            pipeline(**called(run, row), output_type="latent")
        path = run.files.sample_folder / "teacher" / row["prompt_id"] / "0.safetensors"
        assert load_file(path)["latents"].equal(trajectory.states[STEPS][0].float())


def test_what_is_stored_of_an_image_is_what_the_stock_call_gives_its_network(run: Run) -> None:
    table, pipeline = read_table(run.prompts("train")), teacher_pipeline(run)
    store = EmbeddingStore(run.embeddings("train"), table)
    family = find_teacher(run.job("targets", TargetsJob).teacher).family
    assert isinstance(family, Traced)
    encodings = family.learnt.encodings
    assert isinstance(encodings, ImageEncodings)
    for row in (0, 1):
        network_call = cut(pipeline, family.denoisers, called(run, table.iloc[row]))
        for name, part in encodings.parts_of(network_call).items():
            assert store.row(row)[name].equal(part), name


def test_the_cards_code_draws_the_samples_image(run: Run, tmp_path: Path) -> None:
    table = read_table(run.prompts("eval"))
    (code,) = code_in(run.files.student("pipeline") / "README.md")
    with Stranger() as stranger:
        for _, row in table.head(2).iterrows():
            seed = seed_of(run, row["prompt_id"])
            folder = run.files.student("pipeline")
            filled = filled_in(code, folder=folder, prompt=row["prompt"], seed=seed)
            stranger.run(filled.replace(IMAGE, str(Path(row["image"]).resolve())), tmp_path)
            (drawn,) = [*tmp_path.glob("image.png"), *tmp_path.glob("clip.webp")]
            with Image.open(drawn) as opened:
                frames = [np.asarray(it.convert("RGB")) for it in ImageSequence.Iterator(opened)]
            drawn.unlink()
            path = run.files.sample_folder / "student" / row["prompt_id"] / "0.png"
            with Image.open(path) as opened:
                ours = read_png(opened)
            assert np.array_equal(ours, np.stack(frames) if len(frames) > 1 else frames[0])
