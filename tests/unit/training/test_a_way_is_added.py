"""What docs/add-a-way-to-learn.md says, done to a copy of the library with the page's own code."""

import json

import pytest

from libraries import code_of, copy_library, insert, run_with

TRAIN = """
import json, sys
from pathlib import Path
from safetensors.torch import load_file
from runs import make_run
from tiny import make_tiny_wan

folder = Path(sys.argv[1])
make_tiny_wan(folder / "teacher")
weights, found = [], {}
for name, width in (("wide", 0.5), ("narrow", 1e-6), ("stored", None)):
    last = {"learn": "jitter", "samples": 8, "width": width} if width else None
    phases = [{"learn": "stored", "samples": 8 if last else 16}, *([last] if last else [])]
    run = make_run(folder / name, folder / "teacher", training={"phases": phases})
    run.encode("train")
    run.all_targets()
    run.train_and_export()
    (path,) = (run.folder / "student/trained").glob("*.safetensors")
    weights.append(load_file(path))
    found[name] = {
        "words": run.config.training.words,
        "restarts": run.config.training.restarts,
        "recipe": run.config.training.of_recipe.get("jitter"),
    }
found["changed"] = [any(not (one[n] == it[n]).all() for n in one)
                    for one, it in ((weights[0], weights[1]), (weights[0], weights[2]))]
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> dict:
    """Trainings that end with the page's way, with much and little noise, and one without it."""
    folder = tmp_path_factory.mktemp("way")
    library = copy_library(folder)
    settings, behaviour = code_of("add-a-way-to-learn.md")
    ways, register = library / "config/ways.py", library / "training/ways/__init__.py"
    insert(ways, "AnyPhase = Annotated[", f"{settings}\n\n")
    text = ways.read_text()
    text = text.replace("Annotated[Stored | Rounds", "Annotated[Jitter | Stored | Rounds")
    ways.write_text(text.replace("= (Stored, Rounds,", "= (Jitter, Stored, Rounds,"))
    (library / "training/ways/jitter.py").write_text(behaviour)
    insert(register, '    "stored": "StoredWay",', '    "jitter": "JitterWay",\n')
    return json.loads(run_with(library, TRAIN, folder))


def test_a_training_learns_so(trained: dict) -> None:
    assert trained["changed"] == [True, True]


def test_what_folds_over_the_list_has_it(trained: dict) -> None:
    wide = trained["wide"]
    assert wide["words"] == "8 from the teacher's stored trajectories, then 8 from noised states"
    assert wide["restarts"] == [8], "a cosine of its own"
    assert wide["recipe"] == {"samples": 8, "width": 0.5}
    assert trained["stored"]["recipe"] is None, "recipes without it are those of before"
