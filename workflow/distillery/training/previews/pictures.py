"""Pictures of held-out prompts from the student as it is now, while it learns or afterwards.

A process draws its share of the prompts. Nothing in here talks to another process, and no failure
in here ends a training.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from distillery.config.jobs import PreviewsJob, read_job
from distillery.contact_sheet import moment_folder, training_of, write_sheets
from distillery.identity import SampleId
from distillery.pixels import Pixels, write_png
from distillery.store.embeddings import EmbeddingStore
from distillery.store.shards import balanced_range
from distillery.store.tables import read_table
from distillery.telemetry import Reporter
from distillery.training.monitoring.alarms import OF_PICTURES, Alarms, judge_picture
from distillery.training.previews.drawing import Drawer


@dataclass(frozen=True)
class PreviewPaths:
    """What previews read and write.

    Attributes:
        previews: folder of all previews, written.
        previews_config: results/{run}/config/previews.json, see `PreviewsJob`.
        eval_prompts: table of the eval split.
        eval_embeddings: manifest of the eval split.
    """

    previews: Path
    previews_config: Path
    eval_prompts: Path
    eval_embeddings: Path


class Previews:
    """One process's share of the previews of one training."""

    def __init__(
        self,
        paths: PreviewPaths,
        share: tuple[int, int],
        training: str,
        reporter: Reporter,
    ) -> None:
        """Nothing is drawn yet.

        Args:
            paths: inputs and outputs.
            share: (rank, processes): which of the prompts are drawn here.
            training: hash of the training's recipe, which each picture carries.
            reporter: of this process.
        """
        self.job = read_job(paths.previews_config, PreviewsJob)
        self._root = paths.previews
        table = read_table(paths.eval_prompts)
        self._store = EmbeddingStore(paths.eval_embeddings, table)
        self._table = table.head(self.job.previews.num_prompts)
        self._mine = balanced_range(len(self._table), *share)
        self._training = training
        self._reporter = reporter
        self._alarms = Alarms(reporter, training)

    def is_due(self, samples_seen: int, num_samples: int) -> bool:
        """Whether this moment of a training of so many samples is shown; the last one always is."""
        every = self.job.previews.every_samples
        return every > 0 and (samples_seen % every == 0 or samples_seen == num_samples)

    @property
    def prompt_ids(self) -> list[str]:
        """Of all previews, those of other processes too."""
        return self._table["prompt_id"].astype(str).tolist()

    def picture(self, row: int, samples_seen: int) -> Path:
        """Where the picture of a prompt lies."""
        return moment_folder(self._root, samples_seen) / f"{self.prompt_ids[row]}.png"

    def missing(self, samples_seen: int) -> list[int]:
        """This process's prompts without a whole picture of this training at this moment."""
        return [
            row
            for row in self._mine
            if training_of(self.picture(row, samples_seen)) != self._training
        ]

    def draw(self, drawer: Drawer, row: int, samples_seen: int) -> Pixels:
        """Draw one prompt (h, w, 3), and say so if nothing is on it."""
        sample = SampleId(self.prompt_ids[row], 0)
        prompt, negative = self._store.row(row), self._store.negative_row(row)
        pixels = drawer.draw(self.job.seed, sample, prompt, negative)
        self._alarms.tell(
            OF_PICTURES, judge_picture(sample.prompt_id, pixels), samples_seen, sample.prompt_id
        )
        return pixels

    def draw_missing(
        self, drawer: Drawer, samples_seen: int, must_stop: Callable[[], bool] = lambda: False
    ) -> dict[int, Pixels]:
        """Draw this process's missing pictures, by row; the rest is left when it must stop."""
        pixels = {}
        for row in self.missing(samples_seen):
            if must_stop():
                break
            pixels[row] = self.draw(drawer, row, samples_seen)
        return pixels

    def save(self, pixels: dict[int, Pixels], samples_seen: int) -> None:
        """Save pictures by row, then the contact sheets."""
        for row, picture in pixels.items():
            texts = {"training": self._training, "prompt": str(self._table["prompt"].iloc[row])}
            write_png(self.picture(row, samples_seen), picture, texts)
        write_sheets(self._root, samples_seen, self.prompt_ids, self._training)
