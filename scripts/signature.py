"""Learn what a pipeline without an adapter gives its network, prove it, and plan the run with it.

python -m distillery.stages.signature --config results/mine/config/signature.json \\
    --output results/mine/signature.json
"""

from distillery.config.run import RunConfig
from distillery.stage import Key, Stage, named, one


def of_traced(config: RunConfig) -> list[Key]:
    """A single job of runs whose teacher is traced."""
    return [] if config.teacher.trace is None else one(config)


STAGE: Stage = Stage(
    name="signature",
    makes="distillery.planning.signature:make_signature",
    job="signature",
    keys=of_traced,
    writes=lambda config, run, key: [run.signature],
    frozen=named("signature"),
    gpus="teacher",
    loads="drawing",
    is_short=True,
)


if __name__ == "__main__":
    from distillery.cli import main

    raise SystemExit(main(STAGE, __doc__))
