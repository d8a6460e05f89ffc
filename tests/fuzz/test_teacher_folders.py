"""Damaged teacher folders: each is refused with a file's name, or reads prompts as the whole one.

One case takes a folder of a random family and does one random damage to it.
"""

import json
import os
import random
import shutil
from collections.abc import Callable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest
import torch

from distillery.config.teacher import Teacher
from distillery.families import Conditioning
from distillery.generation.embeddings import all_but_text, check_texts, encode_texts
from distillery.notes import refuse
from distillery.teacher.folder import PipelineFolder, find_teacher
from distillery.teacher.loading import load_teacher, load_tokenizers
from distillery.teacher.skeleton import load_skeleton, on_networks
from families import CASES
from families.case import FamilyCase
from fuzzing import seeds

PROMPTS = ("a red dog", "the house on a hill", "two blue birds", "")
OTHER_TYPES: tuple[Any, ...] = (None, True, -1, 10**7, 0.5, "x", "", [], [1, "a"], {}, {"a": [0]})
"""Values that some settings do not take."""


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("folders")


@lru_cache
def whole(root: Path, number: int) -> Path:
    """An undamaged teacher."""
    case = CASES[number]
    if not (root / case.name).exists():
        case.make(root / case.name)
    return root / case.name


def accept(folder: Path, case: FamilyCase) -> PipelineFolder:
    """What the plan does with a teacher's folder, but for settings of the run."""
    teacher = section(folder, case)
    found = find_teacher(teacher)
    refuse(on_networks(found))
    check_texts(teacher, found, load_tokenizers(found), PROMPTS)
    found.family.latent_shape(load_skeleton(found), case.size)
    assert found.parameters
    assert found.fingerprint()
    return found


def section(folder: Path, case: FamilyCase) -> Teacher:
    size = {"height": case.height, "width": case.width, "max_sequence_length": case.max_tokens}
    return Teacher(path=str(folder), dtype="float32", long_prompts="truncate", **size)


def encoded(found: PipelineFolder, case: FamilyCase) -> list[Conditioning]:
    device, absent = torch.device("cpu"), all_but_text(found)
    pipeline = load_teacher(section(found.path, case), found, device, absent)
    length = case.max_tokens or found.family.max_sequence_length
    return encode_texts(found.family, pipeline, PROMPTS, length, 2)


@lru_cache
def right(root: Path, number: int) -> list[Conditioning]:
    return encoded(PipelineFolder(whole(root, number)), CASES[number])


# Damages: each changes one thing, and returns what it was.


def any_file(folder: Path, draw: random.Random, pattern: str = "*") -> Path:
    files = sorted(path for path in folder.rglob(pattern) if path.is_file())
    return draw.choice(files)


def write(path: Path, content: bytes) -> None:
    """Replace a file; the whole teacher has the same one."""
    path.unlink()
    path.write_bytes(content)


def remove_file(folder: Path, draw: random.Random) -> str:
    path = any_file(folder, draw)
    path.unlink()
    return f"{path} removed"


