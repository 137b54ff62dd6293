"""What is on this machine and what is missing, each with how to get it. Finds; the command line prints."""

from __future__ import annotations

import importlib.util
import os
import platform
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from kernelgen import ascend
from kernelgen.devices import cache_folder, installed, libcuda
from kernelgen.devices.libcuda import Gpu
from kernelgen.errors import KernelgenError
from kernelgen.worker import private
from kernelgen.worker.client import Failed, Worker
from kernelgen.worker.confine import Confinement

State = Literal["ok", "warn", "missing"]

PAIRS = {"2.11": "3.6", "2.13": "3.7"}
"""Releases of torch with the triton they were made for and that kernelgen was run with."""
ANY_PAIR = ", ".join(f"torch {torch} with triton {triton}" for torch, triton in PAIRS.items())


@dataclass(frozen=True)
class Finding:
    """One thing that was looked for."""

    name: str
    state: State
    """missing: something kernelgen can do will not work; warn: it works with a limit."""
    found: str
    remedy: str = ""
    """How to get it; empty where all is well."""


def checks() -> list[Finding]:
    """Everything kernelgen needs or can use, in the order in which one would install it. Imports no torch."""
    gpu, why = libcuda.probe()
    here = gpu is not None
    looks: list[Callable[[], Finding]] = [
        python,
        lambda: pairing(installed("torch"), installed("triton") or installed("triton-ascend")),
        lambda: torch_build(installed("torch"), here),
        numpy,
        lambda: compiler(here),
        lambda: tool("ptxas"),
        lambda: tool("cuobjdump"),
        lambda: nvidia(gpu, why),
        lambda: ncu(here),
        lambda: isolation(here),
        npu,
        ascend_compiler,
        cache,
    ]
    return [look() for look in looks]


def python() -> Finding:
    """Nothing older than 3.11 gets as far as this."""
    return Finding("Python", "ok", f"{platform.python_version()} at {sys.executable}")


def pairing(torch: str | None, triton: str | None) -> Finding:
    """torch and triton, and whether they belong together."""
    name = "torch and triton"
    if torch is None or triton is None:
        lacking = " and ".join(n for n, v in (("torch", torch), ("triton", triton)) if v is None)
        how = f"with an NVIDIA GPU {_with('cuda')}; without one a CPU build of torch, then {_with('cpu')}"
        return Finding(name, "missing", f"{lacking} not installed", how)
    found = f"torch {torch}, triton {triton}"
    wanted = PAIRS.get(_minor(torch))
    if wanted is None:
        return Finding(name, "warn", found, f"not a pair that kernelgen was run with; tried are {ANY_PAIR}")
    if wanted != _minor(triton):
        return Finding(
            name, "warn", found, f'torch {_minor(torch)} belongs to triton {wanted}: pip install "triton=={wanted}.*"'
        )
    return Finding(name, "ok", found)


def torch_build(torch: str | None, gpu: bool) -> Finding:
    """A CPU build of torch cannot reach the GPU that is here."""
    name = "torch build"
    if torch is None:
        return Finding(name, "missing", "torch not installed", "see above")
    build = torch.partition("+")[2] or "default"
    if gpu and build == "cpu":
        remedy = f"this machine has a GPU: pip uninstall torch, then {_with('cuda')}"
        return Finding(name, "warn", "CPU only", remedy)
    return Finding(name, "ok", build)


def numpy() -> Finding:
    version = installed("numpy")
    if version is None:
        return Finding("numpy", "missing", "not installed", "pip install numpy (Triton's interpreter needs it)")
    return Finding("numpy", "ok", version)


def compiler(gpu: bool) -> Finding:
    """Triton builds a small launcher with the system's C compiler the first time it launches on a GPU."""
    chosen = os.environ.get("CC")
    found = next((p for p in map(shutil.which, filter(None, (chosen, "gcc", "clang", "cc"))) if p), None)
    if found:
        return Finding("C compiler", "ok", found)
    remedy = "install gcc (apt-get install gcc) or point CC at a compiler; Triton's launcher on a GPU needs it"
    return Finding("C compiler", "missing" if gpu else "warn", "none of $CC, gcc, clang, cc", remedy)


