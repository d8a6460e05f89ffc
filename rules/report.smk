rule evaluation:
    """Scores of all images, and the models compared on the same prompts and noise."""
    input:
        config=RUN.config("evaluation"),
        manifests=expand(RUN.samples("{model}"), model=MODELS),
    output:
        quality=report(
            RUN.quality,
            caption="../workflow/report/quality.rst",
            category="Data",
            labels={"file": "metrics with intervals"},
        ),
        scores=report(
            RUN.scores,
            caption="../workflow/report/scores.rst",
            category="Data",
            labels={"file": "scores of each image"},
        ),
    log:
        RUN.log("evaluation"),
    benchmark:
        RUN.benchmark("evaluation")
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
    """The report of the run, and its numbers."""
    input:
        config=RUN.config("run"),
        quality=RUN.quality,
        scores=RUN.scores,
        manifests=expand(RUN.samples("{model}"), model=MODELS),
        loss=RUN.loss if CONFIG.trains else [],
        targets=TARGETS if CONFIG.trains else [],
        gallery=RUN.gallery,  # which the page links to
        choices=RUN.choices,
    output:
        html=report(
            RUN.report,
            caption="../workflow/report/report.rst",
            category="Report",
            labels={"file": "comparison of student and teacher"},
        ),
        metrics=report(
            RUN.metrics,
            caption="../workflow/report/metrics.rst",
            category="Report",
            labels={"file": "its numbers"},
        ),
    log:
        RUN.log("report"),
    benchmark:
        RUN.benchmark("report")
    shell:
        """
        exec python -m distillery.stages.report \
            --config {input.config} \
            --output {output.html} \
            --metrics {output.metrics} \
            --log-file {log}
        """
