"""Distillery: from a text-to-image teacher to a few-step student, or to a data set of images."""

from snakemake.utils import min_version

min_version("9.20")


report: "workflow/report/workflow.rst"


include: "rules/config.smk"
include: "rules/common.smk"
include: "rules/plan.smk"
include: "rules/prompts.smk"
include: "rules/samples.smk"
include: "rules/dataset.smk"
include: "rules/verify.smk"
include: "rules/probe.smk"
include: "rules/compare.smk"


if CONFIG.teacher.trace:

    include: "rules/signature.smk"


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
        refused=refused_by(
            lambda _: on_noted(CONFIG, RUN, partial(has_noted, workflow)),
            lambda _: on_contents(RUN.plan, PLANNED),
        ),
