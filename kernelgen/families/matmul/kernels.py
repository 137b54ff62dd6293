"""The kernels of a product in the IR, variant by variant.

All of them load tiles of the factors, compute on these what the reference computes before the product, add up the
product in float32, and compute on its tiles what comes after it. They differ in how tiles are copied (`tiles` by
pointers, `boxes` by descriptors, which the copy engine of sm_90 executes), and in how few rows are spread over the
device (`split`, `vector`).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from kernelgen.families.access import WHOLE, Access
from kernelgen.families.bounds import Bounds, scalar
from kernelgen.families.masks import Affine, Mask
from kernelgen.families.matmul import row_parts
from kernelgen.families.matmul.lowering import ProductBody
from kernelgen.families.matmul.writer import (
    PRECISION,
    PROMOTED,
    Writer,
    extents_of,
    multiplies_float8,
    multiplies_float32,
    tiled_by_blocks,
)
from kernelgen.families.values import Use
from kernelgen.frontend.graph import REDUCTIONS
from kernelgen.plan import Schedule
from kernelgen.spec.model import OperatorSpec
from kernelgen.tile import ir
from kernelgen.tile.walk import trimmed


def has_reductions(body: ProductBody) -> bool:
    """Whether rows of the product are reduced."""
    return any(v.op in REDUCTIONS for v in body.lowered.values)


def reduces(body: ProductBody) -> bool:
    """Whether rows of the product are reduced by tiles that hold them whole."""
    return has_reductions(body) and not body.in_parts


def has_batch(body: ProductBody) -> bool:
    return bool(body.extent("batch").runs)


def _constexprs(spec: OperatorSpec, body: ProductBody, *names: str) -> tuple[tuple[str, str | None], ...]:
    found: list[tuple[str, str | None]] = [(name, None) for name in names]
    multiplied = f'"{spec.precision}"' if spec.precision else "precision()"
    if multiplies_float8(body) and not all(body.scales_of(dot) for dot in body.dots):
        found.append((PROMOTED, f'min(options["BLOCK_K"], {_SUMMED})'))
    return (*found, (PRECISION, multiplied)) if multiplies_float32(spec, body) else tuple(found)


_SUMMED = 128
"""Products of float8 that matrix units of sm_90 sum by themselves, which keep some 14 bits of a sum, before it is added
in float32: as many as DeepSeek-V3 takes, four of their instructions (Technical Report, 3.3.2)."""


def cdiv(size: str, block: str) -> ir.Expr:
    return ir.Apply("cdiv", (ir.Name(size), ir.Name(block)), ())


def _grouped(tile: ir.Expr) -> ir.Let:
    return ir.Let(
        ("tile_m", "tile_n"),
        ir.Call("tile_of", (tile, ir.Name("tiles_m"), ir.Name("tiles_n"), ir.Name("GROUP_M"))),
    )


_TILES = ir.Apply("mul", (ir.Name("tiles_m"), ir.Name("tiles_n")), ())


def own_tile(
    body: ProductBody, tiles: ir.Expr, program: ir.Expr, *, narrow: bool = False
) -> tuple[tuple[ir.Let, ...], ir.Expr]:
    """What finds a program's batch, and the number of its tile within that. All are counted along one dimension of the
    grid, for the others end at 65535."""
    if not has_batch(body) or body.ends is not None:
        return (), program
    count = ir.Let(("tiles",), tiles)
    batch: ir.Expr = ir.Apply("int_div", (program, ir.Name("tiles")), ())
    return (
        (count, ir.Let(("batch",), batch if narrow else ir.Cast(batch, "int64"))),
        ir.Apply("int_mod", (program, ir.Name("tiles")), ()),
    )


def _ordered(body: ProductBody, tile: ir.Expr) -> tuple[ir.Let, ...]:
    """The tile of a number, in an order in which the longest sums begin first."""
    if body.triangles is None or not body.triangles.is_longer_later:
        return (_grouped(tile),)
    last = scalar("sub", _TILES, ir.Number(1))
    number = ir.Let(("number",), scalar("sub", last, tile), "later rows have longer sums: start with them")
    return number, _grouped(ir.Name("number"))


def grid_of(body: ProductBody, tiles: str) -> str:
    return f"{tiles} * BATCH" if has_batch(body) and body.ends is None else tiles


def _tiles_counted(body: ProductBody) -> tuple[ir.Let, ...]:
    """The numbers of tiles; every group may have one more than its share of the rows."""
    rows, columns = cdiv("M", "BLOCK_M"), cdiv("N", "BLOCK_N")
    rows = rows if body.ends is None else scalar("add", rows, ir.Name("BATCH"))
    said = "" if body.ends is None else "upper bound: the last tile of a group may be partial"
    return ir.Let(("tiles_m",), rows, said), ir.Let(("tiles_n",), columns)


def _rows_of_tile(writer: Writer) -> tuple[ir.Let, ...]:
    """The numbers of a tile's rows; of groups also which the tile's is."""
    body, m = writer.body, writer.tiled.m
    assert m is not None
    if body.ends is None:
        return writer.numbers(body.extent("m"), m, "tile_m")
    access = writer.reads[body.ends]
    ((_, stride),) = access.terms
    pointer, step = ir.Name(f"{access.tensor}_ptr"), ir.Name(stride) if stride else ir.Number(1)
    numbers = (ir.Name("tile_m"), pointer, step, ir.Name("BATCH"), ir.Name("BLOCK_M"), ir.Name("NUM_GROUPS"))
    _, rows, mask = writer.numbers(body.extent("m"), m, "tile_m")
    return (
        ir.Let(("group", "first_row", "end_row"), ir.Call("group_of", numbers)),
        ir.Let(("batch",), ir.Cast(ir.Name("group"), "int64", is_tensor=True)),
        rows, replace(mask, value=ir.Apply("lt", (ir.Name(m.index, (m,)), ir.Name("end_row")), (m,))),
    )  # fmt: skip


def _of_tile(writer: Writer, schedule: Schedule, precision: bool) -> tuple[ir.Stmt, ...]:
    """One tile of the result, from the numbers of its elements to its stores."""
    body, tiled = writer.body, writer.tiled
    assert tiled.m is not None
    swap = bool(schedule.get("swap"))
    shape = (tiled.n, tiled.m) if swap else (tiled.m, tiled.n)
    walk = _walk(writer, precision=precision, swap=swap)
    writer.all_finished()
    return (
        *_rows_of_tile(writer), *writer.numbers(body.extent("n"), tiled.n, "tile_n"),
        *writer.begun(shape), *walk, *writer.with_rest(shape), *writer.unswapped(swap=swap),
        *(row_parts.left(writer) if body.in_parts else writer.stores()),
    )  # fmt: skip


def _walk(writer: Writer, *, precision: bool, swap: bool) -> tuple[ir.Stmt, ...]:
    """The walk over what is summed: where masks bound it, over what these leave, with masks only where they cut a
    block."""
    found = writer.body.triangles

    def loop(start: ir.Expr, stop: ir.Expr, *, masked: bool = True, inside: bool = False, said: str = "") -> ir.For:
        made = writer.loop(start, stop, precision=precision, swap=swap, masked=masked, inside=inside)
        return replace(made, comment=said) if said else made

    if writer.body.ends is not None:
        some = scalar("lt", ir.Name("first_row"), ir.Name("end_row"))
        length = ir.Let(("end",), scalar("where", some, _WHOLE, _NONE), "tiles past the last group do nothing")
        return length, loop(_NONE, ir.Name("end"))
    if found is None:
        return (loop(_NONE, _WHOLE),)
    if not found.factors:
        return (_kept(writer, found.result), loop(_NONE, ir.Name("end")))
    of_rows, of_columns = _bounds(writer)
    sides = [(mask, own) for mask, own in ((found.rows, of_rows), (found.columns, of_columns)) if mask]
    limits = [(own, bound) for mask, own in sides for bound in mask.bounds]
    above = [(own, bound.limit) for own, bound in limits if bound.is_upper]
    below = [(own, bound.limit) for own, bound in limits if not bound.is_upper]
    first, full_start, full_end, end = (ir.Name(n) for n in ("first", "full_start", "full_end", "end"))
    start, stop = first if below else _NONE, end if above else _WHOLE
    found_lets = [ir.Let(("end",), _least(above, last=True))] if above else []
    found_lets += [ir.Let(("first",), _to_block("int_div", _greatest(below, last=False)))] if below else []
    if not found.chosen:
        return (*found_lets, loop(start, stop))
    said = "from here on blocks need no mask" if below else "up to here blocks need no mask"
    if below:
        aligned = _to_block("cdiv", _greatest(below, last=True))
        found_lets.append(ir.Let(("full_start",), scalar("whole_min", aligned, stop), said))
    if above:
        aligned = _to_block("int_div", _least(above, last=False))
        aligned = scalar("whole_max", aligned, full_start) if below else aligned
        found_lets.append(ir.Let(("full_end",), aligned, "" if below else said))
    whole = loop(full_start if below else _NONE, full_end if above else _WHOLE, masked=False, inside=bool(above))
    edge = "masked blocks at the edge of a triangle"
    before = [loop(first, full_start, said=edge)] if below else []
    return (*found_lets, *before, whole, *([loop(full_end, end, said=edge)] if above else []))


_NONE, _WHOLE, _DEPTH = ir.Number(0), ir.Name("K"), ir.Name("BLOCK_K")
_Limits = list[tuple[Bounds, Affine]]
"""Where a walk ends or begins, in terms of a tile's rows or columns."""


