"""The order of the samples, and what one sample is."""

import gc
import hashlib
import os
import shutil
import signal
from collections import Counter
from itertools import chain
from multiprocessing import active_children

import pytest
import torch

import tiny
from distillery.config.training import Training
from distillery.schedule import from_prediction
from distillery.store.chunks import DamagedChunkError
from distillery.store.trajectories import TrajectoryStore
from distillery.student.schedule import student_grid
from distillery.training.batch import split
from distillery.training.batches import NUM_CUDA_WORKERS, Batches, Order
from distillery.training.data import SegmentDataset
from distillery.training.distributed import RankInfo
from in_process import flip, open_dataset
from training_phases import phases

TARGETS, EMBEDDINGS, PROMPTS = (
    "targets/manifest.json",
    "embeddings/train/manifest.json",
    "prompts/train.parquet",
)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("run")
    tiny.make_tiny_store(folder, num_prompts=5, samples_per_prompt=2)
    return folder


def joined(lists):
    return list(chain.from_iterable(lists))


def training(**changes):
    return Training(**(tiny.TRAINING | {"phases": phases(stored=96)} | changes))


def test_an_epoch_holds_every_item_once_and_epochs_differ():
    order = Order(num_items=40, seed=3)
    epochs = [order.items(start, start + 40) for start in (0, 40, 80)]
    assert all(sorted(epoch) == list(range(40)) for epoch in epochs)
    assert epochs[0] != epochs[1] != epochs[2]
    assert order.items(0, 40) != Order(40, seed=4).items(0, 40)


def test_the_order_is_a_permutation_seeded_by_the_first_63_bits_of_a_hash():
    """A training that another version resumes sees the same samples."""
    for epoch in (0, 1):
        bits = int(hashlib.sha256(f"order\n3\n{epoch}".encode()).hexdigest(), 16)
        generator = torch.Generator().manual_seed(bits >> 256 - 63)
        expected = torch.randperm(40, generator=generator).tolist()
        assert Order(40, seed=3).items(40 * epoch, 40 * epoch + 40) == expected


def test_any_stretch_of_the_stream_is_the_same_however_it_is_cut():
    order = Order(num_items=7, seed=0)
    whole = order.items(0, 50)
    assert [item for start in range(50) for item in order.items(start, start + 1)] == whole
    assert order.items(5, 23) == whole[5:23]


@pytest.mark.parametrize("num_processes", [1, 2, 3, 5])
def test_every_number_of_processes_sees_the_same_global_batches(run, num_processes):
    dataset = open_dataset(run)
    seen = [
        list(Batches(dataset, training(), 0, RankInfo(rank, num_processes)).positions(16))
        for rank in range(num_processes)
    ]
    together = [joined(parts) for parts in zip(*seen, strict=True)]
    order = Order(dataset.num_items, 0)
    assert together == [order.items(start, start + 8) for start in range(16, 96, 8)]


@pytest.mark.parametrize("num_parts", [1, 2, 3, 8])
def test_micro_batches_are_the_batch(run, num_parts):
    whole = open_dataset(run).__getitems__(list(range(8)))
    parts = split(whole, num_parts)
    assert joined([part.items for part in parts]) == whole.items
    sizes = [len(part.items) for part in parts]
    assert max(sizes) - min(sizes) <= 1
    for name in ("segment", "noisy", "timestep", "target", "weight"):
        assert torch.equal(torch.cat([getattr(part, name) for part in parts]), getattr(whole, name))
    for name, value in whole.conditioning.items():
        assert torch.equal(torch.cat([part.conditioning[name] for part in parts]), value)


@pytest.mark.filterwarnings("ignore:'pin_memory' argument")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1, signal.SIGINT])
def test_a_signal_to_the_whole_group_leaves_those_who_read_ahead_alive(run, number):
    """torchrun signals a training and its children; the training then ends its update."""
    settings = training(phases=phases(stored=64), global_batch_size=4)
    dataset = open_dataset(run)
    batches = Batches(dataset, settings, 3, RankInfo()).read(0, torch.device("cuda"))
    seen = [next(batches).items]
    workers = active_children()
    assert len(workers) == NUM_CUDA_WORKERS
    for worker in workers:
        os.kill(worker.pid, number)
    seen += [batch.items for batch in batches]
    assert joined(seen) == Order(dataset.num_items, 3).items(0, 64)


