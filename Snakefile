"""Distillery: from a text-to-image teacher to a few-step student, or to a data set of images."""

import re
from pathlib import Path

from snakemake.exceptions import WorkflowError
from snakemake.utils import min_version

from distillery.config.run import Config, parse_config
from distillery.config.jobs import freeze
from distillery.config.yaml_files import check_files
from distillery.hardware import count_gpus

min_version("9.20")


try:
    check_files(workflow.configfiles or ["config/config.yaml"])
except ValueError as error:
    raise WorkflowError(str(error))

if not workflow.configfiles:

    configfile: "config/config.yaml"


if not config:
    raise WorkflowError("there is no configuration: a module needs `config: config`")
try:
    CONFIG = parse_config(
        config, " and ".join(map(str, workflow.configfiles)) or "--config"
    )
    NUM_GPUS = count_gpus()
except ValueError as error:
    raise WorkflowError(str(error))

RUN = f"results/{CONFIG.run}"
MODELS = list(CONFIG.samples.models)
SPLITS = ["train", "eval"] if isinstance(CONFIG, Config) else ["eval"]
GPUS_A_JOB = min(NUM_GPUS, 1)

# Where jobs run on this machine, no more of them than it has GPUs; --resources gpu=N overrides it.
# On a cluster the scheduler counts, and a limit here would only throttle.
if workflow.nodes is None:
    workflow.global_resources.setdefault("gpu", NUM_GPUS)


wildcard_constraints:
    split="train|eval",
    model="|".join(map(re.escape, MODELS)),
    shard=r"\d+",


include: "rules/plan.smk"
include: "rules/prompts.smk"
include: "rules/samples.smk"
include: "rules/dataset.smk"
include: "rules/verify.smk"


if isinstance(CONFIG, Config):

    include: "rules/targets.smk"
    include: "rules/student.smk"
    include: "rules/report.smk"


# Not the last files alone: Snakemake overlooks what is missing behind a file that is there, and
# damage is mended by removing what is damaged. So `all` asks for all that a rule makes.
RESULTS = [
    expand(rules.prompts.output, split=SPLITS),
    expand(rules.embeddings.output, split=SPLITS),
    expand(rules.samples.output, model=MODELS, shard=range(CONFIG.samples.num_shards)),
    expand(rules.merge_samples.output, model=MODELS),
]
if isinstance(CONFIG, Config):
    RESULTS += [
        rules.merge_targets.input.shards,
        rules.merge_targets.output,
        rules.student.output,
        rules.training.output,
        expand(rules.export.output, exported=EXPORTS),
        rules.evaluation.output,
        rules.report.output,
    ]
else:
    RESULTS += rules.dataset.output


localrules:
    all,
    freeze,
    plan,
    prompts,
    merge_samples,


rule all:
    default_target: True
    input:
        RESULTS,
