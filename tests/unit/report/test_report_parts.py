"""What a report is put together from: the sentence on top, the choice of images."""

import pandas as pd
import pytest

from distillery import words
from distillery.config.training import Training
from distillery.files import hash_file
from distillery.measures.lists import MEANS
from distillery.measures.manifests import ModelSamples
from distillery.report import html, image_grid, tables, training_facts
from distillery.report.roles import Roles
from distillery.report.speeds import ImageTime
from distillery.report.verdict import headline
from training_phases import phases

PLAIN = Training(phases=phases(stored=64), global_batch_size=8)
ENDS = {"low": 0.5, "high": 1.0}


@pytest.mark.parametrize(
    ("ratio", "words"),
    [
        (12.0, "needs 12 times fewer network calls;"),
        (1.0, "needs as many network calls;"),
        (0.5, "needs 2 times more network calls;"),
    ],
)
def test_a_headline_makes_sense_of_every_ratio(ratio, words):
    roles = Roles("student", "teacher")
    assert words in headline(roles, None, {"network_calls_ratio": ratio})


def test_a_headline_says_what_was_kept_before_the_training():
    def keeping(share):
        return {"against": {"teacher": {"clip_score_ratio": {"mean": share} | ENDS}}}

    quality = {"models": {"student": keeping(0.96), "untrained": keeping(0.78)}}
    speed = {"network_calls_ratio": 24.0}
    text = headline(Roles("student", "teacher", None, "untrained"), quality, speed)
    assert text.endswith("24 times fewer network calls; before its training it kept 78.0\xa0%.")
    assert "keeps 96.0\xa0% of the teacher's CLIP score" in text
    text = headline(Roles("student", "teacher"), quality, speed)
    assert text.endswith("24 times fewer network calls.")


def test_a_headline_names_a_reference_that_is_not_the_teacher():
    """Three times the score of a broken teacher of two steps is not three times the teacher's."""
    kept = {"against": {"teacher-2-steps": {"clip_score_ratio": {"mean": 3.036} | ENDS}}}
    roles = Roles("student", "teacher-2-steps")
    speed = {"network_calls_ratio": 2.0}
    assert headline(roles, {"models": {"student": kept}}, speed) == (
        "The student scores 3.04 times teacher-2-steps's CLIP score (0.50 to 1.00) with 2 times "
        "fewer network calls than teacher-2-steps."
    )
    assert "2 times fewer network calls than teacher-2-steps;" in headline(roles, None, speed)


def test_a_difference_is_marked_where_its_whole_interval_is_better():
    def difference(low, high):
        return {"mean": (low + high) / 2, "low": low, "high": high}

    above, around, below = difference(0.1, 0.2), difference(-0.1, 0.1), difference(-0.2, -0.1)
    names = [f"{measure.name}_difference" for measure in MEANS]
    for found, is_better in (
        (above, [True, False, True]),  # more of a CLIP score, less of an error, more decibels
        (around, [False, False, False]),
        (below, [False, True, False]),
    ):
        against = {"fast": dict.fromkeys(names, found)}
        models = {"student": {"against": against, "network_calls": 4}}
        models["fast"] = {"network_calls": 4}
        roles = Roles("student", "teacher")
        table = tables.differences_table({"models": models}, roles)
        assert [cell.is_best for cell in table.rows["fast"]] == is_better


def test_a_comparison_that_older_scores_lack_is_an_empty_cell():
    models = {"student": {"against": {"fast": {}}, "network_calls": 4}}
    models["fast"] = {"network_calls": 4}
    table = tables.differences_table({"models": models}, Roles("student", "teacher"))
    assert [cell.text for cell in table.rows["fast"]] == [""] * len(MEANS)


def around(mean, reach=0.01):
    return {"mean": mean, "low": mean - reach, "high": mean + reach}


def best_of(scores):
    """The models that are marked for their CLIP score, of intervals by name."""
    models = {
        name: {"against": {}, "network_calls": 2, "clip_score": score}
        for name, score in scores.items()
    }
    table = tables.metrics_table({"models": models}, Roles("a", "b"), {})
    place = list(tables.COLUMNS).index("clip_score")
    return [name for name in scores if table.rows[name][place].is_best]


