"""Tensors that a reference makes itself: of one number, of ones and zeros, of numbers at equal distances."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from kernelgen.frontend import indices as ix
from kernelgen.frontend.build import Builder, converted
from kernelgen.frontend.graph import Dim, Ref
from kernelgen.frontend.rule import Call, Refused, Rule
from kernelgen.spec.model import OperatorSpec

UNSET = ("aten.empty.", "aten.empty_like.", "aten.new_empty.", "aten.empty_strided.", "aten.new_empty_strided.")
"""Constructors of tensors whose elements nobody has set."""


def is_unset(node: Any) -> bool:
    return str(node.target).startswith(UNSET)


def check_device(node: Any) -> None:
    """Refuse a tensor that would lie on the CPU beside inputs on a GPU: torch takes no more than single numbers."""
    value = node.meta["val"]
    if not isinstance(value, list | tuple) and value.device.type == "cpu" and value.ndim:
        raise Refused("a tensor created on the CPU, whatever device the inputs are on (pass device=x.device)")


_FILLS = ("full", "full_like", "new_full", "fill", "masked_fill", "constant_pad_nd", "index_fill", "scatter")
"""What writes a number as it is; arithmetic makes an infinity of what is too large."""


def beyond(function: Any, args: Sequence[Any], kwargs: Mapping[str, Any], dtype: Any) -> float | None:
    """The number that a call of torch's writes and its dtype does not hold, which torch refuses; None where there is
    none."""
    import torch

    if function.overloadpacket.__name__.strip("_") not in _FILLS or not dtype.is_floating_point:
        return None
    given = dict(zip((a.name for a in function._schema.arguments), args, strict=False)) | dict(kwargs)
    value = given.get("fill_value", given.get("value"))
    if not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return value if abs(value) > torch.finfo(dtype).max else None


def check_fill(spec: OperatorSpec, node: Any, dtype: Any) -> None:
    """Refuse a number that a result's dtype does not hold, if it is one of the spec's."""
    name = str(dtype).removeprefix("torch.")
    declared = {t.dtype for t in (*spec.inputs, *spec.outputs)}.union(*(values for _, values in spec.dtypes))
    if name in declared and (value := beyond(node.target, node.args, node.kwargs, dtype)) is not None:
        raise Refused(f"{value:g} in {name}, which torch refuses (write torch.finfo(x.dtype).min or .max, or an "
                      f"infinity; or leave {name} out of the dtypes)")  # fmt: skip


def number(b: Builder, value: Any, shape: tuple[Dim, ...], dtype: str) -> Ref:
    """A number everywhere, as a dtype has it."""
    if not isinstance(value, int | float):
        return b.full(value, shape, dtype)
    return b.full(converted(value, dtype), shape, dtype)


def _filled(index: int, name: str, fixed: int | None = None) -> Rule:
    """One number everywhere; `index` and `name` are those of the argument, if it is no `fixed` one."""
    return lambda b, c: number(b, c.get(index, name) if fixed is None else fixed, c.shape, c.dtype)


def _eye(b: Builder, c: Call) -> Ref:
    rows, cols = b.place((c.shape[0], ()), ix.axis(-2)), b.place((c.shape[1],), ix.axis(-1))
    return b.convert(b.map("eq", rows, cols), c.dtype)


def _linspace(b: Builder, c: Call) -> Ref:
    """From the nearer end, as torch does."""
    start, end, steps = c.args[:3]
    if not all(isinstance(v, int | float) for v in (start, end)) or not isinstance(steps, int) or c.dtype != "float":
        raise Refused("linspace with limits that are not numbers, or with a size as its number of steps")
    if steps < 2:
        return number(b, start, c.shape, c.dtype)
    step, counted = (end - start) / (steps - 1), b.place(c.shape, ix.axis(-1))
    left = b.map("sub", steps - 1, counted)
    first = b.map("add", start, b.map("mul", b.convert(counted, "float"), step))
    last = b.map("sub", end, b.map("mul", b.convert(left, "float"), step))
    return b.map("where", b.map("lt", counted, steps // 2), first, last)


RULES: dict[str, Rule] = {
    **{f"aten.{name}.default": _filled(0, "", 0) for name in ("zeros", "zeros_like", "new_zeros")},
    **{f"aten.{name}.default": _filled(0, "", 1) for name in ("ones", "ones_like", "new_ones")},
    **{f"aten.{name}.default": _filled(1, "fill_value") for name in ("full", "full_like")},
    "aten.new_full.default": _filled(2, "fill_value"),
    "aten.scalar_tensor.default": _filled(0, "s"),
    "aten.eye.default": _eye,
    "aten.eye.m": _eye,
    "aten.linspace.default": _linspace,
}
