"""The lines of Python that load the student and draw one of the report's pictures again."""

from pathlib import Path

from distillery.config.run import Config
from distillery.config.teacher import Teacher
from distillery.evaluation.manifests import ModelSamples
from distillery.model_folder import ABOUT, read_about


def loading_code(config: Config, run_folder: Path, samples: ModelSamples | None) -> str | None:
    """A script for the student's pipeline; None if it was not exported.

    The export says which arguments the call takes.

    Args:
        config: of the run.
        run_folder: results/{run}.
        samples: the student's samples; the first one's prompt and seed are used.
    """
    folder = run_folder / "student" / "pipeline"
    if not (folder / ABOUT).is_file():
        return None
    call = read_about(folder)["call"]
    prompt = "a photo of a lighthouse at dusk"
    seed, of_report = 0, ""
    if samples is not None:
        first = samples.table.iloc[0]
        prompt, seed = str(first["prompt"]), int(first["noise_seed"])
        of_report = f"  # noise of {first['prompt_id']}/{first['index']}"
    absent = "".join(f", {name}=None" for name in call.get("absent", ()))
    lines = [
        "import torch",
        "from diffusers import DiffusionPipeline",
        "",
        f'folder = "{folder.as_posix()}"',
        f"dtype = {_dtypes(config.teacher)}",
        f"pipeline = DiffusionPipeline.from_pretrained(folder, dtype=dtype{absent})",
        'pipeline.to("cuda" if torch.cuda.is_available() else "cpu")',
        "",
        "result = pipeline(",
        f"    prompt={prompt!r},",
        *(f"    {name}={value!r}," for name, value in call["arguments"].items()),
        f'    generator=torch.Generator("cpu").manual_seed({seed}),{of_report}',
        ")",
        f'result.{call["picture"]}.save("picture.png")',
    ]
    return "\n".join(lines)


def _dtypes(teacher: Teacher) -> str:
    """Python for the number types that the samples were drawn with."""
    if teacher.dtype == teacher.vae_dtype:
        return f"torch.{teacher.dtype}"
    return f'{{"default": torch.{teacher.dtype}, "vae": torch.{teacher.vae_dtype}}}'
