"""The report of a small run: its numbers against hand counts, its page against what it promises."""

import html
import json
import re
import shutil
from dataclasses import asdict, fields
from html.parser import HTMLParser

import pandas as pd
import pytest

from distillery.evaluation import verdict
from distillery.evaluation.pages import TEMPLATES
from distillery.files import hash_json, read_sealed, write_json, write_sealed
from distillery.run_folder import RunFolder
from distillery.schedule import Schedule
from distillery.stages import report
from distillery.stages.gallery import make_gallery
from distillery.store.recipes import TrainingRecipe
from distillery.student.info import StudentInfo
from events import event, job_events, run_events, training_twice
from judging import PROMPTS, Run, make_judge
from quality import make_config

HOSTILE = "a <script>alert('x')</script> & \"red\" circle"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """results/tiny with everything that a report can show."""
    folder = tmp_path_factory.mktemp("tiny")
    make_judge(folder / "judge")
    run = Run(folder, str(folder / "judge"))
    run.evaluate()
    recipes = {
        "targets": {"kind": "targets", "steps": 24},
        "embeddings/train": {"kind": "embeddings", "negative_prompt": ""},
    }
    for name, recipe in recipes.items():
        manifest = {"recipe": recipe, "recipe_hash": "ab" * 32, "num_samples": 64, "chunks": [{}]}
        write_sealed(folder / name / "manifest.json", manifest)
    (folder / "student/pipeline").mkdir(parents=True)
    write_call(folder, {"num_inference_steps": 4, "guidance_scale": 1.0, "num_frames": 1})
    write_loss(folder / "student/loss.parquet")
    write_telemetry(folder, run_events())
    (folder / "telemetry/evaluation.jsonl").unlink()
    write_json(folder / "plan.json", {"advice": ["more prompts would help"]})
    origin = StudentInfo("config", "transformer", None, 1_000, 2_000, 750, 1_000, ("a", "b"))
    write_sealed(folder / "student/initial/distillery.json", {"student": asdict(origin)})
    return folder


def write_telemetry(folder, events):
    (folder / "telemetry").mkdir(exist_ok=True)
    for told in events:
        with (folder / "telemetry" / f"{told.job}.jsonl").open("a") as file:
            file.write(json.dumps(vars(told)) + "\n")


def write_call(folder, arguments, image="frames[0][0]"):
    """What the export says of its pipeline."""
    (folder / "student/pipeline").mkdir(parents=True, exist_ok=True)
    call = {
        "arguments": arguments,
        "dtypes": {"default": "bfloat16", "vae": "float32"},
        "cast_latents": False,
        "image": image,
        "absent": {},
    }
    write_sealed(folder / "student/pipeline/distillery.json", {"call": call})


def write_loss(path):
    steps = range(1, 33)
    table = pd.DataFrame(
        {
            "samples_seen": [32 * step for step in steps],
            "loss": [1.0 / step for step in steps],
            "grad_norm": [0.5 for _ in steps],
            "learning_rate": [1e-4 / step for step in steps],
            "loss_segment_0": [2.0 / step for step in steps],
            "loss_segment_1": [0.5 / step for step in steps],
        }
    )
    table.to_parquet(path, index=False)


@pytest.fixture(scope="module")
def written(folder):
    """(page, metrics) of the whole run."""
    html, metrics = folder / "report/index.html", folder / "report/metrics.json"
    make_gallery(sorted(folder.glob("samples/*/manifest.parquet")), None, folder / "gallery")
    report.write_report(make_config(), RunFolder(folder), html, metrics)
    return html.read_text(), json.loads(metrics.read_text())


