"""The report of a run: one HTML file that opens offline, and its numbers as JSON.

What the run does not have (no training, no scores) is left out.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import yaml

from distillery import words
from distillery.config.run import Config
from distillery.files import JsonObject, write_json, write_text
from distillery.hardware import describe_hardware, source_commit, versions
from distillery.measures.intervals import MIN_PROMPTS, MIN_RESAMPLED, ConfidenceInterval
from distillery.measures.measure import PERCENT
from distillery.report import figures, tables
from distillery.report.card import write_card
from distillery.report.claims import Claims, make_claims, speed_words
from distillery.report.findings import Findings, gather
from distillery.report.image_grid import Grid, Lead, make_grid, make_lead
from distillery.report.marks import MARKS
from distillery.report.pages import own_file, page_environment
from distillery.report.speeds import MIN_BATCHES
from distillery.report.summaries import (
    Timings,
    summarise_speed,
    summarise_timings,
    summarise_training,
)
from distillery.report.timeline import hold_against_plan
from distillery.report.timeline_chart import MAX_BARS
from distillery.report.training_facts import PreviewSheet, gather_previews
from distillery.report.usage import loading_code
from distillery.report.vega import runtime
from distillery.report.verdict import describe_bounds, read_interval
from distillery.run_folder import RunFolder
from distillery.stage import Stage
from distillery.student.info import describe_student


def write_report(
    job: Config, run_folder: RunFolder, output: Path, metrics: Path, stages: Sequence[Stage]
) -> None:
    """Write the report, its numbers and a model card with them, in `card/` beside the report.

    What a run does not have is left out, never guessed.

    Args:
        job: the whole configuration.
        run_folder: results/{run}.
        output: one self-contained HTML file; its links to more images are relative to it.
        metrics: quality, verdict, training, timings and provenance as JSON.
        stages: that there are.

    Raises:
        ValueError: a file that is there is damaged, or samples of different runs are mixed.
    """
    findings = gather(job, run_folder)
    timings = summarise_timings(findings.attempts, findings.samples)
    speed = summarise_speed(findings, timings.images)
    claims = make_claims(findings.roles, findings.quality, speed, findings.checks)
    facts = {
        "run": job.run,
        "claims": claims.as_json(),
        "same_images": findings.roles.same.kept,
        "verdict": [asdict(check) for check in findings.checks],
        "quality": findings.quality,
        "speed": speed,
        "student": asdict(findings.student_info) if findings.student_info else None,
        "training": summarise_training(findings.loss, findings.training),
        "timings": timings.as_json(),
        "planned": [asdict(row) for row in hold_against_plan(findings.attempts, findings.plan)],
        "provenance": {
            "config": job.model_dump(mode="json"),
            "recipes": {name: _recipe(manifest) for name, manifest in findings.manifests.items()},
            "plan": findings.plan,
            "hardware": describe_hardware(),
            "versions": versions(),
            "source": source_commit(),
            "origin": asdict(findings.origin) if findings.origin else None,
        },
    }
    grid = lead = None
    roles = findings.roles
    if findings.samples:
        grid = make_grid(findings.shown, findings.scores, roles.student, output.parent)
    if roles.student is not None:
        leading = (roles.reference, roles.student, roles.untrained or roles.rival)
        lead = make_lead(findings.samples, leading, output.parent)
    code = loading_code(run_folder, findings.samples.get(findings.roles.student or ""))
    previews = gather_previews(
        run_folder, findings.trained_recipes, findings.roles.reference, output.parent
    )
    table = tables.metrics_table(findings.shown_quality, roles, timings.images)
    page = render(stages, findings, facts, claims, timings, table, grid, lead, previews, code)
    write_text(output, page)
    write_json(metrics, facts)
    pipeline_card = run_folder.student("pipeline") / "README.md"
    if roles.student in findings.samples and findings.quality and table and pipeline_card.is_file():
        rest = findings.quality, claims, table, output.parent / "card"
        write_card(pipeline_card, findings.samples, roles, *rest)


def _recipe(manifest: Mapping[str, Any]) -> dict[str, Any]:
    """What the report repeats of a store's manifest."""
    kept = {key: manifest.get(key) for key in ("recipe_hash", "num_samples", "recipe")}
    return kept | {"num_chunks": len(manifest.get("chunks", []))}


# ---- the page ----------------------------------------------------------------------------------


def render(
    stages: Sequence[Stage],
    findings: Findings,
    facts: JsonObject,
    claims: Claims,
    timings: Timings,
    table: tables.Table | None,
    grid: Grid | None,
    lead: Lead | None,
    previews: PreviewSheet | None,
    code: str | None,
) -> str:
    """Fill the template; prompts are users' text, so everything is escaped."""
    environment = page_environment()
    environment.filters |= {
        "bounds": _bounds,
        "count_text": lambda count: f"{count:,}",
        "counted": words.counted,
        "date": _date,
        "duration": words.duration,
        "interval": read_interval,
        "listed": words.listed_numbers,
        "percent": PERCENT,
        "significant": words.significant,
        "speed_words": speed_words,
        "times": words.times,
        "yaml": _yaml,
    }
    template = environment.get_template("report.html.j2")
    config, quality = findings.config, findings.shown_quality
    scored = figures.Scored(quality, config.samples.models, findings.roles) if quality else None
    curves = figures.steps_charts(scored)
    return template.render(
        style=own_file("report.css"),
        vega=runtime(),
        config=config,
        facts=facts,
        findings=findings,
        claims=claims,
        label=findings.roles.label,
        marks={name: MARKS[scored.part(name)] for name in quality["models"]}
        if scored and quality
        else {},
        same_names=findings.roles.same.names,
        min_batches=MIN_BATCHES,
        table=table,
        black=figures.black_images(findings.samples),
        sets=tables.set_tables(quality, findings.roles),
        differences=tables.differences_table(quality, findings.roles),
        quality_charts=figures.quality_charts(scored, bool(curves)),
        steps_charts=curves,
        training_parts=figures.training_parts(config.training),
        restarts=[begin for begin, _ in figures.restarts(config.training)],
        loss_charts=figures.loss_charts(findings.loss, config.training, findings.timesteps),
        speed_chart=figures.speed_chart(findings.training.speed if findings.training else []),
        previews=previews,
        student_info=describe_student(findings.student_info) if findings.student_info else None,
        timings=timings,
        planned=hold_against_plan(findings.attempts, findings.plan),
        percent=PERCENT,
        max_bars=MAX_BARS,
        min_prompts=MIN_PROMPTS,
        min_resampled=MIN_RESAMPLED,
        timeline=figures.timeline(timings.workers, timings.clock, timings.stages, stages),
        grid=grid,
        lead=lead,
        code=code,
    )


def _bounds(interval: ConfidenceInterval, form: Callable[[float], str] | str) -> str:
    """From where to where an interval goes."""
    return describe_bounds(interval, form.format if isinstance(form, str) else form)


def _date(unix_s: float) -> str:
    """A moment, in UTC."""
    return datetime.fromtimestamp(unix_s, UTC).strftime("%Y-%m-%d %H:%M UTC")


def _yaml(value: Any) -> str:
    """A value as YAML, for people."""
    return yaml.safe_dump(value, sort_keys=False, allow_unicode=True, width=100)
