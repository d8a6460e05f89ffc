"""What is stored is what the stock pipeline does with the same prompt, noise and settings."""

from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from diffusers import FlowMatchEulerDiscreteScheduler, UniPCMultistepScheduler

from distillery.families import Request, family_named
from distillery.identity import SampleId, draw_noise, noise_seed
from distillery.stages.targets import check_student_grid
from distillery.store.embeddings import EmbeddingStore
from distillery.store.trajectories import TrajectoryStore, knots_of, schedule_at
from distillery.teacher import load_pipeline
from distillery.trajectory import record
from runs import CPU, SETTINGS, Run, make_run
from tiny import HEIGHT, LATENT_SHAPE, MAX_TOKENS, WIDTH, tiny_prompts, tiny_scheduler

WAN = family_named("wan")
TARGETS = SETTINGS["targets"]
NEGATIVE = SETTINGS["teacher"]["negative_prompt"]
PROMPTS = ["a red dog", "", "a blue cat on the hill", "a  bird\n in &lt;the house"]


@pytest.fixture(scope="module")
def pipeline(teacher: Path) -> Any:
    return load_pipeline(teacher, "float32", CPU)


@pytest.fixture(scope="module")
def run(teacher: Path, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A run of one chunk of one batch, so that a stock call can have the same batch."""
    changes = {"num_segments": 4, "batch_size": 9, "chunk_size": 9}
    made = make_run(
        tmp_path_factory.mktemp("parity"), teacher, targets=changes, student={"steps": 4}
    )
    made.encode("train")
    made.all_targets()
    return made


def stock_call(pipeline: Any, noise: torch.Tensor, **options: Any) -> torch.Tensor:
    """The stock pipeline's own call, to the final latents."""
    latents: torch.Tensor = pipeline(
        latents=noise,
        height=HEIGHT,
        width=WIDTH,
        num_frames=1,
        max_sequence_length=MAX_TOKENS,
        num_inference_steps=TARGETS["steps"],
        guidance_scale=TARGETS["guidance_scale"],
        output_type="latent",
        return_dict=False,
        **options,
    )[0]
    return latents


def by_prompt(prompts: list[str]) -> dict[str, Any]:
    """The options of a call with text."""
    return {"prompt": prompts, "negative_prompt": NEGATIVE}


def own_noise(prompt_ids: "pd.Series[str]") -> torch.Tensor:
    """The noise of each prompt's first sample, drawn as a user of the stock pipeline would."""
    seeds = [noise_seed(0, SampleId(prompt_id, 0)) for prompt_id in prompt_ids]
    generators = [torch.Generator().manual_seed(seed) for seed in seeds]
    return torch.stack([torch.randn(LATENT_SHAPE, generator=one) for one in generators])


def stock_states(pipeline: Any, noise: torch.Tensor, **options: Any) -> list[torch.Tensor]:
    """The noise, and the latents that the pipeline's own callback sees after each step."""
    states = [noise]

    def keep(_pipeline: Any, _step: int, _timestep: Any, tensors: dict[str, Any]) -> dict[str, Any]:
        states.append(tensors["latents"].clone())
        return tensors

    stock_call(pipeline, noise, callback_on_step_end=keep, **options)
    return states


def stored_states(run: Run) -> list[torch.Tensor]:
    """The stored states at each knot, all samples of the run."""
    store = TrajectoryStore(run.folder / "targets" / "manifest.json")
    assert (store.num_samples, store.num_knots) == (9, 5)
    assert [store.prompt_row(sample) for sample in range(9)] == list(range(9))
    return [
        torch.stack([store.states(sample, 0, knot)[1] for sample in range(9)]) for knot in range(5)
    ]


def test_stored_states_are_the_stock_pipelines_bit_for_bit(run: Run, pipeline: Any) -> None:
    table = tiny_prompts(9)
    store = EmbeddingStore(run.embeddings("train"), table)
    prompts = WAN.pad([store.row(row) for row in range(9)], MAX_TOKENS)["prompt_embeds"]
    negative = WAN.pad([store.negative] * 9, MAX_TOKENS)["prompt_embeds"]
    expected = stock_states(
        pipeline,
        own_noise(table["prompt_id"]),
        prompt_embeds=prompts,
        negative_prompt_embeds=negative,
    )
    for knot, (ours, theirs) in enumerate(zip(stored_states(run), expected, strict=True)):
        assert ours.equal(theirs), f"knot {knot}"
    assert not expected[0].allclose(expected[-1])


def test_stored_states_are_those_of_a_call_with_text(run: Run, pipeline: Any) -> None:
    """Within rounding only, since the text encoder sees another batch."""
    table = tiny_prompts(9)
    noise, prompts = own_noise(table["prompt_id"]), by_prompt(table["prompt"].tolist())
    expected = stock_states(pipeline, noise, **prompts)
    for ours, theirs in zip(stored_states(run), expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=2e-5)


def test_the_recorder_does_not_disturb(pipeline: Any) -> None:
    noise = draw_noise(0, [SampleId("a", 0)], LATENT_SHAPE)
    plain = stock_call(pipeline, noise, **by_prompt(["a red dog"]))
    with record(pipeline.scheduler, [0, 4]) as trajectory:
        recorded = stock_call(pipeline, noise, **by_prompt(["a red dog"]))
    assert recorded.equal(plain)
    assert trajectory.num_steps == 4
    assert trajectory.stack([0, 4]).equal(torch.stack([noise, plain], dim=1))
    assert "step" not in vars(pipeline.scheduler)


def test_embeddings_are_the_stock_pipelines(pipeline: Any) -> None:
    with torch.no_grad():  # as `WanPipeline.__call__` is; with gradients other kernels round
        expected, _ = pipeline.encode_prompt(
            PROMPTS, do_classifier_free_guidance=False, max_sequence_length=MAX_TOKENS
        )
    encoded = WAN.encode(pipeline, PROMPTS, MAX_TOKENS)
    assert not encoded[0]["prompt_embeds"].requires_grad
    assert WAN.pad(encoded, MAX_TOKENS)["prompt_embeds"].equal(expected)
    assert all(len(prompt["prompt_embeds"]) < MAX_TOKENS for prompt in encoded[:3])
    assert len(encoded[1]["prompt_embeds"]) == 1, "the empty prompt is its end token"


@pytest.mark.parametrize("row", range(len(PROMPTS)))
def test_an_embedding_does_not_depend_on_its_neighbours(pipeline: Any, row: int) -> None:
    """Trap 3."""
    alone = WAN.encode(pipeline, [PROMPTS[row]], MAX_TOKENS)[0]["prompt_embeds"]
    together = WAN.encode(pipeline, PROMPTS, MAX_TOKENS)[row]["prompt_embeds"]
    assert alone.shape == together.shape
    torch.testing.assert_close(alone, together, rtol=0, atol=1e-6)


def test_a_prompt_over_the_limit_is_refused_by_name(pipeline: Any) -> None:
    just_fits = " ".join(["dog"] * (MAX_TOKENS - 1))
    assert len(WAN.encode(pipeline, [just_fits], MAX_TOKENS)[0]["prompt_embeds"]) == MAX_TOKENS
    with pytest.raises(ValueError, match=rf"1 prompts.*{MAX_TOKENS} tokens.*\n.*13 tokens: 'dog"):
        WAN.encode(pipeline, ["a cat", just_fits + " dog"], MAX_TOKENS)


def test_stored_embeddings_are_read_by_row(run: Run, pipeline: Any) -> None:
    table = pd.read_parquet(run.prompts("train"))
    store = EmbeddingStore(run.embeddings("train"), table)
    for row, prompt in enumerate(table["prompt"]):
        expected = WAN.encode(pipeline, [prompt], MAX_TOKENS)[0]["prompt_embeds"]
        torch.testing.assert_close(store.row(row)["prompt_embeds"], expected, rtol=0, atol=1e-6)
    expected = WAN.encode(pipeline, [NEGATIVE], MAX_TOKENS)[0]["prompt_embeds"]
    torch.testing.assert_close(store.negative["prompt_embeds"], expected, rtol=0, atol=1e-6)


def fed(denoiser: torch.nn.Module, call: Any) -> list[dict[str, Any]]:
    """What the denoiser is given while `call` runs."""
    seen: list[dict[str, Any]] = []
    hook = denoiser.register_forward_pre_hook(
        lambda _module, args, kwargs: seen.append({**kwargs, "args": args}), with_kwargs=True
    )
    try:
        call()
    finally:
        hook.remove()
    return seen


def test_the_student_is_fed_as_the_stock_pipeline_feeds(run: Run, pipeline: Any) -> None:
    """Trap 2: the conditional branch of a call with prompts, tensor for tensor."""
    table = tiny_prompts(9)
    noise, prompts = own_noise(table["prompt_id"]), by_prompt(table["prompt"].tolist())
    stock = fed(pipeline.transformer, lambda: stock_call(pipeline, noise, **prompts))
    conditional = stock[::2]
    assert len(conditional) == TARGETS["steps"]

    trajectories = TrajectoryStore(run.folder / "targets" / "manifest.json")
    embeddings = EmbeddingStore(run.embeddings("train"), table)
    conditioning = WAN.pad([embeddings.row(row) for row in range(9)], MAX_TOKENS)
    for step, expected in enumerate(conditional):
        noisy = torch.stack([trajectories.states(sample, step, step)[0] for sample in range(9)])
        timestep = torch.tensor([trajectories.schedule.timesteps[step]] * 9)
        (ours,) = fed(
            pipeline.transformer,
            lambda noisy=noisy, timestep=timestep: WAN.predict(
                pipeline.transformer, noisy, timestep, conditioning
            ),
        )
        assert ours["args"] == expected["args"] == ()
        given = {name for name, value in expected.items() if value is not None}
        assert {name for name, value in ours.items() if value is not None} == given
        torch.testing.assert_close(
            ours["hidden_states"], expected["hidden_states"], rtol=0, atol=0 if step == 0 else 2e-5
        )
        assert ours["timestep"].equal(expected["timestep"])
        assert ours["timestep"].dtype == expected["timestep"].dtype
        torch.testing.assert_close(
            ours["encoder_hidden_states"], expected["encoder_hidden_states"], rtol=0, atol=1e-6
        )


def generate(pipeline: Any, noise: torch.Tensor, guidance_scale: float = 3.0) -> torch.Tensor:
    """The final latents of one prompt, from our request."""
    conditioning = WAN.encode(pipeline, ["a red dog", NEGATIVE], MAX_TOKENS)
    request = Request(
        noise=noise,
        conditioning=WAN.pad(conditioning[:1] * len(noise), MAX_TOKENS),
        negative=WAN.pad(conditioning[1:] * len(noise), MAX_TOKENS),
        steps=4,
        guidance_scale=guidance_scale,
        height=HEIGHT,
        width=WIDTH,
        decode=False,
    )
    with record(pipeline.scheduler, [0, 4]) as trajectory:
        assert WAN.generate(pipeline, request) == []
    return trajectory.states[4]


def test_targets_depend_on_noise_prompt_and_guidance(pipeline: Any) -> None:
    """Trap 1: beyond what the noise itself contributes, the network must see it."""
    noise = draw_noise(0, [SampleId("a", 0), SampleId("b", 0)], LATENT_SHAPE)
    states = generate(pipeline, noise)
    assert not states[0].allclose(states[1])
    embeds = WAN.pad(WAN.encode(pipeline, ["a red dog"], MAX_TOKENS), MAX_TOKENS)
    timestep = torch.tensor([500])
    predictions = [WAN.predict(pipeline.transformer, one[None], timestep, embeds) for one in noise]
    assert not predictions[0].allclose(predictions[1])
    assert not generate(pipeline, noise, guidance_scale=1.0).allclose(states)


@pytest.mark.parametrize(
    "steps", [1, 2, 3, 4, 6, 8, 12, 20, 24, 25, 28, 30, 40, 48, 50, 60, 96, 100]
)
def test_the_students_grid_is_part_of_the_teachers(steps: int) -> None:
    scheduler = tiny_scheduler()
    for num_segments in (n for n in range(1, min(steps, 12) + 1) if steps % n == 0):
        knots = schedule_at(WAN.schedule(scheduler, steps), knots_of(steps, num_segments))
        check_student_grid(WAN, scheduler, knots, steps)
        assert knots.sigmas[-1] == 0.0
        assert knots.alphas[-1] == 1.0


def test_the_schedule_is_what_the_pipeline_walks(pipeline: Any) -> None:
    before = pipeline.scheduler.timesteps.clone()
    schedule = WAN.schedule(pipeline.scheduler, 7)
    assert pipeline.scheduler.timesteps.equal(before), "the scheduler given is not changed"
    pipeline.scheduler.set_timesteps(7)
    assert list(schedule.timesteps) == pipeline.scheduler.timesteps.tolist()
    assert list(schedule.sigmas) == pytest.approx(pipeline.scheduler.sigmas.tolist())
    assert all(isinstance(timestep, int) for timestep in schedule.timesteps)


def test_the_few_step_scheduler_takes_straight_steps() -> None:
    """Flow Euler: noisy + (next sigma - sigma) * prediction, at every step."""
    scheduler = WAN.few_step_scheduler(tiny_scheduler(), 4)
    scheduler.set_timesteps(4)
    generator = torch.Generator().manual_seed(0)
    noisy = torch.randn(1, *LATENT_SHAPE, generator=generator)
    for step, timestep in enumerate(scheduler.timesteps):
        prediction = torch.randn(noisy.shape, generator=generator)
        span = scheduler.sigmas[step + 1] - scheduler.sigmas[step]
        expected = noisy + span * prediction
        noisy = scheduler.step(prediction, timestep, noisy, return_dict=False)[0]
        torch.testing.assert_close(noisy, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("scheduler", "problem"),
    [
        (FlowMatchEulerDiscreteScheduler(shift=3.0), "is FlowMatchEuler.*not part of its grid"),
        (UniPCMultistepScheduler(prediction_type="flow_prediction"), "without use_flow_sigmas"),
        (
            UniPCMultistepScheduler(
                prediction_type="flow_prediction",
                use_flow_sigmas=True,
                flow_shift=3.0,
                final_sigmas_type="sigma_min",
            ),
            "would walk timesteps",
        ),
    ],
)
def test_a_teacher_whose_grid_does_not_fit_is_refused(scheduler: Any, problem: str) -> None:
    knots = schedule_at(WAN.schedule(scheduler, 24), knots_of(24, 4))
    with pytest.raises(ValueError, match=problem):
        check_student_grid(WAN, scheduler, knots, 24)


def test_a_teacher_that_predicts_no_flow_is_refused() -> None:
    with pytest.raises(ValueError, match="'epsilon', a Wan predicts the flow"):
        WAN.prediction_type(UniPCMultistepScheduler())


@pytest.mark.parametrize(
    ("height", "problem"), [(40, "teacher.height is 40.*use 32"), (8, "use 16")]
)
def test_a_size_that_does_not_fit_comes_with_one_that_does(
    pipeline: Any, height: int, problem: str
) -> None:
    assert WAN.latent_shape(pipeline, HEIGHT, WIDTH) == LATENT_SHAPE
    with pytest.raises(ValueError, match=problem):
        WAN.latent_shape(pipeline, height, WIDTH)
