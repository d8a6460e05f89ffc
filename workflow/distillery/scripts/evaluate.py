"""Score the samples of every model and compare the models on the same prompts and noise.

    python -m distillery.scripts.evaluate --config results/demo/config/evaluation.json \\
        --manifests results/demo/samples/teacher/manifest.parquet \\
                    results/demo/samples/student/manifest.parquet \\
        --quality results/demo/evaluation/quality.json \\
        --scores results/demo/evaluation/scores.parquet

A manifest's model is the name of its folder. The judge runs on a GPU where there is one.
"""

import sys
from collections.abc import Sequence
from pathlib import Path

import torch

from distillery.command import run_stage, stage_parser
from distillery.config.jobs import EvaluationJob
from distillery.evaluation.evaluate import evaluate
from distillery.telemetry import Reporter


def main(argv: Sequence[str] | None = None) -> int:
    """Run the stage; returns the exit status."""
    parser = stage_parser(__doc__)
    parser.add_argument(
        "--manifests", type=Path, nargs="+", required=True, help="samples/{model}/manifest.parquet"
    )
    parser.add_argument("--quality", type=Path, required=True, help="quality.json")
    parser.add_argument("--scores", type=Path, required=True, help="scores.parquet")
    args = parser.parse_args(argv)

    def body(job: EvaluationJob, device: torch.device, reporter: Reporter) -> None:
        manifests = {path.parent.name: path for path in args.manifests}
        evaluate(job, manifests, args.quality, args.scores, reporter, device)

    return run_stage(args, "evaluation", "evaluation", EvaluationJob, body)


if __name__ == "__main__":
    sys.exit(main())
