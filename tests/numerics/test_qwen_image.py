"""What only a Qwen-Image has: a template, and a stock call that cuts embeddings by default."""

import pytest
import torch
from diffusers import QwenImagePipeline

from distillery.families import Request, Setting, Size, family_named
from distillery.families.text import find_cut
from families import qwen_image

FAMILY = family_named("qwen_image")


@pytest.fixture(scope="module")
def pipeline(tmp_path_factory: pytest.TempPathFactory) -> QwenImagePipeline:
    folder = tmp_path_factory.mktemp("qwen") / "teacher"
    qwen_image.make(folder)
    pipeline = QwenImagePipeline.from_pretrained(folder)
    pipeline.set_progress_bar_config(disable=True)
    return pipeline


def test_long_embeddings_reach_the_network_whole(pipeline: QwenImagePipeline) -> None:
    """The stock call cuts given embeddings to 512 tokens unless told otherwise."""
    (prompt,) = FAMILY.encode(pipeline, ["a" + " dog" * 600], 700)
    negative = FAMILY.encode_no_negative(pipeline, 700)
    lengths = []
    hook = pipeline.transformer.txt_in.register_forward_pre_hook(
        lambda _module, inputs: lengths.append(inputs[0].shape[1])
    )
    request = Request(
        seeds=[0],
        conditioning=FAMILY.pad([prompt], 700),
        negative=FAMILY.pad([negative], 700),
        steps=2,
        setting=Setting(Size(32, 32), 3.0),
        decode=False,
        dtype=torch.float32,
    )
    FAMILY.generate(pipeline, request)
    hook.remove()
    assert lengths == 2 * [len(prompt["prompt_embeds"]), len(negative["prompt_embeds"])]
    assert lengths[0] > 600


def test_the_limit_is_where_the_stock_call_cuts(pipeline: QwenImagePipeline) -> None:
    """A prompt and the template's end of five tokens."""
    (reader,) = FAMILY.readers(pipeline, 20)
    fits, too_long = "a" + " dog" * 14, "a" + " dog" * 15
    (short,) = FAMILY.encode(pipeline, [fits], 20)
    (whole,) = FAMILY.encode(pipeline, [fits], 100)
    assert short["prompt_embeds"].equal(whole["prompt_embeds"])
    assert find_cut(reader, fits) is None
    assert find_cut(reader, too_long) == "\n"
    assert len(FAMILY.encode(pipeline, [too_long], 100)[0]["prompt_embeds"]) == 21
