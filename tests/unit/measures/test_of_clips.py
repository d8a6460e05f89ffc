"""Scores of clips: which frames are looked at, and motion and flicker computed by hand."""

from collections import Counter
from itertools import islice

import numpy as np
import pandas as pd
import pytest
from PIL import Image

from distillery.measures import of_clips, score
from distillery.measures.intervals import Groups, draw_weights
from distillery.measures.judge import embed_prompts, load_judge
from distillery.measures.manifests import ModelSamples, read_samples
from distillery.measures.of_judge import pool_frames
from distillery.measures.vision import embed_images
from judging import CPU, PROMPTS, Run, draw_clip

NUM_FRAMES = 5


@pytest.fixture(scope="module")
def whole(tmp_path_factory, judge_folder):
    """A run of clips, in which the teacher's move twice as fast as all others'."""
    return Run(tmp_path_factory.mktemp("clips"), str(judge_folder), NUM_FRAMES)


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


# ---- by hand ------------------------------------------------------------------------------------


def moving_square(columns, level=100):
    """A square of 2 × 2 pixels on black, its left edge in these columns; frames of 4 × 12."""
    clip = np.zeros((len(columns), 4, 12, 3), np.uint8)
    for frame, column in zip(clip, columns, strict=True):
        frame[1:3, column : column + 2] = level
    return clip


def test_motion_by_hand():
    """One step to the side uncovers 2 pixels and covers 2, two steps 4 and 4; of 48 pixels."""
    one_step = 4 * 100**2 / 48
    assert of_clips.motion(moving_square([0, 1, 2, 3])) == pytest.approx(one_step)
    assert of_clips.motion(moving_square([0, 2, 4, 6])) == pytest.approx(2 * one_step)
    assert of_clips.motion(moving_square([6, 4, 2, 0])) == pytest.approx(2 * one_step)
    assert of_clips.motion(moving_square([0, 1, 1, 3])) == pytest.approx((1 + 0 + 2) / 3 * one_step)
    assert of_clips.motion(moving_square([0, 1])) == pytest.approx(one_step)


def test_a_still_clip_has_no_motion_however_rich_its_frames_are():
    image = np.random.default_rng(0).integers(0, 256, (8, 8, 3), dtype=np.uint8)
    assert of_clips.motion(np.stack([image] * 4)) == 0.0
    assert of_clips.motion(np.zeros((4, 8, 8, 3), np.uint8)) == 0.0


def test_motion_of_noise_is_twice_its_variance():
    """Independent frames, each even over 0 to 255: of the variance (256² - 1) / 12."""
    clip = np.random.default_rng(1).integers(0, 256, (9, 64, 64, 3), dtype=np.uint8)
    assert of_clips.motion(clip) == pytest.approx(2 * (256**2 - 1) / 12, rel=0.02)


def of_levels(*levels):
    """A clip whose frames are grey."""
    return np.stack([np.full((2, 3, 3), level, np.uint8) for level in levels])


def test_motion_does_not_wrap_around():
    """0 and 255 in uint8 differ by 255, not by 1: the most there is."""
    assert of_clips.motion(of_levels(0, 255, 0)) == 255**2


def test_flicker_by_hand():
    """A fade by 10 a frame has no second difference; up and down by 10 has ones of 20."""
    fade, flickering = of_levels(50, 60, 70, 80), of_levels(50, 60, 50, 60)
    rounding = of_clips.ROUNDING_ENERGY
    assert of_clips.flicker_ratio(fade, of_levels(9, 9, 9, 9)) == 1.0
    assert of_clips.flicker_ratio(flickering, fade) == (20**2 + rounding) / rounding
    assert of_clips.flicker_ratio(fade, flickering) == rounding / (20**2 + rounding)
    energy = (30**2 + 60**2 + 30**2) / 3
    ratio = of_clips.flicker_ratio(of_levels(50, 50, 80, 50, 50), of_levels(0, 0, 0, 0, 0))
    assert ratio == pytest.approx((energy + rounding) / rounding)
    assert of_clips.flicker_ratio(of_levels(0, 9, 0), of_levels(0, 9, 0)) == 1.0


def test_flicker_of_as_much_motion():
    """A fade, an edge that passes, noise, what alternates: second differences over first ones."""
    noise = np.random.default_rng(2).integers(0, 256, (40, 32, 32, 3), dtype=np.uint8)
    for clip, expected in (
        (of_levels(*range(0, 90, 10)), 0),
        (of_levels(0, 0, 0, 0, 90, 90, 90, 90), 2),
        (noise, 3),
        (of_levels(*[0, 90] * 4), 4),
    ):
        # Both are means, of one difference more or less: compare sums.
        second = (len(clip) - 2) * of_clips.difference_energy(clip, 2)
        first = (len(clip) - 1) * of_clips.motion(clip)
        assert second / first == pytest.approx(expected, rel=0.15)


def test_black_clips_flicker_alike():
    black = np.zeros((4, 6, 6, 3), np.uint8)
    assert of_clips.flicker_ratio(black, black) == 1.0
    assert of_clips.first_frame_psnr_db(black, black) == 100.0


