"""Noise belongs to the sample: not to its batch, and a stock generator draws the same."""

from pathlib import Path

import pytest
import torch

from distillery.generation.dataset import METADATA
from distillery.images import SHEET
from distillery.noise import SampleId, check_prompt_id, draw_noise, noise_seed

SHAPE = (4, 1, 4, 4)
SAMPLE = SampleId("dog", 3)


def test_noise_is_what_a_stock_generator_draws() -> None:
    seed = noise_seed(7, SAMPLE)
    generator = torch.Generator().manual_seed(seed)
    assert draw_noise([seed], SHAPE)[0].equal(torch.randn(SHAPE, generator=generator))


@pytest.mark.parametrize(
    ("seed", "other"), [(8, SAMPLE), (7, SampleId("cat", 3)), (7, SampleId("dog", 4))]
)
def test_noise_depends_on_seed_prompt_and_index(seed: int, other: SampleId) -> None:
    one, another = noise_seed(7, SAMPLE), noise_seed(seed, other)
    assert not draw_noise([one], SHAPE).equal(draw_noise([another], SHAPE))


def test_the_parts_of_an_identity_do_not_run_together() -> None:
    assert noise_seed(1, SampleId("1a", 1)) != noise_seed(11, SampleId("a", 1))
    assert noise_seed(1, SampleId("a1", 1)) != noise_seed(1, SampleId("a", 11))


def test_noise_does_not_depend_on_the_batch_or_on_global_state() -> None:
    torch.manual_seed(0)
    seed = noise_seed(7, SAMPLE)
    alone = draw_noise([seed], SHAPE)[0]
    batch = draw_noise([noise_seed(7, SampleId("cat", 0)), seed, seed], SHAPE)
    assert batch[1].equal(alone)
    assert batch[2].equal(alone)
    assert torch.rand(1).equal(torch.rand(1, generator=torch.Generator().manual_seed(0)))


def test_seeds_are_kept_for_ever() -> None:
    """Written down, not computed: a change of the hash would change every stored data set."""
    assert noise_seed(0, SampleId("p00000", 0)) == 692825269493535552
    assert 0 <= noise_seed(0, SAMPLE) < 2**63


@pytest.mark.parametrize("prompt_id", ["a", "0", "A.b-c_d", "x" * 128, "sheets", "manifest"])
def test_good_ids(prompt_id: str) -> None:
    check_prompt_id(prompt_id)


@pytest.mark.parametrize("prompt_id", ["", "a/b", "..", "a..b", ".a", "-a", "a.", "a\n", "x" * 129])
def test_bad_ids(prompt_id: str) -> None:
    with pytest.raises(ValueError, match="cannot name a folder"):
        check_prompt_id(prompt_id)


@pytest.mark.parametrize(
    "prompt_id",
    [METADATA, Path(SHEET).stem, "manifest.parquet", "shard-10-of-12.parquet", "Metadata.csv"],
)
def test_ids_that_are_names_of_our_own_files(prompt_id: str) -> None:
    with pytest.raises(ValueError, match="the run writes a file of that name there; rename it"):
        check_prompt_id(prompt_id)


@pytest.mark.parametrize("prompt_id", ["con", "NUL", "Aux.1", "com1", "lpt9.png"])
def test_ids_that_are_devices_of_windows(prompt_id: str) -> None:
    with pytest.raises(ValueError, match="on Windows, where it is a device; rename it"):
        check_prompt_id(prompt_id)


@pytest.mark.parametrize("prompt_id", ["cone", "null", "com10", "auxiliary.1"])
def test_ids_that_only_begin_like_devices(prompt_id: str) -> None:
    check_prompt_id(prompt_id)
