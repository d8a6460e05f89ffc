"""The prompts stage: a user's prompt file to a checked table."""

from pathlib import Path

from distillery.config.jobs import PromptsJob
from distillery.config.section import Split
from distillery.prompts import read_prompts
from distillery.store.tables import write_table


def make_prompt_table(job: PromptsJob, split: Split, output: Path) -> None:
    """Check a split's prompt file and write it as Parquet; see `prompts.read_prompts`."""
    source = job.prompts.train if split == "train" else job.prompts.eval
    if source is None:
        raise ValueError("prompts.train is missing, and --split train asks for it: add it")
    write_table(read_prompts(Path(source)), output)