def test_the_rounding_energy_is_that_of_rounding():
    values = np.random.default_rng(6).uniform(0, 255, size=(40, 60, 60, 1))
    found = of_clips.difference_energy(np.rint(values) - values, 2)
    assert found == pytest.approx(of_clips.ROUNDING_ENERGY, rel=0.02)


def test_the_first_frame_alone_is_compared():
    """It is off by 10, and all that follows by more."""
    reference = of_levels(100, 100, 100)
    found = of_clips.first_frame_psnr_db(of_levels(110, 200, 0), reference)
    assert found == pytest.approx(10 * np.log10(255**2 / 10**2))
    assert of_clips.first_frame_psnr_db(of_levels(100, 200, 0), reference) == 100.0


def test_what_has_no_difference_is_refused():
    with pytest.raises(ValueError, match="2 frames has no difference of order 2"):
        of_clips.difference_energy(of_levels(1, 2), 2)
    with pytest.raises(ValueError, match="cannot be compared"):
        of_clips.flicker_ratio(of_levels(1, 2, 3), of_levels(1, 2, 3, 4))
    with pytest.raises(ValueError, match="cannot be compared"):
        of_clips.first_frame_psnr_db(of_levels(1, 2, 3), of_levels(1, 2))


# ---- in the scores ------------------------------------------------------------------------------

OF_CLIPS = [measure.name for measure in of_clips.OF_CLIPS]


def test_every_clip_is_measured(evaluated):
    _, scores = evaluated
    assert list(scores.columns[-3:]) == ["motion", "flicker", "first_frame_psnr_db"]
    for name, speed, shift in (("teacher", 2, 0), ("student", 1, 1)):
        row = scores.query(f"model == '{name}' and prompt_id == 'eval-05' and `index` == 1").iloc[0]
        clip = draw_clip(PROMPTS[5], shift + 1, NUM_FRAMES, speed).astype(float)
        assert row["motion"] == pytest.approx(((clip[1:] - clip[:-1]) ** 2).mean())
    is_reference = scores["model"] == "teacher"
    assert scores["motion"].notna().all()
    assert scores["flicker"].isna().equals(is_reference)
    assert scores["first_frame_psnr_db"].isna().equals(is_reference)


def test_files_are_read_once_for_all_measures(whole, monkeypatch):
    """Image and latents of the student's and the teacher's; of the teacher alone its images."""
    model, reference = (
        read_samples(name, whole.manifests[name]) for name in ("student", "teacher")
    )
    found, read = Counter(), ModelSamples._read

    def count(samples, file):
        found[file.path] += 1
        return read(samples, file)

    monkeypatch.setattr(ModelSamples, "_read", count)
    score._measure_files(model, reference)
    assert set(found.values()) == {1}
    assert len(found) == 2 * 2 * len(model.table)
    found.clear()
    assert list(score._measure_files(reference, reference)) == ["motion"]
    assert set(found) == {reference.image(row).path for row in range(len(reference.table))}


def test_motion_over_the_references_is_of_means(evaluated):
    quality, scores = evaluated
    means = scores.groupby("model")["motion"].mean()
    student, teacher = (quality["models"][name] for name in ("student", "teacher"))
    paired = student["against"]["teacher"]
    ratio = paired["motion_ratio"]
    assert ratio["mean"] == pytest.approx(means["student"] / means["teacher"], rel=1e-5)
    assert ratio["low"] < ratio["mean"] < ratio["high"] < 1
    difference = means["student"] - means["teacher"]
    assert paired["motion_difference"]["mean"] == pytest.approx(difference, rel=1e-5)
    assert student["motion"]["mean"] == pytest.approx(means["student"], rel=1e-5)
    assert teacher["motion"]["mean"] == pytest.approx(means["teacher"], rel=1e-5)


def test_flicker_is_the_median_of_the_clips(evaluated):
    quality, scores = evaluated
    own = scores[scores["model"] == "student"]["flicker"]
    found = quality["models"]["student"]["flicker"]
    assert found["mean"] == pytest.approx(own.median(), rel=1e-5)
    assert quality["models"]["teacher"]["flicker"] is None
    assert quality["num_frames"] == NUM_FRAMES


def test_two_frames_have_no_flicker(tmp_path, judge_folder):
    quality, scores = Run(tmp_path, str(judge_folder), num_frames=2).evaluate()
    student = quality["models"]["student"]
    assert "flicker" not in scores
    assert "flicker" not in student
    assert {"motion", "first_frame_psnr_db"} < student.keys()


def test_images_have_none_of_it(tmp_path, judge_folder):
    quality, scores = Run(tmp_path, str(judge_folder)).evaluate()
    student = quality["models"]["student"]
    assert "num_frames" not in quality
    assert not set(OF_CLIPS) & set(scores.columns)
    assert not set(OF_CLIPS) & student.keys()
    assert not [key for key in student["against"]["teacher"] if key.startswith("motion")]


def test_a_reference_that_stands_still_has_no_ratio():
    groups = Groups.of([str(number) for number in range(8)])
    own, other = (pd.DataFrame({"motion": values}) for values in (np.arange(8.0), np.zeros(8)))
    found = score._paired(own, other, groups, draw_weights(8, 100))
    assert found["motion_ratio"] is None
    assert found["motion_difference"]["mean"] == 3.5