class Page(HTMLParser):
    """Collects what a page loads, links, says and nests."""

    VOID = ("meta", "img", "link", "br", "hr", "input")

    def __init__(self, html):
        super().__init__()
        self.elements, self.open, self.words = [], [], []
        self.feed(html)

    def handle_starttag(self, name, attributes):
        self.elements.append((name, dict(attributes)))
        if name not in self.VOID:
            self.open.append(name)

    def handle_endtag(self, name):
        assert self.open.pop() == name

    def handle_data(self, data):
        self.words.append(data)

    def all(self, name):
        return [attributes for found, attributes in self.elements if found == name]


def test_page_is_self_contained_and_well_nested(written):
    page = Page(written[0])
    assert page.open == []
    assert page.all("script") == page.all("link") == []
    assert all(image["src"].startswith("data:image/") for image in page.all("img"))
    assert "url(" not in written[0]
    outside = [link["href"] for link in page.all("a") if "//" in link["href"]]
    assert outside == ["https://arxiv.org/abs/2104.08718"]


def test_links_lead_somewhere(written, folder):
    page = Page(written[0])
    ids = {attributes["id"] for _, attributes in page.elements if "id" in attributes}
    for link in page.all("a"):
        target = link["href"]
        if target.startswith("#"):
            assert target[1:] in ids
        elif "//" not in target:
            assert (folder / "report" / target).exists(), target


def test_every_image_has_words(written):
    page = Page(written[0])
    images = page.all("img")
    models = {image["alt"].split(": ")[0] for image in images}
    on_first_screen = 3 * 6
    assert len(images) == on_first_screen + 24 * 4
    assert models == {"teacher", "few", "student", "untrained"}
    assert all(drawing["aria-label"] for drawing in page.all("svg"))


def test_sets_of_images_are_shown_with_what_was_left_out(written):
    page = Page(written[0])
    words = " ".join(" ".join(page.words).split())
    assert "Sets of images at other noises, in 16 features of judge" in words
    assert (
        "Left out for want of images: Fréchet distance: at least 34 images of each model, 2 of "
        "each prompt." in words
    )
    assert "Coverage" in words
    assert "÷ its floor" not in words
    assert "High frequencies" in words


def test_headline_and_thresholds(written):
    html, metrics = written
    assert "12 times fewer network calls" in html
    ratio = metrics["quality"]["models"]["student"]["against"]["teacher"]["clip_score_ratio"]
    assert ratio is None or f"keeps {verdict.percent(ratio['mean'])}" in html
    outcomes = {check["question"]: check["outcome"] for check in metrics["verdict"]}
    assert len(outcomes) == 5
    assert outcomes["Closer to teacher than untrained is, in pixels"] == "passed"
    assert outcomes["Closer to teacher than the teacher at as few network calls is, in pixels"] == (
        "not measured"
    )


def test_the_share_of_the_score_that_was_kept_is_shown(folder, tmp_path):
    """The tiny judge's scores are near zero, where no share is defined."""
    shutil.copytree(folder, tmp_path / "tiny")
    path = tmp_path / "tiny/evaluation/quality.json"
    quality = read_sealed(path)
    for low, high, told in ((0.9, 1.02, True), (None, None, False)):
        kept = {"mean": 0.96, "low": low, "high": high}
        quality["models"]["student"]["against"]["teacher"]["clip_score_ratio"] = kept
        write_sealed(path, quality)
        html, _ = write(make_config(), tmp_path / "tiny")
        assert '<dt>CLIP score kept</dt>\n<dd class="value">96.0\xa0%</dd>' in html
        assert ("interval 90.0\xa0% to 102.0\xa0%" in html) == told


def test_paired_differences_are_on_the_page(written):
    html, metrics = written
    table = html.split('aria-label="Paired differences"')[1].split("</table>")[0]
    against = metrics["quality"]["models"]["student"]["against"]
    for other in ("few", "untrained"):
        for metric, form in (("latents_mse", "{:+.4f}"), ("psnr_db", "{:+.2f} dB")):
            interval = against[other][f"{metric}_difference"]
            assert form.format(interval["mean"]) in table
            low, high = (form.format(interval[end]) for end in ("low", "high"))
            assert f"{low} to {high}" in table
    assert "the student before its training" in table
    assert ">teacher" not in table


