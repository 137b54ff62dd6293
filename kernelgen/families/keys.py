"""What the lines of a schedule table are told apart by."""

from __future__ import annotations

from kernelgen.families.values import Lowered
from kernelgen.spec.model import OperatorSpec, TensorSpec


def key_tensor(spec: OperatorSpec, lowered: Lowered) -> TensorSpec:
    """The tensor whose rows a schedule table counts the bytes of: the first output, or what is read where rows are
    reduced or scanned and no output has its dtype (an argmax gives an int64 for a row of any dtype)."""
    inner = set(lowered.space.inner_axes())
    names = [v.tensor for v in lowered.values if v.op == "load" and inner and inner <= v.axes]
    read = sorted((t for name in names for t in spec.inputs if t.name == name), key=lambda t: t.dtype == "bool")
    kinds = {t.dtype for t in read}
    return next((t for t in spec.outputs if t.dtype in kinds), (*read, spec.outputs[0])[0])
