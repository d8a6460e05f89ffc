"""Images that come out black or not finite, and embeddings that changed on the disk."""

import logging
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from distillery.generation import sample_maker as maker_module
from distillery.measures.manifests import read_samples
from distillery.store.chunks import DamagedChunkError
from in_process import flip
from runs import Run, fresh, rewritten, times


@pytest.fixture
def spoiled_decoder(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Lets the decoder give the second image of each batch one value throughout."""

    def spoil_decoder(value: float) -> None:
        load = maker_module.load_teacher

        def spoiled(*args: Any, **kwargs: Any) -> Any:
            pipeline = load(*args, **kwargs)
            decode = pipeline.vae._decode

            def spoiling(*inputs: Any, **options: Any) -> Any:
                decoded = decode(*inputs, **options)
                decoded[0][1] = value
                return decoded

            pipeline.vae._decode = spoiling
            return pipeline

        monkeypatch.setattr(maker_module, "load_teacher", spoiled)

    return spoil_decoder


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_an_image_whose_decoded_values_are_not_finite_loses_no_other(
    finished: Run,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    spoiled_decoder: Callable[[float], None],
    value: float,
) -> None:
    """Batches of two of five prompts: the second and the fourth, and of the last its padding."""
    run = fresh(finished, tmp_path)
    spoiled_decoder(value)
    with (
        caplog.at_level(logging.INFO),
        pytest.raises(
            ValueError, match=r"2 of 5 images.*\n  p001/0: its decoded.*\n  p003/0: "
        ) as told,
    ):
        run.samples()
    vae = Path(run.config.teacher.path) / "vae"
    assert str(told.value).endswith(f"are usual, the VAE in {vae} is damaged: get it again")
    assert str(told.value).count("damaged") == 1
    assert "not made: p001/0: its decoded values are not finite" in caplog.text
    assert not list(run.folder.glob("samples/teacher/p00[13]/*"))
    assert len(run.images()) == 6
    assert not list(run.folder.glob("samples/teacher/*.parquet"))
    before = times(run)
    monkeypatch.undo()
    run.samples()
    assert run.images() == finished.images()
    assert rewritten(before, times(run)) == {"0.png", "0.safetensors"}
    assert all(times(run)[path] == before[path] for path in before), "only what was missing"


def test_a_black_image_of_finite_values_is_kept_and_marked(
    finished: Run,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    spoiled_decoder: Callable[[float], None],
) -> None:
    """A prompt may ask for one, and a job that can never end would stop the run."""
    run = fresh(finished, tmp_path)
    spoiled_decoder(-1.0)
    manifest = run.all_samples()
    assert "2 images are black, every pixel is 0 though" in caplog.text
    assert "p001/0, p003/0; they are kept" in caplog.text
    model = read_samples("teacher", manifest)
    assert model.table["is_black"].tolist() == [False, True, False, True, False]
    assert model.num_black == 2
    assert not model.read_pixels(1).any()
    before = times(run)
    monkeypatch.undo()
    run.samples()
    assert not rewritten(before, times(run)), "it is done, and the next job knows that it is black"
    assert read_samples("teacher", run.all_samples()).num_black == 2


@pytest.mark.parametrize("stage", ["targets", "samples"])
def test_an_embedding_that_changed_is_seen_by_who_reads_it(run: Run, stage: str) -> None:
    """With its header as it was: no merge reads the bytes of embeddings."""
    split = "train" if stage == "targets" else "eval"
    shutil.rmtree(run.folder / stage)
    path = sorted((run.folder / "embeddings" / split).glob("*/chunk-*.safetensors"))[-1]
    flip(path)
    manifest = run.embeddings(split)
    with pytest.raises(DamagedChunkError, match=rf"manifest\): run `rm -r {path} {manifest}` and"):
        (run.targets if stage == "targets" else run.samples)()
    (run.targets if stage == "targets" else run.samples)(0, 3)  # reads other chunks
