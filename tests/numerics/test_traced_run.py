"""A teacher whose class has no adapter: its run gives what its stock pipeline gives.

tests/numerics/test_traced.py learns every class of Diffusers; here a few go through all stages.
"""

from collections.abc import Iterator
from dataclasses import replace
from functools import wraps
from math import prod
from pathlib import Path
from typing import Any

import diffusers
import numpy as np
import pandas as pd
import pytest
import torch

from distillery.config.jobs import EmbeddingsJob, TargetsJob
from distillery.families import Request, Setting, Size, learning
from distillery.families.recording import leaves
from distillery.families.traced import Traced
from distillery.files import read_json, read_sealed
from distillery.generation.embeddings import embeddings_recipe
from distillery.generation.targets import DrawnNoise
from distillery.generation.teacher_walk import TeacherWalk
from distillery.generation.trajectory import record
from distillery.pipeline import STAGES
from distillery.planning.plan import make_plan
from distillery.planning.solver import solver_facts
from distillery.planning.what_runs import latent_elements
from distillery.store.embeddings import EmbeddingStore
from distillery.store.tables import read_table
from distillery.store.trajectories import TrajectoryStore
from distillery.teacher.folder import PipelineFolder, find_teacher
from distillery.teacher.loading import load_exact_teacher, load_teacher
from distillery.teacher.skeleton import load_skeleton
from families import CASES
from families.calls import generators
from families.made import made_teacher
from runs import CPU, Run, family_run
from traced.whole import (
    ROUND,
    arguments,
    made_with_a_round,
    off_images,
    off_trajectories,
    stock,
    stock_teacher,
    traced_run,
)
from training_phases import phases

SDXL = next(case for case in CASES if case.name == "sdxl")
EXPANDED = "WanPipeline with a time of each token"
ODD = ("BriaPipeline", "HunyuanVideo15Pipeline")
"""One that cannot be made without a VAE, nor encode without its network; one that takes no guidance
scale, has a component that guides, and a VAE that decodes one clip alone."""
IN_FLOAT32 = ("ChromaPipeline", "HunyuanDiTPipeline", "LTXConditionPipeline", EXPANDED)
"""With tables of positions, or times of each token, that their stock calls leave in float32."""
NARROW = (
    *IN_FLOAT32,
    "CogVideoXPipeline",
    "Flux2KleinPipeline",
    "Lumina2Pipeline",
    "ZImagePipeline",
)
NAMES = ("ZImagePipeline", "ChromaPipeline", "Flux2KleinPipeline", EXPANDED, *ODD)


@pytest.fixture(scope="module", autouse=True)
def short_texts() -> Iterator[None]:
    """HunyuanVideo 1.5 pads each text to 2,000 tokens, as its class alone says; its own words to
    the encoder take most of these 300."""
    kind = diffusers.HunyuanVideo15Pipeline
    begin = kind.__init__

    @wraps(begin)
    def begin_short(self: Any, *args: Any, **kwargs: Any) -> None:
        begin(self, *args, **kwargs)
        self.tokenizer_max_length, self.tokenizer_2_max_length = 300, 16
        self.vision_num_semantic_tokens = 4

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(kind, "__init__", begin_short)
        yield


