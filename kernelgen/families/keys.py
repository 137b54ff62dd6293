"""What the lines of a schedule table are told apart by: the rows of a problem, the bytes of one and of all."""

from __future__ import annotations

from dataclasses import replace

from kernelgen.families.kernel import Body
from kernelgen.families.values import Lowered
from kernelgen.schedule.problem import ROW_BYTES, ROWS, TENSOR_BYTES, NamedSize
from kernelgen.spec.model import OperatorSpec, TensorSpec

FEW_ROWS = 128
"""Rows that leave an H200's 132 multiprocessors one program each, if a program has one: it may be larger."""
SMALL, TINY = 2**22, 2**19
"""Bytes of tensors of which a launch is one wave of programs, or less than one: what counts is when the first element
arrives, and how many processors share the work."""
LEAST = 3 * 2**16
"""Bytes of tensors of which programs of 256 elements are one wave (H200, 64 to 192 KiB moved: rows picked by an index
2.2 and 2.4 us by 256 and 1024 elements, patches of an image 2.0 and 2.6; of 256 KiB mirrored 4.3 and 4.1)."""


def rows_and_bytes(spec: OperatorSpec, body: Body, itemsize: int | None, widened: bool) -> tuple[NamedSize, ...]:
    """The bytes of a row, how many there are, and the bytes of all; of what is one run of elements, its bytes.
    `itemsize`: what counts for an element, if not what its dtype has; `widened`: the wrapper keeps outputs in float32
    for a while."""
    space, tensor = body.lowered.space, key_tensor(spec, body.lowered)
    sized_like = next((t.name for t in spec.inputs if t.dtype == tensor.dtype), tensor.name) if widened else tensor.name
    flat = body.layout.columns is None
    each = str(itemsize or f"{sized_like}.element_size()")
    what = ("a row" if body.layout.rows else "the tensor") + (" in float32" if itemsize else "")
    row_bytes = NamedSize(
        ROW_BYTES, tuple(space.axes[a] for a in sorted(body.columns())),
        f"{sized_like}.numel() * {each}" if flat else f"N * {each}",
        f"bytes of {what}", f"{what} of {{}} bytes", itemsize or tensor.dtype,
    )  # fmt: skip
    if not body.layout.rows:
        return (row_bytes,)
    kept = tuple(size for a, size in enumerate(space.axes) if a not in body.columns())
    every = replace(
        row_bytes, name=TENSOR_BYTES, factors=(*row_bytes.factors, *kept), expression=f"M * N * {each}",
        meaning="bytes of the tensor", call="a tensor of {} bytes",
    )  # fmt: skip
    return row_bytes, NamedSize(ROWS, kept, "M", "rows", "{} rows"), every


def key_tensor(spec: OperatorSpec, lowered: Lowered) -> TensorSpec:
    """The tensor whose rows a schedule table counts the bytes of: the first output, or what is read where rows are
    reduced or scanned and no output has its dtype (an argmax gives an int64 for a row of any dtype)."""
    inner = set(lowered.space.inner_axes())
    names = [v.tensor for v in lowered.values if v.op == "load" and inner and inner <= v.axes]
    read = sorted((t for name in names for t in spec.inputs if t.name == name), key=lambda t: t.dtype == "bool")
    kinds = {t.dtype for t in read}
    return next((t for t in spec.outputs if t.dtype in kinds), (*read, spec.outputs[0])[0])
