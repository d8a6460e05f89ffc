# Images of the held-out prompts, one independent job per shard and model: no process group.


rule samples:
    input:
        config=f"{RUN}/config/samples-{{model}}.json",
        prompts=f"{RUN}/prompts/eval.parquet",
        embeddings=f"{RUN}/embeddings/eval/manifest.json",
        # The pipeline of a student, trained or not; nothing for the teacher's models.
        pipeline=lambda wildcards: PIPELINES[
            CONFIG.samples.models[wildcards.model].source
        ],
    output:
        f"{RUN}/samples/{{model}}/shard-{{shard}}-of-{CONFIG.samples.num_shards}.parquet",
    log:
        f"{RUN}/logs/samples-{{model}}-{{shard}}-of-{CONFIG.samples.num_shards}.log",
    benchmark:
        f"{RUN}/benchmarks/samples-{{model}}-{{shard}}-of-{CONFIG.samples.num_shards}.tsv"
    threads: CONFIG.hardware.cpu_threads
    resources:
        gpu=min(NUM_GPUS, CONFIG.teacher.num_gpus),
        cpu_threads=CONFIG.hardware.cpu_threads,
        # Here, since a resource that changes reruns nothing.
        compile=CONFIG.hardware.compile,
    params:
        num_shards=CONFIG.samples.num_shards,
    shell:
        """
        exec python -m distillery.with_gpus --num-gpus {resources.gpu} -- \
            python -m distillery.stages.samples \
            --config {input.config} \
            --model {wildcards.model} \
            --prompts {input.prompts} \
            --embeddings {input.embeddings} \
            --pipeline={input.pipeline} \
            --shard {wildcards.shard}/{params.num_shards} \
            --output {output} \
            --compile {resources.compile} \
            --cpu-threads {resources.cpu_threads} \
            --log-file {log}
        """


rule merge_samples:
    input:
        shards=expand(
            f"{RUN}/samples/{{{{model}}}}/shard-{{shard}}-of-{CONFIG.samples.num_shards}.parquet",
            shard=range(CONFIG.samples.num_shards),
        ),
    output:
        report(
            f"{RUN}/samples/{{model}}/manifest.parquet",
            caption="../workflow/report/manifest.rst",
            category="Data",
            labels={"file": "images of {model}"},
        ),
    log:
        f"{RUN}/logs/merge-samples-{{model}}.log",
    benchmark:
        f"{RUN}/benchmarks/merge-samples-{{model}}.tsv"
    shell:
        """
        exec python -m distillery.stages.merge_samples \
            --shards {input.shards} \
            --output {output} \
            --log-file {log}
        """