def _bounds(writer: Writer) -> tuple[Bounds, Bounds]:
    """Of a tile's rows and of its columns."""
    rows = Bounds(writer.term, ir.Name("first_row"), ir.Name("BLOCK_M"), _WHOLE)
    return rows, Bounds(writer.term, ir.Name("first_col"), ir.Name("BLOCK_N"), _WHOLE)


def _to_block(rounding: str, number: ir.Expr) -> ir.Expr:
    """A number as so many blocks of what is summed."""
    return scalar("mul", scalar(rounding, number, _DEPTH), _DEPTH)


def _least(limits: _Limits, *, last: bool) -> ir.Expr:
    """Where a walk ends, for the first or the last of a tile."""
    found: ir.Expr = _WHOLE
    for own, limit in limits:
        found = scalar("whole_min", own.limit(limit, last=last), found)
    return scalar("whole_max", found, _NONE) if any(_may_be_negative(limit) for _, limit in limits) else found


def _greatest(limits: _Limits, *, last: bool) -> ir.Expr:
    """Where a walk begins, for the first or the last of a tile."""
    found: ir.Expr | None = _NONE if all(_may_be_negative(limit) for _, limit in limits) else None
    for own, limit in limits:
        number = own.limit(limit, last=last)
        found = scalar("whole_max", number, found) if found else number
    assert found is not None
    return found


