"""Read every file of a run again, and say what is damaged and how it is made again.

python -m distillery.stages.verify --run results/demo

Chunks, images, latents, checkpoints, student folders, tables and manifests are compared with the
hashes that they must have. A run that is not finished is read as far as it goes. The exit status is
1 where something is damaged; the commands at the end make it again, the same bytes.

What is whole and yet not of the run's configuration is told like damage: a store or a student of
other settings, losses of another training, images of another student, scores of other images, a
card beside the report that is of another student, all that was made by a teacher whose files were
exchanged since.

A file is damaged that is missing though a manifest lists it, or whose bytes are not those that a
manifest lists; so is one that no manifest lists and that does not match the hash that it carries,
a pipeline without its card, and a report without the card beside it. Reports, previews and the
tables of a data set are not read: nothing is made of them.
"""

from pathlib import Path

from distillery.run_folder import RunFolder
from distillery.stage import Stage, asked_for

STAGE: Stage = Stage(name="verify", keys=asked_for)


def main(argv: list[str] | None = None) -> int:
    """Read, and print what is damaged."""
    from distillery.cli import logged_parser
    from distillery.planning.verify import tell
    from distillery.telemetry import explain_errors

    parser = logged_parser(__doc__)
    parser.add_argument("--run", type=Path, required=True, help="results/{run}")
    arguments = parser.parse_args(argv)
    is_whole = False

    def body() -> None:
        nonlocal is_whole
        is_whole = tell(RunFolder(arguments.run), arguments.log)

    return explain_errors(body, arguments.log) or (0 if is_whole else 1)


if __name__ == "__main__":
    raise SystemExit(main())
