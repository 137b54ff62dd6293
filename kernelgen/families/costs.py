"""What a kernel costs, in bytes that memory moves in the same time: how graphs are cut follows from it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import ceil, prod

from kernelgen.families.dtypes import ITEMSIZE
from kernelgen.families.kernel import Body, body_of
from kernelgen.families.matmul.lowering import ProductBody
from kernelgen.families.values import Use, axes_of
from kernelgen.frontend.graph import DOT, REDUCTIONS
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
_CHAIN, _LONG = 20, 5
"""Such operations in the time of a chain of a dozen instructions or more, and of one of a few. H200, float32: an exact
gelu after a convolution, which is three chains, takes 7.5 bytes' time an element, tanh(softplus(x)) 16."""
_TILE = 128
"""Rows or columns of a tile of a product."""
_LARGE = 1024
"""What every size is taken for where a spec is not timed."""


def cost(plan: KernelPlan, cases: Sequence[Case]) -> int:
    """The bytes that a kernel moves over all cases, and those whose time passes while factors of its products are
    computed, in every tile anew, and what follows from these. Where there is no product, and nothing is computed in two
    walks, memory moves meanwhile."""
    body, bytes_moved = body_of(plan), moved(plan, cases)
    found = [_computed(body, case) for case in cases]
    once, again = (sum(operations[i] for operations in found) // _LANES_A_BYTE for i in (0, 1))
    if not again and all(value.op != DOT for value in body.lowered.values):
        return LAUNCH * len(cases) + max(bytes_moved, once)
    recomputed = sum(_recomputed(body, case) for case in cases) // _LANES_A_BYTE
    return LAUNCH * len(cases) + bytes_moved + recomputed + once + again


def multiplied(plan: KernelPlan, case: Case) -> int:
    """The operations of a kernel's product."""
    body = body_of(plan)
    axes = [body.lowered.space.axes[a] for extent in body.layout.extents for a in extent.axes]
    return 2 * prod(case.shape(tuple(axes))) if axes else 0


def result_bytes(plan: KernelPlan, case: Case) -> int:
    """The bytes of a kernel's product, as torch's call leaves it."""
    body = body_of(plan)
    assert isinstance(body, ProductBody)
    axes = [body.lowered.space.axes[a] for extent in body.layout.extents if extent.name != "k" for a in extent.axes]
    return prod(case.shape(tuple(axes))) * ITEMSIZE[case.dtype(body.factor.dtype)]


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


def _computed(body: Body, case: Case) -> tuple[int, int]:
    """The operations of long functions, of products' results or where there is none, and those that come again: what
    is reduced and then read once more is computed for both."""
    values = body.lowered.values
    operands = [[a.value for a in v.args if isinstance(a, Use)] for v in values]
    after: list[set[str]] = []
    for i, value in enumerate(values):
        kinds = {kind for j in operands[i] for kind in after[j]}
        after.append(kinds | ({"reduced"} if value.op in REDUCTIONS else {"dot"} if value.op == DOT else set()))
    multiplies = any(v.op == DOT for v in values)
    once = again = 0
    is_reduced, is_read_again = [False] * len(values), [False] * len(values)
    for i, value in reversed([*enumerate(values)]):
        operation = OPERATIONS[value.op]
        each = _CHAIN if operation.is_chain else _LONG if operation.is_long else 0
        if each and ("dot" in after[i] or not multiplies):
            once += each * _count(body, case, value.axes)
            again += each * _count(body, case, value.axes) * (is_reduced[i] and is_read_again[i])
        for j in operands[i]:
            if value.op in REDUCTIONS:
                is_reduced[j] = True
            elif "reduced" in after[i] and "reduced" not in after[j]:
                is_read_again[j] = True
            elif "reduced" not in after[i]:
                is_reduced[j] |= is_reduced[i]
                is_read_again[j] |= is_read_again[i]
    return once, again


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
