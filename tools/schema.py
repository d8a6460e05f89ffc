"""Write what is generated from the typed configuration: its JSON schema and its reference page.

python tools/schema.py           writes workflow/schemas/config.schema.json, docs/configuration.md
python tools/schema.py --check   writes nothing; exit status 1 if one of them is out of date
"""

import argparse
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import yaml
from pydantic import TypeAdapter

from distillery.config.jobs import JOBS, freeze
from distillery.config.run import Config, GeneratingConfig, parse_config
from distillery.config.section import REMAKES_NOTHING, TAG
from distillery.files import write_text

SCHEMA = Path("workflow/schemas/config.schema.json")
REFERENCE = Path("docs/configuration.md")
OPENING = """# Configuration

One YAML file describes one run. `config/config.yaml` is the demo;
`snakemake --cores all --configfile config/other.yaml` chooses another file. A file stands alone:
nothing is inherited. Unknown keys are refused.

A run without `targets`, `student`, `training`, `evaluation` and `prompts.train` trains nothing and
makes a data set of images: see [generate-a-dataset.md](generate-a-dataset.md).

The column *remakes* names the stages whose frozen configuration holds a key: if you change it on a
finished run, the next call makes them again, and all that follows from them. A stage in brackets
depends on the key only if `training.phases` has `online`. With *report* only the report is made
again, which any change of the configuration does. With another `num_shards` the jobs start again,
and find the chunks or images that are there. A key marked ○ changes no result beyond rounding.

A number without an upper limit in its row is at most 10⁹ if whole (`seed`: below 2⁶³), else 10⁶;
an adapter's `scale` has none.

`make schema` writes this page and `workflow/schemas/config.schema.json`, which editors can read,
from `workflow/distillery/config/`.
"""
REMAKES_NOTHING_MARK = " ○"
IN_NAMES, IN_LISTS = ".{name}", "[]"
"""What stands behind a key that holds sections; `[rounds]` behind one whose sections have tags."""
DEMO = Path(__file__).parents[1] / "config/config.yaml"
UNDECLARED = {"previews"}
"""Frozen for what makes no result."""
STORED: list[dict[str, dict[str, Any]]] = [
    {},
    {"teacher": {"adapters": [{"path": "this"}]}},
    {"teacher": {"trace": {"unguided": {"guidance_scale": 1.0}}}},
    {"prompts": {"eval": None, "eval_fraction": 0.5}},
    {"samples": {"models": {name: {"source": "teacher"} for name in ("teacher", "another")}}},
    {"student": {"init": "layers", "num_layers": 2}},
    {"student": {"init": "layers", "layers": [0, 1]}},
    {"student": {"init": "layers", "unet": {"layers_per_block": 1}}},
    {"student": {"init": "config", "config": "this"}},
    {"student": {"init": "lora", "lora": {}}},
    *(
        {"training": {"phases": [{"learn": "stored", "samples": 3200}, last]}}
        for last in (
            {"learn": "rounds", "samples": 3200},
            {"learn": "adversarial", "samples": 3200},
            {"learn": "rollouts", "samples": 3200},
        )
    ),
]
"""Changes of the demo that together have every key."""
ONLINE: list[dict[str, dict[str, Any]]] = [
    {"training": {"phases": [{"learn": "online", "samples": 6400} | more], "held_out_prompts": 0}}
    for more in ({}, {"distribution_matching": {}})
]
EXAMPLES: dict[str, list[Any]] = {
    "boolean": [False, True],
    "integer": [1, 2, 8, 64, 3200],
    "number": [0.25, 0.5, 1.5, 2.0],
    "string": ["this", "that", "another"],
    "array": [[], [1.0, 2.0], [0.5, 0.5], [0.25, 0.75], [1], ["to_q"]],
    "object": [{}, {"this": "that"}],
    "null": [None],
}
"""Values of each type: one is allowed where another stands in a configuration."""
LIMITS = {
    "minimum": ">=",
    "exclusiveMinimum": ">",
    "maximum": "<=",
    "exclusiveMaximum": "<",
    "maxLength": "of at most",
}
FAR = 10**6
"""Upper bounds from here on are far beyond what is of use; the page says them once."""


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
    page = Page(schema)
    parts = [OPENING]
    for key, field in schema["properties"].items():
        section = _referred(schema, field)
        if section is None:
            continue
        parts += [f"\n## {key}\n", section["description"] + "\n", page.table(section, key)]
    top = {
        key: field
        for key, field in schema["properties"].items()
        if _referred(schema, field) is None
    }
    required = schema["required"]
    parts.insert(1, "\n" + page.table({"properties": top, "required": required}))
    return "\n".join(parts)


