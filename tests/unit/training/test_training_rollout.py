"""The finishing phase and weights of segments, in a whole training."""

import shutil
from itertools import chain

import pytest
import torch
from safetensors.torch import load_file

import tiny
from distillery.config.run import parse_config
from distillery.config.training import Training
from distillery.model_folder import load_denoiser
from distillery.schedule import Schedule, from_prediction
from distillery.training.batches import Batches, Order
from distillery.training.distributed import RankInfo
from distillery.training.health import START_LIMIT_S
from distillery.training.microbatch import MicroBatches, accumulate_what_fits
from distillery.training.objectives import min_snr_weight, segment_weights
from distillery.training.update import roll_out_student
from distillery.training.ways import way_at
from in_process import WEIGHTS, log_of, losses_of, open_dataset, outputs, train
from runs import open_run, settings
from training_phases import phases

CPU = torch.device("cpu")
FINISH = {"phases": phases(stored=32, rollouts=32)}


def prepared(data, output, **changes):
    """What a training is made from, and the untrained student."""
    run = open_run(data, output, **changes)
    return run, load_denoiser(data / "student/initial", torch.float32)


@pytest.fixture(scope="module")
def finished(data, tmp_path_factory):
    folder = tmp_path_factory.mktemp("finished")
    assert train(data, folder, **FINISH, keep_checkpoints=9) == 0
    return folder


def test_rollouts_have_their_own_column_of_the_losses(finished):
    losses = losses_of(finished)
    assert list(losses.columns)[-2:] == ["loss_segment_3", "loss_rollout"]
    assert losses["loss_rollout"].isna().tolist() == [True] * 4 + [False] * 4
    assert losses["loss_segment_0"].isna().tolist()[4:] == [True] * 4
    assert losses["loss"].tolist()[4:] == losses["loss_rollout"].tolist()[4:]


def test_before_the_phase_nothing_differs(data, finished, tmp_path):
    assert train(data, tmp_path, phases=phases(stored=64), schedule="constant") == 0
    other = tmp_path / "other"
    assert train(data, other, **FINISH, schedule="constant") == 0
    plain, ours = losses_of(tmp_path), losses_of(other)
    assert ours["loss"].tolist()[:4] == plain["loss"].tolist()[:4]
    assert ours["loss"].tolist()[4:] != plain["loss"].tolist()[4:]


def test_rollouts_learn_to_end_where_the_teacher_does(data, tmp_path):
    changes = {"phases": phases(rollouts=160), "learning_rate": 2e-2}
    assert train(data, tmp_path, **changes) == 0
    losses = losses_of(tmp_path)["loss_rollout"]
    assert losses.tail(4).mean() < 0.7 * losses.head(4).mean()


def test_a_rollout_may_take_long(data, tmp_path):
    run, student = prepared(data, tmp_path, **FINISH)
    for first, limit_s in ((0, 0.0), (run.dataset.num_items, START_LIMIT_S)):
        run.watchdog.updated()
        batch = run.dataset.__getitems__([first, first + 1])
        sizes = MicroBatches(run, False, for_rollouts=False, checkpointing=False)
        losses = way_at(32 if first else 0, run.training).losses
        accumulate_what_fits(student, batch, sizes, losses, run)
        assert run.watchdog.phase.waits
        assert run.watchdog.phase.limit_s == limit_s


def test_the_gradient_goes_through_every_step(data, tmp_path):
    """Against finite differences: what the first step gives reaches the end by all the others."""
    run, student = prepared(data, tmp_path, **FINISH)
    batch = run.dataset.__getitems__([run.dataset.num_items])
    calls = []
    student.register_forward_hook(lambda *_: calls.append(1))
    bias = student.proj_out.bias
    student.zero_grad()
    ((roll_out_student(student, batch, run) - batch.target) ** 2).mean().backward()
    assert len(calls) == run.dataset.steps

    def loss_at(shift):
        with torch.no_grad():
            bias[0] += shift
            end = roll_out_student(student, batch, run)
            bias[0] -= shift
            return float(((end - batch.target) ** 2).mean())

    slope = (loss_at(0.02) - loss_at(-0.02)) / 0.04
    assert float(bias.grad[0]) == pytest.approx(slope, rel=1e-2)


def test_a_batch_of_rollouts_counts_each_alike(data, tmp_path):
    run, student = prepared(data, tmp_path, **FINISH)
    items = [run.dataset.num_items + trajectory for trajectory in (0, 5, 7)]
    losses = way_at(32, run.training).losses
    with torch.no_grad():
        together = losses(student, run.dataset.__getitems__(items), run)
        alone = [losses(student, run.dataset.__getitems__([it]), run) for it in items]
    torch.testing.assert_close(together, torch.cat(alone))


