"""Factors that are computed from what memory holds, such as weights in whole numbers: of many rows every tile would
compute them anew, so that they are written to memory once, as they are multiplied.

What is left is a product of factors that lie in memory. Its body is made here, and its kernels as any other's.
"""

from __future__ import annotations

from dataclasses import replace

from kernelgen.families.access import WHOLE, Access, Extent, Group
from kernelgen.families.bounds import scalar
from kernelgen.families.matmul import kernels, library
from kernelgen.families.matmul.lowering import ProductBody, Written
from kernelgen.families.matmul.writer import Writer, extents_of, tiled_by_blocks
from kernelgen.families.values import Use, Value
from kernelgen.plan import Schedule
from kernelgen.spec.model import OperatorSpec, TensorSpec
from kernelgen.tile import ir
from kernelgen.tile.walk import trimmed

_OUTER, _INNER = 32, 128
"""The tile of the kernel that writes a factor, runs of 128 in memory: 32 elements for each of 128 threads."""
_LAUNCH = (("num_warps", "4"), ("num_stages", "1"))
_ALIGNED = 8
"""Elements of 16 bytes, at multiples of which rows begin that descriptors copy."""


def written(spec: OperatorSpec, body: ProductBody) -> Written | None:
    """The product once its computed factors are in memory; None where there are none, or no matrix of them that the
    reference rounds to the dtype that is multiplied."""
    values = body.lowered.values
    factors = [i for i in body.factors_of(body.dot) if values[i].op != "load"]
    unlike = len(body.dots) > 1 or values[body.dot].attr is not None or body.triangles or kernels.has_reductions(body)
    if unlike or not factors or body.extent("batch").runs or not body.extent("m").runs:
        return None
    found = [(i, _access(spec, body, i)) for i in factors]
    if any(values[i].op != "round" or access is None for i, access in found):
        return None
    return _made(spec, body, tuple((i, access) for i, access in found if access))


def _access(spec: OperatorSpec, body: ProductBody, factor: int) -> Access | None:
    """Where a factor is written: in the order of the tensor that it is computed from."""
    own = {e.name for e in body.layout.extents if set(e.axes) & body.lowered.values[factor].axes}
    if own not in ({"m", "k"}, {"n", "k"}):
        return None
    read = kernels.loads_of(body, [factor])
    orders = (extents_of(body, a) for a in body.layout.accesses if a.load in read)
    last = next((order[-1] for order in orders if set(order) == own), "k")
    first = next(iter(own - {last}))
    name = kernels.memory_of(spec, "left" if "m" in own else "right")
    return Access(factor, name, ((WHOLE[first], body.extent(last).size), (WHOLE[last], None)), (), None)


def _made(spec: OperatorSpec, body: ProductBody, factors: tuple[tuple[int, Access], ...]) -> Written:
    values, sizes = list(body.lowered.values), {WHOLE[e.name]: e.size for e in body.layout.extents}
    tensors = []
    for i, access in factors:
        values[i] = Value("load", (), "float", values[i].axes, statement=values[i].statement, tensor=access.tensor)
        shape = tuple(sizes[str(index)] for index, _ in access.terms)
        tensors.append(TensorSpec(access.tensor, shape, body.factor.dtype))
    lowered = replace(body.lowered, values=tuple(values))
    bare = replace(body, lowered=lowered)
    needed = kernels.needed_by(bare, [o.value for o in lowered.outputs])
    kept = tuple(a for a in body.layout.accesses if a.load in needed and a.load not in dict(factors))
    accesses = (*kept, *(access for _, access in factors))
    counted = {a for i in needed if values[i].op in ("place", "iota") for a in values[i].axes}
    others = (*kept, *(a for _, a in body.layout.stores))
    extents = tuple(_extent(e, others, is_counted=bool(counted & set(e.axes))) for e in body.layout.extents)
    names = {i: access.tensor for i, access in factors}
    return Written(
        replace(spec, inputs=(*spec.inputs, *tensors)),
        replace(
            bare,
            layout=replace(body.layout, accesses=accesses, extents=extents),
            names=replace(body.names, of=body.names.of | names, assigned=body.names.assigned | names.keys()),
        ),
        factors,
    )


