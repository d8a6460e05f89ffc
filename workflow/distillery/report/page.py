"""The report of a run: one HTML file that opens offline, and its numbers as JSON.

What the run does not have (no training, no scores) is left out.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import yaml
from jinja2 import Environment

from distillery import words
from distillery.config.run import Config
from distillery.files import JsonObject, write_json, write_text
from distillery.hardware import describe_hardware, source_commit, versions
from distillery.measures.intervals import MIN_PROMPTS, MIN_RESAMPLED, ConfidenceInterval
from distillery.measures.lists import BY_NAME
from distillery.measures.measure import PERCENT
from distillery.report import tables
from distillery.report.card import write_card
from distillery.report.categories import categories_table
from distillery.report.charts import runtime
from distillery.report.findings import Findings, gather, loading_code
from distillery.report.html import ICON, MAX_FRAMES, own_file, page_environment
from distillery.report.image_grid import (
    NUM_OPEN,
    gather_previews,
    make_grid,
    make_lead,
)
from distillery.report.roles import MARKS
from distillery.report.score_charts import Scored, quality_charts
from distillery.report.speeds import MIN_BATCHES, Timings, summarise_speed, summarise_timings
from distillery.report.timeline_chart import MAX_BARS, timeline
from distillery.report.training_facts import (
    find_held_out,
    loss_charts,
    restarts,
    speed_chart,
    summarise_training,
    training_parts,
)
from distillery.report.verdict import (
    Claims,
    describe_bounds,
    make_claims,
    ratio_of,
    speed_words,
)
from distillery.run_folder import RunFolder
from distillery.stage import Stage
from distillery.store.marks import hash_made_of, mark_of, sources_of_report
from distillery.student.info import describe_student


def write_report(
    job: Config, run_folder: RunFolder, output: Path, metrics: Path, stages: Sequence[Stage]
) -> None:
    """Write the report, its numbers and a model card with them, in `card/` beside the report.

    What a run does not have is left out, never guessed.

    Args:
        output: one self-contained HTML file; its links to more images are relative to it.
        metrics: quality, verdict, training, timings and provenance as JSON.

    Raises:
        ValueError: a file that is there is damaged, or samples of different runs are mixed.
    """
    findings = gather(job, run_folder)
    roles, samples = findings.roles, findings.samples
    timings = summarise_timings(findings.attempts, samples)
    speed = summarise_speed(roles, samples, timings.images)
    claims = make_claims(roles, findings.quality, speed, findings.checks, findings.worth)
    table = tables.metrics_table(findings.shown_quality, roles, timings.images)
    made_of = hash_made_of(sources_of_report(run_folder, job.samples.models))
    facts = {
        **_facts(findings, claims, timings, speed),
        "made_of": made_of,
    }
    parts = {
        "config": job,
        "noun": words.noun_of(job.teacher.num_frames),
        "facts": facts,
        "findings": findings,
        "claims": claims,
        "table": table,
        **_of_scores(findings),
        **_of_images(findings, run_folder, output.parent),
        **_of_training(findings),
        **_of_times(findings, timings, stages),
    }
    template = _environment().get_template("report.html.j2")
    page = template.render(
        style=own_file("report.css"),
        script=own_file("report.js"),
        icon=ICON,
        vega=runtime(),
        **parts,
    )
    mark = mark_of(made_of)
    write_text(output, f"{page.rstrip()}\n{mark}")
    write_json(metrics, facts)
    pipeline_card = job.student_run(run_folder).student("pipeline") / "README.md"
    if roles.student in samples and findings.quality and table and pipeline_card.is_file():
        folder = output.parent / "card"
        write_card(
            pipeline_card,
            samples,
            roles,
            findings.quality,
            claims,
            findings.checks,
            table,
            folder,
            mark,
        )


def _facts(
    findings: Findings, claims: Claims, timings: Timings, speed: Mapping[str, Any] | None
) -> JsonObject:
    """The content of metrics.json."""
    info, origin = findings.student_info, findings.origin
    return {
        "run": findings.config.run,
        "claims": claims.as_json(),
        "same_images": findings.roles.same.kept,
        "verdict": [asdict(check) for check in findings.checks],
        "quality": findings.quality,
        "speed": speed,
        "student": asdict(info) if info else None,
        "training": summarise_training(findings.loss, findings.training),
        "timings": timings.as_json(),
        "planned": [asdict(row) for row in findings.planned],
        **({"packing_errors": findings.packing_errors} if findings.packing_errors else {}),
        **({"worth": findings.worth.as_json()} if findings.worth else {}),
        **({"categories": findings.categories.as_json()} if findings.categories else {}),
        **({"choices": choices.as_json()} if (choices := findings.choices) else {}),
        "provenance": {
            "config": findings.config.model_dump(mode="json"),
            "recipes": {name: _recipe(manifest) for name, manifest in findings.manifests.items()},
            "plan": findings.plan,
            "hardware": describe_hardware(),
            "versions": versions(),
            "source": source_commit(),
            "origin": asdict(origin) if origin else None,
        },
    }


def _recipe(manifest: Mapping[str, Any]) -> dict[str, Any]:
    """What the report repeats of a store's manifest."""
    kept = {key: manifest.get(key) for key in ("recipe_hash", "num_samples", "recipe")}
    return kept | {"num_chunks": len(manifest.get("chunks", []))}


