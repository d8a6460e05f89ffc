"""Scores of a small run: a real CLIP of tiny size, images drawn here, values checked directly."""

import json
import re
import shutil

import numpy as np
import pandas as pd
import pytest
import torch
from transformers import CLIPModel, CLIPProcessor

from distillery.config.samples import Evaluation
from distillery.measures.judge import check_judge, embed_prompts, load_judge, read_prompts
from distillery.measures.manifests import read_samples
from distillery.measures.of_judge import cosine_similarity
from distillery.measures.of_pairs import IDENTICAL_PSNR_DB, OF_PAIRS
from distillery.measures.of_preference import preferred
from distillery.measures.score import summarise
from distillery.measures.vision import embed_images
from distillery.planning.scoring import count_features
from distillery.report.tables import columns_of
from judging import CPU, PROMPTS, Code, Run, draw, make_dino, make_samples


@pytest.fixture(scope="module")
def whole(tmp_path_factory, judge_folder):
    """A run with a teacher, the teacher at few steps, and a student; tests must not change it."""
    return Run(tmp_path_factory.mktemp("judged"), str(judge_folder))


@pytest.fixture
def run(tmp_path, whole):
    """A copy of it that a test may change, not scored yet."""
    return whole.copy(tmp_path)


def test_clip_score_is_what_transformers_says(evaluated, judge_folder):
    """One image at a time through CLIPModel's own forward; our batches must not change it."""
    _, scores = evaluated
    model = CLIPModel.from_pretrained(judge_folder)
    processor = CLIPProcessor.from_pretrained(judge_folder)
    scores = scores[(scores["model"] == "student") & (scores["index"] == 1)]
    for number in (0, 5, 11):
        inputs = processor(
            text=[PROMPTS[number]], images=draw(PROMPTS[number], 2), return_tensors="pt"
        )
        with torch.no_grad():
            logit = model(**inputs).logits_per_image.item()
        row = scores[scores["prompt_id"] == f"eval-{number:02d}"].iloc[0]
        assert row["clip_score"] == pytest.approx(logit / model.logit_scale.exp().item(), abs=1e-5)


def test_a_judge_as_pickscore_is_saved(judge_folder, tmp_path):
    """PickScore is a CLIPModel of a large scale beside the older files of CLIP-H's processor.

    Its score of an image and a prompt is exp(logit_scale) times our cosine.
    """
    folder = tmp_path / "pickscore"
    model = CLIPModel.from_pretrained(judge_folder)
    model.logit_scale.data.fill_(np.log(100.0))
    model.save_pretrained(folder)
    tokenizer = CLIPProcessor.from_pretrained(judge_folder, backend="pil").tokenizer
    tokenizer.save_pretrained(folder)
    pixels = {"size": 32, "crop_size": 32, "do_resize": True, "do_center_crop": True}
    pixels |= {"feature_extractor_type": "CLIPFeatureExtractor", "resample": 3}
    (folder / "preprocessor_config.json").write_text(json.dumps(pixels))
    judge = load_judge(str(folder), CPU)
    images = embed_images(judge.vision, [draw(PROMPTS[0], 1)])
    cosine = cosine_similarity(images, embed_prompts(judge, [PROMPTS[3]]))
    processor = CLIPProcessor.from_pretrained(judge_folder)
    inputs = processor(text=[PROMPTS[3]], images=[draw(PROMPTS[0], 1)], return_tensors="pt")
    with torch.no_grad():
        score = model(**inputs).logits_per_image.item()
    assert 100 * cosine[0] == pytest.approx(score, abs=1e-3)
    assert check_judge(str(folder)) == images.shape[1] == 16


