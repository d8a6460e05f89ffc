"""Teachers that are one file: which pipeline it holds, and how it becomes a folder."""

from pathlib import Path

from safetensors import SafetensorError, safe_open

SUFFIXES = (".safetensors", ".ckpt", ".gguf", ".pt", ".pth")
PREFIX = "model.diffusion_model."
MARKS = {
    "conditioner.embedders.1.": "StableDiffusionXLPipeline",
    "cond_stage_model.": "StableDiffusionPipeline",
    "joint_blocks.": "StableDiffusion3Pipeline",
    "double_blocks.0.img_attn.norm.": "FluxPipeline",
}
"""How tensors are called that a pipeline's single files have, and those of the others do not."""


def is_single_file(path: str) -> bool:
    """Whether a path names one file of weights: here, by a URL, or as owner/name/file."""
    return Path(path).is_file() or path.lower().endswith(SUFFIXES)


def single_file_in(folder: Path) -> Path | None:
    """The file of weights at the top of a folder that is no pipeline, if there is one alone."""
    found = [path for path in folder.iterdir() if path.suffix.lower() in SUFFIXES]
    return found[0] if len(found) == 1 else None


def explain_single_file(path: str) -> str:
    """How a single file becomes a folder, for the end of an error's message."""
    guessed = guess_pipeline(Path(path))
    by = f"by its tensors it is for a {guessed}; " if guessed else ""
    name = guessed or "StableDiffusionXLPipeline"
    other = "" if guessed else ", with your model's class"
    return (
        f"it is one file, and a folder in Diffusers format is needed; {by}convert it once, where "
        f'there is network{other}: python -c "import diffusers; diffusers.{name}.from_single_file'
        f"({path!r}).save_pretrained('teacher')\" (docs/teachers.md, also without network)"
    )


def guess_pipeline(file: Path) -> str | None:
    """The class of the pipeline that a safetensors file holds, by the names of its tensors."""
    if file.suffix != ".safetensors" or not file.is_file():
        return None
    try:
        with safe_open(file, framework="pt") as opened:
            names = {name.removeprefix(PREFIX) for name in opened.keys()}  # noqa: SIM118
    except SafetensorError:
        return None
    found = (MARKS[mark] for mark in MARKS if any(name.startswith(mark) for name in names))
    return next(found, None)
