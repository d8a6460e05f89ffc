"""Read every file of a run again, and say what is damaged and how it is made again.

python -m distillery.scripts.verify --run results/demo

Chunks, pictures, latents, checkpoints, student folders, tables and manifests are compared with the
hashes that vouch for them. A run that is not finished is read as far as it goes. The exit status is
1 where something is damaged; the commands at the end make it again, the same bytes.
"""

from pathlib import Path

from distillery.command import logged_parser
from distillery.stages.verify import commands, verify
from distillery.telemetry import Reporter, explain_errors


def main(argv: list[str] | None = None) -> int:
    """Parse, read, print what is damaged."""
    parser = logged_parser(__doc__)
    parser.add_argument("--run", type=Path, required=True, help="results/{run}")
    arguments = parser.parse_args(argv)
    is_whole = False

    def body() -> None:
        nonlocal is_whole
        is_whole = tell(arguments.run)

    return explain_errors(body, arguments.log) or (0 if is_whole else 1)


def tell(run: Path) -> bool:
    """Verify a run and print the result; True where nothing is damaged.

    Raises ValueError where there is no such run.
    """
    if not run.is_dir():
        raise ValueError(f"there is no run in {run}: give results/NAME, NAME as `run` has it")
    damages, num_read = verify(run, Reporter(run / "telemetry", "verify", "verify", "cpu"))
    for damage in damages:
        print(f"{damage.item.path}: {damage.why}")
    if not damages:
        print(f"{num_read} files and folders of {run} were read: all are as they were written")
        return True
    print(f"{len(damages)} of {num_read} are damaged; these commands make them again:")
    for command in commands(damages, run):
        print(f"    {command}")
    return False


if __name__ == "__main__":
    raise SystemExit(main())
