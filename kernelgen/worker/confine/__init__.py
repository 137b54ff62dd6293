"""What a worker may still do: files, network, system calls and memory, as far as this machine's kernel can hold it.

Everything is asked of Linux through ctypes before torch is imported, while the process has one thread. What the
machine does not offer is left out and said: `confine` returns what was achieved, and the journal keeps it.
"""

from __future__ import annotations

import os
import pwd
import resource
import shutil
import sys
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from kernelgen.worker.confine import landlock, namespaces, seccomp

FILE_BYTES = 4 << 30
DESCRIPTORS = 4096
PROCESSES = 16384
LEAST_DATA = 8 << 30
"""Writable memory that a process without a GPU may have, or the machine's own where that is more. A GPU's runtime
reserves address space far beyond what it uses and is not limited."""


LANDLOCK, LOOSE, NAMESPACE, SECCOMP = "landlock", "landlock for writes", "namespace", "seccomp"
WALLS: dict[str, tuple[str, ...]] = {LANDLOCK: (LANDLOCK, LOOSE), NAMESPACE: (NAMESPACE,), SECCOMP: (SECCOMP,)}
"""Each wall with its forms, the strongest first: a driver that does not bear the first may bear the next."""


@dataclass(frozen=True)
class Confinement:
    """What a worker needs of the machine; nothing else is left to it."""

    read: tuple[str, ...] = ()
    """Files and folders beside Python's own and the system's libraries."""
    write: tuple[str, ...] = ()
    """Folders; they are the worker's own."""
    gpu: bool = False
    walls: tuple[str, ...] = tuple(WALLS)
    """What is asked of the kernel, each in one of its forms: a driver that does not bear one of them does without."""
    refused: tuple[tuple[str, str], ...] = ()
    """The forms that the worker did not start with, each with the last that it said."""

    def behind(self, *walls: str, refused: tuple[tuple[str, str], ...] = ()) -> Confinement:
        """The same with these walls alone."""
        return replace(self, walls=walls, refused=refused)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @staticmethod
    def from_json(data: dict[str, Any]) -> Confinement:
        refused = tuple((name, why) for name, why in data["refused"])
        return Confinement(tuple(data["read"]), tuple(data["write"]), data["gpu"], tuple(data["walls"]), refused)


@dataclass
class Achieved:
    """What holds now, in words, and what this machine could not do."""

    holds: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        return {"holds": self.holds, "missing": self.missing}


def confine(wanted: Confinement) -> Achieved:
    """Give up everything that is not wanted, for this process and all it starts. Never raises: see `Achieved`."""
    found = Achieved(["scrubbed environment", "own session, killed as a group"])
    _limits(wanted, found)
    if sys.platform != "linux":
        found.missing.append("no namespaces, landlock or seccomp: not Linux")
        return found
    found.missing += [f"{wall}: the worker does not start with it: {why}" for wall, why in wanted.refused]
    if NAMESPACE in wanted.walls:
        _note(found, namespaces.leave_network(), "no network (namespace)", NAMESPACE)
    if LANDLOCK in wanted.walls:
        rules = landlock.Rules(_readable(wanted), wanted.write, _devices(wanted), names=wanted.gpu)
        holds = f"files: reads listed folders, writes its own (landlock {landlock.abi()})"
        _note(found, landlock.restrict(rules), holds, LANDLOCK)
    elif LOOSE in wanted.walls:
        devices = (*_devices(wanted), "/dev") if wanted.gpu else DEVICES
        rules = landlock.Rules(("/",), wanted.write, devices, names=wanted.gpu)
        holds = f"files: writes its own folder and devices alone, reads everything (landlock {landlock.abi()})"
        _note(found, landlock.restrict(rules), holds, LOOSE)
    if SECCOMP in wanted.walls:
        holds = "system calls: no sockets, tracing, mounts (seccomp)"
        _note(found, seccomp.restrict(unix_sockets=wanted.gpu), holds, SECCOMP)
    return found


def hold_group() -> None:
    """From here on the process cannot leave its process group, so that killing the group kills all it started."""
    if sys.platform == "linux":
        seccomp.hold_group()


