"""Compare two runs: their settings, their metrics by sample, their images side by side.

python -m distillery.stages.compare --first results/a --second results/b \\
    --output results/compare/a-vs-b/index.html
"""

from distillery.stage import Stage, asked_for

STAGE: Stage = Stage(
    name="compare",
    makes="distillery.report.compare:compare_runs",
    keys=asked_for,
    is_short=True,
)


if __name__ == "__main__":
    from distillery.cli import main

    raise SystemExit(main(STAGE, __doc__))
