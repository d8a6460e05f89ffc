import json
from functools import cache

from distillery.locks import explain_write, hold_run, job_lock, on_way
from distillery.notes import refuse
from distillery.planning.dates import hidden_outputs
from distillery.planning.first import (
    asked_to_plan,
    last_work,
    measured_at,
    on_folder,
    plan_first,
)
from distillery.snakemake_private import (
    declared_outputs,
    force,
    is_main,
    jobs_to_run,
    note_command,
    noted_inputs,
    requests_of,
    rules_folder,
)
from distillery.terminal.stopping import end_beside_the_scheduler

# What each stage depends on, and whether the run can work at all.

note_command(workflow)

try:
    # Snakemake looks there for files before any rule runs, and falls over what is no folder.
    refuse([*on_folder(PLANNED, rules_folder(workflow).parent), *on_way(RUN.path)])
except ValueError as error:
    raise WorkflowError(str(error))


# Not in a dry run, and in a module only where the main workflow calls it; no plan where it was asked
# for itself. By the rules themselves, since a module's have other names.
onstart:
    end_beside_the_scheduler()
    needed = jobs_to_run(workflow)
    # A comparison is of other runs, or of what this one has already.
    makes = needed.keys() != {rules.compare.rule}
    try:
        if makes:
            hold_run(RUN.path)
        # `all` has asked in its inputs; a plan or one stage by its file has not.
        if makes and needed.keys() != {rules.verify.rule}:
            refuse(on_noted(CONFIG, RUN, partial(has_noted, workflow)))
    except ValueError as error:
        raise WorkflowError(str(error))
    except OSError as error:
        raise WorkflowError(explain_write(error))
    if makes and rules.plan.rule not in needed:
        processes, gpus, nodes = 0, None, 1
        train = (
            needed.get(rules.training.rule) if isinstance(CONFIG, Config) else None
        )
        if train:
            processes = train.params.processes
            gpus, nodes = train.resources.gpu, train.resources.nodes
        elif not isinstance(CONFIG, Config):
            gpus = max(
                (job.resources.get("gpu", 0) for job in needed.values()),
                default=None,
            )
        try:
            plan_first(
                CONFIG, RUN, PLANNED, processes, gpus, nodes, requests_of(workflow)
            )
        except ValueError as error:
            raise WorkflowError(str(error))
        except OSError as error:
            raise WorkflowError(explain_write(error))


# Once for all jobs of a call, and by no job: the user's own process has found them by then.
FORCED = cache(
    lambda: (
        force(
            workflow,
            hidden_outputs(
                CONFIG,
                RUN,
                declared_outputs(workflow),
                partial(noted_inputs, workflow),
            ),
        )
        if is_main(workflow)
        else []
    )
)


# The run that a first job plans, unless it was. A value that comes from `output` is none that
# Snakemake compares: it reruns nothing.
PLANNING = lambda wildcards, output: asked_to_plan(CONFIG, RUN, PLANNED, output[0])


rule freeze:
    """What a stage depends on, as a file that changes when that does."""
    input:
        # Of the jobs that all others come from, so that one stage by its file asks too.
        lambda wildcards: FORCED(),
    output:
        RUN.config("{stage}"),
    log:
        RUN.log("freeze-{stage}"),
    params:
        content=lambda wildcards: frozen_text(CONFIG, RUN, wildcards.stage),
        planned=PLANNING,
    shell:
        """
        exec python -m distillery.stages.freeze \
            --content {params.content:q} \
            --planned {params.planned:q} \
            --output {output} \
            --log-file {log}
        """


rule plan:
    """What the run will do and cost, and whether it can work: plan.json and plan.html."""
    input:
        sources=PLANNED,
        refused=PROMPT_FILES,
        # So that a plan that is asked for tells what is there by then.
        work=lambda wildcards: last_work(RUN),
    output:
        # And plan.html beside it, which is not declared: no rule makes it where a run is planned
        # before its first job, and a plan without it is made again there. A plan that refuses the
        # run leaves the one before it.
        update(RUN.plan),
    log:
        RUN.log("plan"),
    benchmark:
        RUN.benchmark("plan")
    params:
        # Not by the run's own file: looking at a plan changes nothing that others read.
        content=lambda wildcards: json.dumps(freeze(CONFIG, "run")),
        # Of a run that was measured. No input: asking for the plan measures nothing.
        probe=lambda wildcards: measured_at(RUN),
    shell:
        """
        exec python -m distillery.stages.plan \
            --content {params.content:q} \
            --output {output} \
            --log-file {log}
        """