def test_a_learning_rate_is_drawn_linearly_and_a_falling_loss_is_not(written):
    page, _ = written
    assert "loss (log)" in page
    assert "learning rate (log)" not in page


def test_every_colour_of_a_plot_is_in_the_style_sheet(written):
    html = written[0]
    used = set(re.findall(r"var\((--[a-z0-9-]+)\)", html))
    light, dark = html.split("prefers-color-scheme: dark", 1)
    for name in used - {"--c", "--models", "--card", "--image", "--columns"}:
        assert f"{name}:" in light
        assert f"{name}:" in dark.split("* {")[0]


def test_prompts_are_escaped(folder, tmp_path):
    models = {}
    for model in ("teacher", "few", "student", "untrained"):
        path = folder / "samples" / model / "manifest.parquet"
        table = pd.read_parquet(path)
        table["prompt"] = table["prompt"].replace(PROMPTS[0], HOSTILE)
        models[model] = table
        link = tmp_path / "samples" / model
        link.mkdir(parents=True)
        for item in path.parent.iterdir():
            if item.is_dir():
                (link / item.name).symlink_to(item)
        table.to_parquet(link / "manifest.parquet", index=False)
    write(make_config(), tmp_path)
    html = (tmp_path / "index.html").read_text()
    assert "<script" not in html
    assert "&lt;script&gt;alert(&#39;x&#39;)" in html


def test_both_guidance_scales_are_shown(tmp_path, folder):
    shutil.copytree(folder, tmp_path / "tiny")
    quality = tmp_path / "tiny/evaluation/quality.json"
    facts = json.loads(quality.read_text())
    facts["models"]["few"]["guidance_scale_2"] = 3.0
    write_sealed(quality, facts)
    html, _ = write(make_config(), tmp_path / "tiny")
    assert "4 steps, guidance 4 and 3, " in html
    assert "24 steps, guidance 4, " in html


def write(config, folder):
    report.write_report(config, RunFolder(folder), folder / "index.html", folder / "metrics.json")
    return (folder / "index.html").read_text(), json.loads((folder / "metrics.json").read_text())


def test_nothing_but_a_configuration_still_makes_an_honest_page(tmp_path):
    html, metrics = write(make_config(), tmp_path)
    assert "No student was compared" in html
    assert metrics["quality"] is metrics["training"] is metrics["speed"] is None
    for heading in (
        "Is the student good",
        ">Training<",
        ">Images<",
        "Load the student",
        "Seconds per image",
    ):
        assert heading not in html
    assert Page(html).open == []


def test_run_without_training_leaves_it_out(folder, tmp_path):
    (tmp_path / "evaluation").symlink_to(folder / "evaluation")
    (tmp_path / "samples").symlink_to(folder / "samples")
    html, metrics = write(make_config(), tmp_path)
    assert 'id="training"' not in html
    assert 'id="time"' not in html
    assert 'id="images"' in html
    assert metrics["training"] is None
    assert metrics["speed"]["seconds_ratio"] is None


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
        write_telemetry(tmp_path, job_events(f"samples-{model}-0-of-1", 0, 2, seconds))
    assert "2.0\N{MULTIPLICATION SIGN} slower on one GPU" in write(make_config(), tmp_path)[0]


def test_black_images_are_told_beside_the_scores(folder, tmp_path, written):
    """Two black images are equal: 100 dB that say nothing."""
    assert "Black images" not in written[0]
    shutil.copytree(folder, tmp_path / "tiny")
    for model in ("teacher", "student"):
        path = tmp_path / "tiny/samples" / model / "manifest.parquet"
        table = pd.read_parquet(path)
        table.assign(is_black=table["index"] == 0).to_parquet(path, index=False)
    html, _ = write(make_config(), tmp_path / "tiny")
    told = "12 of 24 images of teacher, 12 of 24 images of student: every pixel is 0."
    assert html.count(told) == 2, "by the metrics, and by the images"
    assert html.count('<span class="off">black</span>') > 2


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


