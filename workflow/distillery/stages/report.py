"""Write the report of a run: one HTML file that opens offline, and its numbers as JSON.

    python -m distillery.stages.report --config results/demo/config/run.json \\
        --output results/demo/report/index.html --metrics results/demo/report/metrics.json

What the run does not have (no training, no scores) is left out.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

import pandas as pd
import yaml

from distillery import cli
from distillery.config.run import Config
from distillery.evaluation import figures, tables
from distillery.evaluation.image_grid import Grid, Lead, make_grid, make_lead
from distillery.evaluation.manifests import ModelSamples, check_pairs, read_samples
from distillery.evaluation.pages import own_file, page_environment
from distillery.evaluation.plots import significant
from distillery.evaluation.timeline import (
    Attempt,
    ImageTime,
    Origin,
    RunClock,
    StageTime,
    Worker,
    find_attempts,
    find_origin,
    find_workers,
    hold_against_plan,
    time_images,
    time_stages,
)
from distillery.evaluation.timeline_plot import duration
from distillery.evaluation.training_facts import (
    PreviewSheet,
    TrainingFacts,
    gather_previews,
    gather_training,
)
from distillery.evaluation.usage import loading_code
from distillery.evaluation.verdict import (
    Check,
    Roles,
    check_student,
    find_roles,
    order_models,
    percent,
    read_interval,
)
from distillery.files import JsonObject, read_json, read_sealed, write_json, write_text
from distillery.hardware import describe_hardware, source_commit, versions
from distillery.model_folder import METADATA, read_metadata
from distillery.run_folder import RunFolder
from distillery.store.recipes import TrainingRecipe
from distillery.store.tables import read_table
from distillery.student.info import StudentInfo, describe_student, read_student_info
from distillery.telemetry import read_events

Content = TypeVar("Content")
OWN_STAGE = "report"
LAST_SHARE = 0.1
"""Of a training's log, averaged to its final loss."""


@dataclass(frozen=True)
class Findings:
    """Everything a run left behind that the report shows; None or empty where there is nothing."""

    config: Config
    roles: Roles
    quality: Mapping[str, Any] | None
    scores: pd.DataFrame | None
    samples: Mapping[str, ModelSamples]
    loss: pd.DataFrame | None
    training: TrainingFacts | None
    trained_recipes: Sequence[str]
    """The hash of the training's, and those of trainings that do a first part of it."""
    attempts: Sequence[Attempt]
    origin: Origin | None
    manifests: Mapping[str, Mapping[str, Any]]
    plan: Mapping[str, Any] | None
    student_info: StudentInfo | None

    @property
    def checks(self) -> list[Check]:
        """The thresholds."""
        if self.quality is None:
            return []
        return check_student(self.quality, self.roles, self.config.evaluation.min_clip_ratio)


