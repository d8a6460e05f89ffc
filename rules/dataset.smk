# The tables that make a data set of the images. They hold times, so nothing is made from them.


localrules:
    dataset,


rule dataset:
    input:
        config=f"{RUN}/config/dataset.json",
        manifests=expand(f"{RUN}/samples/{{model}}/manifest.parquet", model=MODELS),
    output:
        manifest=report(
            f"{RUN}/dataset/manifest.parquet",
            caption="../workflow/report/dataset.rst",
            category="Data",
            labels={"file": "all images"},
        ),
        metadata=expand(f"{RUN}/samples/{{model}}/metadata.csv", model=MODELS),
        pairs=[] if CONFIG.dataset.pairs == "none" else f"{RUN}/dataset/pairs.csv",
    log:
        f"{RUN}/logs/dataset.log",
    benchmark:
        f"{RUN}/benchmarks/dataset.tsv"
    shell:
        """
        exec python -m distillery.stages.dataset \
            --config {input.config} \
            --manifests {input.manifests} \
            --output {output.manifest} \
            --log-file {log}
        """
