"""A prompt's own negative prompt, against the stock pipeline called for each prompt alone."""

import inspect
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import diffusers
import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image

from distillery.families import FAMILIES
from distillery.noise import SampleId, noise_seed
from distillery.prompts import SAID_ELSEWHERE
from distillery.store.trajectories import TrajectoryStore
from families.calls import flat, generators
from families.case import FamilyCase
from families.made import made_teacher
from runs import Run, family_run, loaded

KINDS = ("sdxl", "wan", "sana", "qwen_image")
"""Texts of one length; padded with zeros; masked, read after no instruction; masked, padded to the
longest of a batch."""
NEGATIVES = ["hill", "", "a bird on", "", "hill"]
OF_THE_RUN = "the house"
INFRASTRUCTURE = {
    "self", "latents", "output_type", "return_dict", "callback", "callback_steps",
    "callback_on_step_end", "callback_on_step_end_tensor_inputs", "kwargs",
}  # fmt: skip
"""Arguments of stock calls that say nothing about what is on an image."""


@dataclass
class Subject:
    """A run whose prompts have negative prompts of their own, and its stock pipeline."""

    case: FamilyCase
    run: Run
    pipeline: Any

    def stock(self, table: pd.DataFrame, row: int, negative: str, output_type: str) -> Any:
        """The stock call for the second sample of one prompt."""
        sample = SampleId(table["prompt_id"][row], 1)
        arguments = {
            **self.case.stock_call,
            "prompt": table["prompt"][row],
            "negative_prompt": negative,
            "generator": generators([noise_seed(0, sample)]),
            "output_type": output_type,
        }
        return self.pipeline(**arguments)[0]


@pytest.fixture(scope="module", params=KINDS)
def subject(request: Any, tmp_path_factory: pytest.TempPathFactory) -> Subject:
    case: FamilyCase = import_module(f"families.{request.param}").CASE
    folder = tmp_path_factory.mktemp(case.name)
    run = family_run(
        case,
        folder,
        made_teacher(tmp_path_factory, case),
        teacher={"negative_prompt": OF_THE_RUN},
        embeddings={"batch_size": 4, "chunk_size": 3},
        targets={
            "num_segments": 2,
            "samples_per_prompt": 2,
            "batch_size": 5,
            "chunk_size": 5,
        },
        samples={"images_per_prompt": 2, "batch_size": 5},
    )
    for split, path in (("train", run.config.prompts.train), ("eval", run.config.prompts.eval)):
        table = pd.read_csv(path).head(5)
        table.assign(negative_prompt=NEGATIVES).to_csv(path, index=False)
        run.encode(split)
    run.all_targets()
    run.all_samples()
    teacher = run.config.teacher
    pipeline = loaded(teacher)
    pipeline.set_progress_bar_config(disable=True)
    return Subject(case, run, pipeline)


def test_targets_of_a_mixed_batch_are_the_stock_calls(subject: Subject) -> None:
    store = TrajectoryStore(subject.run.folder / "targets" / "manifest.json")
    table = pd.read_parquet(subject.run.prompts("train"))
    for row, own in enumerate(NEGATIVES):
        end = store.states(2 * row + 1, 0, 2)[1]
        theirs = subject.stock(table, row, own or OF_THE_RUN, "latent")[0]
        torch.testing.assert_close(end, theirs, rtol=1e-4, atol=1e-4)
        if own:
            other = subject.stock(table, row, OF_THE_RUN, "latent")[0]
            assert float((other - end).abs().max()) > 1e-3, "the test could not fail"


def test_samples_are_the_stock_calls_and_say_with_which_negative(subject: Subject) -> None:
    folder = subject.run.folder / "samples" / "teacher"
    table = pd.read_parquet(folder / "manifest.parquet")[1::2].reset_index(drop=True)
    assert table["negative_prompt"].tolist() == NEGATIVES
    for row, own in enumerate(NEGATIVES):
        (theirs,) = flat(subject.stock(table, row, own or OF_THE_RUN, "pil"))
        with Image.open(folder / table["file"][row]) as image:
            assert image.text.get("negative_prompt", "") == own  # type: ignore[attr-defined]
            ours = np.asarray(image).astype(int)
        assert abs(ours - np.asarray(theirs)).max() <= 1


def test_the_arguments_of_all_stock_calls_are_known_by_name() -> None:
    """Of embeddings there are files, and a column of them would be a column of numbers."""
    known = {name for names in SAID_ELSEWHERE.values() for name in names.split()}
    for family in FAMILIES:
        for name in family.pipeline_classes:
            call = inspect.signature(getattr(diffusers, name).__call__)
            asked = {it for it in call.parameters if "embeds" not in it and "mask" not in it}
            assert asked - INFRASTRUCTURE <= known, name
