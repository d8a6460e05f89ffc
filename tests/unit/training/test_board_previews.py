"""Images of all ranks on rank 0's TensorBoard, whenever and in whatever order they are saved."""

import numpy as np
import pytest

from distillery.images import moment_folder, write_png
from distillery.training.watchers.tensorboard import BoardPreviews, TensorBoard, shown_previews
from event_files import read_values
from previewing import IDS, share_of


@pytest.fixture
def previews(data, tmp_path):
    """Rank 0's of two."""
    return share_of(data, tmp_path, 0)


@pytest.fixture
def board(tmp_path):
    return TensorBoard(tmp_path / "board", 0, pytest.fail)


def save(previews, tmp_path, seen, prompt_id, training="recipe"):
    image = np.full((4, 6, 3), seen, np.uint8)
    texts = {"training": training, "prompt": previews.prompts[prompt_id]}
    write_png(moment_folder(tmp_path / "previews", seen) / f"{prompt_id}.png", image, texts)


def moments(tmp_path, prompt_id):
    return list(read_values(tmp_path / "board").get(f"previews/{prompt_id}", {}))


def test_an_image_is_shown_when_it_is_saved_and_not_again(previews, board, tmp_path):
    shown = BoardPreviews(previews, tmp_path / "board", 0)
    shown.expect(8)
    save(previews, tmp_path, 8, IDS[0])
    for _ in range(3):
        shown.show(board)
    save(previews, tmp_path, 8, IDS[2])
    assert shown.show_last(board, 0.0) == 1
    board.close()
    assert [moments(tmp_path, name) for name in IDS] == [[8], [], [8]]


def test_an_image_of_another_training_is_not_shown(previews, board, tmp_path):
    shown = BoardPreviews(previews, tmp_path / "board", 0)
    shown.expect(8)
    save(previews, tmp_path, 8, IDS[0], training="another")
    assert shown.show_last(board, 0.0) == 3
    board.close()
    assert moments(tmp_path, IDS[0]) == []


def test_what_was_never_drawn_is_not_waited_for_and_comes_never_behind_a_later_one(
    previews, board, tmp_path
):
    """TensorBoard would drop the later one."""
    shown = BoardPreviews(previews, tmp_path / "board", 0)
    for seen in (8, 16):
        shown.expect(seen)
    for name in IDS:
        save(previews, tmp_path, 16, name)
    assert shown.show_last(board, 60.0) == 0
    save(previews, tmp_path, 8, IDS[0])
    shown.show(board)
    board.close()
    assert [moments(tmp_path, name) for name in IDS] == [[16]] * 3


def test_of_two_images_that_come_during_a_look_none_is_lost(previews, board, tmp_path, monkeypatch):
    """Another rank saves both, in order, while rank 0 looks at one moment after the other."""
    shown, real, looks = BoardPreviews(previews, tmp_path / "board", 0), previews.drawn, []
    for seen in (8, 16):
        shown.expect(seen)

    def drawn(rows, seen):
        found = real(rows, seen)
        looks.append(seen)
        if len(looks) == 1:
            save(previews, tmp_path, 8, IDS[1])
            save(previews, tmp_path, 16, IDS[1])
        return found

    monkeypatch.setattr(previews, "drawn", drawn)
    for _ in range(2):
        shown.show(board)
    board.close()
    assert moments(tmp_path, IDS[1]) == [8, 16]


def test_the_next_attempt_knows_what_is_shown(previews, board, tmp_path):
    for seen in (8, 16, 24):
        save(previews, tmp_path, seen, IDS[0])
        board.preview(IDS[0], (moment_folder(tmp_path / "previews", seen) / f"{IDS[0]}.png")
                      .read_bytes(), "a bird", seen)  # fmt: skip
    board.close()
    assert shown_previews(tmp_path / "board", 16) == {(8, IDS[0]), (16, IDS[0])}
    assert shown_previews(tmp_path / "board", 0) == set(), "one that begins voids everything"
    TensorBoard(tmp_path / "board", 8, pytest.fail).close()
    assert shown_previews(tmp_path / "board", 24) == {(8, IDS[0])}, "the second voids the others"


@pytest.mark.parametrize("spoil", [lambda content: content[:-30], lambda content: b"\xff" * 90])
def test_a_spoilt_file_of_points_ends_nothing(previews, board, tmp_path, spoil):
    save(previews, tmp_path, 8, IDS[0])
    shown = BoardPreviews(previews, tmp_path / "board", 0)
    shown.expect(8)
    shown.show(board)
    board.close()
    (file,) = (tmp_path / "board").iterdir()
    file.write_bytes(spoil(file.read_bytes()))
    assert shown_previews(tmp_path / "board", 8) == set()
