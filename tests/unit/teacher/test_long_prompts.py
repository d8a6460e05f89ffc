"""A prompt of more tokens than the text encoder reads: in the plan, and where it is encoded."""

from pathlib import Path

import pandas as pd
import pytest
import torch

from distillery.config.teacher import Teacher
from distillery.families.text import Reader
from distillery.files import read_json
from distillery.pipeline import STAGES
from distillery.planning.plan import make_plan
from distillery.store.embeddings import EmbeddingStore
from distillery.teacher.folder import PipelineFolder
from distillery.teacher.loading import load_tokenizers
from families import CASES
from families.case import FamilyCase
from families.made import made_teacher
from runs import Run, loaded, make_run
from tiny import MAX_TOKENS, WORDS

READ = MAX_TOKENS - 1
"""Words, each of one token; one more ends the prompt."""
LONG = [" ".join([word] * READ + ["house", "hill"]) for word in WORDS[1:3]]
WHOLE = [" ".join([word] * READ) for word in WORDS[1:3]]


def run_with(prompts: list[str], folder: Path, teacher: Path, **changes: str) -> Run:
    run = make_run(folder, teacher, teacher=changes)
    table = pd.DataFrame({"prompt_id": [f"p{row}" for row in range(len(prompts))]})
    table.assign(prompt=prompts).to_csv(run.config.prompts.train, index=False)
    return run


def test_long_prompts_are_refused_by_name_with_what_they_would_lose(
    teacher: Path, tmp_path: Path
) -> None:
    run = run_with(WHOLE + LONG, tmp_path, teacher)
    with pytest.raises(
        ValueError, match=r"2 prompts are longer .*\.long_prompts: truncate"
    ) as told:
        run.encode("train")
    assert str(told.value).count("would lose 'house hill'") == 2
    assert not run.embeddings("train").exists()


def test_prompts_that_are_just_read_are_not_refused(teacher: Path, tmp_path: Path) -> None:
    run = run_with(WHOLE, tmp_path, teacher)
    assert run.encode("train").is_file()


def test_long_prompts_are_cut_where_the_setting_says_so(teacher: Path, tmp_path: Path) -> None:
    run = run_with(WHOLE + LONG, tmp_path, teacher, long_prompts="truncate")
    store = EmbeddingStore(run.encode("train"), pd.read_parquet(run.prompts("train")))
    for whole, cut in ((0, 2), (1, 3)):
        expected, found = store.row(whole)["prompt_embeds"], store.row(cut)["prompt_embeds"]
        assert len(found) == MAX_TOKENS
        assert found.equal(expected)
    assert not store.row(2)["prompt_embeds"].equal(store.row(3)["prompt_embeds"])


@pytest.mark.parametrize("split", ["train", "eval"])
def test_the_plan_refuses_long_prompts_of_either_split(
    teacher: Path, tmp_path: Path, split: str
) -> None:
    run = make_run(tmp_path, teacher)
    table = pd.DataFrame({"prompt_id": ["p0", "p1"], "prompt": [WHOLE[0], LONG[0]]})
    table.to_csv(getattr(run.config.prompts, split), index=False)
    with pytest.raises(ValueError, match=r"(?s)1 prompts are longer .* would lose 'house hill'"):
        make_plan(STAGES, run.config, tmp_path / "plan.json")


def test_the_plan_refuses_a_long_negative_prompt(teacher: Path, tmp_path: Path) -> None:
    run = run_with(WHOLE, tmp_path, teacher, negative_prompt=LONG[0])
    with pytest.raises(ValueError, match=r"(?s)1 prompts are longer .* would lose 'house hill'"):
        make_plan(STAGES, run.config, tmp_path / "plan.json")


def test_the_plan_takes_prompts_that_are_just_read_or_may_be_cut(
    teacher: Path, tmp_path: Path
) -> None:
    cut = {"long_prompts": "truncate"}
    for prompts, changes in ((WHOLE, {}), (WHOLE + LONG, cut)):
        run = run_with(prompts, tmp_path, teacher, **changes)
        make_plan(STAGES, run.config, tmp_path / "plan.json")
        assert read_json(tmp_path / "plan.json")["work"]["num_prompts"]["train"] == len(prompts)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_without_models_a_pipeline_says_the_same_of_lengths(
    case: FamilyCase, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = made_teacher(tmp_path_factory, case)
    teacher = Teacher(path=str(folder), dtype="float32", height=32, width=32)
    family = PipelineFolder(folder).family

    def told(readers: list[Reader]) -> list[tuple[str, int, str]]:
        return [(it.name, it.limit, it.clean(" a red dog")) for it in readers]

    whole = loaded(teacher)
    alone = load_tokenizers(PipelineFolder(folder))
    assert not any(isinstance(it, torch.nn.Module) for it in alone.components.values())
    assert told(family.readers(alone, 20)) == told(family.readers(whole, 20))
