"""The page's second part: what of this very configuration lies on the disk, and what is made again.

Counted by names and not by contents, since targets may be hundreds of GB: folders are named by the
hash of a recipe, and each stage's frozen configuration says what it was made from. The jobs look at
the contents and make again what does not fit. But Snakemake starts no job for a file that is gone
behind a manifest that is there: such files are looked for, and are a doubt.
"""

from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import inf
from pathlib import Path
from typing import Any

import pandas as pd

from distillery.config.jobs import freeze, read_frozen
from distillery.config.parsing import flatten
from distillery.config.run import Config, RunConfig
from distillery.config.sampling import user_key
from distillery.config.section import without_result
from distillery.config.teacher import Teacher
from distillery.files import hash_json, read_json, read_sealed, repair_commands
from distillery.input_images import SHA256
from distillery.notes import Note, doubt
from distillery.planning.page import Part, Table
from distillery.planning.work import count_chunks
from distillery.prompts import NEGATIVE, own_sizes
from distillery.run_folder import RunFolder
from distillery.store.chunks import chunk_folder
from distillery.store.embeddings import distinct_texts
from distillery.store.lacking import Lacking, lacking_chunks, lacking_images
from distillery.store.sample_files import images_in
from distillery.store.tables import read_table
from distillery.words import counted

MAX_NAMED = 3
"""Changed keys that are named; of the others the number is."""
CHECKPOINT = "samples-"
METADATA = "distillery.json"
OTHER_FORM = "this release writes its configuration otherwise"
OTHERS_MADE = "prompts.train has changed, or what was made of it"
NOT_OF_IMAGES = {"sampling.num_prompts", "sampling.store", "sampling.images_per_shard"}
"""Keys of a model's frozen configuration that only say which images are made, and where they
lie."""
TRAINED_GUIDANCE = "sampling.trained_guidance_scale"
"""One that only a network reads which takes the scale as an input."""


@dataclass(frozen=True)
class Found:
    """What one stage has.

    Attributes:
        stage: as in the report; of samples with their model.
        done: pieces that fit this configuration.
        of: pieces in all.
        unit: what is counted.
        others: pieces of other configurations.
        why: what has changed since they were made, "" for nothing.
        other_prompts: whether the prompts have changed; the jobs then make some pieces again.
        num_gone: files that its manifests list and that are gone or empty.
        num_listed: files that they list.
        gone: the first of these that is gone.
        listed_by: the manifests that list any of these.
    """

    stage: str
    done: int
    of: int
    unit: str
    others: int = 0
    why: str = ""
    other_prompts: bool = False
    num_gone: int = 0
    num_listed: int = 0
    gone: str = ""
    listed_by: Sequence[str] = ()

    def without(self, lacking: Lacking) -> "Found":
        """The same of a stage that lacks files."""
        if not lacking.files:
            return self
        return replace(
            self,
            num_gone=len(lacking.files),
            num_listed=lacking.num_listed,
            gone=str(lacking.files[0]),
            listed_by=tuple(map(str, lacking.manifests)),
        )


def already_there(
    config: RunConfig,
    run: RunFolder,
    prompts: Mapping[str, pd.DataFrame],
    recipes: Mapping[str, str],
    takes_guidance: bool = False,
) -> list[Found]:
    """What is there of each stage that takes time.

    Args:
        prompts: the table of each split.
        recipes: the hash that `embeddings` will have, of a run that trains `targets`,
            `samples`, that of the trajectories' ids and texts, and `scheduler`, `hash_solver` of
            the student's.
        takes_guidance: whether the networks take the guidance scale as an input.
    """
    unread = NOT_OF_IMAGES | (set() if takes_guidance else {TRAINED_GUIDANCE})
    sources = dict.fromkeys(prompts, run)
    if isinstance(config, Config):
        sources["train"] = config.targets_run(run)
    trains = isinstance(config, Config) and config.trains
    found = [
        _embeddings(config, sources[split], split, prompts[split], recipes)
        for split in prompts
        if split == "eval" or trains
    ]
    why = {row.stage: row.why for row in found}
    if isinstance(config, Config) and config.trains:
        if config.training.reads_trajectories:
            source = config.targets_run(run)
            found.append(_targets(config, source, prompts["train"], recipes["targets"]))
        why |= {row.stage: row.why for row in found}
        found.append(_student(config, run))
        upstream = _first([*why.values(), found[-1].why])
        found.append(_training(config, run, upstream, recipes, found[-1].why))
        why |= {row.stage: row.why for row in found}
        why["pipeline"] = _why_pipeline(config, run, recipes, found[-1])
        why["untrained"] = why["student"] or _why_untrained(run, recipes["scheduler"])
    for name, model in config.samples.models.items():
        follows = {"student": ["pipeline"], "untrained": ["untrained"]}.get(model.source, [])
        upstream = _first(why.get(stage, "") for stage in ("embeddings eval", *follows))
        found.append(_samples(config, run, name, prompts["eval"], upstream, unread))
    changed = {split for split, table in prompts.items() if has_changed(run.prompts(split), table)}
    return [
        # Its jobs run again and make what is gone.
        replace(row, other_prompts=True, num_gone=0) if _split_of(row.stage) in changed else row
        for row in found
    ]


