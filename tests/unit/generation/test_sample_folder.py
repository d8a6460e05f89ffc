"""Images are saved beside the work, and nothing that fails there passes unnoticed."""

import threading
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from distillery.generation import sample_folder as module
from distillery.generation.sample_folder import SampleFolder
from distillery.generation.save_threads import MAX_THREADS, MAX_WAITING, SaveThreads
from distillery.images import as_bytes
from distillery.noise import SampleId
from tiny import LATENT_SHAPE, tiny_prompts

IMAGE = np.zeros((32, 32, 3), np.uint8)


def killed(*_: object) -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize("change", ["recipe", "prompt"])
def test_an_old_image_beside_new_latents_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    """Who is killed between the two leaves them so."""
    table = tiny_prompts(1)
    old = SampleFolder(tmp_path, table, [SampleId("p000", 0)], 1, "a" * 64)
    new = replace(old, recipe_hash="b" * 64)
    if change == "prompt":
        new = replace(old, table=table.assign(prompt="a blue house"))
    old.save(0, IMAGE, torch.zeros(LATENT_SHAPE))
    assert old.is_done(0)
    with monkeypatch.context() as patched:
        write = module._write

        def stop_at_image(path: Path, content: bytes) -> None:
            (killed if path.suffix == ".png" else write)(path, content)

        patched.setattr(module, "_write", stop_at_image)
        with pytest.raises(KeyboardInterrupt):
            new.save(0, IMAGE, torch.ones(LATENT_SHAPE))
    assert old.image(0).is_file()
    assert not new.is_done(0)
    new.save(0, IMAGE, torch.ones(LATENT_SHAPE))
    assert new.is_done(0)


def test_a_bit_anywhere_in_an_image_makes_it_again(tmp_path: Path) -> None:
    """Of the last chunk Pillow looks at the name alone."""
    gallery = SampleFolder(tmp_path, tiny_prompts(1), [SampleId("p000", 0)], 1, "a" * 64)
    gallery.save(0, IMAGE, torch.zeros(LATENT_SHAPE))
    assert gallery.is_done(0)
    assert gallery.is_black(0)
    content = gallery.image(0).read_bytes()
    for place in range(len(content)):
        flipped = content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :]
        gallery.image(0).write_bytes(flipped)
        assert not gallery.is_done(0), place


def test_leaving_waits_for_everything() -> None:
    done: list[int] = []
    with SaveThreads() as savers:
        for number in range(20):
            savers.submit(lambda number=number: (time.sleep(0.005), done.append(number))[0])
    assert sorted(done) == list(range(20))


def test_what_a_thread_meets_is_raised() -> None:
    def fail() -> None:
        raise OSError(28, "No space left on device")

    savers = SaveThreads()
    with pytest.raises(OSError, match="No space left"), savers:
        savers.submit(fail)


def test_what_an_earlier_thread_met_is_raised_by_a_later_submit() -> None:
    """A full disk is told at the next image, not at the end of the shard."""

    gate = threading.Event()

    def fail() -> None:
        gate.wait(10)
        raise OSError(28, "No space left on device")

    def submit_more(savers: SaveThreads) -> None:
        for _ in range(500):
            savers.submit(lambda: None)
            time.sleep(0.01)

    savers = SaveThreads()
    savers.submit(fail)
    gate.set()
    with pytest.raises(OSError, match="No space left"):
        submit_more(savers)


@pytest.mark.parametrize(
    ("num_frames", "most"), [(1, MAX_WAITING), (9, MAX_WAITING // 9), (81, MAX_THREADS)]
)
def test_the_caller_waits_where_too_much_is_waiting(num_frames: int, most: int) -> None:
    """Images that are made faster than they are saved do not pile up, and clips even less."""
    gate, submitted = threading.Event(), threading.Semaphore(0)

    def make() -> None:
        with SaveThreads(num_frames) as savers:
            for _ in range(most + 2):
                savers.submit(gate.wait)  # type: ignore[arg-type]
                submitted.release()

    maker = threading.Thread(target=make, daemon=True)
    maker.start()
    for _ in range(most):
        assert submitted.acquire(timeout=10), "so many may wait"
    assert not submitted.acquire(timeout=1), "one more is waited for"
    gate.set()
    maker.join(10)
    assert not maker.is_alive()


def test_saving_does_not_hold_up_the_caller() -> None:
    order: list[str] = []
    gate = threading.Event()

    def save() -> None:
        assert gate.wait(5), "the caller waits for what it has submitted"
        order.append("saved")

    with SaveThreads() as savers:
        savers.submit(save)
        order.append("went on")
        gate.set()
    assert order == ["went on", "saved"]


def test_bytes_are_rounded_as_diffusers_rounds() -> None:
    from diffusers.image_processor import VaeImageProcessor

    values = torch.linspace(0, 1, 3 * 64 * 64).view(1, 3, 64, 64)
    (expected,) = VaeImageProcessor.numpy_to_pil(VaeImageProcessor.pt_to_numpy(values))
    ours = as_bytes(values)[0]
    assert ours.flatten().tolist() == list(expected.tobytes())
