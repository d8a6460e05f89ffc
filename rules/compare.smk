# Two runs side by side, asked for by their names; whatever this configuration's run is.


localrules:
    compare,


rule compare:
    input:
        lambda wildcards: [
            piece
            for run in (wildcards.first, wildcards.second)
            for piece in RunFolder(Path("results") / run).compared
        ],
    output:
        page="results/compare/{first}-vs-{second}/index.html",
        metrics="results/compare/{first}-vs-{second}/metrics.parquet",
    log:
        "results/compare/{first}-vs-{second}/compare.log",
    wildcard_constraints:
        first="[^/]+?",
        second="[^/]+",
    params:
        first=lambda wildcards: f"results/{wildcards.first}",
        second=lambda wildcards: f"results/{wildcards.second}",
    shell:
        """
        exec python -m distillery.stages.compare \
            --first {params.first:q} \
            --second {params.second:q} \
            --output {output.page:q} \
            --log-file {log:q}
        """
