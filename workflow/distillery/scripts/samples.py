"""Make one shard of a model's pictures; only what is missing or damaged is made.

python -m distillery.scripts.samples --config results/demo/config/samples-teacher.json \\
    --model teacher --prompts results/demo/prompts/eval.parquet \\
    --embeddings results/demo/embeddings/eval/manifest.json \\
    --shard 0/2 --output results/demo/samples/teacher/shard-0-of-2.parquet

For the student add --pipeline results/demo/student/pipeline, for the untrained one
--pipeline results/demo/student/untrained.
"""

from pathlib import Path

from distillery.command import add_compile, run_stage, shard_argument, stage_parser
from distillery.config.jobs import SamplesJob
from distillery.stages.samples import Inputs, make_samples


def main(argv: list[str] | None = None) -> int:
    """Parse, make the pictures."""
    parser = stage_parser(__doc__)
    parser.add_argument("--model", required=True, help="name of the column in the comparison")
    parser.add_argument("--prompts", type=Path, required=True, help="table of the eval split")
    parser.add_argument("--embeddings", type=Path, required=True, help="manifest of the eval split")
    parser.add_argument("--pipeline", type=Path, help="the student's; without it, the teacher's")
    parser.add_argument("--shard", type=shard_argument, required=True, help="i/n, i from 0")
    parser.add_argument("--output", type=Path, required=True, help="the shard's table")
    add_compile(parser)
    arguments = parser.parse_args(argv)
    part, whole = arguments.shard
    inputs = Inputs(arguments.prompts, arguments.embeddings, arguments.pipeline)
    return run_stage(
        arguments,
        "samples",
        f"samples-{arguments.model}-{part}-of-{whole}",
        SamplesJob,
        lambda job, device, reporter: make_samples(
            job,
            arguments.model,
            inputs,
            arguments.shard,
            arguments.output,
            device,
            reporter,
            arguments.compile,
        ),
    )


if __name__ == "__main__":
    raise SystemExit(main())
