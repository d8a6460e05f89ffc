"""Distillery: from a text-to-image teacher to a few-step student, or to a data set of images."""

import re
from functools import partial
from pathlib import Path

from snakemake.exceptions import WorkflowError
from snakemake.logging import logger
from snakemake.utils import min_version

from distillery.config.command_line import keys_of, read_overrides, with_overrides
from distillery.config.earlier import advise_phases
from distillery.config.run import Config, parse_config
from distillery.config.jobs import freeze, frozen_text, prompts_stage
from distillery.config.yaml_files import check_files
from distillery.hardware import count_gpus
from distillery.launcher import gpus_per_node, launch_with, num_processes
from distillery.pipeline import STAGES
from distillery.planning.first import check_prompt_files, sources_of
from distillery.planning.overlooked import check_contents, check_noted
from distillery.run_folder import RunFolder
from distillery.snakemake_private import (
    as_inputs,
    config_files,
    config_words,
    has_noted,
    is_main,
    is_made,
    limit_on_this_machine,
    runs_elsewhere,
)
from distillery.stage import everything

min_version("9.20")


try:
    check_files(config_files(workflow) or ["config/config.yaml"])
except ValueError as error:
    raise WorkflowError(str(error))

if not config_files(workflow):

    configfile: "config/config.yaml"


if not config:
    raise WorkflowError("there is no configuration: a module needs `config: config`")
# What is nested in --config has the types that a file would give it.
WORDS, AS_TEXT = config_words(workflow)
GIVEN = read_overrides(WORDS)
RAW = with_overrides(config, AS_TEXT, GIVEN)
try:
    CONFIG = parse_config(
        RAW,
        " and ".join(config_files(workflow)) or "--config",
        set(keys_of({**AS_TEXT, **GIVEN})),
    )
    NUM_GPUS = count_gpus()
except ValueError as error:
    raise WorkflowError(str(error))
if is_main(workflow) and (advice := advise_phases(RAW)):
    logger.warning(advice)


report: "workflow/report/workflow.rst"


include: "rules/common.smk"
include: "rules/plan.smk"
include: "rules/prompts.smk"
include: "rules/samples.smk"
include: "rules/dataset.smk"
include: "rules/verify.smk"
include: "rules/probe.smk"
include: "rules/compare.smk"


if isinstance(CONFIG, Config):

    include: "rules/targets.smk"
    include: "rules/student.smk"
    include: "rules/rounds.smk"
    include: "rules/report.smk"


rule all:
    """Everything that this run makes."""
    default_target: True
    input:
        list(map(str, everything(STAGES, CONFIG, RUN))),
        # Of `all`: an error in the inputs of another rule is none where its output is there.
        as_inputs(partial(check_noted, CONFIG, RUN, partial(has_noted, workflow))),
        as_inputs(partial(check_contents, RUN.plan, PLANNED)),
