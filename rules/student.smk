# The student: built from the teacher's weights, trained from stored trajectories alone, exported.


PREVIEW_INPUTS = [
    f"{RUN}/config/previews.json",
    f"{RUN}/prompts/eval.parquet",
    f"{RUN}/embeddings/eval/manifest.json",
]


rule student:
    input:
        config=f"{RUN}/config/student.json",
        shape=CONFIG.student.config or [],
    output:
        directory(f"{RUN}/student/initial"),
    log:
        f"{RUN}/logs/student.log",
    benchmark:
        f"{RUN}/benchmarks/student.tsv"
    shell:
        """
        exec python -m distillery.stages.student \
            --config {input.config} \
            --output {output} \
            --log-file {log}
        """


rule training:
    input:
        config=f"{RUN}/config/training.json",
        student=f"{RUN}/student/initial",
        prompts=f"{RUN}/prompts/train.parquet",
        embeddings=f"{RUN}/embeddings/train/manifest.json",
        targets=f"{RUN}/targets/manifest.json",
        # Images on the way change no weight, so that nothing about them trains again. They are
        # inputs without previews too: with other inputs a job runs again.
        previews=list(map(ancient, PREVIEW_INPUTS)),
    output:
        student=directory(f"{RUN}/student/trained"),
        loss=report(
            f"{RUN}/student/loss.parquet",
            caption="../workflow/report/loss.rst",
            category="Student",
            labels={"file": "losses"},
        ),
    log:
        f"{RUN}/logs/training.log",
    benchmark:
        f"{RUN}/benchmarks/training.tsv"
    threads: CONFIG.hardware.cpu_processes * CONFIG.hardware.cpu_threads
    resources:
        gpu=NUM_GPUS,
        cpu_threads=CONFIG.hardware.cpu_threads,
        cpu_processes=CONFIG.hardware.cpu_processes,
    params:
        processes=lambda wildcards, resources: resources.gpu or resources.cpu_processes,
        lock=str(job_lock(Path(RUN), "training")),
        checkpoints=f"{RUN}/student/checkpoints",
        previews=f"{RUN}/student/previews",
    shell:
        """
        # torchrun kills what a signal has not ended after 30 s: too soon for a large checkpoint.
        export TORCH_ELASTIC_SHUTDOWN_TIMEOUT=900
        exec python -m distillery.with_gpus --num-gpus {resources.gpu} \
            --alone {params.lock} -- \
            python -m torch.distributed.run --standalone --nproc-per-node={params.processes} \
            --signals-to-handle=SIGTERM,SIGINT,SIGHUP,SIGQUIT,SIGUSR1 -m distillery.stages.training \
            --config {input.config} \
            --student {input.student} \
            --prompts {input.prompts} \
            --embeddings {input.embeddings} \
            --targets {input.targets} \
            --checkpoints {params.checkpoints} \
            --trained {output.student} \
            --losses {output.loss} \
            --previews {params.previews} \
            --previews-config {input.previews[0]} \
            --eval-prompts {input.previews[1]} \
            --eval-embeddings {input.previews[2]} \
            --cpu-threads {resources.cpu_threads} \
            --log-file {log}
        """


# Images of any kept checkpoint, by their file; the checkpoints are not declared.
rule previews:
    input:
        training=f"{RUN}/config/training.json",
        student=f"{RUN}/student/initial",
        prompts=f"{RUN}/prompts/train.parquet",
        embeddings=f"{RUN}/embeddings/train/manifest.json",
        targets=f"{RUN}/targets/manifest.json",
        previews=PREVIEW_INPUTS,
    output:
        f"{RUN}/student/previews/samples-{{seen}}/sheet.png",
    log:
        f"{RUN}/logs/previews-{{seen}}.log",
    benchmark:
        f"{RUN}/benchmarks/previews-{{seen}}.tsv"
    wildcard_constraints:
        seen=r"\d{12}",
    threads: CONFIG.hardware.cpu_threads
    resources:
        gpu=GPUS_A_JOB,
        cpu_threads=CONFIG.hardware.cpu_threads,
    params:
        checkpoints=f"{RUN}/student/checkpoints",
        folder=subpath(output[0], ancestor=2),
    shell:
        """
        exec python -m distillery.with_gpus --num-gpus {resources.gpu} -- \
            python -m distillery.stages.previews \
            --config {input.training} \
            --student {input.student} \
            --prompts {input.prompts} \
            --embeddings {input.embeddings} \
            --targets {input.targets} \
            --checkpoints {params.checkpoints} \
            --samples-seen {wildcards.seen} \
            --previews {params.folder} \
            --previews-config {input.previews[0]} \
            --eval-prompts {input.previews[1]} \
            --eval-embeddings {input.previews[2]} \
            --cpu-threads {resources.cpu_threads} \
            --log-file {log}
        """


rule export:
    input:
        config=f"{RUN}/config/export.json",
        student=lambda wildcards: f"{RUN}/student/{EXPORTED[wildcards.exported]}",
    output:
        report(
            directory(f"{RUN}/student/{{exported}}"),
            patterns=["{card}.md"],
            caption="../workflow/report/card.rst",
            category="Student",
            labels={"file": "model card of student/{exported}"},
        ),
    log:
        f"{RUN}/logs/export-{{exported}}.log",
    benchmark:
        f"{RUN}/benchmarks/export-{{exported}}.tsv"
    wildcard_constraints:
        exported="|".join(EXPORTED),
    shell:
        """
        exec python -m distillery.stages.export \
            --config {input.config} \
            --student {input.student} \
            --output {output} \
            --log-file {log}
        """
