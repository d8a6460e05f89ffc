"""Times of stages, workers and images, counted by hand from a run's events."""

import pytest

from distillery.report import timeline
from distillery.report.speeds import time_images
from distillery.report.timeline import RunClock, find_attempts, find_origin, find_workers
from distillery.telemetry import Event
from events import event, job_events, run_events, training_twice


def test_the_only_batch_of_an_attempt_is_not_measured():
    """It loaded the model; of two attempts the one with more batches is."""
    single = job_events("samples-a-b-0-of-3", 0, 1, 4.0)
    assert time_images(find_attempts(single), {}) == {}
    times = time_images(find_attempts([*single, *job_events("samples-a-b-1-of-3", 50, 2, 4.0)]), {})
    assert (times["a-b"].seconds, times["a-b"].num_images) == (pytest.approx(0.5), 8)


def test_a_night_is_cut_out_of_the_clock():
    attempts = find_attempts(run_events())
    clock = RunClock.of(attempts)
    assert clock.pauses == [(27.0, 40_000 - 27.0)]
    assert clock.total_s == pytest.approx(27.0 + 90.0)
    workers = {worker.device: worker for worker in find_workers(attempts, clock)}
    second = workers["cuda:1"]
    assert second.busy_s == pytest.approx(21.0)
    assert second.span_s == pytest.approx(23.0)
    assert second.utilisation == pytest.approx(21 / 23)


def test_stage_times_count_overlapping_jobs_once():
    stages = {stage.stage: stage for stage in timeline.time_stages(find_attempts(run_events()))}
    targets = stages["targets"]
    assert (targets.num_jobs, targets.num_items) == (2, 72)
    assert targets.wall_s == pytest.approx(27.0)
    assert targets.busy_s == pytest.approx(25.0 + 21.0)
    assert targets.items_per_s == pytest.approx(72 / 27)


def test_time_between_two_pieces_of_work_is_none_of_it():
    assert timeline.length([(0.0, 1.0), (1.5, 2.0), (1.75, 3.0)]) == 2.5


def test_an_interrupted_job_shows_both_attempts():
    events = [
        event("start", "targets-0-of-1", 0, 0),
        event("work", "targets-0-of-1", 1, 9, 8),
        *job_events("targets-0-of-1", 20, 2, 3.0),
    ]
    attempts = find_attempts(events)
    assert [(a.begin_s, a.end_s, a.finished) for a in attempts] == [(0, 9, False), (20, 33, True)]
    stage = timeline.time_stages(attempts)[0]
    assert (stage.num_jobs, stage.num_attempts) == (1, 2)


def test_an_attempt_is_a_start_of_the_job_not_of_its_processes():
    stage = timeline.time_stages(find_attempts(training_twice()))[0]
    assert (stage.num_jobs, stage.num_processes, stage.num_attempts) == (1, 2, 2)


def test_processes_that_share_a_device_get_rows_of_their_own():
    events = [
        *job_events("samples-a-0-of-2", 0, 2, 3.0, device="cpu"),
        *job_events("samples-a-1-of-2", 1, 2, 3.0, device="cpu"),
        *job_events("samples-b-0-of-1", 30, 2, 3.0, device="cpu"),
    ]
    attempts = find_attempts(events)
    worker = find_workers(attempts, RunClock.of(attempts))[0]
    assert [len(lane) for lane in worker.lanes] == [2, 1]
    assert worker.peak_memory_bytes is None


def test_peak_memory_is_the_largest_told():
    told = [event("work", "train", 0, 1, 8, peak_memory_bytes=number) for number in (5, 9, 7)]
    attempts = find_attempts(told)
    assert find_workers(attempts, RunClock.of(attempts))[0].peak_memory_bytes == 9


def test_a_run_s_origin_is_in_its_events() -> None:
    def start(job: str, device: str, at_s: float, **facts: object) -> Event:
        return Event("start", "targets", job, device, "host", at_s, at_s, 0, facts)

    def end(job: str, device: str, begin_s: float, end_s: float) -> Event:
        return Event("end", "targets", job, device, "host", begin_s, end_s)

    events = [
        start("a", "cuda:GPU-1", 100.0, gpu="H200", command="snakemake --cores all"),
        end("a", "cuda:GPU-1", 100.0, 3700.0),
        start("b", "cuda:GPU-2", 200.0, gpu="H200", command="snakemake --cores all"),
        end("b", "cuda:GPU-2", 200.0, 2000.0),
        start("c", "cpu", 4000.0, gpu=None, command="snakemake x"),
        end("c", "cpu", 4000.0, 5000.0),
    ]
    origin = find_origin(events)
    assert origin is not None
    assert (origin.begin_s, origin.end_s) == (100.0, 5000.0)
    assert origin.commands == ("snakemake --cores all", "snakemake x")
    assert origin.gpus == {"H200": 2}
    assert origin.gpu_hours == 1.5
    assert find_origin([]) is None


def test_decoding_and_memory_of_a_models_images() -> None:
    """The first batch loads, and counts for memory alone; a job that tells nothing leaves a gap."""
    events = job_events("samples-a-0-of-1", 0, 3, 4.0)
    work = [it for it in events if it.kind == "work"]
    for number, it in enumerate(work):
        it.facts.update(decode_s=10.0**-number, peak_memory_bytes=9 - number)
    time = time_images(find_attempts(events), {})["a"]
    assert time.decode_s == pytest.approx((0.1 + 0.01) / sum(it.num_items for it in work[1:]))
    assert time.peak_memory_bytes == 9
    del work[1].facts["decode_s"]
    assert time_images(find_attempts(events), {})["a"].decode_s is None
