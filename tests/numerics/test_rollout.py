"""What rollouts, the teacher's walk and decoder features stand on, for every family.

The teachers are real Diffusers classes of tiny size with random weights; see tests/families.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import pytest
import torch

from distillery.config.jobs import TargetsJob
from distillery.families import Request, Setting
from distillery.generation.targets import DrawnNoise
from distillery.generation.teacher_walk import TeacherWalk
from distillery.generation.trajectory import record
from distillery.model_folder import load_denoiser
from distillery.noise import SampleId, noise_seed
from distillery.schedule import add_noise, from_prediction
from distillery.schedulers import MULTISTEP
from distillery.store.embeddings import EmbeddingStore
from distillery.store.tables import read_table
from distillery.teacher.folder import PipelineFolder, find_teacher
from distillery.teacher.loading import load_student
from distillery.training.batch import Batch
from distillery.training.data import SegmentDataset
from distillery.training.objectives import PerceptualLoss, load_perceptual, roll_out
from families import CASES
from families.case import FamilyCase
from families.made import made_run
from runs import CPU, Run, loaded

ROWS = [0, 3, 8]
STEPS = 2


@dataclass
class Subject:
    """A family under test: its case, and a run whose student takes two of the teacher's steps."""

    case: FamilyCase
    run: Run

    @cached_property
    def dataset(self) -> SegmentDataset:
        return SegmentDataset(
            self.run.folder / "targets" / "manifest.json",
            self.run.embeddings("train"),
            self.run.prompts("train"),
            STEPS,
        )

    @cached_property
    def teacher(self) -> Any:
        return loaded(self.run.config.teacher)

    @cached_property
    def perceptual(self) -> PerceptualLoss:
        return load_perceptual(
            find_teacher(self.run.config.teacher), self.dataset.usual.setting, CPU
        )

    def students(self, scale: float = 1.0) -> Setting:
        """What a student is told: a scale only where it takes it as an input."""
        return Setting(self.case.size, scale)

    def scale_at(self, timestep: float) -> float:
        """The guidance of the network that the stock pipeline calls at a timestep."""
        case = self.case
        is_second = case.denoiser_at(timestep) != "transformer"
        return (case.guidance_scale_2 if is_second else None) or case.guidance_scale

    def request(
        self, dataset: SegmentDataset, steps: int, setting: Setting, decode: bool
    ) -> Request:
        """The stock call for the samples of `ROWS`."""
        table = dataset._table
        samples = [SampleId(table["prompt_id"].iloc[row], 0) for row in ROWS]
        return Request(
            seeds=[noise_seed(0, sample) for sample in samples],
            conditioning=dataset._conditioning(ROWS),
            negative=self.negative(dataset),
            steps=steps,
            setting=setting,
            decode=decode,
            dtype=torch.float32,
        )

    def negative(self, dataset: SegmentDataset) -> Any:
        store = EmbeddingStore(self.run.embeddings("train"), dataset._table)
        length = dataset.recipe.max_sequence_length
        return dataset.family.pad([store.negative] * len(ROWS), length)


@pytest.fixture(scope="module", params=CASES, ids=lambda case: case.name)
def subject(request: Any, tmp_path_factory: pytest.TempPathFactory) -> Subject:
    case: FamilyCase = request.param
    return Subject(case, made_run(tmp_path_factory, case, student={"steps": STEPS}))


def guided(subject: Subject, batch: Batch) -> torch.Tensor:
    """Two forward passes at stored states, combined as classifier-free guidance."""
    dataset, teacher = subject.dataset, subject.teacher
    network = getattr(teacher, subject.case.denoiser_at(float(batch.timestep[0])))

    def predict(conditioning: Any) -> torch.Tensor:
        with torch.no_grad():
            return dataset.family.predict(
                network, batch.noisy, batch.timestep, conditioning, dataset.usual.setting
            )

    found = conditional = predict(batch.conditioning)
    scale = subject.scale_at(float(batch.timestep[0]))
    folder = find_teacher(subject.run.config.teacher)
    is_guided_by_input = dataset.family.has_guidance_embedding(folder.denoiser_config)
    if scale > 1.0 and not is_guided_by_input:
        negative = predict(subject.negative(dataset))
        found = negative + scale * (conditional - negative)
        assert not found.allclose(conditional, atol=1e-3)
    if subject.case.family == "qwen_image":
        found = found * conditional.norm(dim=-1, keepdim=True) / found.norm(dim=-1, keepdim=True)
    return found


def walk_of(subject: Subject, steps: int | None) -> TeacherWalk:
    run, dataset = subject.run, subject.dataset
    store = EmbeddingStore(run.embeddings("train"), dataset._table)
    return TeacherWalk.load(run.config.teacher, dataset.recipe, store, STEPS, steps, CPU)


def test_noise_that_is_drawn_again_is_the_stored_one(subject: Subject) -> None:
    run, stored = subject.run, subject.dataset._trajectories
    table = read_table(run.prompts("train"))
    drawn = DrawnNoise(run.job("targets", TargetsJob), table, stored.recipe.embeddings)
    for name in ("recipe", "recipe_hash", "samples_hash", "num_samples"):
        assert getattr(drawn, name) == getattr(stored, name)
    for row in range(drawn.num_samples):
        assert drawn.prompt_row(row) == stored.prompt_row(row)
        assert drawn.states(row, 0, 0)[0].equal(stored.states(row, 0, 0)[0])


