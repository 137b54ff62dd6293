"""The compile role: kernels are compiled for a named GPU that need not be here, by the very path a launch takes.

The wrapper is called with meta tensors under a stub driver, and `JITFunction.run` compiles without launching.
Signature, specialisation and options are therefore those of the real launch, the grid is seen, and Triton's
disk cache holds the cubin when the process with the GPU asks for it.
"""

from __future__ import annotations

import fcntl
import hashlib
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from triton import knobs
from triton.backends.compiler import GPUTarget
from triton.compiler.compiler import make_backend
from triton.runtime.cache import triton_key
from triton.runtime.driver import driver
from triton.runtime.jit import JITFunction

from kernelgen import judge
from kernelgen.devices.facts import DeviceFacts
from kernelgen.judge.inputs import without_memory
from kernelgen.outcomes import Status
from kernelgen.worker import load, resources
from kernelgen.worker.digest import digest
from kernelgen.worker.operations import CompileError, classify


@dataclass(frozen=True)
class StubUtils:
    """As much of a driver's utilities as wrappers ask for."""

    sms: int

    def get_device_properties(self, device: int) -> dict[str, int]:
        return {"multiprocessor_count": self.sms}


@dataclass(frozen=True)
class StubDriver:
    """As much of a driver as compiling asks for."""

    arch: int
    utils: StubUtils

    def get_current_target(self) -> Any:
        return GPUTarget("cuda", self.arch, 32)

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0

    def get_active_torch_device(self) -> torch.device:
        return torch.device("meta")


@dataclass(frozen=True)
class Launch:
    """One launch that a wrapper would have made."""

    kernel: Any
    """Triton's CompiledKernel."""
    grid: tuple[int, ...]
    scalars: tuple[str, ...]
    """The arguments that are neither tensors nor compiled in: part of what tells two launches apart."""


def compile_cases(path: str, function: str, device: dict[str, Any], cases: list[dict[str, Any]]) -> dict[str, Any]:
    """Compile all kernels a wrapper launches for each case.

    A case is {"label", "inputs": [[shape, dtype] or [value, "value"], ...]}. Returns {"facts": [[label, facts], ...],
    "digests": [[label, digest], ...]}: where digests are equal, the same machine code is launched with the
    same grids and scalars.
    """
    facts = DeviceFacts(**device)
    compile_for(facts)
    wrapper = load.candidate(path, function)
    found: list[list[Any]] = []
    digests: list[list[str]] = []
    for case in cases:
        identity: list[str] = []
        for launch in record(wrapper, [_without_memory(*told) for told in case["inputs"]]):
            kernel = launch.kernel
            metadata = kernel.metadata
            static = resources.static_facts(
                metadata.name, kernel.asm["ptx"], kernel.asm["cubin"], metadata.num_warps, metadata.shared,
                launch.grid, facts,
            )  # fmt: skip
            found.append([case["label"], {**vars(static), "grid": list(static.grid)}])
            identity += [resources.code_of(kernel.asm["ptx"]), str(launch.grid), *launch.scalars]
        digests.append([case["label"], digest(identity)])
    return {"facts": found, "digests": digests}


def compile_judged(folder: str, name: str, path: str, device: dict[str, Any], case: dict[str, Any]) -> dict[str, Any]:
    """Compile what an accuracy case launches, for the strides and the alignment that it gives its inputs."""
    compile_for(DeviceFacts(**device))
    judge.prepare = lambda: "cuda"  # what the test imports is to be compiled, although there is no GPU here
    one = judge.Case.from_json(case)
    operator = load.quartet(folder, name, "accuracy").OPERATOR.at(one)
    with _each_once():
        record(operator.taking(load.candidate(path, name)), without_memory(operator, one))
    return {}


@contextmanager
def _each_once() -> Iterator[None]:
    """Of processes that compile with one cache, one compiles a kernel, and the others wait and find it there."""
    held = ExitStack()

    def begun(*, key: str, fn: Any, **_: Any) -> None:
        held.close()
        name = hashlib.sha256(f"{fn.jit_function.cache_key} {key}".encode()).hexdigest()
        place = Path(knobs.cache.dir, f"{name}.lock")
        place.parent.mkdir(parents=True, exist_ok=True)
        fcntl.flock(held.enter_context(place.open("a")), fcntl.LOCK_EX)

    before, knobs.runtime.jit_cache_hook = knobs.runtime.jit_cache_hook, begun
    try:
        yield
    finally:
        knobs.runtime.jit_cache_hook = before
        held.close()


def compile_for(facts: DeviceFacts) -> None:
    """From now on this process compiles for such a GPU, and launches nothing."""
    driver.set_active(StubDriver(int(facts.arch.removeprefix("sm_")), StubUtils(facts.sms)))


def _without_memory(told: Any, dtype: str) -> Any:
    """An argument of a case: a value, or a shape, of which a tensor on the device meta is made."""
    return told if dtype == "value" else torch.empty(told, dtype=getattr(torch, dtype), device="meta")


def record(wrapper: Any, inputs: Sequence[Any]) -> list[Launch]:
    """The launches a wrapper makes for these inputs, tensors on the device meta and values, compiled and not run."""
    launches: list[Launch] = []
    run = JITFunction.run

    def compile_only(self: Any, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> Any:
        kernel = run(self, *args, grid=grid, warmup=True, **kwargs)
        bound = self.signature.bind_partial(
            *args, **{k: v for k, v in kwargs.items() if k in self.signature.parameters}
        )
        bound.apply_defaults()
        size = grid(bound.arguments) if callable(grid) else grid
        compiled_in = {p.name for p in self.params if p.is_constexpr}  # seen in the machine code, if at all
        scalars = tuple(
            f"{name}={value}"
            for name, value in bound.arguments.items()
            if name not in compiled_in and not isinstance(value, torch.Tensor)
        )
        launches.append(Launch(kernel, tuple(int(n) for n in size), scalars))
        return kernel

    JITFunction.run, asked = compile_only, torch.Tensor.__bool__
    torch.Tensor.__bool__ = _nothing_found  # type: ignore[assignment, method-assign]
    try:
        wrapper(*inputs)
    except (Exception, SystemExit) as error:
        if classify(error)[0] in (Status.LAUNCH_ERROR, Status.OUT_OF_MEMORY):
            raise
        raise CompileError(f"{type(error).__name__}: {error}") from error
    finally:
        JITFunction.run = run
        torch.Tensor.__bool__ = asked  # type: ignore[method-assign]
    return launches


def _nothing_found(found: torch.Tensor) -> bool:
    """What a wrapper that looks for wrong elements finds in tensors without memory."""
    return False


def canary() -> dict[str, Any]:
    """Proof of life."""
    return {}


def warm_up() -> None:
    """What every child would otherwise do again: imports, and hashing Triton and ptxas for the cache's key.

    Nothing is compiled: LLVM starts a thread when it does, and a server that forks has none.
    """
    torch.empty(1, device="meta").add(1)  # imports sympy and torch._dynamo
    make_backend(GPUTarget("cuda", 90, 32)).hash()
    triton_key()
    resources.cuobjdump()


OPERATIONS = {"canary": canary, "compile": compile_cases, "compile_judged": compile_judged}
warm_up()
