# Of one split, or of both in a run of an earlier release: that one is rewritten for the other split
# too, which must not run this one's jobs.
PROMPTS_STAGE = lambda wildcards: prompts_stage(CONFIG, RUN, wildcards.split)


rule prompts:
    """A prompt file as a checked table."""
    input:
        config=lambda wildcards: (
            ancient if PROMPTS_STAGE(wildcards) == "prompts" else str
        )(str(RUN.config(PROMPTS_STAGE(wildcards)))),
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
