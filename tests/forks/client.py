"""What `snakemake` and `python` are where a command is to run in forks; starts in an instant.

`socket` and `json` would take longer to import than all the rest.
"""

import _socket
import os
import sys

SOCKET = "DISTILLERY_TEST_FORKS"
"""The variable with the address of the server."""
PYTHON = "DISTILLERY_TEST_PYTHON"
"""The variable with the `python` whose commands run in forks."""
PROGRAMS = ("torch.distributed.run", "snakemake", "distillery.")
SMALL = "distillery.with_gpus"
"""It becomes another command, as the same process, and imports nothing that takes time."""


def be_snakemake() -> None:
    """Wait for the fork that is Snakemake, and end as it does."""
    sys.exit(_ask("snakemake", sys.argv[1:]))


def be_python(real: str) -> None:
    """The same for code (`-c`) and a program of `PROGRAMS`; the real interpreter does the rest."""
    words = [word for word in sys.argv[1:] if word != "-u"]
    if words[:1] == ["-c"]:
        sys.exit(_ask("-c", words[1:]))
    module = words[1] if words[:1] == ["-m"] else ""
    if module == SMALL or not module.startswith(PROGRAMS):
        os.execv(real, [real, *sys.argv[1:]])
    sys.exit(_ask(module, words[2:]))


def _ask(module: str, arguments: list[str]) -> int:
    """The status of a module that runs with this process's variables, folder and streams."""
    question = {
        "module": module,
        "arguments": arguments,
        "environ": dict(os.environ),
        "folder": os.getcwd(),  # noqa: PTH109 (pathlib would take longer than all the rest)
        "python": os.environ[PYTHON],
    }
    connection = _socket.socket(_socket.AF_UNIX)
    connection.connect(os.environ[SOCKET])
    streams = b"".join(number.to_bytes(4, sys.byteorder) for number in range(3))
    connection.sendmsg([b"."], [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, streams)])
    connection.sendall(ascii(question).encode() + b"\n")
    return int(connection.recv(16) or 1)
