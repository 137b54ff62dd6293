"""What the families know of dtypes."""

from __future__ import annotations

from kernelgen.families.values import Unlowerable, Value
from kernelgen.spec.model import OperatorSpec

ITEMSIZE = {
    "float8_e4m3fn": 1, "float16": 2, "bfloat16": 2, "float32": 4,
    "int8": 1, "uint8": 1, "bool": 1, "int16": 2, "int32": 4, "int64": 8,
}  # fmt: skip
"""Bytes an element."""


def element_types(spec: OperatorSpec, values: list[Value]) -> dict[str, str]:
    """For every dtype variable the element type of a pointer that the kernel has and that carries it."""
    read = {v.tensor for v in values}
    pointers = [*(t for t in spec.inputs if t.name in read), *spec.outputs]
    found = {t.dtype: f"{t.name}_ptr.dtype.element_ty" for t in reversed(pointers) if t.dtype in dict(spec.dtypes)}
    for value in values:
        if value.attr in dict(spec.dtypes) and value.attr not in found:
            raise Unlowerable(f"a cast to {value.attr}, a dtype of nothing that is read or written", value.statement)
    return found
