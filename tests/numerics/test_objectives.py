"""Secants land, the teacher is its own perfect student, and the loss curve is what it was.

After a change that is meant to change the numbers, write the golden losses again, look at the
difference, and commit it with the change:

    PYTHONPATH=workflow:tests python tests/numerics/test_objectives.py
"""

from pathlib import Path

import pandas as pd
import pytest
import torch
from diffusers import UniPCMultistepScheduler

import tiny
from distillery.config.jobs import EmbeddingsJob, TargetsJob
from distillery.config.run import Embeddings, Targets
from distillery.config.teacher import Teacher
from distillery.generation.embeddings import make_embeddings
from distillery.generation.targets import make_targets
from distillery.model_folder import load_denoiser
from distillery.schedule import from_prediction
from distillery.store.shards import merge_targets
from distillery.telemetry import Reporter
from distillery.training.objectives import sample_losses, segment_target
from in_process import open_dataset
from training_phases import phases

GOLDEN = Path(__file__).parent / "golden" / "segment_losses.txt"
SHAPE = (2, 4, 1, 6, 6)
CPU = torch.device("cpu")


def states(seed=0):
    """Two states of nothing in particular: any two have a secant."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(SHAPE, generator=generator), torch.randn(SHAPE, generator=generator)


def relative_error(ours, theirs):
    return float((ours - theirs).norm() / theirs.norm())


@pytest.mark.parametrize(
    "prediction_type", ["epsilon", "v_prediction", "sample", "flow_prediction"]
)
def test_one_first_order_unipc_step_lands_on_the_next_state(prediction_type):
    is_flow = prediction_type == "flow_prediction"
    scheduler = UniPCMultistepScheduler(
        prediction_type=prediction_type,
        use_flow_sigmas=is_flow,
        flow_shift=3.0 if is_flow else 1.0,
        solver_order=1,
        disable_corrector=[0, 1, 2, 3],
    )
    scheduler.set_timesteps(4)
    noisy_j, noisy_k = states()
    for number, timestep in enumerate(scheduler.timesteps):
        here, there = (
            scheduler._sigma_to_alpha_sigma_t(scheduler.sigmas[number + after]) for after in (0, 1)
        )
        target = segment_target(prediction_type, noisy_j, noisy_k, *here, *there)
        landed = scheduler.step(target, timestep, noisy_j).prev_sample
        assert relative_error(landed, noisy_k) < 1e-4


def test_the_flow_target_is_the_mean_velocity():
    noisy_j, noisy_k = states()
    here, there = torch.tensor(0.9), torch.tensor(0.5)
    target = segment_target("flow_prediction", noisy_j, noisy_k, 1 - here, here, 1 - there, there)
    torch.testing.assert_close(target, (noisy_j - noisy_k) / (here - there))


def test_on_a_straight_path_every_type_gives_back_clean_and_noise():
    clean, noise = states()
    alpha, sigma = torch.tensor([0.1, 0.7]), torch.tensor([0.99, 0.6])
    noisy = [alpha[i] * clean + sigma[i] * noise for i in range(2)]
    for prediction_type in ("epsilon", "v_prediction", "sample", "flow_prediction"):
        target = segment_target(prediction_type, *noisy, alpha[0], sigma[0], alpha[1], sigma[1])
        found = from_prediction(prediction_type, target, noisy[0], alpha[0], sigma[0])
        assert relative_error(found[0], clean) < 1e-4
        assert relative_error(found[1], noise) < 1e-4


def test_a_sample_counts_the_same_whatever_its_neighbours():
    prediction, target = states()
    together = sample_losses(prediction, target)
    alone = [sample_losses(prediction[row : row + 1], target[row : row + 1]) for row in range(2)]
    assert torch.equal(together, torch.cat(alone))
    assert together[0].item() == pytest.approx(float(((prediction - target)[0] ** 2).mean()))


@pytest.fixture(scope="module")
def stores(data):
    """The tiny store of trajectories, read for each objective; 4 student steps."""
    return {name: open_dataset(data, 4, name) for name in ("segment", "direct", "reflow")}


def solved(dataset, batch):
    """(clean, noise) that a batch's target stands for at its states."""
    levels = [
        torch.tensor(values)[batch.segment].view(-1, 1, 1, 1, 1)
        for values in (dataset.usual.grid.alphas, dataset.usual.grid.sigmas)
    ]
    return from_prediction(dataset.recipe.prediction_type, batch.target, batch.noisy, *levels)


def test_direct_asks_every_knot_for_the_clean_end(stores):
    segments, direct = (stores[name].__getitems__(list(range(8))) for name in ("segment", "direct"))
    assert direct.noisy.equal(segments.noisy)
    ends = solved(stores["segment"], segments)[0][3::4].repeat_interleave(4, 0)
    assert relative_error(solved(stores["direct"], direct)[0], ends) < 1e-4
    assert relative_error(direct.target[3::4], segments.target[3::4]) < 1e-5
    assert relative_error(direct.target[::4], segments.target[::4]) > 1e-3


