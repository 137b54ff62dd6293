"""Torch's own attention, where it is faster."""

from __future__ import annotations

import math
from collections.abc import Sequence

from kernelgen.families.access import Access
from kernelgen.families.attention.lowering import AttentionBody
from kernelgen.families.attention.writer import length
from kernelgen.families.masks import Affine, Bound
from kernelgen.families.values import Use
from kernelgen.frontend.attention import FUNCTION
from kernelgen.frontend.indices import Expr
from kernelgen.spec.model import OperatorSpec
from kernelgen.tile import ir


def by_library(spec: OperatorSpec, body: AttentionBody) -> ir.LibraryCall:
    """Torch's attention, contiguous as other results are: it may have the layout of the queries."""
    return ir.LibraryCall(FUNCTION, f"{body.library}.contiguous()", result=spec.outputs[0].name)


def call(spec: OperatorSpec, body: AttentionBody) -> str:
    """The call of torch's that computes all there is; empty where there is none, or where it would have to copy first.

    That is full or causal attention of tensors whose last dimensions are queries or keys and the size of a head. Heads
    before these may share keys and values.
    """
    softmax, stored = body.softmax, body.layout.stores
    mask = body.mask()
    causal = mask.bounds == (Bound(True, Affine(m=1, number=1)),)
    if softmax.logits != softmax.scores or mask.opaque or not (causal or not mask.bounds):
        return ""
    if len(stored) != 1 or stored[0][0].value != softmax.product or not softmax.divided:
        return ""
    loaded = [next((a for a in body.layout.accesses if a.load == i), None) for i in _factors(body)]
    accesses = [a for a in (*loaded, stored[0][1]) if a is not None]
    if len(accesses) < 4:
        return ""
    tensors = [a.tensor for a in accesses]
    shares = _shares(spec, body, accesses)
    if shares is None:
        return ""
    dtypes = {t.dtype for t in (*spec.inputs, *spec.outputs) if t.name in tensors}
    scale = _scale(body)
    if len(dtypes) > 1 or scale is None:
        return ""
    words = [f"{name}.detach()" for name in tensors[:3]]
    words += ["is_causal=True"] if causal else []
    words += ["enable_gqa=True"] if shares else []
    return f"{FUNCTION}({', '.join([*words, *([f'scale={scale}'] if scale else [])])})"


def _shares(spec: OperatorSpec, body: AttentionBody, accesses: Sequence[Access]) -> bool | None:
    """Whether queries, keys, values and the result, as they are read, have heads that share keys and values; None where
    torch would have to be given something else."""
    batch = [run.index for run in body.extent("batch").runs]
    extents = [[run.index for run in body.extent(name).runs] for name in "mnde"]
    if any(len(runs) != 1 for runs in extents):  # rows of an image, say, of which a dimension of torch's is made first
        return None
    (rows,), (keys,), (dims,), (cols,) = extents
    query, key, value, result = ([index for index, _ in a.terms] for a in accesses)
    shapes = [_shape(spec, a.tensor) for a in accesses]
    viewed = [a.view is not None for a in accesses]
    leading = key[:-2]
    if (query, result) != ([*batch, rows, dims], [*batch, rows, cols]) or leading not in (batch, batch[:-1]):
        return None
    if value != [*leading, keys, cols] or {len(shape) for shape in shapes} != {len(key)}:
        return None
    if not any(viewed):
        return False if leading == batch else None
    alike = shapes[0][:-1] == shapes[3][:-1] and viewed[0] and not any(viewed[1:3])
    # the heads that share keys are a part of the batch, or the rows of one query
    return True if alike and (leading != batch or shapes[0][-2] == 1) else None


def _factors(body: AttentionBody) -> tuple[int, int, int]:
    return body.softmax.query, body.softmax.key, body.softmax.value


def _shape(spec: OperatorSpec, name: str) -> tuple[object, ...]:
    return next(t.shape for t in (*spec.inputs, *spec.outputs) if t.name == name)


def _scale(body: AttentionBody) -> str | None:
    """What torch is told of the scale: nothing of the usual one; None where it cannot be told."""
    scale, head = body.softmax.scale, length(body, "d")
    if not scale.times and not scale.over:
        usual = head is not None and math.isclose(scale.number, head**-0.5, rel_tol=1e-12)
        return "" if usual else repr(scale.number)
    roots = [*((i, "rsqrt") for i in scale.times), *((i, "sqrt") for i in scale.over)]
    if scale.number != 1.0 or len(roots) != 1:
        return None
    i, op = roots[0]
    value = body.lowered.values[i]
    while value.op in (op, "convert") and isinstance(value.args[0], Use):
        op = "" if value.op == op else op
        value = body.lowered.values[value.args[0].value]
    sizes = tuple(body.lowered.space.axes[a] for a in body.extent("d").axes)
    is_size = value.op == "place" and isinstance(value.index[0], Expr) and value.index[0].size == sizes
    return "" if is_size and not op else None
