import re
from functools import partial
from pathlib import Path

from distillery.config.jobs import freeze, frozen_text, prompts_stage
from distillery.launcher import gpus_per_node, launch_with, num_processes
from distillery.pipeline import STAGES
from distillery.planning.first import (
    on_prompt_files,
    on_source,
    on_start,
    sources_of,
    start_files,
)
from distillery.planning.overlooked import on_contents, on_noted
from distillery.run_folder import RunFolder
from distillery.snakemake_private import (
    has_noted,
    is_made,
    limit_on_this_machine,
    refused_by,
    runs_elsewhere,
)
from distillery.stage import everything

# What all rules share: names, folders, resources. A rule starts a module of the installed library
# (`python -m distillery.stages.NAME`): a line without a path works from any folder, in another
# workflow and from a wheel. `shell:` and not `script:`, since torchrun starts processes of its own,
# signals must reach them, and every job can be started by hand.
#
# Snakemake does not watch the library's code: a stage whose results change gets another version in
# config/jobs.py, so that a wording remakes nothing that took days.


RUN = RunFolder(Path("results") / CONFIG.run)
MODELS = list(CONFIG.samples.models)
SPLITS = ["train", "eval"] if isinstance(CONFIG, Config) else ["eval"]

# Where jobs run on this machine, no more of them than it has GPUs; --resources gpu=N overrides it.
limit_on_this_machine(workflow, "gpu", NUM_GPUS)

# A cluster's jobs ask for GPUs whatever the machine has that submits them; a profile may say how many.
GPUS_TO_ASK_FOR = (
    max(NUM_GPUS, CONFIG.teacher.num_gpus) if runs_elsewhere(workflow) else NUM_GPUS
)
GPUS_A_JOB = min(GPUS_TO_ASK_FOR, 1)
GPUS_OF_TEACHER = min(GPUS_TO_ASK_FOR, CONFIG.teacher.num_gpus)


wildcard_constraints:
    split="train|eval",
    model="|".join(map(re.escape, MODELS)),
    shard=r"\d+",


# Where the student is, and the training's trajectories and their embeddings.
STUDENT = CONFIG.student_run(RUN) if isinstance(CONFIG, Config) else RUN
SOURCE = CONFIG.targets_run(RUN) if isinstance(CONFIG, Config) else RUN

# What was learnt of a teacher without an adapter: of rules that load it first.
SIGNATURE = RUN.signature if CONFIG.teacher.trace else []

# Files beside the configuration that a run is planned from.
PLANNED = sources_of(CONFIG)

# For rules that take prompt files: a rule of a workflow around this one may make them, so they are
# asked for when all rules are known. What is read of other runs is asked for as early.
PROMPT_FILES = refused_by(
    lambda _: on_prompt_files(CONFIG, partial(is_made, workflow)),
    lambda _: on_start(CONFIG),
    lambda _: on_source(CONFIG),
)

# Rounds of the training, from 1; a run without training has none.
ROUNDS = CONFIG.training.round_numbers if isinstance(CONFIG, Config) else range(0)

# The student's pipeline, those before its rounds, and, where it is sampled, that of the student
# before its training.
EXPORTED = {"pipeline": "trained", "untrained": "initial"}
EXPORTED |= {f"{done}-rounds": f"trained-{done}-rounds" for done in range(len(ROUNDS))}
SOURCES = {model.source for model in CONFIG.samples.models.values()}
EXPORTS = [name for name in EXPORTED if name != "untrained" or name in SOURCES]

# What the models of each source are sampled with.
PIPELINES = {
    "teacher": [],
    "student": STUDENT.student("pipeline"),
    "untrained": STUDENT.student("untrained"),
}


localrules:
    all,
    freeze,
    plan,
    prompts,
    merge_samples,
    gallery,
