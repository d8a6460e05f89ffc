"""Out of memory: smaller micro-batches, the same update; what was learned is kept for a retry."""

from functools import partial, partialmethod
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load_file

from distillery.config.ways import Stored
from distillery.files import read_json
from distillery.telemetry import read_events
from distillery.training import fitting, loop, microbatch, update
from distillery.training.distributed import RankInfo
from distillery.training.fitting import GpuMemory, lower_by_estimates
from distillery.training.microbatch import NOTES, MicroBatches
from distillery.training.ways import way_of
from distillery.training.ways.rollouts import RolloutsWay
from distillery.training.ways.way import Way
from in_process import WEIGHTS, log_of, train
from runs import open_run
from training_phases import phases

ALONE, CPU = RankInfo(), torch.device("cpu")


def stored_losses():
    """As `change_losses` has left them."""
    return way_of(Stored(samples=8)).losses


def change_losses(monkeypatch, compute):
    """Of segments and of rollouts: `compute` gets what it is in the place of, and its arguments."""
    for way in (Way, RolloutsWay):
        monkeypatch.setattr(way, "losses", partialmethod(partial(compute, way.losses)))


@pytest.fixture
def limited(monkeypatch):
    """A device with room for `limit[0]` samples; `limit[1]` passes go well before it is met."""
    limit, sizes = [8, 0], []

    def compute(forward, way, model, batch, run):
        loss_b = forward(way, model, batch, run)
        sizes.append(len(batch.items))
        if len(batch.items) > limit[0] and len(sizes) > limit[1]:
            raise torch.OutOfMemoryError("no room (made by a test)")
        return loss_b

    change_losses(monkeypatch, compute)
    return limit, sizes


def assert_same_weights(ours, theirs):
    left, right = load_file(ours / WEIGHTS), load_file(theirs / WEIGHTS)
    for name in right:
        torch.testing.assert_close(left[name], right[name], rtol=1e-5, atol=1e-5)


@pytest.fixture(scope="module")
def whole(data, tmp_path_factory):
    """A training whose updates are made at once."""
    folder = tmp_path_factory.mktemp("whole")
    assert train(data, folder) == 0
    return folder


@pytest.mark.parametrize("num_before", [0, 3])
def test_an_update_that_runs_out_of_memory_is_repeated_with_less(
    data, whole, tmp_path, limited, num_before
):
    """Also when a micro-batch before it has left its gradients."""
    limit, sizes = limited
    limit[:] = [2, num_before]
    ours = tmp_path
    assert train(data, ours, micro_batch_size=4) == 0
    assert_same_weights(ours, whole)
    assert sizes[: num_before + 2] == [4] * (num_before + 1) + [2]
    assert log_of(ours).count("repeats the update with micro-batches of 2") == 1
    assert not list(ours.rglob(NOTES[False]))


def test_a_single_sample_that_does_not_fit_is_an_error_that_says_what_to_do(
    data, tmp_path, limited, capsys
):
    limited[0][0] = 0
    assert train(data, tmp_path) == 1
    assert limited[1] == [8, 4, 2, 1]
    assert "set training.gradient_checkpointing: true" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("num_processes", "size", "expected"),
    [
        (1, "auto", [[8]]),
        (1, None, [[8]]),
        (1, 4, [[4, 4]]),
        (3, "auto", [[3], [3], [2]]),
        (3, 2, [[2, 1], [2, 1], [1, 1]]),
        (5, 1, [[1, 1], [1, 1], [1, 1], [1], [1]]),
    ],
)
def test_sizes_of_micro_batches(data, tmp_path, num_processes, size, expected):
    found = []
    for rank in range(num_processes):
        run = open_run(data, tmp_path, RankInfo(rank, num_processes), micro_batch_size=size)
        share = run.dataset.__getitems__(next(run.batches.positions(0)))
        parts = of_segments(run, sharded=False).cut(share)
        found.append([len(part.items) for part in parts])
    assert found == expected


def test_processes_that_share_weights_take_equally_many(data, tmp_path):
    run = open_run(data, tmp_path, RankInfo(0, 3), micro_batch_size=2)
    micro_batches = of_segments(run, sharded=True)
    with pytest.raises(ValueError, match="a multiple of 3; use 6 or 9"):
        micro_batches.halve()
    of_segments(open_run(data, tmp_path, RankInfo(0, 4), micro_batch_size=1), sharded=True)