def _may_be_negative(limit: Affine) -> bool:
    return bool(limit.terms) or limit.number < 0 or limit.m < 0


def _kept(writer: Writer, mask: Mask | None) -> ir.Let:
    """How far a tile is summed: not at all where nothing of it is kept."""
    of_rows, _ = _bounds(writer)
    column, tests = ir.Name("first_col"), list[ir.Expr]()
    for bound in mask.bounds if mask else ():
        limit = of_rows.limit(bound.limit, last=bound.is_upper)
        behind = scalar("add", column, ir.Name("BLOCK_N"))
        tests.append(scalar("lt", column, limit) if bound.is_upper else scalar("gt", behind, limit))
    test = tests[0]
    for other in tests[1:]:
        test = scalar("and", test, other)
    return ir.Let(("end",), scalar("where", test, _WHOLE, _NONE), "a tile of which nothing is kept is not summed")


_GRID_TILES = "tiles_m * tiles_n"
_COUNTS = (("tiles_m", 'cdiv(M, options["BLOCK_M"])'), ("tiles_n", 'cdiv(N, options["BLOCK_N"])'))
"""The wrapper's numbers of tiles."""


def by_pointers(spec: OperatorSpec, body: ProductBody, schedule: Schedule, name: str) -> ir.Kernel:
    """A program computes a tile, whose factors it loads by pointers."""
    writer = Writer(spec, body, tiled_by_blocks(body), blocks=dict(schedule.values))
    precision = multiplies_float32(spec, body)
    own, tile = own_tile(body, _TILES, ir.Program(0))
    inside = trimmed((*_tiles_counted(body), *own, *_ordered(body, tile), *_of_tile(writer, schedule, precision)))
    constexprs = _constexprs(spec, body, "BLOCK_M", "BLOCK_N", "BLOCK_K", "GROUP_M")
    grid = (grid_of(body, _GRID_TILES),)
    return _with_parts(writer, ir.Kernel(name, schedule, writer.arguments(inside), constexprs, inside, grid))


