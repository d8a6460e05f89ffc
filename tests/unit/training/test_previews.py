"""Previews: the exported student's own images, drawn without a trace in the training."""

import os
import shutil
import signal
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import runs
import tiny
from distillery.config.run import parse_config
from distillery.images import MAX_COLUMNS, is_preview, thin_out, write_png
from distillery.telemetry import read_events
from distillery.training import loop
from distillery.training.previews import Previews
from distillery.training.saving import Saver
from distillery.training.update import inspecting
from previewing import (
    FAST,
    arguments,
    expected,
    images,
    preview_options,
    share_of,
)
from training_phases import phases

REPOSITORY = Path(__file__).parents[3]
sys.path.insert(0, str(REPOSITORY / "tests/distributed"))


def train(*given, **settings):
    from distillery.stages import training as script

    return script.main(arguments(*given, **settings))


def trained(folder):
    return {path.name: path.read_bytes() for path in (folder / "student/trained").iterdir()}


@pytest.fixture(scope="module")
def drawn(data, tmp_path_factory):
    folder = tmp_path_factory.mktemp("drawn")
    assert train(data, folder) == 0
    return folder


def test_the_first_the_last_and_those_between_are_drawn(drawn):
    assert images(drawn).keys() == expected()
    shown = [pixels(drawn / "student/previews" / name) for name in expected()]
    assert all(image.shape == (32, 32, 3) for image in shown)
    # The student learns: the same noise and prompt give another image at each moment.
    assert len({image.tobytes() for image in shown}) == len(shown)
    sheet = Image.open(drawn / "student/previews/samples-000000000064/sheet.png")
    over_time = Image.open(drawn / "student/previews/sheet.png")
    assert sheet.width < over_time.width


def test_the_training_does_not_notice(data, drawn, tmp_path):
    from distillery.stages import training as script

    tiny.write_training_job(tmp_path, **FAST)
    assert script.main(tiny.train_arguments(data, tmp_path)) == 0
    assert trained(tmp_path) == trained(drawn)
    losses = "student/loss.parquet"
    assert (tmp_path / losses).read_bytes() == (drawn / losses).read_bytes()


def test_a_resumed_training_draws_only_what_is_missing(data, drawn, tmp_path):
    shutil.copytree(drawn, tmp_path, dirs_exist_ok=True)
    last = tmp_path / "student/previews/samples-000000000064"
    (last / "p001.png").unlink()
    (last / "p000.png").touch()
    os.utime(last / "p000.png", ns=(1, 1))
    assert train(data, tmp_path) == 0
    assert images(tmp_path) == images(drawn)
    assert (last / "p000.png").stat().st_mtime_ns == 1


def test_images_of_another_training_are_drawn_again(data, drawn, tmp_path):
    shutil.copytree(drawn, tmp_path, dirs_exist_ok=True)
    assert train(data, tmp_path, learning_rate=3e-3) == 0
    ours, theirs = images(tmp_path), images(drawn)
    assert ours.keys() == theirs.keys()
    assert all(ours[name] != theirs[name] for name in expected([32, 64]))


def test_the_last_preview_is_the_exported_students_image(tmp_path, teacher):
    """Through the stock pipeline from the exported folder, with averaged weights."""
    training = {"ema_half_life_samples": 16, "phases": phases(stored=16), "learning_rate": 0.1}
    run = runs.make_run(tmp_path, teacher, training=training, previews={"every_samples": 8})
    run.encode("train")
    run.encode("eval")
    run.all_targets()
    pipeline = run.train_and_export(previews=True)
    run.samples(model="student", pipeline=pipeline)
    for prompt_id in ("p000", "p004"):
        first, last = (
            pixels(run.folder / f"student/previews/samples-{seen:012d}/{prompt_id}.png")
            for seen in (0, 16)
        )
        sample = pixels(run.folder / f"samples/student/{prompt_id}/0.png")
        assert abs(last - sample).max() <= 1
        assert abs(first - sample).max() > 4


def pixels(path):
    return np.asarray(Image.open(path)).astype(int)


def test_a_failure_to_draw_is_told_and_the_training_goes_on(data, drawn, tmp_path):
    broken = tmp_path / "data"
    shutil.copytree(data, broken)
    (broken / "teacher/vae/diffusion_pytorch_model.safetensors").write_bytes(b"no weights")
    assert train(broken, tmp_path) == 0
    log = (tmp_path / "logs/training.log").read_text()
    assert "previews after 0 samples were not drawn here" in log
    assert "the training continues" in log
    assert images(tmp_path) == {}
    assert trained(tmp_path) == trained(drawn)


def test_images_that_cannot_be_saved_are_told_though_later_ones_can(data, drawn, tmp_path):
    (tmp_path / "student/previews").mkdir(parents=True)
    (tmp_path / "student/previews/samples-000000000032").write_text("a file in the folder's place")
    assert train(data, tmp_path) == 0
    log = (tmp_path / "logs/training.log").read_text()
    assert log.count("previews were not saved here") == 1
    assert images(tmp_path).keys() == expected([0, 64])
    assert trained(tmp_path) == trained(drawn)


