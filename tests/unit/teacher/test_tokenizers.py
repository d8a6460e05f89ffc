"""Tokenizers that know no words, or are of another text encoder, and prompts that they mix up."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from distillery.generation.embeddings import check_texts
from distillery.teacher.folder import PipelineFolder
from distillery.teacher.loading import load_tokenizers
from distillery.teacher.tokenizers import check_tokenizers, check_told_apart, tokenizers_of
from families import CASES
from families.made import made_teacher
from runs import make_run

USED = ("sdxl", "wan", "sana", "qwen-image", "flux-dev")
"""Cases with all kinds of tokenizers: CLIP's, T5's, UMT5's, Gemma's, Qwen's."""
TOKENIZERS = [
    (name, component)
    for name in USED
    for component in ("tokenizer", *(("tokenizer_2",) if name in ("sdxl", "flux-dev") else ()))
]
each = pytest.mark.parametrize(("name", "component"), TOKENIZERS)


@pytest.fixture(scope="module")
def teachers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A teacher for each of `USED`."""
    return {case.name: made_teacher(tmp_path_factory, case) for case in CASES if case.name in USED}


@pytest.fixture
def copy_of(teachers: dict[str, Path], tmp_path: Path) -> Callable[[str], Path]:
    def copy(name: str) -> Path:
        return Path(shutil.copytree(teachers[name], tmp_path / name))

    return copy


def refused(folder: Path) -> str:
    """What is said of a folder's tokenizers."""
    found = PipelineFolder(folder)
    try:
        found.check_complete()
        check_tokenizers(found, load_tokenizers(found))
    except (ValueError, FileNotFoundError) as error:
        return str(error)
    return "nothing"


def edit(path: Path, change: Callable[[dict[str, Any]], object]) -> None:
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))


@each
def test_a_whole_one_is_accepted(teachers: dict[str, Path], name: str, component: str) -> None:
    folder = PipelineFolder(teachers[name])
    pipeline = load_tokenizers(folder)
    assert component in tokenizers_of(folder, pipeline)
    check_tokenizers(folder, pipeline)


@each
def test_a_missing_vocabulary_is_told_with_the_files_that_would_do(
    copy_of: Callable[[str], Path], name: str, component: str
) -> None:
    folder = copy_of(name)
    (folder / component / "tokenizer.json").unlink()
    wanted = f"missing: {component}/tokenizer.json or vocab.json with merges.txt or spiece.model"
    assert wanted in refused(folder)


@each
def test_a_link_that_leads_nowhere_is_missing(
    copy_of: Callable[[str], Path], name: str, component: str
) -> None:
    folder = copy_of(name)
    for path in (folder / component).iterdir():
        path.unlink()
        path.symlink_to("../blobs/gone")
        assert f"{component}/{path.name}" in refused(folder)
        assert "(a link to ../blobs/gone, which is not there)" in refused(folder)


@each
def test_a_vocabulary_without_words_is_found_by_what_it_does(
    copy_of: Callable[[str], Path], name: str, component: str
) -> None:
    folder = copy_of(name)

    def empty(content: dict[str, Any]) -> None:
        model = content["model"]
        if isinstance(model["vocab"], list):
            model["vocab"] = model["vocab"][:3]
        else:
            special = {it["content"] for it in content["added_tokens"]} | {"<unk>", "▁"}
            model["vocab"] = {key: i for key, i in model["vocab"].items() if key in special}
            model["merges"] = []

    edit(folder / component / "tokenizer.json", empty)
    told = refused(folder)
    assert str(folder / component) in told
    assert "does not tell 'red dog' from 'blue house'" in told


@pytest.mark.parametrize("other", ["vocab.txt", "spiece.model", "tokenizer.model"])
def test_so_is_a_vocabulary_that_the_class_does_not_read(
    copy_of: Callable[[str], Path], other: str
) -> None:
    folder = copy_of("sdxl")
    (folder / "tokenizer" / "tokenizer.json").rename(folder / "tokenizer" / other)
    assert str(folder) in refused(folder)


