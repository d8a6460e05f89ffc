"""Counted network passes: against those that a training takes, and one table for all who tell."""

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from diffusers import WanTransformer3DModel

from distillery.config.jobs import TrainingJob
from distillery.config.training import Training
from distillery.config.ways import TRAINING_PASSES
from distillery.pipeline import STAGES
from distillery.planning.gpus import Gpus
from distillery.planning.jobs import StageJobs, list_jobs
from distillery.planning.passes import finish_passes, passes_of_stages, passes_per_job
from distillery.planning.probe import amounts_of
from distillery.stage import Calls, Counts, Passes
from distillery.training.loop import loop
from distillery.training.state import new_state
from distillery.training.watchers.variation import AlarmWatcher
from distillery.training.ways import new_companion
from runs import Run, make_run
from training_phases import phases

STEPS = 4
EPOCH = STEPS * 9 * 2
"""Samples of nine prompts with two trajectories each: each step comes as often as any other."""
BASE = {
    "phases": phases(stored=EPOCH), "global_batch_size": 8, "dtype": "float32", "tf32": False,
    "log_every_samples": EPOCH, "save_every_samples": EPOCH,
}  # fmt: skip
MATCHING = {"samples": EPOCH, "steps": 1, "distribution_matching": {"updates": 2}}
ROUNDS = {"stored": 4 * EPOCH - 128, "rounds": {"count": 2, "samples": 64}}
TRAININGS = [
    phases(stored=EPOCH),
    phases(stored=EPOCH, rollouts=16),
    phases(adversarial=EPOCH),
    phases(adversarial={"samples": EPOCH, "at": "knots", "warmup_samples": 16}),
    phases(online=MATCHING),
    phases(**ROUNDS),
]


@pytest.fixture(scope="module")
def run(teacher: Path, tmp_path_factory: pytest.TempPathFactory) -> Run:
    made = make_run(
        tmp_path_factory.mktemp("passes"),
        teacher,
        targets={"steps": 8, "num_segments": STEPS, "samples_per_prompt": 2},
        student={"steps": STEPS},
        training=BASE,
    )
    return made.ready_to_train()


@dataclass
class Counter:
    """Counts passes by what they take: a gradient of the weights is one, that of what comes in
    another. The first block of a network always asks for both where its weights learn."""

    own: set[int]
    passes: dict[str, int] = field(default_factory=lambda: {"teacher": 0, "student": 0})
    is_paused: bool = False

    def count(self, network: torch.nn.Module, latents: torch.Tensor) -> None:
        if self.is_paused:
            return
        learns = any(parameter.requires_grad for parameter in network.parameters())
        backward = 2 if learns else int(latents.requires_grad)
        who = "student" if id(network) in self.own else "teacher"
        self.passes[who] += (1 + backward * torch.is_grad_enabled()) * len(latents)


def counted(monkeypatch: pytest.MonkeyPatch, own: set[int]) -> Counter:
    """What networks of the teacher's class do from now on, but for the alarms' measurements."""
    counter, forward, measure = Counter(own), WanTransformer3DModel.forward, AlarmWatcher.look

    def count(network: Any, hidden_states: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        counter.count(network, hidden_states)
        return forward(network, hidden_states, *args, **kwargs)

    def pause(watch: AlarmWatcher) -> Any:
        counter.is_paused = True
        found = measure(watch)
        counter.is_paused = False
        return found

    monkeypatch.setattr(WanTransformer3DModel, "forward", count)
    monkeypatch.setattr(AlarmWatcher, "look", pause)
    return counter


def with_training(run: Run, **changes: Any) -> Run:
    """The same run with another training."""
    training = Training(**BASE | changes)
    return replace(run, config=run.config.model_copy(update={"training": training}))


@pytest.mark.parametrize(
    "changes",
    [
        phases(adversarial=EPOCH, rollouts=16),
        phases(adversarial={"samples": EPOCH, "warmup_samples": EPOCH + 8}, rollouts=16),
        phases(adversarial={"samples": EPOCH, "at": "knots", "warmup_samples": 16}),
        phases(online=MATCHING, rollouts=16),
    ],
)
def test_a_training_takes_the_passes_that_are_counted(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changes: tuple[Any, ...]
) -> None:
    changed = with_training(run, phases=changes)
    training, paths = changed.config.training, changed.training_paths(tmp_path)
    paths = replace(paths, targets=run.files.targets)
    opened = changed.open_training(changed.job("training", TrainingJob), paths)
    state = new_state(paths.student, opened)
    state.companion = new_companion(paths.student, opened)
    own = {id(state.denoiser)}
    if state.companion is not None:
        own |= set(map(id, state.companion.network.modules()))
    counter = counted(monkeypatch, own)
    assert loop(state, opened)
    more = finish_passes(changed.config, calls_per_step=2)
    student = TRAINING_PASSES * training.num_samples + more.student
    if training.asks:  # by draws, how far a student walks
        assert counter.passes["student"] == pytest.approx(student, rel=0.05)
        assert counter.passes["teacher"] == pytest.approx(more.teacher, rel=0.05)
    else:
        assert counter.passes == {"teacher": more.teacher, "student": student}


def tables(run: Run) -> tuple[dict[str, Passes], dict[str, float], list[StageJobs]]:
    """Passes of each stage, of each job, and the jobs, for a student as large as its teacher."""
    config, num_prompts = run.config, {"train": 9, "eval": 5}
    per_image = dict.fromkeys(config.samples.models, Passes(teacher=3))
    amounts = STAGES, config, Counts(num_prompts, num_prompts), Calls(per_image, per_step=2)
    jobs = list_jobs(STAGES, config, Gpus())
    return passes_of_stages(*amounts), passes_per_job(*amounts, run.files, 1.0), jobs


@pytest.mark.parametrize("changes", [*TRAININGS, phases(**ROUNDS, adversarial=EPOCH)])
def test_the_terminal_and_the_costs_tell_the_same_work(run: Run, changes: tuple[Any, ...]) -> None:
    passes, of_jobs, jobs = tables(with_training(run, phases=changes))
    num_jobs = {row.stage: row.jobs for row in jobs}
    whole = {stage: of_jobs[stage] * num_jobs[stage] for stage in passes}
    assert whole == pytest.approx({stage: each.calls for stage, each in passes.items()})


def test_a_trainings_jobs_have_the_samples_that_they_learn_from(run: Run) -> None:
    """Each takes up where the one before has ended."""
    passes, of_jobs, _ = tables(with_training(run, phases=phases(**ROUNDS)))
    first = 3 * (4 * EPOCH - 128)
    assert of_jobs["training-0-rounds"] == first
    assert of_jobs["training-1-rounds"] == of_jobs["training"] == 3 * 64
    assert passes["training_before_round"].calls == first + 3 * 64
    assert passes["round_states"].calls == 2 * 18 * STEPS
    assert passes["round_targets"].calls == 2 * 18 * 2 * 2, "two guided steps from each state"


@pytest.mark.parametrize("changes", TRAININGS)
def test_times_are_planned_for_the_jobs_that_there_are(run: Run, changes: tuple[Any, ...]) -> None:
    config = with_training(run, phases=changes).config
    num_jobs: dict[str, int] = {}
    for amount in amounts_of(
        STAGES, config, Counts({"train": 9, "eval": 5}, {"train": 9, "eval": 5})
    ):
        num_jobs[amount.stage] = num_jobs.get(amount.stage, 0) + amount.num_jobs
    assert num_jobs == {row.stage: row.jobs for row in list_jobs(STAGES, config, Gpus())}
