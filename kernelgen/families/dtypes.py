"""What the families know of dtypes."""

from __future__ import annotations

from collections.abc import Iterable

from kernelgen.families.values import Value
from kernelgen.spec.model import OperatorSpec

ITEMSIZE = {
    "float8_e4m3fn": 1, "float16": 2, "bfloat16": 2, "float32": 4,
    "int8": 1, "uint8": 1, "bool": 1, "int16": 2, "int32": 4, "int64": 8,
}  # fmt: skip
"""Bytes an element."""


SAID_OF_PRECISION = {
    "ieee": "float32 products use full precision, whatever torch is set to",
    "tf32x3": "float32 products are three TF32 products, which keep float32 precision, whatever torch is set to",
    "tf32": "float32 products use TF32, with 10 mantissa bits, whatever torch is set to",
}
"""What the note of a kernel says where the spec has the key `precision`."""

ELEMENT = "_ptr.dtype.element_ty"


def element_types(spec: OperatorSpec, values: Iterable[Value]) -> dict[str, str]:
    """For every dtype variable the element type of a pointer that carries it: of a tensor that the kernel reads or
    writes where there is one, else of an input that says the dtype and nothing more."""
    read = {v.tensor for v in values}
    first = [t for t in spec.inputs if t.name in read]
    tensors = (*first, *spec.outputs, *(t for t in spec.inputs if t not in first))
    return {t.dtype: f"{t.name}{ELEMENT}" for t in reversed(tensors) if t.dtype in dict(spec.dtypes)}


def typed(values: Iterable[Value]) -> set[str]:
    """The tensors whose pointers say a dtype."""
    return {v.attr.removesuffix(ELEMENT) for v in values if v.attr and v.attr.endswith(ELEMENT)}
