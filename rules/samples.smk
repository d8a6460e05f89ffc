# Images of the held-out prompts, one independent job per shard and model: no process group.


localrules:
    sheet,


SAMPLES_SHARD = f"{{shard}}-of-{CONFIG.samples.num_shards}"


rule samples:
    """A shard of a model's images of the held-out prompts."""
    input:
        config=RUN.config("samples-{model}"),
        prompts=RUN.prompts("eval"),
        embeddings=RUN.embeddings("eval"),
        # The pipeline of a student, trained or not; nothing for the teacher's models.
        pipeline=lambda wildcards: PIPELINES[
            CONFIG.samples.models[wildcards.model].source
        ],
    output:
        RUN.samples_shard("{model}", SAMPLES_SHARD),
    log:
        RUN.log("samples-{model}-" + SAMPLES_SHARD),
    benchmark:
        RUN.benchmark("samples-{model}-" + SAMPLES_SHARD)
    threads: CONFIG.hardware.cpu_threads
    resources:
        gpu=GPUS_OF_TEACHER,
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
    """The table of all images of a model."""
    input:
        shards=expand(
            RUN.samples_shard("{model}", SAMPLES_SHARD),
            shard=range(CONFIG.samples.num_shards),
            allow_missing=True,
        ),
    output:
        report(
            RUN.samples("{model}"),
            caption="../workflow/report/manifest.rst",
            category="Data",
            labels={"file": "images of {model}"},
        ),
    log:
        RUN.log("merge-samples-{model}"),
    benchmark:
        RUN.benchmark("merge-samples-{model}")
    shell:
        """
        exec python -m distillery.stages.merge_samples \
            --shards {input.shards} \
            --output {output} \
            --log-file {log}
        """


rule gallery:
    """Pages of all images, which they link to and do not read."""
    input:
        manifests=expand(RUN.samples("{model}"), model=MODELS),
        scores=RUN.scores if isinstance(CONFIG, Config) else [],
    output:
        directory(RUN.gallery),
    log:
        RUN.log("gallery"),
    benchmark:
        RUN.benchmark("gallery")
    shell:
        """
        exec python -m distillery.stages.gallery \
            --manifests {input.manifests} \
            --scores "{input.scores}" \
            --output {output} \
            --log-file {log}
        """


rule sheet:
    """A model's images on one sheet, asked for by its file."""
    input:
        RUN.samples("{model}"),
    output:
        RUN.sheet("{model}"),
    log:
        RUN.log("sheet-{model}"),
    shell:
        """
        exec python -m distillery.stages.sheet \
            --manifest {input} \
            --output {output} \
            --log-file {log}
        """
