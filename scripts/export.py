"""Export the student as a Diffusers pipeline, the trained one with a model card.

python -m distillery.stages.export --config results/demo/config/export.json \\
    --student results/demo/student/trained --output results/demo/student/pipeline

--student results/demo/student/initial exports the student as it was before its training.
"""

from distillery.config.run import Config
from distillery.stage import Key, Stage, named, to_train


def exports(config: Config) -> list[Key]:
    """The student's pipelines: trained, untrained where it is sampled, and those before rounds."""
    sources = {model.source for model in config.samples.models.values()}
    names = ["pipeline", *["untrained"] * ("untrained" in sources)]
    names += [f"{done}-rounds" for done in range(len(config.training.round_numbers))]
    return [{"exported": name} for name in names]


STAGE: Stage = Stage(
    name="export",
    makes="distillery.student.export:export_student",
    job="export-{output.name}",
    keys=to_train(exports),
    writes=lambda config, run, key: [run.student(key["exported"])],
    frozen=named("export"),
    loads="student",
    in_turn=True,
    colour=5,
)


if __name__ == "__main__":
    from distillery.cli import main

    raise SystemExit(main(STAGE, __doc__))
