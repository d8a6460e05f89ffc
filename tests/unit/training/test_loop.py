"""One process: what a training reads, writes, refuses, and where it resumes."""

import os
import shutil
import signal
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from distillery.files import read_json
from distillery.model_folder import hash_model
from distillery.telemetry import read_events
from distillery.training import checkpoint, loop
from distillery.training.health import Watchdog
from in_process import WEIGHTS, checkpoints, flip, log_of, losses_of, outputs, train
from training_phases import phases


@pytest.fixture(scope="module")
def undisturbed(data, tmp_path_factory):
    folder = tmp_path_factory.mktemp("undisturbed")
    assert train(data, folder) == 0
    return folder


def gradient_norms(folder):
    """As logged: before they are clipped."""
    return losses_of(folder)["grad_norm"].tolist()


def test_a_training_writes_a_diffusers_model_and_its_losses(data, undisturbed):
    import diffusers

    model = diffusers.AutoModel.from_pretrained(str(undisturbed / "student/trained"))
    assert type(model).__name__ == "WanTransformer3DModel"
    losses = losses_of(undisturbed)
    assert losses["samples_seen"].tolist() == list(range(8, 72, 8))
    assert list(losses.columns) == [
        "samples_seen", "loss", "grad_norm", "learning_rate",
        "loss_segment_0", "loss_segment_1", "loss_segment_2", "loss_segment_3",
    ]  # fmt: skip
    assert read_json(undisturbed / "student/trained/distillery.json")["samples_seen"] == 64
    assert "_name_or_path" not in read_json(undisturbed / "student/trained/config.json")


def test_the_same_training_gives_the_same_bytes(data, undisturbed, tmp_path):
    assert train(data, tmp_path) == 0
    assert outputs(tmp_path) == outputs(undisturbed)


def test_other_seeds_give_other_weights(data, undisturbed, tmp_path):
    assert train(data, tmp_path, seed=1) == 0
    assert outputs(tmp_path) != outputs(undisturbed)


def test_a_student_learns(data, tmp_path):
    settings = {"phases": phases(stored=400), "log_every_samples": 80, "save_every_samples": 400}
    assert train(data, tmp_path, **settings, learning_rate=1e-2, ema_half_life_samples=0) == 0
    losses = losses_of(tmp_path)["loss"]
    assert losses.iloc[-1] < 0.5 * losses.iloc[0]


def test_small_micro_batches_change_nothing_but_rounding(data, undisturbed, tmp_path):
    assert train(data, tmp_path, micro_batch_size=2) == 0
    ours, theirs = load_file(tmp_path / WEIGHTS), load_file(undisturbed / WEIGHTS)
    for name in theirs:
        torch.testing.assert_close(ours[name], theirs[name], rtol=1e-5, atol=1e-5)
    # Clipping and AdamW forgive a wrong scale; the logged norm is the one before them.
    norms = [gradient_norms(folder) for folder in (tmp_path, undisturbed)]
    assert norms[0] == pytest.approx(norms[1], rel=1e-3)


def test_the_gradient_is_clipped_to_its_setting(data, undisturbed, tmp_path):
    """A gradient far below AdamW's epsilon moves nothing; logged is the norm before."""
    plain = {"ema_half_life_samples": 0, "weight_decay": 0.0}
    assert train(data, tmp_path, max_grad_norm=1e-12, **plain) == 0
    before = load_file(data / "student/initial" / Path(WEIGHTS).name)
    after, moved = load_file(tmp_path / WEIGHTS), load_file(undisturbed / WEIGHTS)
    for name, value in before.items():
        torch.testing.assert_close(after[name], value, rtol=0, atol=1e-5)
    assert max((moved[name] - value).abs().max() for name, value in before.items()) > 1e-3
    assert gradient_norms(tmp_path)[0] == pytest.approx(gradient_norms(undisturbed)[0], rel=1e-3)


