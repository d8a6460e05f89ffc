"""One valid configuration, and others that differ from it."""

import copy
from typing import Any

from training_phases import phases

RUN: dict[str, Any] = {
    "run": "test",
    "prompts": {"train": "train.csv", "eval": "eval.csv"},
    "teacher": {"path": "teacher", "height": 96, "width": 96},
    "targets": {"steps": 24, "guidance_scale": 4.0, "batch_size": 16},
    "training": {
        "phases": [*phases(stored=640)],
        "global_batch_size": 32,
        "log_every_samples": 320,
    },
    "samples": {
        "models": {
            "teacher": {"source": "teacher"},
            "teacher-4-steps": {"source": "teacher", "steps": 4},
            "student": {"source": "student"},
        }
    },
    "evaluation": {"judge": "judge"},
}


def changed(**changes: Any) -> dict[str, Any]:
    """A configuration with keys replaced; `targets__steps` is the key targets.steps."""
    raw = copy.deepcopy(RUN)
    for key, value in changes.items():
        *sections, last = key.split("__")
        section = raw
        for name in sections:
            section = section.setdefault(name, {})
        section[last] = value
    return raw
