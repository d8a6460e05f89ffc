"""Whether what lies in a run's folder is of its configuration, by the recipes that it carries.

Dates are a hint: a clock that was set back, a copy or a backup makes them wrong. Only the heads and
ends of files are read, and nothing imports torch, since each call of Snakemake asks.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from distillery.config.jobs import freeze, frozen_stages, hash_origin, read_config, read_frozen
from distillery.config.parsing import flatten
from distillery.config.run import Config, RunConfig
from distillery.files import JsonObject, hash_json, read_json, repair_hint
from distillery.noise import hash_samples
from distillery.run_folder import RunFolder
from distillery.store.footers import recipe_in
from distillery.store.marks import hash_made_of, mark_in, sources_of_report, why_not_made_of
from distillery.store.recipes import EmbeddingsRecipe, StatesRecipe, TargetsRecipe, VisitedRecipe

STUDENT_FILE = "distillery.json"
MAX_TOLD = 3
PIPELINES = {"student": "pipeline", "untrained": "untrained"}
"""The folder of `student/` that a model's images are made with, by its source."""
EARLIER = re.compile(r"(?:trained-)?(\d+)-rounds")
"""Folders of `student/` as it was before a round."""


@dataclass(frozen=True)
class Foreign:
    """A result that the frozen configuration of its stage would not give.

    Attributes:
        stage: whose frozen configuration it does not follow.
        made_with: what Snakemake makes with it, and must make again too.
    """

    path: Path
    stage: str
    why: str
    made_with: tuple[Path, ...] = ()

    @property
    def outputs(self) -> tuple[Path, ...]:
        """All that is made again."""
        return (self.path, *self.made_with)


def find_foreign(config: RunConfig, run: RunFolder) -> list[Foreign]:
    """What is there of a run and does not belong to its configuration.

    A stage whose frozen configuration is not there, or not yet this one's, is left out: its jobs
    run anyway. So are files that are damaged, which the jobs that read them tell.
    """
    found = [*_foreign_embeddings(config, run)]
    if isinstance(config, Config):
        if config.training.reads_trajectories:
            found += _foreign_targets(config, run)
        found += _foreign_rounds(config, run)
        found += _foreign_students(config, run)
    return [each for each in found if is_frozen(config, run, each.stage)]


def foreign_pages(config: RunConfig, run: RunFolder) -> list[Foreign]:
    """Pages of another run, or of earlier results, as any are where what they are made of is
    damaged."""
    found = [*_foreign_gallery(config, run)]
    if isinstance(config, Config):
        found += _foreign_report(config, run)
    return [each for each in found if is_frozen(config, run, each.stage)]


def is_frozen(config: RunConfig, run: RunFolder, stage: str) -> bool:
    """Whether a stage's frozen configuration is there and what this configuration gives."""
    try:
        return read_frozen(run.config(stage)) == freeze(config, stage)
    except (OSError, ValueError):
        return False


def foreign_frozen(config: RunConfig, run: RunFolder) -> dict[Path, str]:
    """Frozen configurations that are whole and not what this configuration gives, each with how;
    where it was changed, the next call writes them."""
    found = {}
    for stage in sorted(frozen_stages(config, run)):
        path = run.config(stage)
        try:
            content, wanted = read_frozen(path), freeze(config, stage)
        except (OSError, ValueError):  # none, or damaged, or of another kind of run
            continue
        if content != wanted:
            found[path] = differences(content, wanted) or "it is written otherwise"
    return found


