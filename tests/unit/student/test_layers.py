"""Which blocks a rule keeps, and what a student of fewer blocks is made of."""

import itertools
import json
from pathlib import Path
from typing import Any

import diffusers
import pytest
import torch

import tiny
from distillery.config.jobs import TrainingJob, read_job
from distillery.config.student import LayersRule, Student
from distillery.families import family_named
from distillery.files import read_json, write_json
from distillery.student.build import build_student
from distillery.student.info import describe_student, read_student_info
from distillery.student.layers import average_dropped, blocks_of, choose_layers, keep_blocks
from traced import ROWS


@pytest.mark.parametrize(
    ("rule", "num_layers", "num_kept", "kept"),
    [
        ("even", 30, 4, (0, 10, 19, 29)),
        ("even", 5, 3, (0, 2, 4)),
        ("even", 6, 3, (0, 3, 5)),
        ("even", 7, 1, (0,)),
        ("even", 1, 1, (0,)),
        ("first", 6, 2, (0, 1)),
        ("last", 6, 2, (4, 5)),
        ("ends", 6, 3, (0, 1, 5)),
        ("ends", 6, 4, (0, 1, 4, 5)),
        ("ends", 6, 1, (0,)),
    ],
)
def test_a_rule_keeps(
    rule: LayersRule, num_layers: int, num_kept: int, kept: tuple[int, ...]
) -> None:
    assert choose_layers(num_layers, num_kept, rule) == kept


@pytest.mark.parametrize("rule", ["even", "first", "last", "ends"])
def test_every_rule_keeps_as_many_as_asked_each_once(rule: LayersRule) -> None:
    for num_layers in range(1, 41):
        for num_kept in range(1, num_layers + 1):
            kept = choose_layers(num_layers, num_kept, rule)
            assert len(kept) == num_kept
            assert sorted(set(kept)) == list(kept)
            assert set(kept) <= set(range(num_layers))
            if rule == "even" and num_kept > 1:
                assert (kept[0], kept[-1]) == (0, num_layers - 1)
                gaps = [after - before for before, after in itertools.pairwise(kept)]
                assert max(gaps) - min(gaps) <= 1


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    tiny.make_tiny_wan(folder / "teacher", num_layers=5)
    return folder


def build(folder: Path, **student: Any) -> Path:
    """Build from the teacher in `folder`; returns the model folder."""
    tiny.write_training_job(folder)
    path = folder / "config" / "training.json"
    write_json(path, read_json(path) | {"student": {"steps": 4} | student})
    build_student(read_job(path, TrainingJob), folder / "initial")
    return folder / "initial"


@pytest.mark.parametrize(
    ("chosen", "kept"),
    [
        ({"num_layers": 3}, [0, 2, 4]),
        ({"num_layers": 2, "layers_rule": "last"}, [3, 4]),
        ({"layers": [1, 2]}, [1, 2]),
        ({"num_layers": 5}, [0, 1, 2, 3, 4]),
    ],
)
def test_the_blocks_kept_are_the_teachers(
    data: Path, chosen: dict[str, Any], kept: list[int]
) -> None:
    folder = build(data, init="layers", **chosen)
    ours = diffusers.AutoModel.from_pretrained(str(folder))
    theirs = diffusers.AutoModel.from_pretrained(str(data / "teacher" / "transformer"))
    assert ours.config.num_layers == len(ours.blocks) == len(kept)
    for mine, source in zip(ours.blocks, kept, strict=True):
        pairs = zip(mine.parameters(), theirs.blocks[source].parameters(), strict=True)
        assert all(torch.equal(left, right) for left, right in pairs)


def test_what_was_kept_is_written_down(data: Path) -> None:
    folder = build(data, init="layers", num_layers=2)
    info = read_student_info(folder)
    assert info is not None
    assert info.layers == (0, 4)
    assert info.num_parameters == info.copied_parameters == info.trained_parameters
    parameters = diffusers.AutoModel.from_pretrained(str(folder)).parameters()
    assert info.num_parameters == sum(parameter.numel() for parameter in parameters)
    assert info.teacher_parameters > info.num_parameters
    assert describe_student(info).endswith("of the teacher's; blocks 0, 4")