def test_preference_is_told_in_the_models_own_scale(run, evaluated, judge_folder, tmp_path):
    """One image at a time through CLIPModel's own forward, and its softmax of two images."""
    model = CLIPModel.from_pretrained(judge_folder)
    model.logit_scale.data.fill_(np.log(50.0))
    model.save_pretrained(tmp_path / "pickscore")
    processor = CLIPProcessor.from_pretrained(judge_folder)
    processor.save_pretrained(tmp_path / "pickscore")
    chosen = run.job.evaluation.model_copy(update={"preference_model": str(tmp_path / "pickscore")})
    run.job = run.job.model_copy(update={"evaluation": chosen})
    quality, scores = run.evaluate()
    assert quality["preference_model"] == str(tmp_path / "pickscore")
    keys = ["model", "index", "prompt_id"]
    for number in (0, 7):
        images = [draw(PROMPTS[number], shift) for shift in (2, 1)]  # the student's, the teacher's
        inputs = processor(text=[PROMPTS[number]], images=images, return_tensors="pt")
        with torch.no_grad():
            logits = model(**inputs).logits_per_image[:, 0]
        row = scores.set_index(keys).loc["student", 1, f"eval-{number:02d}"]
        assert row["preference"] == pytest.approx(logits[0].item(), abs=1e-4)
        assert row["preferred"] == pytest.approx(torch.softmax(logits, 0)[0].item(), abs=1e-5)
    assert scores.loc[scores["model"] == "teacher", "preferred"].isna().all()
    models = quality["models"]
    assert models["teacher"]["preferred"] is None
    assert 0 < models["student"]["preferred"]["low"] < models["student"]["preferred"]["high"] < 1
    assert "preference_difference" in models["student"]["against"]["teacher"]
    before, own = evaluated[0], [name for name in scores if not name.startswith("prefer")]
    assert "preference_model" not in before
    pd.testing.assert_frame_equal(scores[own], evaluated[1])
    shown = {key for key in columns_of(quality) if key not in columns_of(before)}
    assert shown == {"preference", "preferred"}


def test_a_model_of_preference_that_is_none_is_named_by_its_key(judge_folder, tmp_path):
    for load in (
        lambda path: load_judge(path, CPU, "evaluation.preference_model"),
        lambda path: check_judge(path, "evaluation.preference_model"),
        lambda path: count_features(Evaluation(judge=str(judge_folder), preference_model=path)),
    ):
        with pytest.raises(ValueError, match=r"^evaluation\.preference_model is '.*nowhere'"):
            load(str(tmp_path / "nowhere"))


def test_a_preference_of_equal_scores_is_a_half_and_none_overflows():
    found = preferred(np.array([3.0, 3.0, 1e4, -1e4]), np.array([3.0, 2.0, 0.0, 0.0]))
    assert found == pytest.approx([0.5, 1 / (1 + np.exp(-1)), 1.0, 0.0])


def test_ranks_are_those_of_the_full_similarity_table(evaluated, judge_folder):
    _, scores = evaluated
    judge = load_judge(str(judge_folder), CPU)
    images = embed_images(judge.vision, [draw(prompt, 1) for prompt in PROMPTS])
    prompts = embed_prompts(judge, PROMPTS)
    similarity = images @ (prompts / np.linalg.norm(prompts, axis=1, keepdims=True)).T
    expected = [1 + int((row > row[own]).sum()) for own, row in enumerate(similarity)]
    scores = scores[(scores["model"] == "student") & (scores["index"] == 0)]
    assert scores["rank"].tolist() == expected
    assert len(set(expected)) > 2


def test_distances_to_the_reference(evaluated):
    quality, scores = evaluated
    students = scores[scores["model"] == "student"]
    assert students["latents_mse"].to_numpy() == pytest.approx(0.01, rel=1e-4)
    own, reference = np.asarray(draw(PROMPTS[0], 1), float), np.asarray(draw(PROMPTS[0], 0), float)
    expected = 10 * np.log10(255**2 / ((own - reference) ** 2).mean())
    assert students["psnr_db"].iloc[0] == pytest.approx(expected)
    assert scores[scores["model"] == "teacher"]["psnr_db"].isna().all()
    assert quality["models"]["teacher"]["psnr_db"] is None
    paired = quality["models"]["student"]["against"]["few"]
    assert paired["latents_mse_difference"]["mean"] == pytest.approx(0.01 - 0.25, rel=1e-4)
    assert paired["psnr_db_difference"]["low"] > 0


def test_high_frequencies_are_the_median_of_the_images(evaluated):
    quality, scores = evaluated
    found = quality["models"]["student"]["high_frequency"]
    ratios = scores[scores["model"] == "student"]["high_frequency"]
    assert found["mean"] == pytest.approx(ratios.median(), rel=1e-5)
    assert found["low"] <= found["mean"] <= found["high"]
    assert quality["models"]["teacher"]["high_frequency"] is None