def why_not_trained(config: Config, run: RunFolder, folder: Path) -> str:
    """Why a folder is not this run's trained student; "" where it is, or cannot be read.

    Args:
        run: its folder; with what the training has read, as far as it is there.
        folder: `student/trained`, or one as it was after some rounds.
    """
    about = _head(folder / STUDENT_FILE)
    if not about:
        return ""
    if "recipe" not in about:
        return "it was not trained: it carries no recipe of a training"
    training, number = config.training, _number_of_rounds(folder.name)
    if number is not None:
        training = training.up_to_round(number)
    wanted = {
        "version": freeze(config, "training")["version"],
        "seed": config.seed,
        "steps": config.student.steps,
        "guidance_scale": config.targets.guidance_scale,
        "training": training.of_recipe,
    }
    rounds = [_recipe_hash(run.visited(each)) for each in training.round_numbers]
    if all(rounds):
        wanted["rounds"] = rounds
    initial = _head(run.student("initial") / STUDENT_FILE)
    if "files" in initial:
        wanted["initial"] = hash_json(initial["files"])
    if training.reads_trajectories and (targets := _head(config.targets_run(run).targets)):
        wanted["targets"] = targets.get("recipe_hash")
        if about["recipe"].get("samples"):
            wanted["samples"] = hash_samples(each["members"] for each in targets["chunks"])
    return differences(about["recipe"], wanted)


def why_not_initial(config: Config, run: RunFolder, folder: Path) -> str:
    """Why a folder is not this run's student before its training; "" where it is, or does not tell.

    Earlier releases did not write what it was made from, and their plans not the weights.
    """
    about = _head(folder / STUDENT_FILE)
    if "recipe" in about:
        return "it is trained"
    origin, planned = about.get("origin", {}), _head(run.plan)
    if origin.get("settings") not in (None, hash_origin(freeze(config, "student"))):
        return "it was made with other settings"
    weights = planned.get("teacher", {}).get("denoiser_hash")
    is_of_this = planned.get("config") == hash_json(freeze(config, "run"))
    known = is_of_this and weights is not None
    if known and origin.get("teacher") not in (None, weights):
        return "it was made from another teacher"
    start = config.student.start_from
    started = _head(Path(start) / STUDENT_FILE).get("files") if start else None
    is_told = origin and (started or not start)
    if is_told and origin.get("start") != (hash_json(started) if started else None):
        return "the student that it starts from is another now"
    return ""


def check_student_of(run: RunFolder, folder: Path, is_trained: bool) -> None:
    """Refuse a student's folder, or its pipeline's, that is whole and not of this run.

    Args:
        run: its folder; where its whole configuration is not, nothing is known.
        is_trained: whether it should be trained.

    Raises:
        ValueError: it belongs to another configuration or training, or is not trained, or is.
    """
    try:
        config = read_config(run.config("run"))
    except (OSError, ValueError):
        return
    if isinstance(config, Config):
        why_not = why_not_trained if is_trained else why_not_initial
        why = why_not(config, run, folder)
        if why:
            what = "trained student" if is_trained else "student before its training"
            raise ValueError(f"{folder} is not this run's {what} ({why}): {repair_hint(folder)}")


def why_not_losses(losses: Path, trained: Path) -> str:
    """Why the losses beside a trained student are not of its training; "" where they are, or do
    not tell, as those of earlier releases.

    Args:
        losses: `student/loss.parquet`, or as it was after some rounds.
        trained: the folder of the student.
    """
    found, wanted = recipe_in(losses), _head(trained / STUDENT_FILE).get("recipe_hash")
    if found is None or wanted is None or found == wanted:
        return ""
    return f"it is of another training than {trained}, whose recipe is {wanted[:12]}"


def check_losses(run: RunFolder) -> None:
    """Raise ValueError for losses of another training than the trained student's."""
    why = why_not_losses(run.loss, run.student("trained"))
    if why:
        raise ValueError(f"{run.loss}: {why}: {repair_hint(run.loss)}")


def why_not_exported(config: Config, pipeline: Path, student: Path) -> str:
    """Why a pipeline is not the export of a student's folder; "" where it is, or cannot be read."""
    about, source = _head(pipeline / STUDENT_FILE), _head(student / STUDENT_FILE)
    if not about or not source:
        return ""
    call = about.get("call", {}).get("arguments", {})
    wanted: dict[str, Any] = {
        "recipe_hash": source.get("recipe_hash"),
        "call": {
            "num_inference_steps": config.student.steps,
            "height": config.teacher.height,
            "width": config.teacher.width,
            "num_frames": config.teacher.num_frames if "num_frames" in call else None,
        },
        "student": source.get("student"),
    }
    if "of" in about:
        wanted["of"] = hash_json(source.get("files", {}))
    return differences({**about, "call": {name: call.get(name) for name in wanted["call"]}}, wanted)


