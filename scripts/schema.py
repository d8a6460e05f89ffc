"""Write what is generated from the typed configuration: its JSON schema and its reference page.

python scripts/schema.py           writes workflow/schemas/config.schema.json, docs/configuration.md
python scripts/schema.py --check   writes nothing; exit status 1 if one of them is out of date
"""

import argparse
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from distillery.config.run import Config, GeneratingConfig
from distillery.config.section import REMAKES_NOTHING
from distillery.files import write_text

SCHEMA = Path("workflow/schemas/config.schema.json")
REFERENCE = Path("docs/configuration.md")
OPENING = """# Configuration

One YAML file describes one run. `config/config.yaml` is the demo;
`snakemake --cores all --configfile config/other.yaml` chooses another file. A file stands alone:
nothing is inherited. Unknown keys are refused.

A run without `targets`, `student`, `training`, `evaluation` and `prompts.train` trains nothing and
makes a data set of images: see [generate-a-dataset.md](generate-a-dataset.md).

A key marked ○ changes no result beyond rounding. If you change it on a finished run, only the
report is made again. If you change any other key, everything that depends on it is made again.

`make schema` writes this page and `workflow/schemas/config.schema.json`, which editors can read,
from `workflow/distillery/config/`.
"""
REMAKES_NOTHING_MARK = " ○"
# Upper bounds are far beyond what is of use, and would only be in the way.
LIMITS = {
    "minimum": ">=",
    "exclusiveMinimum": ">",
    "maxLength": "of at most",
}


def main(argv: list[str] | None = None) -> int:
    """Generate, then write or compare."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--check", action="store_true", help="compare, write nothing")
    arguments = parser.parse_args(argv)
    either: TypeAdapter[Config | GeneratingConfig] = TypeAdapter(Config | GeneratingConfig)
    texts = {
        SCHEMA: json.dumps(either.json_schema(), indent=2) + "\n",
        REFERENCE: reference(Config.model_json_schema()),
    }
    stale = [
        path
        for path, text in texts.items()
        if not path.is_file() or path.read_text(encoding="utf-8") != text
    ]
    if arguments.check:
        for path in stale:
            print(f"error: {path} is out of date: run `make schema`", file=sys.stderr)
        return 1 if stale else 0
    for path in stale:
        write_text(path, texts[path])
    return 0


def reference(schema: dict[str, Any]) -> str:
    """The reference page: a table a section."""
    parts = [OPENING]
    for key, field in schema["properties"].items():
        section = _referred(schema, field)
        if section is None:
            continue
        parts += [f"\n## {key}\n", section["description"] + "\n", _table(schema, section)]
    top = {
        key: field
        for key, field in schema["properties"].items()
        if _referred(schema, field) is None
    }
    required = schema["required"]
    parts.insert(1, "\n" + _table(schema, {"properties": top, "required": required}))
    return "\n".join(parts)


def _table(schema: dict[str, Any], section: dict[str, Any]) -> str:
    head = ["| key | type | default | meaning |", "|---|---|---|---|"]
    return "\n".join([*head, *_rows(schema, section)]) + "\n"


def _rows(schema: dict[str, Any], section: dict[str, Any], before: str = "") -> list[str]:
    """A row per key; the keys of sections inside follow: `lora.rank`, `models.{name}.steps`."""
    rows: list[str] = []
    for key, field in section["properties"].items():
        required = key in section.get("required", [])
        default = "required" if required else f"`{json.dumps(field.get('default'))}`"
        kind = _kind(schema, field).replace("|", "\\|")
        meaning = field.get("description", "") + REMAKES_NOTHING_MARK * (REMAKES_NOTHING in field)
        rows.append(f"| `{before}{key}` | {kind} | {default} | {meaning} |")
        for after, option in _options(field):
            inner = _referred(schema, option)
            if inner is not None and "properties" in inner:
                rows += _rows(schema, inner, f"{before}{key}{after}.")
    return rows


def _options(field: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """What a field may be; of names and lists what they hold, with what stands behind the key."""
    for option in field.get("anyOf", [field]):
        yield "", option
        for value in _values(option):
            yield ".{name}", value
        if "items" in option:
            yield "[]", option["items"]


def _values(field: dict[str, Any]) -> list[dict[str, Any]]:
    """What a field that goes by names holds under each."""
    values = [field.get("additionalProperties"), *field.get("patternProperties", {}).values()]
    return [value for value in values if isinstance(value, dict)]


def _kind(schema: dict[str, Any], field: dict[str, Any]) -> str:
    """A field's type in words, with its limits."""
    if "anyOf" in field:
        return " | ".join(_kind(schema, option) for option in field["anyOf"])
    if "enum" in field:
        return " | ".join(f"`{value}`" for value in field["enum"])
    if "const" in field:
        return f"`{field['const']}`"
    if "$ref" in field:
        keys = _referred(schema, field) or {}
        return "{" + ", ".join(keys.get("properties", {})) + "}"
    for value in _values(field):
        return "name: " + _kind(schema, value)
    if field.get("type") == "array":
        items = field.get("items") or (field.get("prefixItems") or [{}])[0]
        kind = _kind(schema, items)
        return f"list of ({kind})" if "anyOf" in items else f"list of {kind}"
    limits = [f"{sign} {field[name]}" for name, sign in LIMITS.items() if name in field]
    return " ".join([str(field.get("type", "any")), *limits])


def _referred(schema: dict[str, Any], field: dict[str, Any]) -> dict[str, Any] | None:
    """The section that a field is, if it is one."""
    if "$ref" not in field:
        return None
    section: dict[str, Any] = schema["$defs"][field["$ref"].rsplit("/", 1)[-1]]
    return section


if __name__ == "__main__":
    raise SystemExit(main())
