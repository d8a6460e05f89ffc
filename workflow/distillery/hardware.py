"""What this machine has: GPUs, CPU, memory, versions of packages.

A Snakefile imports this module while it is parsed, so nothing heavy is imported at module level.
"""

import os
import platform
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict

from distillery import __version__
from distillery.hash_cache import cache_folder

if TYPE_CHECKING:
    import torch

PRETEND_VARIABLE = "DISTILLERY_PRETEND_GPUS"
COMPILED_VARIABLE = "TORCHINDUCTOR_CACHE_DIR"
"""PyTorch's own; Triton's folder follows it."""
DEFAULT_COMPILED = "torchinductor_"
"""What its value begins with in /tmp where PyTorch, which then sets it for its children, chose."""
PRETEND_BYTES = 16 * 2**30
"""Memory that a pretend GPU claims to have."""


@dataclass(frozen=True)
class Gpu:
    """One device that a CUDA program can open: a GPU, or one instance of a GPU in MIG mode.

    Attributes:
        uuid: the driver's name of the device, e.g. "GPU-8932f937-…" or "MIG-…".
        index: position among the devices of this machine in PCI order, as in `nvidia-smi`.
        memory_bytes: all of its memory, free or not.
        capability: CUDA's compute capability, which says what it can do, e.g. "9.0"; "" if it is
            not known.
    """

    uuid: str
    index: int
    name: str
    memory_bytes: int
    capability: str = ""


class Hardware(TypedDict):
    """What the report says about the machine."""

    cpu: str
    num_cores: int
    memory_bytes: int
    gpus: list[dict[str, str | int]]


def find_gpus() -> tuple[Gpu, ...]:
    """The GPUs that this process may use, in the order of CUDA_VISIBLE_DEVICES if that is set.

    CUDA_VISIBLE_DEVICES holds indices in PCI order, UUIDs, or beginnings of UUIDs. CUDA itself
    stops in silence at an id that it does not know; here that is an error.
    DISTILLERY_PRETEND_GPUS=4 gives four devices that do not exist, "GPU-pretend-0" and so on, to
    try out scheduling without a GPU; jobs that are given one work on the CPU.

    Returns:
        One entry a device; none where there is no GPU or no driver.

    Raises:
        ValueError: an id is unknown, fits several devices, or names one twice.
        RuntimeError: there is a driver, but it does not answer.
    """
    ids = visible_ids()
    if ids == ():
        return ()
    gpus = _installed_gpus()
    if ids is None:
        return gpus
    chosen = tuple(_find(name, gpus) for name in ids)
    if len(set(chosen)) < len(chosen):
        raise ValueError(f"CUDA_VISIBLE_DEVICES is {','.join(ids)!r}: it names a GPU twice")
    return chosen


def count_gpus() -> int:
    """How many GPUs this process may use; see `find_gpus`.

    Inside a SLURM job they are those that SLURM handed out, whatever numbers it gives them.
    """
    ids = visible_ids()
    if "SLURM_JOB_ID" in os.environ and ids is not None:
        return len(ids)
    return len(find_gpus())


def visible_ids() -> tuple[str, ...] | None:
    """The ids in CUDA_VISIBLE_DEVICES, None if it is not set.

    As in CUDA, "-1" ends the list. SLURM writes "NoDevFiles" for a job without GPUs.
    """
    text = os.environ.get("CUDA_VISIBLE_DEVICES")
    if text is None:
        return None
    if text.strip() in ("", "NoDevFiles"):
        return ()
    ids = [name.strip() for name in text.split(",")]
    return tuple(ids[: ids.index("-1")] if "-1" in ids else ids)


def _find(name: str, gpus: tuple[Gpu, ...]) -> Gpu:
    """The one device that an id of CUDA_VISIBLE_DEVICES means."""
    matches = [gpu for gpu in gpus if name in (str(gpu.index), gpu.uuid)]
    if not matches and name.startswith(("GPU-", "MIG-")):
        matches = [gpu for gpu in gpus if gpu.uuid.startswith(name)]
    if len(matches) == 1:
        return matches[0]
    problem = "fits several GPUs" if matches else "is no GPU of this machine"
    raise ValueError(
        f"CUDA_VISIBLE_DEVICES names {name!r}, which {problem}; there are: {list_gpus(gpus)}"
    )


def list_gpus(gpus: tuple[Gpu, ...]) -> str:
    """Devices in words, for messages: "0 (GPU-8932f937-…), 1 (…)", or "none"."""
    return ", ".join(f"{gpu.index} ({gpu.uuid})" for gpu in gpus) or "none"


def _installed_gpus() -> tuple[Gpu, ...]:
    """Every device of this machine, CUDA_VISIBLE_DEVICES aside."""
    pretend = os.environ.get(PRETEND_VARIABLE, "")
    if pretend:
        return _pretend_gpus(pretend)
    import pynvml  # type: ignore[import-untyped, unused-ignore]

    try:
        pynvml.nvmlInit()
    except (pynvml.NVMLError_LibraryNotFound, pynvml.NVMLError_DriverNotLoaded):
        return ()
    except pynvml.NVMLError as error:
        raise _driver_trouble(error) from error
    try:
        handles = enumerate(_handles(pynvml))
        return tuple(_describe(pynvml, index, handle) for index, handle in handles)
    except pynvml.NVMLError as error:
        raise _driver_trouble(error) from error
    finally:
        pynvml.nvmlShutdown()


