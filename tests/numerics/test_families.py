"""Every adapter against the stock pipeline of its family: what is fed, what is stored, what lands.

The teachers are real Diffusers classes of tiny size with random weights; see tests/families.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import pandas as pd
import pytest
import torch

from distillery.families import Setting, family_named, grid_of
from distillery.families.recording import NetworkCall, Step, trace, watched
from distillery.families.text import check_lengths, find_cut, find_long
from distillery.generation.trajectory import record
from distillery.noise import SampleId, noise_seed
from distillery.store.embeddings import EmbeddingStore
from distillery.store.trajectories import TrajectoryStore
from distillery.student.schedule import student_scheduler
from distillery.teacher.folder import find_teacher
from distillery.teacher.loading import load_scheduler
from distillery.training.data import SegmentDataset
from families import CASES
from families.calls import generators
from families.case import FamilyCase
from families.made import NUM_PROMPTS, made_run
from runs import Run, loaded

CLOSE = 2e-5
"""Between texts encoded in batches of different size."""
LANDED = 1e-4
"""Of a knot: as far from it may a step with its target end."""


@dataclass
class Subject:
    """A family under test: its case, a run with stored trajectories, and its stock pipeline."""

    case: FamilyCase
    run: Run
    pipeline: Any

    @property
    def family(self) -> Any:
        return family_named(self.case.family)

    @property
    def table(self) -> pd.DataFrame:
        return pd.read_parquet(self.run.prompts("train"))

    @property
    def trajectories(self) -> TrajectoryStore:
        return TrajectoryStore(self.run.folder / "targets" / "manifest.json")

    def states(self, knot: int) -> torch.Tensor:
        """The stored states of all prompts at a knot."""
        store = self.trajectories
        return torch.stack([store.states(row, 0, knot)[1] for row in range(NUM_PROMPTS)])

    @property
    def seeds(self) -> list[int]:
        return [noise_seed(0, SampleId(prompt_id, 0)) for prompt_id in self.table["prompt_id"]]

    def conditioning(self) -> Any:
        """The stored embeddings of all prompts, as a batch."""
        store = EmbeddingStore(self.run.embeddings("train"), self.table)
        rows = [store.row(row) for row in range(NUM_PROMPTS)]
        return self.family.pad(rows, self.case.length)

    @cached_property
    def stock(self) -> list[torch.Tensor]:
        """Of the stock call as the run's settings are."""
        return self.stock_call()

    @cached_property
    def unguided(self) -> torch.Tensor:
        """Where the stock call ends without guidance."""
        return self.stock_call(**{self.case.scale_argument: 1.0})[-1]

    def stock_call(self, **options: Any) -> list[torch.Tensor]:
        """The states that the stock pipeline's own call with texts makes."""
        return [step.after.float() for step in self.stock_steps(**options)]

    def stock_steps(self, **options: Any) -> list[Step]:
        """The steps of that call."""
        arguments = {
            **self.case.stock_call,
            "prompt": self.table["prompt"].tolist(),
            "generator": generators(self.seeds),
            "output_type": "latent",
        }
        if "negative_prompt" in arguments:
            arguments["negative_prompt"] = [arguments["negative_prompt"]] * NUM_PROMPTS
        return trace(self.pipeline, arguments | options)


@pytest.fixture(scope="module", params=CASES, ids=lambda case: case.name)
def subject(request: Any, tmp_path_factory: pytest.TempPathFactory) -> Subject:
    case: FamilyCase = request.param
    run = made_run(tmp_path_factory, case, student={"steps": case.steps})
    return Subject(case, run, loaded(run.config.teacher))


def test_stored_states_are_the_stock_pipelines_bit_for_bit(subject: Subject) -> None:
    stock = subject.stock
    assert len(stock) == subject.case.steps
    for knot, theirs in enumerate(stock, start=1):
        assert subject.states(knot).equal(theirs), f"knot {knot}"
    assert not stock[0].allclose(stock[-1])


def test_the_first_state_is_the_noise(subject: Subject) -> None:
    """At the scheduler's own scale: sigma_max for a variance-exploding one."""
    states = subject.states(0)
    noise = subject.family.noise(subject.pipeline, subject.seeds, subject.case.setting)
    scale = (states / noise).flatten()
    assert torch.allclose(scale, scale[0].expand_as(scale), rtol=1e-5)