@pytest.mark.filterwarnings("ignore:'pin_memory' argument")
def test_who_reads_ahead_does_not_free_what_its_parent_left(run, tmp_path, monkeypatch):
    """A forked process that frees a tensor on a GPU ends in 'CUDA error: initialization error'."""

    class OnTheGPU:
        def __del__(self):
            (tmp_path / str(os.getpid())).touch()

    def read(self, items, read=SegmentDataset.__getitems__):
        gc.collect()
        return read(self, items)

    monkeypatch.setattr(SegmentDataset, "__getitems__", read)
    left = OnTheGPU()
    left.itself = left
    del left
    list(Batches(open_dataset(run), training(), 3, RankInfo()).read(0, torch.device("cuda")))
    gc.collect()
    assert [path.name for path in tmp_path.iterdir()] == [str(os.getpid())]


def test_more_processes_than_samples_in_a_batch_are_refused(run):
    with pytest.raises(ValueError, match="global_batch_size is 8 and there are 9 processes"):
        Batches(open_dataset(run), training(), 0, RankInfo(0, 9))


@pytest.mark.parametrize("steps", [4, 2, 1])
def test_a_target_leads_from_one_stored_state_to_the_next(run, steps):
    dataset, store = open_dataset(run, steps), TrajectoryStore(run / TARGETS)
    items = list(range(dataset.num_items))
    batch = dataset.__getitems__(items)
    assert Counter(batch.segment.tolist()) == dict.fromkeys(range(steps), 10)
    stride = 4 // steps
    for row, item in enumerate(items):
        trajectory, segment = divmod(item, steps)
        here, there = store.states(trajectory, segment * stride, (segment + 1) * stride)
        assert torch.equal(batch.noisy[row], here)
        alpha, sigma = (
            torch.tensor(values)
            for values in (dataset.usual.grid.alphas, dataset.usual.grid.sigmas)
        )
        clean, noise = from_prediction(
            "flow_prediction", batch.target[row], here, alpha[segment], sigma[segment]
        )
        landed = alpha[segment + 1] * clean + sigma[segment + 1] * noise
        torch.testing.assert_close(landed, there, rtol=1e-5, atol=1e-5)
        assert batch.timestep[row].item() == store.recipe.schedule.timesteps[segment * stride]


def test_prompts_are_padded_as_the_pipeline_pads_and_belong_to_their_trajectory(run):
    dataset = open_dataset(run)
    batch = dataset.__getitems__([0, 8, 16, 24])
    embeds = batch.conditioning["prompt_embeds"]
    assert embeds.shape == (4, tiny.MAX_TOKENS, tiny.TEXT_FEATURES)
    assert dataset.name(24) == "p003/0 segment 0 (row 3)"
    alone = dataset.__getitems__([24]).conditioning["prompt_embeds"][0]
    assert torch.equal(alone, embeds[3])
    assert not embeds[0][6:].any()


def test_whole_timesteps_stay_whole(run):
    assert open_dataset(run).__getitems__([0, 1]).timestep.dtype == torch.int64


def test_embeddings_are_read_once_where_no_other_process_does(run, tmp_path):
    shutil.copytree(run, tmp_path, dirs_exist_ok=True)
    chunk = sorted((tmp_path / EMBEDDINGS).parent.rglob("chunk-*"))[-1]
    flip(chunk)
    with pytest.raises(DamagedChunkError, match=chunk.name):
        open_dataset(tmp_path)
    paths = (tmp_path / name for name in (TARGETS, EMBEDDINGS, PROMPTS))
    assert SegmentDataset(*paths, steps=4, verify=False)


def test_embeddings_of_another_recipe_are_refused(run, tmp_path):
    other = tmp_path / "other"
    tiny.make_tiny_store(other, num_prompts=5, samples_per_prompt=2, seed=1)
    with pytest.raises(ValueError, match="restore the configuration they were made with, or run"):
        SegmentDataset(run / TARGETS, other / EMBEDDINGS, run / PROMPTS, 4)


def test_steps_that_do_not_divide_the_segments_are_refused(run):
    with pytest.raises(ValueError, match=r"student.steps is 3.*use 1 or 2 or 4 steps"):
        open_dataset(run, 3)


def test_a_schedule_off_the_stored_knots_is_refused(run):
    recipe = TrajectoryStore(run / TARGETS).recipe
    shifted = recipe.model_copy(update={"scheduler": recipe.scheduler | {"flow_shift": 3.001}})
    with pytest.raises(ValueError, match="would sample at timesteps"):
        student_grid(shifted, 4)
