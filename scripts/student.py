"""Build the student before training from the teacher's denoiser: whole, some of it, or beside it.

python -m distillery.stages.student --config results/demo/config/student.json \\
    --output results/demo/student/initial
"""

from distillery.stage import Stage, named, one, to_train

STAGE: Stage = Stage(
    name="student",
    makes="distillery.student.build:build_student",
    job="student",
    keys=to_train(one),
    writes=lambda config, run, key: [run.student("initial")],
    frozen=named("student"),
    loads="student",
    colour=6,
)


if __name__ == "__main__":
    from distillery.cli import main

    raise SystemExit(main(STAGE, __doc__))
