from distillery.snakemake_private import cores_of

# Asked for by its file, before the run: the plan then tells times.


rule probe:
    """Measures the run's speeds in a small copy of it, so that the plan tells times."""
    input:
        config=RUN.config("run"),
        sources=PLANNED,
    output:
        update(RUN.probe),  # that before it stays until there is another
    log:
        RUN.log("probe"),
    threads: cores_of(workflow)
    resources:
        gpu=GPUS_TO_ASK_FOR,
    params:
        snakefile=str(rules_folder(workflow).parent / "Snakefile"),
    shell:
        """
        exec python -m distillery.stages.probe \
            --config {input.config} \
            --snakefile {params.snakefile:q} \
            --cores {threads} \
            --output {output} \
            --log-file {log}
        """
