"""Every adapter against a trace of the same folder: what each makes, and what it costs.

    PYTHONPATH=workflow:tests python benchmarks/adapters_and_traces.py --output FILE.json [CASE ...]

The teachers are the tiny ones of `tests/families/`, in each type of `teacher.dtype`. Both families
are loaded as the stages load them and are given the same prompts, encoded one by one, and seeds:

texts         the stored texts, where both store tensors of equal names and shapes; else None
guided        ends of trajectories (states in float32) and images (in the teacher's type) of guided
              calls, and
unguided      the same without guidance
float32       what the network is given by `predict`, and gives, with weights in float32, and
autocast      the same in autocast to bfloat16, as `training.dtype: bfloat16` computes it

Beside that: the bytes of a stored prompt, the processor seconds of a trace as multiples of the
adapter's, and those of learning it; of encoding, the adapter's is of all prompts in one call.
A difference is the largest, relative to the largest number, and of images in levels of 255; 0.0 is
equality of all values. What was measured before is kept, so that a walk can go on. FILE.md has the
table of all, and counts the adapters' lines by what a trace would replace and what it cannot tell.
"""

import argparse
import ast
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from distillery import families as adapters
from distillery.config.jobs import TargetsJob
from distillery.config.teacher import Teacher
from distillery.families import Conditioning, Family, Request
from distillery.families.recording import NetworkCall, dotted, leaves, watched
from distillery.families.text import on
from distillery.files import read_json, write_json, write_text
from distillery.generation.trajectory import record
from distillery.hardware import describe_hardware, versions
from distillery.images import as_bytes
from distillery.teacher.folder import find_teacher
from distillery.teacher.loading import load_exact_teacher, load_teacher, torch_dtype
from families import CASES
from families.case import FamilyCase
from runs import CPU, family_run

DTYPES = ("float32", "bfloat16", "float16")
PROMPTS = ("a red dog", "the bird", "a blue cat on the hill", "a house")
SEEDS = range(len(PROMPTS))
ASKED = {"use_resolution_binning": False, "clean_caption": False}
"""Without which pipelines of masked prompts make other sizes and texts."""
TRUE_OFF: Mapping[str, Any] = {"unguided": {"true_cfg_scale": 1.0}}
TRACES: Mapping[str, Mapping[str, Any]] = {
    "pixart": {"unguided": {"guidance_scale": 1.0}, "always": ASKED},
    "sana": {"unguided": {"guidance_scale": 1.0}, "always": ASKED},
    "flux-dev": {"unguided": {}},
    "flux-schnell": TRUE_OFF,
    "flux-true-guidance": TRUE_OFF,
    "qwen-image": TRUE_OFF,
}
"""`teacher.trace` by case, where it is not that guidance_scale 1.0 switches guidance off."""
FILES = (
    *("wan", "sd", "sdxl", "pixart", "sana", "sd3", "flux", "qwen_image"),
    *("pooled", "masked", "image_tokens"),
)
"""The adapters, and what some of them share."""
LEARNT = {
    *("encode", "encode_negative", "encode_no_negative", "pad", "stored_tokens", "with_pooled"),
    *("unmasked", "pad_and_mask", "instruction", "_encode", "_tell_width", "CLIP_TOKENS"),
    *("call_arguments", "call_options", "AS_ASKED", "images", "image", "clip"),
    *("predict", "_positions", "network_timestep", "token_grid", "stock_timestep", "TIMESTEPS"),
    *("set_timesteps", "image_shift", "has_guidance_embedding", "is_flow", "starts_in_float32"),
    *("guidance_argument", "denoisers", "text_components", "max_sequence_length"),
}
"""Names in these files for what a trace learns of its calls, or is told by `teacher.trace`; the
others are what its calls do not tell."""


@dataclass
class Made:
    """What one family makes of a teacher, and processor seconds by part."""

    texts: list[Mapping[str, torch.Tensor]]
    ends: dict[str, torch.Tensor]
    images: dict[str, torch.Tensor]
    calls: dict[str, NetworkCall]
    predictions: dict[str, torch.Tensor]
    seconds: dict[str, float]

    @property
    def bytes_per_prompt(self) -> int:
        """The mean of what is stored."""
        sizes = [sum(part.nbytes for part in text.values()) for text in self.texts]
        return round(sum(sizes) / len(sizes))


