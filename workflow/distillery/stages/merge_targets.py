"""Merge the shards of the targets to one manifest, after verifying every chunk.

python -m distillery.stages.merge_targets --output results/demo/targets/manifest.json \\
    --shards results/demo/targets/shard-*-of-4.json
"""

from collections.abc import Sequence
from pathlib import Path

from distillery import cli
from distillery.store.shards import merge_shards


def merge_targets(shards: Sequence[Path], output: Path) -> None:
    """Verify every chunk of every shard and write the one manifest that training reads.

    Args:
        shards: the manifests of all shards.
        output: the manifest to write.
    """
    merge_shards(shards, output.parent).write(output)


def main(argv: list[str] | None = None) -> int:
    """The command line of this stage."""
    return cli.run(merge_targets, __doc__, argv)


if __name__ == "__main__":
    raise SystemExit(main())