@pytest.mark.parametrize("num_processes", [1, 3])
def test_the_phase_has_an_order_of_its_own_that_begins_with_it(data, num_processes):
    dataset = open_dataset(data)
    training = Training(**(tiny.TRAINING | {"phases": phases(stored=32, rollouts=64)}))
    streams = [
        list(Batches(dataset, training, 0, RankInfo(rank, num_processes)).positions(16))
        for rank in range(num_processes)
    ]
    batches = [list(chain.from_iterable(parts)) for parts in zip(*streams, strict=True)]
    segments, trajectories = Order(dataset.num_items, 0), Order(dataset.num_trajectories, 0)
    assert batches[:2] == [segments.items(start, start + 8) for start in (16, 24)]
    whole = [dataset.num_items + item for item in trajectories.items(0, 64)]
    assert list(chain.from_iterable(batches[2:])) == whole
    assert len(set(whole[:12])) == dataset.num_trajectories == 12
    assert dataset.name(dataset.num_items + 3) == "p001/1 rollout (row 1)"


@pytest.mark.parametrize("num_samples", [32, 48])
def test_an_interruption_at_the_border_or_in_the_phase_changes_no_byte(
    data, finished, tmp_path, num_samples
):
    """The run resumes from the checkpoint at 32 or 48 samples, as after a kill."""
    shutil.copytree(finished, tmp_path, dirs_exist_ok=True)
    shutil.rmtree(tmp_path / "student/trained")
    for path in (tmp_path / "student/checkpoints").glob("*/samples-*"):
        if int(path.name.removeprefix("samples-")) > num_samples:
            shutil.rmtree(path)
    assert train(data, tmp_path, **FINISH) == 0
    assert f"samples-{num_samples:012d}" in log_of(tmp_path)
    assert outputs(tmp_path) == outputs(finished)


def test_the_perceptual_term_loads_the_vae_alone_and_is_felt(data, finished, tmp_path, monkeypatch):
    from diffusers.models.modeling_utils import ModelMixin

    loaded, load = [], ModelMixin.from_pretrained.__func__

    def note(cls, path, *args, **kwargs):
        loaded.append(str(path))
        return load(cls, path, *args, **kwargs)

    monkeypatch.setattr(ModelMixin, "from_pretrained", classmethod(note))
    tiny.make_tiny_wan(tmp_path / "teacher")
    felt = {"samples": 32, "perceptual_weight": 0.5}
    assert train(data, tmp_path, phases=phases(stored=32, rollouts=felt)) == 0
    assert sorted(loaded) == [str(data / "student/initial"), str(tmp_path / "teacher/vae")]
    ours, plain = losses_of(tmp_path), losses_of(finished)
    assert ours["loss"].tolist()[:4] == plain["loss"].tolist()[:4]
    assert ours["loss_rollout"].iloc[4] > plain["loss_rollout"].iloc[4]
    assert outputs(tmp_path) != outputs(finished)


GRID = Schedule(
    timesteps=(900, 500, 100),
    alphas=(0.2, 0.8, 0.99, 1.0),
    sigmas=((1 - 0.04) ** 0.5, 0.6, (1 - 0.99**2) ** 0.5, 0.0),
    scales=(1.0,) * 4,
)
SNRS = [(alpha / sigma) ** 2 for alpha, sigma in zip(GRID.alphas[:3], GRID.sigmas[:3], strict=True)]


@pytest.mark.parametrize(
    ("prediction_type", "published"),
    [
        ("sample", lambda snr: min(snr, 5)),
        ("epsilon", lambda snr: min(snr, 5) / snr),
        ("v_prediction", lambda snr: min(snr, 5) / (snr + 1)),
    ],
)
def test_min_snr_is_as_published(prediction_type, published):
    for number, snr in enumerate(SNRS):
        found = min_snr_weight(prediction_type, GRID.alphas[number], GRID.sigmas[number])
        assert found == pytest.approx(published(snr))
    expected = [published(snr) for snr in SNRS]
    weights = segment_weights("min_snr", GRID, prediction_type)
    assert weights == pytest.approx([3 * weight / sum(expected) for weight in expected])


def test_min_snr_of_a_flow_weighs_the_clean_sample():
    """An error e of the velocity is an error of sigma e of the clean sample."""
    assert min_snr_weight("flow_prediction", 0.4, 0.6) == pytest.approx((0.4 / 0.6) ** 2 * 0.36)
    assert min_snr_weight("flow_prediction", 0.9, 0.1) == pytest.approx(5 * 0.01)


PREDICTIONS = ("epsilon", "v_prediction", "flow_prediction", "sample")