def test_sets_are_compared_in_the_judges_features(evaluated, judge_folder):
    """12 prompts of 2 images: too few for a Fréchet distance in 16 features."""
    quality, _ = evaluated
    assert quality["vision_models"] == {
        "judge": {
            "path": str(judge_folder),
            "num_features": 16,
            "num_prompts": 12,
            "left_out": {"frechet": {"images": 34, "per_prompt": 2, "prompts": 1}},
        }
    }
    found = quality["models"]["student"]["sets"]["judge"]
    assert found["frechet"] is found["frechet_ratio"] is None
    judge = load_judge(str(judge_folder), CPU)
    images = [draw(prompt, shift) for prompt in PROMPTS for shift in (1, 2)]
    features = embed_images(judge.vision, images)
    features /= np.linalg.norm(features, axis=1, keepdims=True)
    expected = np.mean(1 - (features[::2] * features[1::2]).sum(axis=1))
    assert found["diversity"]["mean"] == pytest.approx(expected, rel=1e-4)
    assert all(found[key]["low"] is not None for key in ("mmd", "density", "diversity_ratio"))


def test_sets_are_compared_in_other_vision_models(run, evaluated, tmp_path):
    """They take the place of the judge's features; the scores stay the judge's."""
    before, scores = evaluated
    make_dino(tmp_path / "dino")
    named = run.job.evaluation.model_copy(update={"vision_models": {"d": str(tmp_path / "dino")}})
    run.job = run.job.model_copy(update={"evaluation": named})
    quality, again = run.evaluate()
    pd.testing.assert_frame_equal(again, scores)
    assert quality["vision_models"]["d"]["num_features"] == 8
    found = quality["models"]["student"]["sets"]
    assert found.keys() == {"d"}
    assert found["d"]["frechet"]["mean"] > 0
    assert found["d"]["mmd"] != before["models"]["student"]["sets"]["judge"]["mmd"]


def test_summary_matches_the_rows(evaluated):
    quality, scores = evaluated
    for model, facts in quality["models"].items():
        rows = scores[scores["model"] == model]
        assert facts["num_images"] == len(rows) == 24
        assert facts["clip_score"]["mean"] == pytest.approx(rows["clip_score"].mean(), rel=1e-5)
        assert facts["retrieval_r1"]["mean"] == pytest.approx((rows["rank"] == 1).mean(), rel=1e-5)
    assert quality["num_prompts"] == 12
    assert quality["models"]["teacher"]["network_calls"] == 48
    assert quality["models"]["student"]["network_calls"] == 4
    assert set(quality["models"]["student"]["against"]) == {"teacher", "few", "untrained"}


@pytest.fixture(scope="module")
def edited(whole, tmp_path_factory):
    """The scores of each model of a copy, with a change for each of several tests."""
    copy = whole.copy(tmp_path_factory.mktemp("edited"))
    shutil.rmtree(copy.folder / "samples/student")
    make_samples(copy.folder / "samples/student", "student", 4, 1.0, 0)  # as the teacher's
    copy.edit("few", lambda table: table.assign(guidance_scale_2=3.0, is_black=table["index"] == 1))
    return copy.evaluate()[0]["models"]


def test_a_second_guidance_scale_is_told_where_there_is_one(edited):
    scales = {name: (it["guidance_scale"], it["guidance_scale_2"]) for name, it in edited.items()}
    students = dict.fromkeys(("student", "untrained"), (1.0, None))
    assert scales == {"teacher": (4.0, None), "few": (4.0, 3.0), **students}


def test_retrieval_counts_first_places_only(whole):
    """Of 24 images 6 are found first, 6 second: R@1 is a quarter."""
    samples = {model: read_samples(model, path) for model, path in whole.manifests.items()}
    scores = {
        model: found.table[["prompt_id", "index"]].assign(
            clip_score=0.5, rank=[1, 2, 3, 4] * 6, **{it.name: 0.0 for it in OF_PAIRS}
        )
        for model, found in samples.items()
    }
    features = {"judge": dict.fromkeys(samples, np.eye(24, 4) + 1)}
    quality = summarise(whole.job, samples, scores, features, len(PROMPTS))
    assert quality["models"]["student"]["retrieval_r1"]["mean"] == 0.25


