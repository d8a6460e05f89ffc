"""Write the report of a run: one HTML file that opens offline, and its numbers as JSON.

    python -m distillery.stages.report --config results/demo/config/run.json \\
        --output results/demo/report/index.html --metrics results/demo/report/metrics.json

What the run does not have (no training, no scores) is left out.
"""

from distillery.stage import Stage, named, to_judge

STAGE: Stage = Stage(
    name="report",
    makes="distillery.report.page:write_report",
    job="report",
    keys=to_judge,
    writes=lambda config, run, key: [run.report, run.metrics],
    frozen=named("run"),
    colour=6,
)


if __name__ == "__main__":
    from distillery.cli import main

    raise SystemExit(main(STAGE, __doc__))
