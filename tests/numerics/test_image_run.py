"""A teacher that is given an image beside the prompt: its run gives what stock calls give."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from diffusers.utils import load_image
from PIL import Image

from distillery.config.jobs import EmbeddingsJob, TargetsJob
from distillery.families.of_images import ImageEncodings
from distillery.families.traced import Traced
from distillery.files import read_json
from distillery.generation.dataset import metadata
from distillery.generation.embeddings import embeddings_recipe
from distillery.generation.teacher_walk import TeacherWalk
from distillery.generation.trajectory import record
from distillery.images import read_png
from distillery.model_folder import load_denoiser
from distillery.store.embeddings import EmbeddingStore
from distillery.store.tables import read_table
from distillery.store.trajectories import TrajectoryStore
from distillery.teacher.folder import PipelineFolder, find_teacher
from runs import CPU, Run
from traced import few_spacings
from traced.pictured import CASES, image_run
from traced.whole import ROUND, SCALE, STEPS, arguments, made_with_a_round, negative, seed_of, stock


@pytest.fixture(scope="module", params=CASES)
def run(request: Any, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """With targets, a round, a trained student and images."""
    run = image_run(request.param, tmp_path_factory.mktemp("run"), training=ROUND)
    with few_spacings():
        run.sign()
    return made_with_a_round(run, previews=True)


def called(run: Run, row: Any) -> dict[str, Any]:
    """The arguments of the teacher's stock call for a row of a prompt table."""
    seed = seed_of(run, row["prompt_id"])
    given = arguments(run, row["prompt"], seed, SCALE, STEPS) | negative(run)
    return given | {"image": load_image(row["image"])}


def test_trajectories_are_those_of_the_stock_call(run: Run) -> None:
    store, pipeline = TrajectoryStore(run.files.targets), stock(Path(run.config.teacher.path))
    table = read_table(run.prompts("train"))
    for row in (0, 5):
        with record(pipeline.scheduler, [0, STEPS]) as trajectory:
            pipeline(**called(run, table.iloc[row]), output_type="latent")
        found = store.states(row, 0, 2)
        assert found[0].equal(trajectory.states[0][0])
        assert found[1].equal(trajectory.states[STEPS][0])


def test_images_are_those_of_the_stock_calls(run: Run) -> None:
    """The teacher's with guidance; the student's as its card calls it."""
    table = read_table(run.prompts("eval"))
    call = read_json(run.files.student("pipeline") / "distillery.json")["call"]
    assert call["takes_image"] == "image"
    pipelines = {"teacher": stock(Path(run.config.teacher.path)),
                 "student": stock(run.files.student("pipeline"))}  # fmt: skip
    for model, pipeline in pipelines.items():
        for number in (0, 4):
            row = table.iloc[number]
            given = called(run, row)
            if model == "student":
                kept = {name: given[name] for name in ("image", "prompt", "generator")}
                given = kept | call["arguments"]
            expected = pipeline(**given | {"output_type": "pil"})[0][0]
            path = run.files.sample_folder / model / row["prompt_id"] / "0.png"
            stacked = np.stack(expected) if isinstance(expected, list) else np.asarray(expected)
            assert np.array_equal(read_png(Image.open(path)), stacked), model


def test_the_image_decides_the_trajectory(run: Run) -> None:
    """What is stored of it reaches the network that learns: without it, it predicts otherwise."""
    family = find_teacher(run.job("targets", TargetsJob).teacher).family
    assert isinstance(family, Traced)
    assert isinstance(family.learnt.encodings, ImageEncodings)
    store = EmbeddingStore(run.embeddings("train"), read_table(run.prompts("train")))
    network = load_denoiser(Path(run.config.teacher.path) / "transformer", torch.float32, None)
    noisy = torch.randn(1, *family.learnt.latent_shape)
    names = family.encode_image(None, None)
    other = {**store.row(0), **{name: store.row(1)[name] for name in names}}
    one, another = (
        family.learnt.signature.predict(
            network, noisy, family.learnt.encodings.read(family.pad([parts], 0)), [0]
        )
        for parts in (store.row(0), other)
    )
    assert not one.equal(another)


def test_a_walk_from_states_of_several_prompts_leads_to_their_next(run: Run) -> None:
    store = TrajectoryStore(run.files.targets)
    embeddings = EmbeddingStore(run.embeddings("train"), read_table(run.prompts("train")))
    teacher = run.job("targets", TargetsJob).teacher
    walk = TeacherWalk.load(teacher, store.recipe, embeddings, 2, None, CPU)
    rows = [1, 7]
    pairs = [store.states(row, 0, 1) for row in rows]
    first, last = (torch.stack(states).float() for states in zip(*pairs, strict=True))
    torch.testing.assert_close(walk.advance(first, 0, rows), last, rtol=1e-5, atol=1e-5)


def test_the_students_folder_knows_the_image(run: Run) -> None:
    folder = run.files.student("pipeline")
    family = PipelineFolder(folder).family
    assert isinstance(family, Traced)
    assert isinstance(family.learnt.encodings, ImageEncodings)
    card = (folder / "README.md").read_text(encoding="utf-8")
    assert "    image=load_image('path/to/an/image.png'),\n" in card
    assert "from diffusers.utils import load_image\n" in card
    kind = "video" if run.config.teacher.num_frames > 1 else "image"
    assert f"pipeline_tag: image-to-{kind}\n" in card


def test_samples_tell_their_image(run: Run) -> None:
    table = read_table(run.files.samples_shard("teacher", "0-of-1"))
    prompts = read_table(run.prompts("eval"))
    assert table["image_sha256"].tolist() == prompts["image_sha256"].tolist()
    assert table["image_sha256"].nunique() > 1
    # Image-folder loaders have a column `image` of their own.
    assert {"file_name", "input_image", "image_sha256"} <= set(metadata(table).columns)
    assert "image" not in metadata(table)


def test_what_encodes_images_decides_the_embeddings(run: Run) -> None:
    job = run.job("embeddings", EmbeddingsJob)
    folder = find_teacher(job.teacher)
    other = job.model_copy(
        update={"teacher": job.teacher.model_copy(update={"vae_dtype": "bfloat16"})}
    )
    other.teacher.learn_from(run.files.signature)
    recipes = [embeddings_recipe(it, folder) for it in (job, other)]
    assert (
        recipes[0].hash
        == EmbeddingStore(run.embeddings("train"), read_table(run.prompts("train"))).recipe_hash
    )
    assert recipes[0].hash != recipes[1].hash


def test_only_images_that_were_once_rounded_otherwise_are_read_again(run: Run) -> None:
    """Those of bfloat16 beside a VAE in float32, where the call rounds images at all."""
    job = run.job("embeddings", EmbeddingsJob)
    folder = find_teacher(job.teacher)
    low = job.teacher.model_copy(update={"dtype": "bfloat16"})
    recipes = [
        embeddings_recipe(job.model_copy(update={"teacher": it}), folder)
        for it in (job.teacher, low)
    ]
    is_same = recipes[0].images == recipes[1].images
    assert is_same == (folder.class_name == "WanImageToVideoPipeline")
