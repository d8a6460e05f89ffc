"""Whether another run's trajectories, or its student, are those that this one would make."""

from collections.abc import Iterator
from pathlib import Path

from distillery.files import read_sealed
from distillery.generation.targets import plan_of_targets
from distillery.notes import Note, error
from distillery.planning.facts import Distillation
from distillery.run_folder import RunFolder
from distillery.store.belonging import STUDENT_FILE, differences, why_not_trained
from distillery.store.embeddings import holds_texts
from distillery.store.lacking import lacking_chunks
from distillery.store.shards import Manifest


def on_from_run(facts: Distillation) -> Iterator[Note]:
    """Trajectories to read that are of another recipe or other prompts, or not all there.

    By manifests and names: training checks the heads of files, as it does of its own.
    """
    if facts.config.targets.from_run is None or not facts.config.trains:
        return
    where = f"targets.from_run is {facts.config.targets.from_run!r}"
    cure = "change what differs, name another run, or leave from_run out to make them"
    if why := _why_not(facts):
        yield error(where, f": {why}", cure)


def _why_not(facts: Distillation) -> str:
    """Why a store is not this run's; "" where it is."""
    other = facts.config.targets_run(facts.run_folder)
    found, wanted = Manifest.read(other.targets), facts.recipe.to_json()
    if found.recipe["teacher"] != wanted["teacher"]:
        return "its trajectories are of another teacher, or of other weights or adapters of it"
    if how := differences(found.recipe, wanted):
        return f"its trajectories are others than these would be ({how})"
    table = facts.prompts["train"]
    plans = plan_of_targets(facts.targets_job, facts.folder, table)
    embeddings = other.embeddings("train")
    is_same = [plan.members for plan in plans] == [chunk.members for chunk in found.chunks]
    if not is_same or not holds_texts(embeddings, table):
        return "its prompts are not those of prompts.train in this order"
    stores = {
        other.target_folder: facts.recipe.hash,
        embeddings.parent: facts.embeddings_hash,
    }
    for root, recipe in stores.items():
        if gone := lacking_chunks(Path(root), recipe).files:
            return f"{gone[0]} is gone or empty; make it again in its own run"
    return ""


def on_student_run(facts: Distillation) -> Iterator[Note]:
    """A student to judge that was trained otherwise, or by another teacher, than is said here."""
    config = facts.config
    if config.trains:
        return
    why = _why_not_student(facts, config.student_run(facts.run_folder))
    if why:
        yield error(
            f"student.from_run is {config.student.from_run!r}",
            f": its student is another than this configuration's: {why}",
            "take that run's configuration, and change prompts.eval, samples and evaluation alone",
        )


def _why_not_student(facts: Distillation, other: RunFolder) -> str:
    """Why a pipeline is not this configuration's student; "" where it is, or is not drawn."""
    pipeline = other.student("pipeline")
    if not (pipeline / STUDENT_FILE).is_file():
        return ""
    if why := why_not_trained(facts.config, other, pipeline):
        return why
    learned_from = read_sealed(pipeline / STUDENT_FILE)["recipe"]["targets"]
    if learned_from != facts.recipe.hash:
        return "it has learned from other trajectories: of another teacher, or by other targets"
    return ""
