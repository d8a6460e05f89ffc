"""Write docs/families.md: what a trace learns of each class of Diffusers that makes images of text.

python tools/classes.py           writes the page; two minutes
python tools/classes.py --check   writes nothing; exit status 1 if the page is out of date

Each class is a tiny pipeline with random weights, from tests/traced/.
"""

import argparse
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[1]
for part in ("tests", "workflow"):
    if str(ROOT / part) not in sys.path:
        sys.path.append(str(ROOT / part))

import torch

from distillery.families.learning import BEGUN, STORED
from distillery.families.proofs import CLAIMS
from distillery.families.recording import Place, dotted
from distillery.families.tracing import Exit, Signature
from distillery.files import read_json, write_text
from traced import ROWS, UNTRIED
from traced.teachers import NEEDED
from traced.walk import verdict

PAGE = ROOT / "docs/families.md"
RUNS = ROOT / "benchmarks/class_runs_cpu_2026-11-26.json"
TRACES = ROOT / "benchmarks/adapters_and_traces_cpu_2026-11-26.json"
OPENING = """# Pipelines that can be traced

A teacher whose class has no adapter is learnt from its pipeline's own calls, where `teacher.trace`
asks for it ([teachers.md](teachers.md#a-pipeline-without-an-adapter)): two unguided calls, one of
two prompts and one of one, with the network and the scheduler's `step` watched
(`families/tracing.py`), and calls that stop before the network, of other prompts
(`families/encodings.py`). Then it is proved on the pipeline itself what was learnt
(`families/proofs.py`, `families/learning.py`).

A trace learns

- which argument of the network is the scheduler's state, and in which form (*state*);
- what becomes of the network's output before the scheduler gets it (*prediction*);
- which arguments change with the step, and which with the prompt;
- what `encode_prompt` is asked and gives, which of it is the prompt's and which the negative
  prompt's, and which of it becomes an argument of the network;
- the timesteps of each number of steps, and the network's calls in a step;
- how noise becomes a state, and a state what the VAE decodes: both put numbers elsewhere, scale and
  shift them in each of the 26 classes that were looked at, and few runs need to know it.

A trace cannot know

- other sizes or numbers of frames than those of its calls;
- how long a prompt may be;
- how the guided call guides, and it need not: the teacher's trajectories come from that call;
- what a pipeline would do with adapters or callbacks, which its calls do not give, nor with images,
  unless `teacher.trace.image` names the argument that takes one.

Each class here is a tiny pipeline of the real Diffusers classes with random weights
(`tests/traced/`); a released model may have options that its class does not show here. The eight
families that have an adapter are held against their traces by their tests, but for Qwen-Image,
which is refused ([what an adapter knows more](#adapters-and-their-traces)).
`python tools/classes.py` writes this page.

## What is proved

A class passes if all of it holds.

| claim | if it does not hold |
|---|---|
"""
LEARNT = """
## Classes

The number by which a scheduler scales the state is learnt, too, and not told here.
`HunyuanImagePipeline`, `HunyuanVideo15Pipeline` and `MotifVideoPipeline` guide by a component,
which is off here in all calls. `AllegroPipeline` and `HunyuanDiTPipeline` are released with a
scheduler that draws noise, and have another one here, as `teacher.scheduler` would give them.

| class | verdict | state | prediction | follows the step | follows the prompt |
|---|---|---|---|---|---|
"""
WHOLE = """
## How each is called, and a whole run

What `teacher.trace` has for the classes that pass, and what else the section `teacher` needs, here
and as a rule for a released model. Each tiny pipeline was planned, learnt, distilled and drawn with
(`benchmarks/class_runs.py`): the ends of its trajectories, relative to their largest number, and
the pixels of the teacher's and the student's images, of 255, differ by this much from those of the
stock calls of its folder and of the student's.

That is in float32. In bfloat16, beside a VAE in float32, the first 14 of these classes were walked,
to `HunyuanImagePipeline`. The images of both are the stock calls' to the last bit. Trajectories,
whose states stay in float32, end 0.5 to 3.6 % away from the stock calls', which round theirs
([figures](../benchmarks/class_runs_bfloat16_cpu_2026-11-26.json)).

| class | `teacher.trace` | further settings | trajectories | images of both |
|---|---|---|---|---|
"""
UNMADE = """
## Classes without a tiny pipeline

| class | why |
|---|---|
"""
ADAPTERS = """
## Adapters and their traces

Could an adapter be a few hints over a trace? `benchmarks/adapters_and_traces.py` makes the same
trajectories, images and predictions by each adapter and by a trace of the same folder, with the
tiny teachers of `tests/families/` in float32, bfloat16 and float16
([every figure](../benchmarks/adapters_and_traces_cpu_2026-11-26.md)). What can be traced has the
adapter's trajectories in every type, guided and unguided, value for value, but where a second
network has a guidance scale of its own. With teacher and training in one type, float32 or bfloat16,
predictions are equal, too. Of an adapter's lines a trace would replace some; others say what it
cannot tell.

| family | lines replaced | lines kept | a trace makes otherwise | the adapter alone knows |
|---|---|---|---|---|
"""
FAMILIES: Mapping[str, tuple[str, str, str]] = {
    "wan": (
        "Wan",
        "three times the bytes of a prompt, at 12 tokens; `guidance_scale_2` is not known",
        "texts without their padding, two networks, any-step students, sizes and frames that fit, "
        "what embeds the time",
    ),
    "sd": (
        "Stable Diffusion 1.5 and 2.1",
        "",
        "that the safety checker is left out, a `steps_offset` that the pipeline changes when it "
        "is loaded, that a UNet is compiled whole, what embeds the time",
    ),
    "sdxl": (
        "SDXL",
        "images of teachers in 16 bits, by up to 2 of 255",
        "as above, and the image's size as an input, for several sizes",
    ),
    "pixart": (
        "PixArt-Σ",
        "three times the bytes of a prompt, at 12 tokens",
        "texts without what the mask hides, sizes that fit, what embeds the time",
    ),
    "sana": (
        "Sana",
        "four times the bytes of a prompt, at 40 tokens",
        "as PixArt-Σ, and the instruction's part in a prompt's limit",
    ),
    "sd3": (
        "SD3",
        "",
        "the largest size, a last block that must stay, blocks that attend twice, what embeds the "
        "time",
    ),
    "flux": (
        "FLUX.1",
        "times, where training and teacher have different types",
        "latents unpacked, an empty negative prompt for a call that would not "
        "guide without one, what embeds the time",
    ),
    "qwen_image": (
        "Qwen-Image",
        "not traced: its network gets a mask only where a batch has padding",
        "as FLUX.1, and texts without what the mask hides",
    ),
}
"""By the file of the adapter: the family, and two cells."""
SHARED = ("pooled", "masked", "image_tokens")
DIFFERENCES = """
- **Where a start is rounded.** A trace lets the call draw its first state in float32 and rounds
  that; an adapter gives it rounded noise, which SDXL's call multiplies by the first noise level
  then. Trajectories have their states in float32, so they are equal, and images are not.
- **Which numbers a training rounds.** A trace has states and times in the teacher's type, whatever
  the training's; an adapter has them in the training's. Where the two types differ, so do
  predictions: by 0.4 % at most in float32, 1.6 % in bfloat16 of a teacher in float16, and up to 4 %
  for FLUX, whose network is told rounded times. Which makes the better student was not measured.
- **What is stored.** A trace keeps all that `encode_prompt` gives, padding and masked tokens too,
  and asks it prompt by prompt, which takes several times as long as four in one call. Calls and
  predictions took as long as the adapter's, within what one run of tiny networks can tell.
- **What no trace has**: several sizes, students of time embeddings alone, two networks, limits of
  prompts before they are encoded, the keys of a configuration that a student of another shape must
  share, and a plan before the first job, which loads text encoders and network together. LoRAs,
  fewer blocks, offloading, rounds, the phase `online` and a perceptual loss need no adapter.

So no adapter can go yet. {learnt} of their {total} lines would be replaced; {hints} would stay as
hints, and the rest are imports and the like, of which a part would go. SD is nearest, with equal
texts. What is missing is the same for all: a trace of each size, texts cut where zeros or a mask
begin, and for Qwen-Image a missing mask read as one of ones. All traced classes would gain by
these, so they come before any adapter's end.

## Left out

- **One prompt a call.** CogView4, Kandinsky 3 and 5 and Qwen-Image 2.1 make another prompt of one
  that is among others. Calls and forward
  passes of one prompt each would serve CogView4, Qwen-Image 2.1 and HiDream, but not Kandinsky:
  3 cuts the negative prompt to the prompt's length, and 5 makes the prompt's positions itself.
  CogView4 would gain nothing: its call spaces few steps otherwise than many (two: 1000 and 1; four:
  1000, 667, 334 and 1), so a student's steps do not lie on the teacher's.
- **Latte** can be traced with `always: {{mask_feature: false}}`, with which it attends to padding;
  its frames have a name that a trace does not know, so no run of it came to an end.
- **Qwen-Image-Edit.** Its text encoder reads the image, so the negative prompt has an encoding for
  each image, too, where one is stored for all.
"""


