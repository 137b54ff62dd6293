"""How fast is a kernel on one case? Against PyTorch eager and torch.compile, and against the least possible time."""

from __future__ import annotations

import functools
import inspect
import itertools
import math
import types
import unittest
import zlib
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from . import device as devices
from . import inputs, memory
from .accuracy import accuracy_case
from .model import Case, Comparison, Function, Operator, PerformanceReport
from .timing import BLOCKS, HALF_WIDTH, TIME_CAP_S, MakeInputs, compare

OPPONENTS = ("eager", "compile", "max-autotune")
"""Eager, torch.compile with its defaults, and with mode="max-autotune-no-cudagraphs"."""
NO_GPU = "not measured: no GPU (torch.cuda.is_available() is false); run this on a machine with one"


def performance_case(
    operator: Operator,
    case: Case,
    against: Sequence[str] = ("eager", "compile"),
    *,
    seed: int | None = None,
    time_cap_s: float = TIME_CAP_S,
    half_width: float = HALF_WIDTH,
    blocks: int = BLOCKS,
    kernel: Function | None = None,
    check: bool = True,
) -> PerformanceReport:
    """Check the kernel once, then time it against every opponent. On a machine without a GPU nothing is measured.

    `time_cap_s`, `half_width` and `blocks`: of each comparison, see `timing.compare`.
    `check`: False where the caller has just judged the same kernel on this case.
    """
    device, operator = devices.timed(), operator.at(case)
    if not device:
        return PerformanceReport(case, left_out=NO_GPU)
    needed = memory.input_bytes(operator, case) + 2 * memory.output_bytes(operator, case)
    if left_out := memory.does_not_fit(needed, device):
        return PerformanceReport(case, left_out=left_out)
    seed = inputs.secret_seed() if seed is None else seed
    if check:
        found = accuracy_case(
            operator, case, seed=seed, seeds=1, kernel=kernel, distributions=("normal",), mutants=False
        )
        if not found.passed or found.left_out:
            return PerformanceReport(case, message=found.message, left_out=found.left_out)
    comparisons: dict[str, Comparison] = {}
    notes: list[str] = []
    for name in against:
        if device == "npu" and name != "eager":
            notes.append(f"{name}: not timed, torch.compile for an NPU is untried")
            continue
        timed = _compared(
            (opponent(operator, name, case), operator.taking(kernel) if kernel else operator.kernel),
            make_inputs(operator, case, seed=seed),
            partial(compare, time_cap_s=time_cap_s, half_width=half_width, blocks=blocks),
        )
        if isinstance(timed, Comparison):
            comparisons[name] = timed
            notes += _notes(name, timed)
        else:
            notes.append(f"{name}: ran out of memory: {timed}")
    read, written = memory.minimal_bytes(operator, case)
    copy, fill = devices.bandwidths()
    floor_us = max((read + written) / copy, written / fill) * 1e6
    left_out = "" if comparisons else "; ".join(notes)
    return PerformanceReport(case, comparisons, floor_us, read + written, left_out=left_out, notes=tuple(notes))


def _compared(
    functions: tuple[Function, Function], make: MakeInputs, take: Callable[..., Comparison]
) -> Comparison | str:
    """Two functions against each other, on one buffer set where what they keep beside two of them does not fit; or what
    is said of the memory where that does not fit either."""
    said = ""
    for sets in (2, 1):
        devices.empty_cache()
        try:
            return take(*functions, make, sets=sets)
        except RuntimeError as error:  # whose frames hold the buffers until this block ends
            if not devices.is_full(error):
                raise
            said = ". ".join(str(error).splitlines()[0].split(". ")[:2]).rstrip(".")  # then follows who has how much
    return said


def opponent(operator: Operator, name: str, case: Case) -> Function:
    """What the kernel is timed against: the reference itself, without input checks, eager or compiled.

    Each case is compiled for its own shape, as a user with fixed shapes would have it, once a process.
    """
    operator = operator.at(case)
    if name == "eager":
        return operator.reference
    compiled = _compiled(inspect.unwrap(operator.reference), name, case.label)
    return operator.taking(compiled)


