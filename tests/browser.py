"""Pages in a real browser, without scripts of others: Chromium runs ours and prints the answer."""

import html
import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

PROGRAM = next(
    filter(None, map(shutil.which, ("chromium", "google-chrome", "chromium-browser"))), ""
)
needs_browser = pytest.mark.skipif(not PROGRAM, reason="there is no Chromium")
A4_LANDSCAPE_PX = 1032
"""Its width within margins of 12 mm, at 96 dots per inch."""
ANSWER = """
<script>
addEventListener("load", async () => {
  const wait = (ms) => new Promise((done) => setTimeout(done, ms));
  const press = (key) =>
    document.activeElement.dispatchEvent(
      new KeyboardEvent("keydown", { key, bubbles: true, cancelable: true }),
    );
  const answer = await (async () => { %s })().catch((error) => `${error}`);
  document.body.textContent = `ANSWER${JSON.stringify(answer)}END`;
});
</script>
"""


def ask(page: Path, script: str, width: int = 1440, hash_: str = "", is_paper: bool = False) -> Any:
    """What a script of ours returns in a page; it has `wait(ms)` and `press(key)`.

    Args:
        script: the body of an asynchronous function.
        hash_: behind the page's address.
        is_paper: whether the page is laid out as it is printed.
    """
    text = page.read_text(encoding="utf-8")
    if is_paper:
        text = text.replace("@media print", "@media all")
    copy = page.with_name(f"asked-{page.name}")
    copy.write_text(text.replace("</body>", ANSWER % script + "</body>"), encoding="utf-8")
    options = ["--headless", "--no-sandbox", "--disable-gpu", "--allow-file-access-from-files"]
    try:
        done = subprocess.run(
            [
                *(PROGRAM, *options, f"--window-size={width},900", "--virtual-time-budget=20000"),
                *("--dump-dom", f"{copy.resolve().as_uri()}{hash_}"),
            ],
            capture_output=True,
            text=True,
            timeout=120,
            check=True,
        )
    finally:
        copy.unlink()
    found = re.search("ANSWER(.*)END</body>", done.stdout, re.DOTALL)
    assert found, done.stderr
    return json.loads(html.unescape(found[1]))
