"""Offloading, several GPUs and attention kernels: what cannot work is refused, what works is equal.

Where there is no GPU, accelerate's own hooks run with the CPU in the GPU's place: that shows that
they and ours compose, and nothing about devices. The tests marked with a GPU show the rest.
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import accelerate
import pytest
import torch
from accelerate import cpu_offload, dispatch_model
from diffusers import DiffusionPipeline

from adapters import make_adapter
from distillery.config.parsing import parse
from distillery.config.teacher import Teacher
from distillery.families import Request, Setting, Size
from distillery.teacher.adapters import teacher_hash
from distillery.teacher.folder import PipelineFolder
from distillery.teacher.placement import balance, check_devices, plan_blocks
from distillery.teacher.skeleton import check_options
from families import sdxl
from runs import CPU, loaded
from tiny import MAX_TOKENS, make_tiny_wan, tiny_transformer

CUDA = torch.device("cuda", 0)
CLOSE = {"float32": 1e-4, "bfloat16": 5e-2}
"""Of latents of order one; between devices and kernels sums differ in their last bits."""
Hook = Callable[[Any, Any], None]


def fields(folder: Path, **changes: Any) -> dict[str, Any]:
    return {"path": str(folder), "dtype": "float32", "height": 32, "width": 32} | changes


def section(folder: Path, **changes: Any) -> Teacher:
    return parse(Teacher, fields(folder, **changes), "test")


@pytest.fixture(scope="module", params=["wan", "sdxl"])
def tiny(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp(request.param) / "teacher"
    (make_tiny_wan if request.param == "wan" else sdxl.make)(folder)
    return folder


@pytest.fixture(scope="module")
def network(tiny: Path) -> Any:
    """Its denoiser; tests must not change it."""
    return getattr(loaded(section(tiny)), PipelineFolder(tiny).denoisers[0])


def draw(pipeline: Any, folder: Path, decode: bool = False) -> torch.Tensor:
    """The latents, or the images, of two prompts through the family's own call."""
    family = PipelineFolder(folder).family
    length = MAX_TOKENS if family.name == "wan" else 77
    prompts = family.encode(pipeline, ["a red dog", "a blue cat"], length)
    negative = family.pad([family.encode_no_negative(pipeline, length)] * 2, length)
    request = Request(
        seeds=[0, 1],
        conditioning=family.pad(prompts, length),
        negative=negative,
        steps=3,
        setting=Setting(Size(32, 32), 3.0),
        decode=True,
        dtype=torch.float32,
    )
    seen: list[torch.Tensor] = []
    original = pipeline.scheduler.step

    def step(*args: Any, **kwargs: Any) -> Any:
        result = original(*args, **kwargs)
        seen.append(result[0])
        return result

    pipeline.scheduler.step = step
    images = family.generate(pipeline, request)
    del pipeline.scheduler.step
    assert len(seen) == 3
    return torch.as_tensor(images) if decode else seen[-1].float().cpu()


def stay(_pipeline: Any, _denoiser: Any) -> None:
    """No hooks."""


def offload_model(pipeline: Any, _denoiser: Any) -> None:
    pipeline.enable_model_cpu_offload(device=CPU)


def offload_layers(pipeline: Any, _denoiser: Any) -> None:
    """What `enable_sequential_cpu_offload` does; that wants a device with a number."""
    for model in pipeline.components.values():
        if isinstance(model, torch.nn.Module):
            cpu_offload(model, CPU, offload_buffers=len(model._parameters) > 0)


def dispatch(_pipeline: Any, denoiser: Any) -> None:
    places = {name: "cpu" for name, _ in denoiser.named_children()}
    places |= {name: "cpu" for name, _ in denoiser.named_parameters(recurse=False)}
    dispatch_model(denoiser, places, main_device="cpu", force_hooks=True)


@pytest.mark.parametrize(
    ("dtype", "hooks"),
    [("bfloat16", (offload_model, offload_layers, dispatch)), ("float32", (offload_layers,))],
    ids=["bfloat16", "float32"],
)
def test_hooks_compose_with_states_in_float32(
    tiny: Path, dtype: Any, hooks: tuple[Hook, ...]
) -> None:
    found = []
    for chosen in (stay, *hooks):
        pipeline = loaded(section(tiny, dtype=dtype))
        denoiser = getattr(pipeline, PipelineFolder(tiny).denoisers[0])
        chosen(pipeline, denoiser)
        assert hasattr(denoiser, "_hf_hook") == (chosen is not stay)
        found.append(draw(pipeline, tiny))
        assert found[-1].dtype == torch.float32
        assert torch.equal(found[0], found[-1]), chosen.__name__