def _with_parts(writer: Writer, kernel: ir.Kernel) -> ir.Kernel:
    """A kernel whose tiles are counted, with what they leave of rows."""
    if writer.body.ends is not None:
        (name, rows), columns = _COUNTS
        groups = ("NUM_GROUPS", "next_power_of_2(BATCH)")
        return replace(kernel, counts=((name, f"{rows} + BATCH"), columns), constexprs=(*kernel.constexprs, groups))
    if not writer.body.in_parts:
        return replace(kernel, counts=_COUNTS)
    arguments = (*kernel.arguments, *row_parts.passed(writer))
    return replace(kernel, arguments=arguments, scratch=row_parts.scratch(writer), counts=_COUNTS)


def boxable(spec: OperatorSpec, body: ProductBody) -> frozenset[str]:
    """The tensors whose tiles descriptors can copy: those of all factors, and outputs that are tiles of rows and
    columns; empty where a factor is none."""
    writer = Writer(spec, body, tiled_by_blocks(body))
    wanted = (*body.firsts, *body.seconds, *(low for _, low in body.lows))
    count, own = len(wanted), loads_of(body, wanted)
    factors = [a for a in body.layout.accesses if a.load in own and {"k"} < set(extents_of(body, a)) - {"batch"}]
    if len(factors) != count or any(not _is_boxable(body, a) for a in factors):
        return frozenset()
    if len({a.tensor for a in factors}) < count or any(
        sum(b.tensor == a.tensor for b in body.layout.accesses) > 1 for a in factors
    ):
        return frozenset()
    found = {a.tensor for a in factors}
    kinds = {*dict(spec.dtypes), "float16", "bfloat16"}
    # a tile may end where its group does, and factors in two parts leave float32 no room
    for _, access in body.layout.stores if body.ends is None and not body.lows else ():
        dtype = next(o.dtype for o in spec.outputs if o.name == access.tensor)
        if len(writer.axes(extents_of(body, access))) == 2 and _is_boxable(body, access) and dtype in kinds:
            found.add(access.tensor)
    return frozenset(found)


def loads_of(body: ProductBody, wanted: Iterable[int]) -> frozenset[int]:
    """The loads that some values are computed from."""
    return frozenset(i for i in needed_by(body, wanted) if body.lowered.values[i].op == "load")


def needed_by(body: ProductBody, wanted: Iterable[int]) -> frozenset[int]:
    """Some values, and all that they are computed from."""
    found: set[int] = set()
    todo = list(wanted)
    while todo:
        i = todo.pop()
        found.add(i)
        todo += [a.value for a in body.lowered.values[i].args if isinstance(a, Use) and a.value not in found]
    return frozenset(found)


def _is_boxable(body: ProductBody, access: Access) -> bool:
    """Whether a tensor's tiles are boxes: its two tiled extents whole, and its last two dimensions."""
    names = extents_of(body, access)
    tiled = [n for n in names if n != "batch"]
    whole = all(str(index) == WHOLE[n] for (index, _), n in zip(access.terms, names, strict=True) if n != "batch")
    return len(tiled) == 2 and whole and names[-2:] == tiled and len(names) <= 5


def by_boxes(spec: OperatorSpec, body: ProductBody, schedule: Schedule, name: str) -> ir.Kernel:
    """A program computes a tile, or one after the other, whose factors it loads by descriptors."""
    writer = Writer(spec, body, tiled_by_blocks(body), body.boxed, dict(schedule.values))
    precision = multiplies_float32(spec, body)
    persistent = bool(schedule.get("persistent"))
    program: ir.Expr = ir.Name("tile") if persistent else ir.Program(0)
    own, tile = own_tile(body, _TILES, program, narrow=writer.narrow_batch)
    inside = (*own, *_ordered(body, tile), *_of_tile(writer, schedule, precision))
    constexprs = _constexprs(spec, body, "BLOCK_M", "BLOCK_N", "BLOCK_K", "GROUP_M")
    grid = grid_of(body, _GRID_TILES)
    if persistent:
        total = ir.Apply("mul", (_TILES, ir.Name("BATCH")), ()) if has_batch(body) else _TILES
        comment = "persistent: one program per SM loops over tiles"
        inside = (
            ir.Let(("num_tiles",), total),
            ir.For(
                "tile", ir.Program(0), ir.Name("num_tiles"), ir.Name("NUM_PROGRAMS"), inside, flatten=True,
                comment=comment,
            ),
        )  # fmt: skip
        programs = f"num_programs({spec.inputs[0].name}.device)"
        constexprs = (*constexprs, ("NUM_PROGRAMS", programs))
        grid = f"min({programs}, {grid})"
    inside = trimmed((*_tiles_counted(body), *inside))
    return _with_parts(writer, ir.Kernel(name, schedule, writer.arguments(inside), constexprs, inside, (grid,)))


