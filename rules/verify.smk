# Reads everything that there is of the run again; it has no output, so it runs when it is asked for.


rule verify:
    log:
        RUN.log("verify"),
    threads: CONFIG.hardware.cpu_threads
    params:
        run=str(RUN),
    shell:
        """
        exec python -m distillery.stages.verify --run {params.run} --log-file {log}
        """
