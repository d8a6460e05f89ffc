"""Keys of earlier releases: phases of a training were keys of their own, targets had predictions.

This release reads them once more, and prints the lines that say the same. Without this file, only
the list `phases` is known.
"""

import json
from collections.abc import Iterator, Mapping
from typing import Any

import yaml

from distillery.config.phases import Phases
from distillery.files import JsonObject
from distillery.notes import Note, error, refuse

OF_ONLINE = {
    "finish_samples": "samples",
    "online_steps": "steps",
    "distribution_matching": "distribution_matching",
}
KEYS = (
    "num_samples",
    "targets",
    *OF_ONLINE,
    "rounds",
    "adversarial",
    "rollout_samples",
    "perceptual_weight",
)
"""Of the section `training`, which its phases have taken the place of."""
NEEDS = dict.fromkeys(OF_ONLINE, "targets: online") | {"perceptual_weight": "rollout_samples"}
"""Without which each of these says nothing."""


def has_earlier_keys(raw: JsonObject) -> bool:
    """Whether a configuration has keys of an earlier release."""
    return _has_earlier_phases(raw) or _has_predictions(raw)


def _has_earlier_phases(raw: JsonObject) -> bool:
    training = raw.get("training")
    return isinstance(training, Mapping) and not training.keys().isdisjoint(KEYS)


def _has_predictions(raw: JsonObject) -> bool:
    targets = raw.get("targets")
    return isinstance(targets, Mapping) and "predictions" in targets


def with_phases(raw: JsonObject) -> JsonObject:
    """A configuration whose phases are a list, whichever release it was written for.

    Raises ValueError, which begins with a key, for what no list can say.
    """
    if _has_predictions(raw):
        if raw["targets"]["predictions"] is not False:
            raise ValueError(
                "targets.predictions: the objective that learned from the teacher's predictions "
                "is gone, since it gained nothing; leave this key out"
            )
        kept = {name: it for name, it in raw["targets"].items() if name != "predictions"}
        raw = {**raw, "targets": kept}
    if not _has_earlier_phases(raw):
        return raw
    training = dict(raw["training"])
    given = {name: training.pop(name) for name in KEYS if name in training}
    if training.get("phases") is None:
        training.pop("phases", None)
    else:
        raise ValueError(
            f"training.{next(iter(given))} is a key of an earlier release, and training.phases, "
            "which says all of it, is there too: remove "
            f"{', '.join(f'training.{name}' for name in given)}"
        )
    return {**raw, "training": {"phases": phases_of(given), **training}}


def in_todays_words(frozen: dict[str, Any]) -> dict[str, Any]:
    """A frozen configuration as this release writes it; one that cannot be read stays as it is."""
    if not has_earlier_keys(frozen):
        return frozen
    try:
        listed = with_phases(frozen)
        if not _has_earlier_phases(frozen):
            return dict(listed)
        training = listed["training"]
        phases = Phases.model_validate_json(json.dumps({"phases": training["phases"]}))
    except ValueError:
        return frozen
    return {**listed, "training": training | phases.model_dump(mode="json")}


def advise_phases(raw: JsonObject) -> str | None:
    """What to write in the place of keys of earlier releases; None where there are none."""
    notes = []
    if _has_predictions(raw):
        notes.append("targets.predictions: the next release will not know this key; leave it out")
    if _has_earlier_phases(raw):
        notes.append(_instead_of_keys(raw))
    return "\n".join(notes) or None


def _instead_of_keys(raw: JsonObject) -> str:
    names = [f"training.{name}" for name in KEYS if name in raw["training"]]
    lines = [f"  - {_flow(phase)}" for phase in with_phases(raw)["training"]["phases"]]
    return "\n".join(
        [
            f"{', '.join(names)}: the next release will not know these keys. In their place "
            "write, in the section training:",
            "  phases:",
            *lines,
        ]
    )


def _flow(phase: Mapping[str, Any]) -> str:
    text: str = yaml.safe_dump(
        dict(phase), default_flow_style=True, sort_keys=False, width=float("inf")
    )
    return text.strip()


def phases_of(given: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The phases that keys of earlier releases say.

    Raises ValueError where they say something of a phase that there is not, or more samples than
    `num_samples`.
    """
    total, at_end = _count(given, "num_samples"), _count(given, "rollout_samples")
    if given.get("num_samples") is None:
        raise ValueError(
            f"training.phases is missing, and training.{next(iter(given))} is a key of an earlier "
            "release: write phases"
        )
    if given.get("targets", "stored") not in ("stored", "online"):
        raise ValueError(f"training.targets is {given['targets']!r}: write training.phases")
    later = list(_later(given, total - at_end))
    left = total - sum(phase["samples"] * phase.get("count", 1) for phase in later)
    if left < 0:
        raise ValueError(
            f"training.num_samples is {total}, and rounds, a finish and rollouts are {total - left}"
            " samples: raise num_samples, or lower theirs"
        )
    refuse(_on_unused(given))
    return [{"learn": "stored", "samples": left}] * (left > 0) + later


def _later(given: Mapping[str, Any], before_rollouts: int) -> Iterator[dict[str, Any]]:
    """What follows the stored trajectories."""
    for name in ("rounds", "adversarial"):
        if given.get(name) is not None:
            yield {"learn": name, **_section(given, name)}
    if given.get("targets") == "online":
        online = {new: given[it] for it, new in OF_ONLINE.items() if given.get(it) is not None}
        _count(given, "finish_samples")
        yield {"learn": "online", "samples": before_rollouts, **online}
    if given.get("rollout_samples"):
        weight = given.get("perceptual_weight", 0)
        yield {"learn": "rollouts", "samples": given["rollout_samples"]} | (
            {"perceptual_weight": weight} if weight else {}
        )


def _section(given: Mapping[str, Any], name: str) -> dict[str, Any]:
    """The keys of one that a phase takes as they are."""
    section = given[name]
    if not isinstance(section, Mapping):
        raise ValueError(f"training.{name} is {section!r}: write training.phases")
    for key in ("samples", "count"):
        if key in section or key == "samples":
            _count(section, key, f"{name}.")
    return dict(section)


def _count(section: Mapping[str, Any], key: str, before: str = "") -> int:
    """A number of samples; 0 where none is given."""
    value = section.get(key)
    if value is None and not before:
        return 0
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise ValueError(f"training.{before}{key} is {value!r}: give a whole number")
    return value


def _on_unused(given: Mapping[str, Any]) -> Iterator[Note]:
    """Settings of a phase that there is not."""
    is_there = {
        "targets: online": given.get("targets") == "online",
        "rollout_samples": bool(given.get("rollout_samples")),
    }
    for name, needed in NEEDS.items():
        if given.get(name) not in (None, 0) and not is_there[needed]:
            yield error(
                f"training.{name} is set without training.{needed}",
                ": it says something of a phase that there is not",
                "leave it out, or write training.phases",
            )