@pytest.mark.parametrize(("dtype", "vae_dtype"), [("float32", "bfloat16"), ("bfloat16", "float16")])
def test_any_type_of_the_decoder_is_drawn_beside_any_training(
    data, drawn, tmp_path, dtype, vae_dtype
):
    """The pipeline stacks decoded images, and CPU autocast to bfloat16 refuses float16."""
    teacher = {"dtype": "bfloat16", "vae_dtype": vae_dtype}
    settings = {"dtype": dtype, "phases": phases(stored=8), "every_samples": 8, "warmup_samples": 0}
    assert train(data, tmp_path, teacher=teacher, **settings) == 0
    assert images(tmp_path).keys() == expected([0, 8])
    for name in expected([0]):
        ours, theirs = (pixels(run / "student/previews" / name) for run in (tmp_path, drawn))
        assert abs(ours - theirs).mean() < 3


def test_who_is_asked_to_stop_draws_nothing_more(data, tmp_path, monkeypatch):
    real = loop.reduce_totals

    def asked(*given):
        given[2].stop.signal = 15
        return real(*given)

    monkeypatch.setattr(loop, "reduce_totals", asked)
    assert train(data, tmp_path, every_samples=8) == 75
    assert images(tmp_path).keys() == expected([0])
    monkeypatch.undo()
    assert train(data, tmp_path, every_samples=8) == 0
    assert images(tmp_path).keys() == expected(range(0, 72, 8))


def test_every_rank_draws_its_share(data, drawn, tmp_path):
    from processes import run

    assert run(2, arguments(data, tmp_path)) == [0, 0]
    ours, theirs = images(tmp_path), images(drawn)
    assert ours.keys() == theirs.keys()
    first = expected([0])
    assert {name: ours[name] for name in first} == {name: theirs[name] for name in first}
    assert (tmp_path / "student/previews/sheet.png").is_file()
    drawing = {
        event.job: event.facts["drawing_s"]
        for event in read_events(tmp_path / "telemetry")
        if event.kind == "work" and event.facts["samples_seen"] == 40
    }
    assert drawing.keys() == {"training", "training-rank-1"}
    assert all(seconds > 0 for seconds in drawing.values())


def test_shares_are_all_prompts_and_no_two_the_same(data, tmp_path):
    shares = [share_of(data, tmp_path, rank).missing(0) for rank in range(2)]
    assert shares == [[0, 1], [2]]


def test_a_look_leaves_mode_and_random_numbers_as_they_were():
    network = torch.nn.Dropout(0.5).train()
    torch.manual_seed(7)
    expected = torch.rand(3)
    torch.manual_seed(7)
    with inspecting(network, torch.device("cpu"), torch.bfloat16):
        torch.rand(5)
        assert torch.equal(network(torch.ones(4)), torch.ones(4))
        assert not torch.is_grad_enabled()
        assert (torch.ones(1, 1) @ torch.ones(1, 1)).dtype == torch.bfloat16
    assert network.training
    assert torch.equal(torch.rand(3), expected)


def test_a_sharded_student_is_refused_with_the_way_out(data, tmp_path):
    from processes import run

    assert 0 not in run(2, arguments(data, tmp_path, parallel="fsdp"))
    log = (tmp_path / "logs/training.log").read_text()
    assert "no process can draw alone" in log
    assert "previews.every_samples: 0" in log
    assert "snakemake --cores all results/{run}/student/previews/" in log


def draw_kept(data, output, samples_seen):
    from distillery.cli import main
    from distillery.stages.previews import STAGE

    given = tiny.train_arguments(data, output)
    kept = [word for pair in zip(given[::2], given[1::2], strict=True) for word in pair
            if pair[0] not in ("--trained", "--losses")]  # fmt: skip
    position = ["--samples-seen", str(samples_seen)]
    return main(STAGE, "", [*kept, *position, *preview_options(data, output)])


def test_a_kept_checkpoint_draws_the_same_images(data, drawn, tmp_path):
    shutil.copytree(drawn, tmp_path, dirs_exist_ok=True)
    shutil.rmtree(tmp_path / "student/previews")
    assert draw_kept(data, tmp_path, 64) == 0
    theirs = images(drawn)
    assert images(tmp_path) == {name: theirs[name] for name in expected([64])}
    assert (tmp_path / "student/previews/samples-000000000064/sheet.png").is_file()


def test_a_checkpoint_that_is_not_kept_is_refused_with_those_that_are(
    data, drawn, tmp_path, capsys
):
    shutil.copytree(drawn, tmp_path, dirs_exist_ok=True)
    assert draw_kept(data, tmp_path, 16) == 1
    assert "kept are those after 48, 64 samples" in capsys.readouterr().err


