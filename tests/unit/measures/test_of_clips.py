"""Scores of clips: which frames are looked at."""

from itertools import islice

import numpy as np
import pytest
from PIL import Image

from distillery.measures import score
from distillery.measures.judge import embed_prompts, load_judge
from distillery.measures.of_judge import pool_frames
from distillery.measures.vision import embed_images
from judging import CPU, PROMPTS, Run, draw_clip, make_judge

NUM_FRAMES = 5


@pytest.fixture(scope="module")
def judge_folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("judge")
    make_judge(folder)
    return folder


@pytest.fixture(scope="module")
def whole(tmp_path_factory, judge_folder):
    """A run of clips, in which the teacher's move twice as fast as all others'."""
    return Run(tmp_path_factory.mktemp("clips"), str(judge_folder), NUM_FRAMES)


@pytest.fixture(scope="module")
def evaluated(whole):
    return whole.evaluate()


def unit(rows):
    return rows / np.linalg.norm(rows, axis=-1, keepdims=True)


def test_frames_count_alike_however_long_their_features_are():
    features = np.array([[3.0, 0.0], [0.0, 4.0], [0.0, 0.5], [0.0, 2.0]])
    expected = [[0.5, 0.5], [0.0, 1.0]]
    np.testing.assert_allclose(pool_frames(features, 2), expected)
    with pytest.raises(ValueError, match="zero or not finite"):
        pool_frames(np.zeros((2, 2)), 2)


@pytest.mark.parametrize(
    ("most", "frames"), [(16, [0, 1, 2, 3, 4]), (3, [0, 2, 4]), (2, [0, 4]), (4, [0, 1, 2, 4])]
)
def test_the_judge_sees_the_mean_of_frames_at_equal_distances(
    whole, tmp_path, judge_folder, monkeypatch, most, frames
):
    monkeypatch.setattr(score, "MAX_FRAMES", most)
    _, scores = whole.copy(tmp_path).evaluate()
    judge = load_judge(str(judge_folder), CPU)
    clip = [Image.fromarray(frame) for frame in draw_clip(PROMPTS[3], 2, NUM_FRAMES, 1)]
    features = embed_images(judge.vision, [clip[frame] for frame in frames])
    expected = unit(unit(features).mean(axis=0)) @ unit(embed_prompts(judge, [PROMPTS[3]])[0])
    row = scores.query("model == 'student' and prompt_id == 'eval-03' and `index` == 1").iloc[0]
    assert row["clip_score"] == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("num_frames", [5, 16, 81])
def test_few_clips_are_decoded_at_once(num_frames, monkeypatch):
    """As many frames as of images, where they are looked at."""
    decoded, most = [], min(num_frames, score.MAX_FRAMES)

    class Samples:
        table = range(200)

        def __init__(self):
            self.num_frames = num_frames

        def read_pixels(self, row):
            decoded.append(row)
            return np.zeros((num_frames, 2, 2, 3), np.uint8)

    images = score._read_images(Samples())
    at_once = score.READ_AHEAD // most
    assert len(list(islice(images, at_once * most))) == at_once * most
    assert sorted(decoded) == list(range(at_once))
    assert sum(1 for _ in images) == (200 - at_once) * most