@pytest.fixture(scope="module", params=NAMES)
def run(request: Any, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """With targets, a trained student and images."""
    run = traced_run(request.param, tmp_path_factory.mktemp("run"), training=ROUND)
    return made_with_a_round(run)


def test_trajectories_are_those_of_the_stock_call(run: Run) -> None:
    assert off_trajectories(run) <= 1e-5


@pytest.mark.parametrize("model", ["teacher", "student"])
def test_images_are_those_of_the_stock_calls(run: Run, model: str) -> None:
    """The teacher's with guidance; the student's as its card calls it."""
    assert off_images(run, model) <= 1


def test_noise_is_drawn_as_the_stock_call_draws_it(run: Run) -> None:
    job = run.job("targets", TargetsJob)
    store = TrajectoryStore(run.files.targets)
    noise = DrawnNoise(job, read_table(run.prompts("train")), store.recipe.embeddings)
    for row in (0, 5):
        assert noise.states(row, 0, 0)[0].equal(store.states(row, 0, 1)[0])


def test_the_vae_is_given_what_the_stock_call_gives_it(run: Run) -> None:
    """HunyuanVideo 1.5's decoder is asked of clips one by one, of which the first is seen."""
    family, pipeline = PipelineFolder(run.files.student("pipeline")).family, stock_teacher(run)
    given: list[torch.Tensor] = []
    decode = pipeline.vae.decode
    pipeline.vae.decode = lambda it, **rest: (given.append(it.clone()), decode(it, **rest))[1]
    called = arguments(run, "the bird", 1, 1.0, 4)
    with record(pipeline.scheduler, [4]) as trajectory, torch.no_grad():
        pipeline(**called, output_type="pt")
    size = Size.of(run.config.teacher)
    found = family.vae_input(trajectory.states[4], Setting(size, 1.0), pipeline.vae.config)
    torch.testing.assert_close(found, given[0], rtol=1e-5, atol=1e-5)


def test_a_walk_from_a_stored_state_leads_to_the_next(run: Run) -> None:
    store = TrajectoryStore(run.files.targets)
    teacher = run.job("targets", TargetsJob).teacher
    embeddings = EmbeddingStore(run.embeddings("train"), read_table(run.prompts("train")))
    walk = TeacherWalk.load(teacher, store.recipe, embeddings, 2, None, CPU)
    rows = [1, 7]
    # A solver that remembers its last step has none to remember where it begins anew.
    remembers = "Multistep" in store.recipe.scheduler["class"]
    for segment in (0,) if remembers else (0, 1):
        pairs = [store.states(row, segment, segment + 1) for row in rows]
        first, last = (torch.stack(states).float() for states in zip(*pairs, strict=True))
        found = walk.advance(first, segment, rows)
        torch.testing.assert_close(found, last, rtol=1e-4, atol=1e-4)


def test_the_students_folder_knows_how_it_is_called(run: Run) -> None:
    family = PipelineFolder(run.files.student("pipeline")).family
    assert isinstance(family, Traced)
    shape = TrajectoryStore(run.files.targets).recipe.latent_shape
    assert family.learnt.latent_shape == shape


def test_the_plan_tells_what_is_off_in_the_call(run: Run) -> None:
    teacher = run.job("targets", TargetsJob).teacher
    folder = find_teacher(teacher)
    shape = TrajectoryStore(run.files.targets).recipe.latent_shape
    told = dict(solver_facts(run.config, folder, shape))["guidance off"]
    is_z_image = folder.class_name == "ZImagePipeline"
    assert ("guidance_scale 0 in its call" in told) == is_z_image


def test_the_plan_before_knew_the_size_of_a_state(run: Run) -> None:
    """However the pipeline packs it."""
    teacher = run.config.teacher
    skeleton = load_skeleton(find_teacher(teacher.not_learnt))
    stored = TrajectoryStore(run.files.targets).recipe.latent_shape
    assert latent_elements(skeleton, Size.of(teacher)) == prod(stored)


def test_what_an_adapter_gives_a_trace_gives_too(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    """The same trajectories, and the same losses."""
    teacher, chunks, losses = made_teacher(tmp_path_factory, SDXL), [], []
    for trace in (None, {"unguided": {"guidance_scale": 1.0}, "always": {}}):
        run = family_run(SDXL, tmp_path_factory.mktemp("sdxl"), teacher, teacher={"trace": trace})
        if trace:
            run.sign()
            learnt = find_teacher(run.job("targets", TargetsJob).teacher).family.learnt
            assert learnt.spacings.keys() == set(range(1, learning.SPACINGS + 1))
        run.encode("train")
        run.all_targets()
        run.train_and_export()
        store = TrajectoryStore(run.files.targets)
        chunks.append(torch.stack([torch.stack(store.states(row, 0, 2)) for row in range(9)]))
        losses.append(pd.read_parquet(run.files.loss)["loss"])
    torch.testing.assert_close(chunks[1], chunks[0], rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(losses[1], losses[0], rtol=1e-4)


@pytest.mark.parametrize(
    ("name", "student", "changed"),
    [
        ("ZImagePipeline", {"layers": [1]}, {"n_layers": 1}),
        ("StableDiffusionXLPipeline", {"unet": {"mid_block": "none"}}, {"mid_block_type": None}),
    ],
)
def test_a_student_of_fewer_blocks_is_its_exported_pipeline(
    name: str, student: dict[str, Any], changed: dict[str, Any], tmp_path: Path
) -> None:
    run = traced_run(name, tmp_path, student={"init": "layers", **student})
    run.ready_to_train()
    run.encode("eval")
    pipeline = run.train_and_export()
    run.samples(model="student", pipeline=pipeline)
    assert off_images(run, "student") <= 1
    network = stock(pipeline).components["unet" if "unet" in student else "transformer"]
    assert dict(network.config) | changed == dict(network.config)


@pytest.mark.parametrize(
    "learned",
    [{"online": 8}, {"stored": 8, "rollouts": {"samples": 8, "perceptual_weight": 0.1}}],
)
def test_a_training_needs_nothing_stored_and_sees_what_is_decoded(
    learned: dict[str, Any], tmp_path: Path
) -> None:
    run = traced_run("Flux2KleinPipeline", tmp_path, training={"phases": phases(**learned)})
    make_plan(STAGES, run.config, run.files.plan)
    run.encode("train")
    if "stored" in learned:
        run.all_targets()
    run.train_and_export()
    assert pd.read_parquet(run.files.loss)["loss"].between(1e-6, 100).all()


@pytest.mark.parametrize("name", ["ZImagePipeline", "Flux2KleinPipeline"])
def test_the_stock_pipeline_with_the_additions_is_the_student(name: str, tmp_path: Path) -> None:
    """Though nothing is known of the class but its own loader of LoRAs."""
    lora = {"rank": 2, "targets": ["to_q", "to_k", "to_v", "to_out.0"]}
    run = traced_run(
        name, tmp_path, student={"init": "lora", "lora": lora}, training={"learning_rate": 0.05}
    )
    run.ready_to_train()
    folder = run.train_and_export()
    exported = diffusers.DiffusionPipeline.from_pretrained(folder)
    added = stock(Path(run.config.teacher.path))
    added.load_lora_weights(folder / "lora")
    added.scheduler = type(exported.scheduler).from_pretrained(folder / "scheduler")
    call = read_json(folder / "distillery.json")["call"]["arguments"]
    call |= {"prompt": "the bird", "output_type": "latent"}
    found = [
        it(**call, generator=generators([3]))[0].float()
        for it in (exported, added, stock(Path(run.config.teacher.path)))
    ]
    torch.testing.assert_close(found[1], found[0], rtol=1e-4, atol=1e-4)
    assert not found[2].allclose(found[0], atol=1e-3)


def test_what_was_learnt_is_part_of_every_recipe(run: Run) -> None:
    learnt = read_sealed(run.files.signature)
    targets = TrajectoryStore(run.files.targets).recipe
    assert targets.signature == learnt
    folder = find_teacher(run.job("embeddings", EmbeddingsJob).teacher)
    steps = {**learnt, "learnt": {**learnt["learnt"], "timesteps": [1.0]}}
    encodings = {**learnt["learnt"]["encodings"], "no_negative": "x"}
    other = {**learnt, "learnt": {**learnt["learnt"], "encodings": encodings}}
    recipes = [
        embeddings_recipe(run.job("embeddings", EmbeddingsJob), replace(folder, signature=it))
        for it in (learnt, steps, other)
    ]
    assert recipes[0].hash == recipes[1].hash == targets.embeddings
    assert recipes[2].hash != targets.embeddings


def test_a_timestep_is_rounded_as_the_stock_call_rounds_it(tmp_path: Path) -> None:
    """In bfloat16, where targets are solved with states in float32."""
    run = traced_run(
        "ChromaPipeline", tmp_path, teacher={"dtype": "bfloat16"}, targets={"steps": 8}
    )
    teacher = run.job("targets", TargetsJob).teacher
    folder = find_teacher(teacher)
    seen: dict[str, list[torch.Tensor]] = {"stock": [], "exact": []}
    for name, load in (("stock", load_teacher), ("exact", load_exact_teacher)):
        pipeline = load(teacher, folder, CPU)
        pipeline.transformer.register_forward_pre_hook(
            lambda _network, _args, given, at=name: seen[at].append(given["timestep"]),
            with_kwargs=True,
        )
        if name == "stock":
            pipeline(**arguments(run, "the bird", 1, 1.0, 8), output_type="latent")
        else:
            family = folder.family
            parts = family.pad(family.encode(pipeline, ["the bird"], 0), 0)
            setting = Setting(Size.of(teacher), 1.0)
            request = Request([1], parts, parts, 8, setting, False, torch.float32)
            family.generate(pipeline, request)
    assert len(seen["stock"]) == len(seen["exact"]) == 8
    for stock_one, exact_one in zip(seen["stock"], seen["exact"], strict=True):
        assert exact_one.float().equal(stock_one.float())
    assert any(float(it) * 1000 % 1 for it in seen["stock"])


@pytest.mark.parametrize("name", NARROW)
def test_a_network_of_lower_precision_is_given_what_the_stock_call_gives(
    name: str, tmp_path: Path
) -> None:
    """Where targets are solved with states in float32: types of all, and values of what follows
    the step or nothing, to the last bit."""
    run = traced_run(name, tmp_path, teacher={"dtype": "bfloat16"}, targets={"steps": 8})
    teacher = run.job("targets", TargetsJob).teacher
    folder = find_teacher(teacher)
    family = folder.family
    assert isinstance(family, Traced)
    seen: dict[str, list[dict[Any, Any]]] = {"stock": [], "exact": []}
    for load, given in zip((load_teacher, load_exact_teacher), seen.values(), strict=True):
        pipeline = load(teacher, folder, CPU)
        network = getattr(pipeline, family.denoisers[0])
        network.register_forward_pre_hook(
            lambda _network, _args, kwargs, at=given: at.append(leaves(kwargs)), with_kwargs=True
        )
        parts = family.pad(family.encode(pipeline, ["the bird"], 0), 0)
        dtype = torch.bfloat16 if load is load_teacher else torch.float32
        request = Request([1], parts, parts, 8, Setting(Size.of(teacher), 1.0), False, dtype)
        family.generate(pipeline, request)
    assert len(seen["stock"]) == len(seen["exact"]) == 8
    signature = family.learnt.signature
    same = {*signature.clocks, *family.in_float32}
    for stock_one, exact_one in zip(*seen.values(), strict=True):
        for place, expected in stock_one.items():
            if isinstance(expected, torch.Tensor):
                assert exact_one[place].dtype == expected.dtype, place
                assert place not in same or exact_one[place].equal(expected), place
    assert bool(family.in_float32) == (name in IN_FLOAT32)


def test_a_prompt_that_is_not_read_to_its_end_is_refused(tmp_path: Path) -> None:
    long = "the bird " * 40
    run = traced_run("ChromaPipeline", tmp_path)
    table = pd.read_csv(tmp_path / "train.csv")
    table.loc[3, "prompt"] = long
    table.to_csv(tmp_path / "train.csv", index=False)
    with pytest.raises(ValueError, match=r"1 prompts are longer than the teacher reads.*the bird"):
        run.encode("train")
    teacher = run.config.teacher.model_copy(update={"long_prompts": "truncate"})
    knowing = Run(run.folder, run.config.model_copy(update={"teacher": teacher}))
    assert knowing.encode("train").is_file()


@pytest.mark.parametrize("name", ["ZImagePipeline", "MotifVideoPipeline"])
def test_a_student_learns_in_another_type_than_its_teacher(name: str, tmp_path: Path) -> None:
    """In float32, from a teacher in bfloat16, whose states enter its network in that, alone or in
    front of others."""
    run = traced_run(name, tmp_path, teacher={"dtype": "bfloat16"})
    run.ready_to_train()
    run.train_and_export()
    assert pd.read_parquet(run.files.loss)["loss"].between(1e-6, 10).all()


def test_a_scheduler_whose_steps_draw_noise_is_the_reason(tmp_path: Path) -> None:
    """Its generators would make each run and batch another."""
    scheduler = {"class": "FlowMatchEulerDiscreteScheduler", "stochastic_sampling": True}
    with pytest.raises(ValueError, match=r"its steps draw noise.*choose a teacher\.scheduler"):
        traced_run("ZImagePipeline", tmp_path, teacher={"scheduler": scheduler})


def test_the_network_is_given_all_on_its_own_device(run: Run) -> None:
    """What was learnt lies on the CPU; a device without values stands for a GPU."""
    family = PipelineFolder(run.files.student("pipeline")).family
    assert isinstance(family, Traced)
    embeddings = EmbeddingStore(run.embeddings("train"), read_table(run.prompts("train")))
    prompts = family.learnt.encodings.read(family.pad([embeddings.row(0), embeddings.row(5)], 0))
    noisy = torch.empty(2, *family.learnt.latent_shape, device="meta")
    given = leaves(family.learnt.signature.arguments(noisy, prompts, [0, 1]))
    tensors = {place: leaf for place, leaf in given.items() if isinstance(leaf, torch.Tensor)}
    assert len(tensors) > 1
    assert {leaf.device.type for leaf in tensors.values()} == {"meta"}
