"""The installed Snakemake still has what its documentation does not promise."""

import inspect
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import snakemake.api  # first: Snakemake's modules import each other
import snakemake.dag
import snakemake.exceptions
import snakemake.persistence
import snakemake.rules
import snakemake.scheduling.job_scheduler
import snakemake.workflow

from distillery import snakemake_private
from distillery.notes import Note, error

ROOT = Path(__file__).parents[2]


def test_snakemake_has_each_attribute_that_is_read() -> None:
    read = set(re.findall(r"\bworkflow\.(\w+)", inspect.getsource(snakemake_private)))
    read -= {"Workflow"}  # `snakemake.workflow.Workflow`
    assert read == {
        "configfiles", "nodes", "is_main_process", "global_resources", "dag", "current_basedir",
        "persistence", "rules", "cores", "config_settings",
    }  # fmt: skip
    workflow = snakemake.workflow.Workflow
    has = {*dir(workflow), *re.findall(r"self\.(\w+)", inspect.getsource(workflow))}
    fields = {name for each in workflow.__mro__ for name in getattr(each, "__annotations__", {})}
    assert read <= has | fields
    assert callable(snakemake.dag.DAG.needrun_jobs)
    assert "forcefiles.isdisjoint(job.output)" in inspect.getsource(snakemake.dag.DAG)
    assert callable(snakemake.rules.Rule.is_producer)
    assert callable(snakemake.persistence.PersistenceBase.metadata)


def test_rules_read_nothing_private_by_themselves() -> None:
    files = [ROOT / "Snakefile", *(ROOT / "rules").glob("*.smk")]
    assert len(files) > 5
    for file in files:
        assert not re.findall(r"(?<!/)\bworkflow\.\w+", file.read_text()), file


def test_cores_need_not_be_given() -> None:
    class Without:
        @property
        def cores(self) -> int:
            raise snakemake.exceptions.WorkflowError("Workflow requires a total number of cores")

    class With:
        cores = 3

    assert snakemake_private.cores_of(Without()) == 8
    assert snakemake_private.cores_of(With()) == 3


def test_what_inputs_refuse_is_told_together_and_from_nowhere() -> None:
    def on_file(name: str) -> Callable[[object], Iterator[Note]]:
        def check(_: object) -> Iterator[Note]:
            yield error(name, " is old")

        return check

    refused = snakemake_private.refused_by(on_file("a"), on_file("b"))
    with pytest.raises(snakemake_private.Refused, match=r"^a is old\n  b is old$") as caught:
        refused(None)
    assert caught.value.__traceback__ is None
    assert snakemake_private.refused_by(lambda _: [])(None) == []


def test_snakemakes_handler_of_sigterm_takes_a_lock_that_its_choice_of_jobs_holds() -> None:
    """Why `end_beside_the_scheduler` is there; without it this one is not needed."""
    scheduler = inspect.getsource(snakemake.scheduling.job_scheduler.JobScheduler)
    assert "signal.signal(signal.SIGTERM, self.exit_gracefully)" in scheduler
    assert "self._lock = threading.Lock()" in scheduler
    assert "with self._lock" in inspect.getsource(
        snakemake.scheduling.job_scheduler.JobScheduler.exit_gracefully
    )