def cut_file(folder: Path, draw: random.Random) -> str:
    path = any_file(folder, draw)
    content = path.read_bytes()
    kept = draw.choice([0, 1, len(content) // 2, len(content) - 1])
    write(path, content[:kept])
    return f"{path} cut to {kept}"


def foreign_content(folder: Path, draw: random.Random) -> str:
    path = any_file(folder, draw)
    content = draw.choice(
        [
            b"version https://git-lfs.github.com/spec/v1\n",
            b"[]",
            b"{}",
            b'"text"',
            b"[" * 100_000,
            b"\xff\xfe\x00",
            b"\xff" * 64,
            b"\xff\xff\xff\x7f\0\0\0\0{}",
        ]
    )
    write(path, content)
    return f"{path} is {content[:40]!r}"


def lead_nowhere(folder: Path, draw: random.Random) -> str:
    path = any_file(folder, draw)
    path.unlink()
    path.symlink_to("../../blobs/gone")
    return f"{path} leads nowhere"


def remove_component(folder: Path, draw: random.Random) -> str:
    path = draw.choice(sorted(path for path in folder.iterdir() if path.is_dir()))
    shutil.rmtree(path)
    return f"{path} removed"


def other_value(folder: Path, draw: random.Random) -> str:
    path = any_file(folder, draw, draw.choice(["model_index.json", "*config.json"]))
    content = json.loads(path.read_text())
    key, value = draw.choice(sorted(content)), draw.choice(OTHER_TYPES)
    write(path, json.dumps(content | {key: value}).encode())
    return f"{path}: {key} is {value!r}, was {content[key]!r}"


def lose_key(folder: Path, draw: random.Random) -> str:
    path = any_file(folder, draw, draw.choice(["model_index.json", "*config.json"]))
    content = json.loads(path.read_text())
    key = draw.choice(sorted(content))
    value = content.pop(key)
    write(path, json.dumps(content).encode())
    return f"{path}: {key} is gone, was {value!r}"


def rename_component(folder: Path, draw: random.Random) -> str:
    path = folder / "model_index.json"
    content = json.loads(path.read_text())
    names = [name for name, value in content.items() if isinstance(value, list)]
    name, other = draw.choice(names), draw.choice([*names, "other", "vae/../../evil", "..", ""])
    content[other] = content.pop(name)
    write(path, json.dumps(content).encode())
    return f"{name} is called {other!r}"


def empty_vocabulary(folder: Path, draw: random.Random) -> str:
    path = any_file(folder, draw, "tokenizer.json")
    content = json.loads(path.read_text())
    vocab = content["model"]["vocab"]
    kept = draw.choice([0, 1, 3])
    few = vocab[:kept] if isinstance(vocab, list) else dict(list(vocab.items())[:kept])
    content["model"] |= {"vocab": few} | ({"merges": []} if "merges" in content["model"] else {})
    write(path, json.dumps(content).encode())
    return f"{path} has {kept} words"


def swap_components(folder: Path, draw: random.Random) -> str:
    parts = sorted(path for path in folder.iterdir() if path.is_dir())
    one, two = draw.sample(parts, 2)
    one.rename(folder / "swapped")
    two.rename(one)
    (folder / "swapped").rename(two)
    return f"{one.name} and {two.name} swapped"


def stray_weights(folder: Path, draw: random.Random) -> str:
    weights = any_file(folder, draw, "*.safetensors")
    name = draw.choice(["other", "model-00001-of-00002", "x.fp16"]) + ".safetensors"
    shutil.copyfile(any_file(folder, draw, "*.safetensors"), weights.parent / name)
    return f"{name} beside {weights}"


DAMAGES: tuple[Callable[[Path, random.Random], str], ...] = (
    remove_file,
    cut_file,
    foreign_content,
    lead_nowhere,
    remove_component,
    other_value,
    other_value,
    lose_key,
    rename_component,
    empty_vocabulary,
    swap_components,
    stray_weights,
)
MAY_DIFFER = (other_value, lose_key, swap_components, stray_weights)
"""What may make another teacher, which is not a damaged one."""


@pytest.mark.parametrize("seed", seeds(24))
def test_a_damaged_folder_is_refused_or_reads_as_before(
    seed: int, root: Path, tmp_path: Path
) -> None:
    draw = random.Random(seed)
    number, damage = draw.randrange(len(CASES)), draw.choice(DAMAGES)
    case, folder = CASES[number], tmp_path / "teacher"
    shutil.copytree(whole(root, number), folder, copy_function=os.link)
    what = damage(folder, draw)
    try:
        found = accept(folder, case)
    except (ValueError, OSError) as error:
        if not any(name in str(error) for name in names_in(folder)):
            pytest.fail(f"{what}: {error}")
        return
    same = is_same(encoded(found, case), right(root, number))
    assert same or damage in MAY_DIFFER, what


def names_in(folder: Path) -> list[str]:
    """What a message may name."""
    return [str(folder), *(path.name for path in folder.rglob("*"))]


def is_same(one: list[Conditioning], other: list[Conditioning]) -> bool:
    def equal(first: Mapping[str, torch.Tensor], second: Mapping[str, torch.Tensor]) -> bool:
        return first.keys() == second.keys() and all(
            first[name].equal(second[name]) for name in first
        )

    return all(map(equal, one, other))
