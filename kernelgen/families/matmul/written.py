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
_WIDTH, _WIDE_ALIGNED = "width", 4
"""How long rows of parts of float32 are made, with zeros behind what is summed, and of what that is a multiple."""


def written(spec: OperatorSpec, body: ProductBody) -> Written | None:
    """The product once its computed factors are in memory, or both factors in two parts where float32 is multiplied as
    three products; None where there are none, or no matrix of them that the reference rounds to the dtype that is
    multiplied."""
    values = body.lowered.values
    factors = [i for i in body.factors_of(body.dot) if body.in_three or values[i].op != "load"]
    unlike = len(body.dots) > 1 or values[body.dot].attr is not None or kernels.has_reductions(body)
    if unlike or not factors or not body.extent("m").runs or (body.triangles and body.triangles.factors):
        return None
    if not body.in_three and (body.extent("batch").runs or body.triangles):
        return None
    if any((values[i].op == "round") is body.in_three for i in factors):
        return None
    found = [(i, _accesses(spec, body, i)) for i in factors]
    return _made(spec, body, tuple(found)) if all(accesses for _, accesses in found) else None


def _accesses(spec: OperatorSpec, body: ProductBody, factor: int) -> tuple[Access, ...]:
    """Where a factor is written: in the order of the tensor that it is computed from, or what is summed side by side,
    as matrix units take float32; nowhere where it is no matrix, or has a part of the batch alone."""
    axes = body.lowered.values[factor].axes
    own = {e.name for e in body.layout.extents if set(e.axes) & axes}
    is_batched = "batch" in own
    own -= {"batch"}
    if own not in ({"m", "k"}, {"n", "k"}) or (is_batched and not set(body.extent("batch").axes) <= axes):
        return ()
    read = kernels.loads_of(body, [factor])
    orders = (extents_of(body, a) for a in body.layout.accesses if a.load in read)
    last = "k" if body.in_three else next((order[-1] for order in orders if set(order) == own), "k")
    first = next(iter(own - {last}))
    side = "left" if "m" in own else "right"
    names = (f"{side}_high", f"{side}_low") if body.in_three else (side,)
    terms: tuple[tuple[str, str | None], ...]
    rows, row = body.extent(first).size, _WIDTH if body.in_three else body.extent(last).size
    terms = ((WHOLE[first], row), (WHOLE[last], None))
    terms = ((WHOLE["batch"], f"{rows} * {row}"), *terms) if is_batched else terms
    return tuple(Access(factor, kernels.memory_of(spec, name), terms, (), None) for name in names)