def main() -> None:
    """Measure the cases that are named, or all, and write after each."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("cases", nargs="*", metavar="CASE")
    parser.add_argument("--output", type=Path, required=True)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    known = read_json(arguments.output)["cases"] if arguments.output.is_file() else {}
    cases = {f"{case.name} {dtype}": (case, dtype) for case in CASES for dtype in DTYPES}
    chosen = [
        name
        for name, (case, _) in cases.items()
        if (case.name in arguments.cases if arguments.cases else name not in known)
    ]
    for name in chosen:
        with tempfile.TemporaryDirectory() as folder:
            known[name] = measured(*cases[name], Path(folder).resolve())
        sys.stderr.write(f"{name} {known[name]}\n")
        about = {"hardware": describe_hardware(), "versions": versions()}
        write(arguments.output, {"cases": known, "lines": lines(), **about})


# ---- measuring -----------------------------------------------------------------------------------


def measured(case: FamilyCase, dtype: str, folder: Path) -> dict[str, Any]:
    """How far a trace is from the adapter, or what either raised."""
    case.make(folder / "teacher")
    trace = {"unguided": {"guidance_scale": 1.0}, **TRACES.get(case.name, {})}
    given = {"dtype": dtype}
    if case.no_negative is not None:  # without it the stock call would not guide
        given["negative_prompt"] = case.no_negative
    try:
        adapter = made(case, teacher_of(case, folder / "adapter", given)[0])
    except (RuntimeError, ValueError) as error:
        return {"adapter": first_line(error)}
    try:
        teacher, seconds = teacher_of(case, folder / "trace", {**given, "trace": trace})
        traced = made(case, teacher)
    except (RuntimeError, ValueError) as error:
        return {"trace": first_line(error)}
    return compared(adapter, traced, case.masks) | {
        "bytes per prompt": [adapter.bytes_per_prompt, traced.bytes_per_prompt],
        "learning s": round(seconds, 1),
        "encoding, times": ratio(traced, adapter, "encoding"),
        "calls, times": ratio(traced, adapter, "calls"),
        "predict, times": ratio(traced, adapter, "predict"),
    }


def first_line(error: Exception) -> str:
    """What an error says, in one line without the folder."""
    return f"{type(error).__name__}: {str(error).splitlines()[0]}"


def teacher_of(case: FamilyCase, folder: Path, given: Mapping[str, Any]) -> tuple[Teacher, float]:
    """The section `teacher`, with what is learnt where it is traced, and the seconds of that."""
    run = family_run(case, folder, folder.parent / "teacher", teacher=dict(given))
    begin = time.process_time()
    if "trace" in given:
        run.sign()
    seconds = time.process_time() - begin
    teacher: Teacher = run.job("targets", TargetsJob).teacher
    return teacher, seconds


@torch.no_grad()
def made(case: FamilyCase, teacher: Teacher) -> Made:
    """All that is compared, by the family of a teacher."""
    folder, length = find_teacher(teacher), case.length
    family, exact = folder.family, load_exact_teacher(teacher, folder, CPU)
    stock = load_teacher(teacher, folder, CPU)
    spent = dict.fromkeys(("encoding", "calls", "predict"), 0.0)

    def timed(part: str, call: Callable[[], Any]) -> Any:
        begin = time.process_time()
        result = call()
        spent[part] += time.process_time() - begin
        return result

    timed("encoding", lambda: family.encode(stock, PROMPTS, length))
    texts = [family.encode(stock, [prompt], length)[0] for prompt in PROMPTS]
    negative = family.encode_negative(stock, teacher.negative_prompt, length)
    prompts = family.pad(texts, length)
    negatives = family.pad([negative] * len(PROMPTS), length)
    result = Made(texts, {}, {}, {}, {}, spent)
    for name, setting in (("guided", case.setting), ("unguided", case.setting.unguided)):
        request = Request(
            SEEDS, prompts, negatives, case.steps, setting, decode=False, dtype=torch.float32
        )
        with record(exact.scheduler, [case.steps]) as trajectory:
            timed("calls", partial(family.generate, exact, request))
        result.ends[name] = trajectory.states[case.steps]
        drawn = replace(request, decode=True, dtype=torch_dtype(teacher.dtype))
        result.images[name] = as_bytes(timed("calls", partial(family.generate, stock, drawn)))
    timesteps = [it.item() for it in exact.scheduler.timesteps]
    shape = result.ends["unguided"].shape
    predict(case, family, stock, timesteps, shape, prompts, result)
    return result


def predict(
    case: FamilyCase,
    family: Family,
    pipeline: Any,
    timesteps: Sequence[float],
    shape: torch.Size,
    prompts: Conditioning,
    result: Made,
) -> None:
    """Ask the network as a training does, at several steps; of two networks the last one's."""
    name = case.denoiser_at(timesteps[-1])
    steps = [it for it in timesteps if case.denoiser_at(it) == name]
    chosen = torch.tensor([steps[row % len(steps)] for row in SEEDS])
    noisy = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    network = getattr(pipeline, name)
    is_told = family.has_guidance_embedding(network.config)
    setting = case.setting if is_told else case.setting.unguided
    network.float()
    for kind, dtype in (("float32", torch.float32), ("autocast", torch.bfloat16)):
        calls: list[NetworkCall] = []
        begin = time.process_time()
        with (
            watched(name, network, calls),
            torch.autocast("cpu", dtype, enabled=dtype != torch.float32),
        ):
            given = on(prompts, CPU, dtype)
            found = family.predict(network, noisy, chosen, given, setting)
        result.seconds["predict"] += time.process_time() - begin
        result.predictions[kind], result.calls[kind] = found, calls[0]