def test_averaged_weights_are_exported(data, undisturbed, tmp_path):
    newest = checkpoints(undisturbed)[-1]
    average, last = load_file(newest / checkpoint.AVERAGE), load_file(newest / checkpoint.WEIGHTS)
    exported = load_file(undisturbed / WEIGHTS)
    assert all(torch.equal(exported[name], average[name]) for name in average)
    assert any(not torch.equal(exported[name], last[name]) for name in last)
    assert train(data, tmp_path, ema_half_life_samples=0) == 0
    last = load_file(checkpoints(tmp_path)[-1] / checkpoint.WEIGHTS)
    exported = load_file(tmp_path / WEIGHTS)
    assert all(torch.equal(exported[name], last[name]) for name in last)


def test_only_the_student_and_stored_numbers_are_opened(data, tmp_path, monkeypatch):
    """T1: no teacher, no text encoder, no VAE, whatever the class that would load it."""
    import diffusers
    import transformers
    from diffusers.models.modeling_utils import ModelMixin

    loaded = []
    load = ModelMixin.from_pretrained.__func__

    def note(cls, path, *args, **kwargs):
        loaded.append(str(path))
        return load(cls, path, *args, **kwargs)

    def refuse(*args, **kwargs):
        raise AssertionError(f"the trainer loads {args}")

    monkeypatch.setattr(ModelMixin, "from_pretrained", classmethod(note))
    monkeypatch.setattr(diffusers.DiffusionPipeline, "from_pretrained", refuse)
    monkeypatch.setattr(transformers.PreTrainedModel, "from_pretrained", refuse)
    monkeypatch.setattr("distillery.teacher.folder.find_teacher", refuse)
    for name in ("load_teacher", "load_scheduler"):
        monkeypatch.setattr(f"distillery.teacher.loading.{name}", refuse)
    moved = tmp_path / "data"
    shutil.copytree(data, moved, ignore=shutil.ignore_patterns("teacher"))
    assert train(moved, tmp_path) == 0
    assert loaded == [str(moved / "student/initial")]


def test_the_watchdog_hears_of_each_update(data, tmp_path, monkeypatch):
    """Before the first one it waits as long as networks may take to compile."""
    heard, updated = [], Watchdog.updated

    def note(watchdog):
        heard.append(watchdog)
        updated(watchdog)

    monkeypatch.setattr(Watchdog, "updated", note)
    assert train(data, tmp_path) == 0
    assert len(heard) == 64 / 8


def test_the_untrained_student_stays_as_it_was(data, undisturbed):
    before = read_json(undisturbed / "student/trained/distillery.json")["recipe"]["initial"]
    assert hash_model(data / "student/initial") == before


def test_a_time_stamp_of_snakemake_is_no_other_student(data, tmp_path):
    folder = tmp_path / "initial"
    shutil.copytree(data / "student/initial", folder)
    (folder / ".snakemake_timestamp").touch()
    assert hash_model(folder) == hash_model(data / "student/initial")


def test_telemetry_holds_the_times_and_the_memory(undisturbed):
    events = read_events(undisturbed / "telemetry")
    assert [event.kind for event in events].count("work") == 8
    work = [event for event in events if event.kind == "work"]
    assert sum(event.num_items for event in work) == 64
    assert all(event.facts["peak_memory_bytes"] > 1e6 for event in work)
    assert {(event.stage, event.job) for event in events} == {("training", "training")}


def test_telemetry_holds_what_a_checkpoint_cost(undisturbed):
    saves = [event for event in read_events(undisturbed / "telemetry") if event.kind == "save"]
    assert [event.facts["samples_seen"] for event in saves] == [16, 32, 48, 64]
    assert all(0 < event.facts["stall_s"] < event.end_s - event.begin_s for event in saves)
    assert all(event.facts["write_s"] > 0 for event in saves)


