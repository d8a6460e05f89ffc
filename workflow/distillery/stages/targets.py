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
from distillery.generation.chunked import ChunkPlan, advise_not_finite, check_finite, make_chunks
from distillery.generation.generator import Generator
from distillery.generation.targets import (
    calls_of,
    plan_of_targets,
    prompt_rows_of,
    rows_of,
    setting_of,
    targets_recipe,
)
from distillery.generation.trajectory import record
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
    make_chunks(maker.recipe.to_json(), plans, shard, maker.make, output, reporter, " samples")


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
        self._weights = [folder.path / name for name in folder.denoisers]
        self.recipe = targets_recipe(job, folder, store.recipe_hash)
        calls = calls_of(job, folder.family, table, store, job.targets.steps, setting_of(job))
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
        rows = rows_of(plan, targets)
        batches = [stored for _, stored in self._generator.map(rows, self._run)]
        schedule = self.recipe.schedule
        return {
            **{
                name: torch.cat([stored[name] for stored in batches]).to(torch_dtype(targets.dtype))
                for name in batches[0]
            },
            "prompt_row": prompt_rows_of(rows, targets),
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
        ids = [generator.calls.samples[row].prompt_id for row in rows]
        advice = advise_not_finite(job.teacher.dtype, self._weights)
        for values in stored.values():
            check_finite(values, ids, "the teacher", advice)
        return stored


def main(argv: list[str] | None = None) -> int:
    """The command line of this stage."""
    return cli.run(make_targets, __doc__, argv, job="targets-{shard[0]}-of-{shard[1]}")


if __name__ == "__main__":
    raise SystemExit(main())
