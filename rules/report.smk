# Scores, and the report that shows them.


rule evaluation:
    input:
        config=f"{RUN}/config/evaluation.json",
        manifests=expand(f"{RUN}/samples/{{model}}/manifest.parquet", model=MODELS),
    output:
        quality=report(
            f"{RUN}/evaluation/quality.json",
            caption="../workflow/report/quality.rst",
            category="Data",
            labels={"file": "metrics with intervals"},
        ),
        scores=report(
            f"{RUN}/evaluation/scores.parquet",
            caption="../workflow/report/scores.rst",
            category="Data",
            labels={"file": "scores of each image"},
        ),
    log:
        f"{RUN}/logs/evaluation.log",
    benchmark:
        f"{RUN}/benchmarks/evaluation.tsv"
    threads: CONFIG.hardware.cpu_threads
    resources:
        gpu=GPUS_A_JOB,
        cpu_threads=CONFIG.hardware.cpu_threads,
    shell:
        """
        exec python -m distillery.with_gpus --num-gpus {resources.gpu} -- \
            python -m distillery.stages.evaluation \
            --config {input.config} \
            --manifests {input.manifests} \
            --quality {output.quality} \
            --scores {output.scores} \
            --cpu-threads {resources.cpu_threads} \
            --log-file {log}
        """


rule report:
    input:
        config=f"{RUN}/config/run.json",
        quality=f"{RUN}/evaluation/quality.json",
        scores=f"{RUN}/evaluation/scores.parquet",
        manifests=expand(f"{RUN}/samples/{{model}}/manifest.parquet", model=MODELS),
        loss=f"{RUN}/student/loss.parquet",
        targets=f"{RUN}/targets/manifest.json",
    output:
        html=report(
            f"{RUN}/report/index.html",
            caption="../workflow/report/report.rst",
            category="Report",
            labels={"file": "comparison of student and teacher"},
        ),
        metrics=report(
            f"{RUN}/report/metrics.json",
            caption="../workflow/report/metrics.rst",
            category="Report",
            labels={"file": "its numbers"},
        ),
    log:
        f"{RUN}/logs/report.log",
    benchmark:
        f"{RUN}/benchmarks/report.tsv"
    shell:
        """
        exec python -m distillery.stages.report \
            --config {input.config} \
            --output {output.html} \
            --metrics {output.metrics} \
            --log-file {log}
        """
