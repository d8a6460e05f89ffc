"""What only a browser knows of the pages: what paper cuts off, and what keys do."""

import pytest

from browser import A4_LANDSCAPE_PX, ask, needs_browser
from distillery.measures.manifests import read_samples
from distillery.report.choices import read_choices
from distillery.report.roles import Roles

pytestmark = needs_browser
CUT = """
const isCut = (it) =>
  it.scrollWidth > it.clientWidth + 1 || it.getBoundingClientRect().right > innerWidth;
return [...document.querySelectorAll(".scroll, .strip, pre, .canvas, .first")]
  .filter(isCut)
  .map((it) => it.ariaLabel || it.className || it.localName);
"""


@pytest.fixture(scope="module")
def report(written, folder):
    return folder / "report/index.html"


def test_paper_cuts_nothing_off(report):
    """Nothing can be moved there, and nothing tells what is missing."""
    assert ask(report, CUT, A4_LANDSCAPE_PX, is_paper=True) == []
    on_a_phone = ask(report, CUT, 390)
    assert "Metrics of every model" in on_a_phone, "the question finds what is cut"


def test_a_row_of_images_is_one_tab_stop(report):
    script = """
    const links = [...document.querySelector(".strip").querySelectorAll("a")];
    const stops = () => links.map((it) => it.tabIndex);
    links[0].focus();
    const before = stops();
    press("ArrowRight");
    return [before, stops(), document.activeElement === links[1]];
    """
    assert ask(report, script) == [[0, -1, -1, -1], [-1, 0, -1, -1], True]


def test_the_bar_of_sections_stays_and_tells_where_one_is(report):
    script = """
    location.hash = "#time";
    await wait(500);
    dispatchEvent(new Event("scroll"));
    const bar = document.querySelector("#sections");
    return [bar.getBoundingClientRect().top, bar.querySelector("[aria-current]").textContent];
    """
    assert ask(report, script) == [0, "Time"]


@pytest.fixture(scope="module")
def gallery(written, folder):
    return folder / "gallery"


def test_the_viewer_opens_as_the_address_says(gallery):
    script = """
    const at = (id) => document.getElementById(id);
    const state = () => [at("viewer").open, at("right").selectedOptions[0].text, at("how").value];
    const before = state();
    at("next").focus();
    press("X");
    return [before, state(), decodeURIComponent(location.hash), at("caption").textContent];
    """
    hash_ = "#right=student&how=beside&open=eval-03/1"
    before, after, address, caption = ask(gallery / "index.html", script, hash_=hash_)
    assert before == [True, "student", "beside"]
    assert after == [True, "student", "amplified"]
    assert "how=difference+" in address
    assert "open=eval-03/1" in address
    assert caption.startswith("a green square (eval-03/1, 8 of 24)")


def test_blind_choices_are_counted_for_models_and_saved_with_their_digests(gallery):
    """Whichever side an image is on; and a file of other images is refused."""
    script = """
    const at = (id) => document.getElementById(id);
    let text;
    URL.createObjectURL = (blob) => ((text = blob.text()), "#");
    localStorage.clear();
    for (let number = 0; number < 10; number++) {
      press(at("left").firstChild.src.includes("/student/") ? "ArrowLeft" : "ArrowRight");
    }
    press("ArrowDown");
    press("ArrowDown");
    press("Backspace");
    at("tell").click();
    const result = at("result").textContent;
    at("save").click();
    const saved = await text;
    const load = async (content) => {
      const files = new DataTransfer();
      files.items.add(new File([content], "choices.csv"));
      at("load").files = files.files;
      at("load").dispatchEvent(new Event("change"));
      await wait(200);
      return [at("progress").textContent, at("result").textContent];
    };
    const other = await load(saved.replace(/,[0-9a-f]{64},/, `,${"0".repeat(64)},`));
    localStorage.clear();
    at("settings").dispatchEvent(new Event("change"));
    return [result, saved, other, await load(saved)];
    """
    result, saved, refused, loaded = ask(gallery / "blind.html", script)
    assert "student over few: 10 of 10, 100.0 % (72.2 % to 100.0 %); 1 could not" in result
    (path := gallery.parent / "choices.csv").write_text(saved)
    samples = {
        name: read_samples(name, gallery.parent / f"samples/{name}/manifest.parquet")
        for name in ("few", "student")
    }
    choices = read_choices([path], samples, Roles("student", "few"))
    (found,) = choices.preferences
    assert (found.num_chosen, found.num_decided, found.num_neither) == (10, 10, 1)
    assert refused[1].startswith("This file is refused: it is of other images")
    assert loaded == ["11 of 24 pairs answered", ""]
