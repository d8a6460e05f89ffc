"""Where the files of a run are: every path below results/{run}, written once.

The rules build their inputs and outputs from it, with wildcards as names, as in
`run.prompts("{split}")`; the stages that look at a whole run read from it.
"""

from dataclasses import dataclass
from pathlib import Path

STRIP = "strip.png"


@dataclass(frozen=True)
class RunFolder:
    """The folder of a run.

    Attributes:
        path: results/{run}.
    """

    path: Path

    @classmethod
    def of_config(cls, config: Path) -> "RunFolder":
        """The run of a frozen configuration, results/{run}/config/{stage}.json."""
        return cls(config.parent.parent)

    def __str__(self) -> str:
        return str(self.path)

    # ---- what is planned, and what jobs leave beside their results ----------------------------

    def config(self, stage: str) -> Path:
        """What a stage depends on, frozen."""
        return self.path / "config" / f"{stage}.json"

    @property
    def plan(self) -> Path:
        """What the run will do and cost."""
        return self.path / "plan.json"

    @property
    def plan_page(self) -> Path:
        """The same to read."""
        return self.path / "plan.html"

    @property
    def signature(self) -> Path:
        """What was learnt of a traced pipeline."""
        return self.path / "signature.json"

    @property
    def probe(self) -> Path:
        """How fast each stage is, measured by a small run."""
        return self.path / "probe.json"

    @property
    def telemetry(self) -> Path:
        """Times and devices; no result is made from them."""
        return self.path / "telemetry"

    def progress(self, job: str) -> Path:
        """How far a job is; written over once a second."""
        return self.telemetry / f"{job}.progress"

    def log(self, job: str) -> Path:
        """What a job says."""
        return self.path / "logs" / f"{job}.log"

    def benchmark(self, job: str) -> Path:
        """Snakemake's measurements of a job."""
        return self.path / "benchmarks" / f"{job}.tsv"

    # ---- prompts, embeddings, targets ---------------------------------------------------------

    def prompts(self, split: str) -> Path:
        """The table of a split, train or eval."""
        return self.path / "prompts" / f"{split}.parquet"

    @property
    def embedding_folder(self) -> Path:
        """The stores of both splits."""
        return self.path / "embeddings"

    def embeddings(self, split: str) -> Path:
        """The manifest of a split's embeddings."""
        return self.embedding_folder / split / "manifest.json"

    @property
    def target_folder(self) -> Path:
        """Shards, chunks and the manifest of the trajectories."""
        return self.path / "targets"

    def targets_shard(self, shard: str) -> Path:
        """The manifest of one job, `i-of-n`."""
        return self.target_folder / f"shard-{shard}.json"

    @property
    def targets(self) -> Path:
        """The manifest of all trajectories."""
        return self.target_folder / "manifest.json"

    @property
    def rounds(self) -> Path:
        """A folder for each round, by its number from 1."""
        return self.path / "rounds"

    def states_shard(self, number: str, shard: str) -> Path:
        """The manifest of one job's states of the student, `i-of-n`."""
        return self.rounds / number / "states" / f"shard-{shard}.json"

    def visited_shard(self, number: str, shard: str) -> Path:
        """The manifest of one job's states with the teacher's answers, `i-of-n`."""
        return self.rounds / number / f"shard-{shard}.json"

    def visited(self, number: int | str) -> Path:
        """The manifest of all states of a round."""
        return round_manifest(self.rounds, number)

    def visited_until(self, number: int) -> list[Path]:
        """The manifests of all rounds up to one."""
        return [self.visited(each) for each in range(1, number + 1)]

    # ---- the student --------------------------------------------------------------------------

    def student(self, name: str) -> Path:
        """A folder: the networks `initial` and `trained`, the pipelines `pipeline`, `untrained`;
        after so many rounds the network `trained-{n}-rounds` and the pipeline `{n}-rounds`."""
        return self.path / "student" / name

    @property
    def loss(self) -> Path:
        """The training's log as a table."""
        return self.path / "student" / "loss.parquet"

    def loss_after(self, rounds: str) -> Path:
        """The same as it was after so many rounds."""
        return self.path / "student" / f"loss-{rounds}-rounds.parquet"

    @property
    def checkpoints(self) -> Path:
        """What a training resumes from."""
        return self.path / "student" / "checkpoints"

    @property
    def previews(self) -> Path:
        """Images that the student generates while it is trained."""
        return self.path / "student" / "previews"

    # ---- images -------------------------------------------------------------------------------

    @property
    def sample_folder(self) -> Path:
        """A folder for each model."""
        return self.path / "samples"

    def samples_shard(self, model: str, shard: str) -> Path:
        """The table of one job, `i-of-n`."""
        return self.sample_folder / model / f"shard-{shard}.parquet"

    def samples(self, model: str) -> Path:
        """The manifest of a model's images."""
        return self.sample_folder / model / "manifest.parquet"

    def sheet(self, model: str) -> Path:
        """A model's images on one sheet."""
        return self.sample_folder / model / "sheet.png"

    def metadata(self, model: str) -> Path:
        """The table by which `datasets` loads a model's images."""
        return self.sample_folder / model / "metadata.csv"

    @property
    def dataset(self) -> Path:
        """The manifest of all images."""
        return self.path / "dataset" / "manifest.parquet"

    @property
    def pairs(self) -> Path:
        """Pairs of images of two models."""
        return self.path / "dataset" / "pairs.csv"

    # ---- scores and report --------------------------------------------------------------------

    @property
    def quality(self) -> Path:
        """Metrics with intervals."""
        return self.path / "evaluation" / "quality.json"

    @property
    def scores(self) -> Path:
        """Scores of each image."""
        return self.path / "evaluation" / "scores.parquet"

    @property
    def compared(self) -> list[Path]:
        """What a comparison reads, as far as it is there."""
        frozen = self.config("run")
        return [*([frozen] if frozen.is_file() else []), *self.made_images]

    @property
    def made_images(self) -> list[Path]:
        """The manifests of images and what they are scored, as far as they are there."""
        manifests = self.sample_folder.glob("*/manifest.parquet")
        files = [self.quality, self.scores, *sorted(manifests)]
        return [path for path in files if path.is_file()]

    @property
    def gallery(self) -> Path:
        """A folder: pages of all images."""
        return self.path / "gallery"

    @property
    def choices(self) -> list[Path]:
        """What people chose blindly, as the gallery saves it; a person puts the files there."""
        return sorted((self.path / "choices").glob("*.csv"))

    @property
    def report(self) -> Path:
        """The page."""
        return self.path / "report" / "index.html"

    @property
    def card(self) -> Path:
        """The model card with scores, to publish with the pipeline."""
        return self.path / "report" / "card" / "README.md"

    @property
    def strip(self) -> Path:
        """The images that the card shows."""
        return self.card.with_name(STRIP)

    @property
    def metrics(self) -> Path:
        """The page's numbers."""
        return self.path / "report" / "metrics.json"


def round_manifest(rounds: Path, number: int | str) -> Path:
    """The manifest of a round, in the folder of all."""
    return rounds / str(number) / "manifest.json"
