"""Turn the flags of an older script, and a student_config.json, into a configuration.

python -m distillery.import_config --run mine --output config/mine.yaml -- \\
    --model_id stabilityai/stable-diffusion-xl-base-1.0 --prompts_file prompts.txt \\
    --num_inference_steps 30 --guidance_scale 5 --resolution 1024 --images_per_prompt 4

The old flags stand after `--`. With --student student_config.json the run trains a student, else it
only generates. A line about each flag says what became of it, then what is still missing.
"""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from distillery.cli import logged_parser
from distillery.config.run import parse_config
from distillery.files import read_json, write_text
from distillery.telemetry import explain_errors

DTYPES = {
    "fp16": "float16", "half": "float16", "bf16": "bfloat16", "fp32": "float32", "no": "float32",
}  # fmt: skip
TAKEN = {
    "prompts.eval": "prompts prompts_file prompt_file prompts_path prompts_csv",
    "teacher.path": "teacher teacher_path model model_id model_path pretrained_model_name_or_path",
    "teacher.revision": "revision",
    "teacher.variant": "variant",
    "teacher.dtype": "dtype torch_dtype mixed_precision",
    "teacher.height": "height resolution",
    "teacher.width": "width resolution",
    "teacher.negative_prompt": "negative_prompt",
    "samples.models.teacher.steps": "num_inference_steps num_steps steps",
    "samples.models.teacher.guidance_scale": "guidance_scale guidance",
    "samples.models.teacher.guidance_scale_2": "guidance_scale_2",
    "samples.images_per_prompt": "images_per_prompt num_images_per_prompt num_seeds",
    "samples.batch_size": "batch_size",
    "seed": "seed base_seed",
    "student.steps": "student_steps",
    "training.learning_rate": "learning_rate lr",
    "training.weight_decay": "weight_decay",
    "training.max_grad_norm": "max_grad_norm",
}
"""Our key, and the flags whose value it takes."""
IN_TRAINING = {
    "prompts.eval": "prompts.train",
    "samples.models.teacher.steps": "targets.steps",
    "samples.models.teacher.guidance_scale": "targets.guidance_scale",
    "samples.models.teacher.guidance_scale_2": "targets.guidance_scale_2",
}
"""Where a run that trains keeps what a generating run keeps elsewhere."""
SWITCHES = {
    "balance_teacher": ("teacher.num_gpus", 2),
    "teacher_on_cpu": ("teacher.offload", "model"),
    "enable_model_cpu_offload": ("teacher.offload", "model"),
    "enable_sequential_cpu_offload": ("teacher.offload", "sequential"),
}
"""The key and the value that a flag stands for where it is on."""
RESIDENCES = {
    "teacher_rank": "one_rank",
    "teacher_on_cpu": "cpu",
    "share_teacher": "shared",
}
"""Flags of a trainer that has its teacher beside the student, and our `teacher_residence`."""
BALANCED = (
    "left out: over the GPUs that train there is no room, each has a rank of its own; the targets "
    "are stored before the training, by a teacher over several GPUs"
)
REFUSED = {
    "teacher_rank": "no student is trained here: add --student student_config.json",
    "share_teacher": "each job loads a teacher of its own, and there is no training to share it",
    "gpu_ids": "a matter of the machine: CUDA_VISIBLE_DEVICES={value} snakemake ...",
    "max_workers": "a matter of the machine: snakemake --resources gpu={value} ...",
    "num_gpus": "found, not typed; fewer with snakemake --resources gpu={value} ...",
    "world_size": "found, not typed; fewer with snakemake --resources gpu={value} ...",
    "data_parallel": "each GPU gets jobs of its own instead, see docs/gpu-slots.md",
    "use_data_parallel": "each GPU gets jobs of its own instead, see docs/gpu-slots.md",
    "output_dir": "results go to results/RUN: link results/ to a larger disk if need be",
    "use_dora": "found in the adapter's file: list the file in teacher.adapters",
    "lora_path": "list it: teacher.adapters: [{{path: {value}}}]",
    "dora_path": "list it: teacher.adapters: [{{path: {value}}}]",
}
"""What has no key of ours, and the way that is right here."""
OWN_SHAPE = (
    "a shape of the student's own is a JSON file like config.json of the teacher's network: "
    "student.init: config and student.config: its path"
)
NUM_LAYERS = "write student.init: layers and student.num_layers: {value}"


@dataclass
class Imported:
    """A configuration in the making, and a line about each flag."""

    config: dict[str, Any] = field(default_factory=dict)
    lines: list[str] = field(default_factory=list)

    def put(self, flag: str, key: str, value: object) -> None:
        """Set our key, and say so."""
        *sections, last = key.split(".")
        inner = self.config
        for name in sections:
            inner = inner.setdefault(name, {})
        inner[last] = value
        self.lines.append(f"{flag} -> {key}: {value}")


