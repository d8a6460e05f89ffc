# The teacher's trajectories. Chunks are not declared, so that a failed job keeps what it made;
# a shard's manifest is. Changing the number of shards recomputes no chunk.


localrules:
    merge_targets,


rule targets:
    input:
        config=f"{RUN}/config/targets.json",
        prompts=f"{RUN}/prompts/train.parquet",
        embeddings=f"{RUN}/embeddings/train/manifest.json",
    output:
        f"{RUN}/targets/shard-{{shard}}-of-{CONFIG.targets.num_shards}.json",
    log:
        f"{RUN}/logs/targets-{{shard}}-of-{CONFIG.targets.num_shards}.log",
    benchmark:
        f"{RUN}/benchmarks/targets-{{shard}}-of-{CONFIG.targets.num_shards}.tsv"
    threads: CONFIG.hardware.cpu_threads
    resources:
        gpu=min(NUM_GPUS, CONFIG.teacher.num_gpus),
        cpu_threads=CONFIG.hardware.cpu_threads,
        # Here, since a resource that changes reruns nothing.
        compile=CONFIG.hardware.compile,
    params:
        num_shards=CONFIG.targets.num_shards,
    shell:
        """
        exec python -m distillery.with_gpus --num-gpus {resources.gpu} -- \
            python -m distillery.stages.targets \
            --config {input.config} \
            --prompts {input.prompts} \
            --embeddings {input.embeddings} \
            --shard {wildcards.shard}/{params.num_shards} \
            --output {output} \
            --compile {resources.compile} \
            --cpu-threads {resources.cpu_threads} \
            --log-file {log}
        """


rule merge_targets:
    input:
        shards=expand(
            f"{RUN}/targets/shard-{{shard}}-of-{CONFIG.targets.num_shards}.json",
            shard=range(CONFIG.targets.num_shards),
        ),
    output:
        f"{RUN}/targets/manifest.json",
    log:
        f"{RUN}/logs/merge-targets.log",
    benchmark:
        f"{RUN}/benchmarks/merge-targets.tsv"
    shell:
        """
        exec python -m distillery.stages.merge_targets \
            --shards {input.shards} \
            --output {output} \
            --log-file {log}
        """
