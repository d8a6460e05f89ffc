"""A prompt of more tokens than the text encoder reads, in the stage that encodes it."""

from pathlib import Path

import pandas as pd
import pytest

from distillery.store.embeddings import EmbeddingStore
from runs import Run, make_run
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
