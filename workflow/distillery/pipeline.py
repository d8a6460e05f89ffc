"""The stages, in the order in which they run; those that are asked for by their files are last.

Only the Snakefile, commands and `terminal/` read the list here; what plans or reports is given it,
since the stages name what plans and reports.
"""

from distillery.stage import Stage
from distillery.stages import (
    compare,
    dataset,
    embeddings,
    evaluation,
    export,
    freeze,
    gallery,
    leaderboard,
    merge_samples,
    merge_targets,
    plan,
    previews,
    probe,
    prompts,
    report,
    round_states,
    round_targets,
    samples,
    sheet,
    signature,
    student,
    targets,
    training,
    verify,
)

STAGES: tuple[Stage, ...] = (
    prompts.STAGE,
    signature.STAGE,
    embeddings.STAGE,
    targets.STAGE,
    merge_targets.STAGE,
    student.STAGE,
    training.BEFORE_ROUND,
    round_states.STAGE,
    round_targets.STAGE,
    merge_targets.OF_ROUND,
    training.STAGE,
    export.STAGE,
    samples.STAGE,
    merge_samples.STAGE,
    evaluation.STAGE,
    gallery.STAGE,
    report.STAGE,
    dataset.STAGE,
    *(it.STAGE for it in (previews, sheet, freeze, plan, probe, verify, compare, leaderboard)),
)