def _made(spec: OperatorSpec, body: ProductBody, factors: tuple[tuple[int, tuple[Access, ...]], ...]) -> Written:
    values, sizes = list(body.lowered.values), {WHOLE[e.name]: e.size for e in body.layout.extents}
    tensors, placed, lows = [], [], []
    for i, (whole, *rest) in factors:
        values[i] = Value("load", (), "float", values[i].axes, statement=values[i].statement, tensor=whole.tensor)
        placed.append(whole)
        for low in rest:
            lows.append((i, len(values)))
            placed.append(replace(low, load=len(values)))
            values.append(replace(values[i], tensor=low.tensor))
        shape = tuple(sizes[str(index)] for index, _ in whole.terms)
        dtype = "float32" if body.in_three else body.factor.dtype
        tensors += [TensorSpec(access.tensor, shape, dtype) for access in (whole, *rest)]
    lowered = replace(body.lowered, values=tuple(values))
    bare = replace(body, lowered=lowered, lows=tuple(lows))
    needed = kernels.needed_by(bare, [o.value for o in lowered.outputs])
    kept = tuple(a for a in body.layout.accesses if a.load in needed and a.load not in dict(factors))
    accesses = (*kept, *placed)
    counted = {a for i in needed if values[i].op in ("place", "iota") for a in values[i].axes}
    others = (*kept, *(a for _, a in body.layout.stores))
    extents = tuple(_extent(e, others, is_counted=bool(counted & set(e.axes))) for e in body.layout.extents)
    names = {access.load: access.tensor for access in placed}
    return Written(
        replace(spec, inputs=(*spec.inputs, *tensors), precision="tf32" if body.in_three else spec.precision),
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
    names = {access.tensor for _, accesses in made.factors for access in accesses}
    return *_writing(spec, body, schedule, name), *library.by_library(made.spec, made.body, schedule, name, names)


def by_boxes(spec: OperatorSpec, body: ProductBody, schedule: Schedule, name: str) -> tuple[ir.Step, ...]:
    """What is computed of the factors, and the product of these by descriptors."""
    assert body.written is not None
    made = body.written
    product = kernels.by_boxes(made.spec, made.body, schedule, name.replace("_kernel", "_product_kernel"))
    product = replace(product, options=(("num_warps", None), ("num_stages", None)))
    first, *others = _writing(spec, body, schedule, name)
    rows = () if body.in_three else (f"{accesses[0].terms[0][1]} % {_ALIGNED} == 0" for _, accesses in made.factors)
    conditions = dict.fromkeys(rows)
    if len(made.factors) == len(made.body.factors_of(made.body.dot)):  # else it is asked of the factor that comes in
        summed = body.extent("k").size
        conditions = {f"has_copy_engine({spec.inputs[0].name}.device)": None, f"{summed} > 0": None} | conditions
    return replace(first, fits=" and ".join(conditions)), *others, product


def _writing(spec: OperatorSpec, body: ProductBody, schedule: Schedule, name: str) -> tuple[ir.Kernel, ...]:
    """The kernels that write the factors, the first called `name`."""
    assert body.written is not None
    names = (name, name.replace("_kernel", "_second_kernel"))
    found = zip(names, body.written.factors, strict=False)
    return tuple(_writes(spec, body, schedule, own, i, accesses) for own, (i, accesses) in found)


def _writes(
    spec: OperatorSpec, body: ProductBody, schedule: Schedule, name: str, factor: int, accesses: tuple[Access, ...]
) -> ir.Kernel:
    """A program computes a tile of a factor, as the reference rounds it, or what TF32 holds of it and of the rest."""
    assert body.written is not None
    *batch, outer, inner = extents_of(body.written.body, accesses[0])
    blocks = {f"BLOCK_{outer.upper()}": _OUTER, f"BLOCK_{inner.upper()}": _INNER}
    tiled = tiled_by_blocks(body)
    writer = Writer(spec, body, tiled, blocks=blocks)
    first, last = shape = tuple(axis for n in (outer, inner) for axis in tiled.all if axis.name == n)
    tiles = f"tiles_{last.name}"
    lines = ir.Let((f"tiles_{first.name}",), kernels.cdiv(first.size, first.block))
    count = scalar("mul", ir.Name(lines.names[0]), ir.Name(tiles))
    found, tile = kernels.own_tile(body, count, ir.Program(0)) if batch else ((), ir.Program(0))
    by = tile, ir.Name(tiles)
    numbers = {first: scalar("int_div", *by), last: scalar("int_mod", *by)}
    writer.tile = shape
    value = body.lowered.values[factor]
    (source,) = (a.value for a in value.args if isinstance(a, Use)) if value.op == "round" else (factor,)
    lets: tuple[ir.Stmt, ...] = writer.builder.lets([source], shape)
    stored = [writer.builder.value(source, shape)]
    if len(accesses) > 1:
        whole, high, low = (ir.Name(text, shape) for text in (writer.side(factor), *(a.tensor for a in accesses)))
        (made,) = stored
        if value.op != "load":  # what the reference makes of a zero beyond the end may be none, and is summed here
            made = ir.Apply("where", (ir.Name(last.mask, (last,)), made, ir.Number(0.0)), shape)
        lets, whole = (lets, made) if isinstance(made, ir.Name) else ((*lets, ir.Let((whole.text,), made)), whole)
        lets = (
            *lets, ir.Let((high.text,), ir.Call("tf32", (whole,), shape)),
            ir.Let((low.text,), ir.Call("tf32", (ir.Apply("sub", (whole, high), shape),), shape)),
        )  # fmt: skip
        stored = [high, low]
    counts: list[ir.Expr] = [*(ir.Name(WHOLE["batch"]) for _ in batch), *(ir.Name(a.index, (a,)) for a in shape)]
    numbered = tuple((count, stride) for count, (_, stride) in zip(counts, accesses[0].terms, strict=True))
    mask, width = writer.mask(shape), tuple[ir.Let, ...]()
    if body.in_three:
        width, mask = _widened(writer, first, last)
    inside = trimmed((
        *(lines for _ in batch), ir.Let((tiles,), kernels.cdiv(last.size, last.block)), *found,
        *(ir.Let((f"tile_{axis.name}",), number) for axis, number in numbers.items()),
        *(let for axis in shape for let in writer.numbers(body.extent(axis.name), axis, f"tile_{axis.name}")),
        *width, *lets,
        *(
            ir.Store(ir.Pointer(access.tensor, numbered, shape), part, mask)
            for access, part in zip(accesses, stored, strict=True)
        ),
    ))  # fmt: skip
    written = (ir.Argument(f"{access.tensor}_ptr", "pointer", access.tensor) for access in accesses)
    grid = f"cdiv({first.size}, {_OUTER}) * cdiv({last.size}, {_INNER})" + " * BATCH" * bool(batch)
    dtype = "float32" if body.in_three else f"{body.factor.name}.dtype"
    row = f"cdiv({last.size}, {_WIDE_ALIGNED}) * {_WIDE_ALIGNED}" if body.in_three else last.size
    sides = ", ".join((*("BATCH" for _ in batch), first.size, row))
    scratch = tuple(ir.Scratch(access.tensor, f"({sides})", dtype) for access in accesses)
    constexprs = tuple((block, str(count)) for block, count in sorted(blocks.items()))
    arguments = (*writer.arguments(inside), *written)
    return ir.Kernel(name, schedule, arguments, constexprs, inside, (grid,), scratch, options=_LAUNCH)


def _widened(writer: Writer, first: ir.Axis, last: ir.Axis) -> tuple[tuple[ir.Let, ...], ir.Expr]:
    """How long rows are that begin where descriptors can copy them, and which elements of a tile are in them: what is
    past the end of what is summed is zero, and is stored as that."""
    size, aligned = ir.Name(last.size), ir.Number(_WIDE_ALIGNED)
    width = ir.Let(
        (_WIDTH,),
        scalar("mul", scalar("cdiv", size, aligned), aligned),
        "padded: descriptors need rows that begin at multiples of 16 bytes",
    )
    inside = ir.Apply("lt", (ir.Name(last.index, (last,)), ir.Name(_WIDTH)), (last,))
    return (width,), ir.Apply("and", (ir.Name(first.mask, (first,)), inside), (first, last))