def test_a_finished_training_only_writes_its_outputs_again(
    data, undisturbed, tmp_path, monkeypatch
):
    shutil.copytree(undisturbed, tmp_path, dirs_exist_ok=True)
    expected = outputs(tmp_path)
    shutil.rmtree(tmp_path / "student/trained")
    monkeypatch.setattr(loop, "accumulate_what_fits", None)
    assert train(data, tmp_path) == 0
    assert outputs(tmp_path) == expected


def interrupt_after(monkeypatch, num_updates):
    """Send this process SIGTERM in the middle of an update."""
    calls = []
    original = loop.set_learning_rate

    def send(optimizer, learning_rate):
        calls.append(learning_rate)
        if len(calls) == num_updates:
            os.kill(os.getpid(), signal.SIGTERM)
        original(optimizer, learning_rate)

    monkeypatch.setattr(loop, "set_learning_rate", send)


def test_sigterm_saves_and_the_next_start_ends_as_if_nothing_was(
    data, undisturbed, tmp_path, monkeypatch
):
    interrupt_after(monkeypatch, 2)
    # The signal comes after the reduction that carries it, so one more update is made.
    assert train(data, tmp_path, log_every_samples=8) == 75
    assert checkpoints(tmp_path)[-1].name == "samples-000000000024"
    assert not (tmp_path / "student/trained").exists()
    monkeypatch.undo()
    assert train(data, tmp_path) == 0
    assert outputs(tmp_path) == outputs(undisturbed)


def test_losses_of_an_interval_survive_an_interruption(data, tmp_path, monkeypatch):
    """The checkpoint falls between two rows of the loss history."""
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    settings = {"phases": phases(stored=96), "log_every_samples": 48}
    assert train(data, whole, **settings) == 0
    interrupt_after(monkeypatch, 3)
    assert train(data, parts, **settings) == 75
    monkeypatch.undo()
    assert train(data, parts, **settings) == 0
    assert outputs(parts) == outputs(whole)


def truncate(path):
    path.write_bytes(path.read_bytes()[:-100])


def test_every_damage_to_a_checkpoint_is_seen(undisturbed, tmp_path):
    for number, (file, damage) in enumerate(
        (
            (checkpoint.WEIGHTS, truncate),
            (checkpoint.OPTIMIZER, flip),
            (checkpoint.AVERAGE, Path.unlink),
            (checkpoint.LOSSES, truncate),
            (checkpoint.STATE, Path.unlink),
            (checkpoint.STATE, truncate),
        )
    ):
        copied = tmp_path / str(number)
        shutil.copytree(checkpoints(undisturbed)[-1], copied)
        assert checkpoint.find_problem(copied) is None
        damage(copied / file)
        assert file in checkpoint.find_problem(copied)


def test_a_damaged_checkpoint_is_passed_over(data, undisturbed, tmp_path):
    shutil.copytree(undisturbed, tmp_path, dirs_exist_ok=True)
    newest = checkpoints(tmp_path)[-1]
    truncate(newest / checkpoint.WEIGHTS)
    assert train(data, tmp_path) == 0
    log = log_of(tmp_path)
    assert f"{newest} is skipped" in log
    assert f"resumes from {newest.parent / 'samples-000000000048'}" in log
    assert outputs(tmp_path) == outputs(undisturbed)


def test_only_the_last_checkpoints_are_kept(undisturbed):
    assert [path.name for path in checkpoints(undisturbed)] == [
        "samples-000000000048",
        "samples-000000000064",
    ]


def test_a_changed_recipe_starts_anew_and_keeps_the_old_checkpoints(data, undisturbed, tmp_path):
    shutil.copytree(undisturbed, tmp_path, dirs_exist_ok=True)
    assert train(data, tmp_path, learning_rate=2e-3) == 0
    assert len(checkpoints(tmp_path)) == 4
    assert outputs(tmp_path) != outputs(undisturbed)


def test_settings_of_the_machine_do_not_start_anew(data, undisturbed, tmp_path):
    shutil.copytree(undisturbed, tmp_path, dirs_exist_ok=True)
    settings = {"micro_batch_size": 4, "keep_checkpoints": 5, "timeout_s": 7, "hang_timeout_s": 9}
    assert train(data, tmp_path, **settings) == 0
    assert "resumes from" in log_of(tmp_path)


