"""The reference page that tools/schema.py writes from the typed configuration."""

from pathlib import Path
from types import ModuleType

import pytest

from checkout import load_script
from distillery.config.run import Config

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def script() -> ModuleType:
    return load_script("schema")


@pytest.fixture(scope="module")
def page() -> str:
    """Up to date, as another test says."""
    return (ROOT / "docs/configuration.md").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("section", "before"),
    [
        ("Lora", "lora."),
        ("SampledModel", "models.{name}."),
        ("Adapter", "adapters[]."),
    ],
)
def test_keys_of_sections_inside_have_rows(page: str, section: str, before: str) -> None:
    schema = Config.model_json_schema()
    for key in schema["$defs"][section]["properties"]:
        assert f"\n| `{before}{key}` |" in page


@pytest.mark.parametrize(
    ("row", "remade"),
    [
        ("notes", "prompts"),
        ("adapters[].scale", "embeddings, targets, student, training, rounds, export, samples"),
        ("vae_dtype", "embeddings, targets, rounds, export, samples, (training)"),
        ("num_segments", "targets, rounds, export, (training)"),
        ("models.{name}.guidance_scale", "samples"),
        ("lora", "student, training, rounds, export"),
        ("phases[online].steps", "training"),
        ("hang_timeout_s", "nothing"),
        ("reference", "evaluation"),
        ("min_clip_ratio", "report"),
    ],
)
def test_a_row_says_what_its_key_remakes(page: str, row: str, remade: str) -> None:
    (line,) = (line for line in page.splitlines() if line.startswith(f"| `{row}` |"))
    assert line.endswith(f"| {remade} |")


def test_a_row_says_both_bounds_of_its_key(page: str) -> None:
    bounds = {"minimum": ">=", "exclusiveMinimum": ">", "maximum": "<=", "exclusiveMaximum": "<"}
    sections = Config.model_json_schema()["$defs"].values()
    fields = [field for it in sections for field in it.get("properties", {}).items()]
    checked = 0
    for key, field in fields:
        for option in field.get("anyOf", [field]):
            words = [
                f"{sign} {option[name]}"
                for name, sign in bounds.items()
                if option.get(name, 1e6) < 1e6
            ]
            rows = [row for row in page.splitlines() if f"{key}` |" in row]
            assert any(all(word in row for word in words) for row in rows), (key, words)
            checked += len(words)
    assert checked > 100
    for row in (
        "| `learning_rate` | number > 0, <= 10 |",
        "| `min_clip_ratio` | number > 0, <= 2.0 |",
    ):
        assert row in page


def test_what_is_generated_is_up_to_date(
    script: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    assert script.main(["--check"]) == 0, "run `make schema`"


@pytest.mark.parametrize("path", sorted(ROOT.glob("config/*.yaml")), ids=lambda path: path.stem)
def test_a_shipped_configuration_names_its_schema_for_editors(path: Path) -> None:
    first = path.read_text(encoding="utf-8").splitlines()[0]
    name = first.removeprefix("# yaml-language-server: $schema=")
    assert (path.parent / name).resolve() == ROOT / "workflow/schemas/config.schema.json"
