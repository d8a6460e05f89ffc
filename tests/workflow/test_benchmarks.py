"""The speed benchmark runs the real stages; here at a size where that takes seconds."""

from dataclasses import replace
from pathlib import Path

import diffusers
import generation
import pytest
import torch
import training_speed
from models import FLUX, MODELS, SDXL, WAN, Model, count_teraflops
from stages import make_teacher

import forks
from distillery.files import read_json


@pytest.fixture(autouse=True)
def quick_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    """The processes that a benchmark starts are forks: their times are looked at, not reported."""
    forks.stand_in(monkeypatch)


def shrink(model: Model, network: dict[str, object], vae: dict[str, object], text: int) -> Model:
    """The same model with other sizes; pooled vectors have half the text's features."""
    name, class_name, released = model.denoiser
    sizes = {"prompt_embeds": (model.prompt["prompt_embeds"][0], text), "pooled": (1, text // 2)}
    return replace(
        model,
        denoiser=(name, class_name, released | network),
        vae=(model.vae[0], model.vae[1] | vae),
        height=64,
        width=64,
        steps=4,
        batch_size=2,
        prompt={name: sizes[name] for name in model.prompt},
    )


TINY_KL = {"block_out_channels": [32] * 4}
TINY = {
    "sdxl": shrink(
        SDXL,
        {
            "block_out_channels": [32, 64, 64],
            "transformer_layers_per_block": [1, 1, 1],
            "attention_head_dim": [2, 2, 2],
            "cross_attention_dim": 64,
            "projection_class_embeddings_input_dim": 6 * 256 + 32,
        },
        TINY_KL,
        64,
    ),
    "wan": shrink(
        WAN,
        {
            "num_attention_heads": 2,
            "attention_head_dim": 32,
            "text_dim": 64,
            "ffn_dim": 64,
            "num_layers": 2,
        },
        {"base_dim": 8},
        64,
    ),
    "flux": shrink(
        FLUX,
        {
            "num_layers": 1,
            "num_single_layers": 1,
            "attention_head_dim": 32,
            "num_attention_heads": 2,
            "joint_attention_dim": 64,
            "pooled_projection_dim": 32,
            "axes_dims_rope": [8, 12, 12],
        },
        TINY_KL,
        64,
    ),
}
OPTIONS = "--stock 1 --stock-batches 1 --eager 4 --targets 0 --vae-dtype bfloat16 --precision"


@pytest.mark.slow
@pytest.mark.parametrize("name", ["sdxl", "wan"])
def test_everything_is_measured(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A UNet whose images are made too, and a transformer of frames; FLUX adds no other code."""
    monkeypatch.setitem(MODELS, name, TINY[name])
    output = tmp_path / "found.json"
    where = ["--folder", str(tmp_path / name), "--output", str(output)]
    samples = ["--samples", "6", "--few-steps", "2"] if name == "sdxl" else []
    assert generation.main([name, *where, *OPTIONS.split(), *samples]) == 0
    found = read_json(output)
    assert found["stock"]["images_per_s"] > 0
    assert found["stock-batch"]["images_per_s"] > 0
    assert all(0 < error < 0.1 for error in found["precision"]["error_to_float32"]["stock"])
    assert all(0.5 < ratio < 2 for ratio in found["precision"]["ours_to_stock"])
    assert set(found["stages"]) == {"targets-never-1", *(["samples-always-1"] if samples else [])}
    for stage in found["stages"].values():
        assert stage["images_per_s_per_gpu"] == pytest.approx(stage["images_per_s"][0])
        assert 0 < stage["busy_share"] <= 1
        assert stage["begins_after_s"][0] < stage["ready_after_s"][0] < stage["seconds"]
    assert "targets-never-1" in capsys.readouterr().out


def test_rates_are_compared_with_peaks_and_whole_stages() -> None:
    def stage(num_gpus: int, seconds: float) -> dict[str, object]:
        return {"num_gpus": num_gpus, "seconds": seconds, "images_per_s_per_gpu": 1.0}

    stages = {"targets-never-1": stage(1, 60.0), "targets-never-4": stage(4, 62.5)}
    peaks = {"peak_tflops": 100.0, "sustained_tflops": [80.0]}
    results = {"teraflops_a_call": 1.0, "stages": stages, **peaks}
    told = generation.explain(TINY["flux"], results)
    assert "4 TFLOP/s: 4.0% of the peak of 100, 5.0% of 80 sustained" in told
    assert "62.5 s, efficiency 96.0%" in told


def test_operations_of_a_linear_network_are_counted(tmp_path: Path) -> None:
    """FLUX's modulation acts once an image, its blocks on every token."""
    counts = []
    for height in (64, 128):
        model = replace(TINY["flux"], height=height)
        make_teacher(model, tmp_path / str(height))
        counts.append(count_teraflops(model, tmp_path / str(height)) * 1e12)
    assert 1 < counts[1] / counts[0] < 2


@pytest.mark.parametrize("name", MODELS)
def test_the_released_configurations_are_known_to_diffusers(name: str) -> None:
    model = MODELS[name]
    with torch.device("meta"):
        network = getattr(diffusers, model.denoiser[1]).from_config(model.denoiser[2])
    billions = sum(parameter.numel() for parameter in network.parameters()) / 1e9
    assert billions == pytest.approx({"sdxl": 2.57, "wan": 14.3, "flux": 11.9}[name], rel=0.02)


@pytest.mark.slow
def test_trainings_from_stored_and_from_online_targets_are_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(training_speed.TRAINED, "wan", TINY["wan"])
    output = tmp_path / "found.json"
    options = (
        "--batch 2 --updates 1 --warm 1 --trajectories 8 --num-gpus 0 --teacher-steps 1 "
        '--checkpoint --finish --settings {"dtype":"float32"}'
    )
    folder = ["--folder", str(tmp_path), "--output", str(output)]
    assert training_speed.main(["wan", *folder, *options.split()]) == 0
    found = read_json(output)["trainings"]
    assert found.keys() == {"stored-0", "finish-0", "online-every_rank-1-0"}
    assert read_json(output)["finish_cost"].keys() == {"finish-0"}
    assert all(result["samples_per_s"] > 0 for result in found.values())
    assert all(0 <= result["waiting_share"] < 1 for result in found.values())
    assert found["stored-0"]["saves"]


def test_storing_has_paid_for_itself_when_it_has_saved_what_it_cost() -> None:
    """2.5 trajectories/s are 0.4 s for each; 4 samples of it save 0.1 s each in every epoch."""
    rates = {"stored-1": 10.0, "online-5-1": 5.0, "stored-2": 20.0, "online-5-2": 8.0}
    trainings = {name: {"samples_per_s": rate} for name, rate in rates.items()}
    found = training_speed.break_even(trainings, trajectories_per_s=2.5)
    assert found == pytest.approx({"online-5-1": 1.0, "online-5-2": 0.2 / (4 * 0.075)})
