"""A walk that is guided in some of its steps, against classifier-free guidance written out.

The teachers are real Diffusers classes of tiny size with random weights; see tests/families.
"""

from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import diffusers
import pytest
import torch

from distillery.config.jobs import SamplesJob
from distillery.families import Request, Setting, Size, family_named, grid_of
from distillery.families.recording import Step, recording
from distillery.generation.calling import draw
from distillery.generation.sample_maker import SampleMaker
from distillery.generation.teacher_walk import TeacherWalk
from distillery.generation.trajectory import record, walking
from distillery.noise import SampleId, noise_seed
from distillery.store.embeddings import EmbeddingStore
from distillery.store.tables import read_table
from distillery.store.trajectories import TrajectoryStore
from distillery.teacher.folder import find_teacher
from distillery.teacher.loading import load_scheduler
from families import CASES
from families.case import FamilyCase
from families.made import NUM_PROMPTS, fill, made_run, made_teacher
from runs import CPU, Run, family_run, loaded
from traced.whole import arguments, stock_teacher, traced_run

GUIDED = [case for case in CASES if case.guidance_scale > 1.0]
ROWS = range(3)
LATE, EARLY, MIDDLE = (0.25, 1.0), (0.0, 0.5), (0.25, 0.75)
SDXL = next(case for case in CASES if case.name == "sdxl")
SOLVERS = {
    "of one step": diffusers.EulerDiscreteScheduler,
    "of two steps": diffusers.DPMSolverMultistepScheduler,
    "that corrects": diffusers.UniPCMultistepScheduler,
    "that looks twice": diffusers.HeunDiscreteScheduler,
    "that remembers four": diffusers.PNDMScheduler,
}


@dataclass
class Subject:
    """A family under test: its case, a run with embeddings, and its stock pipeline."""

    case: FamilyCase
    run: Run
    pipeline: Any

    @property
    def family(self) -> Any:
        return family_named(self.case.family)

    @cached_property
    def request(self) -> Request:
        """A guided call of a few prompts."""
        table = read_table(self.run.prompts("train"))
        store = EmbeddingStore(self.run.embeddings("train"), table)
        length = self.case.max_tokens or self.family.max_sequence_length
        ids = table["prompt_id"]
        return Request(
            seeds=[noise_seed(0, SampleId(ids[row], 0)) for row in ROWS],
            conditioning=self.family.pad([store.row(row) for row in ROWS], length),
            negative=self.family.pad([store.negative_row(row) for row in ROWS], length),
            steps=self.case.steps,
            setting=self.case.setting,
            decode=False,
            dtype=torch.float32,
        )

    def drawn(self, interval: tuple[float, float] | None) -> list[Step]:
        """The steps of a walk that is guided within an interval."""
        setting = replace(self.request.setting, guidance_interval=interval)
        with recording(self.pipeline) as steps, torch.no_grad():
            draw(self.family, self.pipeline, replace(self.request, setting=setting))
        return steps

    def predict(self, noisy: torch.Tensor, timestep: torch.Tensor, setting: Setting) -> Any:
        """The prediction of both branches, of the network that is called at a timestep."""
        network = getattr(self.pipeline, self.case.denoiser_at(float(timestep)))
        times = timestep.repeat(len(ROWS))
        with torch.no_grad():
            return [
                self.family.predict(network, noisy, times, given, setting)
                for given in (self.request.conditioning, self.request.negative)
            ]


@pytest.fixture(scope="module", params=GUIDED, ids=lambda case: case.name)
def subject(request: Any, tmp_path_factory: pytest.TempPathFactory) -> Subject:
    case: FamilyCase = request.param
    run = made_run(tmp_path_factory, case, student={"steps": case.steps})
    return Subject(case, run, loaded(run.config.teacher))


def written_out(subject: Subject, interval: tuple[float, float]) -> list[torch.Tensor]:
    """The states of a guided walk by its formula: in guided steps the negative prediction and the
    scale times the difference, in others the conditional prediction, or what a network that takes
    the scale as an input says to 1.0."""
    case, request, folder = subject.case, subject.request, find_teacher(subject.run.config.teacher)
    scheduler = load_scheduler(folder, subject.run.config.teacher)
    shape = TrajectoryStore(subject.run.files.targets).recipe.latent_shape
    schedule = grid_of(subject.family, scheduler, case.steps, shape)
    subject.family.set_timesteps(scheduler, case.steps, shape)
    noise = subject.family.noise(subject.pipeline, request.seeds, request.setting)
    states = [noise * getattr(scheduler, "init_noise_sigma", 1.0)]
    is_told = subject.family.has_guidance_embedding(folder.denoiser_config)
    for step, timestep in enumerate(scheduler.timesteps):
        is_guided = interval[0] <= (step + 0.5) / case.steps < interval[1]
        setting = Setting(case.size, case.guidance_scale if is_guided else 1.0)
        noisy = states[-1] / schedule.scales[step]
        conditional, negative = subject.predict(noisy, timestep, setting)
        found = conditional
        if is_guided and not is_told:
            is_second = case.denoiser_at(float(timestep)) != "transformer"
            scale = (case.guidance_scale_2 if is_second else None) or case.guidance_scale
            found = negative + scale * (conditional - negative)
            if case.family == "qwen_image":
                length = conditional.norm(dim=-1, keepdim=True)
                found = found * length / found.norm(dim=-1, keepdim=True)
        states.append(scheduler.step(found, timestep, states[-1], return_dict=False)[0])
    return states