def write_report(job: Config, run_folder: RunFolder, output: Path, metrics: Path) -> None:
    """Write the report and its numbers; what a run does not have is left out, never guessed.

    Args:
        job: the whole configuration.
        run_folder: results/{run}.
        output: one self-contained HTML file; its links to more images are relative to it.
        metrics: quality, verdict, training, timings and provenance as JSON.

    Raises:
        ValueError: a file that is there is damaged, or samples of different runs are mixed.
    """
    findings = gather(job, run_folder)
    timings = summarise_timings(findings.attempts)
    facts = {
        "run": job.run,
        "verdict": [asdict(check) for check in findings.checks],
        "quality": findings.quality,
        "speed": summarise_speed(findings, timings.images),
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
        grid = make_grid(findings.samples, findings.scores, roles.student, output.parent)
    if roles.student is not None:
        leading = (roles.reference, roles.student, roles.untrained or roles.rival)
        lead = make_lead(findings.samples, leading, output.parent)
    code = loading_code(run_folder, findings.samples.get(findings.roles.student or ""))
    previews = gather_previews(
        run_folder, findings.trained_recipes, findings.roles.reference, output.parent
    )
    write_text(output, render(findings, facts, timings, grid, lead, previews, code))
    write_json(metrics, facts)


def gather(config: Config, run_folder: RunFolder) -> Findings:
    """Read all there is of a run."""
    events = read_events(run_folder.telemetry)
    of_run = [event for event in events if event.stage != OWN_STAGE]
    trained_recipes = _read_trained_recipes(config, run_folder)
    quality = _read_optional(read_sealed, run_folder.quality)
    return Findings(
        config=config,
        roles=find_roles(config, quality),
        quality=quality,
        scores=_read_optional(read_table, run_folder.scores),
        samples=_read_all_samples(config, run_folder),
        loss=_read_optional(read_table, run_folder.loss),
        training=gather_training(events, trained_recipes),
        trained_recipes=trained_recipes,
        attempts=find_attempts(of_run),
        origin=find_origin(of_run),
        manifests=_read_manifests(config, run_folder),
        plan=_read_optional(read_json, run_folder.plan),
        student_info=read_student_info(run_folder.student("initial")),
    )


def _read_optional(read: Callable[[Path], Content], path: Path) -> Content | None:
    """What a file holds, or None where there is none."""
    return read(path) if path.is_file() else None


def _read_trained_recipes(config: Config, run_folder: RunFolder) -> list[str]:
    """See `Findings`; empty without a trained student."""
    trained = run_folder.student("trained")
    if not (trained / METADATA).is_file():
        return []
    recipe = TrainingRecipe.from_json(read_metadata(trained)["recipe"])
    return [each.hash for each in (recipe, *recipe.earlier_parts(config.training))]


def _read_manifests(config: Config, run_folder: RunFolder) -> dict[str, JsonObject]:
    """The manifests that there are, by what they list."""
    shards = {
        "targets": [run_folder.targets],
        "embeddings, train": [run_folder.embeddings("train")],
        "embeddings, eval": [run_folder.embeddings("eval")],
    }
    num_shards = config.targets.num_shards
    for number in map(str, config.training.round_numbers):
        parts = (f"{part}-of-{num_shards}" for part in range(num_shards))
        # Nothing merges the states, which round_targets reads by shards.
        shards[f"round {number}, states"] = [run_folder.states_shard(number, it) for it in parts]
        shards[f"round {number}, targets"] = [run_folder.visited(number)]
    return {
        name: _joined([read_sealed(path) for path in paths])
        for name, paths in shards.items()
        if all(path.is_file() for path in paths)
    }


def _joined(shards: Sequence[JsonObject]) -> JsonObject:
    """The manifest of all shards."""
    chunks = [chunk for shard in shards for chunk in shard["chunks"]]
    return {**shards[0], "num_samples": sum(it["num_samples"] for it in shards), "chunks": chunks}


def _read_all_samples(config: Config, run_folder: RunFolder) -> dict[str, ModelSamples]:
    """The samples that there are, in the report's order."""
    paths = {name: run_folder.samples(name) for name in config.samples.models}
    samples_by_name = {
        name: read_samples(name, path) for name, path in paths.items() if path.is_file()
    }
    samples = {
        name: samples_by_name[name]
        for name in order_models(samples_by_name, config.evaluation.reference)
    }
    for model in samples.values():
        check_pairs(next(iter(samples.values())), model)
    return samples


def _recipe(manifest: Mapping[str, Any]) -> dict[str, Any]:
    """What the report repeats of a store's manifest."""
    kept = {key: manifest.get(key) for key in ("recipe_hash", "num_samples", "recipe")}
    return kept | {"num_chunks": len(manifest.get("chunks", []))}


# ---- the numbers -------------------------------------------------------------------------------


@dataclass(frozen=True)
class Timings:
    """What the telemetry says."""

    clock: RunClock
    stages: Sequence[StageTime]
    workers: Sequence[Worker]
    images: Mapping[str, ImageTime]

    def as_json(self) -> dict[str, Any]:
        """Without the single events."""
        return {
            "total_s": self.clock.total_s,
            "stages": [asdict(stage) | {"items_per_s": stage.items_per_s} for stage in self.stages],
            "workers": [
                {
                    "host": worker.host,
                    "device": worker.device,
                    "busy_s": worker.busy_s,
                    "span_s": worker.span_s,
                    "utilisation": worker.utilisation,
                    "peak_memory_bytes": worker.peak_memory_bytes,
                }
                for worker in self.workers
            ],
            "seconds_per_image": {model: asdict(time) for model, time in self.images.items()},
        }


def summarise_timings(attempts: Sequence[Attempt]) -> Timings:
    """All times of a run."""
    clock = RunClock.of(attempts)
    return Timings(
        clock, time_stages(attempts), find_workers(attempts, clock), time_images(attempts)
    )


def summarise_speed(
    findings: Findings, images: Mapping[str, ImageTime]
) -> dict[str, float | None] | None:
    """How many times faster the student is than the reference; None without both."""
    student, reference = findings.roles.student, findings.roles.reference
    if student is None or not {student, reference} <= set(findings.samples):
        return None
    calls = {name: findings.samples[name].network_calls for name in (student, reference)}
    seconds = {name: images[name].seconds for name in (student, reference) if name in images}
    return {
        "student_network_calls": calls[student],
        "reference_network_calls": calls[reference],
        "network_calls_ratio": calls[reference] / calls[student],
        "student_seconds_per_image": seconds.get(student),
        "reference_seconds_per_image": seconds.get(reference),
        "seconds_ratio": seconds[reference] / seconds[student] if len(seconds) == 2 else None,
    }


def summarise_training(
    loss: pd.DataFrame | None, facts: TrainingFacts | None = None
) -> dict[str, Any] | None:
    """First and last of the training's log; the last is the mean of the final tenth.

    A finishing phase of rollouts has a loss of another kind, and so its own first and last.
    `facts` of the telemetry come under their own key.
    """
    if loss is None or loss.empty:
        return None
    is_rollout = figures.find_rollouts(loss)
    of_segments, for_rollouts = loss["loss"][~is_rollout], loss["loss"][is_rollout]
    is_mixed = not of_segments.empty and not for_rollouts.empty
    return {
        "num_samples": int(loss["samples_seen"].iloc[-1]),
        **_first_and_last(of_segments if is_mixed else loss["loss"]),
        "rollout": _first_and_last(for_rollouts) if is_mixed else None,
        "max_grad_norm": _finite(loss["grad_norm"].max()),
        "telemetry": facts.as_json() if facts else None,
    }


def _first_and_last(losses: "pd.Series[float]") -> dict[str, float | None]:
    """Of one phase of the training."""
    num_last = max(1, round(len(losses) * LAST_SHARE))
    return {
        "first_loss": _finite(losses.iloc[0]),
        "final_loss": _finite(losses.iloc[-num_last:].mean()),
    }


def _finite(value: float) -> float | None:
    """A number that JSON can hold."""
    return float(value) if math.isfinite(value) else None


# ---- the page ----------------------------------------------------------------------------------


def render(
    findings: Findings,
    facts: JsonObject,
    timings: Timings,
    grid: Grid | None,
    lead: Lead | None,
    previews: PreviewSheet | None,
    code: str | None,
) -> str:
    """Fill the template; prompts are users' text, so everything is escaped."""
    environment = page_environment()
    environment.filters |= {
        "count_text": lambda count: f"{count:,}",
        "counted": figures.counted,
        "date": _date,
        "duration": duration,
        "interval": read_interval,
        "listed": figures.listed,
        "percent": percent,
        "significant": significant,
        "times": figures.times,
        "yaml": _yaml,
    }
    template = environment.get_template("report.html.j2")
    config = findings.config
    return template.render(
        style=own_file("report.css"),
        config=config,
        facts=facts,
        findings=findings,
        headline=figures.headline(findings.roles, findings.quality, facts["speed"]),
        summary=figures.summary(findings.checks),
        table=tables.metrics_table(findings.quality, findings.roles, timings.images),
        black=figures.black_images(findings.samples),
        sets=tables.set_tables(findings.quality, findings.roles),
        differences=tables.differences_table(findings.quality, findings.roles),
        quality_plots=figures.quality_plots(findings.quality, findings.roles),
        training_parts=figures.training_parts(config.training),
        restarts=[begin for begin, _ in figures.restarts(config.training)],
        loss_plots=figures.loss_plots(findings.loss, config.training),
        speed_plot=figures.speed_plot(findings.training.speed if findings.training else []),
        previews=previews,
        student_info=describe_student(findings.student_info) if findings.student_info else None,
        timings=timings,
        planned=hold_against_plan(findings.attempts, findings.plan),
        timeline=figures.timeline(timings.workers, timings.clock, timings.stages),
        grid=grid,
        lead=lead,
        code=code,
    )


def _date(unix_s: float) -> str:
    """A moment, in UTC."""
    return datetime.fromtimestamp(unix_s, UTC).strftime("%Y-%m-%d %H:%M UTC")


def _yaml(value: Any) -> str:
    """A value as YAML, for people."""
    return yaml.safe_dump(value, sort_keys=False, allow_unicode=True, width=100)


def main(argv: list[str] | None = None) -> int:
    """The command line of this stage."""
    return cli.run(write_report, __doc__, argv, job="report")


if __name__ == "__main__":
    raise SystemExit(main())
