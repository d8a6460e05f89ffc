# Its tables hold times, so nothing is made from them.


localrules:
    dataset,


rule dataset:
    """The tables that make a data set of the images."""
    input:
        config=RUN.config("dataset"),
        manifests=expand(RUN.samples("{model}"), model=MODELS),
    output:
        manifest=report(
            RUN.dataset,
            caption="../workflow/report/dataset.rst",
            category="Data",
            labels={"file": "all images"},
        ),
        metadata=expand(RUN.metadata("{model}"), model=MODELS),
        pairs=[] if CONFIG.dataset.pairs == "none" else RUN.pairs,
    log:
        RUN.log("dataset"),
    benchmark:
        RUN.benchmark("dataset")
    shell:
        """
        exec python -m distillery.stages.dataset \
            --config {input.config} \
            --manifests {input.manifests} \
            --output {output.manifest} \
            --log-file {log}
        """