def compile_ahead(operator: Operator, case: Case) -> None:
    """Have torch.compile make the opponent of a case now, beside other work: its caches hold it for whoever takes
    times. Nothing runs on the device, and tensors have no memory. What fails is made, and fails, where it is timed, and
    so is what follows a graph break."""
    operator, device = operator.at(case), devices.timed()
    tensors = [t for t in operator.inputs if t.number is None]
    given = [torch.empty(0) if t.number is None else torch.tensor(t.number) for t in operator.inputs]

    def made(*arguments: object) -> None:
        apart = _apart(inspect.unwrap(operator.reference), f"ahead of {case.label}")
        compiled = torch.compile(apart, dynamic=False, backend=_only_made)
        with FakeTensorMode():
            fakes = iter([torch.empty(case.shape(t), dtype=case.dtype(t), device=device) for t in tensors])
            compiled(*(next(fakes) if isinstance(a, torch.Tensor) else a for a in arguments))

    with suppress(Exception):
        operator.taking(made)(*given)


class _MadeError(Exception):
    """Raised once a graph is compiled, so that it is not run."""


def _only_made(graph: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> Function:
    """What torch.compile does with a graph by default, but for its call."""
    from torch._inductor.compile_fx import compile_fx

    compile_fx(graph, inputs)
    raise _MadeError


@functools.cache
def _compiled(reference: Function, name: str, label: str) -> Function:
    modes = {"compile": None, "max-autotune": "max-autotune-no-cudagraphs"}
    copy = _apart(reference, label)
    return torch.compile(copy, dynamic=False, mode=modes[name])  # type: ignore[no-any-return,unused-ignore]


def _apart(reference: Function, label: str) -> Function:
    """A copy with a code object of its own, by which torch.compile keeps what it compiled: it keeps the cases apart."""
    assert isinstance(reference, types.FunctionType)
    code = reference.__code__.replace(co_name=f"{reference.__name__}_{zlib.crc32(label.encode())}")
    return types.FunctionType(code, reference.__globals__, reference.__name__, reference.__defaults__)


def make_inputs(operator: Operator, case: Case, *, seed: int | None = None, device: str = "") -> MakeInputs:
    """A maker of fresh inputs for timing, on the device that measures if none is named: normal values, other ones in
    every set, no guards. An NPU's are made on the host."""
    device = device or devices.timed()
    made_on = "cpu" if device == "npu" else device
    operator, base = operator.at(case), inputs.secret_seed() if seed is None else seed
    counter = itertools.count()

    def make() -> tuple[torch.Tensor, ...]:
        number = next(counter)
        arguments = []
        for position, tensor in enumerate(operator.inputs):
            if tensor.number is not None:
                arguments.append(torch.tensor(tensor.number))
                continue
            x = torch.empty(case.shape(tensor), dtype=case.dtype(tensor), device=made_on)
            if not tensor.like:
                generator = torch.Generator(made_on).manual_seed(inputs.derive_seed(base, number, position))
                inputs.fill(tensor, case, x, "normal", generator)
            arguments.append(x.to(device))
        return tuple(arguments)

    return make


def _notes(name: str, comparison: Comparison) -> list[str]:
    notes = []
    if not comparison.swapped_sets:
        notes.append(f"{name}: two buffer sets do not fit; both sides ran on one")
    if not comparison.graphed and devices.timed() == "cuda":
        notes.append(f"{name}: cannot be captured in a CUDA graph; launches were timed one by one")
    if comparison.throttled:
        notes.append(f"{name}: {comparison.throttled} blocks thrown away, the device had lowered its clocks")
    return notes


def assert_measured(
    operator: Operator, case: Case, *, against: Sequence[str] = ("eager",), min_speedup: float | None = None
) -> None:
    """For pytest on a GPU: the kernel is right, was measured, and is as fast as asked for, if that was asked."""
    report = performance_case(operator, case, against)
    if report.left_out:
        raise unittest.SkipTest(f"{case.label}: {report.left_out}")
    assert not report.message, f"{case.label}: {report.message}"
    for name, comparison in report.comparisons.items():
        assert math.isfinite(comparison.speedup), f"{case.label}: no speedup against {name}"
        fast = min_speedup is None or comparison.speedup >= min_speedup
        assert fast, f"{case.label}: {comparison.speedup:.3f}x against {name}, {min_speedup}x wanted"
