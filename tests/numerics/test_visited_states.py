"""A round's states are where the student's own steps lead, and the teacher's answers its own.

The teachers are real Diffusers classes of tiny size with random weights; see tests/families.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from distillery.families import Setting
from distillery.generation.teacher_walk import TeacherWalk
from distillery.model_folder import load_denoiser
from distillery.schedule import Schedule, add_noise, from_prediction
from distillery.store.embeddings import EmbeddingStore
from distillery.store.tables import read_table
from distillery.teacher.folder import PipelineFolder
from distillery.training.ways.rounds import RoundsDataset
from families import CASES
from families.case import FamilyCase
from families.made import made_run
from own_wan import OwnWan
from runs import CPU, Run, make_run
from training_phases import phases

STEPS = 4
ROWS = range(9)


@pytest.fixture(scope="module", params=CASES, ids=lambda case: case.name)
def case(request: Any) -> FamilyCase:
    found: FamilyCase = request.param
    return found


@pytest.fixture(scope="module")
def run(case: FamilyCase, tmp_path_factory: pytest.TempPathFactory) -> Run:
    made = made_run(
        tmp_path_factory,
        case,
        student={"steps": STEPS},
        training={"phases": phases(stored=8, rounds={"count": 1, "samples": 8})},
    )
    made.build()
    made.visited(1, made.export_untrained())
    return made


@pytest.fixture(scope="module")
def dataset(run: Run) -> RoundsDataset:
    files = run.files
    found = RoundsDataset(files.targets, files.embeddings("train"), files.prompts("train"), STEPS)
    found.add([files.visited(1)])
    return found


def test_states_are_where_the_students_own_steps_lead(
    case: FamilyCase, run: Run, dataset: RoundsDataset
) -> None:
    """By the network alone from the stored noise; the stage asks the exported stock pipeline."""
    noise = dataset.__getitems__([row * STEPS for row in ROWS])
    visited = dataset.__getitems__([dataset.first_visited + row for row in ROWS])
    segments = visited.segment.tolist()
    assert set(segments) >= {1, 3}, "some take one step, some all but the last"
    folder = PipelineFolder(run.files.student("untrained"))
    is_guided = dataset.family.has_guidance_embedding(folder.denoiser_config)
    setting = replace(dataset.usual.setting, guidance_scale_2=None)
    if not is_guided:
        setting = Setting(setting.size, 1.0)
    network = load_denoiser(run.files.student("initial"), torch.float32)
    grid, kind = dataset.usual.grid, dataset.recipe.prediction_type
    walked = [noise.noisy]
    for step in range(STEPS - 1):
        timestep = torch.full_like(noise.timestep, grid.timesteps[step])
        with torch.no_grad():
            output = dataset.family.predict(
                network, walked[-1], timestep, noise.conditioning, setting
            )
        before, after = (level(grid, knot) for knot in (step, step + 1))
        walked.append(
            add_noise(*from_prediction(kind, output.float(), walked[-1], *before), *after)
        )
    expected = torch.stack([walked[segment][row] for row, segment in enumerate(segments)])
    torch.testing.assert_close(visited.noisy, expected, rtol=0, atol=5e-4)
    own = [row * STEPS + segment for row, segment in enumerate(segments)]
    stored = dataset.__getitems__(own)
    assert visited.timestep.equal(stored.timestep)
    if case.guidance_scale > 1.0 and not is_guided:  # without it both take the same steps
        assert (stored.noisy - expected).square().mean() > 1e-5, "the teacher stands elsewhere"
    for name, value in stored.conditioning.items():
        assert value.equal(visited.conditioning[name])


def level(grid: Schedule, knot: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Alpha and sigma."""
    return torch.tensor(grid.alphas[knot]), torch.tensor(grid.sigmas[knot])


def ends_of(dataset: RoundsDataset, rows: Sequence[int]) -> torch.Tensor:
    """Where one step by the target leads from each visited state."""
    visited, ends = dataset.__getitems__([dataset.first_visited + row for row in rows]), []
    for place, segment in enumerate(visited.segment.tolist()):
        here, there = (level(dataset.usual.grid, knot) for knot in (segment, segment + 1))
        kind, target = dataset.recipe.prediction_type, visited.target[place]
        ends.append(add_noise(*from_prediction(kind, target, visited.noisy[place], *here), *there))
    return torch.stack(ends)


def test_targets_lead_to_where_the_teacher_walks_from_there(
    run: Run, dataset: RoundsDataset
) -> None:
    """As it answers in one process, which `test_a_guided_teacher_walks_by_its_formula` anchors."""
    rows = [0, 3, 8]
    visited = dataset.__getitems__([dataset.first_visited + row for row in rows])
    store = EmbeddingStore(run.embeddings("train"), read_table(run.prompts("train")))
    walk = TeacherWalk.load(run.config.teacher, dataset.recipe, store, STEPS, None, CPU)
    found, scales = ends_of(dataset, rows), dataset.usual.grid.scales
    for place, (row, knot) in enumerate(zip(rows, visited.segment.tolist(), strict=True)):
        expected = walk.advance(visited.noisy[[place]] * scales[knot], knot, [row])
        torch.testing.assert_close(found[[place]], expected / scales[knot + 1], rtol=0, atol=5e-4)


def test_a_guided_teacher_walks_by_its_formula(teacher: Path, tmp_path: Path) -> None:
    """Flow matching by Euler, written out: the stock network is asked with each prompt and with the
    negative one, and the state moves along the guided velocity from one sigma to the next."""
    made = make_run(
        tmp_path,
        teacher,
        teacher={"scheduler": {"class": "FlowMatchEulerDiscreteScheduler", "shift": 3.0}},
        targets={"steps": 8, "num_segments": STEPS, "guidance_scale": 3.0},
        student={"steps": STEPS},
        training={"phases": phases(stored=8, rounds={"count": 1, "samples": 8})},
    )
    made.ready_to_train()
    made.visited(1, made.export_untrained())
    dataset = RoundsDataset(
        made.files.targets, made.embeddings("train"), made.prompts("train"), STEPS
    )
    dataset.add([made.files.visited(1)])
    visited = dataset.__getitems__([dataset.first_visited + row for row in ROWS])
    prompts = list(read_table(made.prompts("train"))["prompt"])
    stock = OwnWan(teacher, prompts, "the house")
    expected = []
    for row, segment in enumerate(visited.segment.tolist()):
        state = visited.noisy[[row]]
        for step in (2 * segment, 2 * segment + 1):
            here, there = stock.sigmas(8)[step : step + 2]
            state = state + (there - here) * stock.velocity(state, here, [row], scale=3.0)
        expected.append(state)
    torch.testing.assert_close(ends_of(dataset, ROWS), torch.cat(expected), rtol=0, atol=5e-4)
