# The teacher's trajectories. Chunks are not declared, so that a failed job keeps what it made;
# a shard's manifest is. Changing the number of shards recomputes no chunk.


TARGETS_SHARD = f"{{shard}}-of-{CONFIG.targets.num_shards}"


# None where the student learns online alone: its trajectories begin at noise that is drawn again.
TARGETS = SOURCE.targets if CONFIG.training.reads_trajectories else []


localrules:
    merge_targets,


rule targets:
    """A shard of the teacher's trajectories."""
    input:
        config=RUN.config("targets"),
        prompts=RUN.prompts("train"),
        embeddings=RUN.embeddings("train"),
    output:
        RUN.targets_shard(TARGETS_SHARD),
    log:
        RUN.log("targets-" + TARGETS_SHARD),
    benchmark:
        RUN.benchmark("targets-" + TARGETS_SHARD)
    threads: CONFIG.hardware.cpu_threads
    resources:
        gpu=GPUS_OF_TEACHER,
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
    """The manifest of all trajectories."""
    input:
        shards=expand(
            RUN.targets_shard(TARGETS_SHARD),
            shard=range(CONFIG.targets.num_shards),
        ),
    output:
        RUN.targets,
    log:
        RUN.log("merge-targets"),
    benchmark:
        RUN.benchmark("merge-targets")
    shell:
        """
        exec python -m distillery.stages.merge_targets \
            --shards {input.shards} \
            --output {output} \
            --log-file {log}
        """