def test_no_interval_goes_beyond_what_its_measure_can_be(whole):
    """Two prompts stand out of many alike: resamples without them have next to no spread."""
    samples = {model: read_samples(model, path) for model, path in whole.manifests.items()}
    stand_out = np.repeat(np.arange(12) < 2, 2)
    alike = np.linspace(0.0, 1e-3, 24)
    columns = {
        "clip_score": np.where(stand_out, 1.0, 0.3 + alike),
        "psnr_db": np.where(stand_out, IDENTICAL_PSNR_DB, 80.0 + alike),
        "latents_mse": np.where(stand_out, 0.0, 5.0 + alike),
    }
    scores = {
        model: found.table[["prompt_id", "index"]].assign(
            rank=1, high_frequency=1.0, **{name: own * values for name, values in columns.items()}
        )
        for (model, found), own in zip(samples.items(), (0.1, 0.5, 1.0, 0.0), strict=True)
    }
    features = {"judge": dict.fromkeys(samples, np.eye(24, 4) + 1)}
    student = summarise(whole.job, samples, scores, features, 12)["models"]["student"]
    assert student["clip_score"]["high"] == 1.0
    assert student["psnr_db"]["high"] == 100.0
    assert student["latents_mse"]["low"] == 0.0
    against = student["against"]["untrained"]
    assert against["psnr_db_difference"]["high"] == 100.0
    assert against["clip_score_difference"]["high"] == 2.0


def test_prompts_that_the_judge_reads_alike_count_as_one(run, judge_folder, caplog):
    """In capitals, or longer than the judge reads: each image would tie with its twin's."""
    twins = {
        PROMPTS[1]: PROMPTS[0].upper(),
        PROMPTS[2]: "a red circle a red circle a red circle",
        PROMPTS[3]: "a red circle a red circle a red square",
    }
    for model in run.manifests:
        run.edit(model, lambda table: table.assign(prompt=table["prompt"].replace(twins)))
    quality, scores = run.evaluate()
    assert (quality["num_prompts"], quality["num_distinct_prompts"]) == (12, 10)
    judge = load_judge(str(judge_folder), CPU)
    texts = [twins[PROMPTS[2]], PROMPTS[0], *PROMPTS[4:]]
    prompts = embed_prompts(judge, texts)
    similarity = (
        embed_images(judge.vision, [draw(PROMPTS[1], 0)])
        @ (prompts / np.linalg.norm(prompts, axis=1, keepdims=True)).T
    )
    expected = 1 + int((similarity[0] > similarity[0, 1]).sum())
    row = scores[(scores["model"] == "teacher") & (scores["prompt_id"] == "eval-01")].iloc[0]
    assert row["rank"] == expected
    assert "2 of 12 prompts read to the judge like another one" in caplog.text


def test_equal_inputs_give_equal_bytes(run, whole, evaluated):
    """In another folder too, and in any order of a manifest's rows."""
    run.edit("student", lambda table: table.iloc[::-1])
    run.evaluate()
    assert run.quality.read_bytes() == whole.quality.read_bytes()
    assert run.scores.read_bytes() == whole.scores.read_bytes()


def test_a_copy_of_the_teacher_is_at_the_ceiling(edited):
    assert edited["student"]["psnr_db"]["mean"] == IDENTICAL_PSNR_DB
    assert edited["student"]["latents_mse"]["mean"] == 0


@pytest.mark.parametrize(("num_missing", "more"), [(5, ""), (6, " and 1 more")])
def test_a_message_names_a_few_samples_and_counts_the_rest(run, num_missing, more):
    run.edit("student", lambda table: table.iloc[num_missing:])
    names = "eval-00/0, eval-00/1, eval-01/0, eval-01/1, eval-02/0"
    message = (
        f"'student' lacks {num_missing} samples that 'teacher' has: {names}{more}; generate them, "
        "or remove the model from samples.models"
    )
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        run.evaluate()


def test_missing_image_is_named(run):
    (run.folder / "samples/few/eval-04/1.png").unlink()
    with pytest.raises(
        ValueError, match=r"eval-04/1.png of 'few' is not there: run `rm -r .*manifest"
    ):
        run.evaluate()


def test_changed_latents_are_refused(run):
    """The distance to the reference would be another, and nothing would say so."""
    path = run.manifests["few"].parent / "eval-04/1.safetensors"
    content = bytearray(path.read_bytes())
    content[-2] ^= 1
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"eval-04/1.safetensors of 'few' is not what its manif"):
        run.evaluate()