def _note(found: Achieved, problem: str, holds: str, name: str) -> None:
    if problem:
        found.missing.append(f"{name}: {problem}")
    else:
        found.holds.append(holds)


def _limits(wanted: Confinement, found: Achieved) -> None:
    """Limits that CUDA survives; none that is already lower is raised."""
    limits = {"CORE": 0, "FSIZE": FILE_BYTES, "NOFILE": DESCRIPTORS, "NPROC": PROCESSES}
    if not wanted.gpu:
        limits["DATA"] = max(LEAST_DATA, os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    for name, limit in limits.items():
        kind = getattr(resource, f"RLIMIT_{name}", None)
        if kind is None:
            continue
        _, hard = resource.getrlimit(kind)
        limit = limit if hard == resource.RLIM_INFINITY else min(limit, hard)
        try:
            resource.setrlimit(kind, (limit, limit))
        except (OSError, ValueError) as error:
            found.missing.append(f"limit {name}: {error}")
    found.holds.append("limits: " + ", ".join(name.lower() for name in limits))


SYSTEM = (
    "/usr", "/lib", "/lib32", "/lib64", "/bin", "/sbin", "/proc", "/sys", "/etc/ld.so.cache", "/etc/ld.so.conf",
    "/etc/ld.so.conf.d", "/etc/alternatives", "/etc/nsswitch.conf", "/etc/passwd", "/etc/group", "/etc/localtime",
    "/etc/nvidia", "/etc/OpenCL", "/usr/local/cuda", "/usr/local/Ascend", "/usr/local/dcmi", "/etc/ascend_install.info",
)  # fmt: skip
"""Libraries, compilers and what they read. Nothing of a user's is below these."""
FOLDER_VARIABLES = (
    "CUDA_HOME", "CUDA_PATH", "VIRTUAL_ENV", "PYTHONPYCACHEPREFIX", "ASCEND_HOME_PATH", "ASCEND_OPP_PATH",
)  # fmt: skip
FILE_VARIABLES = ("CC", "TRITON_PTXAS_PATH", "TRITON_CUOBJDUMP_PATH")
LIST_VARIABLES = ("LD_LIBRARY_PATH", "LIBRARY_PATH", "CPATH", "TRITON_LIBCUDA_PATH")
NPU_DEVICES = ("davinci*", "devmm_svm", "hisi_hdc")
"""What a container is given of an Ascend NPU (Ascend Docker Runtime's guide)."""
DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom")


def _readable(wanted: Confinement) -> tuple[str, ...]:
    package = Path(__file__).resolve().parents[2]
    found = [*SYSTEM, sys.prefix, sys.base_prefix, sys.exec_prefix, str(package), *wanted.read]
    # the folder that the package lies in may be a checkout: of it only names are needed
    found += [entry for entry in sys.path if entry and Path(entry).resolve() != package.parent]
    found += [os.environ[name] for name in FOLDER_VARIABLES if os.environ.get(name)]
    found += [str(Path(os.environ[name]).parent) for name in FILE_VARIABLES if "/" in os.environ.get(name, "")]
    found += _compilers()
    found += [entry for name in LIST_VARIABLES for entry in os.environ.get(name, "").split(os.pathsep) if entry]
    return tuple(dict.fromkeys(found))


def _compilers() -> list[str]:
    """Where the C compilers that Triton may take are installed: `/opt/gcc` of `/opt/gcc/bin/gcc`, never a home."""
    programs = [shutil.which(name) for name in (os.environ.get("CC", ""), "gcc", "clang") if name]
    found = {Path(program).resolve().parent for program in programs if program}
    found |= {Path(program).parent for program in programs if program}
    kept = {Path("/"), *(Path(user.pw_dir) for user in pwd.getpwall())}
    return sorted(str(folder.parent) for folder in found if folder.name == "bin" and folder.parent not in kept)


def _devices(wanted: Confinement) -> tuple[str, ...]:
    if not wanted.gpu:
        return DEVICES
    found = (path for name in ("nvidia*", *NPU_DEVICES) for path in sorted(Path("/dev").glob(name)))
    return (*DEVICES, "/dev/dxg", *map(str, found))
