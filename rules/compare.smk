from distillery.planning.compared import compared_files, reported_files, two_runs

# Of whatever runs, not of this configuration's. It reads what is there and makes nothing of it, so
# none of it is an input: see `compared_files`.


localrules:
    compare,
    leaderboard,


rule compare:
    """Two runs side by side, asked for by their names."""
    output:
        page="results/compare/{pair}/index.html",
        metrics="results/compare/{pair}/metrics.parquet",
    log:
        "results/compare/{pair}/compare.log",
    wildcard_constraints:
        pair="[^/]+-vs-[^/]+",
    params:
        first=lambda wildcards: str(two_runs(wildcards.pair)[0].path),
        second=lambda wildcards: str(two_runs(wildcards.pair)[1].path),
        files=lambda wildcards: compared_files(wildcards.pair),
    shell:
        """
        exec python -m distillery.stages.compare \
            --first {params.first:q} \
            --second {params.second:q} \
            --output {output.page:q} \
            --log-file {log:q}
        """


rule leaderboard:
    """All runs that have a report."""
    output:
        "results/compare/index.html",
    log:
        "results/compare/leaderboard.log",
    params:
        files=lambda wildcards: reported_files(),
    shell:
        """
        exec python -m distillery.stages.leaderboard \
            --results results \
            --output {output:q} \
            --log-file {log:q}
        """
