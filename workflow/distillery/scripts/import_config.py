"""Turn the flags of an older script, and a student_config.json, into a configuration.

python -m distillery.scripts.import_config --run mine --output config/mine.yaml -- \\
    --model_id stabilityai/stable-diffusion-xl-base-1.0 --prompts_file prompts.txt \\
    --num_inference_steps 30 --guidance_scale 5 --resolution 1024 --images_per_prompt 4

The old flags stand after `--`. With --student student_config.json the run trains a student, else it
only generates. A line about each flag says what became of it, then what is still missing.
"""

import sys
from pathlib import Path

import yaml

from distillery.command import logged_parser
from distillery.config.importing import import_run, read_flags
from distillery.config.run import parse_config
from distillery.files import read_json, write_text
from distillery.telemetry import explain_errors


def main(argv: list[str] | None = None) -> int:
    """Parse, import, write, say what is missing."""
    parser = logged_parser(__doc__)
    parser.add_argument("--run", required=True, help="name of the new run")
    parser.add_argument("--student", type=Path, help="a student_config.json")
    parser.add_argument("--output", type=Path, required=True, help="the YAML file to write")
    parser.add_argument("flags", nargs="*", help="the old command line, after `--`")
    arguments = parser.parse_args(argv)
    return explain_errors(
        lambda: convert(arguments.run, arguments.flags, arguments.student, arguments.output),
        arguments.log,
    )


def convert(run: str, words: list[str], student: Path | None, output: Path) -> None:
    """Write the configuration and print what became of each flag."""
    if output.exists():
        raise ValueError(f"{output} exists already: choose another name, or remove it first")
    imported = import_run(run, read_flags(words), read_json(student) if student else None)
    write_text(output, yaml.safe_dump(imported.config, sort_keys=False))
    print("\n".join(imported.lines), file=sys.stderr)
    try:
        parse_config(imported.config, str(output))
    except ValueError as error:
        print(f"\nstill to do: {error}", file=sys.stderr)
    else:
        print(f"\ncomplete: snakemake -n --configfile {output}", file=sys.stderr)


if __name__ == "__main__":
    raise SystemExit(main())
