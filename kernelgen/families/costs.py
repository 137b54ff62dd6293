"""What a kernel costs, in bytes that memory moves in the same time: how graphs are cut follows from it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import ceil, prod

from kernelgen.families.dtypes import ITEMSIZE
from kernelgen.families.kernel import Body, body_of
from kernelgen.families.values import Use, axes_of
from kernelgen.frontend.graph import DOT
from kernelgen.frontend.operations import OPERATIONS
from kernelgen.plan import KernelPlan
from kernelgen.spec.model import ELLIPSIS, Case, OperatorSpec, TensorSpec
from kernelgen.spec.sizes import names_in

FLOPS_A_BYTE = 200
"""Operations of the matrix units in half precision in the time of a byte of DRAM: A100 161, H200 206, H100 295, by the
peaks of `devices/facts.py`."""
_LANES_A_BYTE = 8
"""Operations of all others: H200 67 TFLOPS of float32, two of them a multiply-add, by 4.8 TB/s; H100 10."""
LAUNCH = 10_000_000
"""Bytes in the time that a kernel of its own takes however little it does: about 2 us, by 4.8 TB/s."""
_TILE = 128
"""Rows or columns of a tile of a product."""
_LARGE = 1024
"""What every size is taken for where a spec is not timed."""


def cost(plan: KernelPlan, cases: Sequence[Case]) -> int:
    """The bytes that a kernel moves over all cases, and those whose time passes while factors of its products are
    computed, in every tile anew."""
    return (
        LAUNCH * len(cases)
        + moved(plan, cases)
        + sum(_recomputed(body_of(plan), case) for case in cases) // _LANES_A_BYTE
    )


def multiplied(plan: KernelPlan, case: Case) -> int:
    """The operations of a kernel's product."""
    body = body_of(plan)
    axes = [body.lowered.space.axes[a] for extent in body.layout.extents for a in extent.axes]
    return 2 * prod(case.shape(tuple(axes))) if axes else 0


def moved(plan: KernelPlan, cases: Iterable[Case]) -> int:
    """The bytes that a kernel reads and writes, over all cases; of an input no more than its loads ask for."""
    written = sum(_bytes(t, case) for case in cases for t in plan.spec.outputs)
    return written + sum(min(_bytes(t, case), _loaded(plan, t, case)) for case in cases for t in plan.spec.inputs)


def large(spec: OperatorSpec) -> Case:
    """A case of sizes that matter, of a spec that is not timed."""
    names = dict.fromkeys(n for t in spec.inputs for e in t.shape for n in names_in(e))
    sizes = tuple((name, (_LARGE,) if name == ELLIPSIS else _LARGE) for name in names)
    return Case(sizes, tuple((name, kinds[0]) for name, kinds in spec.dtypes))


def _recomputed(body: Body, case: Case) -> int:
    """The operations before products, a load that is no factor itself counted as one: tiles of the result that have a
    factor in common compute it each for themselves."""
    values = body.lowered.values
    outer = {a for o in body.lowered.outputs for dim in o.index for a in axes_of(dim)}
    tiled = [set(extent.axes) & outer for extent in body.layout.extents if extent.name in ("m", "n", "e")]

    def times(axes: frozenset[int]) -> int:
        tiles = [ceil(_count(body, case, run) / _TILE) for run in tiled if run and not run & axes]
        return _count(body, case, outer - set().union(*tiled) - axes) * prod(tiles)

    total = 0
    for dot in (v for v in values if v.op == DOT):
        for factor in (a.value for a in dot.args if isinstance(a, Use)):
            before = _before(body, factor)
            repeats = times(values[factor].axes)
            for value in (values[i] for i in before):
                flops = OPERATIONS[value.op].flops or (value.op == "load" and len(before) > 1)
                total += flops * _count(body, case, value.axes) * repeats
    return total


def _before(body: Body, factor: int) -> set[int]:
    """A factor and what it is computed from; nothing of one that follows from another product."""
    found: set[int] = set()
    todo = [factor]
    while todo:
        i = todo.pop()
        if body.lowered.values[i].op == DOT:
            return set()
        if i not in found:
            found.add(i)
            todo += [a.value for a in body.lowered.values[i].args if isinstance(a, Use)]
    return found


def _count(body: Body, case: Case, axes: Iterable[int]) -> int:
    return prod(case.shape(tuple(body.lowered.space.axes[a] for a in axes)))


def _loaded(plan: KernelPlan, tensor: TensorSpec, case: Case) -> int:
    """The bytes that the loads of an input ask for, each element of the result of one counted once."""
    body = body_of(plan)
    loads = [v for v in body.lowered.values if v.op == "load" and v.tensor == tensor.name]
    return sum(_count(body, case, v.axes) for v in loads) * ITEMSIZE[case.dtype(tensor.dtype)]


def _bytes(tensor: TensorSpec, case: Case) -> int:
    return 0 if tensor.role == "like" else prod(case.shape(tensor.shape)) * ITEMSIZE[case.dtype(tensor.dtype)]