def _split_of(stage: str) -> str:
    """The split whose prompts a stage's pieces are named by; "" for the student's."""
    if stage.startswith("embeddings "):
        return stage.removeprefix("embeddings ")
    return "train" if stage == "targets" else "eval" * stage.startswith("samples ")


def has_changed(path: Path, table: pd.DataFrame, with_images: bool = True) -> bool:
    """Whether the prompts that the last jobs were given are others."""
    try:
        before = _texts(read_table(path), with_images)
    except (OSError, ValueError):  # none yet, or the job that reads it says what is damaged
        return False
    return list(before.items()) != list(_texts(table, with_images).items())


def _unchanged(path: Path, table: pd.DataFrame) -> set[str]:
    """The ids of prompts whose texts the last jobs were given too; all where that is not known."""
    after = _texts(table)
    try:
        before = _texts(read_table(path))
    except (OSError, ValueError):
        return set(after)
    return {name for name, texts in after.items() if before.get(name) == texts}


def _texts(table: pd.DataFrame, with_images: bool = True) -> dict[str, list[str]]:
    """What is drawn of each prompt, by its id."""
    columns = ["prompt_id", "prompt", NEGATIVE, *([SHA256] if with_images else [])]
    rows = table.reindex(columns=columns).astype(object).fillna("")
    return {str(row[0]): row[1:] for row in rows.to_numpy().tolist()}


def _first(reasons: Iterable[str]) -> str:
    return next(filter(None, reasons), "")