def test_the_best_of_a_column_needs_intervals():
    """Times are of one machine, which may have done more for one: the least says nothing."""
    names = ("slow", "fast", "odd")
    means = dict(zip(names, (0.3, 0.2, 0.1), strict=True))
    models = {
        name: {"against": {}, "network_calls": 2, "clip_score": around(mean)}
        for name, mean in means.items()
    }
    times = {
        name: ImageTime(mean, 8, (), num_batches=3, low=mean - 0.01, high=mean + 0.01)
        for name, mean in means.items()
    }
    table = tables.metrics_table({"models": models}, Roles("slow", "fast"), times)
    found = {
        title: [name for name in names if table.rows[name][index].is_best]
        for index, title in enumerate(tables.COLUMNS)
    }
    assert found == {key: [] for key in tables.COLUMNS} | {"clip_score": ["slow"]}


def test_the_best_of_a_column_overlaps_no_other():
    """Neither the second best nor one of a wide or an open interval."""
    assert best_of({"a": around(0.9), "b": around(0.5), "c": around(0.4)}) == ["a"]
    assert best_of({"a": around(0.9), "b": around(0.89), "c": around(0.4)}) == []
    assert best_of({"a": around(0.9), "b": around(0.5), "c": around(0.4, 0.6)}) == []
    assert best_of({"a": around(0.9), "b": around(0.5), "c": around(0.4) | {"high": None}}) == []
    assert best_of({"a": around(0.9)}) == []


def test_equals_are_the_best_together():
    assert best_of({"a": around(1.0), "b": around(1.0), "c": around(0.5)}) == ["a", "b"]
    assert best_of({"a": around(1.0), "b": around(1.0)}) == []


def test_noise_below_zero_is_not_the_nearest_set():
    """An MMD² without bias may be below 0, which is its ideal."""
    quality = sets_of(0.02, {})
    noise = {"mean": -8.48e-3, "low": -34.5e-3, "high": 8.6e-3}
    for name, mmd in (("few", noise), ("student", around(1e-3, 5e-3))):
        quality["models"][name]["sets"]["judge"]["mmd"] = mmd
    (found,) = tables.set_tables(quality, Roles("student", "teacher"))
    place = [column.title for column in found.table.columns].index("1,000 MMD²")
    assert not any(row[place].is_best for row in found.table.rows.values())


def sets_of(student, left_out):
    """quality.json of three models with Fréchet distances in one vision model; None: left out."""

    def measures(mean):
        interval = None if student is None else around(mean)
        return {"judge": dict.fromkeys(tables.SET_COLUMNS) | {"frechet": interval}}

    facts = {"path": "j", "num_features": 64, "num_prompts": 80, "left_out": left_out}
    return {
        "vision_models": {"judge": facts},
        "models": {
            "teacher": {"network_calls": 48, "sets": measures(0.01)},
            "few": {"network_calls": 4, "sets": measures(0.3)},
            "student": {"network_calls": 2, "sets": measures(student)},
        },
    }


def test_a_table_of_sets_shows_the_floor_and_marks_the_nearest_model():
    (found,) = tables.set_tables(sets_of(0.02, {}), Roles("student", "teacher"))
    assert [column.title for column in found.table.columns] == ["Fréchet distance"]
    cells = {name: (cell.text, cell.is_best) for name, (cell,) in found.table.rows.items()}
    floor, few, student = ("0.0100", False), ("0.3000", False), ("0.0200", True)
    assert cells == {"teacher": floor, "few": few, "student": student}
    assert found.left_out == ""


def test_a_table_of_sets_says_how_many_images_are_needed():
    needs = {"frechet": {"images": 130, "per_prompt": 2, "prompts": 1}}
    needs["mmd"] = {"images": 2, "per_prompt": 1, "prompts": 2}
    (found,) = tables.set_tables(sets_of(None, needs), Roles("student", "teacher"))
    assert found.table is None
    assert found.left_out == (
        "Fréchet distance: at least 130 images of each model, 2 of each prompt; "
        "MMD: at least 2 images of each model, 1 of each prompt, of 2 prompts"
    )


def test_older_scores_have_no_tables_of_sets():
    assert tables.set_tables({"models": {}}, Roles(None, "teacher")) == []
    assert tables.set_tables(None, Roles(None, "teacher")) == []


