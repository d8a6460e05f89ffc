"""The installed Snakemake still has what its documentation does not promise."""

import inspect
import re
from pathlib import Path

import snakemake.api  # first: Snakemake's modules import each other
import snakemake.dag
import snakemake.persistence
import snakemake.rules
import snakemake.workflow

from distillery import snakemake_private

ROOT = Path(__file__).parents[2]


def test_snakemake_has_each_attribute_that_is_read() -> None:
    read = set(re.findall(r"\bworkflow\.(\w+)", inspect.getsource(snakemake_private)))
    read -= {"Workflow"}  # `snakemake.workflow.Workflow`
    assert read == {
        "configfiles", "nodes", "is_main_process", "global_resources", "dag", "current_basedir",
        "persistence", "rules", "cores",
    }  # fmt: skip
    workflow = snakemake.workflow.Workflow
    has = {*dir(workflow), *re.findall(r"self\.(\w+)", inspect.getsource(workflow))}
    fields = {name for each in workflow.__mro__ for name in getattr(each, "__annotations__", {})}
    assert read <= has | fields
    assert callable(snakemake.dag.DAG.needrun_jobs)
    assert callable(snakemake.rules.Rule.is_producer)
    assert callable(snakemake.persistence.PersistenceBase.metadata)


def test_rules_read_nothing_private_by_themselves() -> None:
    files = [ROOT / "Snakefile", *(ROOT / "rules").glob("*.smk")]
    assert len(files) > 5
    for file in files:
        assert not re.findall(r"(?<!/)\bworkflow\.\w+", file.read_text()), file
