"""The run role: candidates on an NVIDIA GPU, one request at a time, in a process that keeps its compiled kernels."""

from __future__ import annotations

import importlib
import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
import triton
import triton.language as tl

from kernelgen import judge
from kernelgen.judge import device, memory, oracle
from kernelgen.judge.performance import compile_ahead
from kernelgen.worker import accuracy, load
from kernelgen.worker.operations import WrongError

CANARY = 1 << 20
CANARY_BLOCK = 1024
RACE_REPETITIONS = 9
PIECE = 1 << 24
CLOSE = {torch.float8_e4m3fn: 2e-1, torch.float16: 2e-2, torch.bfloat16: 1e-1, torch.float32: 1e-3, torch.float64: 1e-3}
"""Relative to the largest value: far beyond what another order of summation changes, far below a wrong tail."""
STEPS, RUN, SPARED = 4.0, 256, 256
"""A candidate may be STEPS times as far from the current kernel's result as one step of every input moves that: of RUN
neighbours the element that moves most says how far, for one in SPARED such runs the one that moves most of all."""
CLOSE_PRODUCTS = 1e-2
"""The same of float32 where there are products: a candidate may multiply as TF32 what the current kernel does not
(a softmax of a convolution of 81 terms differed by 2.5e-3)."""

Answer = dict[str, Any]


@triton.jit  # type: ignore[untyped-decorator,misc,unused-ignore]
def canary_kernel(x_ptr, out_ptr, BLOCK_SIZE: tl.constexpr):  # type: ignore[no-untyped-def]
    """Twice the input."""
    offsets = tl.program_id(0) * BLOCK_SIZE + tl.arange(0, BLOCK_SIZE)
    tl.store(out_ptr + offsets, tl.load(x_ptr + offsets) * 2)