def test_dropped_blocks_are_averaged_into_the_nearest_kept(data: Path) -> None:
    """Of five blocks 2 is as near to 1 as to 3, and the earlier one takes it."""
    folder = build(data, init="layers", layers=[1, 3], dropped="average")
    ours = diffusers.AutoModel.from_pretrained(str(folder))
    theirs = diffusers.AutoModel.from_pretrained(str(data / "teacher" / "transformer"))
    for mine, group in zip(ours.blocks, [(0, 1, 2), (3, 4)], strict=True):
        for name, value in mine.named_parameters():
            sources = [theirs.blocks[index].get_parameter(name) for index in group]
            torch.testing.assert_close(value, sum(sources) / len(sources), msg=name)
    assert torch.equal(ours.scale_shift_table, theirs.scale_shift_table)


def test_blocks_of_another_row_or_shape_are_not_averaged() -> None:
    """As FLUX's double and single blocks, and the last one of SD3."""
    rows = {"a": [2, 2, 3], "b": [4, 4]}
    network = torch.nn.ModuleDict(
        {
            name: torch.nn.ModuleList([torch.nn.Linear(width, 1) for width in widths])
            for name, widths in rows.items()
        }
    )
    before = {name: value.clone() for name, value in network.named_parameters()}
    average_dropped(network, rows, [0, 2])
    mean = (before["a.0.weight"] + before["a.1.weight"]) / 2
    torch.testing.assert_close(network.get_parameter("a.0.weight"), mean)
    for name in ("a.1.weight", "a.2.weight", "b.0.weight", "b.1.weight"):
        assert torch.equal(network.get_parameter(name), before[name]), name


@pytest.mark.parametrize(
    ("name", "blocks"),
    [
        ("ZImagePipeline", {"layers": "n_layers"}),
        ("ChromaPipeline", {}),
        ("StableDiffusionXLPipeline", {}),
    ],
)
def test_a_list_is_a_row_if_one_key_counts_its_blocks_alone(
    name: str, blocks: dict[str, str]
) -> None:
    """One of Z-Image's counts two lists; Chroma's blocks are counted in what embeds the time."""
    assert blocks_of(ROWS[name].make().components[_network(name)]) == blocks


def _network(name: str) -> str:
    return "unet" if name.startswith("StableDiffusionXL") else "transformer"


def test_a_block_that_comes_to_a_place_of_another_shape_is_refused() -> None:
    """The last of Mochi's has no text branch."""
    network = ROWS["MochiPipeline"].make().transformer
    with pytest.raises(
        ValueError, match=r"brings block 0 to transformer_blocks\.0, where this net"
    ):
        keep_blocks(network, family_named("wan"), blocks_of(network), [0])
    network = ROWS["MochiPipeline"].make().transformer
    keep_blocks(network, family_named("wan"), blocks_of(network), [1])
    assert network.config.num_layers == len(network.transformer_blocks) == 1


def test_more_blocks_than_there_are(data: Path) -> None:
    with pytest.raises(ValueError, match=r"num_layers is 9: .* has 5 blocks; use 1 to 5"):
        build(data, init="layers", num_layers=9)


@pytest.mark.parametrize(
    ("section", "problem"),
    [
        ({"init": "layers", "layers": [0], "num_layers": 1}, "give layers or num_layers or unet"),
        ({"init": "lora"}, "student.lora is null: give lora"),
        ({"init": "lora", "config": "x.json"}, "student.config is x.json: give lora"),
        ({"init": "teacher", "lora": {}}, "student.lora is given: remove it, or"),
        ({"layers_rule": "last"}, "but has no effect"),
        ({"dropped": "average"}, "but has no effect"),
        ({"init": "layers", "unet": {"mid_block": "none"}, "dropped": "average"}, "no effect"),
        ({"init": "layers", "unet": {}}, "keeps everything"),
        (
            {"init": "layers", "unet": {"transformer_layers_per_block": [1, [1, 2]]}},
            r"transformer_layers_per_block is \[1, \[1, 2\]\] .* give their numbers too",
        ),
    ],
)
def test_sections_that_contradict_themselves(section: dict[str, Any], problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        Student.model_validate_json(json.dumps(section))
