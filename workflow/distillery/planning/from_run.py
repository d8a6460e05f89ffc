"""Whether another run's trajectories are those that this one would make."""

from collections.abc import Iterator
from pathlib import Path

from distillery.generation.targets import plan_of_targets
from distillery.notes import Note, error
from distillery.planning.facts import Distillation
from distillery.store.belonging import differences
from distillery.store.embeddings import holds_texts
from distillery.store.lacking import lacking_chunks
from distillery.store.shards import Manifest


def on_from_run(facts: Distillation) -> Iterator[Note]:
    """Trajectories to read that are of another recipe or other prompts, or not all there.

    By manifests and names: training checks the heads of files, as it does of its own.
    """
    if facts.config.targets.from_run is None:
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
