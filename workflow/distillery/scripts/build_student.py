"""Build the student before training from the teacher's denoiser: whole, some of it, or beside it.

python -m distillery.scripts.build_student --config results/demo/config/student.json \\
    --output results/demo/student/initial
"""

from pathlib import Path

from distillery.command import run_stage, stage_parser
from distillery.config.jobs import StudentJob
from distillery.student.build import build_student


def main(argv: list[str] | None = None) -> int:
    """Parse, build."""
    parser = stage_parser(__doc__)
    parser.add_argument("--output", type=Path, required=True, help="model folder to write")
    arguments = parser.parse_args(argv)
    return run_stage(
        arguments,
        "build_student",
        "build-student",
        StudentJob,
        lambda job, _device, _reporter: build_student(job, arguments.output),
    )


if __name__ == "__main__":
    raise SystemExit(main())