def _embeddings(
    config: RunConfig,
    run: RunFolder,
    split: str,
    table: pd.DataFrame,
    recipes: Mapping[str, str],
) -> Found:
    num_texts = len(distinct_texts(table, config.teacher.negative_prompt).texts)
    num_chunks = -(-num_texts // config.embeddings.chunk_size)
    root = run.embeddings(split).parent
    counts = _count_chunks(root, recipes["embeddings"], num_chunks)
    row = Found(f"embeddings {split}", *counts, _why(config, run, "embeddings", counts[-1]))
    return row.without(lacking_chunks(root, recipes["embeddings"]))


def _targets(config: Config, run: RunFolder, table: pd.DataFrame, recipe: str) -> Found:
    num_chunks = count_chunks(config.targets, own_sizes(table))
    counts = _count_chunks(run.target_folder, recipe, num_chunks)
    row = Found("targets", *counts, _why(config, run, "targets", counts[-1]))
    return row.without(lacking_chunks(run.target_folder, recipe))


def _count_chunks(root: Path, recipe: str, num_chunks: int) -> tuple[int, int, str, int]:
    """Chunks of a recipe, those that are needed, their unit, and those of other recipes."""
    own = len(list(chunk_folder(root, recipe).glob("chunk-*.safetensors")))
    everything = len(list(root.glob("*/chunk-*.safetensors")))
    return min(own, num_chunks), num_chunks, "chunk", everything - own


def _student(config: Config, run: RunFolder) -> Found:
    is_there = int((run.student("initial") / "config.json").is_file())
    why = _why(config, run, "student", is_there)
    return Found("student", 0 if why else is_there, 1, "network", is_there if why else 0, why)


def _training(
    config: Config, run: RunFolder, upstream: str, recipes: Mapping[str, str], student: str
) -> Found:
    """Samples that the newest checkpoint of this very training has seen; all where the trained
    student is there. `student` says why the untrained one is made again."""
    total = config.training.num_samples
    settings = [part.of_recipe for part in (config.training, *config.training.first_parts)]
    is_ours = partial(_is_of, config=config, run=run, recipes=recipes)
    seen, others = 0, 0
    for path in sorted(run.checkpoints.glob("*/recipe.json")):
        newest = max((_number(each) for each in path.parent.glob(f"{CHECKPOINT}*")), default=0)
        if not student and is_ours(_read(path), settings=settings):
            seen = max(seen, newest)
        else:
            others = max(others, newest)
    trained = _read(run.student("trained") / METADATA)
    if not student and is_ours(trained.get("recipe", {}), settings=settings[:1]):
        seen = total
    else:
        others = max(others, trained.get("samples_seen", 0))
    why = upstream or _why(config, run, "training", others) or OTHERS_MADE
    return Found("training", seen, total, "sample", others, "" if seen or not others else why)


def _why_pipeline(
    config: Config, run: RunFolder, recipes: Mapping[str, str], training: Found
) -> str:
    """Why the student's images are of another student than there will be; "" where they may fit."""
    about = _read(run.student("pipeline") / METADATA)
    if not about or training.why:
        return training.why
    settings = [config.training.of_recipe]
    if _is_of(about.get("recipe", {}), settings=settings, config=config, run=run, recipes=recipes):
        return ""
    return f"{run.student('pipeline')} is of another training"


def hash_solver(config: Mapping[str, Any]) -> str:
    """Of a scheduler's settings: of what its folder holds, and of `plain_config`, alike."""
    return hash_json(
        {
            name: value
            for name, value in config.items()
            if not name.startswith("_") and name != "class" and value not in (inf, -inf)
        }
    )


def _why_untrained(run: RunFolder, scheduler: str) -> str:
    """Why the untrained student will be called at other timesteps; "" where it will not."""
    path = run.student("untrained") / "scheduler" / "scheduler_config.json"
    try:
        is_same = hash_solver(read_json(path)) == scheduler
    except (OSError, ValueError):  # none, or a damaged one, which its readers tell
        return ""
    return "" if is_same else "the student's timesteps have changed"


def _is_of(
    recipe: Mapping[str, Any],
    *,
    settings: Sequence[Mapping[str, Any]],
    config: Config,
    run: RunFolder,
    recipes: Mapping[str, str],
) -> bool:
    """Whether a training's recipe has some of these settings and is of this run's seed, student,
    trajectories and prompts. Earlier releases did not write the last."""
    initial = _read(run.student("initial") / METADATA).get("files")
    wanted = {
        "version": freeze(config, "training")["version"],
        "seed": config.training.seed_in(config.seed),
        "steps": config.student.steps,
        "targets": recipes["targets"],
        "samples": recipes["samples"] if recipe.get("samples") else None,
        "initial": hash_json(initial) if initial else recipe.get("initial"),
    }
    same = all(recipe.get(name) == value for name, value in wanted.items())
    return same and recipe.get("training") in settings


def _read(path: Path) -> dict[str, Any]:
    """A sealed file; nothing where there is none, or a damaged one, which its readers tell."""
    try:
        return read_sealed(path)
    except (OSError, ValueError):
        return {}


def _number(checkpoint: Path) -> int:
    digits = checkpoint.name.removeprefix(CHECKPOINT)
    return int(digits) if digits.isdecimal() else 0


def _samples(
    config: RunConfig,
    run: RunFolder,
    model: str,
    prompts: pd.DataFrame,
    upstream: str,
    unread: Container[str],
) -> Found:
    folder = run.sample_folder / model
    there = [prompt_id for prompt_id, _ in images_in(folder)]
    total = config.samples.num_images(len(prompts))
    sampled = prompts.head(config.samples.num_prompts or len(prompts))
    same = _unchanged(run.prompts("eval"), sampled)
    number, num_same = len(there), sum(name in same for name in there)
    why = upstream or _why(config, run, f"samples-{model}", True, unread)
    fitting = 0 if why else min(num_same, total)
    row = Found(
        f"samples {model}", fitting, total, "image", number - fitting, why if number else ""
    )
    return row if why else row.without(lacking_images(folder))


def _why(
    config: RunConfig, run: RunFolder, stage: str, there: int, unless: Container[str] = ()
) -> str:
    """What has changed since a stage's results were made; "" where nothing has, or none is there.

    The file says what the last job was given. So where a configuration was changed and changed
    back, nothing is told of the results of the one between.
    """
    path = run.config(stage)
    if not there or not path.is_file():
        return ""
    try:
        before = read_frozen(path)
    except ValueError:
        return f"{path} is damaged"
    after = freeze(config, stage)
    ignored = {f"teacher.{name}" for name in without_result(Teacher)}
    old, new = (_without(values, unless, ignored) for values in (before, after))
    only_form = _without(before, unless) != _without(after, unless)
    told = describe_changes(old, new, partial(user_key, config, stage))
    return told or OTHER_FORM * only_form


def _without(values: Mapping[str, Any], *keys: Container[str]) -> dict[str, Any]:
    """Flat values but for some keys."""
    flat = flatten(values)
    return {name: flat[name] for name in flat if not any(name in each for each in keys)}


def describe_changes(
    before: Mapping[str, Any],
    after: Mapping[str, Any],
    rename: Callable[[str], str] = str,
) -> str:
    """The keys whose values differ, with both values, as `targets.steps is 20, was 24`.

    Args:
        before, after: frozen configurations of one stage.
        rename: gives the user's own key for one of theirs.
    """
    old, new = flatten(before), flatten(after)
    changed = {rename(key): key for key in {**old, **new} if old.get(key) != new.get(key)}
    names = list(changed)
    told = [
        f"{name} is {_shown(new, changed[name])}, was {_shown(old, changed[name])}"
        for name in names[:MAX_NAMED]
    ]
    more = [counted(len(names) - MAX_NAMED, "more key")] if len(names) > MAX_NAMED else []
    return "; ".join([*told, *more])


def _shown(values: Mapping[str, Any], name: str) -> str:
    value = values.get(name)
    return "null" if value is None else str(value)[:60]


def on_repair(found: Iterable[Found], run: RunFolder) -> Iterator[Note]:
    """What stages lack though Snakemake takes them for made, and the commands that `verify` prints.

    A manifest does not tell sizes, so of a file that is there only whether it holds anything is
    known.
    """
    rows = [row for row in found if row.num_gone]
    if not rows:
        return
    lacking = [
        f"{row.stage} lacks {row.num_gone:,} of {counted(row.num_listed, 'file')} that "
        f"{row.listed_by[0]} lists, such as {row.gone}"
        for row in rows
    ]
    manifests = [Path(path) for row in rows for path in row.listed_by]
    remove, make = repair_commands(manifests, run.config("run"))
    yield doubt(
        "; ".join(lacking),
        ". Snakemake does not notice it, and a job that reads what is gone fails; to make it "
        f"again: `{remove}`, then `{make}`",
    )


def there_part(found: Iterable[Found]) -> Part:
    """The page's part of what was found."""
    rows = list(found)
    if not any(row.done or row.others for row in rows):
        return Part("Already there", notes=("Nothing: this run begins.",))
    table = Table(
        "",
        ("stage", "there", "needed", "what happens"),
        tuple((row.stage, f"{row.done:,}", counted(row.of, row.unit), _then(row)) for row in rows),
    )
    note = "Counted by names; each job checks contents, and makes again what does not fit."
    return Part("Already there", tables=(table,), notes=(note,))


def _then(row: Found) -> str:
    """What becomes of what is there."""
    if row.num_gone:
        return f"{row.num_gone:,} of {counted(row.num_listed, 'file')} are gone: see Doubts"
    if row.others and not row.done:
        return f"made again: {row.why or 'the teacher, a prompt file or this release has changed'}"
    if row.other_prompts and row.done:
        return "reused where the prompts are the same: some have changed"
    if row.done >= row.of:
        return "reused"
    return "reused, the rest is made" if row.done else "made"
