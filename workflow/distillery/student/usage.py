"""Python that draws an image with a student and plain Diffusers: for its card and the report."""

from collections.abc import Mapping, Sequence
from typing import Any

from distillery.config.teacher import Teacher
from distillery.student.info import TIME_FILE

FOLDER = "path/to/this/folder"
CAST = (
    "# This pipeline does not cast its latents to the VAE's type by itself.",
    "decode = pipeline.vae.decode",
    "pipeline.vae.decode = lambda latents, **rest: decode(latents.to(pipeline.vae.dtype), **rest)",
)


IMAGE = "path/to/an/image.png"
CAST_IMAGE = (
    "# Nor does it cast images to the VAE's type, and what comes of them back.",
    "encode = pipeline.vae.encode",
    "",
    "def encode_image(image, **rest):",
    "    found = encode(image.to(pipeline.vae.dtype), **rest)",
    "    found.latent_dist.mean = found.latent_dist.mean.to(image.dtype)",
    "    return found",
    "",
    "pipeline.vae.encode = encode_image",
)


def student_code(
    call: Mapping[str, Any],
    folder: str = FOLDER,
    prompt: str = "a prompt",
    seed: int = 0,
    note: str = "",
    image: str = IMAGE,
) -> str:
    """A script that loads a student's pipeline and draws one image.

    Args:
        call: what `student.export.right_call` says of the pipeline.
        prompt, seed: of the image; `seed` is a sample's `noise_seed`.
        note: said beside the seed.
        image: path of the prompt's own, where the pipeline takes one.
    """
    return "\n".join(
        [
            "import torch",
            "from diffusers import DiffusionPipeline",
            *_reading(call),
            "",
            *_loading(folder, call, {}),
            *_drawing(call, prompt, seed, note, image),
        ]
    )


def lora_code(lora: Mapping[str, Any], call: Mapping[str, Any], teacher: Teacher) -> str:
    """The same for the teacher's pipeline with the student's additions, from `export.lora_call`."""
    return _code_on_teacher(lora, call, teacher, _additions(lora, teacher))


def time_code(time: Mapping[str, Any], call: Mapping[str, Any], teacher: Teacher) -> str:
    """The same with the student's time embeddings; the teacher has no adapters."""
    loading = [
        f"weights = load_file({f'{FOLDER}/{TIME_FILE}'!r})",
        f"pipeline.{time['place']}.load_state_dict(weights, strict=False)",
    ]
    reading = "from safetensors.torch import load_file"
    return _code_on_teacher(time, call, teacher, loading, [reading])


def _code_on_teacher(
    told: Mapping[str, Any],
    call: Mapping[str, Any],
    teacher: Teacher,
    loading: Sequence[str],
    reading: Sequence[str] = (),
) -> str:
    """A script that makes a student of the teacher's pipeline, with the student's scheduler."""
    source = {"revision": teacher.revision, "variant": teacher.variant}
    return "\n".join(
        [
            "import torch",
            f"from diffusers import DiffusionPipeline, {told['scheduler']}",
            *_reading(call),
            *reading,
            "",
            *_loading(teacher.path, call, {name: value for name, value in source.items() if value}),
            *_one_network(told),
            *loading,
            f"pipeline.scheduler = {told['scheduler']}.from_pretrained({FOLDER + '/scheduler'!r})",
            *_drawing(call, "a prompt", 0, ""),
        ]
    )


def _additions(lora: Mapping[str, Any], teacher: Teacher) -> list[str]:
    """Load the student's additions, beside the adapters that the teacher's network had."""
    own = f"pipeline.load_lora_weights({FOLDER + '/lora'!r}"
    place, network = next(iter(lora["modules"].items()), ("", ""))
    adapters = [it for it in teacher.adapters if (it.expert or place) == network or not network]
    if not adapters:
        return [f"{own})"]
    names = [f"teacher-{number}" for number in range(len(adapters))]
    lines = []
    for name, adapter in zip(names, adapters, strict=True):
        words = {"weight_name": adapter.weight_name, "adapter_name": name}
        settings = ", ".join(f"{key}={value!r}" for key, value in words.items() if value)
        lines.append(f"pipeline.load_lora_weights({adapter.path!r}, {settings})")
    scales = [*(adapter.scale for adapter in adapters), 1.0]
    return [
        *lines,
        f"{own}, adapter_name='student')",
        f"pipeline.set_adapters({[*names, 'student']!r}, {scales!r})",
    ]


