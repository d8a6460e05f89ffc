"""Merge the shards of a stage to one manifest, after verifying all that they vouch for.

python -m distillery.scripts.merge targets --output results/demo/targets/manifest.json \\
    results/demo/targets/shard-*-of-4.json
python -m distillery.scripts.merge samples --output results/demo/samples/student/manifest.parquet \\
    results/demo/samples/student/shard-*-of-2.parquet
"""

from pathlib import Path

from distillery.command import logged_parser
from distillery.stages.merge import merge_samples, merge_targets
from distillery.telemetry import explain_errors


def main(argv: list[str] | None = None) -> int:
    """Parse, merge."""
    parser = logged_parser(__doc__)
    parser.add_argument("stage", choices=("targets", "samples"), help="whose shards they are")
    parser.add_argument("shards", type=Path, nargs="+", help="manifests, or tables, of all shards")
    parser.add_argument("--output", type=Path, required=True, help="the manifest to write")
    arguments = parser.parse_args(argv)
    merge = merge_targets if arguments.stage == "targets" else merge_samples
    return explain_errors(lambda: merge(arguments.shards, arguments.output), arguments.log)


if __name__ == "__main__":
    raise SystemExit(main())
