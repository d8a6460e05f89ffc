"""Images of own prompts from a finished student: a run that only generates, with the student as its
teacher. Nothing of the run that trained it is read but, for a traced class, how that was traced."""

import csv
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from distillery.config.run import Config, Prompts, parse_config
from distillery.files import JsonObject, read_json, read_sealed, write_text
from distillery.hub import download_file, explain_missing
from distillery.run_folder import RunFolder

MODEL = "student"
METADATA = "distillery.json"
INDEX = "model_index.json"
SCALES = ("guidance_scale", "true_cfg_scale")
"""Arguments of a pipeline's call that its guidance is given by; a student's of 0 or 1 is none."""
IMAGES_A_JOB = 32
BATCH = 4


def draw(
    student: str,
    texts: Sequence[str],
    file: str | None,
    run: str | None = None,
    images: int = 1,
    seed: int = 0,
) -> tuple[Path, Path]:
    """Write the configuration of a run that draws; returns it and the contact sheet to ask for.

    Args:
        student: a pipeline's folder, or its id on the hub.
        texts: prompts.
        file: of prompts, where there are no texts.
        run: its name; None: as the run that the student is of, with `-drawn`.
        images: of each prompt.

    Raises:
        ValueError: it is no student, or the name is that of a run that trains.
    """
    call = call_of(student)
    name = run or f"{_name_of(student)}-drawn"
    folder = RunFolder(Path("results", name))
    _check_free(folder)
    prompts = Path(file) if file else folder.config("prompts").with_suffix(".csv")
    if not file:
        write_text(prompts, _as_csv(texts))
    raw = _settings(student, call, num_images=images * _count(prompts))
    raw |= {"run": name, "seed": seed, "prompts": {"eval": str(prompts)}}
    raw["samples"] |= {"images_per_prompt": images}
    if trace := _trace_of(student):
        raw["teacher"]["trace"] = trace
    parse_config(raw, "the configuration of the drawing")
    written = folder.config("draw").with_suffix(".yaml")
    write_text(written, yaml.safe_dump(raw, sort_keys=False, allow_unicode=True))
    return written, folder.sheet(MODEL)


def call_of(student: str) -> dict[str, Any]:
    """How a student's pipeline is called, as `student.export` wrote it.

    Raises:
        ValueError: what is there is no student's pipeline; with what it lacks.
    """
    folder = Path(student)
    if not folder.is_dir():
        if folder.exists() or len(folder.parts) != 2 or folder.is_absolute():
            raise ValueError(
                f"{student} is no folder and no hub id: give results/RUN/student/pipeline"
            )
        try:
            about = read_json(download_file(student, METADATA))
        except (OSError, ValueError) as error:
            raise ValueError(explain_missing(f"the student {student!r}", student, error)) from error
    else:
        lacking = [name for name in (INDEX, METADATA) if not (folder / name).is_file()]
        if lacking:
            raise ValueError(
                f"{student} is no student's pipeline, it has no {' and no '.join(lacking)}: give "
                "results/RUN/student/pipeline of a finished run, or a copy of it"
            )
        _check_whole(folder)
        about = read_sealed(folder / METADATA)
    if "call" not in about:
        raise ValueError(f"{student} does not say how it is called: its {METADATA} has no call")
    if about.get("recipe") is None:
        raise ValueError(f"{student} was not trained: give results/RUN/student/pipeline")
    if (about.get("student") or {}).get("init") == "flow_map":
        raise ValueError(
            f"{student} is a student of any number of steps, which no run can have as its teacher: "
            "draw with the code of its README.md, which takes stock Diffusers"
        )
    call: dict[str, Any] = about["call"]
    return call


def _check_whole(folder: Path) -> None:
    """Raise ValueError for files that are not as they were exported."""
    from distillery.model_folder import find_changes  # it takes seconds

    if changes := find_changes(folder):
        raise ValueError(
            f"{folder} is damaged, or was changed after its export: {', '.join(changes)}; copy it "
            "again, or export it again in its own run"
        )


def _name_of(student: str) -> str:
    """Of the run that a student is of, or of its folder elsewhere."""
    folder = Path(student)
    inside = folder.parts[-2:-1] == ("student",) and len(folder.parts) > 2
    return folder.parts[-3] if inside else folder.name


def _check_free(run: RunFolder) -> None:
    """Raise ValueError for the folder of a run that trains."""
    frozen = run.config("run")
    if frozen.is_file() and "training" in read_json(frozen):
        raise ValueError(f"{run} is a run that trains: give the drawing another name with --run")


def _as_csv(texts: Sequence[str]) -> str:
    table = io.StringIO()
    rows = csv.writer(table, lineterminator="\n")
    rows.writerows([["prompt"], *([text] for text in texts)])
    return table.getvalue()


def _count(prompts: Path) -> int:
    """Prompts of a file; raises ValueError for a bad one."""
    from distillery.planning.prompt_tables import read_split  # pandas takes a second

    return len(read_split(Prompts(eval=str(prompts)), "eval"))


def _settings(student: str, call: Mapping[str, Any], num_images: int) -> dict[str, Any]:
    """The teacher and its samples, from how a student is called."""
    arguments: JsonObject = call["arguments"]
    scale = next((arguments[name] for name in SCALES if name in arguments), 1.0)
    of_call = ("height", "width", "num_frames", "max_sequence_length")
    teacher = {
        "path": student,
        "dtype": call["dtypes"]["default"],
        "vae_dtype": call["dtypes"]["vae"],
        **{name: arguments[name] for name in of_call if name in arguments},
        **{name: call[name] for name in ("fps", "vae_tiling") if name in call},
    }
    model = {
        "source": "teacher",
        "steps": arguments["num_inference_steps"],
        "guidance_scale": max(1.0, scale),
    }
    samples = {
        "batch_size": min(BATCH, num_images),
        "num_shards": -(-num_images // IMAGES_A_JOB),
        "models": {MODEL: model},
    }
    return {"teacher": teacher, "samples": samples}


def _trace_of(student: str) -> dict[str, Any] | None:
    """How the teacher of the run around a student was traced, if it was."""
    frozen = Path(student).absolute().parents[1] / "config/run.json"
    if not frozen.is_file():
        return None
    config = parse_config(read_json(frozen), str(frozen))
    trace = config.teacher.trace if isinstance(config, Config) else None
    return trace.model_dump(mode="json") if trace else None