def hash_making(frozen: JsonObject, embeddings: Path, pipeline: Path | None) -> str | None:
    """Of what a model's images are made with, which their tables carry; None where a part of it is
    gone.

    Args:
        frozen: `as_frozen` of the model's samples.
    """
    texts = _recipe_hash(embeddings)
    files = {} if pipeline is None else _head(pipeline / STUDENT_FILE).get("files")
    if texts is None or files is None:
        return None
    return hash_json({"frozen": frozen, "embeddings": texts, "pipeline": files})


def pipeline_of(config: RunConfig, run: RunFolder, source: str) -> Path | None:
    """The folder that a model's images are made with; None for the teacher."""
    if source not in PIPELINES or not isinstance(config, Config):
        return None
    return config.student_run(run).student(PIPELINES[source])


def foreign_samples(config: RunConfig, run: RunFolder) -> Iterator[Foreign]:
    """Tables of images that were made with others than this run's settings, prompts or student;
    those of earlier releases do not tell."""
    for model, sampled in config.samples.models.items():
        manifest, stage = run.samples(model), f"samples-{model}"
        number = config.samples.num_shards
        shards = [run.samples_shard(model, f"{it}-of-{number}") for it in range(number)]
        pipeline = pipeline_of(config, run, sampled.source)
        wanted = hash_making(freeze(config, stage), run.embeddings("eval"), pipeline)
        found = {recipe_in(path) for path in (manifest, *shards)} - {None}
        if wanted is not None and found - {wanted} and is_frozen(config, run, stage):
            why = "its images were made with other settings, prompts or another student"
            yield Foreign(manifest, stage, why, tuple(it for it in shards if it.is_file()))


def differences(found: Mapping[str, Any], wanted: Mapping[str, Any]) -> str:
    """What differs of what is wanted, as `steps is 4, not 8`; a value that is left out is empty."""
    has, needs = flatten(dict(found)), flatten(dict(wanted))
    keys = {**needs, **{key: None for key in has if key.partition(".")[0] in wanted}}
    told = [
        f"{key} is {_shown(has.get(key))}, not {_shown(needs.get(key))}"
        for key in keys
        if (has.get(key) or None) != (needs.get(key) or None)
    ]
    more = [f"and {len(told) - MAX_TOLD} more"] if len(told) > MAX_TOLD else []
    return "; ".join([*told[:MAX_TOLD], *more])


def _shown(value: object) -> str:
    text = "empty" if value in (None, [], ()) else str(value)
    return text if len(text) <= 40 else f"{text[:12]}..."


def _head(path: Path) -> dict[str, Any]:
    """A JSON file; nothing where there is none, or a damaged one."""
    try:
        return read_json(path)
    except (OSError, ValueError):
        return {}


def _recipe_hash(manifest: Path) -> str | None:
    return _head(manifest).get("recipe_hash")


def _known(name: str, manifest: Path) -> dict[str, str]:
    """The hash of a manifest's recipe under a name, where the manifest tells it."""
    found = _recipe_hash(manifest)
    return {name: found} if found else {}


def _number_of_rounds(name: str) -> int | None:
    """Of the folder of a student before some round; None for the last one."""
    found = EARLIER.fullmatch(name)
    return int(found[1]) if found else None


def _foreign_manifests(
    paths: Iterable[Path], stage: str, wanted: Mapping[str, Any], together: bool = False
) -> Iterator[Foreign]:
    """Manifests of other recipes; `together`: one that is foreign makes all suspect."""
    there = {path: _head(path).get("recipe") for path in paths}
    for path, recipe in there.items():
        if recipe is None:
            continue
        recipe = recipe | {"num_segments": len(recipe.get("knots", ())) - 1}
        why = differences(recipe, wanted)
        if why:
            others = tuple(each for each in there if each != path) if together else ()
            yield Foreign(path, stage, why, others)