def test_embeddings_do_not_depend_on_their_neighbours(subject: Subject) -> None:
    """Trap 3."""
    prompts = ["a red dog", "", "a blue cat on the hill"]
    together = subject.family.encode(subject.pipeline, prompts, subject.case.length)
    for prompt, expected in zip(prompts, together, strict=True):
        (alone,) = subject.family.encode(subject.pipeline, [prompt], subject.case.length)
        assert alone.keys() == expected.keys()
        for name, value in alone.items():
            assert not value.requires_grad
            assert value.shape == expected[name].shape
            torch.testing.assert_close(value, expected[name], rtol=0, atol=CLOSE)


def test_targets_depend_on_noise_prompt_and_guidance(subject: Subject) -> None:
    """Trap 1: beyond what the noise itself contributes, the network must see it."""
    states, conditioning = subject.states(0)[:1], subject.conditioning()
    schedule = subject.trajectories.recipe.schedule
    timestep = torch.tensor([schedule.timesteps[0]])
    network = getattr(subject.pipeline, subject.case.denoiser_at(schedule.timesteps[0]))

    def predict(noisy: torch.Tensor, row: int) -> torch.Tensor:
        prompt = {name: value[row : row + 1] for name, value in conditioning.items()}
        with torch.no_grad():
            return subject.family.predict(network, noisy, timestep, prompt, subject.case.setting)

    assert not predict(states, 0).allclose(predict(-states, 0), atol=1e-4)
    assert not predict(states, 0).allclose(predict(states, 1), atol=1e-6)
    if subject.case.guidance_scale > 1.0:
        assert not subject.unguided.allclose(subject.states(subject.case.steps), atol=1e-4)
    if subject.case.guidance_scale_2 is not None:
        alike = subject.stock_call(guidance_scale_2=None)[-1]
        assert not alike.allclose(subject.states(subject.case.steps), atol=1e-4)


def test_the_recorder_does_not_disturb(subject: Subject) -> None:
    with record(subject.pipeline.scheduler, [subject.case.steps]) as trajectory:
        recorded = subject.stock_call()
    assert recorded[-1].equal(subject.stock[-1])
    assert trajectory.states[subject.case.steps].equal(subject.stock[-1])
    assert "step" not in vars(subject.pipeline.scheduler)


def test_the_student_is_fed_as_the_stock_pipeline_feeds(subject: Subject) -> None:
    """Trap 2: as an unguided call, tensor for tensor, at every step; a trace is the oracle."""
    grid = subject.trajectories.recipe.schedule
    network_config = getattr(subject.pipeline, subject.family.denoisers[0]).config
    is_told = subject.family.has_guidance_embedding(network_config)
    steps = subject.stock_steps(**({} if is_told else {subject.case.scale_argument: 1.0}))
    assert len(steps) == subject.case.steps
    conditioning, masks = subject.conditioning(), subject.case.masks
    for number, step in enumerate(steps):
        (theirs,) = step.calls
        assert theirs.component == subject.case.denoiser_at(grid.timesteps[number])
        noisy = step.state / grid.scales[number]
        timestep = torch.tensor([grid.timesteps[number]] * NUM_PROMPTS)
        network = getattr(subject.pipeline, theirs.component)
        calls: list[NetworkCall] = []
        with watched(theirs.component, network, calls), torch.no_grad():
            subject.family.predict(network, noisy, timestep, conditioning, subject.case.setting)
        (ours,) = calls
        assert_same_inputs(hide_masked(ours.arguments, masks), hide_masked(theirs.arguments, masks))


