"""The far end: imports everything once, then forks for each command that comes in at a socket."""

import ast
import atexit
import ctypes
import gc
import os
import runpy
import select
import shutil
import signal
import socket
import sys
import threading
import traceback
import weakref
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from importlib import import_module
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NoReturn

from snakemake import cli
from snakemake_interface_logger_plugins.registry import LoggerPluginRegistry

import distillery
from distillery.pipeline import STAGES
from distillery.report import charts, page

LIBRARY, PLUGIN = Path(distillery.__file__).parent, "snakemake_logger_plugin_distillery"
IMPORTED = (
    "snakemake.cli",
    "snakemake.profiles",
    "snakemake.report.html_reporter",
    "snakemake.storage",
    "smart_open",
    PLUGIN,
    "torch.distributed.run",
    "torch.distributed.fsdp",
    "diffusers.models.auto_model",
    "diffusers.models.transformers",
    "diffusers.pipelines.wan.pipeline_wan",
    "transformers.models.clip.modeling_clip",
    "transformers.models.t5.tokenization_t5",
    "transformers.models.umt5.modeling_umt5",
    "peft",
    "pyarrow.dataset",
    "tensorboardX",
    "distillery.planning.compared",
    "distillery.planning.plan",
    "distillery.planning.verify",
    "distillery.terminal.handler",
    *(stage.makes.partition(":")[0] for stage in STAGES if stage.makes),
)
DIES_WITH_PARENT = 1
"""PR_SET_PDEATHSIG of prctl(2)."""


def serve(folder: Path, user: int) -> None:
    """Fork for each connection to `folder/socket`, until the process `user` ends."""
    os.fsync = lambda _: None  # see sharing.no_fsync
    for name in IMPORTED:
        import_module(name)
    cli.get_argument_parser()  # looks for plugins in all packages, a third of a dry run
    _bundle_once()
    for library in list(vars(weakref.finalize)["_registry"]):
        library.atexit = False  # PyTorch's take down its operators, in each fork that ends
    gc.collect()
    gc.freeze()  # forks then share the pages of what is there
    gc.set_threshold(200_000, 10, 10)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(folder / "socket"))
        listener.listen(64)
        os.write(1, b"ready\n")
        _answer(listener, os.pidfd_open(user))
    shutil.rmtree(folder)


def _answer(listener: socket.socket, user: int) -> None:
    """Fork for who asks, kill what nobody waits for, and tell how each fork has ended."""
    running: dict[int, tuple[int, socket.socket]] = {}
    while True:
        children = {asker: child for child, asker in running.values()}
        ready, _, _ = select.select([listener, user, *children, *running], [], [])
        if user in ready:
            return
        for one in ready:
            if one is listener:
                asker, _ = listener.accept()
                child = _begin(asker, [listener, *children])
                running[os.pidfd_open(child)] = child, asker
            elif one in children:  # its asker is gone
                os.kill(children[one], signal.SIGKILL)
            else:
                os.close(one)
                _tell(*running.pop(one))


def _bundle_once() -> None:
    """Give all forks the script of a report's charts, which takes each a second to bundle.

    One of them has made it: V8's threads in this process would be missing in its forks.
    """
    with ProcessPoolExecutor(1, mp_context=get_context("fork")) as pool:
        script = pool.submit(charts.runtime).result()
    vars(page)["runtime"] = lambda: script


def _begin(asker: socket.socket, others: Iterable[socket.socket]) -> int:
    """Run what is asked for in a fork, whose number is returned."""
    _, streams, _, _ = socket.recv_fds(asker, 1, 3)
    question = asker.makefile().readline()
    child = os.fork()
    if child == 0:
        ctypes.CDLL(None).prctl(DIES_WITH_PARENT, signal.SIGKILL)
        for connection in (asker, *others):
            connection.close()
        _run(ast.literal_eval(question), streams)
    for stream in streams:
        os.close(stream)
    return child


def _tell(child: int, asker: socket.socket) -> None:
    """How a fork has ended, to who has asked for it."""
    _, status = os.waitpid(child, 0)
    code = os.waitstatus_to_exitcode(status)
    with suppress(BrokenPipeError), asker:  # nobody waits for it
        asker.sendall(str(code if code >= 0 else 128 - code).encode())


def _take_library(path: str) -> None:
    """Where `path` begins with a copy of the library, lay down ours, so that it is imported."""
    other = Path(path.partition(os.pathsep)[0], LIBRARY.name)
    if not other.is_dir() or other.samefile(LIBRARY):
        return
    sys.path[:0] = path.split(os.pathsep)
    for name in list(sys.modules):
        if name.partition(".")[0] in (LIBRARY.name, PLUGIN):
            del sys.modules[name]
    LoggerPluginRegistry().collect_plugins()


def _run(question: dict[str, Any], streams: list[int]) -> NoReturn:
    """Be the program."""
    module = question["module"]
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    os.environ.clear()
    os.environ.update(question["environ"])
    os.chdir(question["folder"])
    _take_library(os.environ.get("PYTHONPATH", ""))
    sys.argv, sys.executable = [module, *question["arguments"]], question["python"]
    if not hasattr(sys.modules.get(module), "__path__"):
        sys.modules.pop(module, None)  # it is executed, not imported
    status = 1
    try:
        if module == "-c":
            code = sys.argv.pop(1)
            exec(compile(code, "<string>", "exec"), {"__name__": "__main__"})
        else:
            runpy.run_module(module, run_name="__main__", alter_sys=True)
        status = 0
    except SystemExit as end:
        if isinstance(end.code, str):
            sys.stderr.write(f"{end.code}\n")
        status = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        threading._shutdown()  # waits for threads, as an interpreter that ends does
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


if __name__ == "__main__":
    serve(Path(sys.argv[1]), int(sys.argv[2]))