def _extent(extent: Extent, accesses: tuple[Access, ...], *, is_counted: bool) -> Extent:
    """An extent that a factor holds whole: one run where nothing takes it apart any more. `is_counted`: its places are
    values."""
    whole = Group(extent.axes, extent.size, WHOLE[extent.name])
    if len(extent.runs) < 2:
        return extent
    indices = {str(index) for access in accesses for index, _ in access.terms} - {whole.index}
    if not is_counted and not any(extent.counted(index) for index in indices):
        return replace(extent, runs=(whole,), spans=())
    return extent if extent.counted(whole.index) else replace(extent, spans=(*extent.spans, whole))


def by_library(spec: OperatorSpec, body: ProductBody, schedule: Schedule, name: str) -> tuple[ir.Step, ...]:
    """What is computed of the factors, torch's product, and what follows it."""
    assert body.written is not None
    made = body.written
    names = {access.tensor for _, access in made.factors}
    return *_writing(spec, body, schedule, name), *library.by_library(made.spec, made.body, schedule, name, names)


def by_boxes(spec: OperatorSpec, body: ProductBody, schedule: Schedule, name: str) -> tuple[ir.Step, ...]:
    """What is computed of the factors, and the product of these by descriptors."""
    assert body.written is not None
    made = body.written
    product = kernels.by_boxes(made.spec, made.body, schedule, name.replace("_kernel", "_product_kernel"))
    product = replace(product, options=(("num_warps", None), ("num_stages", None)))
    first, *others = _writing(spec, body, schedule, name)
    rows = dict.fromkeys(f"{access.terms[0][1]} % {_ALIGNED} == 0" for _, access in made.factors)
    return replace(first, fits=" and ".join(rows)), *others, product


def _writing(spec: OperatorSpec, body: ProductBody, schedule: Schedule, name: str) -> tuple[ir.Kernel, ...]:
    """The kernels that write the factors, the first called `name`."""
    assert body.written is not None
    names = (name, name.replace("_kernel", "_second_kernel"))
    found = zip(names, body.written.factors, strict=False)
    return tuple(_writes(spec, body, schedule, own, i, access) for own, (i, access) in found)


def _writes(
    spec: OperatorSpec, body: ProductBody, schedule: Schedule, name: str, factor: int, access: Access
) -> ir.Kernel:
    """A program computes a tile of a factor, as the reference rounds it."""
    assert body.written is not None
    outer, inner = extents_of(body.written.body, access)
    blocks = {f"BLOCK_{outer.upper()}": _OUTER, f"BLOCK_{inner.upper()}": _INNER}
    tiled = tiled_by_blocks(body)
    writer = Writer(spec, body, tiled, blocks=blocks)
    first, last = shape = tuple(axis for n in (outer, inner) for axis in tiled.all if axis.name == n)
    tiles = f"tiles_{last.name}"
    by = ir.Program(0), ir.Name(tiles)
    numbers = {first: scalar("int_div", *by), last: scalar("int_mod", *by)}
    writer.tile = shape
    (source,) = (a.value for a in body.lowered.values[factor].args if isinstance(a, Use))
    lets = writer.builder.lets([source], shape)
    numbered = (ir.Name(first.index, (first,)), last.size), (ir.Name(last.index, (last,)), None)
    inside = trimmed((
        ir.Let((tiles,), kernels.cdiv(last.size, last.block)),
        *(ir.Let((f"tile_{axis.name}",), number) for axis, number in numbers.items()),
        *(let for axis in shape for let in writer.numbers(body.extent(axis.name), axis, f"tile_{axis.name}")),
        *lets,
        ir.Store(
            ir.Pointer(access.tensor, numbered, shape), writer.builder.value(source, shape), writer.mask(shape)
        ),
    ))  # fmt: skip
    arguments = (*writer.arguments(inside), ir.Argument(f"{access.tensor}_ptr", "pointer", access.tensor))
    grid = f"cdiv({first.size}, {_OUTER}) * cdiv({last.size}, {_INNER})"
    scratch = ir.Scratch(access.tensor, f"({first.size}, {last.size})", f"{body.factor.name}.dtype")
    constexprs = tuple((block, str(count)) for block, count in sorted(blocks.items()))
    return ir.Kernel(name, schedule, arguments, constexprs, inside, (grid,), (scratch,), options=_LAUNCH)