def compared(adapter: Made, traced: Made, masks: Mapping[str, str]) -> dict[str, Any]:
    """The largest differences by what was made."""
    found: dict[str, Any] = {"texts": texts_differ(adapter.texts, traced.texts)}
    for name in adapter.ends:
        levels = adapter.images[name].int() - traced.images[name].int()
        found[f"{name} trajectories"] = distance(adapter.ends[name], traced.ends[name])
        found[f"{name} images"] = int(levels.abs().max())
    for kind, call in adapter.calls.items():
        found[f"{kind} inputs"] = inputs_differ(call, traced.calls[kind], masks)
        found[f"{kind} predictions"] = distance(adapter.predictions[kind], traced.predictions[kind])
    return found


def texts_differ(ours: Sequence[Mapping[str, Any]], theirs: Sequence[Any]) -> float | None:
    """Between stored texts, in the order of their parts; None where their shapes differ."""
    pairs = [
        (list(one.values()), list(other.values())) for one, other in zip(ours, theirs, strict=True)
    ]
    if any([it.numel() for it in one] != [it.numel() for it in other] for one, other in pairs):
        return None
    return max(
        distance(part.reshape(-1), again.reshape(-1))
        for one, other in pairs
        for part, again in zip(one, other, strict=True)
    )


def inputs_differ(
    ours: NetworkCall, theirs: NetworkCall, masks: Mapping[str, str]
) -> dict[str, list[Any]]:
    """The network's arguments that differ: both types, and how far the numbers are apart. Masked
    tokens do not count, nor what is no tensor."""
    sides = [leaves(hidden(call.arguments, masks)) for call in (ours, theirs)]
    tensors = [
        {place: leaf for place, leaf in side.items() if isinstance(leaf, torch.Tensor)}
        for side in sides
    ]
    if tensors[0].keys() != tensors[1].keys():
        raise ValueError(f"other arguments: {tensors[0].keys() ^ tensors[1].keys()}")
    found = {}
    for place, one in tensors[0].items():
        other = tensors[1][place]
        off = distance(one, other)
        if off or one.dtype != other.dtype:
            types = [str(it.dtype).removeprefix("torch.") for it in (one, other)]
            found[dotted(place)] = [*types, off]
    return found


def hidden(arguments: Mapping[str, Any], masks: Mapping[str, str]) -> dict[str, Any]:
    """Zeros at masked tokens."""
    shut = {
        name: arguments[name].masked_fill(arguments[mask][..., None] == 0, 0)
        for name, mask in masks.items()
    }
    return {**arguments, **shut}


def distance(one: torch.Tensor, other: torch.Tensor) -> float:
    """The largest difference relative to the largest number; 0.0 only for equal values."""
    largest = float(one.abs().max()) or 1.0
    return float((one.double() - other.double()).abs().max()) / largest


def ratio(traced: Made, adapter: Made, part: str) -> float:
    """Of processor seconds."""
    return round(traced.seconds[part] / max(adapter.seconds[part], 1e-9), 2)


# ---- the tables ----------------------------------------------------------------------------------