def _loading(folder: str, call: Mapping[str, Any], source: Mapping[str, str]) -> list[str]:
    """Load a pipeline in the types that its call takes, without the components it lacks."""
    return [
        "pipeline = DiffusionPipeline.from_pretrained(",
        f"    {folder!r},",
        *(f"    {name}={value!r}," for name, value in source.items()),
        *(f"    {name}=None," for name in call["absent"]),
        f"    dtype={_dtypes(call['dtypes'])},",
        ")",
    ]


def _dtypes(dtypes: Mapping[str, str]) -> str:
    """One number type, or those of the components."""
    if len(set(dtypes.values())) == 1:
        return f"torch.{dtypes['default']}"
    return f"{{{', '.join(f'{name!r}: torch.{dtype}' for name, dtype in dtypes.items())}}}"


def _one_network(told: Mapping[str, Any]) -> list[str]:
    """Of a teacher of several networks, keep the one that the student starts from."""
    if not told["modules"]:
        return []
    settings = ", ".join(f"{name}={value!r}" for name, value in told["settings"].items())
    return [
        "pipeline.register_modules(",
        *(
            f"    {name}={f'pipeline.{source}' if source else None},"
            for name, source in told["modules"].items()
        ),
        ")",
        f"pipeline.register_to_config({settings})",
    ]


def _reading(call: Mapping[str, Any]) -> list[str]:
    return ["from diffusers.utils import load_image"] if "takes_image" in call else []


def _drawing(
    call: Mapping[str, Any], prompt: str, seed: int, note: str, image: str = IMAGE
) -> list[str]:
    """Draw one image or clip with noise of a seed, and save it."""
    name, place = ("frames", call["clip"]) if "clip" in call else ("image", call["image"])
    return [
        'pipeline.to("cuda" if torch.cuda.is_available() else "cpu")',
        *(["pipeline.vae.enable_tiling()"] if "vae_tiling" in call else []),
        *(CAST if call["cast_latents"] else ()),
        *(CAST_IMAGE if call["cast_latents"] and "takes_image" in call else ()),
        "",
        f"{name} = pipeline(",
        f"    prompt={prompt!r},",
        *([f"    {call['takes_image']}=load_image({image!r}),"] if "takes_image" in call else []),
        *(f"    {name}={value!r}," for name, value in call["arguments"].items()),
        f"    generator=torch.Generator().manual_seed({seed}),{note and f'  # {note}'}",
        f").{place}",
        *_saving(call),
    ]


def _saving(call: Mapping[str, Any]) -> list[str]:
    if "clip" not in call:
        return ['image.save("image.png")']
    playing = f"duration={round(1000 / call['fps'])}, lossless=True"
    return [f'frames[0].save("clip.webp", save_all=True, append_images=frames[1:], {playing})']


def noise_levels(schedule: Mapping[str, Sequence[float]]) -> list[str]:
    """The states of a student's steps as samplers of other programs count them, the clean one last.

    Of flow matching that is sigma, else sigma over alpha, the level of noise beside a clean image
    of scale 1 (Karras et al. 2022, arXiv:2206.00364). Empty where a state is noise alone, which
    has no such level.

    Args:
        schedule: of a training's recipe.
    """
    states = list(zip(schedule.get("alphas", ()), schedule.get("sigmas", ()), strict=True))
    if all(abs(alpha + sigma - 1) < 1e-6 for alpha, sigma in states):
        levels = [sigma for _, sigma in states]
    elif all(alpha > 0 for alpha, _ in states):
        levels = [sigma / alpha for alpha, sigma in states]
    else:
        return []
    return [f"{level:.6g}" for level in levels]
