"""Telemetry of a run whose times a test can count."""

from distillery.telemetry import Event


def event(kind, job, begin_s, end_s, num_items=0, device="cuda:0", host="node1", **facts):
    stage = job.split("-")[0]
    return Event(kind, stage, job, device, host, begin_s, end_s, num_items, facts)


def job_events(job, begin_s, batches, seconds, device="cuda:0", num_items=8, load_s=5.0):
    """A job whose first batch takes `load_s` longer."""
    events = [event("start", job, begin_s, begin_s, device=device, gpu="NVIDIA H200")]
    now = begin_s + 1
    for batch in range(batches):
        end = now + seconds + (load_s if batch == 0 else 0)
        events.append(event("work", job, now, end, num_items, device))
        now = end
    return [*events, event("end", job, begin_s, now + 1, device=device)]


def run_events():
    """Targets on two devices, a night, training, and samples of three models."""
    return [
        *job_events("targets-0-of-2", 0, 5, 4.0),
        *job_events("targets-1-of-2", 0, 4, 4.0, device="cuda:1"),
        *job_events("training", 40_000, 10, 2.0, num_items=100),
        *job_events("samples-teacher-0-of-1", 40_030, 3, 8.0),
        *job_events("samples-few-0-of-1", 40_062, 3, 2.0),
        *job_events("samples-student-0-of-1", 40_080, 3, 1.0),
    ]


def training_twice():
    """A training of two processes that was killed and started again."""
    processes = ("training", "training-rank-1")
    killed = [event("start", job, begin, begin) for begin, job in enumerate(processes)]
    return [*killed, *(told for job in processes for told in job_events(job, 20, 2, 3.0))]