def test_reflow_walks_the_straight_line_between_a_trajectorys_ends(stores):
    segments, reflow = (stores[name].__getitems__(list(range(8))) for name in ("segment", "reflow"))
    assert relative_error(reflow.noisy[::4], segments.noisy[::4]) < 1e-6, "it starts at the noise"
    assert relative_error(reflow.noisy[1::4], segments.noisy[1::4]) > 1e-3, "and leaves the curve"
    for row in range(0, 8, 4):  # a flow's velocity is the same all along a line
        same = reflow.target[row : row + 1].expand(4, *reflow.target.shape[1:])
        assert relative_error(reflow.target[row : row + 4], same) < 1e-5
    clean, noise = solved(stores["reflow"], reflow)
    assert relative_error(clean[::4], clean[3::4]) < 1e-4
    assert relative_error(noise[::4], segments.noisy[::4]) < 1e-2


def test_losses_turn_from_square_to_linear():
    target = torch.zeros(3, 4)
    prediction = torch.tensor([[0.01] * 4, [1.0] * 4, [100.0] * 4])
    square = sample_losses(prediction, target)
    assert square.tolist() == pytest.approx([1e-4, 1.0, 1e4])
    huber = sample_losses(prediction, target, "huber", 1.0)
    assert huber.tolist() == pytest.approx([0.5e-4, 0.5, 99.5])
    pseudo = sample_losses(prediction, target, "pseudo_huber", 1.0)
    assert pseudo.tolist() == pytest.approx([0.5e-4, 2**0.5 - 1, 99.005], rel=1e-4)


def test_the_teacher_is_its_own_perfect_student(tmp_path):
    """Trap 2. Trajectories of a first-order teacher without guidance, one segment a step: what the
    training asks of the network is what the stock pipeline's network gave, at the same timesteps
    and with the same padded prompts."""
    make_first_order_run(tmp_path, steps=6)
    dataset = open_dataset(tmp_path, 6)
    teacher = load_denoiser(tmp_path / "teacher/transformer", torch.float32)
    batch = dataset.__getitems__(list(range(dataset.num_items)))
    with torch.no_grad():
        given = dataset.family.predict(
            teacher, batch.noisy, batch.timestep, batch.conditioning, dataset.usual.setting
        )
    assert relative_error(batch.target, given) < 1e-4
    # The test can fail: other prompts, or timesteps, are noticed.
    with torch.no_grad():
        turned = {name: value.roll(6, 0) for name, value in batch.conditioning.items()}
        other = dataset.family.predict(
            teacher, batch.noisy, batch.timestep, turned, dataset.usual.setting
        )
    assert relative_error(batch.target, other) > 1e-3


def make_first_order_run(folder, steps):
    """Real stages on a teacher whose own scheduler is first order."""
    tiny.make_tiny_wan(folder / "teacher")
    scheduler = tiny.tiny_scheduler()
    first_order = type(scheduler).from_config(
        scheduler.config, solver_order=1, disable_corrector=list(range(steps))
    )
    first_order.save_pretrained(folder / "teacher/scheduler")
    prompts = folder / "prompts/train.parquet"
    prompts.parent.mkdir()
    tiny.tiny_prompts(3).to_parquet(prompts, index=False)
    teacher = Teacher(
        path=str(folder / "teacher"),
        dtype="float32",
        height=tiny.HEIGHT,
        width=tiny.WIDTH,
        max_sequence_length=tiny.MAX_TOKENS,
    )
    reporter = Reporter(folder / "telemetry", "targets", "targets", "cpu")
    embeddings = folder / "embeddings/train/manifest.json"
    make_embeddings(
        EmbeddingsJob(teacher=teacher, embeddings=Embeddings()), prompts, embeddings, CPU, reporter
    )
    targets = Targets(
        steps=steps, num_segments=steps, guidance_scale=1.0, batch_size=3, chunk_size=3
    )
    shard = folder / "targets/shard-0-of-1.json"
    job = TargetsJob(seed=0, teacher=teacher, targets=targets)
    make_targets(job, prompts, embeddings, (0, 1), shard, CPU, reporter)
    merge_targets([shard], folder / "targets/manifest.json")


def first_losses(folder):
    """The losses of 20 updates with everything fixed."""
    from distillery.stages import training as script

    tiny.make_tiny_run(folder, config={"phases": phases(stored=160), "save_every_samples": 160})
    assert script.main(tiny.train_arguments(folder)) == 0
    return pd.read_parquet(folder / "student/loss.parquet")["loss"].tolist()


def test_the_first_losses_are_the_golden_ones(tmp_path):
    golden = [float(line) for line in GOLDEN.read_text().split()]
    assert len(golden) == 20
    assert first_losses(tmp_path) == pytest.approx(golden, rel=1e-4)


if __name__ == "__main__":
    import tempfile

    with tempfile.TemporaryDirectory() as chosen:
        lines = [f"{loss:.6f}\n" for loss in first_losses(Path(chosen))]
    GOLDEN.write_text("".join(lines))
