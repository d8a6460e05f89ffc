"""Measure how fast each stage is on this machine, by a small run, for the plan of the large one.

python -m distillery.stages.probe --config results/demo/config/run.json --cores 2 \\
    --snakefile Snakefile --output results/demo/probe.json
"""

from distillery.stage import Stage, asked_for

STAGE: Stage = Stage(
    name="probe",
    makes="distillery.planning.measure:measure",
    keys=asked_for,
)


if __name__ == "__main__":
    from distillery.cli import main

    raise SystemExit(main(STAGE, __doc__))
