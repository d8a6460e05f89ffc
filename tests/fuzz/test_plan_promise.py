"""What a plan says is reused is not made again, and what it says is made again is.

A tiny run is finished; its configuration, prompts and files are changed at random. Then the plan is
asked, and each stage makes what it makes.
"""

import shutil
from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pandas as pd
import pytest

from distillery.config.jobs import PROMPTS_STAGES, freeze
from distillery.config.run import parse_config
from distillery.files import hash_json, read_json
from distillery.pipeline import STAGES
from distillery.planning.first import write_frozen
from distillery.planning.plan import make_plan
from distillery.planning.there import Found, there_part
from distillery.store.recipes import TrainingRecipe
from fuzzing import seeds
from runs import Run, make_run, settings
from sharing import made_once
from training_phases import phases

MODELS = {name: {"source": name} for name in ("teacher", "student", "untrained")}
COMPARED = ("embeddings", "targets", "student", "training", "rounds", "export", "previews", "run")
KINDS: dict[str, dict[str, Any]] = {
    "stored": {},
    "rounds": {"phases": phases(stored=8, rounds={"count": 1, "samples": 8})},
    "online": {"phases": phases(online=8)},
}
"""Trainings by where their targets come from."""
KEYS: dict[str, tuple[Any, ...]] = {
    "seed": (1,),
    "teacher.negative_prompt": ("the tree", None),
    "teacher.dtype": ("bfloat16",),
    "teacher.long_prompts": ("truncate",),
    "embeddings.batch_size": (2,),
    "embeddings.chunk_size": (2, 100),
    "targets.steps": (8,),
    "targets.guidance_scale": (2.0, 1.0),
    "targets.num_segments": (4,),
    "targets.samples_per_prompt": (2,),
    "targets.batch_size": (4,),
    "targets.chunk_size": (8,),
    "student.steps": (1,),
    "training.learning_rate": (0.5,),
    "training.phases": (phases(stored=24),),
    "training.global_batch_size": (4,),
    "training.log_every_samples": (4,),
    "training.save_every_samples": (16,),
    "training.objective": ("direct",),
    "samples.num_prompts": (3, 4),
    "samples.images_per_prompt": (2,),
    "samples.batch_size": (1,),
    "samples.models.teacher.steps": (2,),
    "hardware.cpu_threads": (1,),
}
"""Other values of keys of all sections; some change no result."""


@pytest.fixture(scope="module")
def finished(
    teacher: Path, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str], tuple[Path, dict[str, Any]]]:
    """Gives the folder of a finished run of a kind, and its settings but for the folder."""

    def of_kind(kind: str) -> tuple[Path, dict[str, Any]]:
        changes = {"samples": {"models": deepcopy(MODELS)}, "training": deepcopy(KINDS[kind])}

        def make(folder: Path) -> None:
            make_all(make_run(folder, teacher, **changes))

        return made_once(tmp_path_factory, f"promised-{kind}", make), changes

    return of_kind


def make_all(run: Run) -> None:
    """What the rules make, up to the images; each stage keeps what fits."""
    models = [f"samples-{name}" for name in MODELS]
    for stage in [*COMPARED, *PROMPTS_STAGES, *models]:
        write_frozen(freeze(run.config, stage), run.files.config(stage))
    run.encode("train")
    run.encode("eval")
    run.build()
    if run.config.training.reads_trajectories:
        run.all_targets()
    for number in run.config.training.round_numbers:
        run.visited(number, run.train_and_export_before(number))
    sources = {"teacher": None, "student": run.train_and_export()}
    sources["untrained"] = run.export_untrained()
    for model, source in sources.items():
        run.samples(model=model, pipeline=source)


def edited(table: pd.DataFrame, random: Random) -> pd.DataFrame:
    """A prompt file as a user changes it."""
    row = random.randrange(len(table))
    other = table.iloc[[row]].assign(prompt_id="another", prompt="a red tree in the house")
    changed: dict[str, Callable[[], pd.DataFrame]] = {
        "text": lambda: table.assign(
            prompt=[f"{text} sat" if i == row else text for i, text in enumerate(table["prompt"])]
        ),
        "appended": lambda: pd.concat([table, other]),
        "inserted": lambda: pd.concat([table[:row], other, table[row:]]),
        "removed": lambda: table.drop(index=row),
        "reordered": lambda: table.sample(frac=1, random_state=random.randrange(99)),
        "renamed": lambda: table.assign(
            prompt_id=[f"{name}x" if i == row else name for i, name in enumerate(table.prompt_id)]
        ),
        "noted": lambda: table.assign(note="more"),
    }
    return changed[random.choice(sorted(changed))]()


