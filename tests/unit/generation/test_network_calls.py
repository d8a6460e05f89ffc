"""How often a teacher's network is asked for one image, by solvers that look more than once."""

from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from safetensors.torch import load_file

from distillery.config.run import parse_config
from distillery.noise import SampleId, noise_seed
from families.made import made_teacher
from families.sdxl import CASE
from runs import Run, generating_settings, loaded, planned, summary

LOOKS = {
    "EulerDiscreteScheduler": 4,
    "HeunDiscreteScheduler": 7,
    "PNDMScheduler": 13,
}
GUIDED = {"source": "teacher", "steps": 4, "guidance_scale": 3.0}
UNGUIDED = GUIDED | {"guidance_scale": 1.0}


@pytest.fixture(scope="module")
def teacher(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return made_teacher(tmp_path_factory, CASE)


def raw_settings(folder: Path, teacher: Path, solver: str) -> dict[str, Any]:
    section = {
        "height": CASE.height,
        "width": CASE.width,
        "scheduler": {"class": solver},
        "max_sequence_length": CASE.max_tokens,
        "negative_prompt": None,
    }
    samples = {"models": {"guided": GUIDED, "unguided": UNGUIDED}, "num_shards": 1}
    return generating_settings(folder, teacher, teacher=section, samples=samples)


@pytest.mark.parametrize("solver", LOOKS)
def test_the_plan_counts_what_the_solver_asks_for(
    tmp_path: Path, teacher: Path, solver: str
) -> None:
    plan = planned(raw_settings(tmp_path, teacher, solver), tmp_path)
    looks, text = LOOKS[solver], " ".join(summary(plan).split())
    per_model = plan["work"]["num_images"] // 2
    assert plan["work"]["teacher_calls"] == (2 + 1) * looks * per_model
    assert f"guided teacher 4 3 {2 * looks} " in text
    assert f"unguided teacher 4 none {looks} " in text
    assert (f"in which the network is asked {looks} times" in text) == (looks != 4)


@pytest.mark.parametrize("solver", LOOKS)
def test_the_table_has_the_calls_that_were_made_and_the_last_state(
    tmp_path: Path, teacher: Path, solver: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Run(tmp_path / "run", parse_config(raw_settings(tmp_path, teacher, solver), "t"))
    run.encode("eval")
    network = type(loaded(run.config.teacher).unet)
    asked, forward = list[int](), network.forward

    def counted(self: Any, sample: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        asked.append(len(sample))
        return forward(self, sample, *args, **kwargs)

    with monkeypatch.context() as patch:
        patch.setattr(network, "forward", counted)
        run.samples(model="guided")
    table = pd.read_parquet(next(tmp_path.rglob("shard-0-of-1.parquet")))
    batch, count = run.config.samples.batch_size, len(table)
    assert sum(asked) == 2 * LOOKS[solver] * -(-count // batch) * batch
    assert set(table["network_calls"]) == {2 * LOOKS[solver]}
    row = table.iloc[0]
    seed = noise_seed(run.config.seed, SampleId(row["prompt_id"], 0))
    latents = loaded(run.config.teacher)(
        row["prompt"],
        generator=torch.Generator().manual_seed(seed),
        height=CASE.height,
        width=CASE.width,
        num_inference_steps=4,
        guidance_scale=3.0,
        output_type="latent",
    ).images[0]
    (stored,) = tmp_path.rglob(f"{row['prompt_id']}/0.safetensors")
    assert torch.allclose(load_file(stored)["latents"], latents, atol=1e-3, rtol=1e-3)
