"""Variants of weights files: the wanted set is read, counted and exported, and no other."""

import shutil
from pathlib import Path

import pytest
import torch
from diffusers import DiffusionPipeline

from distillery.config.teacher import Teacher
from distillery.model_folder import load_denoiser
from distillery.student.export import take_over
from distillery.teacher.adapters import teacher_hash, text_hash
from distillery.teacher.folder import PipelineFolder, find_teacher
from distillery.teacher.loading import load_adapted
from distillery.teacher.weights import plain_name, variant_of, weights_of
from runs import loaded, make_run

WEIGHTS = "diffusion_pytorch_model.safetensors"
FP16 = "diffusion_pytorch_model.fp16.safetensors"
SHARD = "diffusion_pytorch_model.fp16-00001-of-00002.safetensors"


@pytest.mark.parametrize(
    ("file", "variant", "plain"),
    [
        (WEIGHTS, None, WEIGHTS),
        (FP16, "fp16", WEIGHTS),
        ("model.non_ema.safetensors", "non_ema", "model.safetensors"),
        ("model-00001-of-00002.safetensors", None, "model-00001-of-00002.safetensors"),
        (SHARD, "fp16", SHARD),
        ("model-00001-of-00002.fp16.safetensors", "fp16", "model-00001-of-00002.fp16.safetensors"),
        ("model.safetensors.index.json", None, "model.safetensors.index.json"),
        ("model.safetensors.index.fp16.json", "fp16", "model.safetensors.index.json"),
    ],
)
def test_names_of_weights_files(file: str, variant: str | None, plain: str) -> None:
    assert variant_of(file) == variant
    assert plain_name(file) == plain


