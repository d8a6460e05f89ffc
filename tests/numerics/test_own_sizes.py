"""Prompts with sizes of their own, against the stock pipeline called for each prompt alone."""

from dataclasses import asdict, dataclass, replace
from importlib import import_module
from typing import Any

import pandas as pd
import pytest
import torch
from PIL import Image

from distillery.families import Size, family_named, grid_of
from distillery.images import read_png
from distillery.noise import SampleId, noise_seed
from distillery.schedulers import GRID_TOLERANCE
from distillery.store.trajectories import TrajectoryStore
from distillery.student.schedule import check_size, student_scheduler
from distillery.teacher.folder import find_teacher
from distillery.teacher.skeleton import load_skeleton
from distillery.teacher.solver import load_scheduler
from distillery.training.batches import Batches
from distillery.training.data import SegmentDataset
from distillery.training.distributed import RankInfo
from families.calls import generators
from families.case import FamilyCase
from families.made import made_teacher
from numerics.test_family_hooks import MULTIPLES
from runs import Run, family_run, loaded
from training_phases import phases

KINDS = ("wan", "wan_clip", "sdxl", "sd15", "pixart", "sana", "sd3", "flux_dev", "qwen_image")
REFUSED = ("qwen_image",)
"""Whose grid is stretched by the number of steps, and shifted by the size."""
PLACES = (0, 2, 3)
"""Of five prompts those that have the run's size; the others have the other one."""
NUM_PROMPTS, PER_PROMPT, SEGMENTS = 5, 2, 2


@dataclass
class Subject:
    """A run of two sizes, and its stock pipeline."""

    case: FamilyCase
    run: Run
    pipeline: Any

    @property
    def other(self) -> Size:
        """The size that some prompts have."""
        multiple = MULTIPLES[self.case.family]
        return replace(self.case.size, height=3 * multiple, width=2 * multiple)

    def size(self, prompt: int) -> Size:
        return self.case.size if prompt in PLACES else self.other

    def stock(self, table: pd.DataFrame, prompt: int, index: int, output_type: str) -> Any:
        """The stock call for one sample of one prompt."""
        sample = SampleId(table["prompt_id"][prompt], index)
        arguments = {
            **replace(self.case, **asdict(self.size(prompt))).stock_call,
            "prompt": table["prompt"][prompt],
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
        targets={
            "num_segments": SEGMENTS,
            "samples_per_prompt": PER_PROMPT,
            "batch_size": 4,
            "chunk_size": 4,
        },
        student={"steps": SEGMENTS},
        training={"phases": phases(stored=40), "global_batch_size": 4},
        samples={"images_per_prompt": PER_PROMPT, "batch_size": 5},
    )
    subject = Subject(case, run, loaded(run.config.teacher))
    subject.pipeline.set_progress_bar_config(disable=True)
    for split, path in (("train", run.config.prompts.train), ("eval", run.config.prompts.eval)):
        table = pd.read_csv(path).head(NUM_PROMPTS)
        sizes = [subject.size(prompt) for prompt in range(NUM_PROMPTS)]
        for name in ("height", "width"):
            own = [None if size == case.size else getattr(size, name) for size in sizes]
            table[name] = pd.array(own, dtype="Int64")
        table.to_csv(path, index=False)
        run.encode(split)
    return subject


@pytest.fixture(scope="module")
def store(subject: Subject) -> TrajectoryStore:
    return TrajectoryStore(subject.run.all_targets())


def test_targets_are_the_stock_calls_at_each_size(subject: Subject, store: TrajectoryStore) -> None:
    table = pd.read_parquet(subject.run.prompts("train"))
    assert store.num_samples == NUM_PROMPTS * PER_PROMPT
    assert [len(alike) for alike in store.of_one_size] == [6, 4]
    seen = set()
    for number in range(0, store.num_samples, PER_PROMPT):
        prompt, index = store.prompt_row(number), 1
        end = store.states(number + index, 0, SEGMENTS)[1]
        (theirs,) = subject.stock(table, prompt, index, "latent")
        torch.testing.assert_close(end, theirs, rtol=1e-4, atol=1e-4)
        size = subject.size(prompt)
        assert store.size_at(number) == (size.height, size.width)
        seen.add(prompt)
    assert seen == set(range(NUM_PROMPTS))