@pytest.mark.parametrize("prediction_type", PREDICTIONS)
@pytest.mark.parametrize(("alpha", "sigma"), [(0.6, 0.8), (0.6, 0.6), (1.0, 2.5), (0.9, 0.1)])
def test_min_snr_weighs_what_an_error_does_to_the_clean_sample(prediction_type, alpha, sigma):
    """Also where noise and sample do not share out one variance, as in an exploding one."""
    zero, one = torch.tensor([0.0, 1.0], dtype=torch.float64)
    before, after = (
        from_prediction(prediction_type, error, zero, alpha, sigma)[0] for error in (zero, one)
    )
    limited = min((alpha / sigma) ** 2, 5.0)
    found = min_snr_weight(prediction_type, alpha, sigma)
    assert found == pytest.approx(limited * float(after - before) ** 2)


@pytest.mark.parametrize("prediction_type", PREDICTIONS)
def test_min_snr_of_noise_alone_is_its_limit(prediction_type):
    """SNR 0: an error of the noise is none of the clean sample, however small alpha is."""
    found = min_snr_weight(prediction_type, 0.0, 1.0)
    assert found == (1.0 if prediction_type == "epsilon" else 0.0)
    assert found == pytest.approx(min_snr_weight(prediction_type, 1e-6, 1.0), abs=1e-9)


def test_min_snr_refuses_one_step_from_noise_alone():
    grid = Schedule(timesteps=(999,), alphas=(0.0, 1.0), sigmas=(1.0, 0.0), scales=(1.0, 1.0))
    with pytest.raises(ValueError, match="'min_snr', which gives segment 0 of this student's 1"):
        segment_weights("min_snr", grid, "flow_prediction")


def test_min_snr_refuses_a_step_that_would_not_be_learned(data):
    with pytest.raises(ValueError, match=r"segment 0 of this student's 4 .*flow_prediction.*use"):
        open_dataset(data, 4, "segment", "min_snr")


def test_weights_are_scaled_to_a_mean_of_one():
    assert segment_weights("uniform", GRID, "epsilon") == (1.0, 1.0, 1.0)
    assert segment_weights((1.0, 2.0, 3.0), GRID, "epsilon") == (0.5, 1.0, 1.5)
    with pytest.raises(ValueError, match=r"lists 2 weights, student.steps is 3: give 3"):
        segment_weights((1.0, 2.0), GRID, "epsilon")


def test_weights_change_the_gradient_and_not_the_logged_losses(data, tmp_path):
    plain, weighted = tmp_path / "plain", tmp_path / "weighted"
    for folder, weights in ((plain, "uniform"), (weighted, [4, 1, 1, 0])):
        changes = {"timestep_weights": weights, "phases": phases(stored=8), "warmup_samples": 0}
        assert train(data, folder, **changes) == 0
    ours, theirs = losses_of(weighted), losses_of(plain)
    assert ours["loss"].tolist() == theirs["loss"].tolist()
    assert ours["grad_norm"].tolist() != theirs["grad_norm"].tolist()
    same = tmp_path / "same"
    assert (
        train(data, same, timestep_weights=[3, 3, 3, 3], phases=phases(stored=8), warmup_samples=0)
        == 0
    )
    ours, theirs = load_file(same / WEIGHTS), load_file(plain / WEIGHTS)
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)


def test_each_sample_has_the_weight_of_its_segment(data):
    batch = open_dataset(data, 4, "segment", (1.0, 1.0, 1.0, 0.0)).__getitems__([0, 3, 7, 5])
    assert batch.weight.tolist() == pytest.approx([4 / 3, 0, 0, 4 / 3])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"objective": "prediction"}, r"training.objective.*'segment', 'direct' or 'reflow'"),
        (
            {"phases": phases(stored=8, rollouts=12)},
            "12 must be a multiple of 8; set training.phases.1.samples to 8 or 16, or",
        ),
        ({"timestep_weights": [1.0]}, "lists 1 weights, student.steps is 2: give 2"),
        ({"timestep_weights": [0.0, 0.0]}, "all zero"),
        ({"timestep_weights": "snr"}, r"training.timestep_weights.*'snr'"),
        ({"timestep_weights": [1.0, -1.0]}, r"timestep_weights.*-1.0"),
    ],
)
def test_settings_that_do_not_fit_are_explained(teacher, tmp_path, changes, message):
    with pytest.raises(ValueError, match=message):
        parse_config(settings(tmp_path, teacher, training=changes), "tiny")


def test_lists_of_weights_are_read(teacher, tmp_path):
    raw = settings(tmp_path, teacher, training={"timestep_weights": [1, 3.5]})
    assert parse_config(raw, "tiny").training.timestep_weights == (1.0, 3.5)
