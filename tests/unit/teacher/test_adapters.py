"""Adapters: the teacher that stock Diffusers makes of them, or a refusal that names the fault."""

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from diffusers import AutoModel, DiffusionPipeline
from safetensors.torch import load_file, save_file

from adapters import FILE, make_adapter
from distillery.config.jobs import TargetsJob
from distillery.config.teacher import Adapter, Teacher
from distillery.files import hash_json
from distillery.generation.targets import targets_recipe
from distillery.hash_cache import hash_large_files
from distillery.planning.unusual import on_idle
from distillery.student.build import build_student
from distillery.teacher import adapters
from distillery.teacher.adapter_fit import TIMES, name_some
from distillery.teacher.adapter_pairs import METADATA, read_metadata
from distillery.teacher.adapters import (
    adapt,
    cast,
    find_adapter,
    teacher_hash,
    text_hash,
)
from distillery.teacher.folder import PipelineFolder
from distillery.teacher.skeleton import check_options
from families import sdxl, wan_two_experts
from families.made import made_teacher
from lora_files import DIALECTS, LoraFile
from runs import SETTINGS, loaded, make_run
from tiny import make_tiny_wan
from training_phases import phases

TRAINING = {"phases": phases(stored=8), "global_batch_size": 8}


@pytest.fixture(scope="module")
def tiny_sdxl(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return made_teacher(tmp_path_factory, sdxl.CASE)


@pytest.fixture(scope="module", params=["wan", "sdxl"])
def tiny(request: pytest.FixtureRequest, teacher: Path, tiny_sdxl: Path) -> Path:
    """A tiny teacher of each family."""
    return teacher if request.param == "wan" else tiny_sdxl


def section(folder: Path, *paths: Path, scale: float = 1.0, **changes: Any) -> Teacher:
    """The section `teacher` with adapters."""
    adapters = tuple(Adapter(path=str(path), scale=scale) for path in paths)
    fields = {"path": str(folder), "dtype": "float32", "height": 32, "width": 32}
    return Teacher(**(fields | {"adapters": adapters} | changes))


def adapted(teacher: Teacher) -> Any:
    """The network of the teacher, loaded without the other components."""
    folder = PipelineFolder(Path(teacher.path))
    (name,) = folder.denoisers
    pipeline = loaded(teacher, leave_out=(*folder.family.text_components, "vae"))
    return getattr(pipeline, name)


def base_of(folder: Path) -> Any:
    """The network without adapters."""
    return AutoModel.from_pretrained(str(folder / PipelineFolder(folder).denoisers[0]))


def fused_by_diffusers(folder: Path, path: Path, scale: float, *components: str) -> Any:
    """The stock pipeline with an adapter in its weights."""
    others = {"vae", *PipelineFolder(folder).family.text_components} - set(components)
    stock = DiffusionPipeline.from_pretrained(folder, **dict.fromkeys(others))
    stock.load_lora_weights(str(path), adapter_name="a")
    stock.set_adapters("a", scale)
    stock.fuse_lora(components=list(components), adapter_names=["a"])
    stock.unload_lora_weights()
    return stock


def assert_equal(ours: torch.nn.Module, theirs: torch.nn.Module) -> None:
    mine, stock = ours.state_dict(), theirs.state_dict()
    assert mine.keys() == stock.keys()
    for name in stock:
        assert torch.equal(mine[name], stock[name]), name


def outputs(model: Any) -> torch.Tensor:
    """A forward pass with fixed inputs, of either family."""
    generator = torch.Generator().manual_seed(0)
    if hasattr(model, "conv_in"):
        config = model.config
        added = {
            "text_embeds": torch.randn(1, sdxl.FEATURES, generator=generator),
            "time_ids": torch.tensor([[32.0, 32.0, 0.0, 0.0, 32.0, 32.0]]),
        }
        noisy = torch.randn(1, config.in_channels, 16, 16, generator=generator)
        words = torch.randn(1, 5, config.cross_attention_dim, generator=generator)
        result = model(noisy, 500.0, words, added_cond_kwargs=added, return_dict=False)
    else:
        noisy = torch.randn(1, 4, 1, 4, 4, generator=generator)
        words = torch.randn(1, 5, model.config.text_dim, generator=generator)
        result = model(noisy, torch.tensor([500.0]), words, return_dict=False)
    output: torch.Tensor = result[0]
    return output.detach()


@pytest.mark.parametrize("dora", [False, True], ids=["lora", "dora"])
def test_a_fused_teacher_is_what_stock_diffusers_makes(
    tiny: Path, tmp_path: Path, dora: bool
) -> None:
    path = make_adapter(tiny, tmp_path, dora)
    (name,) = PipelineFolder(tiny).denoisers
    ours = adapted(section(tiny, path, scale=0.7))
    assert_equal(ours, getattr(fused_by_diffusers(tiny, path, 0.7, name), name))
    assert not torch.allclose(outputs(ours), outputs(base_of(tiny)), atol=1e-3)


@pytest.mark.parametrize("dora", [False, True], ids=["lora", "dora"])
def test_an_adapter_beside_the_weights_computes_the_same(
    tiny: Path, tmp_path: Path, dora: bool
) -> None:
    path = make_adapter(tiny, tmp_path, dora)
    fused = adapted(section(tiny, path, scale=0.5))
    kept = adapted(section(tiny, path, scale=0.5, fuse_adapters=False))
    torch.testing.assert_close(outputs(kept), outputs(fused), atol=1e-4, rtol=1e-4)


def test_in_half_precision_it_is_finite_and_close(tiny: Path, tmp_path: Path) -> None:
    path = make_adapter(tiny, tmp_path, dora=True)
    exact = outputs(adapted(section(tiny, path)))
    for dtype, fuse in (("bfloat16", True), ("float16", True), ("bfloat16", False)):
        model = adapted(section(tiny, path, dtype=dtype, fuse_adapters=fuse))
        found = outputs(model)
        assert found.dtype == torch.float32
        beside = {value.dtype for name, value in model.named_parameters() if "lora_" in name}
        assert beside == (set() if fuse else {torch.float32})
        assert (found - exact).norm() < 0.05 * exact.norm()


def test_casting_gives_every_tensor_the_type_that_diffusers_loads_it_in(tiny: Path) -> None:
    folder = tiny / PipelineFolder(tiny).denoisers[0]
    ours = AutoModel.from_pretrained(str(folder), dtype=torch.float32)
    cast(ours, torch.bfloat16)
    stock = AutoModel.from_pretrained(str(folder), dtype=torch.bfloat16)
    assert_equal(ours, stock)
    for part in ("named_parameters", "named_buffers"):
        mine, theirs = dict(getattr(ours, part)()), dict(getattr(stock, part)())
        assert {name: value.dtype for name, value in mine.items()} == {
            name: value.dtype for name, value in theirs.items()
        }


def test_several_adapters_add_up(tiny: Path, tmp_path: Path) -> None:
    paths = [make_adapter(tiny, tmp_path / str(seed), seed=seed) for seed in (1, 2)]
    both = adapted(section(tiny, *paths)).state_dict()
    singles = [adapted(section(tiny, path)).state_dict() for path in paths]
    for name, weight in base_of(tiny).state_dict().items():
        added = sum(single[name] - weight for single in singles)
        torch.testing.assert_close(both[name], weight + added, atol=1e-5, rtol=1e-5)


def test_the_student_starts_from_the_adapted_teacher(tiny: Path, tmp_path: Path) -> None:
    path = make_adapter(tiny, tmp_path / "adapter", dora=True)
    teacher = section(tiny, path, dtype="bfloat16", fuse_adapters=False)
    job = {"seed": 0, "teacher": teacher, "student": {"steps": 2}, "training": TRAINING}
    build_student(training_job(job), tmp_path / "initial")
    found = AutoModel.from_pretrained(str(tmp_path / "initial"))
    assert_equal(found, adapted(section(tiny, path)))


def training_job(fields: dict[str, Any]) -> Any:
    from distillery.config.jobs import TrainingJob

    return TrainingJob.model_validate(fields, strict=False)


def test_a_kohya_file_is_read_with_its_alphas(tiny_sdxl: Path, tmp_path: Path) -> None:
    from diffusers.utils import convert_state_dict_to_kohya

    tensors = load_file(make_adapter(tiny_sdxl, tmp_path))
    path = tmp_path / "kohya.safetensors"
    save_file(convert_state_dict_to_kohya(tensors), path)
    stock = fused_by_diffusers(tiny_sdxl, path, 1.0, "unet")
    assert_equal(adapted(section(tiny_sdxl, path)), stock.unet)


@pytest.mark.parametrize("fuse", [True, False], ids=["fused", "beside"])
def test_each_layer_has_its_own_scale(tiny_sdxl: Path, tmp_path: Path, fuse: bool) -> None:
    """Diffusers gives attention layers the most frequent alpha of the file."""
    base = base_of(tiny_sdxl)
    layers = [name for name, _ in base.named_modules() if name.endswith(("to_q", "to_k"))][:3]
    file = LoraFile()
    for number, (layer, alpha) in enumerate(zip(layers, (1.0, 8.0, None), strict=True)):
        weight = base.get_submodule(layer).weight
        dtype, rank = torch.float32, number + 2
        file.add(DIALECTS["sdxl-kohya"], layer, weight, rank, alpha, dtype, seed=number)
    save_file(file.tensors, tmp_path / FILE)
    ours = adapted(section(tiny_sdxl, tmp_path / FILE, scale=0.5, fuse_adapters=fuse))
    for layer in layers:
        weight = base.get_submodule(layer).weight
        module = ours.get_submodule(layer)
        found = module.weight if fuse else weight + module.get_delta_weight("adapter_0")
        torch.testing.assert_close(found, weight + 0.5 * file.change[f"{layer}.weight"])


def kohya_file(folder: Path, path: Path, alphas: tuple[float | None, ...]) -> Path:
    """A file of kohya's with these alphas, one to a layer, all of rank 4."""
    base = base_of(folder)
    layers = [name for name, _ in base.named_modules() if name.endswith("to_q")]
    file = LoraFile()
    for seed, alpha in enumerate(alphas):
        layer = layers[seed]
        weight = base.get_submodule(layer).weight
        file.add(DIALECTS["sdxl-kohya"], layer, weight, 4, alpha, torch.float32, seed)
    save_file(file.tensors, path)
    return path


@pytest.mark.parametrize(
    ("alphas", "is_other"),
    [((None, None), False), ((2.0, 2.0), False), ((2.0, 1.0), True), ((2.0, None), True)],
)
def test_files_that_were_scaled_wrongly_have_another_recipe(
    tiny_sdxl: Path, tmp_path: Path, alphas: tuple[float | None, ...], is_other: bool
) -> None:
    path = kohya_file(tiny_sdxl, tmp_path / FILE, alphas)
    folder = PipelineFolder(tiny_sdxl)
    found = teacher_hash(section(tiny_sdxl, path), folder)
    assert (found != hash_of_earlier_releases(folder, path, 1.0)) == is_other


def hash_of_earlier_releases(folder: PipelineFolder, path: Path, scale: float) -> str:
    """A teacher's with one adapter, fused."""
    named = {"hash": hash_large_files([path])[path], "scale": scale, "expert": None}
    none = dict.fromkeys(("variant", "attention"))
    return hash_json({"folder": folder.fingerprint(), "adapters": [named], "fused": True} | none)


@pytest.mark.parametrize(
    ("name", "value", "told"),
    [
        ("lora_te3_x.lora_up.weight", torch.ones(2, 2), "does not fit the teacher's unet"),
        ("lora_unet_x.diff_b", torch.ones(2), "would be left out of this|could not be converted"),
        ("lora_unet_x.hada_w1_a", torch.ones(2), "is a LoHa"),
        ("lora_unet_x.lora_up.weight", torch.ones(2, 2, dtype=torch.int8), "holds int8 in"),
    ],
)
def test_a_part_that_would_be_lost(
    tiny_sdxl: Path, tmp_path: Path, name: str, value: torch.Tensor, told: str
) -> None:
    path = kohya_file(tiny_sdxl, tmp_path / FILE, (2.0,))
    save_file(load_file(path) | {name: value}, path)
    assert re.search(told, refused(tiny_sdxl, path))
    save_file(load_file(path) | {name: torch.zeros(value.shape)}, path)
    if "hada" not in name:
        check_options(section(tiny_sdxl, path), PipelineFolder(tiny_sdxl))


@pytest.mark.parametrize("part", ["self_attn.norm_q.diff", "diff_m"])
def test_only_what_the_converter_drops_is_named(tmp_path: Path, part: str) -> None:
    """Not that all of a file has no place, which another way to write it would say."""
    make_tiny_wan(tmp_path / "teacher")
    path, block = tmp_path / FILE, "diffusion_model.blocks.0"
    pair = {"down": torch.ones(2, 24), "up": torch.ones(24, 2)}
    tensors = {f"{block}.self_attn.q.lora_{name}.weight": it for name, it in pair.items()}
    save_file(tensors | {f"{block}.{part}": torch.ones(24)}, path)
    told = refused(tmp_path / "teacher", path)
    assert f"1 of its 3 tensors, {block}.{part}, would be left out of this WanPipeline" in told


def test_a_file_that_changes_nothing_is_told(tiny_sdxl: Path, tmp_path: Path) -> None:
    folder = PipelineFolder(tiny_sdxl)
    idle = section(tiny_sdxl, kohya_file(tiny_sdxl, tmp_path / FILE, (0.0, 0.0)))
    (note,) = map(str, on_idle(idle, folder))
    assert "changes nothing, since its matrices or its alphas are all zero" in note
    make_tiny_wan(tmp_path / "wan")
    wan, layer = tmp_path / "wan.safetensors", "transformer.blocks.0.attn1.to_q"
    pair = {"down": torch.ones(2, 24), "up": torch.ones(24, 2)}
    save_file(
        {f"{layer}.lora_{name}.weight": it for name, it in pair.items()}
        | {f"{layer}.alpha": torch.tensor(0.0)},
        wan,
    )
    check_options(section(tmp_path / "wan", wan), PipelineFolder(tmp_path / "wan"))
    active = section(tiny_sdxl, kohya_file(tiny_sdxl, tmp_path / FILE, (0.0, 1.0)))
    assert not list(on_idle(active, folder))


@pytest.mark.parametrize(
    ("alpha", "of_layers", "is_idle"),
    [(4, {}, False), (0, {}, True), (0, {"to_q": 0}, True), (0, {"to_q": 4}, False)],
)
def test_a_file_whose_header_scales_all_with_zero_is_told(
    tiny_sdxl: Path, tmp_path: Path, alpha: int, of_layers: dict[str, int], is_idle: bool
) -> None:
    path = make_adapter(tiny_sdxl, tmp_path)
    header = read_metadata(path)
    assert header is not None
    header |= {"unet.lora_alpha": alpha, "unet.alpha_pattern": of_layers}
    header["unet.rank_pattern"] = {"to_q": 2}  # which is no scale
    save_file(load_file(path), path, {"format": "pt", METADATA: json.dumps(header)})
    assert bool(list(on_idle(section(tiny_sdxl, path), PipelineFolder(tiny_sdxl)))) == is_idle


def test_a_text_encoder_is_adapted_too(tiny_sdxl: Path, tmp_path: Path) -> None:
    """Also where a job loads one of them alone."""
    path = make_adapter(tiny_sdxl, tmp_path, text=True)
    teacher = section(tiny_sdxl, path)
    ours, encoding = loaded(teacher), loaded(teacher, leave_out=("unet", "vae"))
    stock = fused_by_diffusers(tiny_sdxl, path, 1.0, "unet", "text_encoder")
    assert_equal(ours.text_encoder, stock.text_encoder)
    assert_equal(encoding.text_encoder, stock.text_encoder)
    assert_equal(ours.unet, stock.unet)
    assert_equal(adapted(teacher), stock.unet)
    weight = "encoder.layers.0.self_attn.q_proj.weight"
    plain = load_file(tiny_sdxl / "text_encoder/model.safetensors")
    (before,) = (value for name, value in plain.items() if name.endswith(weight))
    assert not torch.equal(ours.text_encoder.state_dict()[weight], before)


def test_an_expert_alone_is_adapted(tmp_path: Path) -> None:
    folder = tmp_path / "teacher"
    wan_two_experts.make(folder)
    path = make_adapter(folder, tmp_path / "adapter")
    one = Adapter(path=str(path), expert="transformer_2")
    ours = loaded(section(folder, adapters=(one,)))
    stock = DiffusionPipeline.from_pretrained(folder)
    assert_equal(ours.transformer, stock.transformer)
    stock.load_lora_weights(str(path), load_into_transformer_2=True)
    stock.fuse_lora(components=["transformer_2"])
    stock.transformer_2.unload_lora()
    assert_equal(ours.transformer_2, stock.transformer_2)
    other = Adapter(path=str(path), expert="transformer_3")
    with pytest.raises(ValueError, match=r"'transformer_3'.*has the networks transformer, trans"):
        check_options(section(folder, adapters=(other,)), PipelineFolder(folder))


# Refusals. `check_options` finds them for the plan, without weights.


def refused(folder: Path, *paths: Path, **changes: Any) -> str:
    teacher = section(folder, *paths, **changes)
    with pytest.raises((ValueError, FileNotFoundError)) as planned:
        check_options(teacher, PipelineFolder(folder))
    with pytest.raises((ValueError, FileNotFoundError)) as loading:
        loaded(teacher, leave_out=("vae",))
    assert str(planned.value) == str(loading.value)
    return str(planned.value)


def test_all_that_does_not_fit_is_told_together(tiny: Path, tmp_path: Path) -> None:
    teacher = section(tiny, tmp_path / "lost", tmp_path / "gone", attention="fast")
    with pytest.raises(ValueError, match=r"(?s)fast.*\n.*lost.*\n.*gone"):
        check_options(teacher, PipelineFolder(tiny))


def test_what_fits_passes_the_plan(tiny: Path, tmp_path: Path) -> None:
    check_options(section(tiny, make_adapter(tiny, tmp_path, dora=True)), PipelineFolder(tiny))


def test_the_plan_reads_an_adapter_of_text_encoders_too_once(
    tiny_sdxl: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may have a gigabyte, on a slow disk."""
    read, reads = adapters.read_weights, []
    monkeypatch.setattr(adapters, "read_weights", lambda *of: reads.append(of[0]) or read(*of))
    path = make_adapter(tiny_sdxl, tmp_path, text=True)
    check_options(section(tiny_sdxl, path), PipelineFolder(tiny_sdxl))
    assert reads == [path]


def test_names_that_match_nothing(tiny: Path, tmp_path: Path) -> None:
    def rename(tensors: dict[str, torch.Tensor]) -> None:
        for name in [name for name in tensors if "attn1.to_q" in name]:
            tensors[name.replace("attn1", "attn9")] = tensors.pop(name)

    message = refused(tiny, make_adapter(tiny, tmp_path, spoil=rename))
    assert "the model has no place for" in message
    assert "attn9.to_q.lora_A.weight" in message


def test_half_of_a_pair(teacher: Path, tmp_path: Path) -> None:
    def drop(tensors: dict[str, torch.Tensor]) -> None:
        del tensors[next(name for name in tensors if "lora_B" in name)]

    message = refused(teacher, make_adapter(teacher, tmp_path, spoil=drop))
    assert "lora_B" in message


def test_an_adapter_of_a_wider_model(tiny: Path, tmp_path: Path) -> None:
    found = []

    def widen(tensors: dict[str, torch.Tensor]) -> None:
        found.extend(name for name in tensors if "lora_A" in name)
        tensors.update({name: torch.zeros(2, 99) for name in found})

    message = refused(tiny, make_adapter(tiny, tmp_path, spoil=widen))
    assert f"{len(found)} of its {2 * len(found)} tensors do not, first {min(found)}" in message
    assert f"which is 2 {TIMES} 99 and would have to be 2 {TIMES} " in message
    assert message.endswith("; use one that was trained on this teacher")
    assert "\n" not in message


def test_an_adapter_with_other_blocks_alone(tiny: Path, tmp_path: Path) -> None:
    """PEFT names every block of the file then."""

    def rename(tensors: dict[str, torch.Tensor]) -> None:
        for name in list(tensors):
            tensors[name.replace("blocks.", "layers.")] = tensors.pop(name)

    message = refused(tiny, make_adapter(tiny, tmp_path, spoil=rename))
    assert re.search(r"(\d+) of its \1 tensors do not: the model has no place for", message)
    assert len(message) < 700


def test_a_text_encoders_adapter_of_a_wider_model(tiny_sdxl: Path, tmp_path: Path) -> None:
    """Transformers would leave its tensors out, and say nothing."""
    tensors = load_file(make_adapter(tiny_sdxl, tmp_path, text=True))
    name = next(key for key in tensors if key.startswith("text_encoder.") and "down" in key)
    save_file(tensors | {name: torch.zeros(2, 99)}, tmp_path / FILE)
    message = refused(tiny_sdxl, tmp_path / FILE)
    assert "does not fit the teacher's text_encoder: 1 of its" in message
    assert f"which is 2 {TIMES} 99" in message


@pytest.mark.parametrize(
    ("count", "text"), [(0, ""), (2, "a, b"), (3, "a, b, c"), (4, "a, b, c and 1 more")]
)
def test_a_message_names_three_and_counts_the_rest(count: int, text: str) -> None:
    assert name_some(reversed("abcd"[:count])) == text


def test_an_adapter_of_another_family(tiny_sdxl: Path, tmp_path: Path) -> None:
    make_tiny_wan(tmp_path / "wan")
    path = make_adapter(tmp_path / "wan", tmp_path / "adapter")
    message = refused(tiny_sdxl, path)
    assert "was made for another model: the teacher has nothing named transformer." in message
    assert "begins with unet, " in message


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_numbers_that_are_not_finite(teacher: Path, tmp_path: Path, value: float) -> None:
    def spoil(tensors: dict[str, torch.Tensor]) -> None:
        tensors[next(name for name in tensors if "blocks.0" in name or "1" in name)][0, 0] = value

    assert "is not finite in" in refused(teacher, make_adapter(teacher, tmp_path, spoil=spoil))


def test_a_sum_that_overflows(teacher: Path, tmp_path: Path) -> None:
    path = make_adapter(teacher, tmp_path)
    with pytest.raises(ValueError, match=r"with scales \[1e\+39\] the weights .* not finite"):
        loaded(section(teacher, path, scale=1e39))


def test_dora_scales_that_diffusers_drops(tiny_sdxl: Path, tmp_path: Path) -> None:
    tensors = load_file(make_adapter(tiny_sdxl, tmp_path))
    tensors["unet.x.dora_scale"] = torch.ones(3)
    save_file(tensors, tmp_path / FILE)
    assert "unet.x.dora_scale, which Diffusers drops" in refused(tiny_sdxl, tmp_path / FILE)


def test_a_file_that_is_no_adapter(teacher: Path) -> None:
    weights = teacher / PipelineFolder(teacher).denoisers[0] / "diffusion_pytorch_model.safetensors"
    assert "is no LoRA or DoRA: it holds" in refused(teacher, weights)


def test_a_damaged_file(teacher: Path, tmp_path: Path) -> None:
    path = make_adapter(teacher, tmp_path)
    path.write_bytes(path.read_bytes()[:500])
    assert "is damaged" in refused(teacher, path)


def test_where_an_adapter_is(tmp_path: Path) -> None:
    (tmp_path / "one").mkdir()
    (tmp_path / "one" / "a.safetensors").touch()
    assert find_adapter(Adapter(path=str(tmp_path / "one"))).name == "a.safetensors"
    (tmp_path / "one" / "b.safetensors").touch()
    with pytest.raises(FileNotFoundError, match=r"weight_name is null .* a\.safetensors, b\."):
        find_adapter(Adapter(path=str(tmp_path / "one")))
    with pytest.raises(FileNotFoundError, match=r"no LoRA: no \.safetensors file is in it"):
        find_adapter(Adapter(path=str(tmp_path)))
    named = Adapter(path=str(tmp_path / "one"), weight_name="b.safetensors")
    assert find_adapter(named).name == "b.safetensors"
    file = str(tmp_path / "one" / "a.safetensors")
    with pytest.raises(ValueError, match=r"path is the file .*, and weight_name is 'b.*: remove"):
        find_adapter(Adapter(path=file, weight_name="b.safetensors"))
    for path in ("/nowhere/x.safetensors", "loras/mistyped.safetensors", "a/b/c", "./a", "~/a"):
        with pytest.raises(FileNotFoundError, match="there is no such file or folder"):
            find_adapter(Adapter(path=path))
    (tmp_path / "a.bin").touch()
    with pytest.raises(FileNotFoundError, match=r"a\.bin is no safetensors file"):
        find_adapter(Adapter(path=str(tmp_path / "a.bin")))


# What depends on an adapter.


def recipe_hash(teacher: Teacher, folder: Path) -> str:
    job = TargetsJob.model_validate(
        {"seed": 0, "teacher": teacher, "targets": SETTINGS["targets"]}, strict=False
    )
    return targets_recipe(job, PipelineFolder(folder), "embeddings").hash


def test_a_changed_adapter_changes_the_targets(teacher: Path, tmp_path: Path) -> None:
    path = make_adapter(teacher, tmp_path, seed=1)
    plain, first = section(teacher), section(teacher, path)
    found = [recipe_hash(plain, teacher), recipe_hash(first, teacher)]
    found += [recipe_hash(section(teacher, path, scale=0.5), teacher)]
    found += [recipe_hash(section(teacher, path, fuse_adapters=False), teacher)]
    shutil.copy(path, tmp_path / "moved.safetensors")
    assert recipe_hash(section(teacher, tmp_path / "moved.safetensors"), teacher) == found[1]
    make_adapter(teacher, tmp_path, seed=2)
    found += [recipe_hash(first, teacher)]
    assert len(set(found)) == len(found)


def test_the_hash_of_an_adapted_teacher_is_that_of_earlier_releases(
    teacher: Path, tmp_path: Path
) -> None:
    """Another one would make every target of every adapted teacher again."""
    path = make_adapter(teacher, tmp_path, seed=1)
    folder = PipelineFolder(teacher)
    expected = hash_of_earlier_releases(folder, path, 0.5)
    assert teacher_hash(section(teacher, path, scale=0.5), folder) == expected


def test_embeddings_depend_on_adapted_text_encoders_alone(tiny_sdxl: Path, tmp_path: Path) -> None:
    plain = section(tiny_sdxl)
    unet = section(tiny_sdxl, make_adapter(tiny_sdxl, tmp_path / "unet"))
    text = section(tiny_sdxl, make_adapter(tiny_sdxl, tmp_path / "text", text=True))
    folder = PipelineFolder(tiny_sdxl)
    assert text_hash(unet, folder) == text_hash(plain, folder)
    assert text_hash(text, folder) != text_hash(plain, folder)
    hashes = {teacher_hash(teacher, folder) for teacher in (plain, unet, text)}
    assert len(hashes) == 3


def test_components_that_no_adapter_changes_stay_as_they_are(teacher: Path, tmp_path: Path) -> None:
    given = section(teacher, make_adapter(teacher, tmp_path))
    linear = torch.nn.Linear(2, 2)
    before = linear.weight.clone()
    adapt({"vae": linear}, given, PipelineFolder(teacher), fuse=True)
    assert torch.equal(linear.weight, before)


def test_an_export_has_the_adapted_text_encoder_and_leaves_the_teacher_alone(
    tiny_sdxl: Path, tmp_path: Path
) -> None:
    path = make_adapter(tiny_sdxl, tmp_path / "adapter", text=True)
    adapter = {"path": str(path)}
    changes = {"adapters": [adapter], "max_sequence_length": None}
    before = PipelineFolder(tiny_sdxl).fingerprint()
    targets = {"guidance_scale": 1.0, "steps": 2, "batch_size": 4}
    run = make_run(tmp_path / "run", tiny_sdxl, teacher=changes, targets=targets)
    run.encode("train")
    run.all_targets()
    folder = run.train_and_export()
    card = (folder / "README.md").read_text()
    assert "the teacher's (text encoders with its adapters fused);" in card
    exported = DiffusionPipeline.from_pretrained(folder)
    teacher = loaded(run.config.teacher)
    assert_equal(exported.text_encoder, teacher.text_encoder)
    assert PipelineFolder(tiny_sdxl).fingerprint() == before
