"""Every family's pipeline draws previews with a student that computes in bfloat16."""

from pathlib import Path

import pytest

from families import CASES
from families.case import FamilyCase
from runs import make_run

BFLOAT16 = {"num_samples": 8, "save_every_samples": 8, "dtype": "bfloat16"}


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_previews_are_drawn_beside_a_vae_of_another_type(
    case: FamilyCase, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    case.make(tmp_path / "teacher")
    size = {"height": case.height, "width": case.width, "max_sequence_length": case.max_tokens}
    run = make_run(
        tmp_path,
        tmp_path / "teacher",
        teacher=size | {"vae_dtype": "float32"} | dict(case.teacher),
        targets={"steps": case.steps, "num_segments": case.steps},
        student={"steps": case.steps, **case.student},
        training=BFLOAT16,
        previews={"every_samples": 8, "num_prompts": 2},
    )
    run.encode("train")
    run.encode("eval")
    run.all_targets()
    run.train_and_export(previews=True)
    assert "not drawn" not in caplog.text
    drawn = (run.folder / "student/previews/samples-000000000008").glob("p*.png")
    assert len(list(drawn)) == 2