@pytest.mark.parametrize("interval", [LATE, EARLY, MIDDLE])
def test_steps_outside_of_the_interval_are_unguided(
    subject: Subject, interval: tuple[float, float]
) -> None:
    expected = written_out(subject, interval)
    steps = subject.drawn(interval)
    assert len(steps) == subject.case.steps == 4
    for number, step in enumerate(steps):
        torch.testing.assert_close(step.after, expected[number + 1], rtol=1e-4, atol=1e-4)
    for other in (None, *({LATE, EARLY, MIDDLE} - {interval})):
        assert not subject.drawn(other)[-1].after.allclose(steps[-1].after, atol=1e-4)


def test_unguided_steps_ask_for_one_prediction(subject: Subject) -> None:
    """So many samples pass through the networks as the plan counts."""
    passed: list[int] = []
    config = find_teacher(subject.run.config.teacher).denoiser_config
    networks = [getattr(subject.pipeline, name, None) for name in subject.family.denoisers]
    hooks = [
        network.register_forward_pre_hook(
            lambda _network, args, given: passed.append(
                len(args[0] if args else given["hidden_states"])
            ),
            with_kwargs=True,
        )
        for network in networks
        if network is not None
    ]
    subject.drawn(MIDDLE)
    for hook in hooks:
        hook.remove()
    setting = replace(subject.request.setting, guidance_interval=MIDDLE)
    calls = subject.family.calls_per_walk(config, setting, subject.case.steps)
    assert sum(passed) == len(ROWS) * calls
    assert calls == (4 if subject.family.has_guidance_embedding(config) else 6)


def in_parts(subject: Subject, cuts: tuple[int, ...]) -> torch.Tensor:
    """The end of a walk that is guided everywhere, in several calls."""
    state = None
    for start, stop in zip((0, *cuts[:-1]), cuts, strict=True):
        request = replace(subject.request, latents=state)
        part = range(start, stop)
        with walking(subject.pipeline.scheduler, part, follows_on=start > 0) as reached:
            subject.family.generate(subject.pipeline, request)
        state = reached.state
    assert state is not None
    return state


def test_a_walk_in_parts_is_that_of_one_call_bit_for_bit(subject: Subject) -> None:
    assert in_parts(subject, (1, 3, 4)).equal(subject.drawn(None)[-1].after)


@pytest.fixture(scope="module")
def sdxl(tmp_path_factory: pytest.TempPathFactory) -> Subject:
    run = made_run(tmp_path_factory, SDXL, student={"steps": SDXL.steps})
    return Subject(SDXL, run, loaded(run.config.teacher))


@pytest.mark.parametrize("solver", SOLVERS.values(), ids=SOLVERS)
def test_a_solver_keeps_what_it_knows_of_the_steps_before(sdxl: Subject, solver: Any) -> None:
    before = sdxl.pipeline.scheduler
    sdxl.pipeline.scheduler = solver.from_config(before.config)
    try:
        whole = sdxl.drawn(None)
        assert in_parts(sdxl, (1, 3, len(whole))).equal(whole[-1].after)
        # What is drawn next does not begin with it.
        assert sdxl.drawn(None)[-1].after.equal(whole[-1].after)
        late = sdxl.drawn(LATE)
        assert len(late) == len(whole)
        off = sum((look + 0.5) / len(whole) < LATE[0] for look in range(len(whole)))
        rows = [sum(len(call.arguments["sample"]) for call in step.calls) for step in late]
        assert rows == [len(ROWS)] * off + [2 * len(ROWS)] * (len(whole) - off)
    finally:
        sdxl.pipeline.scheduler = before


# ---- stages --------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Trajectories of a teacher that is guided in the middle alone, by a solver of scale."""
    teacher = made_teacher(tmp_path_factory, SDXL)
    models = {
        "teacher": {"source": "teacher"},
        "everywhere": {"source": "teacher", "guidance_interval": [0.0, 1.0]},
    }
    run = family_run(
        SDXL,
        tmp_path_factory.mktemp("stored"),
        teacher,
        embeddings={"batch_size": NUM_PROMPTS},
        targets={"num_segments": 4, "guidance_interval": list(MIDDLE)},
        samples={"models": models},
    )
    fill(run)
    return run