def _foreign_embeddings(config: RunConfig, run: RunFolder) -> Iterator[Foreign]:
    wanted = EmbeddingsRecipe.settings_of(config.teacher)
    wanted["version"] = freeze(config, "embeddings")["version"]
    paths = [run.embeddings(split) for split in ("train", "eval")]
    yield from _foreign_manifests(paths, "embeddings", wanted)


def _foreign_targets(config: Config, run: RunFolder) -> Iterator[Foreign]:
    targets = config.targets
    wanted: dict[str, Any] = {
        **TargetsRecipe.settings_of(config.teacher, targets),
        "version": freeze(config, "targets")["version"],
        "seed": config.seed,
        "stored_dtype": targets.dtype,
        "num_segments": targets.num_segments,
        **_known("embeddings", run.embeddings("train")),
    }
    shards = range(targets.num_shards)
    paths = [run.targets_shard(f"{shard}-of-{targets.num_shards}") for shard in shards]
    yield from _foreign_manifests([run.targets, *paths], "targets", wanted, together=True)


def _foreign_rounds(config: Config, run: RunFolder) -> Iterator[Foreign]:
    """Of each round the student's states and the teacher's answers."""
    num_shards = config.targets.num_shards
    version = freeze(config, "rounds")["rounds_version"]
    of_all = {"version": version, **_known("targets", config.targets_run(run).targets)}
    for number in config.training.round_numbers:
        shards = [f"{shard}-of-{num_shards}" for shard in range(num_shards)]
        states = [run.states_shard(str(number), shard) for shard in shards]
        wanted = {
            **StatesRecipe.settings_of(config.student, config.teacher, config.targets),
            **of_all,
            "number": number,
            "stored_dtype": config.targets.dtype,
        }
        yield from _foreign_manifests(states, "rounds", wanted, together=True)
        wanted = {
            **VisitedRecipe.settings_of(config.student),
            **of_all,
            **_known("states", states[0]),
        }
        paths = [run.visited(number), *(run.visited_shard(str(number), each) for each in shards)]
        yield from _foreign_manifests(paths, "rounds", wanted, together=True)


def _foreign_students(config: Config, run: RunFolder) -> Iterator[Foreign]:
    """The networks, and the pipelines that are exported from them."""
    rounds = range(len(config.training.round_numbers))
    trained = {"trained": "training"}
    trained |= {f"trained-{done}-rounds": f"training-{done}-rounds" for done in rounds}
    exported = {"pipeline": "trained", "untrained": "initial"}
    exported |= {f"{done}-rounds": f"trained-{done}-rounds" for done in rounds}
    if why := why_not_initial(config, run, run.student("initial")):
        yield Foreign(run.student("initial"), "student", why)
    for name, stage in trained.items():
        if why := why_not_trained(config, run, run.student(name)):
            yield Foreign(run.student(name), stage, why)
    for name, source in exported.items():
        if why := why_not_exported(config, run.student(name), run.student(source)):
            yield Foreign(run.student(name), "export", why)


def _foreign_report(config: Config, run: RunFolder) -> Iterator[Foreign]:
    """The report, its numbers or its card."""
    wanted = hash_made_of(sources_of_report(run, config.samples.models))
    pages = {path: mark_in(path) for path in (run.report, run.card)}
    pages[run.metrics] = _head(run.metrics).get("made_of")
    for path, found in pages.items():
        if why := why_not_made_of(found, wanted):
            others = {run.report, run.metrics} - {path}
            yield Foreign(path, "run", why, tuple(sorted(others)))


def _foreign_gallery(config: RunConfig, run: RunFolder) -> Iterator[Foreign]:
    manifests = [run.samples(model) for model in config.samples.models]
    scores = [run.scores] if isinstance(config, Config) else []
    wanted = hash_made_of([*manifests, *scores])
    if why := why_not_made_of(mark_in(run.gallery / "index.html"), wanted):
        yield Foreign(run.gallery, "run", why)