def read_flags(words: Sequence[str]) -> dict[str, str]:
    """An old command line as flag to value: `--a 1`, `--a=1`, `--a 1 2` (as 1,2), `--a` (as true).

    Raises ValueError for a word that belongs to no flag.
    """
    flags: dict[str, list[str]] = {}
    name = None
    for word in words:
        if word.startswith("--"):
            name, is_given, value = word[2:].partition("=")
            name = name.replace("-", "_")
            flags[name] = [value] if is_given else []
        elif name is None:
            raise ValueError(f"{word!r} follows no flag: write --flag value")
        else:
            flags[name].append(word)
    return {name: ",".join(values) if values else "true" for name, values in flags.items()}


def import_run(run: str, flags: Mapping[str, Any], student: Mapping[str, Any] | None) -> Imported:
    """Turn old settings into a configuration; what it still lacks, `parse_config` will say.

    Args:
        run: name of the new run.
        flags: as from `read_flags`.
        student: a student_config.json; None for a run that only generates.
    """
    imported = Imported({"run": run})
    trains = student is not None
    for flag, value in flags.items():
        if not _import_flag(imported, flag, value, trains):
            imported.lines.append(f"{flag}: left out, not known here")
    for key, value in (student or {}).items():
        if not _import_flag(imported, key, value, trains):
            reason = NUM_LAYERS.format(value=value) if key == "num_layers" else OWN_SHAPE
            imported.lines.append(f"{key}: left out, {reason}")
    for model in ("teacher", "student") if trains else ("teacher",):
        imported.put("added", f"samples.models.{model}.source", model)
    return imported


def _import_flag(imported: Imported, flag: str, raw_value: Any, trains: bool) -> bool:
    """Take over one setting, or say why not; False for one that is not known."""
    value = _typed(raw_value)
    keys = [key for key, names in TAKEN.items() if flag in names.split()]
    for key in keys:
        known = DTYPES.get(str(value), value) if key == "teacher.dtype" else value
        imported.put(flag, IN_TRAINING.get(key, key) if trains else key, known)
    is_off = value is False and flag != "teacher_rank"
    if trains and flag in RESIDENCES and not is_off:
        _put_residence(imported, flag, value)
    elif flag in SWITCHES and value is not True:
        imported.lines.append(f"{flag}: left out, it is off")
    elif flag in SWITCHES:
        imported.put(flag, *SWITCHES[flag])
        if trains and flag == "balance_teacher":
            imported.lines.append(f"{flag} in the training: {BALANCED}")
    elif flag == "seeds":
        num_seeds = len(raw_value if isinstance(raw_value, list) else str(raw_value).split(","))
        imported.put(flag, "samples.images_per_prompt", num_seeds)
        imported.lines.append(f"{flag}: the seeds follow from `seed`; the tables list them")
    elif flag in REFUSED:
        imported.lines.append(f"{flag}: left out, {REFUSED[flag].format(value=raw_value)}")
    return bool(keys) or flag == "seeds" or flag in SWITCHES or flag in REFUSED


def _put_residence(imported: Imported, flag: str, value: Any) -> None:
    """Have the teacher beside the student, as the old trainer had."""
    imported.put(flag, "training.phases", [{"learn": "online"}])
    imported.put(flag, "training.teacher_residence", RESIDENCES[flag])
    if flag == "teacher_rank":
        imported.put(flag, "training.teacher_rank", value)
    imported.lines.append(
        f"{flag}: stored targets need no teacher beside the student, and are faster from the first "
        "epochs on: write {learn: stored, samples: ...} instead"
    )


def _typed(value: Any) -> Any:
    """A word of a command line as the number or truth value that it spells."""
    if not isinstance(value, str) or value.lower() in ("true", "false"):
        return value if not isinstance(value, str) else value.lower() == "true"
    for kind in (int, float):
        try:
            return kind(value)
        except ValueError:
            continue
    return value


def convert(run: str, words: list[str], student: Path | None, output: Path) -> None:
    """Write the configuration and print what became of each flag."""
    if output.exists():
        raise ValueError(f"{output} exists already: choose another name, or remove it first")
    imported = import_run(run, read_flags(words), read_json(student) if student else None)
    write_text(output, yaml.safe_dump(imported.config, sort_keys=False))
    print("\n".join(imported.lines), file=sys.stderr)
    try:
        parse_config(imported.config, str(output))
    except ValueError as error:
        print(f"\nstill to do: {error}", file=sys.stderr)
    else:
        print(f"\ncomplete: snakemake -n --configfile {output}", file=sys.stderr)


def main(argv: list[str] | None = None) -> int:
    """Import, write, say what is missing."""
    parser = logged_parser(__doc__)
    parser.add_argument("--run", required=True, help="name of the new run")
    parser.add_argument("--student", type=Path, help="a student_config.json")
    parser.add_argument("--output", type=Path, required=True, help="the YAML file to write")
    parser.add_argument("flags", nargs="*", help="the old command line, after `--`")
    arguments = parser.parse_args(argv)
    return explain_errors(
        lambda: convert(arguments.run, arguments.flags, arguments.student, arguments.output),
        arguments.log,
    )


if __name__ == "__main__":
    raise SystemExit(main())
