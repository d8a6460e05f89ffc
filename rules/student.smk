# The student: built from the teacher's weights, trained from stored trajectories alone, exported.


rule build_student:
    input:
        config=f"{RUN}/config/training.json",
        plan=ancient(f"{RUN}/plan.json"),
    output:
        directory(f"{RUN}/student/initial"),
    log:
        f"{RUN}/logs/build-student.log",
    benchmark:
        f"{RUN}/benchmarks/build-student.tsv"
    shell:
        """
        exec python scripts/build_student.py \
            --config {input.config} \
            --output {output} \
            --log-file {log}
        """


rule train:
    input:
        config=f"{RUN}/config/training.json",
        student=f"{RUN}/student/initial",
        prompts=f"{RUN}/prompts/train.parquet",
        embeddings=f"{RUN}/embeddings/train/manifest.json",
        targets=f"{RUN}/targets/manifest.json",
    output:
        student=directory(f"{RUN}/student/trained"),
        loss=f"{RUN}/student/loss.parquet",
    log:
        f"{RUN}/logs/train.log",
    benchmark:
        f"{RUN}/benchmarks/train.tsv"
    threads: CONFIG.hardware.cpu_processes * CONFIG.hardware.cpu_threads
    resources:
        gpu=NUM_GPUS,
        cpu_threads=CONFIG.hardware.cpu_threads,
        cpu_processes=CONFIG.hardware.cpu_processes,
    params:
        checkpoints=f"{RUN}/student/checkpoints",
    shell:
        """
        processes=$(({resources.gpu} > 0 ? {resources.gpu} : {resources.cpu_processes}))
        exec python scripts/with_gpus.py --num-gpus {resources.gpu} -- \
            python -m torch.distributed.run --standalone --nproc-per-node=$processes \
            scripts/train.py \
            --config {input.config} \
            --student {input.student} \
            --prompts {input.prompts} \
            --embeddings {input.embeddings} \
            --targets {input.targets} \
            --checkpoints {params.checkpoints} \
            --trained {output.student} \
            --losses {output.loss} \
            --cpu-threads {resources.cpu_threads} \
            --log-file {log}
        """


rule export:
    input:
        config=f"{RUN}/config/export.json",
        student=f"{RUN}/student/trained",
    output:
        directory(f"{RUN}/student/pipeline"),
    log:
        f"{RUN}/logs/export.log",
    benchmark:
        f"{RUN}/benchmarks/export.tsv"
    shell:
        """
        exec python scripts/export.py \
            --config {input.config} \
            --trained {input.student} \
            --output {output} \
            --log-file {log}
        """