def _pretend_gpus(text: str) -> tuple[Gpu, ...]:
    """Devices for tests on machines without GPU."""
    if not text.isdecimal():
        raise ValueError(f"DISTILLERY_PRETEND_GPUS is {text!r}: it must be a count, e.g. 4")
    return tuple(
        Gpu(f"GPU-pretend-{index}", index, "pretend", PRETEND_BYTES) for index in range(int(text))
    )


def _driver_trouble(error: Exception) -> RuntimeError:
    """A GPU machine whose driver fails must not become a CPU machine in silence."""
    return RuntimeError(
        f"the NVIDIA driver does not answer ({error}): try nvidia-smi; a driver that was replaced "
        "needs a restart of the machine; to work without GPUs set CUDA_VISIBLE_DEVICES to nothing"
    )


# NVML comes as an argument, since only `_installed_gpus` imports it; `Any`, since it has no types.


def _handles(nvml: Any) -> Iterator[Any]:
    """NVML handles in PCI order; a GPU in MIG mode is replaced by its instances, as CUDA does."""
    for index in range(nvml.nvmlDeviceGetCount()):
        handle = nvml.nvmlDeviceGetHandleByIndex(index)
        if _is_split(nvml, handle):
            yield from _instances(nvml, handle)
        else:
            yield handle


def _is_split(nvml: Any, handle: Any) -> bool:
    """Whether a GPU is in MIG mode."""
    try:
        return bool(nvml.nvmlDeviceGetMigMode(handle)[0] == nvml.NVML_DEVICE_MIG_ENABLE)
    except nvml.NVMLError_NotSupported:
        return False


def _instances(nvml: Any, handle: Any) -> Iterator[Any]:
    """The MIG instances of one GPU; unused places raise NotFound."""
    for place in range(nvml.nvmlDeviceGetMaxMigDeviceCount(handle)):
        try:
            yield nvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, place)
        except nvml.NVMLError_NotFound:
            continue


def _describe(nvml: Any, index: int, handle: Any) -> Gpu:
    """One device as NVML knows it; a GPU without memory of its own (GB10) uses the host's."""
    try:
        memory_bytes = int(nvml.nvmlDeviceGetMemoryInfo(handle).total)
    except nvml.NVMLError_NotSupported:
        memory_bytes = _host_memory_bytes()
    uuid, name = nvml.nvmlDeviceGetUUID(handle), nvml.nvmlDeviceGetName(handle)
    return Gpu(uuid, index, name, memory_bytes, _capability(nvml, handle))


def _capability(nvml: Any, handle: Any) -> str:
    """The compute capability of a device, "" where the driver does not say, as of some instances
    in MIG mode."""
    try:
        return "{}.{}".format(*nvml.nvmlDeviceGetCudaComputeCapability(handle))
    except nvml.NVMLError:
        return ""


MAX_THREADS_OF_GPU_JOB = 4


def select_device(cpu_threads: int) -> "torch.device":
    """The device a job works on, and the settings that make its results repeat.

    The first visible GPU, else the CPU with a fixed number of threads: how many threads share a sum
    decides its last bits, so they must not follow the machine's core count.

    Args:
        cpu_threads: threads of a job without GPU, 1 or more.

    Raises:
        OSError: the job holds GPUs that PyTorch cannot use. On the CPU it would take a hundred
            times as long and keep them from others.
    """
    import torch

    if torch.cuda.is_available():
        # As PyTorch is delivered: float32 convolutions in TF32 (10 bits of mantissa; SDXL's VAE
        # decodes in a quarter of the time), matrix products in full float32.
        torch.backends.cuda.matmul.allow_tf32 = False
        torch.backends.cudnn.allow_tf32 = True
        # Jobs of several GPUs share the cores, and what a GPU job does on the CPU is little.
        torch.set_num_threads(MAX_THREADS_OF_GPU_JOB)
        # cuDNN's benchmark picks another kernel from run to run.
        torch.backends.cudnn.benchmark = False
        keep_compiled_code()
        return torch.device("cuda", 0)
    if visible_ids() and not os.environ.get(PRETEND_VARIABLE):
        raise OSError(
            f"this job has GPUs, CUDA_VISIBLE_DEVICES is {os.environ['CUDA_VISIBLE_DEVICES']!r}, "
            f"but {_why_no_cuda()}; to work on the CPU set CUDA_VISIBLE_DEVICES to nothing"
        )
    return use_cpu(cpu_threads)


