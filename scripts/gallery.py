"""Pages of all images, beside them: to filter by words, sort by scores, enlarge and compare.

python -m distillery.stages.gallery \\
    --manifests results/demo/samples/teacher/manifest.parquet \\
    --scores results/demo/evaluation/scores.parquet --output results/demo/gallery
"""

from distillery.stage import Stage, one

STAGE: Stage = Stage(
    name="gallery",
    makes="distillery.report.gallery:make_gallery",
    keys=one,
    writes=lambda config, run, key: [run.gallery],
    is_short=True,
)


if __name__ == "__main__":
    from distillery.cli import main

    raise SystemExit(main(STAGE, __doc__))