def test_the_teacher_is_its_own_perfect_student(subject: Subject) -> None:
    """The oracle: our predictions in the teacher's own sampler, from noise to the last latents.

    Without guidance, since a student has none; a network that is told its guidance keeps it.
    """
    setting = Setting(subject.case.size, 1.0)
    scheduler = load_scheduler(find_teacher(subject.run.config.teacher), subject.run.config.teacher)
    subject.family.set_timesteps(
        scheduler, subject.case.steps, subject.trajectories.recipe.latent_shape
    )
    schedule = grid_of(
        subject.family, scheduler, subject.case.steps, subject.trajectories.recipe.latent_shape
    )
    noisy, conditioning = subject.states(0), subject.conditioning()
    for step, timestep in enumerate(scheduler.timesteps):
        network = getattr(subject.pipeline, subject.case.denoiser_at(float(timestep)))
        with torch.no_grad():
            prediction = subject.family.predict(
                network,
                noisy / schedule.scales[step],
                timestep.repeat(NUM_PROMPTS),
                conditioning,
                setting,
            )
        noisy = scheduler.step(prediction, timestep, noisy, return_dict=False)[0]
    torch.testing.assert_close(noisy, subject.unguided, rtol=1e-4, atol=1e-4)


def test_a_step_with_the_target_lands_on_the_next_knot(subject: Subject) -> None:
    """With the scheduler that the student is exported with."""
    for steps in (1, 2, 4):
        missed = misses(subject, steps)
        assert len(missed) == steps
        assert all(distance < LANDED for distance in missed)


def misses(subject: Subject, steps: int) -> list[float]:
    """How far each step with its target ends from the next knot, as a fraction of that state."""
    distances = []
    folder = subject.run.folder
    dataset = SegmentDataset(
        folder / "targets" / "manifest.json",
        subject.run.embeddings("train"),
        subject.run.prompts("train"),
        steps,
    )
    scheduler = student_scheduler(dataset.recipe, steps)
    subject.family.set_timesteps(scheduler, steps, subject.trajectories.recipe.latent_shape)
    scales = dataset.usual.grid.scales
    for segment, timestep in enumerate(scheduler.timesteps):
        batch = dataset.__getitems__([row * steps + segment for row in range(NUM_PROMPTS)])
        # The scheduler's place is set by hand, and it may remember no earlier step.
        if hasattr(scheduler, "set_begin_index"):
            scheduler.set_begin_index(segment)
            scheduler._step_index = None
        landed = scheduler.step(
            batch.target, timestep, batch.noisy * scales[segment], return_dict=False
        )[0]
        expected = subject.states((segment + 1) * subject.case.steps // steps)
        distances.append(float((landed - expected).norm() / expected.norm()))
    return distances


def test_a_prompt_over_the_limit_is_named_with_what_would_be_cut(subject: Subject) -> None:
    readers = subject.family.readers(subject.pipeline, subject.case.length)
    limit = min(subject.case.length, *(reader.limit for reader in readers))
    check_lengths(readers, ["a dog"])
    with pytest.raises(ValueError, match=r"would lose '.*zebra"):
        check_lengths(readers, ["a dog", "dog " * limit + "zebra"])


def test_a_prompt_is_long_where_its_tokens_are_more_than_are_kept(subject: Subject) -> None:
    for reader in subject.family.readers(subject.pipeline, subject.case.length):
        texts = [sign * number for sign in "z~é" for number in range(reader.limit + 3)]
        cut = [text for text in texts if find_cut(reader, text) is not None]
        assert cut
        assert find_long(reader, texts) == cut


def hide_masked(arguments: dict[str, Any], masks: Mapping[str, str]) -> dict[str, Any]:
    """Zeros at masked tokens: that they have no influence, the equality of the states shows."""
    hidden = {name: arguments[name] * arguments[mask][..., None] for name, mask in masks.items()}
    return arguments | hidden


def assert_same_inputs(ours: Any, theirs: Any, name: str = "") -> None:
    """Equal arguments; absent and None are the same, and a timestep may stand for a batch's."""
    if isinstance(theirs, dict):
        keys = {key for key in ours | theirs if ours.get(key) is not None or theirs.get(key)}
        for key in keys if theirs else ():
            assert_same_inputs(ours.get(key), theirs.get(key), f"{name}.{key}")
    elif isinstance(theirs, torch.Tensor):
        assert isinstance(ours, torch.Tensor), name
        assert ours.dtype == theirs.dtype, name
        torch.testing.assert_close(
            ours, theirs.expand_as(ours), rtol=0, atol=0, msg=lambda text: f"{name}: {text}"
        )
    else:
        assert ours == theirs, name
