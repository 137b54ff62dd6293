"""Scans: what runs along one dimension and keeps the shape."""

from __future__ import annotations

from kernelgen.frontend.build import Builder
from kernelgen.frontend.graph import Ref
from kernelgen.frontend.reductions import dims_of
from kernelgen.frontend.rule import Call, Refused, Result, Rule


def _dim(op: str, b: Builder, c: Call) -> int | None:
    """The scanned dimension, counted from the end; None of a tensor without dimensions."""
    if c.dtype == "bool":
        raise Refused(f"the {op} of booleans")
    if c.torch_dtype == "float64":
        raise Refused("float64 (arithmetic is done in float32)")
    return dims_of(b, c.args[0], c.get(1, "dim"))[0] if b.rank(c.args[0]) else None


def scan(op: str) -> Rule:
    def rule(b: Builder, c: Call) -> Ref:
        x = b.convert(c.args[0], c.dtype)  # a running sum or product of integers is int64
        dim = _dim(op, b, c)
        if c.kwargs.get("dtype") is not None and c.dtype == "float":
            x = b.round(x, c.torch_dtype)
        return x if dim is None or _is_single(b, x, dim) else b.scan(op, x, dim)

    return rule


def _is_single(b: Builder, x: Ref, dim: int) -> bool:
    """Whether a dimension has one element, along which nothing runs."""
    return b.node(x).shape[dim] == ()


def running_extreme(op: str) -> Rule:
    """cummax and cummin: values, and the indices of the last of equals, every NaN counting as an extreme."""

    def rule(b: Builder, c: Call) -> Result:
        x, dim = c.args[0], _dim(op, b, c)
        if dim is None or _is_single(b, x, dim):
            return x, b.full(0, b.node(x).shape, "int64")
        values = b.scan(op, x, dim)
        is_extreme = b.map("eq", x, values)
        if c.dtype == "float":
            is_extreme = b.map("or", is_extreme, b.map("isnan", x))
        return values, b.scan("cummax", b.map("where", is_extreme, b.iota(x, dim), 0, dtype="int64"), dim)

    return rule


TABLE: dict[str, Rule] = {
    **{f"aten.{op}.default": scan(op) for op in ("cumsum", "cumprod", "logcumsumexp")},
    **{f"aten.{op}.default": running_extreme(op) for op in ("cummax", "cummin")},
}
"""The rules of the scans, by overload."""