def test_a_manifest_that_cannot_be_read_is_told_with_its_cure(run):
    path = run.manifests["few"]
    content = bytearray(path.read_bytes())
    content[-20] ^= 1
    path.write_bytes(content[:-100] + content[-8:])
    with pytest.raises(
        ValueError, match=rf"manifest.parquet is damaged .*: run `rm -r {path}` and"
    ):
        run.evaluate()


def test_black_images_are_counted(edited):
    assert edited["few"]["num_black"] == len(PROMPTS)
    assert edited["student"]["num_black"] == 0


def test_the_images_that_were_scored_are_told_by_their_hashes_alone(run, evaluated):
    """The same wherever the run lies, another for other images."""
    before = {name: model["images"] for name, model in evaluated[0]["models"].items()}
    few = run.manifests["few"]
    assert read_samples("few", few).digest == before["few"]
    again = shutil.copytree(few.parent, run.folder / "samples/again") / "manifest.parquet"
    assert read_samples("again", again).digest == before["few"]
    run.edit("few", lambda table: table.assign(latents_sha256="0" * 64))
    assert read_samples("few", few).digest != before["few"]
    assert len(set(before.values())) == len(before)


def test_changed_image_is_refused(run):
    draw(PROMPTS[0], 9).save(run.folder / "samples/few/eval-04/1.png")
    with pytest.raises(ValueError, match=r"eval-04/1.png of 'few' is not what its manifest lists"):
        run.evaluate()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda it: it.assign(noise_seed=it["noise_seed"] + 1),
            "differ in noise_seed of eval-00/0",
        ),
        (lambda it: it.iloc[:0], "lists no image"),
        (lambda it: it.drop(columns="noise_seed"), "no column noise_seed"),
    ],
    ids=["other noise", "no rows", "no column"],
)
def test_a_manifest_that_does_not_fit_is_refused(run, change, message):
    run.edit("few", change)
    with pytest.raises(ValueError, match=message):
        run.evaluate()


def test_missing_manifest_is_named(run):
    run.manifests["few"].unlink()
    with pytest.raises(ValueError, match="generate the samples of 'few'"):
        run.evaluate()


def test_manifests_of_other_models_are_refused(run):
    del run.manifests["few"]
    with pytest.raises(ValueError, match="one manifest for each model"):
        run.evaluate()


@pytest.mark.parametrize(
    "judge", ["resources/demo/nothing-here", "./judge", "/nowhere/judge", "models/clip.safetensors"]
)
def test_missing_judge_folder_is_named(judge):
    with pytest.raises(ValueError, match=f"'{judge}': there is no such folder"):
        load_judge(judge, CPU)


def test_folder_that_is_no_judge_is_refused(tmp_path):
    with pytest.raises(ValueError, match="is no model in transformers format"):
        load_judge(str(tmp_path), CPU)
    (tmp_path / "config.json").write_text('{"model_type": "clip"}')
    with pytest.raises(ValueError, match="cannot be loaded as a CLIP model"):
        load_judge(str(tmp_path), CPU)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("pytorch_model.bin", {"a": Code()}, "a pickle of more than tensors, which could run code"),
        ("pytorch_model.bin", b"junk" * 10, "cannot be loaded as a CLIP model"),
        ("model.safetensors", b"junk" * 10, "cannot be loaded as a CLIP model"),
    ],
)
def test_weights_that_cannot_be_loaded_are_told_in_a_line(
    judge_folder, tmp_path, name, content, message
):
    folder = shutil.copytree(judge_folder, tmp_path / "judge")
    (folder / "model.safetensors").unlink()
    if isinstance(content, bytes):
        (folder / name).write_bytes(content)
    else:
        torch.save(content, folder / name)
    with pytest.raises(ValueError, match=message) as caught:
        load_judge(str(folder), CPU)
    assert "\n" not in str(caught.value)


def test_another_model_is_not_scored_with_random_weights(judge_folder, tmp_path):
    """A text encoder of CLIP, for one, would be loaded with the half that it lacks at random."""
    folder = shutil.copytree(judge_folder, tmp_path / "judge")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"model_type": "clip_text_model"}))
    with pytest.raises(ValueError, match="which is a model of the type 'clip_text_model'"):
        load_judge(str(folder), CPU)


def test_long_prompts_are_cut_and_counted(judge_folder):
    judge = load_judge(str(judge_folder), CPU)
    long = "a red circle a red circle a red circle"
    assert read_prompts(judge, [PROMPTS[0], long]).num_cut == 1
    assert embed_prompts(judge, [long]).shape == (1, 16)
