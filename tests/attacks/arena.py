"""Where candidates are tried: an operator, and the whole path from an answer's JSON to the judge's verdict."""

from __future__ import annotations

import functools
import hashlib
import importlib.util
import sys
import tempfile
from pathlib import Path
from types import ModuleType
from typing import Any

from kernelgen import custom, families, generation, judge, render
from kernelgen.plan import Plan
from kernelgen.spec import load_spec

SPECS = {
    "affine": """\
name: affine
summary: Twice the input plus a bias.
inputs: [{name: x, shape: [..., D], dtype: T}, {name: bias, shape: [D], dtype: T}]
outputs: [{name: out, shape: [..., D], dtype: T}]
dtypes: {T: [float32, float16]}
reference: |
  def affine(x, bias):
      return x * 2 + bias
""",
    "total": """\
name: total
summary: The sum of every row.
inputs: [{name: x, shape: [..., D], dtype: T}]
outputs: [{name: out, shape: [...], dtype: T}]
dtypes: {T: [float32]}
reference: |
  def total(x):
      return x.sum(-1)
""",
    "spread": """\
name: spread
summary: A bias in the shape of another tensor.
inputs: [{name: x, shape: [..., D], dtype: T, role: like}, {name: bias, shape: [D], dtype: T}]
outputs: [{name: out, shape: [..., D], dtype: T}]
dtypes: {T: [float32]}
reference: |
  def spread(x, bias):
      return bias.expand(x.shape).contiguous()
""",
}

AFFINE = """\
@triton.jit
def affine_kernel(x_ptr, bias_ptr, out_ptr, n_elements, D, BLOCK_SIZE: tl.constexpr):
    offsets = tl.program_id(0).to(tl.int64) * BLOCK_SIZE + tl.arange(0, BLOCK_SIZE)
    mask = offsets < n_elements
    x = tl.load(x_ptr + offsets, mask=mask).to(tl.float32)
    bias = tl.load(bias_ptr + offsets % D, mask=mask).to(tl.float32)
    tl.store(out_ptr + offsets, x * 2 + bias, mask=mask)
"""
TOTAL = """\
@triton.jit
def total_kernel(x_ptr, out_ptr, N, BLOCK_SIZE: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    total = 0.0
    for start in range(0, N, BLOCK_SIZE):
        cols = start + tl.arange(0, BLOCK_SIZE)
        total += tl.sum(tl.load(x_ptr + row * N + cols, mask=cols < N, other=0.0).to(tl.float32), axis=0)
    tl.store(out_ptr + row, total)
"""


def affine(kernels: str = AFFINE, **changes: Any) -> dict[str, Any]:
    """An answer for `affine`; changes go to its launch, or to the answer where it has such a field."""
    launch = {
        "kernel": "affine_kernel", "grid": ["cdiv(n_elements, BLOCK_SIZE)"],
        "arguments": ["x", "bias", "out", "n_elements", "D"],
        "constexprs": [{"name": "BLOCK_SIZE", "value": "128"}], "num_warps": 4, "num_stages": 1,
    }  # fmt: skip
    return _answer(kernels, [{"name": "n_elements", "value": "out.numel()"}], launch, changes)


def total(kernels: str = TOTAL, **changes: Any) -> dict[str, Any]:
    """An answer for `total`."""
    launch = {
        "kernel": "total_kernel", "grid": ["out.numel()"], "arguments": ["x", "out", "D"],
        "constexprs": [{"name": "BLOCK_SIZE", "value": "64"}], "num_warps": 4, "num_stages": 1,
    }  # fmt: skip
    return _answer(kernels, [], launch, changes)


def _answer(
    kernels: str, sizes: list[dict[str, str]], launch: dict[str, Any], changes: dict[str, Any]
) -> dict[str, Any]:
    answer = {"idea": "", "kernels": kernels, "sizes": sizes, "scratch": [], "launches": [launch]}
    for name, value in changes.items():
        (answer if name in answer else launch)[name] = value
    return answer


@functools.cache
def plan(name: str) -> Plan:
    with tempfile.TemporaryDirectory(prefix="kernelgen-arena-") as place:
        path = Path(place) / f"{name}.yaml"
        path.write_text(SPECS[name])
        return generation.plan_of(load_spec(path), path.parent)


def load(text: str, folder: Path) -> ModuleType:
    """A generated file as a module."""
    name = f"arena_{hashlib.sha256(text.encode()).hexdigest()[:16]}"
    path = folder / f"{name}.py"
    path.write_text(text)
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def operator(name: str, kernels: ModuleType, folder: Path) -> judge.Operator:
    spec = plan(name).spec
    baseline = load(render.baseline_source(spec), folder)
    rows = families.independent_dims(plan(name))
    return judge.Operator(
        name=name, kernel=getattr(kernels, name), baseline=getattr(baseline, name), reference=baseline.reference,
        inputs=tuple(judge.Tensor(t.name, t.shape, t.dtype, t.role == "like", rows[t.name]) for t in spec.inputs),
        outputs=tuple(judge.Tensor(t.name, t.shape, t.dtype, rows=rows[t.name]) for t in spec.outputs),
    )  # fmt: skip


def verdict(name: str, answer: object, folder: Path, *, hidden: bool = True, large: bool = False) -> str:
    """`refused: why`, `rejected: why`, or `accepted`."""
    one = plan(name)
    try:
        parsed = custom.parse(answer, one.spec)
    except custom.Refused as refused:
        return f"refused: {refused}"
    found = operator(
        name, load(render.triton_source(one.with_table(custom.table_of(one.spec, parsed))), folder), folder
    )
    dtypes = [{"T": dtype} for dtype in dict(one.spec.dtypes)["T"]]
    cases = [judge.Case({"...": (5,), "D": 129}, binding) for binding in dtypes]
    if hidden:
        cases += judge.hidden_cases(found, cases, judge.device.find(), large=None if large else False)
    for case in cases:
        report = judge.accuracy_case(found, case, mutants=False)
        if not report.passed:
            return f"rejected: {report.message}"
    return "accepted"
