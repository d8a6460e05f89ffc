"""Merge the shards of the targets to one manifest, after verifying every chunk.

python -m distillery.stages.merge_targets --output results/demo/targets/manifest.json \\
    --shards results/demo/targets/shard-*-of-4.json
"""

from distillery.stage import Stage, rounds, target_shards, to_train

STAGE: Stage = Stage(
    name="merge_targets",
    makes="distillery.store.shards:merge_targets",
    keys=to_train(lambda config: [{}][: len(target_shards(config))]),
    writes=lambda config, run, key: [run.targets],
    is_short=True,
)
OF_ROUND: Stage = Stage(
    name="merge_round",
    makes=STAGE.makes,
    keys=to_train(rounds),
    writes=lambda config, run, key: [run.visited(key["round"])],
    is_short=True,
)


if __name__ == "__main__":
    from distillery.cli import main

    raise SystemExit(main(STAGE, __doc__))
