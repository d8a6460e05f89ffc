# Rounds: the student of the round before stores where it stands, the teacher walks on from there, and
# the training goes on. Chunks are not declared, as those of the targets; manifests are.


# The numbers of all rounds, and of rounds that are over before one begins; as wildcards.
ROUND = "|".join(map(str, ROUNDS)) or "none"
BEFORE_ROUND = "|".join(map(str, range(len(ROUNDS)))) or "none"


localrules:
    merge_round,


rule round_states:
    """A shard of the states that the student of the round before visits."""
    input:
        config=RUN.config("rounds"),
        prompts=RUN.prompts("train"),
        embeddings=SOURCE.embeddings("train"),
        pipeline=lambda wildcards: RUN.student(f"{int(wildcards.round) - 1}-rounds"),
    output:
        RUN.states_shard("{round}", TARGETS_SHARD),
    log:
        RUN.log(f"round-states-{{round}}-{TARGETS_SHARD}"),
    benchmark:
        RUN.benchmark(f"round-states-{{round}}-{TARGETS_SHARD}")
    wildcard_constraints:
        round=ROUND,
    threads: CONFIG.hardware.cpu_threads
    resources:
        gpu=GPUS_OF_TEACHER,
        cpu_threads=CONFIG.hardware.cpu_threads,
        compile=CONFIG.hardware.compile,
    params:
        num_shards=CONFIG.targets.num_shards,
    shell:
        """
        exec python -m distillery.with_gpus --num-gpus {resources.gpu} -- \
            python -m distillery.stages.round_states \
            --config {input.config} \
            --prompts {input.prompts} \
            --embeddings {input.embeddings} \
            --pipeline {input.pipeline} \
            --number {wildcards.round} \
            --shard {wildcards.shard}/{params.num_shards} \
            --output {output} \
            --compile {resources.compile} \
            --cpu-threads {resources.cpu_threads} \
            --log-file {log}
        """


rule round_targets:
    """A shard of where the teacher goes on from those states."""
    input:
        config=RUN.config("rounds"),
        prompts=RUN.prompts("train"),
        embeddings=SOURCE.embeddings("train"),
        states=RUN.states_shard("{round}", TARGETS_SHARD),
    output:
        RUN.visited_shard("{round}", TARGETS_SHARD),
    log:
        RUN.log(f"round-targets-{{round}}-{TARGETS_SHARD}"),
    benchmark:
        RUN.benchmark(f"round-targets-{{round}}-{TARGETS_SHARD}")
    wildcard_constraints:
        round=ROUND,
    threads: CONFIG.hardware.cpu_threads
    resources:
        gpu=GPUS_OF_TEACHER,
        cpu_threads=CONFIG.hardware.cpu_threads,
    params:
        num_shards=CONFIG.targets.num_shards,
    shell:
        """
        exec python -m distillery.with_gpus --num-gpus {resources.gpu} -- \
            python -m distillery.stages.round_targets \
            --config {input.config} \
            --prompts {input.prompts} \
            --embeddings {input.embeddings} \
            --states {input.states} \
            --number {wildcards.round} \
            --shard {wildcards.shard}/{params.num_shards} \
            --output {output} \
            --cpu-threads {resources.cpu_threads} \
            --log-file {log}
        """


rule merge_round:
    """The manifest of a round's answers."""
    input:
        shards=expand(
            RUN.visited_shard("{{round}}", TARGETS_SHARD),
            shard=range(CONFIG.targets.num_shards),
        ),
    output:
        RUN.visited("{round}"),
    log:
        RUN.log("merge-round-{round}"),
    benchmark:
        RUN.benchmark("merge-round-{round}")
    wildcard_constraints:
        round=ROUND,
    shell:
        """
        exec python -m distillery.stages.merge_targets \
            --shards {input.shards} \
            --output {output} \
            --log-file {log}
        """


# The training as far as it goes before a round; the one after it takes up its last checkpoint.
use rule training as training_before_round with:
    input:
        config=RUN.config("training-{round}-rounds"),
        student=RUN.student("initial"),
        prompts=RUN.prompts("train"),
        embeddings=SOURCE.embeddings("train"),
        targets=TARGETS,
        rounds=lambda wildcards: RUN.visited_until(int(wildcards.round)),
        previews=list(map(ancient, PREVIEW_INPUTS)),
    output:
        student=directory(RUN.student("trained-{round}-rounds")),
        loss=RUN.loss_after("{round}"),
    log:
        RUN.log("training-{round}-rounds"),
    benchmark:
        RUN.benchmark("training-{round}-rounds")
    wildcard_constraints:
        round=BEFORE_ROUND,
