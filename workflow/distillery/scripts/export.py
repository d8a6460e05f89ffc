"""Export the student as a Diffusers pipeline, the trained one with a model card.

python -m distillery.scripts.export --config results/demo/config/export.json \\
    --student results/demo/student/trained --output results/demo/student/pipeline

--student results/demo/student/initial exports the student as it was before its training.
"""

from pathlib import Path

from distillery.command import run_stage, stage_parser
from distillery.config.jobs import ExportJob
from distillery.student.export import export_student


def main(argv: list[str] | None = None) -> int:
    """Parse, export."""
    parser = stage_parser(__doc__)
    parser.add_argument(
        "--student",
        type=Path,
        required=True,
        help="folder of distillery.scripts.train, or of distillery.scripts.build_student",
    )
    parser.add_argument("--output", type=Path, required=True, help="pipeline folder to write")
    arguments = parser.parse_args(argv)
    return run_stage(
        arguments,
        "export",
        f"export-{arguments.output.name}",
        ExportJob,
        lambda job, _device, _reporter: export_student(job, arguments.student, arguments.output),
    )


if __name__ == "__main__":
    raise SystemExit(main())
