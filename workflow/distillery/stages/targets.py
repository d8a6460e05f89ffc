"""Make one shard of the teacher's trajectories; finished chunks are kept, whatever happens.

python -m distillery.stages.targets --config results/demo/config/targets.json \\
    --prompts results/demo/prompts/train.parquet \\
    --embeddings results/demo/embeddings/train/manifest.json \\
    --shard 0/4 --output results/demo/targets/shard-0-of-4.json
"""

from collections.abc import Sequence
from pathlib import Path

import pandas as pd
import torch

from distillery import cli
from distillery.config.jobs import TargetsJob
from distillery.config.section import Compile
from distillery.generation.chunked import ChunkPlan, NotFiniteError, make_chunks
from distillery.generation.generator import Calls, Generator
from distillery.generation.targets import plan_of_targets, setting_of, targets_recipe
from distillery.generation.trajectory import record
from distillery.noise import all_samples
from distillery.store.embeddings import EmbeddingStore
from distillery.store.tables import read_table
from distillery.teacher.folder import PipelineFolder, find_teacher
from distillery.teacher.loading import load_exact_teacher, torch_dtype
from distillery.telemetry import Reporter


def make_targets(
    job: TargetsJob,
    prompts: Path,
    embeddings: Path,
    shard: tuple[int, int],
    output: Path,
    device: torch.device,
    reporter: Reporter,
    compile_: Compile = "auto",
) -> None:
    """Make one shard's chunks of trajectories.

    Args:
        job: frozen configuration.
        prompts: table of the train split.
        embeddings: manifest of the train split.
        shard: the i-th of n balanced ranges of chunks, from 0.
        output: the shard's manifest to write; the chunks go to a folder beside it.
        device: for the teacher.
        reporter: of this job.
        compile_: networks on a GPU; auto: large ones in long runs.
    """
    table = read_table(prompts)
    store = EmbeddingStore(embeddings, table)
    folder = find_teacher(job.teacher)
    maker = TrajectoryMaker(job, table, store, folder, device, reporter, compile_)
    plans = plan_of_targets(job, folder, table)
    make_chunks(maker.recipe.to_json(), plans, shard, maker.make, output, reporter, "sample")


class TrajectoryMaker:
    """Computes chunks with a teacher that is loaded when the first missing chunk asks for it."""

    def __init__(
        self,
        job: TargetsJob,
        table: pd.DataFrame,
        store: EmbeddingStore,
        folder: PipelineFolder,
        device: torch.device,
        reporter: Reporter,
        compiling: Compile,
    ) -> None:
        """Nothing heavy is loaded here, so a job that finds all its chunks made ends at once."""
        self.job = job
        self.recipe = targets_recipe(job, folder, store.recipe_hash)
        calls = Calls(
            family=folder.family,
            store=store,
            samples=all_samples(table["prompt_id"], job.targets.samples_per_prompt),
            samples_per_prompt=job.targets.samples_per_prompt,
            seed=job.seed,
            steps=job.targets.steps,
            setting=setting_of(job),
            max_sequence_length=self.recipe.max_sequence_length,
            decode=False,
            dtype=torch.float32,
        )
        absent = folder.family.text_components
        self._generator = Generator(
            calls,
            lambda: load_exact_teacher(job.teacher, folder, device, absent),
            job.targets.batch_size,
            job.targets.chunk_size,
            device,
            reporter,
            compiling,
        )

    def make(self, plan: ChunkPlan) -> dict[str, torch.Tensor]:
        """The tensors of one chunk: see `store.trajectories`."""
        targets = self.job.targets
        start = plan.index * targets.chunk_size
        rows = list(range(start, start + plan.num_samples))
        batches = [stored for _, stored in self._generator.map(rows, self._run)]
        schedule = self.recipe.schedule
        return {
            **{
                name: torch.cat([stored[name] for stored in batches]).to(torch_dtype(targets.dtype))
                for name in batches[0]
            },
            "prompt_row": torch.tensor([row // targets.samples_per_prompt for row in rows]),
            "timesteps": torch.tensor(schedule.timesteps, dtype=torch.float64),
            "alphas": torch.tensor(schedule.alphas, dtype=torch.float64),
            "sigmas": torch.tensor(schedule.sigmas, dtype=torch.float64),
            "scales": torch.tensor(schedule.scales, dtype=torch.float64),
        }

    def _run(self, rows: Sequence[int], size: int) -> dict[str, torch.Tensor]:
        """One call of the teacher: `noisy`, and `predictions` where they are wanted.

        Each is (b, k or k - 1, *latent) float32, for the samples of `rows`.
        """
        job, generator = self.job, self._generator
        knots, predictions = self.recipe.knots, job.targets.predictions
        with record(generator.pipeline.scheduler, knots, predictions) as trajectory:
            generator.run(rows, size)
        if trajectory.num_steps != job.targets.steps:
            raise ValueError(
                f"the teacher took {trajectory.num_steps} scheduler steps for targets.steps "
                f"{job.targets.steps}: a solver that calls its scheduler more than once a step "
                "cannot be recorded; use a first-order or multistep solver"
            )
        stored = {"noisy": trajectory.stack(knots)}
        if predictions:
            stored["predictions"] = trajectory.stack_predictions(knots[:-1])
        stored = {name: values[: len(rows)].cpu() for name, values in stored.items()}
        for values in stored.values():
            self._check_finite(values, rows)
        return stored

    def _check_finite(self, states: torch.Tensor, rows: Sequence[int]) -> None:
        """Raise NotFiniteError that names the samples whose trajectory is not finite."""
        finite = states.flatten(1).isfinite().all(dim=1)
        if not finite.all():
            samples = self._generator.calls.samples
            bad = [samples[row].prompt_id for row, ok in zip(rows, finite, strict=True) if not ok]
            raise NotFiniteError(
                f"the teacher gave values that are not finite for the prompts {', '.join(bad)}: "
                f"teacher.dtype is {self.job.teacher.dtype}, try bfloat16 or float32"
            )


def main(argv: list[str] | None = None) -> int:
    """The command line of this stage."""
    return cli.run(make_targets, __doc__, argv, job="targets-{shard[0]}-of-{shard[1]}")


if __name__ == "__main__":
    raise SystemExit(main())
