"""Teachers as people have them: one file, a hub id, another pipeline's class, code of their own."""

import http.server
import json
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

import forks
from distillery.config.teacher import Teacher
from distillery.teacher.folder import PipelineFolder, find_teacher
from distillery.teacher.single_file import guess_base

ROOT = Path(__file__).parents[3]
DEMO = ROOT / "resources/demo/teacher"
BASES = {
    "stabilityai/stable-diffusion-xl-base-1.0": (
        "conditioner.embedders.1.model.transformer.resblocks.9.mlp.c_proj.bias"
    ),
    "stable-diffusion-v1-5/stable-diffusion-v1-5": (
        "cond_stage_model.transformer.text_model.embeddings.position_embedding.weight"
    ),
    "stabilityai/stable-diffusion-3.5-large": (
        "model.diffusion_model.joint_blocks.37.x_block.mlp.fc1.weight"
    ),
    "black-forest-labs/FLUX.1-schnell": "double_blocks.0.img_attn.norm.key_norm.scale",
    None: "lora_unet_down_blocks_0.alpha",
}
"""A tensor that tells of which released model a single file was made."""


def section(path: object, **others: Any) -> Teacher:
    return Teacher(path=str(path), height=64, width=64, **others)


def refusal(path: object) -> str:
    with pytest.raises((FileNotFoundError, ValueError)) as caught:
        find_teacher(section(path))
    assert "\n" not in str(caught.value)
    return str(caught.value)


def write_single(path: Path, name: str) -> Path:
    save_file({name: torch.zeros(1)}, path)
    return path


@pytest.mark.parametrize(("base", "name"), BASES.items())
def test_a_single_file_is_told_where_it_goes(base: str | None, name: str, tmp_path: Path) -> None:
    file = write_single(tmp_path / "model v1.safetensors", name)
    said = refusal(file)
    assert said.startswith(f"teacher.path is '{file}': it is one file of weights; set teacher.path")
    assert f"({base}, by its tensors) and teacher.weights: '{file}'" in said or base is None
    assert ("by its tensors" in said) == (base is not None)
    assert guess_base(file) == base


def test_a_folder_that_holds_a_single_file(tmp_path: Path) -> None:
    name = BASES["stabilityai/stable-diffusion-xl-base-1.0"]
    file = write_single(tmp_path / "a.safetensors", name)
    assert f"{tmp_path} has no model_index.json: it is one file" in refusal(tmp_path)
    assert f"teacher.weights: '{file}'" in refusal(tmp_path)
    shutil.copyfile(file, tmp_path / "b.safetensors")
    assert "must be a folder in Diffusers format" in refusal(tmp_path)


def test_a_network_of_another_library_is_no_single_file(tmp_path: Path) -> None:
    """Such as a CLIP model: nothing converts it into a pipeline."""
    (tmp_path / "model.safetensors").touch()
    (tmp_path / "config.json").write_text('{"model_type": "clip"}')
    assert "teacher.path must be a folder in Diffusers format" in refusal(tmp_path)
    assert "one file" not in refusal(tmp_path)


def test_a_home_folders_sign_is_named() -> None:
    assert "no such folder (~ is not expanded here)" in refusal("~/models/wan")
    assert "~" not in refusal("/nowhere")


@pytest.mark.parametrize(
    "path",
    [
        "owner/name/sd_xl_base_1.0.safetensors",
        "owner/name.safetensors",
        "https://huggingface.co/owner/name/blob/main/model.safetensors",
        "models/old.ckpt",
    ],
)
def test_a_single_file_elsewhere(path: str) -> None:
    assert "it is one file" in refusal(path)
    assert f"teacher.weights: '{path}'" in refusal(path)
    assert ("there is no such file here" in refusal(path)) == ("://" not in path)


def test_a_damaged_file_is_still_one_file(tmp_path: Path) -> None:
    (tmp_path / "x.safetensors").write_bytes(b"not one")
    assert ": it is one file" in refusal(tmp_path / "x.safetensors")


