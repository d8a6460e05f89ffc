"""The report of a small run: its numbers against hand counts."""

import html
import re
import shutil

import pandas as pd
import pytest

import golden
from distillery.files import hash_json, read_sealed, write_sealed
from distillery.store.tables import read_table, write_table
from events import event, job_events, training_twice
from quality import make_config
from reports import Page, write, write_call, write_telemetry, write_trained
from training_phases import phases


def test_headline_and_thresholds(written):
    html, metrics = written
    assert "12 times fewer network calls" in html
    ratio = metrics["quality"]["models"]["student"]["against"]["teacher"]["clip_score_ratio"]
    assert ratio is None or f"scores {ratio['mean']:.2f} times" in html
    outcomes = {check["question"]: check["outcome"] for check in metrics["verdict"]}
    assert len(outcomes) == 5
    assert outcomes["Closer to teacher than untrained is, in pixels"] == "passed"
    assert outcomes["Closer to teacher than the teacher at as few network calls is, in pixels"] == (
        "not measured"
    )


def test_the_keys_of_the_metrics_are_as_they_were(written):
    """Meant? See tests/golden.py."""
    before = (golden.FOLDER / "metrics.json").read_text()
    assert golden.as_text(golden.keys_of(written[1])) == before


def test_what_packed_weights_change_is_in_the_provenance(folder, tmp_path, written):
    """As measured last; where they are not packed, an earlier run's does not count."""
    assert "packing_errors" not in written[1]
    shutil.copytree(folder, tmp_path / "tiny")
    for at, error in ((10, 0.5), (20, 0.0123)):
        errors = {"transformer": error}
        told = event("measure", "targets-0-of-2", at, at, packing_errors=errors)
        write_telemetry(tmp_path / "tiny", [told])
    config = make_config()
    assert "packing_errors" not in write(config, tmp_path / "tiny")[1]
    teacher = config.teacher.model_copy(update={"quantization": "int8"})
    page, metrics = write(config.model_copy(update={"teacher": teacher}), tmp_path / "tiny")
    assert metrics["packing_errors"] == {"transformer": 0.0123}
    assert "its blocks in int8<small>which changes a pass of the transformer by 1.2 %" in page


def test_the_share_of_the_score_that_was_kept_is_shown(edited):
    assert '<dt>CLIP score kept</dt>\n<dd class="value">96.0\xa0%</dd>' in edited[0]
    assert "interval 90.0\xa0% to 102.0\xa0%" in edited[0]


def test_scores_by_category_are_on_the_page_where_prompts_have_one(edited, written):
    html, metrics, _ = edited
    table = html.split('aria-label="Scores by category"')[1].split("</table>")[0]
    assert re.findall(r'<th scope="row"><b>(.*?)</b><small>(.*?)</small>', table) == [
        ("even", "6 prompts"),
        ("&lt;b&gt;odd", "6 prompts"),
    ]
    odd = metrics["categories"]["by_name"]["<b>odd"]["measures"]
    assert f"<td>{odd['psnr_db']['student']['mean']:.2f} dB</td>" in table
    extremes = metrics["categories"]["extremes"]["psnr_db"]
    assert {extremes["best"], extremes["worst"]} == {"even", "<b>odd"}
    assert f"<b>PSNR</b> {extremes['text'].replace('<b>', '&lt;b&gt;')}." in html
    assert "By category" not in written[0]
    assert "categories" not in written[1]


def test_a_model_of_preference_is_named_where_there_is_one(edited, written):
    assert "Preference: <code>a/preference</code>" in edited[0]
    assert "<td>21.25<small>20.50 to 22.00</small>" in edited[0]
    assert "Preference" not in written[0]


def test_scores_of_other_images_are_refused_with_the_cure(folder, tmp_path, edited):
    """As those of another run that were copied; of an earlier release nothing is known."""
    shutil.copytree(folder, tmp_path / "tiny")
    path = tmp_path / "tiny/evaluation/quality.json"
    quality = read_sealed(path)
    quality["models"]["few"]["images"] = "0" * 64
    write_sealed(path, quality)
    with pytest.raises(ValueError, match=rf"scores other images of few than .*: run `rm -r {path}"):
        write(make_config(), tmp_path / "tiny")
    models = read_sealed(edited[2] / "evaluation/quality.json")["models"]
    assert not any("images" in model for model in models.values())


def test_a_table_of_other_scores_is_refused(folder, tmp_path):
    shutil.copytree(folder, tmp_path / "tiny")
    path = tmp_path / "tiny/evaluation/scores.parquet"
    write_table(read_table(path).assign(clip_score=0.5), path)
    with pytest.raises(ValueError, match=rf"quality.json: it was not made with {path}: run `rm"):
        write(make_config(), tmp_path / "tiny")


def test_seconds_per_image_are_those_of_the_present_recipe(written, edited):
    before, after = (
        metrics["timings"]["seconds_per_image"] for _, metrics, *_ in (written, edited)
    )
    assert after == before