def test_tokenizers_of_each_others_encoders(copy_of: Callable[[str], Path]) -> None:
    folder = copy_of("flux-dev")
    (folder / "tokenizer").rename(folder / "other")
    (folder / "tokenizer_2").rename(folder / "tokenizer")
    (folder / "other").rename(folder / "tokenizer_2")
    assert "tokenizer_config.json is of a T5Tokenizer" in refused(folder)
    for name in ("tokenizer", "tokenizer_2"):  # which says nothing of its class
        edit(folder / name / "tokenizer_config.json", lambda it: it.pop("tokenizer_class"))
    assert str(folder) in refused(folder)


def test_a_text_encoder_that_has_fewer_tokens(copy_of: Callable[[str], Path]) -> None:
    folder = copy_of("qwen-image")
    edit(
        folder / "text_encoder" / "config.json",
        lambda it: it["text_config"].update(vocab_size=8),
    )
    assert "text_encoder has 8: it is not the one of this text encoder" in refused(folder)


@pytest.mark.parametrize("component", ["tokenizer", "tokenizer_2"])
def test_clip_without_a_length(copy_of: Callable[[str], Path], component: str) -> None:
    folder = copy_of("sdxl")
    path = folder / component / "tokenizer_config.json"
    edit(path, lambda it: it.pop("model_max_length"))
    assert "is missing in its tokenizer_config.json" in refused(folder)
    assert 'write "model_max_length": 12 there' in refused(folder)
    edit(path, lambda it: it.update(model_max_length=512))
    assert "model_max_length is 512" in refused(folder)


SAME = ["a cat", "A Cat", "a  cat ", "a cat!", "a cát", "a &amp; cat", "a & cat", "", " "]


@pytest.mark.parametrize("name", USED)
def test_prompts_that_mean_the_same_may_have_the_same_tokens(
    teachers: dict[str, Path], name: str
) -> None:
    folder = PipelineFolder(teachers[name])
    check_told_apart(tokenizers_of(folder, load_tokenizers(folder)), [*SAME, "a dog"])


@pytest.mark.parametrize("name", USED)
def test_prompts_of_words_that_it_does_not_know(teachers: dict[str, Path], name: str) -> None:
    folder = PipelineFolder(teachers[name])
    tokenizers = tokenizers_of(folder, load_tokenizers(folder))
    with pytest.raises(ValueError, match=r"unknown tokens only.*: '山', '龙'; write them in words"):
        check_told_apart(tokenizers, ["a cat", "山", "龙"])
    with pytest.raises(ValueError, match=r"same tokens .*'a red 山' and 'a red 龙'"):
        check_told_apart(tokenizers, ["a red 山", "a cat", "a red 龙"])


def test_few_of_many_such_prompts_are_shown(teachers: dict[str, Path]) -> None:
    folder = PipelineFolder(teachers["wan"])
    tokenizers = tokenizers_of(folder, load_tokenizers(folder))
    with pytest.raises(ValueError, match=r"and 95 more; write"):
        check_told_apart(tokenizers, [chr(0x4E00 + number) for number in range(100)])


@pytest.mark.parametrize("long_prompts", ["refuse", "truncate"])
def test_encoding_refuses_them_too(
    copy_of: Callable[[str], Path], tmp_path: Path, long_prompts: str
) -> None:
    folder = copy_of("wan")
    run = make_run(tmp_path, folder, teacher={"long_prompts": long_prompts})
    found = PipelineFolder(folder)
    pipeline = load_tokenizers(found)
    check_texts(run.config.teacher, found, pipeline, ["a cat", None])
    with pytest.raises(ValueError, match="unknown tokens only"):
        check_texts(run.config.teacher, found, pipeline, ["龙"])
    (folder / "tokenizer" / "tokenizer.json").unlink()
    with pytest.raises(FileNotFoundError, match=r"tokenizer/tokenizer\.json"):
        run.encode("train")