@pytest.fixture
def sdxl(tmp_path: Path) -> Path:
    """What the class is judged by: model_index.json and the network's configuration."""
    folder = tmp_path / "teacher"
    (folder / "unet").mkdir(parents=True)
    index = {"_class_name": "StableDiffusionXLImg2ImgPipeline", "unet": ["diffusers", "UNet"]}
    (folder / "model_index.json").write_text(json.dumps(index))
    (folder / "unet/config.json").write_text(json.dumps({"in_channels": 4, "out_channels": 4}))
    return folder


def edit(path: Path, **changes: Any) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


@pytest.mark.parametrize("use", ["Img2Img", "Inpaint"])
def test_another_class_of_the_same_networks(sdxl: Path, use: str) -> None:
    edit(sdxl / "model_index.json", _class_name=f"StableDiffusionXL{use}Pipeline")
    assert "StableDiffusionXLPipeline has the same networks" in refusal(sdxl)
    assert refusal(sdxl).endswith("write it there as _class_name")


def test_networks_that_cannot_draw_from_text_alone(sdxl: Path) -> None:
    edit(sdxl / "unet/config.json", in_channels=9)
    assert "no family for the pipeline class 'StableDiffusionXLImg2Img" in refusal(sdxl)
    edit(sdxl / "unet/config.json", in_channels=4)
    edit(sdxl / "model_index.json", requires_aesthetics_score=True)
    assert "no family for the pipeline class 'StableDiffusionXLImg2Img" in refusal(sdxl)
    edit(sdxl / "model_index.json", _class_name="FluxFillPipeline")
    assert "no family for the pipeline class 'FluxFillPipeline'" in refusal(sdxl)


@pytest.mark.parametrize(
    "changes",
    [
        {"_class_name": ["pipeline", "MyPipeline"]},
        {"transformer": ["my_transformer", "MyTransformer"]},
        {"text_encoder": ["os", "system"]},
    ],
)
def test_code_of_the_teachers_own_is_refused(changes: dict[str, Any], tmp_path: Path) -> None:
    folder = tmp_path / "teacher"
    shutil.copytree(DEMO, folder)
    (folder / "transformer/my_transformer.py").write_text("raise SystemExit('was run')")
    edit(folder / "model_index.json", **changes)
    ((name, value),) = changes.items()
    assert f"{name} is {value}, code of the teacher's own, which is never run" in refusal(folder)


def test_classes_of_a_diffusers_module_are_known(tmp_path: Path) -> None:
    """As the safety checker of Stable Diffusion 1.5."""
    folder = tmp_path / "teacher"
    shutil.copytree(DEMO, folder)
    checker = ["stable_diffusion", "StableDiffusionSafetyChecker"]
    edit(folder / "model_index.json", safety_checker=checker)
    with pytest.raises(FileNotFoundError, match="incomplete, missing: safety_checker;"):
        PipelineFolder(folder).check_complete()


def test_pickled_weights_are_named_and_not_read(tmp_path: Path) -> None:
    folder = tmp_path / "teacher"
    shutil.copytree(DEMO, folder)
    weights = folder / "vae/diffusion_pytorch_model.safetensors"
    weights.rename(weights.with_suffix(".bin"))
    assert "vae/*.safetensors (there is a .bin, which could run code and is not" in refusal(folder)


class Hub(http.server.BaseHTTPRequestHandler):
    """Answers as the hub does for a gated repository, and for what it does not have."""

    def do_GET(self) -> None:
        if (
            "owner/gated" in self.path
            and "/resolve/" not in self.path
            and "/tree/" not in self.path
        ):
            files = [{"rfilename": "model_index.json"}]
            self.answer(200, {"id": "owner/gated", "sha": "a" * 40, "siblings": files})
        elif "owner/gated" in self.path:
            self.answer(403, {}, "GatedRepo")
        else:
            self.answer(404, {}, "RevisionNotFound" if "owner/old" in self.path else "RepoNotFound")

    def do_HEAD(self) -> None:
        self.do_GET()

    def answer(self, status: int, body: dict[str, Any], code: str = "") -> None:
        content = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("X-Error-Code", code)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(content)

    def log_message(self, *_: Any) -> None:
        """Say nothing."""


@pytest.fixture
def hub() -> Iterator[str]:
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