@pytest.mark.parametrize("fuse", [True, False], ids=["fused", "beside"])
def test_hooks_compose_with_adapters(tiny: Path, tmp_path: Path, fuse: bool) -> None:
    path = make_adapter(tiny, tmp_path, dora=True)
    teacher = section(tiny, adapters=[{"path": str(path)}], fuse_adapters=fuse)
    found = []
    for hook in (stay, offload_model):
        pipeline = loaded(teacher)
        hook(pipeline, None)
        found.append(draw(pipeline, tiny))
    assert torch.equal(*found)


@pytest.mark.parametrize("offload", ["none", "model", "sequential"])
def test_what_is_offloaded_is_never_whole_on_the_gpu(
    tiny: Path, monkeypatch: pytest.MonkeyPatch, offload: str
) -> None:
    """What has been there once has needed the memory. There need be no GPU, none is reached."""
    moves: list[Any] = []
    monkeypatch.setattr(DiffusionPipeline, "to", lambda _, place, **__: moves.append(place))
    monkeypatch.setattr(accelerate, "cpu_offload", lambda *_, **__: None)  # wants a real device
    loaded(section(tiny, offload=offload), CUDA)
    assert (CUDA in moves) == (offload == "none")


# Several GPUs.


def test_blocks_are_spread_evenly_and_stay_whole(network: Any) -> None:
    size = sum(value.numel() * 4 for value in network.state_dict().values())
    blocks = network._no_split_modules
    places = plan_blocks(network, {0: int(size * 0.7), 1: size}, blocks)
    assert set(places.values()) == {0, 1}
    for name, part in network.named_modules():
        if type(part).__name__ in blocks:
            assert not any(place.startswith(f"{name}.") for place in places)


@pytest.mark.parametrize("num_gpus", [2, 3])
def test_gpus_share_a_network_evenly(num_gpus: int) -> None:
    with torch.random.fork_rng(devices=[]):
        model = tiny_transformer(num_layers=12)
    free = dict.fromkeys(range(num_gpus), 10**9)
    places = plan_blocks(
        model, balance(model, free, model._no_split_modules), model._no_split_modules
    )
    num_blocks = [
        sum(name.startswith("blocks.") and place == index for name, place in places.items())
        for index in free
    ]
    assert sum(num_blocks) == 12
    assert max(num_blocks) - min(num_blocks) <= 3


def test_two_blocks_go_to_two_gpus(network: Any) -> None:
    blocks = network._no_split_modules
    places = plan_blocks(network, balance(network, {0: 10**9, 1: 10**9}, blocks), blocks)
    assert set(places.values()) == {0, 1}


def test_a_network_that_does_not_fit(network: Any) -> None:
    with pytest.raises(ValueError, match=r"does not fit on 2 GPUs .*raise teacher\.num_gpus"):
        plan_blocks(network, {0: 1000, 1: 1000}, network._no_split_modules)


