# What is learnt of a teacher whose class has no adapter, before anything is made with it.


rule signature:
    """What a traced teacher gives its network, learnt from its own calls."""
    input:
        config=RUN.config("signature"),
    output:
        RUN.signature,
    log:
        RUN.log("signature"),
    benchmark:
        RUN.benchmark("signature")
    threads: CONFIG.hardware.cpu_threads
    resources:
        gpu=GPUS_OF_TEACHER,
        cpu_threads=CONFIG.hardware.cpu_threads,
    params:
        planned=PLANNING,
    shell:
        """
        exec python -m distillery.with_gpus --num-gpus {resources.gpu} -- \
            python -m distillery.stages.signature \
            --config {input.config} \
            --planned {params.planned:q} \
            --output {output} \
            --cpu-threads {resources.cpu_threads} \
            --log-file {log}
        """
