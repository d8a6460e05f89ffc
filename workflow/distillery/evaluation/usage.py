"""The lines of Python that load the student and draw one of the report's pictures again."""

import inspect
from pathlib import Path

from distillery.config import Config, Dtype
from distillery.evaluation.manifests import ModelSamples
from distillery.files import read_json


def loading_code(config: Config, run_folder: Path, samples: ModelSamples | None) -> str | None:
    """A script for the student's pipeline; None if it was not exported.

    Which arguments the call takes is read from the signature of the pipeline's own class.

    Args:
        config: of the run.
        run_folder: results/{run}.
        samples: the student's samples; the first one's prompt and seed are used.
    """
    index = run_folder / "student" / "pipeline" / "model_index.json"
    if not index.is_file():
        return None
    names = _call_arguments(str(read_json(index).get("_class_name", "")))
    prompt = "a photo of a lighthouse at dusk"
    seed, of_report = 0, ""
    if samples is not None:
        first = samples.table.iloc[0]
        prompt, seed = str(first["prompt"]), int(first["noise_seed"])
        of_report = f"  # noise of {first['prompt_id']}/{first['index']}"
    arguments = {
        "num_inference_steps": config.student.steps,
        "guidance_scale": 1.0,
        "height": config.teacher.height,
        "width": config.teacher.width,
        "max_sequence_length": config.teacher.max_sequence_length,
        "num_frames": 1,
    }
    is_video = "num_frames" in names
    lines = [
        "import torch",
        "from diffusers import DiffusionPipeline",
        "",
        f'folder = "{index.parent.as_posix()}"',
        f"dtype = {_dtypes(config.teacher.dtype)}",
        "pipeline = DiffusionPipeline.from_pretrained(folder, dtype=dtype)",
        'pipeline.to("cuda" if torch.cuda.is_available() else "cpu")',
        "",
        "result = pipeline(",
        f"    prompt={prompt!r},",
        *(
            f"    {name}={value},"
            for name, value in arguments.items()
            if value is not None and (not names or name in names)
        ),
        *(['    output_type="pil",'] if is_video else []),
        f'    generator=torch.Generator("cpu").manual_seed({seed}),{of_report}',
        ")",
        f'result.{"frames[0][0]" if is_video else "images[0]"}.save("picture.png")',
    ]
    return "\n".join(lines)


def _dtypes(dtype: Dtype) -> str:
    """Python for the number types that the samples were drawn with: the VAE is float32 always."""
    if dtype == "float32":
        return "torch.float32"
    return f'{{"default": torch.{dtype}, "vae": torch.float32}}'


def _call_arguments(class_name: str) -> frozenset[str]:
    """Names of the arguments of a pipeline's call; empty for a class that Diffusers lacks."""
    import diffusers  # heavy, and needed only here

    pipeline = getattr(diffusers, class_name, None)
    return (
        frozenset()
        if pipeline is None
        else frozenset(inspect.signature(pipeline.__call__).parameters)
    )