def test_one_of_several_processes_notes_the_half_and_ends(data, tmp_path):
    run = open_run(data, tmp_path, RankInfo(1, 2))
    with pytest.raises(torch.OutOfMemoryError, match="next attempt takes 2 samples at once"):
        of_segments(run, sharded=False).lower(torch.OutOfMemoryError("no room"))
    assert read_json(run.checkpoints / NOTES[False])["size"] == 2
    assert of_segments(run, sharded=False).size == 2
    assert MicroBatches(run, False, for_rollouts=True, checkpointing=False).size == 4
    assert (
        of_segments(
            open_run(data, tmp_path, RankInfo(0, 2), micro_batch_size=1), sharded=False
        ).size
        == 1
    )
    # Other circumstances: the note says nothing of them.
    assert of_segments(run, sharded=True).size == 4
    assert of_segments(open_run(data, tmp_path, ALONE), sharded=False).size == 8


@pytest.mark.parametrize("note", ["{}", '{"size": 2,', "[2]", '{"size": 0}', '{"size": "2"}'])
def test_a_damaged_note_is_ignored_with_a_warning(data, tmp_path, caplog, note):
    run = open_run(data, tmp_path)
    run.checkpoints.mkdir(parents=True)
    (run.checkpoints / NOTES[False]).write_text(note)
    assert of_segments(run, sharded=False).size == 8
    assert f"{NOTES[False]} is damaged and ignored" in caplog.text


def opened(data, output, ranks=ALONE, sharded=False, **settings):
    """A training before its first update: its state, micro-batches and first share of a batch."""
    run = open_run(data, output, ranks, **settings)
    share = run.dataset.__getitems__(next(run.batches.positions(0)))
    return run, state_of(data, run), of_segments(run, sharded), share


def state_of(data, run):
    """A state that nothing was learned in."""
    from distillery.student.on_disk import load_trainable
    from distillery.training.state import TrainingState, Window, make_optimizer

    denoiser = load_trainable(data / "student/initial", torch.float32).train()
    optimizer = make_optimizer(denoiser.parameters(), run.training, run.device)
    return TrainingState(denoiser, optimizer, {}, Window.empty(4))


def of_segments(run, sharded):
    return MicroBatches(run, sharded, for_rollouts=False, checkpointing=False)


@pytest.mark.parametrize(("room", "size"), [(8, 8), (7, 4), (3, 2), (1, 1)])
def test_the_probe_finds_what_fits_and_leaves_no_trace(data, tmp_path, limited, room, size):
    limited[0][0] = room
    run, state, micro_batches, share = opened(data, tmp_path)
    before = {name: value.clone() for name, value in state.denoiser.state_dict().items()}
    fitting.find_fitting(state, share, micro_batches, stored_losses(), run)
    assert micro_batches.size == size
    assert all(parameter.grad is None for parameter in state.denoiser.parameters())
    assert not state.optimizer.state
    after = state.denoiser.state_dict()
    assert all(torch.equal(after[name], value) for name, value in before.items())


@pytest.mark.slow
def test_the_probe_compiles_for_the_size_alone_that_fits(data, tmp_path, limited):
    limited[0][0] = 3
    (run, state, micro_batches, share), compiled = opened(data, tmp_path), []

    def note(graph, _):
        compiled.append(micro_batches.size)
        return graph.forward

    torch._dynamo.reset()
    state.denoiser.forward = torch.compile(state.denoiser.forward, backend=note, dynamic=False)
    fitting.find_fitting(state, share, micro_batches, stored_losses(), run)
    assert set(compiled) == {2}


@pytest.mark.parametrize("choice", ["auto", False])
def test_the_probe_turns_on_gradient_checkpointing_where_it_may(data, tmp_path, limited, choice):
    limited[0][0] = 0
    settings = {"gradient_checkpointing": choice}
    run, state, micro_batches, share = opened(data, tmp_path, **settings)
    with pytest.raises(torch.OutOfMemoryError, match="A single sample does not fit"):
        fitting.find_fitting(state, share, micro_batches, stored_losses(), run)
    assert state.denoiser.is_gradient_checkpointing == (choice == "auto")
    assert limited[1] == [8, 4, 2, 1] * (2 if choice == "auto" else 1)


