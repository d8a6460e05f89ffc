"""Write one stage's frozen configuration, as the workflow resolved it.

python -m distillery.stages.freeze --content '{"seed": 0, ...}' \\
    --output results/demo/config/targets.json
"""

from distillery.stage import Stage, asked_for

STAGE: Stage = Stage(
    name="freeze",
    makes="distillery.planning.first:write_frozen",
    keys=asked_for,
    is_short=True,
)


if __name__ == "__main__":
    from distillery.cli import main

    raise SystemExit(main(STAGE, __doc__))
