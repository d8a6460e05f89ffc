rule prompts:
    """A prompt file as a checked table."""
    input:
        config=RUN.config("prompts-{split}"),
        source=lambda wildcards: CONFIG.prompts.file(wildcards.split),
        refused=PROMPT_FILES,
    output:
        RUN.prompts("{split}"),
    log:
        RUN.log("prompts-{split}"),
    params:
        planned=PLANNING,
    shell:
        """
        exec python -m distillery.stages.prompts \
            --config {input.config} \
            --split {wildcards.split} \
            --planned {params.planned:q} \
            --output {output} \
            --log-file {log}
        """


rule embeddings:
    """What the text encoders make of a split's prompts."""
    input:
        config=RUN.config("embeddings"),
        prompts=RUN.prompts("{split}"),
        signature=SIGNATURE,
    output:
        RUN.embeddings("{split}"),
    log:
        RUN.log("embeddings-{split}"),
    benchmark:
        RUN.benchmark("embeddings-{split}")
    threads: CONFIG.hardware.cpu_threads
    resources:
        gpu=GPUS_OF_TEACHER,
        cpu_threads=CONFIG.hardware.cpu_threads,
    shell:
        """
        exec python -m distillery.with_gpus --num-gpus {resources.gpu} -- \
            python -m distillery.stages.embeddings \
            --config {input.config} \
            --prompts {input.prompts} \
            --output {output} \
            --cpu-threads {resources.cpu_threads} \
            --log-file {log}
        """
