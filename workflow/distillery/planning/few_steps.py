"""A teacher that is a few-step student itself: how it is to be called, and calls that differ."""

import re
from collections.abc import Iterator
from dataclasses import dataclass

from distillery.config.run import RunConfig
from distillery.config.sampling import teachers_calls
from distillery.config.teacher import Teacher
from distillery.files import read_json
from distillery.model_folder import METADATA
from distillery.notes import Note, doubt
from distillery.teacher.folder import PipelineFolder

CONSISTENCY = ("LCMScheduler", "FlowMatchLCMScheduler", "TCDScheduler")
"""Schedulers that draw new noise at each step, made for students of few steps alone."""
NAMES = re.compile(
    r"(?:^|[^a-z])(turbo|lightning|hyper-?sdx?l?|lcm|dmd2?|schnell|flash|sprint)(?:[^a-z]|$)", re.I
)
"""What the authors of few-step students call them."""
MOST = 8
"""Steps of those that do not say their number."""


@dataclass(frozen=True)
class Made:
    """How a few-step student is to be called.

    Attributes:
        why: it is taken for one.
        steps: fewest and most.
        guidance: of its call; 1.0 is off.
    """

    why: str
    steps: tuple[int, int]
    guidance: float = 1.0

    @property
    def words(self) -> str:
        """The steps and the guidance for people."""
        first, last = self.steps
        steps = f"{last} steps" if first == last else f"{first} to {last} steps"
        off = ", which is off" if self.guidance == 1.0 else ""
        return f"{steps} and guidance {self.guidance:g}{off} ({self.why})"

    def differs(self, steps: int, guidance: float) -> bool:
        """Whether a call is another one."""
        return not self.steps[0] <= steps <= self.steps[1] or guidance != self.guidance


def find_made(teacher: Teacher, folder: PipelineFolder) -> Made | None:
    """What a teacher's folder and its names say of a student of few steps; None: nothing."""
    own = _own_student(folder)
    if own is not None:
        return own
    by_input = folder.family.has_guidance_embedding(folder.denoiser_config)
    # The folder's own: teacher.scheduler makes no other network of it.
    config = read_json(folder.path / "scheduler" / "scheduler_config.json")
    scheduler = str(folder.index["scheduler"][1])
    for name in (scheduler, str(config.get("_class_name")), (teacher.scheduler or {}).get("class")):
        if name in CONSISTENCY:
            return Made(f"its scheduler is {name}", (1, MOST))
    if folder.index.get("is_distilled"):
        return Made("its model_index.json has is_distilled", (1, MOST))
    if scheduler.startswith("EulerAncestral") and config.get("timestep_spacing") == "trailing":
        return Made("its scheduler is that of SDXL-Turbo", (1, 4))
    is_shifted = config.get("use_dynamic_shifting") or config.get("shift", 1.0) != 1.0
    could_take_it = folder.denoiser_config.get("guidance_embeds") is False
    if could_take_it and scheduler.startswith("FlowMatch") and not is_shifted:
        return Made("its network and scheduler are those of FLUX.1-schnell", (1, 4))
    names = [teacher.path, str(folder.index.get("_name_or_path", ""))]
    names += [f"{it.path}/{it.weight_name or ''}" for it in teacher.adapters if it.scale]
    marks = [match[1] for name in names if (match := NAMES.search(name.rstrip("/")))]
    return Made(f"a name has {marks[0]!r}", (1, MOST)) if marks and not by_input else None


def _own_student(folder: PipelineFolder) -> Made | None:
    """What Distillery has written beside a student's pipeline."""
    try:
        arguments = read_json(folder.path / METADATA)["call"]["arguments"]
        steps = int(arguments["num_inference_steps"])
        # A call that takes no scale has none.
        guidance = float(arguments.get(folder.family.guidance_argument, folder.family.no_guidance))
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return Made(f"as its {METADATA} says", (steps, steps), guidance)


def on_few_steps(config: RunConfig, folder: PipelineFolder) -> Iterator[Note]:
    """Calls of a few-step student that it was not made for."""
    made = find_made(config.teacher, folder)
    if made is None:
        return
    calls = [
        f"{key} has {steps} steps and guidance {guidance:g}"
        for key, (steps, guidance) in teachers_calls(config).items()
        if made.differs(steps, guidance)
    ]
    if calls:
        yield doubt(
            "the teacher",
            f" is a few-step student, to be used with {made.words}, and its images are worse "
            f"otherwise: {'; '.join(calls)}",
            "set these, or use the model that it was distilled from",
        )