def change(raw: dict[str, Any], run: Run, random: Random) -> str:
    """Change a configuration, one of its prompt files, or remove what the run has; says which."""
    kind = random.choice(["key", "key", "prompts", "file"])
    if kind == "key":
        key = random.choice(sorted(KEYS))
        *sections, name = key.split(".")
        place = raw
        for section in sections:
            place = place.setdefault(section, {})
        place[name] = random.choice(KEYS[key])
        return f"{key} {place[name]}"
    if kind == "prompts":
        source = Path(raw["prompts"][random.choice(["train", "eval"])])
        edited(pd.read_csv(source), random).to_csv(source, index=False)
        return f"prompts {source.name}"
    files = run.files
    gone = random.choice(
        [files.checkpoints, files.student("trained"), files.student("pipeline"), files.targets,
         files.student("initial"), files.embeddings("eval")]
    )  # fmt: skip
    if gone.is_dir():
        shutil.rmtree(gone)
    else:
        gone.unlink(missing_ok=True)
    return f"without {gone.name}"


def written(run: Run, pattern: str) -> dict[Path, tuple[int, int]]:
    """Files of a run by when they were written."""
    stats = {path: path.stat() for path in run.folder.glob(pattern)}
    return {path: (stat.st_mtime_ns, stat.st_ino) for path, stat in stats.items()}


def pieces(run: Run) -> dict[str, dict[Path, tuple[int, int]]]:
    """What each stage has made, by the plan's names."""
    patterns = {
        "embeddings train": "embeddings/train/*/*.safetensors",
        "embeddings eval": "embeddings/eval/*/*.safetensors",
        "targets": "targets/*/*.safetensors",
        **{f"samples {model}": f"samples/{model}/*/*.png" for model in MODELS},
    }
    return {stage: written(run, pattern) for stage, pattern in patterns.items()}


def seen_before(run: Run) -> dict[str, int]:
    """Samples that each training has seen, by its recipe."""
    found: dict[str, int] = {}
    for path in run.files.checkpoints.glob("*/samples-*"):
        found[path.parent.name] = max(
            found.get(path.parent.name, 0), int(path.name.removeprefix("samples-"))
        )
    return found


@pytest.mark.parametrize("seed", seeds(3))
def test_a_plan_keeps_its_promise(
    teacher: Path,
    finished: Callable[[str], tuple[Path, dict[str, Any]]],
    tmp_path: Path,
    seed: int,
) -> None:
    random = Random(seed)
    folder, changes = finished(list(KINDS)[seed % len(KINDS)])
    shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
    raw = settings(tmp_path, teacher, **changes)
    run = Run(tmp_path / "results", parse_config(raw, "tiny"))
    told = [change(raw, run, random) for _ in range(random.choice([1, 1, 2]))]
    try:
        run = replace(run, config=parse_config(raw, "tiny"))
        make_plan(STAGES, run.config, run.files.plan)
    except ValueError:
        pytest.skip(f"{told} is refused")
    rows = {row["stage"]: Found(**row) for row in read_json(run.files.plan)["there"]}
    (table,) = there_part(rows.values()).tables
    says = {row[0]: row[-1] for row in table.rows}
    before, seen, was = pieces(run), seen_before(run), weights(run)
    make_all(run)
    after, is_same = pieces(run), was == weights(run)
    for stage, made in after.items():
        if stage not in rows:
            continue  # of online targets none is stored
        new = sum(before[stage].get(path) != when for path, when in made.items())
        if stage != "samples student" or not is_same or new:  # trained anew to the same bytes
            check(f"{told}: {stage}", rows[stage], says[stage], new)
    recipe = TrainingRecipe.from_json(
        read_json(run.files.student("trained") / "distillery.json")["recipe"]
    )
    parts = [recipe, *recipe.first_parts(run.config.training)]
    resumed = max(seen.get(part.hash[:12], 0) for part in parts)
    if not any("without" in each for each in told):
        assert rows["training"].done == resumed, f"{told}: training {says['training']}"


def weights(run: Run) -> str | None:
    """The hashes of the student's pipeline; None where there is none."""
    about = run.files.student("pipeline") / "distillery.json"
    return hash_json(read_json(about)["files"]) if about.is_file() else None


def check(where: str, row: Found, says: str, new: int) -> None:
    """What a stage has made is what was said of it."""
    if says == "reused":
        assert new == 0, f"{where}: {says}, and {new} are made"
    elif says.startswith("made"):
        assert new == row.of, f"{where}: {says}, and {new} of {row.of} are made"
    elif "prompts" not in says and "gone" not in says:
        assert new == row.of - row.done, f"{where}: {says}, and {new} of {row.of} are made"
