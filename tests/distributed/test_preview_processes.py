"""TensorBoard has every process's previews, each once, at the step at which it was drawn."""

import shutil
import time

import pytest
from processes import run

from distillery.store.tables import read_table
from event_files import read_values
from previewing import IDS, MOMENTS, arguments, images


def assert_all_are_shown(folder, data, moments=MOMENTS):
    """Each image as it lies in its moment's folder, with its prompt."""
    shown, drawn = read_values(folder / "telemetry/tensorboard"), images(folder)
    prompts = read_table(data / "prompts/train.parquet").set_index("prompt_id")["prompt"]
    for prompt_id in IDS:
        pictures, texts = shown[f"previews/{prompt_id}"], shown[f"prompts/{prompt_id}/text_summary"]
        assert list(pictures) == list(texts) == moments, "in their order"
        for seen in moments:
            (picture,), (text,) = pictures[seen], texts[seen]
            name = f"samples-{seen:012d}/{prompt_id}.png"
            assert picture.image.encoded_image_string == drawn[name]
            assert (picture.image.width, picture.image.height) == (32, 32)
            assert text.tensor.string_val == [prompts[prompt_id].encode()]


def test_the_board_has_the_previews_of_all_processes(data, tmp_path):
    """Of four processes the last one has none to draw."""
    assert run(4, arguments(data, tmp_path)) == [0] * 4
    assert_all_are_shown(tmp_path, data)


def test_a_resumed_training_shows_each_preview_once(data, tmp_path):
    """Killed after three updates, with another number of processes at the next start."""
    settings = {"every_samples": 8, "save_every_samples": 16}
    assert -9 in run(3, arguments(data, tmp_path, **settings), {2: "kill:4"})
    assert run(1, arguments(data, tmp_path, **settings)) == [0]
    assert_all_are_shown(tmp_path, data, moments=list(range(0, 72, 8)))


def test_what_a_killed_process_had_drawn_and_not_written_is_shown_by_the_next(data, tmp_path):
    """Its images are files; the points, which the library's thread had not flushed, are lost."""
    given = arguments(data, tmp_path)
    assert run(2, given) == [0, 0]
    (file,) = (tmp_path / "telemetry/tensorboard").iterdir()
    file.write_bytes(file.read_bytes()[:-5000])
    lost = read_values(tmp_path / "telemetry/tensorboard")
    assert any(list(lost.get(f"previews/{name}", {})) != MOMENTS for name in IDS)
    assert run(2, given) == [0, 0]
    assert_all_are_shown(tmp_path, data)


def test_a_slow_process_is_waited_for_at_the_end(data, tmp_path):
    """The last images are those that no later row of the log takes up."""
    assert run(2, arguments(data, tmp_path), {1: "slow-previews:64"}) == [0, 0]
    assert_all_are_shown(tmp_path, data)


@pytest.mark.slow
def test_images_that_cannot_be_drawn_are_not_waited_for_long(data, tmp_path):
    """The training succeeds, and says which images TensorBoard lacks."""
    broken = tmp_path / "data"
    shutil.copytree(data, broken)
    (broken / "teacher/vae/diffusion_pytorch_model.safetensors").write_bytes(b"no weights")
    begin_s = time.monotonic()
    assert run(2, arguments(broken, tmp_path)) == [0, 0]
    assert time.monotonic() - begin_s < 40
    log = (tmp_path / "logs/training.log").read_text()
    assert "TensorBoard lacks 9 previews that no process had saved 1" in log


def test_another_training_in_the_same_folder_shows_its_own_images_alone(data, tmp_path):
    assert run(2, arguments(data, tmp_path)) == [0, 0]
    before = images(tmp_path)
    assert run(2, arguments(data, tmp_path, learning_rate=3e-3)) == [0, 0]
    assert images(tmp_path) != before
    assert_all_are_shown(tmp_path, data)