class Known(NamedTuple):
    """A configuration with all its defaults, and what each stage freezes of it."""

    raw: dict[str, Any]
    frozen: dict[str, Any]


class Page:
    """Tables of keys, with what each remakes."""

    def __init__(self, schema: dict[str, Any]) -> None:
        """Of the schema of `Config`."""
        demo = yaml.safe_load(DEMO.read_text(encoding="utf-8"))
        self.schema = schema
        self.stored = [_known(demo, changes) for changes in STORED]
        self.online = [_known(demo, changes) for changes in ONLINE]

    def table(self, section: dict[str, Any], name: str = "") -> str:
        """A section's; `name` is its key, none at the top."""
        head = ["| key | type | default | meaning | remakes |", "|---|---|---|---|---|"]
        places = (name,) if name else ()
        return "\n".join([*head, *self._rows(section, places)]) + "\n"

    def _rows(
        self, section: dict[str, Any], places: tuple[str, ...], before: str = ""
    ) -> list[str]:
        """A row per key; the keys of sections inside follow: `lora.rank`, `models.{name}.steps`."""
        rows: list[str] = []
        for key, field in section["properties"].items():
            required = key in section.get("required", [])
            required |= key == TAG
            default = "required" if required else f"`{json.dumps(field.get('default'))}`"
            kind = _kind(self.schema, field).replace("|", "\\|")
            mark = REMAKES_NOTHING_MARK * (REMAKES_NOTHING in field)
            told = section if key == TAG else field
            meaning = " ".join(told.get("description", "").split()) + mark
            remade = self._remade(field, places[:-1] if key == TAG else (*places, key))
            rows.append(f"| `{before}{key}` | {kind} | {default} | {meaning} | {remade} |")
            for after, option in _options(field):
                inner = _referred(self.schema, option)
                if inner is not None and "properties" in inner:
                    below = (*places, key, *([after] if after else []))
                    rows += self._rows(inner, below, f"{before}{key}{after}.")
        return rows

    def _remade(self, field: dict[str, Any], places: tuple[str, ...]) -> str:
        """Which stages another value of a key makes again."""
        if places == ("run",):
            return "all, in another folder"
        stored, online = (_depending(it, field, places) for it in (self.stored, self.online))
        if REMAKES_NOTHING in field:
            assert not (stored + online), f"{places} is marked and remakes {stored + online}"
            return "nothing"
        if not stored and places[0] == "training":
            return ", ".join(online)
        only_online = [f"({stage})" for stage in online if stage not in stored]
        return ", ".join(stored + only_online) or "report"


def _known(raw: dict[str, Any], changes: dict[str, dict[str, Any]]) -> Known:
    """A changed configuration with all its defaults."""
    changed = raw | {section: raw[section] | values for section, values in changes.items()}
    complete = parse_config(changed, str(DEMO)).model_dump(mode="json")
    return Known(complete, _all_frozen(complete))


def _depending(known: list[Known], field: dict[str, Any], places: tuple[str, ...]) -> list[str]:
    """The stages whose frozen configuration another value of a key changes, in any of `known`.

    Of a key that cannot change alone: those in which configurations with other values differ.
    """
    values, first = _examples(field), known[0]
    found = [_first_change(each, values, places) for each in known]
    if all(stages is None for stages in found):
        others = (each.raw for each in known[1:])
        here = _at(first.raw, places)
        found = [_differing(first, raw) for raw in others if here != _at(raw, places)]
    order = [*JOBS, "samples"]
    return sorted({stage for stages in found for stage in stages or ()}, key=order.index)


def _first_change(known: Known, values: list[Any], places: tuple[str, ...]) -> set[str] | None:
    """The stages that the first of other values changes which changes any; None if all are
    refused."""
    found: set[str] | None = None
    for changed in _changed(known.raw, values, places):
        stages = _differing(known, changed)
        if stages:
            return stages
        found = found if stages is None else stages
    return found