# What is refused.


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"offload": "model"}, r"teacher\.offload is 'model' and this job has no GPU"),
        ({"offload": "sequential"}, "set offload: none"),
        ({"num_gpus": 2}, r"teacher\.num_gpus is 2 and this job sees 0: set num_gpus: 1"),
    ],
)
def test_without_a_gpu(tiny: Path, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        loaded(section(tiny, **changes))


def test_too_few_gpus(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    check_devices(section(tiny, num_gpus=2), CUDA)
    with pytest.raises(ValueError, match=r"num_gpus is 3 and this job sees 2: set num_gpus: 2"):
        check_devices(section(tiny, num_gpus=3), CUDA)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_gpus": 2, "offload": "model"}, r"num_gpus: 1 or offload: none"),
        ({"adapters": [{"path": "a"}], "fuse_adapters": False, "num_gpus": 2}, "fuse_adapters: tr"),
        (
            {"adapters": [{"path": "a"}], "fuse_adapters": False, "offload": "sequential"},
            r"is false with offload: sequential: .* set fuse_adapters: true",
        ),
        ({"vae_dtype": "float16", "offload": "sequential"}, "set vae_dtype: float32 or offload: m"),
        ({"adapters": [{"pth": "a"}]}, r"adapters\.0\.pth is not a key .*known here: expert, path"),
        ({"num_gpus": 0}, r"num_gpus is 0"),
    ],
)
def test_pairs_that_cannot_be(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        section(Path("teacher"), **changes)


@pytest.mark.parametrize(
    "changes",
    [
        {"adapters": [{"path": "a"}], "fuse_adapters": False, "offload": "model"},
        {"adapters": [{"path": "a"}], "num_gpus": 2},
        {"dtype": "bfloat16", "attention": "flash", "offload": "sequential"},
        {"fuse_adapters": False, "num_gpus": 2},
    ],
)
def test_pairs_that_can_be(changes: dict[str, Any]) -> None:
    made = section(Path("teacher"), **changes).model_dump(exclude_unset=True)
    assert {name: made[name] for name in changes if name != "adapters"} == {
        name: value for name, value in changes.items() if name != "adapters"
    }


# Attention.


@pytest.fixture
def default_attention() -> Iterator[None]:
    """Diffusers keeps the last backend for the whole process."""
    from diffusers.models.attention_dispatch import AttentionBackendName, _AttentionBackendRegistry

    yield
    _AttentionBackendRegistry.set_active_backend(AttentionBackendName.NATIVE)


@pytest.fixture
def wan(teacher: Path) -> Path:
    return teacher


@pytest.mark.usefixtures("default_attention")
def test_the_chosen_kernels_are_taken(wan: Path) -> None:
    teacher = section(wan, attention="_native_math")
    check_options(teacher, PipelineFolder(wan))
    pipeline = loaded(teacher)
    for block in pipeline.transformer.blocks:
        assert block.attn1.processor._attention_backend == "_native_math"
    plain = loaded(section(wan))
    assert plain.transformer.blocks[0].attn1.processor._attention_backend is None
    torch.testing.assert_close(draw(pipeline, wan), draw(plain, wan), atol=1e-4, rtol=1e-4)


def test_kernels_that_cannot_be_taken(wan: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"attention is 'fast': Diffusers knows flash, .*native"):
        check_options(section(wan, attention="fast"), PipelineFolder(wan))
    with pytest.raises(ValueError, match=r"attention is 'sagee': Diffusers knows flash, .*native"):
        check_options(section(wan, attention="sagee"), PipelineFolder(wan))
    with pytest.raises(ValueError, match=r"'flash' .*kernels take bfloat16 and float16 alone"):
        check_options(section(wan, attention="flash"), PipelineFolder(wan))
    with pytest.raises(ValueError, match=r"'_native_cudnn' .*bfloat16 or attention: native"):
        check_options(section(wan, attention="_native_cudnn"), PipelineFolder(wan))
    with pytest.raises(ValueError, match=r"attention is 'flash': .*flash"):
        loaded(section(wan, attention="flash", dtype="bfloat16"))
    sdxl.make(tmp_path / "sdxl")
    with pytest.raises(ValueError, match="UNet2DConditionModel always calls PyTorch's own"):
        check_options(
            section(tmp_path / "sdxl", attention="native"), PipelineFolder(tmp_path / "sdxl")
        )


def test_results_depend_on_attention_and_not_on_placement(wan: Path) -> None:
    plain = teacher_hash(section(wan), PipelineFolder(wan))
    assert teacher_hash(section(wan, attention="native"), PipelineFolder(wan)) != plain
    assert teacher_hash(section(wan, offload="model"), PipelineFolder(wan)) == plain
    assert teacher_hash(section(wan, num_gpus=2), PipelineFolder(wan)) == plain


# On GPUs.


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("offload", ["model", "sequential"])
def test_offloading_gives_the_same_latents(tiny: Path, dtype: Any, offload: str) -> None:
    """And its components wait on the host."""
    found = []
    for choice in ("none", offload):
        pipeline = loaded(section(tiny, dtype=dtype, offload=choice), CUDA)
        weights = next(getattr(pipeline, PipelineFolder(tiny).denoisers[0]).parameters())
        expected = {"none": "cuda", "model": "cpu", "sequential": "meta"}[choice]
        assert weights.device.type == expected
        assert pipeline._execution_device.type == "cuda"
        found.append(draw(pipeline, tiny))
    torch.testing.assert_close(*found, atol=CLOSE[dtype], rtol=CLOSE[dtype])


@pytest.mark.gpu
def test_offloading_with_an_adapter_beside_the_weights(tiny: Path, tmp_path: Path) -> None:
    adapters = [{"path": str(make_adapter(tiny, tmp_path, dora=True))}]
    found = [
        draw(
            loaded(section(tiny, adapters=adapters, fuse_adapters=False, offload=offload), CUDA),
            tiny,
        )
        for offload in ("none", "model")
    ]
    torch.testing.assert_close(*found, atol=1e-4, rtol=1e-4)


@pytest.mark.gpu(2)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_several_gpus_give_the_same_latents(tiny: Path, dtype: Any) -> None:
    found = []
    for num_gpus in (1, 2):
        pipeline = loaded(section(tiny, dtype=dtype, num_gpus=num_gpus), CUDA)
        parameters = getattr(pipeline, PipelineFolder(tiny).denoisers[0]).parameters()
        assert len({parameter.device for parameter in parameters}) == num_gpus
        found.append(draw(pipeline, tiny))
    torch.testing.assert_close(*found, atol=CLOSE[dtype], rtol=CLOSE[dtype])


@pytest.mark.gpu
@pytest.mark.usefixtures("default_attention")
@pytest.mark.parametrize("attention", ["native", "_native_flash"])
def test_kernels_give_nearly_the_same_latents(wan: Path, attention: str) -> None:
    found = [
        draw(loaded(section(wan, dtype="bfloat16", attention=name), CUDA), wan)
        for name in (None, attention)
    ]
    torch.testing.assert_close(*found, atol=CLOSE["bfloat16"], rtol=CLOSE["bfloat16"])