class Memory:
    """A device whose memory grows as `peaks` says; what is over `size` fails."""

    def __init__(self, peak_at, limit, size=10_000):
        self.peak_at, self.limit, self.size = peak_at, limit, size
        self.sizes = []

    def peak_of(self, work):
        if not hasattr(work, "args"):
            return self.peak_at(0)
        state, batch, *_ = work.args
        num_items = len(batch.items)
        if num_items > self.size:
            raise torch.OutOfMemoryError("no room (made by a test)")
        assert not self.sizes or state.denoiser.proj_out.weight.grad is not None
        work()
        self.sizes.append(num_items)
        return self.peak_at(num_items)


def line(num_items):
    return 1_000 + 100 * num_items


def bent(num_items):
    """Until 4 samples the weights decide, then the activations."""
    return max(1_000 + 10 * num_items, 200 * num_items + 240)


@pytest.mark.parametrize(
    ("peak_at", "limit", "size"),
    [
        *[(line, 10_000, 8), (line, 1_800, 8), (line, 1_799, 4), (line, 1_399, 2), (line, 900, 1)],
        # 1,040 at 4 samples and 1,840 at 8, foretold 1,080.
        *[(bent, 1_840, 8), (bent, 1_070, 4)],
    ],
)
def test_a_size_is_tried_where_the_last_two_say_that_it_fits(data, tmp_path, peak_at, limit, size):
    run, state, micro_batches, share = opened(data, tmp_path)
    memory = Memory(peak_at, limit)
    lower_by_estimates(state, share, micro_batches, stored_losses(), run, memory)
    assert micro_batches.size == size
    assert memory.sizes == [1, *(it for it in (1, 2, 4, 8) if it <= size)]
    assert all(parameter.grad is None for parameter in state.denoiser.parameters())


@pytest.mark.parametrize(("free", "limit"), [(50, 62), (90, 72)])
def test_a_tenth_of_what_a_process_may_take_of_a_gpu_stays_free(monkeypatch, free, limit):
    """It may take 80 of 100 bytes and holds 20; another process may have the rest."""
    said = {
        "mem_get_info": (free, 100),
        "memory_reserved": 20,
        "get_device_properties": SimpleNamespace(total_memory=100),
        "get_per_process_memory_fraction": 0.8,
    }
    for name, answer in said.items():
        monkeypatch.setattr(torch.cuda, name, lambda _device, answer=answer: answer)
    assert GpuMemory(torch.device("cuda")).limit == limit


@pytest.mark.parametrize(("fitting", "noted"), [(4, 4), (1, 1)])
def test_an_estimate_that_was_too_low_makes_the_next_attempt_smaller(
    data, tmp_path, monkeypatch, fitting, noted
):
    monkeypatch.setattr("distillery.training.distributed.all_reduce", lambda values: values)
    sizes = dict.fromkeys(("global_batch_size", "log_every_samples", "save_every_samples"), 16)
    two = RankInfo(0, 2)
    run, state, micro_batches, share = opened(data, tmp_path, two, sharded=True, **sizes)
    with pytest.raises(torch.OutOfMemoryError, match=f"next attempt takes {noted} samples"):
        lower_by_estimates(
            state, share, micro_batches, stored_losses(), run, Memory(line, 10_000, fitting)
        )
    again = of_segments(run, sharded=True)
    assert again.size == noted
    lower_by_estimates(state, share, again, stored_losses(), run, Memory(line, 10_000, fitting))
    assert again.size == noted


def test_a_single_sample_beyond_all_estimates_is_an_error_that_says_what_to_do(data, tmp_path):
    run, state, micro_batches, share = opened(data, tmp_path, RankInfo(0, 2), sharded=True)
    with pytest.raises(torch.OutOfMemoryError, match=r"set training\.gradient_checkpointing: true"):
        lower_by_estimates(
            state, share, micro_batches, stored_losses(), run, Memory(line, 10_000, 0)
        )