def _differing(before: Known, after: dict[str, Any]) -> set[str] | None:
    """The stages that freeze other things of two configurations; None if the second is refused."""
    try:
        frozen_after = _all_frozen(after)
    except ValueError:
        return None
    changed = (stage for stage in frozen_after if frozen_after[stage] != before.frozen.get(stage))
    return {stage.split("-")[0] for stage in changed}


def _at(raw: dict[str, Any], places: tuple[str, ...]) -> Any:
    """What a configuration holds at a place; None behind a name or in a section it lacks."""
    node: Any = raw
    for place in places:
        node = node.get(place) if isinstance(node, dict) else None
    return node


def _all_frozen(raw: dict[str, Any]) -> dict[str, Any]:
    """What each stage depends on, but for `run`, which holds all. Raises ValueError."""
    config = parse_config(raw, "")
    stages = [*(JOBS.keys() - UNDECLARED), *(f"samples-{model}" for model in config.samples.models)]
    return {stage: freeze(config, stage) for stage in stages}


def _changed(node: Any, values: list[Any], places: tuple[str, ...]) -> list[Any]:
    """Copies of what is at a place of a configuration, with each of `values` for a key in it."""
    if not places:
        return [value for value in values if value != node]
    place, *rest = places
    if place == IN_NAMES:
        names = node or {}
        return [
            {**names, name: value}
            for name in names
            for value in _changed(names[name], values, tuple(rest))
        ]
    if place.startswith("["):
        tag, items = place.strip("[]"), node or []
        return [
            [*items[:number], value, *items[number + 1 :]]
            for number, item in enumerate(items)
            if tag in ("", item.get(TAG))
            for value in _changed(item, values, tuple(rest))
        ]
    if node is None:
        return []
    return [{**node, place: value} for value in _changed(node.get(place), values, tuple(rest))]


def _examples(field: dict[str, Any]) -> list[Any]:
    """Values of a field's type, two at least for what is no section."""
    found: list[Any] = []
    for option in field.get("anyOf", [field]):
        found += option.get("enum", [])
        found += [option["const"]] if "const" in option else []
        found += EXAMPLES.get(option.get("type", ""), [])
    return found


def _options(field: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """What a field may be; of names and lists what they hold, with what stands behind the key."""
    for option in field.get("anyOf", [field]):
        yield "", option
        for value in _values(option):
            yield IN_NAMES, value
        if "items" in option:
            for tag, item in _items(option["items"]):
                yield f"[{tag}]", item


def _items(items: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    """What a list holds, with what tells it from others; "" where all are alike."""
    tags = {place: tag for tag, place in items.get("discriminator", {}).get("mapping", {}).items()}
    return [(tags[item["$ref"]], item) for item in items.get("oneOf", [])] or [("", items)]


def _values(field: dict[str, Any]) -> list[dict[str, Any]]:
    """What a field that goes by names holds under each."""
    values = [field.get("additionalProperties"), *field.get("patternProperties", {}).values()]
    return [value for value in values if isinstance(value, dict)]


def _kind(schema: dict[str, Any], field: dict[str, Any]) -> str:
    """A field's type in words, with its limits."""
    if "anyOf" in field or "oneOf" in field:
        options = field.get("anyOf", field.get("oneOf", []))
        return " | ".join(_kind(schema, option) for option in options)
    if "enum" in field:
        return " | ".join(f"`{value}`" for value in field["enum"])
    if "const" in field:
        return f"`{field['const']}`"
    if "$ref" in field:
        keys = _referred(schema, field)
        return "{" + ", ".join(keys.get("properties", {})) + "}" if keys else "any"
    for value in _values(field):
        return "name: " + _kind(schema, value)
    if field.get("type") == "array":
        items = field.get("items") or (field.get("prefixItems") or [{}])[0]
        kind = _kind(schema, items)
        return f"list of ({kind})" if "anyOf" in items or "oneOf" in items else f"list of {kind}"
    limits = [
        f"{sign} {field[name]}"
        for name, sign in LIMITS.items()
        if name in field and field[name] < FAR
    ]
    return f"{field.get('type', 'any')} {', '.join(limits)}".strip()


def _referred(schema: dict[str, Any], field: dict[str, Any]) -> dict[str, Any] | None:
    """The section that a field is, if it is one."""
    if "$ref" not in field:
        return None
    section: dict[str, Any] = schema["$defs"][field["$ref"].rsplit("/", 1)[-1]]
    return section


if __name__ == "__main__":
    raise SystemExit(main())
