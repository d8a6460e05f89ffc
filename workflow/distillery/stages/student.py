"""Build the student before training from the teacher's denoiser: whole, some of it, or beside it.

python -m distillery.stages.student --config results/demo/config/student.json \\
    --output results/demo/student/initial
"""

from dataclasses import asdict
from pathlib import Path

from distillery import cli
from distillery.config.jobs import StudentJob, hash_origin
from distillery.files import atomic_path
from distillery.model_folder import copy_permissions, save_denoiser, write_metadata
from distillery.student.build import choose_expert, make_student
from distillery.student.lora import add_lora, save_lora
from distillery.teacher.adapters import denoiser_hash
from distillery.teacher.folder import find_teacher
from distillery.teacher.loading import load_adapted_denoiser


def build_student(job: StudentJob, output: Path) -> None:
    """Write the untrained student, a Diffusers model folder in float32, and what it is made of.

    Reads the teacher's denoiser, with its adapters fused, and no other component of it.

    Args:
        job: frozen configuration.
        output: folder to write, e.g. results/{run}/student/initial.

    Raises:
        FileNotFoundError: no such teacher, or no such file as `student.config`.
        ValueError: something in the section `student` that the teacher does not have, or an
            adapter that does not fit.
    """
    folder = find_teacher(job.teacher)
    network = choose_expert(folder.denoisers, job.student.expert)
    teacher = load_adapted_denoiser(job.teacher, folder, network)
    student, student_info = make_student(job.student, teacher, folder.family, network, job.seed)
    with atomic_path(output) as temporary:
        save_denoiser(student, temporary)
        if job.student.lora is not None:
            add_lora(student, job.student.lora, job.seed)
            save_lora(student, temporary, folder.family)
            copy_permissions(temporary)
        origin = {
            "settings": hash_origin(job.model_dump(mode="json")),
            "teacher": denoiser_hash(job.teacher, folder),
        }
        write_metadata(temporary, {"student": asdict(student_info), "origin": origin})


def main(argv: list[str] | None = None) -> int:
    """The command line of this stage."""
    return cli.run(build_student, __doc__, argv, job="student")


if __name__ == "__main__":
    raise SystemExit(main())
