"""A process that knows nothing of Distillery, and runs the Python that a user is given."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any, Self

ARGUMENTS = "torch_dtype|num_inference_steps|guidance|max_sequence_length|generator|output_type"
"""Of the calls in cards: a deprecation that names one of them is an error. Diffusers tells its own
as FutureWarning, which always is."""
LOOP = f"""
import json, os, sys, traceback, warnings
sys.modules["distillery"] = None  # importing it fails
warnings.filterwarnings("error", category=FutureWarning)
warnings.filterwarnings("error", "(?s).*({ARGUMENTS})", DeprecationWarning)
answers = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)
for line in sys.stdin:
    code, folder = json.loads(line)
    os.chdir(folder)
    try:
        exec(code, {{"__name__": "__main__"}})
        answer = None
    except Exception:
        answer = traceback.format_exc()
    print(json.dumps(answer), file=answers, flush=True)
"""


class Stranger:
    """One interpreter for many scripts, since importing Diffusers takes longer than they do."""

    def __init__(self) -> None:
        environ = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        self.process = subprocess.Popen(
            [sys.executable, "-c", LOOP],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env=environ | {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""},
        )

    def run(self, code: str, folder: Path) -> None:
        """Execute a script in a folder; its traceback becomes an AssertionError."""
        assert self.process.stdin
        assert self.process.stdout
        self.process.stdin.write(json.dumps([code, str(folder)]) + "\n")
        self.process.stdin.flush()
        answer = json.loads(self.process.stdout.readline() or '"the process has ended"')
        assert answer is None, f"{answer}\nof\n{code}"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.process.kill()
        self.process.wait()


def code_in(card: Path) -> list[str]:
    """The Python of a model card."""
    return re.findall(r"```python\n(.*?)```", card.read_text(), re.DOTALL)


def filled_in(code: str, **values: Any) -> str:
    """A card's script with the user's own folder, prompt and seed."""
    for placeholder, value in (
        ("path/to/this/folder", str(values["folder"])),
        ("prompt='a prompt'", f"prompt={values['prompt']!r}"),
        ("manual_seed(0)", f"manual_seed({values['seed']})"),
    ):
        assert placeholder in code
        code = code.replace(placeholder, value)
    return code