def test_stored_trajectories_are_those_and_carry_it(stored: Run, sdxl: Subject) -> None:
    store = TrajectoryStore(stored.files.targets)
    assert store.recipe.guidance_interval == MIDDLE
    assert "guidance_interval" not in TrajectoryStore(sdxl.run.files.targets).recipe.to_json()
    for row in ROWS:
        for knot, step in enumerate(sdxl.drawn(MIDDLE), start=1):
            state = store.states(row, 0, knot)[1]
            torch.testing.assert_close(state, step.after[row], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("segments", [1, 2, 4])
def test_a_walk_from_a_stored_state_is_guided_where_the_trajectory_is(
    stored: Run, segments: int
) -> None:
    store = TrajectoryStore(stored.files.targets)
    embeddings = EmbeddingStore(stored.embeddings("train"), read_table(stored.prompts("train")))
    walk = TeacherWalk.load(stored.config.teacher, store.recipe, embeddings, segments, None, CPU)
    each = SDXL.steps // segments
    for segment in range(segments):
        first, last = store.states(4, segment * each, (segment + 1) * each)
        found = walk.advance(first[None], segment, [4])
        torch.testing.assert_close(found[0], last, rtol=1e-4, atol=1e-4)


def maker_of(run: Run, model: str) -> SampleMaker:
    return SampleMaker(
        run.job(f"samples-{model}", SamplesJob),
        read_table(run.prompts("eval")),
        run.embeddings("eval"),
        None,
        run.folder / "samples" / model,
        CPU,
        run.reporter(),
    )


def test_the_teachers_images_are_drawn_as_its_trajectories(stored: Run, sdxl: Subject) -> None:
    makers = {model: maker_of(stored, model) for model in ("teacher", "everywhere")}
    assert {model: maker.num_calls for model, maker in makers.items()} == {
        "teacher": 4 + 2,
        "everywhere": 4 + 4,
    }
    plain, ours = (makers[name]._recipe() for name in ("everywhere", "teacher"))
    assert ours == plain | {"guidance_interval": list(MIDDLE)}
    size = makers["teacher"].unit
    latents = {model: maker._run([0], size).latents[0] for model, maker in makers.items()}
    request = makers["teacher"]._calls().request([0])
    expected = Subject(SDXL, stored, sdxl.pipeline)
    expected.request = replace(request, decode=False)
    torch.testing.assert_close(
        latents["teacher"], expected.drawn(MIDDLE)[-1].after[0], rtol=1e-4, atol=1e-4
    )
    assert not latents["everywhere"].allclose(latents["teacher"], atol=1e-3)


@pytest.mark.parametrize("name", ["ZImagePipeline", "Flux2KleinPipeline", "AllegroPipeline"])
def test_a_traced_teacher_is_guided_so_too(name: str, tmp_path: Path) -> None:
    """The first step is that of an unguided stock call, the last that of its prediction alone.
    Allegro's call sets its timesteps twice."""
    run = traced_run(
        name,
        tmp_path,
        targets={"steps": 4, "num_segments": 4, "guidance_scale": 3.0}
        | {"guidance_interval": list(MIDDLE)},
    )
    run.encode("train")
    run.all_targets()
    store, table = TrajectoryStore(run.files.targets), read_table(run.prompts("train"))
    family, row = family_named(store.recipe.family, store.recipe.signature), 3
    states = [store.states(row, 0, knot)[1][None] for knot in range(1, 5)]
    pipeline = stock_teacher(run)
    seed = noise_seed(0, SampleId(table["prompt_id"][row], 0))
    given = arguments(run, table["prompt"][row], seed, family.no_guidance, 4)
    with record(pipeline.scheduler, [1, 2]) as unguided:
        pipeline(**given, output_type="latent")
    torch.testing.assert_close(states[0], unguided.states[1], rtol=1e-4, atol=1e-4)
    assert not states[1].allclose(unguided.states[2], atol=1e-4)
    embeddings = EmbeddingStore(run.embeddings("train"), table)
    family.set_timesteps(pipeline.scheduler, 4, store.recipe.latent_shape)
    timestep = pipeline.scheduler.timesteps[3]
    with torch.no_grad():
        prediction = family.predict(
            getattr(pipeline, family.denoisers[0]),
            states[2],
            timestep[None],
            family.pad([embeddings.row(row)], 0),
            Setting(Size.of(store.recipe), 1.0),
        )
    if hasattr(pipeline.scheduler, "set_begin_index"):
        pipeline.scheduler.set_begin_index(3)
    end = pipeline.scheduler.step(prediction, timestep, states[2], return_dict=False)[0]
    torch.testing.assert_close(states[3], end, rtol=1e-4, atol=1e-4)