FIND = """
import importlib
import logging
import sys
from huggingface_hub import constants, hf_api
from distillery.config.teacher import Adapter, Teacher
from distillery.measures.judge import check_judge
from distillery.measures.vision import check_vision_model
from distillery.teacher.adapters import find_adapter
from distillery.teacher.folder import find_teacher
importlib.reload(constants)  # a fork's parent has read other variables
hf_api.api.endpoint = constants.ENDPOINT
logging.basicConfig()
for name in sys.argv[1:]:
    for find in (
        lambda: find_teacher(Teacher(path=name, height=64, width=64)).path,
        lambda: find_adapter(Adapter(path=name)),
        lambda: check_judge(name),
        lambda: check_vision_model("evaluation.vision_models.dino", name),
    ):
        try:
            print(find())
        except (FileNotFoundError, ValueError) as error:
            print(error)
"""


def ask(*names: str, home: Path, python: str = "python", **variables: str) -> list[str]:
    """What is said of hub ids, as all that may be one, in a fork, or by another `python`."""
    done = subprocess.run(
        [python, "-c", FIND, *names],
        env=forks.environ(HF_HOME=str(home), **variables),
        check=True,
        capture_output=True,
        text=True,
        timeout=120,
    )
    lines = done.stdout.splitlines()
    assert len(lines) == 4 * len(names), lines
    assert "processor_config.json" not in done.stderr, "a vision model is asked for once"
    assert "Retrying" not in done.stderr, "that would take 23 s for each of them"
    return lines


@pytest.mark.slow
def test_what_the_hub_refuses_is_explained(hub: str, tmp_path: Path) -> None:
    names = ("owner/gated", "owner/none", "owner/old")
    lines = ask(*names, home=tmp_path, HF_ENDPOINT=hub, HF_HUB_OFFLINE="0")
    for line in lines[:4]:
        assert "its licence must be accepted at https://huggingface.co/owner/gated; then" in line
        assert "`hf auth login`, or set HF_TOKEN" in line
    assert all("the hub has no such repository, or it is private" in line for line in lines[4:8])
    assert all("no such revision" in line for line in lines[8:])


def assert_cache_is_named(line: str, name: str, home: Path) -> None:
    assert f"the cache in {home / 'hub'} does not hold all of it" in line
    assert f"`hf download {name}` where there is network" in line
    assert "local_files_only" not in line


@pytest.mark.slow
def test_without_network_the_cache_is_named(tmp_path: Path) -> None:
    closed = "http://127.0.0.1:9"
    for line in ask("owner/name", home=tmp_path, HF_HUB_OFFLINE="0", HF_ENDPOINT=closed):
        assert "the hub cannot be reached (" in line
        assert_cache_is_named(line, "owner/name", tmp_path)


@pytest.mark.slow
def test_a_hub_that_does_not_answer_is_waited_for_once(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        silent_hub = f"http://127.0.0.1:{silent.getsockname()[1]}"
        waiting = {"HF_HUB_OFFLINE": "0", "HF_HUB_ETAG_TIMEOUT": "1", "HF_ENDPOINT": silent_hub}
        # The library keeps this time-out in default arguments, where a fork does not reach it.
        for line in ask("owner/name", home=tmp_path, python=sys.executable, **waiting):
            assert "the hub cannot be reached (timed out)" in line
            assert_cache_is_named(line, "owner/name", tmp_path)


@pytest.mark.slow
def test_offline_a_filled_cache_serves(tmp_path: Path) -> None:
    """A folder as `hf download` makes it, copied to another machine; it has no adapter."""
    cached = tmp_path / "hub/models--owner--name"
    (cached / "refs").mkdir(parents=True)
    (cached / "refs/main").write_text("a" * 40)
    shutil.copytree(DEMO, cached / "snapshots" / ("a" * 40))
    found, *others = ask("owner/name", "owner/other", home=tmp_path, HF_HUB_OFFLINE="1")
    assert found == str(cached / "snapshots" / ("a" * 40))
    names = (*["owner/name"] * 3, *["owner/other"] * 4)
    for name, line in zip(names, others, strict=True):
        assert "HF_HUB_OFFLINE is set" in line
        assert_cache_is_named(line, name, tmp_path)