def keep_compiled_code() -> None:
    """Have PyTorch keep the code that it compiles in our cache folder, for the jobs of all nodes.

    By itself it would take /tmp, which each node has its own of and empties. It finds its code by a
    hash of the graph, the device and its own version, so different ones do not meet. A folder that
    was chosen by TORCHINDUCTOR_CACHE_DIR stays; without one that can be written to, /tmp serves.
    """
    folder, chosen = cache_folder(), Path(os.environ.get(COMPILED_VARIABLE, DEFAULT_COMPILED))
    if folder is None or not chosen.name.startswith(DEFAULT_COMPILED):
        return
    with suppress(OSError):
        (folder / "compiled").mkdir(parents=True, exist_ok=True)
        if os.access(folder / "compiled", os.W_OK):
            os.environ[COMPILED_VARIABLE] = str(folder / "compiled")


def use_cpu(cpu_threads: int) -> "torch.device":
    """The CPU, with a fixed number of threads, as `select_device` without a GPU."""
    import torch

    torch.set_num_threads(cpu_threads)
    # PyTorch takes this number once a process, before its first parallel work.
    if torch.get_num_interop_threads() != cpu_threads:
        with suppress(RuntimeError):
            torch.set_num_interop_threads(cpu_threads)
    return torch.device("cpu")


def _why_no_cuda() -> str:
    """Why PyTorch does not see the GPUs of this job, and what helps."""
    import torch

    if torch.version.cuda is None and torch.version.hip is None:
        release = torch.__version__.partition("+")[0]
        return (
            f"PyTorch {torch.__version__} was built without CUDA: install the build with it, "
            f"pip install --force-reinstall torch=={release}"
        )
    old = _driver_too_old(torch.version.cuda or "", *_driver_versions())
    if old:
        return old
    try:
        torch.zeros(1, device="cuda")
    except (RuntimeError, AssertionError) as error:
        return f"PyTorch cannot use them: {str(error).splitlines()[0].rstrip('.')}"
    return "PyTorch finds none of them; nvidia-smi may show why"


def _driver_versions() -> tuple[str, int]:
    """The NVIDIA driver's version and the CUDA that it knows, 12040 for 12.4; ("", 0) without."""
    import pynvml

    try:
        pynvml.nvmlInit()
        return pynvml.nvmlSystemGetDriverVersion(), pynvml.nvmlSystemGetCudaDriverVersion_v2()
    except pynvml.NVMLError:
        return "", 0


def _driver_too_old(needed: str, driver: str, known: int) -> str:
    """What to say of a driver whose CUDA is of an older major version than PyTorch's, else "".

    Within a major version older drivers serve (CUDA's minor version compatibility).

    Args:
        needed: the CUDA version that PyTorch was built for, as "13.0"; "" for none.
    """
    major = int(needed.partition(".")[0] or 0)
    if not 0 < known // 1000 < major:
        return ""
    return (
        f"the NVIDIA driver {driver} knows CUDA up to {known // 1000}.{known % 1000 // 10} and "
        f"PyTorch needs {needed}: update the driver, or install PyTorch for CUDA {known // 1000} "
        "(pytorch.org/get-started says how)"
    )


def device_label(device: "torch.device") -> str:
    """A device's name for logs: "cpu", or e.g. "cuda:GPU-8932f937", the same in every process."""
    if device.type != "cuda":
        return device.type
    import torch

    uuid = str(torch.cuda.get_device_properties(device).uuid)
    return f"cuda:{'GPU-' + uuid.removeprefix('GPU-'):.12}"


def describe_hardware() -> Hardware:
    """CPU model, cores, memory and visible GPUs of this machine, for the report."""
    return {
        "cpu": _cpu_model(),
        "num_cores": os.cpu_count() or 1,
        "memory_bytes": _host_memory_bytes(),
        "gpus": [asdict(gpu) for gpu in find_gpus()],
    }


def _cpu_model() -> str:
    """The processor's product name where the kernel names it (x86), else its architecture."""
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text(encoding="utf-8").splitlines() if cpuinfo.exists() else []
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return models[0] if models else platform.machine()


def _host_memory_bytes() -> int:
    """All physical memory of the machine."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def source_commit() -> dict[str, Any] | None:
    """The commit that this library is of, and whether its files are as committed; None outside a
    checkout.
    """
    folder = Path(__file__).parent

    def git(*words: str) -> str:
        done = subprocess.run(
            ["git", "-C", str(folder), *words], capture_output=True, text=True, check=True
        )
        return done.stdout.strip()

    try:
        if not git("ls-files", "hardware.py"):
            return None  # installed below somebody else's repository
        return {"commit": git("rev-parse", "HEAD"), "is_clean": not git("status", "--porcelain")}
    except (OSError, subprocess.CalledProcessError):
        return None


def versions() -> dict[str, str]:
    """Versions of what decides a result, read from package metadata; nothing is imported."""
    from importlib.metadata import PackageNotFoundError, version

    version_of = {"python": platform.python_version(), "distillery": __version__}
    for package in ("torch", "diffusers", "transformers", "snakemake"):
        try:
            version_of[package] = version(package)
        except PackageNotFoundError:
            version_of[package] = "not installed"
    return version_of
