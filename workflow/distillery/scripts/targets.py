"""Make one shard of the teacher's trajectories; finished chunks are kept, whatever happens.

python -m distillery.scripts.targets --config results/demo/config/targets.json \\
    --prompts results/demo/prompts/train.parquet \\
    --embeddings results/demo/embeddings/train/manifest.json \\
    --shard 0/4 --output results/demo/targets/shard-0-of-4.json
"""

from pathlib import Path

from distillery.command import add_compile, run_stage, shard_argument, stage_parser
from distillery.config.jobs import TargetsJob
from distillery.stages.targets import make_targets


def main(argv: list[str] | None = None) -> int:
    """Parse, make the chunks."""
    parser = stage_parser(__doc__)
    parser.add_argument("--prompts", type=Path, required=True, help="table of the train split")
    parser.add_argument(
        "--embeddings", type=Path, required=True, help="manifest of the train split"
    )
    parser.add_argument("--shard", type=shard_argument, required=True, help="i/n, i from 0")
    parser.add_argument("--output", type=Path, required=True, help="the shard's manifest")
    add_compile(parser)
    arguments = parser.parse_args(argv)
    part, whole = arguments.shard
    return run_stage(
        arguments,
        "targets",
        f"targets-{part}-of-{whole}",
        TargetsJob,
        lambda job, device, reporter: make_targets(
            job,
            arguments.prompts,
            arguments.embeddings,
            arguments.shard,
            arguments.output,
            device,
            reporter,
            arguments.compile,
        ),
    )


if __name__ == "__main__":
    raise SystemExit(main())