def poison(data, value):
    """Put `value` in the last state of the first trajectory, past every check of the stores."""
    path = next((data / "targets").glob("*/chunk-000000.safetensors"))
    with safe_open(path, framework="pt") as file:
        metadata = file.metadata()
    tensors = {name: tensor.clone() for name, tensor in load_file(path).items()}
    tensors["noisy"][0, -1, 0] = value
    save_file(tensors, path, metadata=metadata)


def test_a_loss_that_is_not_finite_names_its_sample_before_any_update(data, tmp_path, capsys):
    poisoned = tmp_path / "data"
    shutil.copytree(data, poisoned)
    poison(poisoned, float("nan"))
    assert train(poisoned, tmp_path, phases=phases(stored=48), log_every_samples=48) == 1
    message = capsys.readouterr().err
    assert "nothing was updated" in message
    assert "1 samples have such a loss; they are: p000/0 segment 3 (row 0)" in message
    for path in checkpoints(tmp_path):
        assert all(
            tensor.isfinite().all() for tensor in load_file(path / checkpoint.WEIGHTS).values()
        )


def test_a_gradient_that_is_not_finite_stops_too(data, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(torch.nn.utils, "clip_grad_norm_", lambda *_: torch.tensor(float("inf")))
    assert train(data, tmp_path) == 1
    assert "0 samples have such a loss; its batch is: p0" in capsys.readouterr().err


@pytest.mark.parametrize(
    "settings",
    [
        {"objective": "direct", "loss": "huber", "huber_width": 0.5},
        {"objective": "reflow", "loss": "pseudo_huber", "huber_width": 0.1},
    ],
)
def test_every_objective_and_loss_learns(data, tmp_path, settings):
    assert train(data, tmp_path, phases=phases(stored=128), learning_rate=1e-2, **settings) == 0
    losses = losses_of(tmp_path)["loss"]
    assert losses.tail(4).mean() < 0.9 * losses.head(4).mean()


def test_float16_is_refused(data, tmp_path, capsys):
    assert train(data, tmp_path, dtype="float16") == 1
    assert "'float16': it should be 'float32' or 'bfloat16'" in capsys.readouterr().err


def test_bfloat16_keeps_float32_weights(data, tmp_path):
    assert train(data, tmp_path, dtype="bfloat16") == 0
    weights = load_file(tmp_path / WEIGHTS)
    assert {tensor.dtype for tensor in weights.values()} == {torch.float32}


@pytest.mark.parametrize(
    ("pattern", "told"),
    [
        ("targets/manifest.json", "manifest.json is damaged"),
        ("embeddings/train/*/chunk-000000.safetensors", "its bytes are not those of its manifest"),
        ("student/initial/diffusion_pytorch_model.safetensors", "changed after it was written"),
        ("student/initial/distillery.json", "changed after it was written"),
    ],
)
def test_what_changed_since_is_not_trained_on(data, tmp_path, capsys, pattern, told):
    """With its headers as they were; the message ends in the command that mends it."""
    moved = tmp_path / "data"
    shutil.copytree(data, moved)
    (path,) = moved.glob(pattern)
    content, place = path.read_bytes(), -1
    while path.suffix == ".json" and not chr(content[place]).isdigit():
        place -= 1
    flip(path, place)
    assert train(moved, tmp_path) == 1
    message = capsys.readouterr().err
    assert told in message
    assert "run `rm -r " in message
    assert not (tmp_path / "student/trained").exists()


def test_a_student_that_was_not_built_is_explained(data, tmp_path, capsys):
    moved = tmp_path / "data"
    shutil.copytree(data, moved, ignore=shutil.ignore_patterns("student"))
    assert train(moved, tmp_path) == 1
    assert "distillery.stages.student makes a student" in capsys.readouterr().err
