"""The tables of metrics: what is marked as the best, and what is left out."""

import pytest

from distillery.measures.intervals import ConfidenceInterval
from distillery.measures.lists import MEANS, measures_of
from distillery.report import tables
from distillery.report.roles import Roles
from distillery.report.speeds import ImageTime
from quality import interval

MEANS_OF_IMAGES = [it for it in measures_of(1) if it in MEANS and not it.is_optional]
COLUMNS = list(tables.columns_of({}))
OF_CLIPS = ["motion", "motion_ratio", "flicker", "first_frame_psnr_db"]


def test_a_difference_is_marked_where_its_whole_interval_is_better():
    def difference(low, high):
        return {"mean": (low + high) / 2, "low": low, "high": high}

    above, around, below = difference(0.1, 0.2), difference(-0.1, 0.1), difference(-0.2, -0.1)
    names = [f"{measure.name}_difference" for measure in MEANS_OF_IMAGES]
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
    assert [cell.text for cell in table.rows["fast"]] == [""] * len(MEANS_OF_IMAGES)


def test_clips_have_columns_of_their_own():
    facts = {"against": {"teacher": {"motion_ratio": interval(0.5)}}, "network_calls": 4}
    facts |= {"motion": interval(12.5)}
    models = {"student": facts, "teacher": {"against": {}, "network_calls": 48}}
    quality = {"num_frames": 9, "models": models}
    columns = list(tables.columns_of(quality))
    assert [key for key in columns if key not in COLUMNS] == OF_CLIPS
    assert list(tables.columns_of({"num_frames": 2}))[-4:] == [
        *OF_CLIPS[:2],
        OF_CLIPS[3],
        "seconds",
    ]
    row = tables.metrics_table(quality, Roles("student", "teacher"), {}).rows["student"]
    texts = [row[columns.index(key)].text for key in OF_CLIPS]
    assert texts == ["12.50", "0.50", "", ""]
    models["few"] = {"network_calls": 8}
    facts["against"]["few"] = {"motion_difference": interval(1.5)}
    table = tables.differences_table(quality, Roles("student", "teacher"))
    titles = [column.title for column in table.columns]
    assert titles == ["CLIP score", "Latents MSE", "PSNR", "Motion", "PSNR, first frame"]
    assert [cell.text for cell in table.rows["few"]] == ["", "", "", "+1.50", ""]
    assert not table.rows["few"][3].is_best, "more of it may be flicker"


def best_of(scores):
    """The models that are marked for their CLIP score, of intervals by name."""
    models = {
        name: {"against": {}, "network_calls": 2, "clip_score": score}
        for name, score in scores.items()
    }
    table = tables.metrics_table({"models": models}, Roles("a", "b"), {})
    place = COLUMNS.index("clip_score")
    return [name for name in scores if table.rows[name][place].is_best]


def test_the_best_of_a_column_needs_intervals():
    """Times are of one machine, which may have done more for one: the least says nothing."""
    names = ("slow", "fast", "odd")
    means = dict(zip(names, (0.3, 0.2, 0.1), strict=True))
    models = {
        name: {"against": {}, "network_calls": 2, "clip_score": interval(mean)}
        for name, mean in means.items()
    }
    times = {
        name: ImageTime(mean, 8, (), num_batches=3, low=mean - 0.01, high=mean + 0.01)
        for name, mean in means.items()
    }
    table = tables.metrics_table({"models": models}, Roles("slow", "fast"), times)
    found = {
        title: [name for name in names if table.rows[name][index].is_best]
        for index, title in enumerate(COLUMNS)
    }
    assert found == {key: [] for key in COLUMNS} | {"clip_score": ["slow"]}


@pytest.mark.parametrize(
    ("scores", "marked"),
    [
        ([interval(0.9), interval(0.5), interval(0.4)], "a"),
        ([interval(0.9), interval(0.89), interval(0.4)], ""),
        ([interval(0.9), interval(0.5), interval(0.4, 0.6)], ""),
        ([interval(0.9), interval(0.5), interval(0.4) | {"high": None}], ""),
        ([interval(0.9)], ""),
        ([interval(1.0), interval(1.0), interval(0.5)], "ab"),
        ([interval(1.0), interval(1.0)], ""),
    ],
)
def test_the_best_of_a_column_overlaps_no_other(scores, marked):
    """Neither the second best nor one of a wide or an open interval; equals are best together."""
    assert best_of(dict(zip("abc", scores, strict=False))) == [*marked]


def test_noise_below_zero_is_not_the_nearest_set():
    """An MMD² without bias may be below 0, which is its ideal."""
    quality = sets_of(0.02, {})
    noise = {"mean": -8.48e-3, "low": -34.5e-3, "high": 8.6e-3}
    for name, mmd in (("few", noise), ("student", interval(1e-3, 5e-3))):
        quality["models"][name]["sets"]["judge"]["mmd"] = mmd
    (found,) = tables.set_tables(quality, Roles("student", "teacher"))
    place = [column.title for column in found.table.columns].index("1,000 MMD²")
    assert not any(row[place].is_best for row in found.table.rows.values())


def sets_of(student, left_out):
    """quality.json of three models with Fréchet distances in one vision model; None: left out."""

    def measures(mean):
        frechet = None if student is None else interval(mean)
        return {"judge": dict.fromkeys(tables.SET_COLUMNS) | {"frechet": frechet}}

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


def test_intervals_are_drawn_to_the_scale_of_their_column() -> None:
    values = {
        "a": ConfidenceInterval(0.5, 0.2, 0.6),
        "b": ConfidenceInterval(0.4, None, None),
        "c": None,
    }
    spans = tables.find_spans(values, rule=0.7)
    assert spans == {
        "a": tables.Span(60.0, 0.0, 80.0, 100.0),
        "b": tables.Span(40.0, 40.0, 40.0, 100.0),
    }
    assert tables.find_spans({"a": values["a"]}, 0.7) == {}, "nothing to compare with"


def test_a_ratio_is_read_against_the_reference_which_has_none() -> None:
    models = {
        name: {"against": {"a": {"clip_score_ratio": interval(ratio)}}, "network_calls": 2}
        for name, ratio in (("b", 0.5), ("c", 0.8))
    }
    models["a"] = {"against": {}, "network_calls": 48}
    row = tables.metrics_table({"models": models}, Roles("b", "a"), {}).rows["c"]
    span = row[COLUMNS.index("clip_score_ratio")].span
    assert span is not None
    assert span.mean < span.rule == 100.0