def test_paired_differences_are_on_the_page(written):
    html, metrics = written
    table = html.split('aria-label="Paired differences"')[1].split("</table>")[0]
    against = metrics["quality"]["models"]["student"]["against"]
    for other in ("few", "untrained"):
        for metric, form in (("latents_mse", "{:+.4f}"), ("psnr_db", "{:+.2f} dB")):
            interval = against[other][f"{metric}_difference"]
            assert form.format(interval["mean"]) in table
            if interval["low"] is not None:
                low, high = (form.format(interval[end]) for end in ("low", "high"))
                assert f"{low} to {high}" in table
    assert "the student before its training" in table
    assert ">teacher" not in table


def test_both_guidance_scales_are_shown(edited):
    assert "4 steps, guidance 4 and 3, " in edited[0]
    assert "24 steps, guidance 4, " in edited[0]


def test_runs_of_one_batch_have_no_speed(folder, tmp_path):
    """That batch loaded the model."""
    (tmp_path / "evaluation").symlink_to(folder / "evaluation")
    (tmp_path / "samples").symlink_to(folder / "samples")
    for model, begin_s in (("teacher", 0), ("student", 50)):
        write_telemetry(tmp_path, job_events(f"samples-{model}-0-of-1", begin_s, 1, 2.0))
    html, metrics = write(make_config(), tmp_path)
    assert metrics["speed"]["seconds_ratio"] is None
    assert metrics["timings"]["seconds_per_image"] == {}
    assert "Seconds per image, measured" not in html
    assert not re.search("faster|slower|as fast", html)


def test_a_slower_student_is_called_so(folder, tmp_path):
    (tmp_path / "samples").symlink_to(folder / "samples")
    for model, seconds in (("teacher", 1.0), ("student", 2.0)):
        write_telemetry(tmp_path, job_events(f"samples-{model}-0-of-1", 0, 4, seconds))
    assert (
        "2.0\N{MULTIPLICATION SIGN} slower on one GPU, of 3 and 3 batches"
        in write(make_config(), tmp_path)[0]
    )


@pytest.mark.parametrize(
    ("name", "cure"),
    [
        ("evaluation/quality.json", "evaluation/quality.json"),
        ("targets/manifest.json", "targets/manifest.json"),
        ("student/initial/distillery.json", "student/initial"),
        ("evaluation/scores.parquet", "evaluation/scores.parquet"),
    ],
)
def test_what_was_changed_is_refused_with_its_cure(folder, tmp_path, name, cure):
    """A digit of quality.json would be a wrong number in the report."""
    shutil.copytree(folder, tmp_path / "tiny")
    path = tmp_path / "tiny" / name
    content = bytearray(path.read_bytes())
    place = len(content) // 2
    while name.endswith("json") and not chr(content[place]).isdigit():
        place += 1
    content[place] ^= 1
    path.write_bytes(content)
    with pytest.raises(ValueError, match=rf"run `rm -r {tmp_path / 'tiny' / cure}` and start"):
        write(make_config(), tmp_path / "tiny")


def test_the_gpus_of_the_jobs_are_told(written):
    """Counters do not survive `asdict`: every report of a run on a GPU failed on this one."""
    page, metrics = written
    assert metrics["provenance"]["origin"]["gpus"] == {"NVIDIA H200": 2}
    assert "2 \u00d7 NVIDIA H200, " in page


def test_attempts_are_told_only_where_a_job_was_started_again(written, tmp_path):
    write_telemetry(tmp_path, training_twice())
    assert "<td>2<small>2 attempts</small></td>" in write(make_config(), tmp_path)[0]
    assert "attempts</small>" not in written[0]


def test_the_report_says_how_much_of_the_student_was_copied(written):
    html, metrics = written
    for part in ("1,000 parameters, 50.0% of the", "75.0% of them copied, 2 tensors begin"):
        assert part in html
    assert metrics["student"]["not_copied"] == ["a", "b"]


def test_code_names_the_right_call(written):
    code = re.search(r"<pre tabindex=\"0\"><code>(import torch.*?)</code>", written[0], re.S)[1]
    for line in ("num_inference_steps=4,", "guidance_scale=1.0,", "num_frames=1,"):
        assert line in code
    assert "dtype={'default': torch.bfloat16, 'vae': torch.float32}," in html.unescape(code)
    assert "manual_seed(0),  # noise of eval-00/0" in code
    assert "frames[0][0]" in code


def test_guidance_is_off_where_it_is(written):
    assert "guidance 4 → off</dd>" in written[0]