def canary() -> Answer:
    """A context, memory and kernels whose result is known, one of PyTorch's and one compiled here: after a fault this
    shows that the GPU is well again, and at the start that the process may do all that candidates need."""
    numbers = torch.arange(CANARY, device="cuda", dtype=torch.int64)
    doubled = torch.empty_like(numbers)
    canary_kernel[(CANARY // CANARY_BLOCK,)](numbers, doubled, BLOCK_SIZE=CANARY_BLOCK)
    total = doubled.sum().item()
    if total != CANARY * (CANARY - 1):
        raise RuntimeError(f"the GPU does not add up: {total}")
    return {"gpu": torch.cuda.get_device_name()}


def warm_up(compiles: bool) -> Answer:
    """Import what verifying needs, and where the process `compiles` by torch.compile what that does, while nothing
    waits for it: seconds on a cold disk."""
    torch.empty(1, device="meta").add(1)
    for name in ("torch._dynamo", "torch._inductor.compile_fx") if compiles else ():
        importlib.import_module(name)
    return {}


def release() -> Answer:
    """Give back the memory that torch holds unused."""
    device.empty_cache()
    return {}


def race(
    folder: str,
    name: str,
    path: str,
    current: str,
    case: dict[str, Any],
    heats: Sequence[tuple[int, float]] = (),
) -> Answer:
    """A few interleaved samples of the candidate and of the current kernel, fewer where it loses a heat (see
    `judge.quick`). Raises WrongError where they disagree."""
    one = judge.Case.from_json(case)
    operator = _operator(folder, name).at(one)
    if left_out := _left_out(operator, one):
        return {"left_out": left_out}
    new, old = operator.taking(load.candidate(path, name)), operator.taking(load.candidate(current, name))
    make = judge.make_inputs(operator, one)
    has_products = bool(operator.stored or operator.multiplied)
    _check_against(operator.on_copies(old), operator.on_copies(new), make(), has_products)
    device.empty_cache()
    before, after = judge.quick((old, new), make, repetitions=RACE_REPETITIONS, heats=heats)
    return {"left_out": "", "time_us": after.median_us, "against_us": before.median_us}


def compare(folder: str, name: str, path: str, current: str, case: dict[str, Any], cap_s: float) -> Answer:
    """The candidate against the current kernel with a confidence interval."""
    one = judge.Case.from_json(case)
    operator = _operator(folder, name).at(one)
    if left_out := _left_out(operator, one):
        return {"left_out": left_out}
    new, old = operator.taking(load.candidate(path, name)), operator.taking(load.candidate(current, name))
    device.empty_cache()
    return {"left_out": "", **_figures(judge.compare(old, new, judge.make_inputs(operator, one), time_cap_s=cap_s))}


def baseline(
    folder: str, name: str, path: str, case: dict[str, Any], against: str, cap_s: float, check: bool
) -> Answer:
    """The candidate against PyTorch; `against` is one of the judge's opponents. `check`: is it right, before that?"""
    report = judge.performance_case(
        _operator(folder, name),
        judge.Case.from_json(case),
        (against,),
        kernel=load.candidate(path, name),
        time_cap_s=cap_s,
        check=check,
    )
    if report.message:
        raise WrongError(report.message)
    if report.left_out:
        return {"left_out": report.left_out}
    return {"left_out": "", **_figures(report.comparisons[against])}


def compile_opponents(folder: str, name: str, cases: Sequence[dict[str, Any]]) -> Answer:
    """Have torch.compile leave what it makes of the reference in Inductor's cache, where the process that times it
    finds it."""
    for one in map(judge.Case.from_json, cases):
        compile_ahead(_operator(folder, name), one)
    return {}


def cases(folder: str, name: str, large: bool) -> Answer:
    """The accuracy cases on a GPU."""
    return accuracy.cases(folder, name, "cuda", large)


def _operator(folder: str, name: str) -> judge.Operator:
    operator = load.quartet(folder, name, "accuracy").OPERATOR
    assert isinstance(operator, judge.Operator)
    return operator


def _left_out(operator: judge.Operator, case: judge.Case) -> str:
    """Why the case cannot be timed here; one set of inputs and the outputs of both sides must fit."""
    device.empty_cache()
    needed = memory.input_bytes(operator, case) + 2 * memory.output_bytes(operator, case)
    return memory.does_not_fit(needed, device.timed())


def _figures(comparison: judge.Comparison) -> Answer:
    return {
        "time_us": comparison.b_us,
        "against_us": comparison.a_us,
        "speedup": comparison.speedup,
        "interval": [comparison.low, comparison.high],
        "call_us": comparison.b_call_us,
        "against_call_us": comparison.a_call_us,
    }


def _check_against(old: Any, new: Any, inputs: Any, has_products: bool) -> None:
    """The candidate must say what the verified kernel says, so that no time is spent on racing a wrong one. Where they
    differ, what one step of every input moves the verified kernel by says how much rounding may: of a softmax of large
    numbers, what lies in memory in half precision on the way decides as much. The inputs are changed then."""
    wanted = oracle.as_tuple(old(*inputs))
    pairs = list(zip(oracle.as_tuple(new(*inputs)), wanted, strict=True))
    if not all(_close(g, w, has_products) for g, w in pairs):
        _step(x for x in inputs if isinstance(x, torch.Tensor))
        moved = oracle.as_tuple(old(*inputs))
        if not all(_close(g, w, has_products, m) for (g, w), m in zip(pairs, moved, strict=True)):
            raise WrongError("differs from the current kernel's result")
    device.synchronize(device.find())


def _close(
    got: torch.Tensor, wanted: torch.Tensor, has_products: bool = False, moved: torch.Tensor | None = None
) -> bool:
    """Whether no element is further from the verified one than CLOSE of the largest, or, where `moved` is the verified
    result of inputs that differ by a step, than that allows (STEPS). A step may happen to round to the same and move
    nothing, so that a few runs are spared."""
    if got.shape != wanted.shape or got.dtype != wanted.dtype:
        raise WrongError(f"returns {got.dtype} {list(got.shape)}, not {wanted.dtype} {list(wanted.shape)}")
    if not wanted.numel() or not wanted.dtype.is_floating_point:
        return torch.equal(got, wanted)
    largest = max(float(w.nan_to_num(0.0, 0.0, 0.0).abs().max()) for (w,) in _pieces(wanted))
    near = CLOSE_PRODUCTS if has_products and wanted.dtype == torch.float32 else CLOSE[wanted.dtype]
    bound = near * max(1.0, largest)
    if moved is None:
        return all(bool((_distance(g, w) <= bound).all()) for g, w in _pieces(got, wanted))
    errors, moves = [], []
    for g, w, m in _pieces(got, wanted, moved):
        errors.append(_of_runs(_distance(g, w)))
        moves.append(_of_runs(_distance(m, w).nan_to_num(0.0, 0.0, 0.0)))
    error, move = torch.cat(errors), torch.cat(moves)
    far = int((error > (STEPS * move).clamp_(min=bound)).sum())
    return far <= len(error) // SPARED and float(error.max()) <= max(bound, STEPS * float(move.max()))


def _pieces(*tensors: torch.Tensor) -> Iterator[tuple[torch.Tensor, ...]]:
    """Tensors of one shape piece by piece, so that those of gigabytes need no temporaries of their size."""
    flat = [x.reshape(-1) for x in tensors]
    for i in range(0, flat[0].numel(), PIECE):
        yield tuple(_wide(x[i : i + PIECE]) for x in flat)


def _distance(one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """How far elements are apart: 0 for equal infinities and two NaN, infinity for one NaN."""
    same = (one == other) | (one.isnan() & other.isnan())
    return torch.where(same, 0.0, (one - other).abs().nan_to_num(math.inf, math.inf))


def _of_runs(x: torch.Tensor) -> torch.Tensor:
    """The largest of every RUN of elements."""
    return torch.nn.functional.pad(x, (0, -x.numel() % RUN)).view(-1, RUN).amax(1)


def _step(tensors: Iterable[torch.Tensor]) -> None:
    """Every number of 16 or 32 bits becomes the next larger or smaller one of its dtype, at random, in place."""
    generators: dict[torch.device, torch.Generator] = {}
    for x in tensors:
        whole = {torch.float16: torch.int16, torch.bfloat16: torch.int16, torch.float32: torch.int32}.get(x.dtype)
        if whole is None or not x.is_contiguous():
            continue
        generator = generators.setdefault(x.device, torch.Generator(x.device).manual_seed(0))
        flat = x.view(-1)
        for i in range(0, flat.numel(), PIECE):
            piece = flat[i : i + PIECE]
            bits = piece.view(whole)
            steps = torch.empty_like(bits).random_(0, 2, generator=generator).mul_(2).sub_(1)
            moves = (piece != 0) & (piece.abs() < torch.finfo(x.dtype).max)
            bits.add_(steps.mul_(moves))


def _wide(x: torch.Tensor) -> torch.Tensor:
    """Floats in a dtype that holds their differences."""
    return x.float() if x.dtype.itemsize < 4 else x


OPERATIONS = {
    "canary": canary,
    "warm_up": warm_up,
    "release": release,
    "accuracy_cases": cases,
    "accuracy": accuracy.one_case,
    "race": race,
    "compare": compare,
    "baseline": baseline,
    "compile_opponents": compile_opponents,
}
