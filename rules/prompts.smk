# Prompt files to checked tables, and tables to text embeddings.


rule prompts:
    input:
        config=f"{RUN}/config/prompts.json",
        source=lambda wildcards: CONFIG.prompts.file(wildcards.split),
    output:
        f"{RUN}/prompts/{{split}}.parquet",
    log:
        f"{RUN}/logs/prompts-{{split}}.log",
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
    input:
        config=f"{RUN}/config/embeddings.json",
        prompts=f"{RUN}/prompts/{{split}}.parquet",
    output:
        f"{RUN}/embeddings/{{split}}/manifest.json",
    log:
        f"{RUN}/logs/embeddings-{{split}}.log",
    benchmark:
        f"{RUN}/benchmarks/embeddings-{{split}}.tsv"
    threads: CONFIG.hardware.cpu_threads
    resources:
        gpu=min(NUM_GPUS, CONFIG.teacher.num_gpus),
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
