"""Make a data set of the sampled pictures: metadata beside them, one manifest, a list of pairs.

python -m distillery.scripts.dataset --config results/shapes/config/dataset.json \\
    --output results/shapes/dataset/manifest.parquet \\
    results/shapes/samples/*/manifest.parquet
"""

from pathlib import Path

from distillery.command import logged_parser, run_folder
from distillery.config.jobs import DatasetJob, read_job
from distillery.stages.dataset import make_dataset
from distillery.telemetry import explain_errors


def main(argv: list[str] | None = None) -> int:
    """Parse, write the tables."""
    parser = logged_parser(__doc__)
    parser.add_argument(
        "--config", type=Path, required=True, help="results/{run}/config/dataset.json"
    )
    parser.add_argument("manifests", type=Path, nargs="+", help="of each model's samples")
    parser.add_argument("--output", type=Path, required=True, help="the data set's manifest")
    arguments = parser.parse_args(argv)
    return explain_errors(
        lambda: make_dataset(
            read_job(arguments.config, DatasetJob),
            arguments.manifests,
            run_folder(arguments.config),
            arguments.output,
        ),
        arguments.log,
    )


if __name__ == "__main__":
    raise SystemExit(main())
