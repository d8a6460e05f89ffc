"""Store where a student stands by its own steps: one shard of a round's states.

python -m distillery.stages.round_states --config results/demo/config/rounds.json \\
    --prompts results/demo/prompts/train.parquet \\
    --embeddings results/demo/embeddings/train/manifest.json \\
    --pipeline results/demo/student/0-rounds --number 1 \\
    --shard 0/4 --output results/demo/rounds/1/states/shard-0-of-4.json

The student walks from the noise of the stored trajectories. Of each walk one state is kept, before
a step that follows from the sample and the round's number: never the first, which begins at noise.
"""

from distillery.stage import Passes, Stage, named, round_shards, share, to_train

STAGE: Stage = Stage(
    name="round_states",
    makes="distillery.training.ways.rounds:make_round_states",
    job="round-states-{number}-{shard[0]}-of-{shard[1]}",
    keys=to_train(round_shards),
    writes=lambda config, run, key: [run.states_shard(key["round"], key["shard"])],
    frozen=named("rounds"),
    gpus="teacher",
    loads="drawing",
    items=lambda config, counts, key: share(counts.trajectories(config), key),
    passes=lambda config, calls, key: Passes(student=config.student.steps),
    in_turn=True,
    colour=5,
)


if __name__ == "__main__":
    from distillery.cli import main

    raise SystemExit(main(STAGE, __doc__))