def test_the_teacher_walks_on_from_a_stored_state_to_the_next(subject: Subject) -> None:
    """A multistep solver begins anew in the second segment, so it ends elsewhere there."""
    trajectories, walk = subject.dataset._trajectories, walk_of(subject, None)
    knots = subject.case.steps // STEPS  # of the stored ones, from the student's to its next
    for segment in range(STEPS):
        ends = (segment * knots, (segment + 1) * knots)
        pairs = [trajectories.states(row, *ends) for row in ROWS]
        before, after = (torch.stack(states) for states in zip(*pairs, strict=True))
        found = walk.advance(before, segment, ROWS)
        if segment == 0 or type(walk.pipeline.scheduler).__name__ not in MULTISTEP:
            # Other numbers of rows take other kernels: some 1e-4 apart on a CPU with AMX.
            torch.testing.assert_close(found, after, rtol=0, atol=5e-4)
        else:
            assert found.isfinite().all()
            assert (found - after).square().mean() < 0.1 * (before - after).square().mean()


def test_one_step_of_the_teacher_is_that_of_its_guided_prediction(subject: Subject) -> None:
    dataset, walk = subject.dataset, walk_of(subject, 1)
    grid, kind = dataset.usual.grid, dataset.recipe.prediction_type
    alpha, sigma = (torch.tensor(values) for values in (grid.alphas, grid.sigmas))
    for segment in range(STEPS):
        batch = dataset.__getitems__([row * STEPS + segment for row in ROWS])
        level = (alpha[segment], sigma[segment])
        clean, noise = from_prediction(kind, guided(subject, batch), batch.noisy, *level)
        expected = add_noise(clean, noise, alpha[segment + 1], sigma[segment + 1])
        found = walk.advance(batch.noisy * grid.scales[segment], segment, ROWS)
        found = found / grid.scales[segment + 1]
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


def test_a_rollout_ends_where_the_exported_pipeline_does(subject: Subject) -> None:
    dataset = subject.dataset
    folder = PipelineFolder(subject.run.train_and_export())
    student = load_denoiser(subject.run.folder / "student" / "trained", torch.float32)
    batch = dataset.__getitems__([dataset.num_items + row for row in ROWS])
    assert batch.is_rollout

    def predict(noisy: torch.Tensor, timestep: torch.Tensor, _: torch.Tensor) -> torch.Tensor:
        return dataset.family.predict(
            student, noisy, timestep, batch.conditioning, dataset.usual.setting
        )

    with torch.no_grad():
        kind = dataset.recipe.prediction_type
        ours = roll_out(predict, batch.noisy, dataset.usual.grid, kind)
    teacher = subject.run.config.teacher
    pipeline = load_student(teacher, folder, CPU, dataset.family.text_components)
    is_guided_by_input = dataset.family.has_guidance_embedding(folder.denoiser_config)
    setting = subject.students(subject.case.guidance_scale if is_guided_by_input else 1.0)
    with record(pipeline.scheduler, [STEPS]) as trajectory:
        dataset.family.generate(pipeline, subject.request(dataset, STEPS, setting, decode=False))
    theirs = trajectory.states[STEPS]
    assert float((ours - theirs).norm() / theirs.norm()) < 1e-4
    assert float((batch.target - theirs).norm() / theirs.norm()) > 1e-3


def test_a_rollouts_target_is_the_teachers_end(subject: Subject) -> None:
    dataset, pipeline = subject.dataset, subject.teacher
    batch = dataset.__getitems__([dataset.num_items + row for row in ROWS])
    steps, setting = subject.case.steps, subject.case.setting
    with record(pipeline.scheduler, [steps]) as trajectory:
        dataset.family.generate(pipeline, subject.request(dataset, steps, setting, decode=False))
    torch.testing.assert_close(batch.target, trajectory.states[steps], rtol=0, atol=5e-4)


def test_the_decoder_is_fed_as_the_stock_pipeline_feeds_it(subject: Subject) -> None:
    dataset, pipeline = subject.dataset, subject.teacher
    steps = subject.case.steps
    with record(pipeline.scheduler, [steps]) as trajectory:
        images = dataset.family.generate(
            pipeline, subject.request(dataset, steps, subject.students(), True)
        )
    with torch.no_grad():
        decoded = subject.perceptual.decode(trajectory.states[steps])
    if decoded.ndim == 5:
        decoded = decoded.transpose(1, 2) if subject.case.size.is_clip else decoded[:, :, 0]
    assert images is not None
    torch.testing.assert_close((decoded / 2 + 0.5).clamp(0, 1), images, rtol=0, atol=1e-4)


def test_the_perceptual_distance_leads_back_to_the_target(subject: Subject) -> None:
    dataset = subject.dataset
    perceptual = subject.perceptual
    target = dataset.__getitems__([dataset.num_items + row for row in ROWS]).target
    moved = (target + 0.1 * torch.randn_like(target)).requires_grad_()
    distance_b = perceptual(moved, target)
    assert distance_b.shape == (len(ROWS),)
    assert (distance_b > 0).all()
    assert not perceptual(target, target).any()
    alone = perceptual(moved[:1], target[:1])
    torch.testing.assert_close(alone, distance_b[:1], rtol=1e-3, atol=1e-6)
    distance_b.sum().backward()  # type: ignore[no-untyped-call]
    assert moved.grad is not None
    nearer = moved.detach() - 1e-2 * moved.grad / moved.grad.norm() * (moved - target).norm()
    assert perceptual(nearer, target).sum() < distance_b.sum()
    assert not any(parameter.requires_grad for parameter in perceptual.vae.parameters())