def lines() -> dict[str, dict[str, int]]:
    """Lines of each file by what a trace would replace, what its calls do not tell, and the rest:
    imports, blank lines, what a class or file says of itself."""
    found = {}
    for name in FILES:
        text = Path(adapters.__file__).with_name(f"{name}.py").read_text(encoding="utf-8")
        count = {"learnt": 0, "hints": 0}
        body = ast.parse(text).body
        inner = [it for node in body if isinstance(node, ast.ClassDef) for it in node.body]
        for node in (it for it in [*body, *inner] if own_name(it)):
            decorators = getattr(node, "decorator_list", [])
            first = min(it.lineno for it in [node, *decorators])
            kind = "learnt" if own_name(node) in LEARNT else "hints"
            count[kind] += (node.end_lineno or first) - first + 1
        found[name] = count | {"rest": len(text.splitlines()) - sum(count.values())}
    return found


def own_name(node: ast.stmt) -> str:
    """Of a function or an assigned name; "" for anything else."""
    if isinstance(node, ast.FunctionDef):
        return node.name
    target = node.targets[0] if isinstance(node, ast.Assign) else getattr(node, "target", None)
    return target.id if isinstance(target, ast.Name) else ""


def write(output: Path, found: Mapping[str, Any]) -> None:
    """All that was found, and its tables."""
    write_json(output, found)
    write_text(output.with_suffix(".md"), page(output.name, found))


def page(name: str, found: Mapping[str, Any]) -> str:
    """Both tables as Markdown."""
    learnt = [it for it in found["cases"].values() if "texts" in it]
    equal = {
        part: sum(not any(it[name] for name in it if name.endswith(part)) for it in learnt)
        for part in ("trajectories", "images", "float32 predictions", "autocast predictions")
    }
    counted = ", ".join(f"{part} in {number}" for part, number in equal.items())
    tools = ", ".join(f"{tool} {version}" for tool, version in found["versions"].items())
    rows = [line(case, each) for case, each in sorted(found["cases"].items())]
    files = [
        f"| `{file}.py` | {count['learnt']} | {count['hints']} | {count['rest']} |"
        for file, count in sorted(found["lines"].items())
    ]
    total = [
        sum(it[kind] for it in found["lines"].values()) for kind in ("learnt", "hints", "rest")
    ]
    return "\n".join([
        "# Adapters and traces of the same folders, one thread of a CPU", "",
        "`benchmarks/adapters_and_traces.py`, which says what each column is, with tiny teachers",
        f"of random weights. {name} holds every digit.", "", f"{tools}.", "",
        "`=` is equality of all values; else the largest difference, relative to the largest",
        "number, and of images in levels of 255. Inputs that are 'in float32' have equal values,",
        "and the adapter's are in bfloat16. Times are those of the trace divided by the adapter's.",
        "",
        f"{len(learnt)} of {len(found['cases'])} cases can be traced. Equal are {counted}.", "",
        "| case | texts | trajectories, guided / unguided | images | float32: inputs, prediction |"
        " autocast: inputs, prediction | bytes per prompt, adapter / trace | times: encoding,"
        " calls, predict | learning, s |",
        "|---|---|---|---|---|---|---|---|---|",
        *rows, "", "## Lines", "",
        "| file | a trace would replace | its calls do not tell | imports and the like |",
        "|---|---|---|---|",
        *files, f"| together | {total[0]} | {total[1]} | {total[2]} |", "",
    ])  # fmt: skip


def line(case: str, found: Mapping[str, Any]) -> str:
    """A row."""
    for side in ("adapter", "trace"):
        if side in found:
            reason = found[side].rpartition("needs): ")[2]
            return f"| {case} | {side} refused: {reason} | | | | | | | |"
    texts = found["texts"]
    cells = [
        case,
        "other shapes" if texts is None else sign(texts),
        " / ".join(sign(found[f"{it} trajectories"]) for it in ("guided", "unguided")),
        " / ".join(sign(found[f"{it} images"]) for it in ("guided", "unguided")),
        *(
            f"{inputs(found[f'{it} inputs'])}, {sign(found[f'{it} predictions'])}"
            for it in ("float32", "autocast")
        ),
        " / ".join(f"{it:,}" for it in found["bytes per prompt"]),
        ", ".join(f"{found[f'{it}, times']:.1f}" for it in ("encoding", "calls", "predict")),
        f"{found['learning s']:.0f}",
    ]
    return "| " + " | ".join(cells) + " |"


def inputs(found: Mapping[str, Sequence[Any]]) -> str:
    """The arguments whose numbers differ, and how many have the same in another type."""
    far = [f"{name} {sign(off)}" for name, (_, _, off) in found.items() if off]
    typed = len(found) - len(far)
    return "; ".join(far + [f"{typed} in float32"] * bool(typed)) or "="


def sign(off: float) -> str:
    """A difference."""
    return f"{off:.1g}" if off else "="


if __name__ == "__main__":
    main()
