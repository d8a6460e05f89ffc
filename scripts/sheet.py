"""Put a model's images on one sheet, each with its prompt below.

python -m distillery.stages.sheet --manifest results/demo/samples/student/manifest.parquet \\
    --output results/demo/samples/student/sheet.png
"""

from distillery.stage import Stage, asked_for

STAGE: Stage = Stage(
    name="sheet", makes="distillery.report.sheet:make_sheet", keys=asked_for, is_short=True
)


if __name__ == "__main__":
    from distillery.cli import main

    raise SystemExit(main(STAGE, __doc__))