def test_each_size_has_its_own_schedule(subject: Subject, store: TrajectoryStore) -> None:
    teacher = subject.run.config.teacher
    folder = find_teacher(teacher)
    for size in (subject.case.size, subject.other):
        shape = folder.family.latent_shape(load_skeleton(folder), size)
        recipe = store.recipes[size.height, size.width]
        assert recipe.latent_shape == shape
        scheduler = load_scheduler(folder, teacher)
        whole = grid_of(folder.family, scheduler, subject.case.steps, shape)
        assert recipe.schedule.distance(whole.subset(recipe.knots)) == 0.0


def test_samples_are_the_stock_calls_at_each_size(subject: Subject) -> None:
    folder = subject.run.all_samples().parent
    table = pd.read_parquet(folder / "manifest.parquet")
    prompts = pd.read_parquet(subject.run.prompts("eval"))
    by_sample = table.set_index(["prompt_id", "index"])
    for prompt in range(NUM_PROMPTS):
        row = by_sample.loc[prompts["prompt_id"][prompt], 1]
        size = subject.size(prompt)
        assert (row["height"], row["width"]) == (size.height, size.width)
        with Image.open(folder / row["file"]) as image:
            ours = read_png(image).astype(int)
        theirs = subject.stock(prompts, prompt, 1, "np")
        frames = torch.as_tensor(theirs).reshape(-1, *torch.as_tensor(theirs).shape[-3:])
        expected = (frames * 255).round().int().reshape(ours.shape).numpy()
        assert abs(ours - expected).max() <= 1


def test_shards_change_no_byte(subject: Subject, store: TrajectoryStore) -> None:
    whole = subject.run.chunks()
    subject.run.all_targets(num_shards=3)
    assert subject.run.chunks() == whole
    subject.run.all_samples()
    images = subject.run.images()
    subject.run.all_samples(num_shards=2)
    assert subject.run.images() == images


def test_an_update_is_of_one_size_and_the_same_for_any_processes(subject: Subject) -> None:
    run = subject.run
    run.all_targets()
    stored = run.files.targets, run.embeddings("train"), run.prompts("train")
    if subject.case.family in REFUSED:
        with pytest.raises(ValueError, match="would take other noise levels there"):
            SegmentDataset(*stored, SEGMENTS)
        return
    dataset = SegmentDataset(*stored, SEGMENTS)
    training = run.config.training
    alone = list(Batches(dataset, training, 0, RankInfo()).positions(0))
    shared = [
        list(Batches(dataset, training, 0, RankInfo(rank, 2)).positions(0)) for rank in (0, 1)
    ]
    assert [[*one, *other] for one, other in zip(*shared, strict=True)] == alone
    shapes = [dataset.__getitems__(items).noisy.shape[1:] for items in alone]
    assert len(set(shapes)) == 2
    both = {(size.height, size.width) for size in (subject.case.size, subject.other)}
    assert sorted(Batches(dataset, training, 0, RankInfo()).sizes) == sorted(both)
    turns = [shape == shapes[0] for shape in shapes]
    assert turns.count(True) == round(0.6 * len(turns)), "by their share of the trajectories"
    assert {item for items in alone for item in items} == set(range(dataset.num_items))


def test_one_scheduler_serves_each_size_or_the_plan_refuses(
    subject: Subject, store: TrajectoryStore
) -> None:
    """FLUX shifts by the size in its call; a shift that is solved for one size is a constant."""
    size = subject.other
    own = store.recipes[size.height, size.width]
    exported = student_scheduler(store.recipe, SEGMENTS)
    walked = grid_of(family_named(own.family), exported, SEGMENTS, own.latent_shape)
    serves = walked.distance(own.schedule) <= GRID_TOLERANCE
    if serves:
        check_size(store.recipe, own, SEGMENTS)
    else:
        with pytest.raises(ValueError, match="would take other noise levels there"):
            check_size(store.recipe, own, SEGMENTS)
    assert serves == (subject.case.family not in REFUSED)