def rollouts_run(data, folder, monkeypatch, room):
    """Two phases, and a device with room for so many segments or a quarter as many rollouts."""

    def compute(forward, way, model, batch, run):
        loss_b = forward(way, model, batch, run)
        needed = len(batch.items) * (4 if batch.is_rollout else 1)
        # Half is kept when blocks are computed again.
        if needed > room * (2 if model.is_gradient_checkpointing else 1):
            raise torch.OutOfMemoryError("no room (made by a test)")
        return loss_b

    change_losses(monkeypatch, compute)
    for module in (microbatch, fitting):
        monkeypatch.setattr(module, "is_cuda", lambda device: True)
    monkeypatch.setattr(fitting, "_reserve", lambda device: torch.empty(0))
    for name in ("reset_peak_memory_stats", "empty_cache"):
        monkeypatch.setattr(torch.cuda, name, lambda *_: None)
    memory = SimpleNamespace(total_memory=1 << 30)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: memory)
    return open_run(data, folder, phases=phases(stored=32, rollouts=32))


@pytest.mark.parametrize(
    ("room", "segments", "rollouts"),
    [(32, (8, False), (8, False)), (8, (8, False), (2, False)), (2, (2, False), (1, True))],
)
def test_rollouts_have_a_size_of_their_own_known_from_the_start(
    data, tmp_path, monkeypatch, room, segments, rollouts
):
    """And where they alone need it, blocks are computed again for them alone."""
    run = rollouts_run(data, tmp_path, monkeypatch, room)
    state = state_of(data, run)
    found = fitting.micro_batches_for(state, run)
    assert {kind: (it.size, it.checkpointing) for kind, it in found.items()} == {
        False: segments,
        True: rollouts,
    }
    assert not state.denoiser.is_gradient_checkpointing
    state.samples_seen = 48
    again = fitting.micro_batches_for(state, run)
    assert again[True].size == rollouts[0], "in the middle of the phase"


def test_blocks_are_computed_again_in_rollouts_alone(data, tmp_path, monkeypatch):
    seen = set()

    def compute(forward, way, model, batch, run):
        seen.add((batch.is_rollout, model.is_gradient_checkpointing))
        return forward(way, model, batch, run)

    def sized(state, run):
        return {kind: MicroBatches(run, False, kind, checkpointing=kind) for kind in (False, True)}

    change_losses(monkeypatch, compute)
    monkeypatch.setattr(loop, "micro_batches_for", sized)
    assert train(data, tmp_path, phases=phases(stored=32, rollouts=32)) == 0
    assert seen == {(False, False), (True, True)}


def test_a_rollout_that_will_not_fit_is_told_before_anything_is_learned(
    data, tmp_path, monkeypatch
):
    run = rollouts_run(data, tmp_path, monkeypatch, room=1)
    with pytest.raises(torch.OutOfMemoryError, match="A single sample does not fit"):
        fitting.micro_batches_for(state_of(data, run), run)


@pytest.mark.gpu
def test_a_gpu_that_is_too_small_for_the_share_gets_less(data, tmp_path):
    """A real limit: PyTorch refuses memory beyond a share of the GPU's."""
    gpu = torch.device("cuda", 0)
    sizes = {"global_batch_size": 4096, "phases": phases(stored=4096), "log_every_samples": 4096}
    run = open_run(data, tmp_path, device=gpu, save_every_samples=4096, **sizes)
    state, micro_batches = state_of(data, run), of_segments(run, sharded=False)
    state.denoiser.to(gpu)
    torch.cuda.empty_cache()
    room = torch.cuda.memory_reserved(gpu) + 96 * 2**20
    torch.cuda.set_per_process_memory_fraction(
        room / torch.cuda.get_device_properties(gpu).total_memory, gpu
    )
    try:
        fitting.find_micro_batch_size(state, micro_batches, run)
        share = run.dataset.__getitems__(next(run.batches.positions(0)))
        for batch in micro_batches.cut(share):
            update.backward(state.denoiser, batch.to(gpu), stored_losses(), run)
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0, gpu)
    assert 1 < micro_batches.size < 4096
    assert torch.cuda.max_memory_reserved(gpu) <= room


def test_the_time_that_was_waited_for_data_is_reported(whole):
    work = [event for event in read_events(whole / "telemetry") if event.kind == "work"]
    assert all(0 < event.facts["waiting_s"] < event.end_s - event.begin_s for event in work)
