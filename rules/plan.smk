import json

# What each stage depends on, and whether the run can work at all.


rule freeze:
    input:
        script="scripts/freeze.py",
    output:
        f"{RUN}/config/{{stage}}.json",
    log:
        f"{RUN}/logs/freeze-{{stage}}.log",
    params:
        content=lambda wildcards: json.dumps(freeze(CONFIG, wildcards.stage)),
    shell:
        """
        exec python {input.script} \
            --content {params.content:q} \
            --output {output} 2>{log}
        """


rule plan:
    input:
        script="scripts/plan.py",
        config=f"{RUN}/config/run.json",
        prompts=list(CONFIG.prompts.model_dump(exclude_none=True).values()),
        shape=isinstance(CONFIG, Config) and CONFIG.student.config or [],
    output:
        f"{RUN}/plan.json",
    log:
        f"{RUN}/logs/plan.log",
    benchmark:
        f"{RUN}/benchmarks/plan.tsv"
    shell:
        """
        exec python {input.script} \
            --config {input.config} \
            --output {output} \
            --log-file {log}
        """
