"""Check a prompt file and write it as a table.

python -m distillery.stages.prompts --config results/demo/config/prompts-train.json --split train \\
    --output results/demo/prompts/train.parquet
"""

from distillery.config.jobs import prompts_stage
from distillery.stage import Stage, splits

STAGE: Stage = Stage(
    name="prompts",
    makes="distillery.planning.prompt_tables:make_prompt_table",
    keys=splits,
    writes=lambda config, run, key: [run.prompts(key["split"])],
    frozen=lambda config, run, key: [prompts_stage(config, run, key["split"])],
    is_short=True,
)


if __name__ == "__main__":
    from distillery.cli import main

    raise SystemExit(main(STAGE, __doc__))