def test_a_network_that_is_told_its_guidance_keeps_it(folder, tmp_path):
    """FLUX.1-dev: one call per step, with the scale as an input, for teacher and student."""
    shutil.copytree(folder / "samples", tmp_path / "samples")
    for model in ("teacher", "student"):
        path = tmp_path / "samples" / model / "manifest.parquet"
        table = pd.read_parquet(path)
        table = table.assign(guidance_scale=3.5, network_calls=table["steps"])
        table.to_parquet(path, index=False)
    write_call(tmp_path, {"num_inference_steps": 4, "guidance_scale": 3.5}, "images[0]")
    html, metrics = write(make_config(), tmp_path)
    assert metrics["speed"]["network_calls_ratio"] == 6
    assert "guidance 3.5 → 3.5</dd>" in html
    assert "guidance off" not in html
    assert "must keep its guidance (1.0 is off) and its 4 steps" in " ".join(html.split())


def test_image_pipelines_take_no_frames(folder, tmp_path):
    write_call(tmp_path, {"num_inference_steps": 4}, "images[0]")
    html, _ = write(make_config(), tmp_path)
    assert "num_frames" not in html.split('<h2 id="provenance"')[0]
    assert "images[0]" in html


def test_metrics_json_has_the_same_numbers(written):
    _, metrics = written
    assert metrics["speed"]["network_calls_ratio"] == 12
    assert metrics["training"]["final_loss"] == pytest.approx((1 / 30 + 1 / 31 + 1 / 32) / 3)
    assert metrics["training"]["num_samples"] == 1024
    assert metrics["provenance"]["recipes"]["targets"]["recipe"]["steps"] == 24
    assert metrics["provenance"]["config"]["student"]["steps"] == 4


def test_a_finishing_phase_is_told_apart(folder, tmp_path):
    copy = tmp_path / "results"
    shutil.copytree(folder, copy)
    path = copy / "student/loss.parquet"
    table = pd.read_parquet(path)
    table["loss_rollout"] = table["loss"].where(table.index >= 24) + 7.0
    table["loss"] = table["loss_rollout"].fillna(table["loss"])
    table.loc[24:, ["loss_segment_0", "loss_segment_1"]] = float("nan")
    table.to_parquet(path, index=False)
    page, metrics = write(make_config(), copy)
    assert metrics["training"]["final_loss"] == pytest.approx((1 / 23 + 1 / 24) / 2)
    for_rollouts = {"first_loss": 7.0 + 1 / 25, "final_loss": 7.0 + 1 / 32}
    assert metrics["training"]["rollout"] == pytest.approx(for_rollouts)
    assert "over whole rollouts" in page
    assert '"rollout"' in page, "in the legend"
    table.drop(columns="loss_rollout").to_parquet(path, index=False)
    _, metrics = write(make_config(), copy)
    assert metrics["training"]["rollout"] is None


def test_rounds_are_told_with_what_they_learned_from(folder, tmp_path):
    copy = tmp_path / "results"
    shutil.copytree(folder, copy)
    config = make_config(
        training={
            "phases": phases(stored=512, rounds={"count": 2, "samples": 256}),
            "global_batch_size": 32,
        },
        targets={"steps": 24, "guidance_scale": 4.0, "num_shards": 2},
    )
    for number in "12":
        for name in ("states/shard-0-of-2", "states/shard-1-of-2", "manifest"):
            recipe = {"kind": name[:6], "number": number}
            manifest = {"recipe": recipe, "recipe_hash": hash_json(recipe), "num_samples": 32}
            path = copy / "rounds" / number / f"{name}.json"
            path.parent.mkdir(parents=True, exist_ok=True)
            write_sealed(path, manifest | {"chunks": [{}]})
    write_trained(copy, config)
    page, metrics = write(config, copy)
    words = " ".join(" ".join(Page(page).words).split())
    assert "in batches of 32: 512 from the teacher's stored trajectories, then 2 rounds of" in words
    assert "begins anew after 512 and 768 samples, at the dashed lines of its chart." in words
    assert "It resumed after 512 samples from the checkpoint of an earlier training." in words
    assert [seen for seen, _ in metrics["training"]["telemetry"]["speed"]] == [512, 1024]
    for number in "12":
        recipes = [
            metrics["provenance"]["recipes"][f"round {number}, {it}"]
            for it in ("states", "targets")
        ]
        assert [recipe["recipe"]["number"] for recipe in recipes] == [number] * 2
        assert [(it["num_samples"], it["num_chunks"]) for it in recipes] == [(64, 2), (32, 1)]
        assert all(recipe["recipe_hash"] in page for recipe in recipes)


def test_errors_are_in_the_log(tmp_path):
    from distillery.cli import main
    from distillery.stages.report import STAGE

    log, config = tmp_path / "logs/report.log", tmp_path / "missing.json"
    outputs = ["--output", str(tmp_path / "a.html"), "--metrics", str(tmp_path / "a.json")]
    inputs = ["--config", str(config)]
    assert main(STAGE, "", [*inputs, *outputs, "--log-file", str(log)]) == 1
    assert str(config) in log.read_text()
