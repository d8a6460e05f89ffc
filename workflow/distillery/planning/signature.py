"""Learn a traced teacher before anything is made with it, and plan the run with what was learnt."""

from pathlib import Path
from typing import Any

import torch

from distillery.config.jobs import SignatureJob
from distillery.families import Size
from distillery.families.learning import Terms, learn_pipeline
from distillery.families.recording import UntraceableError
from distillery.files import write_sealed
from distillery.planning.first import plan_as_asked
from distillery.run_folder import RunFolder
from distillery.teacher.folder import find_teacher
from distillery.teacher.loading import load_teacher
from distillery.telemetry import Reporter


def make_signature(
    job: SignatureJob,
    output: Path,
    device: torch.device,
    reporter: Reporter,
    planned: dict[str, Any] | None = None,
) -> None:
    """Call the teacher's pipeline, learn what it gives its network, and prove it.

    Args:
        output: results/{run}/signature.json.
        planned: the run to plan with it, see `planning.first.plan_as_asked`.

    Raises:
        ValueError: its pipeline cannot be learnt, a claim about it does not hold, or the plan
            refuses the run with what was learnt.
    """
    teacher, trace = job.teacher.not_learnt, job.teacher.trace
    assert trace is not None, "only runs with a traced teacher have this stage"
    folder = find_teacher(teacher)
    pipeline = load_teacher(teacher, folder, device)
    terms = Terms(
        steps=job.steps,
        size=Size.of(teacher),
        guidance_scale=job.guidance_scale,
        unguided=trace.unguided,
        always=trace.always,
        further=teacher.call or {},
        negative_prompt=teacher.negative_prompt,
        max_sequence_length=teacher.max_sequence_length,
        image=trace.image or "",
    )
    try:
        learnt, proofs = learn_pipeline(pipeline, terms)
    except UntraceableError as error:
        given = dict(trace.unguided) | dict(trace.always)
        raise ValueError(
            f"{folder.class_name} cannot be learnt from its calls, which were given {given} and "
            f"made samples {terms.size} (docs/families.md tells what each class needs): {error}"
        ) from error
    for proof in proofs:
        reporter.info(f"{proof.claim}: differs by {proof.distance:.1e} (may by {proof.limit:.0e})")
    claims = [
        {"claim": proof.claim, "distance": proof.distance, "limit": proof.limit} for proof in proofs
    ]
    write_sealed(output, {"version": job.version, "learnt": learnt.to_json(), "claims": claims})
    del pipeline
    plan_as_asked(planned, RunFolder(output.parent))
