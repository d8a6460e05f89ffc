"""The demo's clips: they move and stay what their captions say; the VAE takes them as a whole."""

import random
import time
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from resources.demo import scenes, training
from resources.demo.images import IMAGE_PX, place_items, random_for
from resources.demo.vae import in_one_call
from resources.demo_video import clips
from resources.demo_video.make import build_vae
from torch import nn

ROOT = Path(__file__).parents[2]
RELATIONS = [None, *scenes.SIDE_BY_SIDE]


def some(relation: str | None, count: int = 20) -> list[scenes.Scene]:
    rng = random.Random(str(relation))
    kind = "one" if relation is None else "two"
    found = (scenes.random_scene(rng, kind) for _ in range(100 * count))
    return [scene for scene in found if scene.relation == relation][:count]


@pytest.mark.parametrize("relation", RELATIONS)
def test_every_clip_moves_inside_its_frame_and_keeps_its_relation(relation: str | None) -> None:
    for seed, scene in enumerate(some(relation)):
        rng = random_for(scenes.caption_of(scene), seed)
        places = place_items(scene, rng)
        moves = np.array(clips.moves(places, relation, rng))
        assert moves[0] == pytest.approx((0.0, 0.0), abs=1e-5)
        ways = np.linalg.norm(np.diff(moves, axis=0), axis=1)
        assert np.median(ways) > 0.8 * clips.SPEED_PX[0]
        assert ways.max() < 1.01 * clips.SPEED_PX[1]
        for place in places:
            seen = place.centre + moves
            assert seen.min() > place.radius_px
            assert seen.max() < IMAGE_PX - place.radius_px


def test_a_clip_is_of_its_caption_and_seed() -> None:
    caption = "a small striped red star left of a large blue ring on a white background"
    clip = clips.draw_clip(caption, 3)
    assert clip.shape == (clips.NUM_FRAMES, clips.CLIP_PX, clips.CLIP_PX, 3)
    assert np.array_equal(clip, clips.draw_clip(caption, 3))
    assert not np.array_equal(clip[0], clips.draw_clip(caption, 4)[0])
    assert (np.diff(clip.astype(float), axis=0) ** 2).mean(axis=(1, 2, 3)).min() > 30.0


@pytest.mark.parametrize("name", ["train", "eval"])
def test_the_prompt_tables_are_made_by_the_script(name: str) -> None:
    table = pd.read_csv(ROOT / f"config/prompts/demo-video-{name}.csv")
    chosen = scenes.choose_captions(
        len(table), held_out=name == "eval", seed=0, shares=scenes.CLIP_SHARES
    )
    assert table["prompt"].tolist() == chosen
    relations = [scenes.scene_of(prompt).relation for prompt in chosen]
    assert relations.count(None) == len(table) / 2
    assert set(relations) == set(RELATIONS)
    if name == "eval":
        one = [category == "one object" for category in table["category"]]
        assert one == [relation is None for relation in relations]


@torch.no_grad()
def test_the_vae_in_one_call_computes_what_it_computes_frame_after_frame() -> None:
    vae, random = build_vae().eval(), torch.Generator().manual_seed(0)
    for weight in vae.parameters():
        noise = torch.randn(weight.shape, generator=random)
        weight.add_(0.1 * weight.abs().mean() * noise)
    pixels = torch.rand((1, 3, clips.NUM_FRAMES, 16, 16), generator=random)
    encoded = vae.encode(pixels).latent_dist
    latents = encoded.mode()
    decoded = vae.decode(latents).sample
    with in_one_call(vae, clips=True):
        torch.testing.assert_close(vae.quant_conv(vae.encoder(pixels)), encoded.parameters)
        whole = vae.decoder(vae.post_quant_conv(latents)).clamp(-1, 1)
        torch.testing.assert_close(whole, decoded)
    torch.testing.assert_close(vae.decode(latents).sample, decoded)


def test_a_timed_plan_ends_by_its_time_with_its_learning_rate() -> None:
    network, asked = nn.Linear(1, 1), []

    def losses() -> training.LossParts:
        asked.append(time.monotonic())
        time.sleep(0.002)
        return {"loss": network(torch.ones(1)).square().sum()}

    plan = training.TimedPlan(10**6, 1, 1e-3, 0.9, max_seconds=0.5)
    log = training.fit("linear", [network], losses, plan, torch.Generator())
    assert 0.4 < asked[-1] - asked[training.NUM_EAGER_STEPS] < 2.0
    assert len(asked) < 300
    assert log[-1]["samples"] == len(asked)
