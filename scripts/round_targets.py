"""Let the teacher walk on from states that a student visited: one shard of a round.

python -m distillery.stages.round_targets --config results/demo/config/rounds.json \\
    --prompts results/demo/prompts/train.parquet \\
    --embeddings results/demo/embeddings/train/manifest.json \\
    --states results/demo/rounds/1/states/shard-0-of-4.json --number 1 \\
    --shard 0/4 --output results/demo/rounds/1/shard-0-of-4.json

From each state it takes its own steps to the student's next knot: for a student of n steps a state
costs an n-th of a trajectory.
"""

from distillery.stage import Passes, Stage, named, round_shards, share, to_train

STAGE: Stage = Stage(
    name="round_targets",
    makes="distillery.training.ways.rounds:make_round_targets",
    job="round-targets-{number}-{shard[0]}-of-{shard[1]}",
    keys=to_train(round_shards),
    writes=lambda config, run, key: [run.visited_shard(key["round"], key["shard"])],
    frozen=named("rounds"),
    gpus="teacher",
    loads="drawing",
    items=lambda config, counts, key: share(counts.trajectories(config), key),
    passes=lambda config, calls, key: Passes(
        teacher=config.targets.steps // config.student.steps * calls.per_step
    ),
    in_turn=True,
    colour=7,
)


if __name__ == "__main__":
    from distillery.cli import main

    raise SystemExit(main(STAGE, __doc__))