def _parts(writer: Writer, dot: int, *, several: bool = True) -> ir.Pointer:
    """Where the sums of a part lie, or those of the only one."""
    m, n = writer.tiled.result
    slot: ir.Expr | None = ir.Cast(ir.Name("part"), "int64") if several else None
    if has_batch(writer.body):
        batch = ir.Name("batch")
        slot = ir.Apply("add", (ir.Apply("mul", (slot, ir.Name("BATCH")), ()), batch), ()) if slot else batch
    terms: list[tuple[ir.Expr, str | None]] = [(ir.Name(m.index, (m,)), "N"), (ir.Name(n.index, (n,)), None)]
    if slot:
        terms.insert(0, (ir.Apply("mul", (ir.Apply("mul", (slot, ir.Name("M")), ()), ir.Name("N")), ()), None))
    return ir.Pointer(left_by(writer, dot), tuple(terms), (m, n))


def left_by(writer: Writer, dot: int) -> str:
    """What the sums of a product are called that one kernel leaves for the next."""
    return memory_of(writer.spec, writer.of_product(dot, "parts"))


def memory_of(spec: OperatorSpec, name: str = "parts") -> str:
    """What the sums that one kernel leaves for the next are called."""
    while name in {t.name for t in (*spec.inputs, *spec.outputs)}:
        name = f"launch_{name}"
    return name


def split(spec: OperatorSpec, body: ProductBody, schedule: Schedule, name: str) -> tuple[ir.Kernel, ir.Kernel]:
    """Every program sums a part; the second kernel adds the parts in their order, so that results repeat."""
    writer = Writer(spec, body, tiled_by_blocks(body), blocks=dict(schedule.values))
    m, n = writer.tiled.result
    swap = bool(schedule.get("swap"))
    shape = (n, m) if swap else (m, n)
    blocks = ir.Apply("cdiv", (cdiv("K", "BLOCK_K"), ir.Name("SPLITS")), ())
    first = ir.Apply("mul", (ir.Name("part"), ir.Name("length")), ())
    end = ir.Apply("whole_min", (ir.Apply("add", (first, ir.Name("length")), ()), ir.Name("K")), ())
    loop = writer.loop(first, ir.Name("end"), precision=multiplies_float32(spec, body), swap=swap)
    left = (ir.Store(_parts(writer, dot), writer.carry(dot), writer.mask((m, n))) for dot in body.dots)
    own, tile = own_tile(body, _TILES, ir.Program(0))
    inside = trimmed((
        *_tiles_counted(body), *own, _grouped(tile), ir.Let(("part",), ir.Program(1)),
        *writer.numbers(body.extent("m"), m, "tile_m"), *writer.numbers(body.extent("n"), n, "tile_n"),
        ir.Let(("length",), ir.Apply("mul", (blocks, ir.Name("BLOCK_K")), ())), ir.Let(("end",), end),
        *writer.begun(shape), loop, *writer.unswapped(swap=swap), *left,
    ))  # fmt: skip
    batches = ["BATCH"] if has_batch(body) else []
    splits = 'options["SPLITS"]'
    shape_of = ", ".join([splits, *batches, "M", "N"])
    product = ir.Kernel(
        name, schedule, (*writer.arguments(inside), *_passed(writer)),
        _constexprs(spec, body, "BLOCK_M", "BLOCK_N", "BLOCK_K", "GROUP_M", "SPLITS"), inside,
        (grid_of(body, _GRID_TILES), splits),
        tuple(ir.Scratch(left_by(writer, dot), f"({shape_of})") for dot in body.dots), _COUNTS,
    )  # fmt: skip
    return product, joined(spec, body, schedule, name.replace("_kernel", "_join_kernel"))