@pytest.mark.parametrize(
    ("changes", "parts", "restarts"),
    [
        ({}, "", []),
        (
            {"phases": phases(stored=24, rounds={"count": 2, "samples": 16}, adversarial=8)},
            "24 from the teacher's stored trajectories, then 2 rounds of 16, half of them from "
            "states that the student visited before the round, then an adversarial finish of 8",
            [(24, "round 1"), (40, "round 2"), (56, "finish")],
        ),
        (
            {"phases": phases(stored=40, online=16, rollouts=8)},
            "40 from the teacher's stored trajectories, then 16 with online targets, then 8 whole "
            "rollouts",
            [(40, "finish")],
        ),
        (
            {"phases": phases(online={"samples": 64, "distribution_matching": {}})},
            "64 with online targets and distribution matching",
            [],
        ),
        (
            {"phases": phases(stored=48, rounds=16), "schedule": "constant"},
            "48 from the teacher's stored trajectories, then 1 round of 16, half of them from "
            "states that the student visited before the round",
            [],
        ),
    ],
)
def test_the_parts_of_a_training_are_told(changes, parts, restarts):
    training = Training(**PLAIN.model_dump(exclude_unset=True) | changes)
    assert training_facts.training_parts(training) == parts
    assert training_facts.restarts(training) == restarts


def test_numbers_are_listed_in_words():
    found = [words.listed_numbers(numbers) for numbers in ([8], [8, 16], [8, 16, 2400])]
    assert found == ["8", "8 and 16", "8, 16 and 2,400"]


def test_grid_shows_the_worst_and_nothing_twice():
    rows = [(f"eval-{number:03d}", 0) for number in range(100)]
    table = pd.DataFrame(rows, columns=["prompt_id", "index"])
    scores = table.assign(model="student", clip_score=0.5, rank=1, psnr_db=30.0)
    scores.loc[41, "psnr_db"] = 9.0
    scores.loc[77, "rank"] = 60
    chosen = image_grid.choose_rows(table, scores, "student")
    spread, farthest, unlike = chosen.values()
    assert farthest[0] == 41
    assert unlike[0] == 77
    everything = spread + farthest + unlike
    assert len(everything) == len(set(everything)) == image_grid.MAX_SHOWN
    assert spread[0] <= 10
    assert spread[-1] >= 90


@pytest.mark.parametrize("width", [64, 96, 320])
@pytest.mark.parametrize("num_models", [1, 2, 4])
def test_a_card_of_small_images_shows_every_model(width, num_models):
    """Columns as report.css has them: 6rem at least, 10 px apart, in a frame of 28 px."""
    image = image_grid.Cell("a", "data:", "a.png", width, width, True, False, None, None, None)
    row = image_grid.Row("a", 0, "a", (image,) * num_models)
    grid = image_grid.Grid((image_grid.Group("all", (row,)),), 1, 1)
    needed = num_models * max(width, 96) + (num_models - 1) * 10 + 28
    assert needed <= grid.card_px < needed + 10


def test_large_images_are_scaled_down(tmp_path):
    from PIL import Image

    noise = Image.effect_noise((1024, 512), 80).convert("RGB")
    noise.save(tmp_path / "large.png")
    uri, width, height = html.inline(tmp_path / "large.png", noise)
    assert (width, height) == (400, 200)
    assert uri.startswith("data:image/webp;base64,")
    assert len(uri) < 120_000


def test_the_first_screen_has_the_models_that_matter(tmp_path):
    from PIL import Image

    def model(name, calls):
        folder = tmp_path / name
        folder.mkdir()
        digests = []
        for number in range(10):
            Image.new("RGB", (640, 320), (number, 0, calls)).save(folder / f"{number}.png")
            digests.append(hash_file(folder / f"{number}.png"))
        table = pd.DataFrame({"file": [f"{number}.png" for number in range(10)], "sha256": digests})
        columns = {"prompt": "a cat", "prompt_id": table["file"], "index": 0, "is_black": False}
        return ModelSamples(name, folder, table.assign(**columns, network_calls=calls))

    samples = {name: model(name, calls) for name, calls in (("teacher", 48), ("student", 2))}
    lead = image_grid.make_lead(samples, ["teacher", "student", None, "teacher"], tmp_path)
    assert [(row.model, row.network_calls) for row in lead.rows] == [
        ("teacher", 48),
        ("student", 2),
    ]
    assert len(lead.prompts) == image_grid.NUM_LEADING
    for row in lead.rows:
        assert [image.link for image in row.images][:2] == [f"{row.model}/{n}.png" for n in (0, 1)]
        assert {image.width for image in row.images} == {200}, "scaled down: it is on each page"
    assert image_grid.make_lead(samples, ["student", None], tmp_path) is None, "nothing beside it"