def tool(name: str) -> Finding:
    """A program that travels in Triton's wheel."""
    where = importlib.util.find_spec("triton")
    folder = Path(where.origin).parent / "backends" / "nvidia" / "bin" if where and where.origin else None
    path = folder / name if folder else None
    if path is not None and os.access(path, os.X_OK):
        return Finding(name, "ok", str(path))
    remedy = "pip install --force-reinstall triton (its Linux wheel contains it)"
    return Finding(name, "missing", "not in the triton package" if folder else "triton not installed", remedy)


def nvidia(gpu: Gpu | None, why: str) -> Finding:
    name = "NVIDIA GPU"
    if gpu is None:
        remedy = "none is needed: kernels are then verified in the interpreter, compiled ahead of time and predicted"
        return Finding(name, "warn", why, remedy)
    memory = f"{gpu.memory_bytes / 1e9:.0f} GB"
    return Finding(name, "ok", f"{gpu.name} ({gpu.arch}, {memory}), driver {gpu.driver or 'unknown'}, CUDA {gpu.cuda}")


def ncu(gpu: bool) -> Finding:
    found = shutil.which("ncu") or shutil.which("ncu", path="/usr/local/cuda/bin")
    if found:
        return Finding("ncu", "ok", found)
    limit = "; without it utilisation is computed from bytes and time" if gpu else "; only of use with a GPU"
    return Finding(
        "ncu", "warn", "not installed", f"install NVIDIA Nsight Compute (apt-get install nsight-compute){limit}"
    )


def isolation(gpu: bool) -> Finding:
    """What the processes that run candidates are held to here. With a GPU one is started, as `optimize` does."""
    name = "isolation"
    try:
        lines = _confined(gpu)
    except (KernelgenError, Failed) as error:
        return Finding(name, "missing", str(error), "kernels cannot be run; see above")
    missing = [line for line in lines if line.startswith("missing: ")]
    found = "; ".join(line for line in lines if line not in missing)
    return Finding(name, "warn" if missing else "ok", found, "; ".join(missing))


def _confined(gpu: bool) -> tuple[str, ...]:
    folder = private.make(cache_folder() / "work")
    wanted = Confinement((), (str(folder),), gpu)
    role = "run" if gpu else "confined"
    try:
        with Worker(role, private.variables(folder), folder / "cwd", wanted) as worker:
            return worker.confinement()
    finally:
        private.remove(folder)


def npu() -> Finding:
    """An Ascend NPU: its driver's device files, CANN's environment and torch_npu."""
    name = "Ascend NPU"
    version = installed("torch_npu")
    cann = os.environ.get("ASCEND_HOME_PATH") or os.environ.get("ASCEND_TOOLKIT_HOME")
    device = any(Path("/dev").glob("davinci[0-9]*"))
    if not device:
        return Finding(name, "warn", "no NPU", "only of use with an Ascend NPU")
    if version and cann:
        return Finding(name, "ok", f"torch_npu {version}, CANN at {cann}")
    lacking = [
        *([] if version else [f"torch_npu: {_with('npu')}"]),
        *([] if cann else ["CANN: source set_env.sh"]),
    ]
    return Finding(name, "missing", "an NPU without its software", "; ".join(lacking))


def ascend_compiler() -> Finding:
    """The compiler that checks kernels for an NPU without one."""
    name = "Ascend compiler"
    python = ascend.ready()
    if python is not None:
        return Finding(name, "ok", f"{(ascend.folder() / 'ready').read_text(encoding='utf-8').strip()} at {python}")
    return Finding(
        name, "warn", "not set up", "only of use to check kernels for an Ascend NPU: kernelgen doctor --setup ascend"
    )


def cache() -> Finding:
    """Compiled kernels are kept between runs."""
    folder = cache_folder()
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        return Finding(
            "cache", "missing", f"{folder}: {error.strerror}", "set XDG_CACHE_HOME to a folder you may write"
        )
    if os.access(folder, os.W_OK | os.X_OK):
        return Finding("cache", "ok", str(folder))
    return Finding("cache", "missing", f"{folder} cannot be written", "set XDG_CACHE_HOME to a folder you may write")


def _with(extra: str) -> str:
    """How kernelgen is installed with an extra: from a checkout as one, else by its name."""
    checkout = (Path(__file__).parent.parent / "pyproject.toml").is_file()
    return f"pip install -e '.[{extra}]'" if checkout else f"pip install 'kernelgen[{extra}]'"


def _minor(version: str) -> str:
    return ".".join(version.partition("+")[0].split(".")[:2])