def main(argv: list[str] | None = None) -> int:
    """Trace all classes, then write or compare."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--check", action="store_true", help="compare, write nothing")
    arguments = parser.parse_args(argv)
    torch.set_num_threads(1)
    text = page([line_of(name) for name in ROWS])
    if arguments.check:
        return int(PAGE.read_text(encoding="utf-8") != text)
    write_text(PAGE, text)
    return 0


def page(lines: list[str]) -> str:
    """The page with these lines of its table."""
    claims = [
        f"| {claim} | {meaning} |"
        for claim, meaning in (
            BEGUN,
            *((claim, meaning) for _, claim, _, meaning in CLAIMS),
            *STORED,
        )
    ]
    runs = read_json(RUNS)["classes"]
    whole = [_run_line(name, runs[name]) for name, row in ROWS.items() if not row.refused]
    unmade = [f"| `{name}` | {reason} |" for name, reason in UNTRIED.items()]
    tables = {LEARNT: lines, WHOLE: whole, UNMADE: unmade, ADAPTERS: _adapter_lines()}
    text = OPENING + _joined(claims) + "".join(it + _joined(tables[it]) for it in tables)
    return text + DIFFERENCES.format(**_adapter_totals())


def _adapter_lines() -> list[str]:
    """The lines of the table of adapters."""
    counts = read_json(TRACES)["lines"]
    named = [
        f"| {family} | {counts[file]['learnt']} | {counts[file]['hints']} | {other} | {knows} |"
        for file, (family, other, knows) in FAMILIES.items()
    ]
    learnt, hints = (sum(counts[it][kind] for it in SHARED) for kind in ("learnt", "hints"))
    return [*named, f"| what several share | {learnt} | {hints} | | packed noise, sizes that fit |"]


def _adapter_totals() -> dict[str, str]:
    counts = read_json(TRACES)["lines"].values()
    totals = {kind: sum(each[kind] for each in counts) for kind in ("learnt", "hints", "rest")}
    return {
        kind: f"{number:,}" for kind, number in (totals | {"total": sum(totals.values())}).items()
    }


def _joined(lines: list[str]) -> str:
    return "\n".join(lines) + "\n"


def line_of(name: str) -> str:
    """The line of a row."""
    found = verdict(name)
    kind, *variant = name.split(maxsplit=1)
    what = " ".join([f"`{kind}`", *variant])
    if found.learnt is None:
        reason = found.reason.partition(" (they differ")[0]  # by how much depends on the machine
        return f"| {what} | refused: {reason} | | | | |"
    return "| " + " | ".join([what, "passes", *_learnt(found.learnt.signature)]) + " |"


def _run_line(name: str, run: Mapping[str, Any]) -> str:
    """The line of a whole run."""
    kind, *variant = name.split(maxsplit=1)
    row = ROWS[name]
    trace = {"unguided": dict(row.unguided), "always": dict(row.terms.always)}
    given = [_in_yaml({key: value}) for key, value in trace.items() if value]
    needed = [_in_yaml({key: value}) for key, value in NEEDED.get(name, {}).items()]
    if "error" in run:
        found = [f"refused: {run['error'].partition(': ')[2]}", ""]
    else:
        found = [f"{run['trajectories']:.0e}", str(max(run["teacher"], run["student"]))]
    what = " ".join([f"`{kind}`", *variant])
    return "| " + " | ".join([what, ", ".join(given), ", ".join(needed), *found]) + " |"


def _in_yaml(value: Mapping[str, Any]) -> str:
    """As a configuration has it, in one line."""
    text = yaml.safe_dump(value, default_flow_style=True, width=1000, sort_keys=False).strip()
    return f"`{text[1:-1]}`"


def _learnt(signature: Signature) -> list[str]:
    entry = signature.entry
    return [
        f"`{dotted(entry.place)}`, {entry.form}",
        _prediction(signature.exit),
        ", ".join(_places(tuple(signature.clocks))),
        ", ".join(_places(signature.rows)),
    ]


def _prediction(way: Exit) -> str:
    return f"{'minus ' if way.sign < 0 else ''}the output, {way.form}"


def _places(places: tuple[Place, ...]) -> list[str]:
    return [f"`{dotted(place)}`" for place in places]


if __name__ == "__main__":
    raise SystemExit(main())