# ---- what the template shows, by section -------------------------------------------------------


def _of_scores(findings: Findings) -> dict[str, Any]:
    quality, roles = findings.shown_quality, findings.roles
    config = findings.config
    least = config.evaluation.min_clip_ratio
    scored = Scored(quality, config.samples.models, roles, least) if quality else None
    return {
        "label": roles.label,
        "ratio": ratio_of(findings.quality, roles.student, roles) if findings.quality else None,
        "same_names": roles.same.names,
        "marks": {it: MARKS[scored.part(it)] for it in scored.quality["models"]} if scored else {},
        "sets": tables.set_tables(quality, roles),
        "differences": tables.differences_table(quality, roles),
        "by_category": categories_table(findings.categories, roles),
        "quality_charts": quality_charts(scored),
        "choices": findings.choices,
        "percent": PERCENT,
        "measures": BY_NAME,
        "min_batches": MIN_BATCHES,
        "min_prompts": MIN_PROMPTS,
        "min_resampled": MIN_RESAMPLED,
    }


def _of_images(findings: Findings, run_folder: RunFolder, folder: Path) -> dict[str, Any]:
    roles, samples = findings.roles, findings.samples
    leading = (roles.reference, roles.student, roles.untrained or roles.rival)
    shown = findings.shown
    return {
        "num_open": NUM_OPEN,
        "grid": make_grid(shown, findings.scores, roles.student, folder) if samples else None,
        "lead": make_lead(samples, leading, folder) if roles.student is not None else None,
        "previews": gather_previews(
            run_folder,
            findings.trained_recipes,
            samples.get(roles.reference),
            folder,
            findings.config.teacher.fps,
        ),
        "kind": next((it.kind for it in samples.values()), ""),
        "max_frames": MAX_FRAMES,
        "black": tables.black_images(samples),
        "code": loading_code(run_folder, samples.get(roles.student or "")),
    }


def _of_training(findings: Findings) -> dict[str, Any]:
    training, told, info = findings.config.training, findings.training, findings.student_info
    return {
        "training_parts": training_parts(training),
        "held_out": find_held_out(findings.loss),
        "restarts": [begin for begin, _ in restarts(training)],
        "loss_charts": loss_charts(findings.loss, training, findings.timesteps),
        "speed_chart": speed_chart(told.speed if told else []),
        "student_info": describe_student(info) if info else None,
    }


def _of_times(findings: Findings, timings: Timings, stages: Sequence[Stage]) -> dict[str, Any]:
    return {
        "timings": timings,
        "planned": findings.planned,
        "max_bars": MAX_BARS,
        "timeline": timeline(timings.workers, timings.clock, timings.stages, stages),
    }


def _environment() -> Environment:
    """Templates, with what writes numbers in words."""
    environment = page_environment()
    environment.filters |= {
        "bounds": _bounds,
        "count_text": lambda count: f"{count:,}",
        "counted": words.counted,
        "date": _date,
        "duration": words.duration,
        "listed": words.listed_numbers,
        "percent": PERCENT,
        "significant": words.significant,
        "speed_words": speed_words,
        "times": words.times,
        "yaml": _yaml,
    }
    return environment


def _bounds(interval: ConfidenceInterval, form: Callable[[float], str] | str) -> str:
    """From where to where an interval goes."""
    return describe_bounds(interval, form.format if isinstance(form, str) else form)


def _date(unix_s: float) -> str:
    """A moment, in UTC."""
    return datetime.fromtimestamp(unix_s, UTC).strftime("%Y-%m-%d %H:%M UTC")


def _yaml(value: Any) -> str:
    """A value as YAML, for people."""
    return yaml.safe_dump(value, sort_keys=False, allow_unicode=True, width=100)
