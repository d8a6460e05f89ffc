# It has no output, so it runs when it is asked for.


rule verify:
    """Reads everything that there is of the run again, and says how to mend what is damaged."""
    log:
        RUN.log("verify"),
    threads: CONFIG.hardware.cpu_threads
    params:
        run=str(RUN),
    shell:
        """
        exec python -m distillery.stages.verify --run {params.run} --log-file {log}
        """