def test_one_is_singular(folder, tmp_path):
    shutil.copytree(folder, tmp_path / "tiny")
    path = tmp_path / "tiny/evaluation/quality.json"
    facts = json.loads(path.read_text()) | {"num_prompts": 1, "num_distinct_prompts": 1}
    for model in facts["models"].values():
        model |= {"num_images": 1, "steps": 1, "network_calls": 1}
    write_sealed(path, facts)
    page = "\n".join(Page(write(make_config(), tmp_path / "tiny")[0]).words)
    plurals = re.findall(r"\b1 (?:prompt|image|step|network call|chunk)s\b", page)
    assert plurals == []
    assert "1 step, no guidance, 1 network call" in page


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


def test_a_count_says_what_it_counts(written):
    words = " ".join(" ".join(Page(written[0]).words).split())
    assert "64 samples in 1 chunk" in words
    assert "64 distinct texts, the negative prompt among them, in 1 chunk" in words
    assert "Items done repeats included" in words


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
    assert ">rollout</text>" in page
    table.drop(columns="loss_rollout").to_parquet(path, index=False)
    _, metrics = write(make_config(), copy)
    assert metrics["training"]["rollout"] is None


def test_rounds_are_told_with_what_they_learned_from(folder, tmp_path):
    copy = tmp_path / "results"
    shutil.copytree(folder, copy)
    rounds = {"count": 2, "samples": 256}
    config = make_config(
        training={"num_samples": 1024, "global_batch_size": 32, "rounds": rounds},
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


def write_trained(folder, config):
    """A trained student, and what the telemetry says of its training and of one before it."""
    schedule = Schedule(*[(1.0, 0.0)] * len(fields(Schedule)))
    recipe = TrainingRecipe(
        kind="training", version=1, seed=0, steps=1, schedule=schedule, latent_shape=(1,),
        guidance_scale=1.0, initial="a", targets="b", rounds=("c", "d"),
        training=config.training.of_recipe,
    )  # fmt: skip
    about = {"recipe": recipe.to_json(), "recipe_hash": recipe.hash}
    (folder / "student/trained").mkdir()
    write_sealed(folder / "student/trained/distillery.json", about)
    *_, first = recipe.earlier_parts(config.training)
    for seen, hash_ in ((512, first.hash), (1024, recipe.hash)):
        facts = {"samples_seen": seen, "recipe": hash_, "peak_memory_bytes": 1}
        write_telemetry(folder, [event("work", "training", seen, seen + 1, 512, **facts)])


def test_diverged_training_is_drawn_and_told(folder, tmp_path):
    (tmp_path / "student").mkdir()
    write_loss(tmp_path / "student/loss.parquet")
    table = pd.read_parquet(tmp_path / "student/loss.parquet")
    table.loc[20:, "loss"] = float("nan")
    table.to_parquet(tmp_path / "student/loss.parquet", index=False)
    html, metrics = write(make_config(), tmp_path)
    assert "The loss is not finite" in html
    assert metrics["training"]["final_loss"] is None
    assert "nan" not in html.split('<h2 id="training"')[1].split("</section>")[0]


def test_templates_lie_where_the_report_looks():
    assert (TEMPLATES / "report.html.j2").is_file()


def test_errors_are_in_the_log(tmp_path):
    from distillery.stages import report as script

    log, config = tmp_path / "logs/report.log", tmp_path / "missing.json"
    outputs = ["--output", str(tmp_path / "a.html"), "--metrics", str(tmp_path / "a.json")]
    inputs = ["--config", str(config)]
    assert script.main([*inputs, *outputs, "--log-file", str(log)]) == 1
    assert str(config) in log.read_text()
