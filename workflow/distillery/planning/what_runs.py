"""The page's first part: which models, prompts, sizes and jobs the run has."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from distillery.config.run import Config, RunConfig
from distillery.config.sampling import resolve_sampling
from distillery.config.section import steps_within
from distillery.config.student import Student
from distillery.config.teacher import Teacher
from distillery.families import Family, Size
from distillery.families.protocol import Pipeline
from distillery.families.size import latent_frames
from distillery.files import readable
from distillery.generation.walk import calls_per_image
from distillery.planning.few_steps import find_made
from distillery.planning.jobs import StageJobs
from distillery.planning.page import TIMES, Part, Table, in_words
from distillery.planning.prompts import count_repeated, describe_files, guided_splits
from distillery.planning.residence import residence_table
from distillery.planning.sizes import describe_sizes
from distillery.planning.work import plan_work
from distillery.prompts import own_negatives
from distillery.teacher.adapter_files import facts_of
from distillery.teacher.adapters import find_adapter
from distillery.teacher.folder import PipelineFolder
from distillery.teacher.memory import Memory, summarise_memory
from distillery.teacher.skeleton import load_skeleton
from distillery.words import counted, listed, listed_numbers

Facts = list[tuple[str, str]]


def what_runs(
    config: RunConfig,
    prompts: Mapping[str, pd.DataFrame],
    folder: PipelineFolder,
    plan: Mapping[str, Any],
    jobs: Sequence[StageJobs],
) -> Part:
    """What the run will do.

    Args:
        prompts: the table of each split.
        plan: as in plan.json, but for the page.
    """
    facts = _teacher(config, folder, plan)
    facts += plan["solver"]["facts"]
    facts.append(("prompts", _prompts(config, prompts)))
    if sizes := describe_sizes(prompts, Size.of(config.teacher)):
        facts.append(("sizes", sizes))
    facts.append(("negative prompts", _negatives(config, prompts, folder)))
    tables = [_models(config, plan, folder)]
    if isinstance(config, Config):
        if config.trains:
            facts += _targets(config, plan) + _student(config, plan) + _training(config, plan)
            tables += _tables_of_training(plan["training"])
        else:
            facts += _student(config, plan)
            facts.append(("", f"of {config.student.from_run}; nothing is trained"))
        facts.append(("judge", _judge(config)))
    facts.append(("jobs", _jobs(jobs)))
    return Part("What runs", tuple(facts), tuple(tables))


def _tables_of_training(training: Mapping[str, Any]) -> Iterator[Table]:
    """What is chosen by itself, and where a teacher beside the student may be."""
    if training["choices"]:
        yield _choices(training["choices"])
    if training["teacher"]:
        yield residence_table(training["teacher"])


def what_is_known(
    config: RunConfig,
    prompts: Mapping[str, pd.DataFrame],
    folder: PipelineFolder,
    memory: Memory,
) -> Part:
    """What a run will do whose teacher is still to be learnt."""
    facts = [
        ("teacher", f"{config.teacher.path}: {folder.class_name}, to be learnt"),
        _parameters(config.teacher, folder),
        ("memory of weights", summarise_memory(vars(memory))),
        ("prompts", _prompts(config, prompts)),
    ]
    if isinstance(config, Config):
        facts.append(("trajectories", _trajectories(config, len(prompts["train"]), folder)))
        facts.append(("judge", _judge(config)))
    first = (
        f"teacher.trace is set: the first job learns from {folder.class_name}'s own calls what it "
        "gives its network, proves it, and plans the run with it before anything else is made."
    )
    return Part("What runs", tuple(facts), notes=(first,))


def _trajectories(config: Config, num_prompts: int, folder: PipelineFolder) -> str:
    """How many, and what they cost, by the size of what the VAE takes."""
    targets = config.targets
    is_guided = targets.guidance_scale > 1.0 and bool(config.teacher.trace.unguided)  # type: ignore[union-attr]
    elements = latent_elements(load_skeleton(folder), Size.of(config.teacher))
    work = plan_work(config, {"train": num_prompts}, elements or 0, 1 + is_guided)
    steps = counted(targets.steps, "step")
    told = f"{work.num_trajectories:,} of {steps}, some {work.teacher_calls:,} network calls"
    size = f"; some {readable(work.targets_bytes)} in {targets.dtype}"
    return told + size * (elements is not None)


def latent_elements(pipeline: Pipeline, size: Size) -> int | None:
    """Numbers in a sample's latents, however they are packed; None where the VAE does not tell."""
    config = pipeline.vae.config
    channels = config.get("latent_channels", config.get("z_dim"))
    spatial = getattr(pipeline, "vae_scale_factor_spatial", None)
    if spatial is None and "block_out_channels" in config:
        spatial = 2 ** (len(config["block_out_channels"]) - 1)  # some pipelines count packing, too
    spatial = spatial or getattr(pipeline, "vae_scale_factor", None)
    temporal = getattr(pipeline, "vae_scale_factor_temporal", 1)
    if not isinstance(channels, int) or not isinstance(spatial, int):
        return None
    area = (size.height // spatial) * (size.width // spatial)
    return channels * latent_frames(size.num_frames, temporal) * area


def _parameters(teacher: Teacher, folder: PipelineFolder) -> tuple[str, str]:
    sizes = [f"{name} {in_words(number)}" for name, number in folder.parameters.items()]
    packed = f", networks' blocks in {teacher.quantization}" if teacher.quantization else ""
    told = f"{', '.join(sizes)}; in {teacher.dtype}{packed}, the VAE in {teacher.vae_dtype}"
    return "parameters", told


def _teacher(config: RunConfig, folder: PipelineFolder, plan: Mapping[str, Any]) -> Facts:
    teacher = config.teacher
    shape = f" {TIMES} ".join(map(str, plan["latent_shape"]))
    variant = f", variant {teacher.variant}" if teacher.variant else ""
    made = find_made(teacher, folder)
    use = [("made for", made.words)] if made else []
    where = [("teacher's folder", str(folder.path))] if str(folder.path) != teacher.path else []
    return [
        ("teacher", f"{teacher.path}{variant}: {folder.class_name}, family {folder.family.name}"),
        *where,
        *_files(folder),
        *use,
        _parameters(teacher, folder),
        *_adapters(config, folder),
        *_call(config),
        _size(teacher, shape),
    ]


def _files(folder: PipelineFolder) -> Facts:
    """The weights that are in files of their own."""
    parts: dict[Path, list[str]] = {}
    for name, file in folder.files.items():
        parts.setdefault(file, []).append(name)
    facts = [
        ("weights", f"{file} ({readable(file.stat().st_size)}): {listed(names)}")
        for file, names in parts.items()
    ]
    others = sorted(folder.tensors.keys() - folder.files.keys())
    if facts and others:
        facts.append(("other weights", f"of the folder: {listed(others)}"))
    return facts


def _size(teacher: Teacher, shape: str) -> tuple[str, str]:
    pixels = f"{teacher.width} {TIMES} {teacher.height} pixels"
    if teacher.num_frames == 1:
        return "image size", f"{pixels}; latents {shape}"
    seconds = teacher.num_frames / teacher.fps
    frames = f"{teacher.num_frames} frames, {teacher.fps} a second ({seconds:.1f} s)"
    return "clip size", f"{pixels}, {frames}; latents {shape}"


def _adapters(config: RunConfig, folder: PipelineFolder) -> Facts:
    """A line for each LoRA or DoRA of the teacher, with its file and what becomes of it."""
    facts = []
    how = "fused" if config.teacher.fuse_adapters else "beside the weights"
    for adapter in config.teacher.adapters:
        path = find_adapter(adapter)
        size, what = readable(path.stat().st_size), facts_of(path, folder)
        expert = f", of {adapter.expert}" if adapter.expert else ""
        account = f"{counted(what.used, 'tensor')} used, {what.zero} zero, none left out"
        told = f"{path} ({size}), scale {adapter.scale:g}, {how}{expert}; {account}"
        facts.append(("adapter (LoRA)", told))
    return facts or [("adapters (LoRA)", "none")]


def _call(config: RunConfig) -> Facts:
    """What else the teacher's calls are given."""
    given = config.teacher.call or {}
    told = ", ".join(f"{name} {value}" for name, value in given.items())
    counts = "network calls that these add are not in the counts and times below"
    return [("teacher's call", f"{told}; {counts}")] if given else []


def _prompts(config: RunConfig, prompts: Mapping[str, pd.DataFrame]) -> str:
    files = describe_files(config.prompts.files)
    num_held_out = len(prompts["eval"])
    num_sampled = min(config.samples.num_prompts or num_held_out, num_held_out)
    sampled = f"{num_sampled:,}{f' of {num_held_out:,}' if num_sampled < num_held_out else ''}"
    if "train" not in prompts:
        return f"{sampled}, of {files}{_repeated(prompts)}"
    share = config.prompts.eval_fraction
    how = f"; a share of {share:g} is not trained on" if share else ""
    unlearned = config.training.held_out_prompts if isinstance(config, Config) else 0
    parts = [f"{len(prompts['train']) - unlearned:,} to learn from"]
    parts += [f"{unlearned:,} of the training held out"] if unlearned else []
    parts.append(f"{sampled} to evaluate")
    return f"{', '.join(parts)}, of {files}{how}{_repeated(prompts)}"


def _repeated(prompts: Mapping[str, pd.DataFrame]) -> str:
    """How many prompts of each split repeat a text; each of them has noise of its own."""
    numbers = {split: count_repeated(table) for split, table in prompts.items()}
    told = [
        f"{number:,} of the {len(prompts[split]):,} {split} prompts repeat{'s' * (number == 1)} "
        "the text of another"
        for split, number in numbers.items()
        if number
    ]
    return "".join(f"; {text}" for text in told)


def _negatives(
    config: RunConfig, prompts: Mapping[str, pd.DataFrame], folder: PipelineFolder
) -> str:
    """Which negative prompts there are, and who reads them."""
    guided = guided_splits(config, folder)
    if not guided:
        return "not used: no network is guided by a second call"
    text = config.teacher.negative_prompt
    own = {split: sum(own is not None for own in own_negatives(prompts[split])) for split in guided}
    with_own = [
        f"{number} of the {len(prompts[split]):,} {split} prompts have one of their own"
        for split, number in sorted(own.items(), reverse=True)
        if number
    ]
    return "; ".join([_usual_negative(text, folder.family), *with_own])


def _usual_negative(text: str | None, family: Family) -> str:
    """What guides where a prompt has no negative prompt of its own."""
    if text is not None:
        return f"{text!r} for all"
    if family.no_negative is None:
        return "the stock pipeline's own, as none is set"
    return (
        f"{family.no_negative!r} for all, as none is set: the teacher is guided by it, where the "
        "stock call without a negative prompt would not guide at all"
    )


def _targets(config: Config, plan: Mapping[str, Any]) -> Facts:
    """How the teacher walks, and what is stored of it."""
    targets, work = config.targets, plan["work"]
    second = f" and {targets.guidance_scale_2:g}" if targets.guidance_scale_2 else ""
    calls = counted(round(targets.steps * plan["calls_per_step"]), "network call")
    scales = f"{targets.guidance_scale:g}{second}"
    where = _guided_steps(targets.guidance_interval, targets.steps)
    walk = f"{targets.steps} steps, guidance {scales}{where}: {calls} each"
    if not work["num_trajectories"]:
        return [("trajectories", f"none stored: all targets are online; {walk}")]
    other = targets.from_run
    made = f"read from {other}" if other else f"{work['teacher_calls']:,} network calls"
    stored = f"{work['num_trajectories']:,} in {work['num_chunks']:,} chunks, {made}"
    kept = f"{targets.num_segments + 1} states in {targets.dtype}"
    return [("trajectories", f"{stored}; {walk}; {kept}")]


def _guided_steps(interval: tuple[float, float] | None, steps: int) -> str:
    """Which of a walk's steps are guided, from 1; "" for all."""
    guided = steps_within(interval, steps)
    if len(guided) == steps:
        return ""
    if not guided:
        return " in no step"
    first, last = guided.start + 1, guided.stop
    return f" in step {first}" if first == last else f" in steps {first} to {last}"


def steps_of(student: Student) -> str:
    """The numbers of steps that it takes: 4 steps; 1, 2 and 4 steps."""
    return listed_numbers(student.numbers_of_steps) + " step" + "s" * (student.steps > 1)


def _student(config: Config, plan: Mapping[str, Any]) -> Facts:
    """Its shape, and the steps that it takes."""
    student = config.student
    lora = f" of rank {student.lora.rank}" if student.lora else ""
    source = f"the teacher's {plan['student']['network']}"
    if student.start_from is not None:
        source = f"the student in {student.start_from}"
    origin = f"init: {student.init}{lora}, from {source}"
    steps = steps_of(student)
    return [
        ("student", f"{plan['student']['summary']}"),
        ("", f"{steps}, without guidance; {origin}"),
    ]


def _training(config: Config, plan: Mapping[str, Any]) -> Facts:
    """What is learned, in which order."""
    training, work = config.training, plan["work"]
    updates = -(-training.num_samples // training.global_batch_size)
    objective = "flow map" if config.student.is_flow_map else training.objective
    facts = [
        (
            "training",
            f"objective {objective}; {training.num_samples:,} samples, {updates:,} "
            f"updates of {training.global_batch_size}; learning rate {training.learning_rate:g}",
        )
    ]
    if training.held_out_prompts:
        what = counted(training.held_out_prompts, "prompt")
        facts.append(("held out", f"{what} that the training is measured on and does not learn"))
    for phase in training.phases:
        if phase.title:
            each = (
                f": each time {work['num_trajectories']:,} states of the student, "
                f"{work['round_calls']:,} network calls"
            )
            told = f"{phase.words()}; {phase.meaning}{each * phase.waits}"
            facts.append((phase.title, told))
    return facts


def _judge(config: Config) -> str:
    others = [f"{name} ({path})" for name, path in config.evaluation.vision_models.items()]
    more = f"; sets of images in {listed(others)}" if others else ""
    preference = config.evaluation.preference_model
    more += f"; preference by {preference}" if preference else ""
    return f"{config.evaluation.judge}; compared with {config.evaluation.reference}{more}"


def _models(config: RunConfig, plan: Mapping[str, Any], folder: PipelineFolder) -> Table:
    """Who draws the held-out prompts, and how."""
    images = config.samples.num_images(plan["work"]["num_prompts"]["eval"])
    # A network that takes the scale as an input has no scale at which guidance is off.
    off = None if folder.family.has_guidance_embedding(folder.denoiser_config) else 1.0
    rows = []
    for name in config.samples.models:
        model = resolve_sampling(config, name)
        scales = [model.guidance_scale, model.guidance_scale_2]
        given = [f"{scale:g}" for scale in scales if scale is not None and scale != off]
        where = _guided_steps(model.guidance_interval, model.steps)
        scale = " and ".join(given) + where if given else "none"
        calls = calls_per_image(folder, config.teacher, model)
        rows.append((name, model.source, str(model.steps), scale, str(calls), f"{images:,}"))
    heads = ("model", "network", "steps", "guidance", "calls per image", "images")
    return Table("Images of the held-out prompts", heads, tuple(rows))


def _jobs(jobs: Sequence[StageJobs]) -> str:
    """How many of each stage, and what each job has, as "4 targets (1 GPU each)"."""
    told = []
    for row in jobs:
        has = [f"{row.processes} processes"] if row.processes > 1 else []
        has += [counted(row.gpus, "GPU")] if row.gpus else []
        each = " each" if row.jobs > 1 else ""
        told.append(f"{row.jobs} {row.stage}" + (f" ({', '.join(has)}{each})" if has else ""))
    return ", ".join(told)


def _choices(choices: Sequence[Mapping[str, str]]) -> Table:
    """What the hardware decides; what a CPU cannot do is not told."""
    rows = tuple(
        (row["setting"], row["value"], row["reason"])
        for row in choices
        if row["reason"] != "no GPU" or row["setting"] == "processes"
    )
    return Table("How the training runs", ("setting", "value", "why"), rows)
