"""Reductions and softmax, written out with the names a reader expects."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from kernelgen.frontend.build import Builder
from kernelgen.frontend.graph import Arg, Ref, broadcast
from kernelgen.frontend.rule import Call, Refused, Result, Rule, StaysCall

MOST_SELECTED = 32
"""The greatest k of a topk: what is kept of a row lies in registers, and every element kept costs a step."""


def dims_of(b: Builder, x: Ref, dim: Any) -> tuple[int, ...]:
    """Dimensions counted from the end; none named means all."""
    rank = b.rank(x)
    if not rank:
        return ()
    named = list(range(rank)) if dim is None or dim == [] else [dim] if isinstance(dim, int) else list(dim)
    return tuple(sorted((d % rank) - rank for d in named))


def finish(b: Builder, c: Call, value: Ref) -> Ref:
    """Drop the reduced dimensions unless the call kept them."""
    return b.view("reshape", value, c.shape)


def as_float(b: Builder, x: Ref) -> Ref:
    return b.convert(x, "float")


def reduction(op: str) -> Rule:
    def rule(b: Builder, c: Call) -> Ref:
        x = b.convert(c.args[0], c.dtype)  # a sum of integers is int64
        dims = dims_of(b, x, c.get(1, "dim"))
        if b.node(x).dtype == "bool":
            return (some if op == "max" else every)(b, c)
        if op in ("max", "min"):
            b.fill(x, dims)
        return finish(b, c, b.reduce(op, x, dims))

    return rule


def extreme(op: str) -> Rule:
    """max.dim and min.dim: values and the indices at which they stand."""

    def rule(b: Builder, c: Call) -> Result:
        x: Ref = c.args[0]
        if not b.rank(x):
            return x, b.full(0, (), "int64")
        counted = b.convert(x, "int32") if c.dtype == "bool" else x
        dims = dims_of(b, x, c.args[1])
        b.fill(x, dims)
        value, place = (finish(b, c, b.reduce(o, counted, dims)) for o in (op, f"arg{op}"))
        return b.convert(value, c.dtype), place

    return rule


def aminmax(b: Builder, c: Call) -> Result:
    x, dims = c.args[0], dims_of(b, c.args[0], c.kwargs.get("dim"))
    b.fill(x, dims)
    return finish(b, c, b.reduce("min", x, dims)), finish(b, c, b.reduce("max", x, dims))


def arg(op: str) -> Rule:
    """argmax and argmin: the first of equals, NaN counting as the extreme; an int64."""

    def rule(b: Builder, c: Call) -> Ref:
        x: Ref = c.args[0]
        if b.node(x).dtype == "bool":
            raise Refused(f"the {op} of booleans")
        dims = dims_of(b, x, c.get(1, "dim"))
        b.fill(x, dims)
        return finish(b, c, b.reduce(op, x, dims))

    return rule


def topk(b: Builder, c: Call) -> Result:
    """The k greatest of a row in descending order, or the k least in ascending order, which is one of the orders that
    sorted=False allows, and their places, NaN counting as the greatest."""
    x, k = c.args[0], c.args[1]
    if not b.rank(x):
        return x, b.full(0, (), "int64")
    dims = dims_of(b, x, c.get(2, "dim", -1))
    if k == 1 and c.dtype != "bool":
        op = "max" if c.get(3, "largest", True) else "min"
        return b.reduce(op, x, dims), b.reduce(f"arg{op}", x, dims)
    if dims[0] != -1:
        return _along_last(b, c, dims[0])
    if c.dtype != "float":
        raise StaysCall(f"topk of {c.dtype} (supported: of floats)")
    if not isinstance(k, int) or not 1 <= k <= MOST_SELECTED:
        raise StaysCall(f"topk of {k} elements (supported: 1 to {MOST_SELECTED})")
    b.note("of equal elements topk selects the first ones in the row, which torch leaves unspecified")
    op = "topk" if c.get(3, "largest", True) else "topk_least"
    return b.select(op, x, k), b.select(f"arg{op}", x, k)


def _along_last(b: Builder, c: Call, dim: int) -> Result:
    """A topk along another dimension than the last."""

    def swapped(x: Ref) -> Ref:
        order, shape = list(range(b.rank(x))), b.node(x).shape
        order[dim], order[-1] = order[-1], order[dim]
        return b.view("permute", x, tuple(shape[d] for d in order), tuple(order))

    given = {name: value for name, value in c.kwargs.items() if name != "dim"}
    args = (swapped(c.args[0]), c.args[1], *((-1, *c.args[3:]) if len(c.args) > 2 else ()))
    found = topk(b, replace(c, args=args, kwargs=given))
    assert isinstance(found, tuple)
    return tuple(map(swapped, found))


def count_nonzero(b: Builder, c: Call) -> Ref:
    nonzero = b.convert(c.args[0], "bool")
    return finish(b, c, b.reduce("sum", b.convert(nonzero, "int64"), dims_of(b, nonzero, c.get(1, "dim"))))


def some(b: Builder, c: Call) -> Ref:
    """any: some element is not zero; NaN is not."""
    return _counted(b, c, b.convert(c.args[0], "bool"), "ne", "nonzero_count")


def every(b: Builder, c: Call) -> Ref:
    """all: no element is zero."""
    return _counted(b, c, b.map("logical_not", c.args[0]), "eq", "zero_count")


def _counted(b: Builder, c: Call, test: Ref, op: str, name: str) -> Ref:
    count = b.reduce("sum", b.convert(test, "int32"), dims_of(b, test, c.get(1, "dim")), name)
    return finish(b, c, b.convert(b.map(op, count, 0), c.dtype))


def nansum(b: Builder, c: Call) -> Ref:
    x = as_float(b, c.args[0])
    known = b.map("where", b.map("isnan", x), 0.0, x)
    return finish(b, c, b.reduce("sum", known, dims_of(b, x, c.get(1, "dim"))))


def nanmean(b: Builder, c: Call) -> Ref:
    x = as_float(b, c.args[0])
    dims, unknown = dims_of(b, x, c.get(1, "dim")), b.map("isnan", x)
    total = b.reduce("sum", b.map("where", unknown, 0.0, x), dims)
    count = b.reduce("sum", b.convert(b.map("logical_not", unknown), "float"), dims, "known_count")
    return finish(b, c, b.map("div", total, count))


def mean_of(b: Builder, x: Ref, dims: tuple[int, ...], name: str | None = None, total: str | None = None) -> Ref:
    return b.map("div", b.reduce("sum", x, dims, total), b.size(x, dims), name=name)


def mean(b: Builder, c: Call) -> Ref:
    x = as_float(b, c.args[0])
    return finish(b, c, mean_of(b, x, dims_of(b, x, c.get(1, "dim"))))


def moments(b: Builder, x: Ref, dims: tuple[int, ...], correction: float) -> tuple[Ref, Ref, Ref]:
    """Mean, deviation from it, and variance. Two passes in registers: E[x²] - E[x]² would cancel."""
    mean = mean_of(b, x, dims, "mean")
    centered = b.deviation(b.map("sub", x, mean, name="centered"))
    count: Arg = b.size(x, dims)
    if correction:
        # a row shorter than the correction divides by zero, as in torch
        whole = float(correction).is_integer()
        left = int(correction) if whole else float(correction)
        kind = "int64" if whole else "float"
        count = b.map("maximum", b.map("sub", count, left, dtype=kind), 0 if whole else 0.0, dtype=kind)
    total = b.reduce("sum", b.map("mul", centered, centered), dims, "square_sum")
    return mean, centered, b.map("div", total, count, name="variance")


def variance(root: bool, *, beside_mean: bool = False) -> Rule:
    """var and std; `beside_mean`: var_mean and std_mean."""

    def rule(b: Builder, c: Call) -> Result:
        x = as_float(b, c.args[0])
        dim = c.get(1, "dim")
        correction = c.kwargs.get("correction")
        if isinstance(dim, bool):  # x.var(False): all dimensions
            dim, correction = None, dim
        elif len(c.args) > 2 or "unbiased" in c.kwargs:
            correction = c.get(2, "unbiased")
        correction = 1.0 if correction is None else float(correction)
        mean, _, variance = moments(b, x, dims_of(b, x, dim), correction)
        spread = finish(b, c, b.map("sqrt", variance) if root else variance)
        return (spread, finish(b, c, mean)) if beside_mean else spread

    return rule


def vector_norm(b: Builder, c: Call) -> Ref:
    x, order = as_float(b, c.args[0]), c.get(1, "ord", 2)
    order = 2 if order is None else order
    dims = dims_of(b, x, c.get(2, "dim"))
    if order == 2:
        return finish(b, c, _euclidean(b, x, dims))
    if order in (1, math.inf, -math.inf):
        op = {1: "sum", math.inf: "max", -math.inf: "min"}[order]
        if op != "sum":
            b.fill(x, dims)
        return finish(b, c, b.reduce(op, b.map("abs", x), dims))
    if order == 0:
        return finish(b, c, b.reduce("sum", b.convert(b.map("ne", x, 0.0), "float"), dims))
    total = b.reduce("sum", b.map("pow", b.map("abs", x), float(order)), dims)
    return finish(b, c, b.map("pow", total, 1.0 / order))


def _euclidean(b: Builder, x: Ref, dims: tuple[int, ...]) -> Ref:
    norm = b.map("sqrt", b.reduce("sum", b.map("mul", x, x), dims))
    return b.shortcut(norm, "norm", x)


def distance(b: Builder, c: Call) -> Ref:
    """pairwise_distance: the norm of a difference that eps is added to, along the last dimension."""
    one, other = (as_float(b, x) for x in c.args[:2])
    apart = b.map("add", b.map("sub", one, other), float(c.get(3, "eps", 1e-6)))
    return vector_norm(b, replace(c, args=(apart, c.get(2, "p", 2), [-1]), kwargs={}))


def matrix_norm(b: Builder, c: Call) -> Ref:
    """linalg.norm, which is the norm of a vector unless two dimensions and an order are named."""
    dim = c.get(2, "dim")
    if c.get(1, "ord") is not None and (b.rank(c.args[0]) if dim is None else len(dim)) != 1:
        raise Refused("the norm of a matrix")
    return vector_norm(b, c)


def cosine_similarity(b: Builder, c: Call) -> Ref:
    one, two = (as_float(b, x) for x in c.args[:2])
    shape = broadcast(b.node(one).shape, b.node(two).shape)
    one, two = (b.view("expand", x, shape) for x in (one, two))
    dims, eps = dims_of(b, one, c.get(2, "dim", 1)), float(c.get(3, "eps", 1e-8))
    b.note("cosine_similarity: the dot product is divided by both norms, where torch divides every element by its norm")
    dot = b.reduce("sum", b.map("mul", one, two), dims, "dot")
    norms = [_euclidean(b, x, dims) for x in (one, two)]
    first, second = (b.map("maximum", norm, eps, name=f"norm_{i + 1}") for i, norm in enumerate(norms))
    ratio = b.map("div", b.map("div", dot, first), second)
    return finish(b, c, b.shortcut(ratio, "cosine_similarity", one, two))


def logsumexp(b: Builder, c: Call) -> Ref:
    x = as_float(b, c.args[0])
    dims = dims_of(b, x, c.get(1, "dim"))
    row_max = b.hold(b.reduce("max", x, dims, "row_max"))
    # as torch does, so that a row with an infinity has the limit and not NaN
    shift = b.map("where", b.map("isinf", row_max), 0.0, row_max, name="shift")
    numerator = b.map("exp", b.map("sub", x, shift), name="numerator")
    return finish(b, c, b.map("add", shift, b.map("log", b.reduce("sum", numerator, dims, "denominator"))))


def _shifted_exp(b: Builder, x: Ref, dims: tuple[int, ...]) -> tuple[Ref, Ref]:
    row_max = b.hold(b.reduce("max", x, dims, "row_max"))
    return row_max, b.map("exp", b.map("sub", x, row_max), name="numerator")


def softmax(b: Builder, c: Call) -> Ref:
    x = as_float(b, c.args[0])
    dims = dims_of(b, x, c.args[1])
    _, numerator = _shifted_exp(b, x, dims)
    return b.map("div", numerator, b.reduce("sum", numerator, dims, "denominator"))


def log_softmax(b: Builder, c: Call) -> Ref:
    x = as_float(b, c.args[0])
    dims = dims_of(b, x, c.args[1])
    row_max, numerator = _shifted_exp(b, x, dims)
    log_sum = b.map("log", b.reduce("sum", numerator, dims, "denominator"), name="log_denominator")
    return b.map("sub", b.map("sub", x, row_max), log_sum)


_CORRECTED = ("correction", "dim", "default")
TABLE: dict[str, Rule] = {
    **{f"aten.sum.{kind}": reduction("sum") for kind in ("dim_IntList", "default")},
    **{f"aten.prod.{kind}": reduction("prod") for kind in ("dim_int", "default")},
    **{f"aten.{op}.default": reduction(op.removeprefix("a")) for op in ("amax", "amin", "max", "min")},
    **{f"aten.{op}.dim": extreme(op) for op in ("max", "min")},
    **{f"aten.{op}.default": arg(op) for op in ("argmax", "argmin")},
    "aten.aminmax.default": aminmax,
    "aten.topk.default": topk,
    **{f"aten.any.{kind}": some for kind in ("default", "dim", "dims")},
    **{f"aten.all.{kind}": every for kind in ("default", "dim", "dims")},
    **{f"aten.count_nonzero.{kind}": count_nonzero for kind in ("default", "dim_IntList")},
    "aten.nansum.default": nansum,
    "aten.nanmean.default": nanmean,
    "aten.pairwise_distance.default": distance,
    **{f"aten.mean.{kind}": mean for kind in ("dim", "default")},
    **{f"aten.var.{kind}": variance(root=False) for kind in _CORRECTED},
    **{f"aten.std.{kind}": variance(root=True) for kind in _CORRECTED},
    **{f"aten.var_mean.{kind}": variance(root=False, beside_mean=True) for kind in _CORRECTED},
    **{f"aten.std_mean.{kind}": variance(root=True, beside_mean=True) for kind in _CORRECTED},
    "aten.linalg_vector_norm.default": vector_norm,
    "aten.norm.ScalarOpt_dim": vector_norm,
    "aten.linalg_norm.default": matrix_norm,
    "aten.cosine_similarity.default": cosine_similarity,
    "aten.logsumexp.default": logsumexp,
    "aten.softmax.int": softmax,
    "aten.log_softmax.int": log_softmax,
}
"""The rules of the reductions, by overload."""
