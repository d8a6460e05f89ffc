"""Configurations and quality.json of a run whose numbers a test chooses."""

from distillery.config.run import parse_config
from training_phases import phases

CALLS = {"teacher": 48, "few": 8, "unguided": 4, "fewer": 2, "student": 4, "untrained": 4}
CLIP = dict(zip(CALLS, (0.9, 0.3, 0.88, 0.5, 0.9, 0.8), strict=True))
MODELS = {
    "teacher": {"source": "teacher"},
    "few": {"source": "teacher", "steps": 4},
    "unguided": {"source": "teacher", "steps": 4, "guidance_scale": 1.0},
    "fewer": {"source": "teacher", "steps": 1},
    "student": {"source": "student"},
    "untrained": {"source": "untrained"},
}


def interval(mean, reach=0.01):
    return {"mean": mean, "low": mean - reach, "high": mean + reach}


def quality_with(ratio, clip, latents, psnr, reach=0.01, models=MODELS):
    """quality.json with these numbers of the student against all other models."""
    against = {
        "clip_score_ratio": interval(ratio, reach),
        "clip_score_difference": interval(clip, reach),
        "latents_mse_difference": interval(latents, reach),
        "psnr_db_difference": interval(psnr, reach),
    }
    return {
        "models": {
            name: {
                "network_calls": CALLS[name],
                "clip_score": interval(CLIP[name]),
                "against": {other: against for other in models if other != name},
            }
            for name in models
        }
    }


def make_config(**changes):
    raw = {
        "run": "tiny",
        "prompts": {"train": "train.csv", "eval": "eval.csv"},
        "teacher": {"path": "resources/demo/teacher", "height": 48, "width": 48},
        "targets": {"steps": 24, "guidance_scale": 4.0},
        "student": {"steps": 4},
        "training": {"phases": phases(stored=1024), "global_batch_size": 32},
        "samples": {
            "models": {
                "teacher": {"source": "teacher"},
                "few": {"source": "teacher", "steps": 4},
                "student": {"source": "student"},
                "untrained": {"source": "untrained"},
            }
        },
        "evaluation": {"judge": "judge", "reference": "teacher"},
    }
    return parse_config(raw | changes, "test")
