import json

from distillery.plan_first import plan_first

# What each stage depends on, and whether the run can work at all.

PLANNED = list(CONFIG.prompts.files)
if isinstance(CONFIG, Config) and CONFIG.student.config:
    PLANNED.append(CONFIG.student.config)


# Not in a dry run, and not where the plan itself was asked for.
onstart:
    needed = {job.rule.name: job for job in workflow.dag.needrun_jobs()}
    if "plan" not in needed:
        processes = needed["train"].params.processes if "train" in needed else 0
        try:
            plan_first(CONFIG, Path(RUN), PLANNED, processes)
        except ValueError as error:
            raise WorkflowError(str(error))


rule freeze:
    output:
        f"{RUN}/config/{{stage}}.json",
    log:
        f"{RUN}/logs/freeze-{{stage}}.log",
    params:
        content=lambda wildcards: json.dumps(freeze(CONFIG, wildcards.stage)),
    shell:
        """
        exec python -m distillery.scripts.freeze \
            --content {params.content:q} \
            --output {output} 2>{log}
        """


rule plan:
    input:
        config=f"{RUN}/config/run.json",
        sources=PLANNED,
    output:
        f"{RUN}/plan.json",
    log:
        f"{RUN}/logs/plan.log",
    benchmark:
        f"{RUN}/benchmarks/plan.tsv"
    shell:
        """
        exec python -m distillery.scripts.plan \
            --config {input.config} \
            --output {output} \
            --log-file {log}
        """