def test_half_of_the_options_is_refused(data, tmp_path, capsys):
    from distillery.stages import training as script

    assert script.main(arguments(data, tmp_path)[:-2]) == 1
    told = "--eval-embeddings must be given too: give all of --previews, --previews-config,"
    assert told in capsys.readouterr().err


def test_the_interval_is_in_whole_batches(tmp_path, teacher):
    raw = runs.settings(tmp_path, teacher, previews={"every_samples": 12})
    with pytest.raises(ValueError, match=r"previews\.every_samples is 12, .* multiple of 8"):
        parse_config(raw, "test")


def test_a_sheet_shows_the_first_and_the_last_moment_of_many():
    moments = [Path(f"samples-{number}") for number in range(57)]
    shown = thin_out(moments, MAX_COLUMNS)
    assert (len(shown), shown[0], shown[-1]) == (MAX_COLUMNS, moments[0], moments[-1])
    assert thin_out(moments[:3], MAX_COLUMNS) == moments[:3]


def test_a_preview_is_of_its_training_and_its_text(tmp_path):
    (tmp_path / "p0.png").write_bytes(b"half a pic")
    assert not is_preview(tmp_path / "p0.png", "ours", "a bird")
    assert not is_preview(tmp_path / "none.png", "ours", "a bird")
    texts = {"training": "ours", "prompt": "a bird"}
    write_png(tmp_path / "p1.png", np.zeros((4, 4, 3), np.uint8), texts)
    assert is_preview(tmp_path / "p1.png", "ours", "a bird")
    assert not is_preview(tmp_path / "p1.png", "ours", "a very large bird")
    assert not is_preview(tmp_path / "p1.png", "theirs", "a bird")


# ---- stops -------------------------------------------------------------------------------------


def stop_at(monkeypatch, wanted):
    """A signal while the image of a prompt at a moment is drawn; which were drawn, in order."""
    drawn, real = [], Previews.draw

    def draw(self, drawer, row, samples_seen):
        drawn.append((samples_seen, row))
        if drawn[-1] == wanted:
            os.kill(os.getpid(), signal.SIGTERM)
        return real(self, drawer, row, samples_seen)

    monkeypatch.setattr(Previews, "draw", draw)
    return drawn


def checkpoints(folder):
    """Their positions."""
    found = (folder / "student/checkpoints").glob("*/samples-*")
    return sorted(int(path.name.removeprefix("samples-")) for path in found)


@pytest.mark.parametrize("save_every", [32, 64])
def test_a_stop_while_images_are_drawn_leaves_the_rest_for_the_next_start(
    data, drawn, tmp_path, monkeypatch, save_every
):
    """Whether a checkpoint is due at that moment or not."""
    order = stop_at(monkeypatch, (32, 1))
    assert train(data, tmp_path, save_every_samples=save_every) == 75
    assert order[-2:] == [(32, 0), (32, 1)]
    assert checkpoints(tmp_path) == [32]
    monkeypatch.undo()
    assert train(data, tmp_path, save_every_samples=save_every) == 0
    assert images(tmp_path) == images(drawn)
    assert trained(tmp_path) == trained(drawn)


def test_a_stop_at_the_first_images_leaves_all_to_the_next_start(
    data, drawn, tmp_path, monkeypatch
):
    order = stop_at(monkeypatch, (0, 0))
    assert train(data, tmp_path) == 75
    assert order == [(0, 0)]
    monkeypatch.undo()
    assert train(data, tmp_path) == 0
    assert images(tmp_path) == images(drawn)


def test_the_checkpoint_is_saved_before_images_are_drawn(data, tmp_path, monkeypatch):
    order, save = [], Saver.save

    def saved(self, state):
        order.append(("saved", state.samples_seen))
        save(self, state)

    monkeypatch.setattr(Saver, "save", saved)
    real = Previews.draw_missing
    monkeypatch.setattr(
        Previews,
        "draw_missing",
        lambda self, drawer, seen, *more: (
            order.append(("drawn", seen)) or real(self, drawer, seen, *more)
        ),
    )
    assert train(data, tmp_path, save_every_samples=32) == 0
    moments = [(what, seen) for seen in (32, 64) for what in ("saved", "drawn")]
    assert order == [("drawn", 0), *moments]


@pytest.mark.parametrize("while_drawing", [True, False])
def test_a_stop_at_the_very_end_leaves_no_image_out(
    data, drawn, tmp_path, monkeypatch, while_drawing
):
    """Nobody would draw it later: the training is finished."""
    if while_drawing:
        stop_at(monkeypatch, (64, 0))
    else:
        real, calls = loop.reduce_totals, []

        def asked(*given):
            calls.append(given)
            given[2].stop.signal = signal.SIGTERM if len(calls) == 8 else None
            return real(*given)

        monkeypatch.setattr(loop, "reduce_totals", asked)
    assert train(data, tmp_path) == 0
    assert images(tmp_path) == images(drawn)
