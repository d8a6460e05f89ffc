"""The prompts stage: a user's prompt file to a checked table."""

from pathlib import Path

from distillery.config.jobs import PromptsJob
from distillery.config.section import Split
from distillery.files import atomic_path
from distillery.prompts import read_prompts


def make_prompt_table(job: PromptsJob, split: Split, output: Path) -> None:
    """Check a split's prompt file and write it as Parquet; see `prompts.read_prompts`."""
    source = job.prompts.train if split == "train" else job.prompts.eval
    if source is None:
        raise ValueError("prompts.train is missing, and --split train asks for it: add it")
    table = read_prompts(Path(source))
    with atomic_path(output) as temporary:
        table.to_parquet(temporary, index=False)
