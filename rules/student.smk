# The student: built from the teacher's weights, trained from stored trajectories alone, exported.


PREVIEW_INPUTS = [
    RUN.config("previews"),
    RUN.prompts("eval"),
    RUN.embeddings("eval"),
]


rule student:
    """The student before its training, built from the teacher's weights."""
    input:
        config=RUN.config("student"),
        shape=CONFIG.student.config or [],
        # It is written last in the folder, and has the hashes of all that is there.
        start=start_files(CONFIG),
        signature=SIGNATURE,
    output:
        directory(RUN.student("initial")),
    log:
        RUN.log("student"),
    benchmark:
        RUN.benchmark("student")
    shell:
        """
        exec python -m distillery.stages.student \
            --config {input.config} \
            --output {output} \
            --log-file {log}
        """


rule training:
    """The student after its training; it resumes at its last checkpoint."""
    input:
        config=RUN.config("training"),
        student=RUN.student("initial"),
        prompts=RUN.prompts("train"),
        embeddings=SOURCE.embeddings("train"),
        targets=TARGETS,
        rounds=RUN.visited_until(len(ROUNDS)),
        # Images on the way change no weight, so that nothing about them trains again. They are
        # inputs without previews too: with other inputs a job runs again.
        previews=list(map(ancient, PREVIEW_INPUTS)),
    output:
        student=directory(RUN.student("trained")),
        loss=report(
            RUN.loss,
            caption="../workflow/report/loss.rst",
            category="Student",
            labels={"file": "losses"},
        ),
    log:
        RUN.log("training"),
    benchmark:
        RUN.benchmark("training")
    threads: CONFIG.hardware.cpu_processes * CONFIG.hardware.cpu_threads
    resources:
        # Over all nodes. Several of them are a matter of the cluster's profile: docs/clusters.md.
        gpu=GPUS_TO_ASK_FOR,
        nodes=1,
        cpus_per_gpu=8,
        cpu_threads=CONFIG.hardware.cpu_threads,
        cpu_processes=CONFIG.hardware.cpu_processes,
    params:
        processes=lambda wildcards, resources: num_processes(
            resources.gpu, resources.nodes, resources.cpu_processes, CONFIG.own_gpus
        ),
        gpus=lambda wildcards, resources: gpus_per_node(resources.gpu, resources.nodes),
        launcher=lambda wildcards, resources: launch_with(
            resources.gpu,
            resources.nodes,
            resources.cpu_processes,
            resources.cpus_per_gpu,
            CONFIG.own_gpus,
        ),
        lock=str(job_lock(RUN.path, "training")),
        checkpoints=str(RUN.checkpoints),
        rounds=str(RUN.rounds),
        previews=str(RUN.previews),
    shell:
        """
        # torchrun kills what a signal has not ended after 30 s: too soon for a large checkpoint.
        export TORCH_ELASTIC_SHUTDOWN_TIMEOUT=900
        exec python -m distillery.with_gpus --num-gpus {params.gpus} --alone {params.lock} -- \
            {params.launcher} -m distillery.stages.training \
            --config {input.config} \
            --student {input.student} \
            --prompts {input.prompts} \
            --embeddings {input.embeddings} \
            --targets "{input.targets}" \
            --checkpoints {params.checkpoints} \
            --rounds {params.rounds} \
            --trained {output.student} \
            --losses {output.loss} \
            --previews {params.previews} \
            --previews-config {input.previews[0]} \
            --eval-prompts {input.previews[1]} \
            --eval-embeddings {input.previews[2]} \
            --cpu-threads {resources.cpu_threads} \
            --log-file {log}
        """


# The checkpoints are not declared.
rule previews:
    """Images of a kept checkpoint, asked for by their file."""
    input:
        training=RUN.config("training"),
        student=RUN.student("initial"),
        prompts=RUN.prompts("train"),
        embeddings=SOURCE.embeddings("train"),
        targets=TARGETS,
        rounds=RUN.visited_until(len(ROUNDS)),
        previews=PREVIEW_INPUTS,
    output:
        RUN.previews / "samples-{seen}" / "sheet.png",
    log:
        RUN.log("previews-{seen}"),
    benchmark:
        RUN.benchmark("previews-{seen}")
    wildcard_constraints:
        seen=r"\d{12}",
    threads: CONFIG.hardware.cpu_threads
    resources:
        gpu=GPUS_A_JOB,
        cpu_threads=CONFIG.hardware.cpu_threads,
    params:
        checkpoints=str(RUN.checkpoints),
        rounds=str(RUN.rounds),
        folder=subpath(output[0], ancestor=2),
    shell:
        """
        exec python -m distillery.with_gpus --num-gpus {resources.gpu} -- \
            python -m distillery.stages.previews \
            --config {input.training} \
            --student {input.student} \
            --prompts {input.prompts} \
            --embeddings {input.embeddings} \
            --targets "{input.targets}" \
            --checkpoints {params.checkpoints} \
            --rounds {params.rounds} \
            --samples-seen {wildcards.seen} \
            --previews {params.folder} \
            --previews-config {input.previews[0]} \
            --eval-prompts {input.previews[1]} \
            --eval-embeddings {input.previews[2]} \
            --cpu-threads {resources.cpu_threads} \
            --log-file {log}
        """


rule export:
    """A student as a Diffusers pipeline with a card."""
    input:
        config=RUN.config("export"),
        student=lambda wildcards: RUN.student(EXPORTED[wildcards.exported]),
    output:
        report(
            directory(RUN.student("{exported}")),
            patterns=["{card}.md"],
            caption="../workflow/report/card.rst",
            category="Student",
            labels={"file": "model card of student/{exported}"},
        ),
    log:
        RUN.log("export-{exported}"),
    benchmark:
        RUN.benchmark("export-{exported}")
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
