"""A round's states are where the student's own steps lead, and the teacher's answers its own.

The teachers are real Diffusers classes of tiny size with random weights; see tests/families.
"""

from dataclasses import replace
from typing import Any

import pytest
import torch

from distillery.families import Setting
from distillery.generation.teacher_walk import TeacherWalk
from distillery.model_folder import load_denoiser
from distillery.schedule import add_noise, from_prediction
from distillery.store.embeddings import EmbeddingStore
from distillery.store.tables import read_table
from distillery.teacher.folder import PipelineFolder
from distillery.training.rounds import RoundsDataset
from families import CASES
from families.case import FamilyCase
from runs import CPU, Run, family_run

STEPS = 2
KNOT = 1
ROWS = [0, 3, 8]


@pytest.fixture(scope="module", params=CASES, ids=lambda case: case.name)
def run(request: Any, tmp_path_factory: pytest.TempPathFactory) -> Run:
    case: FamilyCase = request.param
    folder = tmp_path_factory.mktemp(case.name)
    case.make(folder / "teacher")
    made = family_run(
        case,
        folder,
        folder / "teacher",
        targets={"num_segments": STEPS, "batch_size": 9, "chunk_size": 9},
        student={"steps": STEPS},
        training={"num_samples": 16, "rounds": {"count": 1, "samples": 8}},
    )
    made.ready_to_train()
    made.visited(1, made.export_untrained())
    return made


@pytest.fixture(scope="module")
def dataset(run: Run) -> RoundsDataset:
    files = run.files
    found = RoundsDataset(files.targets, files.embeddings("train"), files.prompts("train"), STEPS)
    found.add([files.visited(1)])
    return found


def test_states_are_where_the_students_own_step_leads(run: Run, dataset: RoundsDataset) -> None:
    """By the network alone from the stored noise; the stage asks the exported stock pipeline."""
    noise = dataset.__getitems__([row * STEPS for row in ROWS])
    visited = dataset.__getitems__([dataset.first_visited + row for row in ROWS])
    assert visited.segment.tolist() == [KNOT] * len(ROWS)
    folder = PipelineFolder(run.files.student("untrained"))
    is_guided = dataset.family.has_guidance_embedding(folder.denoiser_config)
    setting = replace(dataset.setting, guidance_scale_2=None)
    if not is_guided:
        setting = Setting(setting.height, setting.width, 1.0)
    network = load_denoiser(run.files.student("initial"), torch.float32)
    with torch.no_grad():
        output = dataset.family.predict(
            network, noise.noisy, noise.timestep, noise.conditioning, setting
        )
    grid, kind = dataset.grid, dataset.recipe.prediction_type
    before, after = (
        (torch.tensor(grid.alphas[knot]), torch.tensor(grid.sigmas[knot])) for knot in (0, KNOT)
    )
    clean, rest = from_prediction(kind, output.float(), noise.noisy, *before)
    expected = add_noise(clean, rest, *after)
    torch.testing.assert_close(visited.noisy, expected, rtol=0, atol=5e-4)
    stored = dataset.__getitems__([row * STEPS + KNOT for row in ROWS])
    assert (stored.noisy - expected).square().mean() > 1e-5, "the teacher stands elsewhere"


def test_targets_lead_to_where_the_teacher_walks_from_there(
    run: Run, dataset: RoundsDataset
) -> None:
    visited = dataset.__getitems__([dataset.first_visited + row for row in ROWS])
    store = EmbeddingStore(run.embeddings("train"), read_table(run.prompts("train")))
    walk = TeacherWalk.load(run.config.teacher, dataset.recipe, store, STEPS, None, CPU)
    grid, kind = dataset.grid, dataset.recipe.prediction_type
    expected = walk.advance(visited.noisy * grid.scales[KNOT], KNOT, ROWS) / grid.scales[KNOT + 1]
    before, after = (
        (torch.tensor(grid.alphas[knot]), torch.tensor(grid.sigmas[knot]))
        for knot in (KNOT, KNOT + 1)
    )
    clean, rest = from_prediction(kind, visited.target, visited.noisy, *before)
    ends = add_noise(clean, rest, *after)
    torch.testing.assert_close(ends, expected, rtol=0, atol=5e-4)
    for name, value in dataset.__getitems__([row * STEPS for row in ROWS]).conditioning.items():
        assert value.equal(visited.conditioning[name])
