"""All runs that have a report on one page: verdicts, scores, costs, settings, images, curves.

python -m distillery.stages.leaderboard --results results --output results/compare/index.html
"""

from distillery.stage import Stage, asked_for

STAGE: Stage = Stage(
    name="leaderboard",
    makes="distillery.report.leaderboard:compare_all",
    keys=asked_for,
    is_short=True,
)


if __name__ == "__main__":
    from distillery.cli import main

    raise SystemExit(main(STAGE, __doc__))