def _passed(writer: Writer) -> tuple[ir.Argument, ...]:
    names = [left_by(writer, dot) for dot in writer.body.dots]
    return tuple(ir.Argument(f"{name}_ptr", "pointer", name) for name in names)


def joined(spec: OperatorSpec, body: ProductBody, schedule: Schedule, name: str) -> ir.Kernel:
    """What follows the product, from the sum of its parts."""
    writer = Writer(spec, body, tiled_by_blocks(body))
    m, n = writer.tiled.result
    added: list[ir.Let] = []
    for dot, carry in zip(body.dots, writer.carries(), strict=True):
        part = ir.Cast(ir.Load(_parts(writer, dot), writer.mask((m, n))), "float32")
        added.append(ir.Let(("part_sum",), part))
        added.append(ir.Let((carry.text,), ir.Apply("add", (carry, ir.Name("part_sum", (m, n))), (m, n))))
    loop = ir.For("part", ir.Number(0), ir.Name("SPLITS"), ir.Number(1), tuple(added))
    writer.all_finished()
    summed: tuple[ir.Stmt, ...] = (*writer.begun((m, n)), loop)
    tile = ('options["BLOCK_M"]', 'options["BLOCK_N"]') if reduces(body) else _JOIN
    return _of_sums(writer, schedule, name, summed, tile, (("SPLITS", 'options["SPLITS"]'),))


def after(spec: OperatorSpec, body: ProductBody, schedule: Schedule, name: str) -> ir.Kernel:
    """What follows what torch's function computed, of each product; where it reduces rows, of some whole rows, or of
    parts of rows, which the next kernel joins."""
    writer = Writer(spec, body, tiled_by_blocks(body))
    m, n = writer.tiled.result
    lets = []
    for dot in body.dots:
        value = dot if len(body.dots) > 1 else body.called
        computed = ir.Name(body.names.of.get(value, writer.carry(dot).text), (m, n))
        loaded = ir.Load(_parts(writer, dot, several=False), writer.mask((m, n)))
        lets.append(ir.Let((computed.text,), ir.Cast(loaded, "float32")))
        writer.finished(computed, value)
    tile = (str(max(1, _SUMS // body.width)), str(body.width)) if reduces(body) else _JOIN
    if not body.in_parts:
        return _of_sums(writer, schedule, name, tuple(lets), tile)
    made = _of_sums(writer, schedule, name, tuple(lets), _PARTS)
    columns = ("tiles_n", f"cdiv(N, {_PARTS[1]})")
    arguments = (*made.arguments, *row_parts.passed(writer))
    return replace(made, arguments=arguments, scratch=row_parts.scratch(writer), counts=(columns,))


def _of_sums(
    writer: Writer, schedule: Schedule, name: str, summed: tuple[ir.Stmt, ...], tile_of: tuple[str, str],
    more: tuple[tuple[str, str], ...] = (),
) -> ir.Kernel:  # fmt: skip
    """A kernel over tiles of a product that others have left in memory, of so many rows and columns."""
    body = writer.body
    m, n = writer.tiled.result
    own, tile = own_tile(body, _TILES, ir.Program(0))
    inside = trimmed((
        *_tiles_counted(body), *own, _grouped(tile), *writer.numbers(body.extent("m"), m, "tile_m"),
        *writer.numbers(body.extent("n"), n, "tile_n"), *summed,
        *(row_parts.left(writer) if body.in_parts else writer.stores()),
    ))  # fmt: skip
    rows, columns = tile_of
    constexprs = (("BLOCK_M", rows), ("BLOCK_N", columns), ("GROUP_M", "1"), *more)
    tiles = f"cdiv(M, {rows}) * cdiv(N, {columns})"
    arguments = (*_passed(writer), *writer.arguments(inside))
    return ir.Kernel(name, schedule, arguments, constexprs, inside, (grid_of(body, tiles),))


_JOIN = ("4", "256")
"""The tile of the kernel that adds parts: a few rows, for there are few."""
_PARTS = ("4", "1024")
"""The tile of the kernel that reduces parts of rows: a warp for each of 4 rows, with 32 elements a thread."""
_SUMS = 4096
"""Elements of a tile of whole rows: 32 for each of 128 threads."""