@pytest.fixture(scope="module")
def both(teacher: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A teacher whose fp16 weights are others: all numbers halved."""
    folder = tmp_path_factory.mktemp("variants") / "teacher"
    shutil.copytree(teacher, folder)
    pipeline = DiffusionPipeline.from_pretrained(folder)
    for component in (pipeline.transformer, pipeline.vae, pipeline.text_encoder):
        for parameter in component.parameters():
            parameter.data = (parameter.data / 2).half()
    pipeline.save_pretrained(folder, variant="fp16")
    return folder


@pytest.fixture
def fp16_alone(both: Path, tmp_path: Path) -> Path:
    """A teacher without plain weights, its denoiser in two shards."""
    folder = tmp_path / "teacher"
    shutil.copytree(both, folder)
    for path in (*folder.glob(f"*/{WEIGHTS}"), *folder.glob("*/model.safetensors")):
        path.unlink()
    transformer = load_denoiser(folder / "transformer", torch.float16, "fp16")
    (folder / "transformer" / FP16).unlink()
    transformer.save_pretrained(  # type: ignore[operator]
        folder / "transformer", variant="fp16", max_shard_size="30KB"
    )
    assert len(list((folder / "transformer").glob("*.safetensors"))) > 1
    return folder


def section(folder: Path, variant: str | None) -> Teacher:
    return Teacher(path=str(folder), dtype="float32", height=32, width=32, variant=variant)


def test_the_wanted_weights_are_loaded(both: Path, fp16_alone: Path) -> None:
    plain = loaded(section(both, None))
    for folder in (both, fp16_alone):
        half = loaded(section(folder, "fp16"))
        alone = load_adapted(section(folder, "fp16"), PipelineFolder(folder, "fp16"), "transformer")
        for name in ("transformer", "text_encoder"):
            weights = getattr(plain, name).state_dict()
            for key, value in getattr(half, name).state_dict().items():
                torch.testing.assert_close(value, weights[key] / 2, atol=1e-4, rtol=1e-3)
        assert torch.equal(alone.proj_out.weight, half.transformer.proj_out.weight)


def test_one_variant_is_counted(teacher: Path, both: Path, fp16_alone: Path) -> None:
    expected = PipelineFolder(teacher).parameters
    assert PipelineFolder(both).parameters == expected
    assert PipelineFolder(both, "fp16").parameters == expected
    assert PipelineFolder(fp16_alone, "fp16").parameters == expected


def test_a_variant_that_is_not_there(teacher: Path, both: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"is 'bf16': .* there are: fp16; null reads"):
        find_teacher(section(both, "bf16"))
    with pytest.raises(FileNotFoundError, match="there are: plain ones alone"):
        find_teacher(section(teacher, "fp16"))


def test_plain_weights_that_are_not_there(fp16_alone: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"has all of fp16: set teacher\.variant: fp16$"):
        PipelineFolder(fp16_alone).check_complete()
    for path in (fp16_alone / "vae").glob("*.safetensors"):
        path.unlink()
    missing = (
        r"\(there is teacher\.variant fp16\), .*vae/\*\.safetensors; copy or download it again"
    )
    with pytest.raises(FileNotFoundError, match=missing):
        PipelineFolder(fp16_alone).check_complete()


def test_a_missing_shard_of_a_variant(fp16_alone: Path) -> None:
    PipelineFolder(fp16_alone, "fp16").check_complete()
    shard = sorted((fp16_alone / "transformer").glob("*.fp16-*.safetensors"))[1]
    shard.unlink()
    with pytest.raises(FileNotFoundError, match=f"missing: transformer/{shard.name};"):
        PipelineFolder(fp16_alone, "fp16").check_complete()


def test_a_component_without_the_variant_is_read_from_its_plain_weights(
    both: Path, tmp_path: Path
) -> None:
    shutil.copytree(both, tmp_path / "teacher")
    (tmp_path / "teacher" / "vae" / FP16).unlink()
    found = loaded(section(tmp_path / "teacher", "fp16"))
    plain = loaded(section(tmp_path / "teacher", None))
    weights = plain.vae.state_dict()
    assert all(torch.equal(value, weights[key]) for key, value in found.vae.state_dict().items())


def test_results_depend_on_the_variant(both: Path) -> None:
    for hashed in (teacher_hash, text_hash):
        half, plain = (
            hashed(teacher, find_teacher(teacher))
            for teacher in (section(both, "fp16"), section(both, None))
        )
        assert half != plain


def test_an_export_has_the_chosen_weights_under_plain_names(
    fp16_alone: Path, tmp_path: Path
) -> None:
    run = make_run(tmp_path / "run", fp16_alone, teacher={"variant": "fp16"})
    run.encode("train")
    run.all_targets()
    pipeline = DiffusionPipeline.from_pretrained(run.train_and_export())
    stock = DiffusionPipeline.from_pretrained(fp16_alone, variant="fp16")
    weights = stock.text_encoder.state_dict()
    found = pipeline.text_encoder.state_dict()
    assert all(torch.equal(found[key], value) for key, value in weights.items())


def test_of_two_sets_the_export_takes_one(both: Path, tmp_path: Path) -> None:
    scheduler = DiffusionPipeline.from_pretrained(both).scheduler
    transformer = load_denoiser(both / "transformer", torch.float32)
    for variant in (None, "fp16"):
        output = tmp_path / str(variant)
        take_over(PipelineFolder(both, variant), output, transformer, scheduler)
        assert sorted(path.name for path in (output / "vae").glob("*.safetensors")) == [WEIGHTS]
        source = both / "vae" / (WEIGHTS if variant is None else FP16)
        assert (output / "vae" / WEIGHTS).read_bytes() == source.read_bytes()


def saved_twice(teacher: Path, folder: Path, component: str, stray: str) -> tuple[Path, Path]:
    """A component in shards, alone and with a stray file beside them."""
    alone, beside = folder / "alone", folder / "beside"
    shutil.copytree(teacher, alone)
    pipeline = DiffusionPipeline.from_pretrained(alone)
    for path in (alone / component).glob("*.safetensors"):
        path.unlink()
    getattr(pipeline, component).save_pretrained(alone / component, max_shard_size="5KB")
    shutil.copytree(alone, beside)
    shard = next((alone / component).glob("*00001-of*"))
    shutil.copyfile(shard, beside / component / stray)
    return alone, beside


@pytest.mark.parametrize(
    ("component", "stray"),
    [
        ("transformer", WEIGHTS),
        ("transformer", "diffusion_pytorch_model-00001-of-00099.safetensors"),
        ("transformer", "lora.safetensors"),
        ("text_encoder", "model-00001-of-00099.safetensors"),
    ],
)
def test_weights_beside_an_index_are_neither_counted_nor_hashed(
    teacher: Path, tmp_path: Path, component: str, stray: str
) -> None:
    alone, beside = map(PipelineFolder, saved_twice(teacher, tmp_path, component, stray))
    assert beside.parameters == alone.parameters == PipelineFolder(teacher).parameters
    assert beside.fingerprint() == alone.fingerprint()
    beside.check_complete()
    # One that the index names counts.
    next((beside.path / component).glob("*00002-of-*")).unlink()
    with pytest.raises(FileNotFoundError, match=f"missing: {component}/.*00002-of"):
        beside.check_complete()


def test_transformers_reads_a_whole_file_before_an_index(teacher: Path, tmp_path: Path) -> None:
    _, beside = saved_twice(teacher, tmp_path, "text_encoder", "model.safetensors")
    whole = beside / "text_encoder" / "model.safetensors"
    assert weights_of(beside / "text_encoder", None) == [whole]


@pytest.mark.parametrize(
    "content",
    ["{}", '{"weight_map": {}}', '{"weight_map": ["a"]}', '{"weight_map": {"a": "../b"}}', "["],
)
def test_a_damaged_index_is_named(teacher: Path, tmp_path: Path, content: str) -> None:
    shutil.copytree(teacher, tmp_path / "teacher")
    (tmp_path / "teacher" / "transformer" / f"{WEIGHTS}.index.json").write_text(content)
    with pytest.raises(ValueError, match=rf"{WEIGHTS}\.index\.json"):
        PipelineFolder(tmp_path / "teacher").check_complete()
