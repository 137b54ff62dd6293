"""Schedules of products: what may be tuned, what a device can hold, and where to begin.

Sizes of tiles follow what was measured on an H200 (sm_90, 132 SMs) in float16; other devices begin there too.
"""

from __future__ import annotations

from dataclasses import replace

from kernelgen.families.dtypes import ITEMSIZE
from kernelgen.families.family import LIBRARY as LIBRARY
from kernelgen.families.family import Kernels, Refusal, Table, Variant
from kernelgen.families.forms import PRINTED
from kernelgen.families.kernel import Body
from kernelgen.families.matmul.kernels import has_reductions, reduces
from kernelgen.families.matmul.lowering import FEW, ProductBody, converted_load
from kernelgen.families.matmul.row_parts import may_be_parts
from kernelgen.families.matmul.writer import extents_of, group_size, multiplies_float8, shared_elements
from kernelgen.families.values import Unlowerable, Use
from kernelgen.plan import Parameter, Schedule, TableRow, table_row

TILES, BOXES, SPLIT, VECTOR, WRITTEN = "tiles", "boxes", "split", "vector", "written"
MEANINGS = {
    TILES: "one tile of the result per program; tiles of the operands are loaded through pointers",
    BOXES: "the same, with tiles copied by TMA (sm_90 and newer); otherwise as `tiles`",
    SPLIT: "split-K: several programs per tile, each with a part of K; a second kernel adds the parts in a fixed order",
    VECTOR: "some columns of one row per program, without matrix units",
    WRITTEN: "computed operands are first written to global memory, as they are multiplied; then as `boxes`",
    LIBRARY: "torch's product, where it is faster; the epilogue is then a separate kernel",
}
SHARED_BYTES = 232448
"""What a program may have of shared memory on sm_90 (CUDA C++ Programming Guide, table of technical specifications);
a device with less refuses the launch, which a search then leaves out."""
FLOAT8_DEPTH = 32
"""The fewest float8 numbers that matrix units multiply and sum at once (PTX ISA, wgmma: K is 32 for e4m3 and e5m2)."""
LONGEST_ROW = 512
"""The columns that a tile may hold whole: 64 rows of 512 sums are 256 registers for each of 128 threads."""

_PERSISTENT = Schedule.make(
    BOXES,
    BLOCK_M=128,
    BLOCK_N=256,
    BLOCK_K=64,
    GROUP_M=8,
    num_warps=8,
    num_stages=3,
    persistent=True,
    swap=False,
)
_BOXES = _PERSISTENT.replace(persistent=False, num_stages=4)
_EVERY_SM = 132 * 64
"""Rows up to which tiles of 64 keep every multiprocessor of an H200 busy, and tiles of 128 do not."""
_FEW_ROWS = 512
"""Rows up to which tiles compute factors themselves: to write an element takes an H200 what 150 to 300 of its products
do, and to compute it in every tile about as much time as the products."""
_FEW_IN_THREE = 256
"""Rows up to which tiles take float32 apart themselves: 12 bytes are moved to write an element in two parts, the time
of 200 of its products, and tiles are a third as fast (H200: 128 products of 512 rows 7589 us by tiles, 3727 written
first, torch 5339). Where between 256 and 512 rows the two meet was not measured."""
_TILES = Schedule.make(TILES, BLOCK_M=128, BLOCK_N=128, BLOCK_K=64, GROUP_M=8, num_warps=8, num_stages=3, swap=False)
_SPLIT = Schedule.make(
    SPLIT, BLOCK_M=16, BLOCK_N=64, BLOCK_K=128, GROUP_M=1, SPLITS=2, num_warps=4, num_stages=4, swap=True
)
_VECTOR = Schedule.make(VECTOR, BLOCK_N=2, BLOCK_K=2048, num_warps=2)
_LIBRARY = Schedule.make(LIBRARY)
_WRITTEN = replace(_BOXES, variant=WRITTEN)
_THREE = _WRITTEN.replace(BLOCK_N=128, BLOCK_K=32, num_stages=3)
"""Of float32 in two parts: the sums of a block, of all and of the rests are 192 registers for each of 256 threads."""
_FLAT_THREE = _THREE.replace(BLOCK_M=64, BLOCK_N=64, num_warps=4, num_stages=2)
"""Of a block or two of what is summed: several programs an SM, of which some store while others load: 2331 us
of 32768 by 32 by 32768 (H200), in tiles of 128 2561, torch 2552."""
_DEEP_THREE = _SPLIT.replace(BLOCK_M=64, BLOCK_K=64, SPLITS=16, num_stages=3, swap=False)
"""Of few elements with long sums, which leave most of an H200 idle otherwise."""
_DEEPEST_THREE = _DEEP_THREE.replace(BLOCK_M=128, num_warps=8)
_DEEPEST = 2**17
"""Where a part of a sum is long too: 256 by 524288 by 256 took 1404 us, 1780 in tiles of 64 rows, torch 1305 (H200)."""
_DEFAULTS = {TILES: _TILES, BOXES: _BOXES, SPLIT: _SPLIT, VECTOR: _VECTOR, WRITTEN: _WRITTEN, LIBRARY: _LIBRARY}


def variants(body: ProductBody) -> tuple[str, ...]:
    if not body.extent("m").runs:
        return (VECTOR,)
    if body.in_parts or body.ends is not None:
        called = (LIBRARY,) if body.library and body.in_parts else ()
        return (BOXES, TILES, *called) if body.boxed else (TILES, *called)
    found = (TILES, SPLIT) if reduces(body) else (TILES, SPLIT, VECTOR)
    made = body.written.body if body.written else body
    found = (*found, WRITTEN) if body.written and made.boxed else found
    found = (*found, LIBRARY) if made.library else found
    return (BOXES, *found) if body.boxed else found


def space(variant: str) -> tuple[Parameter, ...]:
    if variant == LIBRARY:
        return ()
    blocks = {
        "BLOCK_M": (16, 32, 64, 128, 256),
        "BLOCK_N": (16, 32, 64, 128, 256, 512),
        "BLOCK_K": (16, 32, 64, 128, 256),
    }
    whats = {"BLOCK_M": "rows of a tile", "BLOCK_N": "columns of a tile", "BLOCK_K": "of what is summed, at once"}
    if variant == VECTOR:
        blocks = {"BLOCK_N": (1, 2, 4, 8, 16, 32, 64, 128, 256), "BLOCK_K": (32, 64, 128, 256, 512, 1024)}
    found = [Parameter(name, blocks[name], "block_size", "constexpr", whats[name]) for name in blocks]
    found.append(Parameter("num_warps", (1, 2, 4, 8), "warp_stage", "launch", "warps per program"))
    if variant == VECTOR:
        return tuple(found)
    found.append(Parameter("num_stages", (1, 2, 3, 4, 5), "warp_stage", "launch", "tiles of the factors in flight"))
    group = "rows of tiles whose programs run one after the other, so that they share columns in L2"
    found.append(Parameter("GROUP_M", (1, 4, 8, 16), "grid_config", "constexpr", group))
    if variant == SPLIT:
        splits = Parameter("SPLITS", (1, 2, 4, 8, 16, 32, 64), "grid_config", "constexpr", "programs that sum one tile")
        found.append(splits)
    if variant in (BOXES, WRITTEN):
        persistent = "persistent: one program per SM, which loops over tiles"
        found.append(Parameter("persistent", (False, True), "grid_config", "structure", persistent))
    swap = "the transposed product: few rows are the narrow side of the matrix units, weights are read from registers"
    found.append(Parameter("swap", (False, True), "data_reuse", "structure", swap))
    return tuple(found)


def legal(schedule: Schedule, columns: int, itemsize: int) -> str | None:
    if schedule.variant == LIBRARY:
        return None
    if schedule.variant == VECTOR:
        held = schedule.int("BLOCK_N") * schedule.int("BLOCK_K")
        return "more than 128 sums a thread" if held > 128 * 32 * schedule.int("num_warps") else None
    rows, cols = schedule.int("BLOCK_M"), schedule.int("BLOCK_N")
    if rows * cols > 256 * 32 * schedule.int("num_warps"):
        return "more than 256 sums a thread"
    stored = rows * cols * itemsize if schedule.get("persistent") else 0  # beside the next tile's factors
    return _too_much(schedule, itemsize, stored)


def first_table(body: ProductBody) -> Table:
    """Few rows are spread over what is summed; float32 takes half of the tile, for its elements are twice as large."""
    table = tuple(replace(row, schedule=_fitted(body, row.schedule)) for row in _first_table(body))
    table = tuple(replace(row, schedule=_with_room(body, row)) for row in table)
    return tuple(row for row in table if body.factor.dtype != "float32" or row.limit("itemsize") is None)


def _with_room(body: ProductBody, row: TableRow) -> Schedule:
    """A line's schedule with as many blocks in flight as there is room for: several products have tiles each."""
    refusal = room(body, row.limit("itemsize") or (4 if body.may_be_wide else _bytes(body)))
    flight = int(row.schedule.get("num_stages") or 1)
    fewer = (row.schedule.replace(num_stages=stages) for stages in range(flight - 1, 0, -1))
    return next((s for s in (row.schedule, *fewer) if refusal(s) is None), row.schedule)


def _fitted(body: ProductBody, schedule: Schedule) -> Schedule:
    """A schedule with tiles that several products share, and blocks within a group of what is summed."""
    if schedule.variant == WRITTEN:
        return schedule
    group = group_size(body)
    if schedule.variant not in (LIBRARY, VECTOR):
        depth = schedule.int("BLOCK_K") * (2 if _bytes(body) == 1 else 1)
        schedule = schedule.replace(BLOCK_K=min(group or depth, depth))
    return _divided(body, schedule)


def _sums(body: ProductBody) -> int:
    """The tiles of sums that are in registers at once: one a product, and that of a group which is scaled, or of float8
    before it is added in float32; of float32 in two parts that of a block and that of the rests."""
    return (
        len(body.dots)
        + 2 * bool(body.lows)
        + (multiplies_float8(body) or any(body.scales_of(dot) for dot in body.dots))
    )


def _bytes(body: ProductBody) -> int:
    """Of an element that the matrix units multiply: 2 where that may be 2 or 4."""
    return 1 if "float8" in body.factor.dtype else 2


def _divided(body: ProductBody, schedule: Schedule) -> Schedule:
    """A schedule whose tile of one product is divided among several: each has a part of the columns, or of the rows
    where these are what the products have apart or the columns are to be whole."""
    if _sums(body) == 1 or schedule.variant not in (TILES, BOXES):
        return schedule
    name = "BLOCK_M" if len(body.firsts) > 1 or reduces(body) else "BLOCK_N"
    size = max(16, schedule.int(name) >> (_sums(body) - 1).bit_length())
    return schedule.replace(**{name: size})


def _first_table(body: ProductBody) -> Table:
    own = variants(body)
    if own == (VECTOR,):
        return (*_few_columns(body), table_row(_VECTOR))
    if reduces(body):
        width = body.width
        rows = 64 if width >= 256 else 128
        whole = _TILES.replace(BLOCK_M=rows, BLOCK_N=width, num_warps=8 if width >= 128 else 4)
        wide = _wide(body, whole.replace(BLOCK_K=32, num_stages=2))
        if BOXES not in own:
            return (table_row(whole, itemsize=2), table_row(wide))
        few = _LIBRARY if body.library else _few_whole(body)
        many = _fitting(body, _PERSISTENT.replace(BLOCK_M=64 if width > 256 else 128, BLOCK_N=width))
        first = () if few == many else (table_row(few, M=_EVERY_SM, itemsize=2),)
        return (*first, table_row(many, itemsize=2), table_row(wide))
    if body.ends is not None:
        return _groups_table(body)
    if body.in_parts:
        return _parts_table(body)
    table = _boxes_table(body) if BOXES in own else _pointers_table(body)
    if body.in_three and WRITTEN in own:
        return _three_table(body, table)
    is_written = body.written and {WRITTEN, LIBRARY} & set(own) and _computes_weights(body)
    return _written_beyond(body, table) if is_written else table


def _three_table(body: ProductBody, table: Table) -> Table:
    """Of many rows both factors are written in two parts first: an H200 does that in 0.14 ms of 4096 squared, and is
    1.87 times as fast as torch, 0.72 times where every tile takes its factors apart (0.70 of 512 rows)."""
    *narrow, wide = table
    tiles, few = wide.schedule, _FEW_IN_THREE
    return (
        *narrow, table_row(tiles, M=few, K=4096), table_row(_DEEP_THREE, M=few, N=1024, K=_DEEPEST),
        table_row(_DEEPEST_THREE, M=few, N=1024), table_row(tiles, M=few),
        table_row(_FLAT_THREE, K=64), table_row(_THREE),
    )  # fmt: skip


def _wide(body: ProductBody, own: Schedule) -> Schedule:
    """Rows of float32 that are reduced: torch's product first. Unless torch is set to TF32 no matrix units compute it,
    and our tiles reach 0.43 of torch's speed (H200, 1024 by 8192 squared and a sum of rows: 6251 us, eager 2729)."""
    return _LIBRARY if body.library else own


def _few_whole(body: ProductBody) -> Schedule:
    """Whole rows of which there are few: 0.87 of the speed of torch's product and a kernel that reduces."""
    return _fitting(body, _BOXES.replace(BLOCK_M=64, BLOCK_N=body.width, num_warps=4 if body.width <= 256 else 8))


def _computes_weights(body: ProductBody) -> bool:
    """Whether the second factor, which has no rows, is computed."""
    return body.lowered.values[body.factors_of(body.dot)[1]].op != "load"


def _written_beyond(body: ProductBody, table: Table) -> Table:
    """Of many rows factors are written once: an H200 reached 0.49 and 0.65 of torch.compile, which does that, where
    every tile computed them. By our own product where something follows it, else by torch's. Not measured so."""
    assert body.written is not None
    made, rows = body.written.body, []
    for row in table if body.may_be_wide else table[:-1]:
        limits = {name: most for name, most in row.upto if name != "M" and (body.may_be_wide or name != "itemsize")}
        rows.append(table_row(row.schedule, **limits, M=min(row.limit("M") or _FEW_ROWS, _FEW_ROWS)))
    best = _LIBRARY if made.is_library or not made.boxed else _many_rows(made)
    if best != _LIBRARY:
        best = replace(best, variant=WRITTEN)
    if best == _LIBRARY or not body.may_be_wide:
        return (*rows, table_row(best))
    return (*rows, table_row(best, itemsize=2), table_row(_LIBRARY if made.library else table[-1].schedule))


def is_converted(body: ProductBody) -> bool:
    """Whether the second factor is whole numbers, which the matrix units are to take from registers: swapped, it is
    their first operand, and the other is the only one in shared memory."""
    value = body.lowered.values[body.factors_of(body.dot)[1]]
    source = value.args[0] if value.op == "round" else None
    return isinstance(source, Use) and converted_load(body, source.value) is not None


def stays(body: ProductBody) -> bool:
    """Whether programs may stay for one tile after the other: not where masks make some sums longer than others."""
    return body.triangles is None and body.ends is None


def _fitting(body: ProductBody, schedule: Schedule) -> Schedule:
    """Programs that stay where there is room for that, and as many tiles in flight as there is room for."""
    schedule = schedule if stays(body) else schedule.replace(persistent=False)
    leaving = [schedule.replace(persistent=False, num_stages=stages) for stages in (4, 3, 2)]
    parts, refusal = ((s, _divided(body, s)) for s in (schedule, *leaving)), room(body, 2)
    return next((s for s, own in parts if legal(own, 0, 2) is None and refusal(own) is None), leaving[-1])


def room(body: Body, itemsize: int) -> Refusal:
    """Why a program has no room for a schedule. Tiles that the epilogue loads or stores pass through shared memory:
    where programs stay, beside the factors of the next tile, else in their place."""
    assert isinstance(body, ProductBody)
    own = _room(body, itemsize)
    written = _room(body.written.body, itemsize) if body.written else own

    def refusal(schedule: Schedule) -> str | None:
        if schedule.variant == LIBRARY:
            return None
        return (written if schedule.variant == WRITTEN else own)(schedule)

    return refusal


def _room(body: ProductBody, itemsize: int) -> Refusal:
    """The same of the kernels that multiply what a body says."""
    group, sums, whole = group_size(body), _sums(body), body.width if reduces(body) else 0
    is_cut = body.in_three and itemsize == ITEMSIZE["float32"]
    depth = FLOAT8_DEPTH if multiplies_float8(body) else 0
    passing = _stored_bytes(body, itemsize) + _loaded_tiles(body) * itemsize
    parts = 2 if body.lows else 1
    firsts, seconds = parts * len(body.firsts), parts * len(body.seconds)

    def refusal(schedule: Schedule) -> str | None:
        if schedule.variant == VECTOR:
            divides = not group or schedule.int("BLOCK_K") % group == 0
            return None if divides else f"blocks that are no multiples of the {group} elements of a group"
        if group and group % schedule.int("BLOCK_K"):
            return f"blocks that do not divide the {group} elements of a group"
        if is_cut and schedule.variant == BOXES:
            return "sums of float32 that matrix units would cut off"
        if schedule.int("BLOCK_K") < depth:
            return f"fewer than {depth} numbers of float8 at once"
        rows, cols = schedule.int("BLOCK_M"), schedule.int("BLOCK_N")
        if cols < whole:
            return f"tiles of {cols} columns, where rows of {whole} are reduced"
        if rows * cols * sums > 256 * 32 * schedule.int("num_warps"):
            return "more than 256 sums a thread"
        beside = passing * rows * cols if schedule.get("persistent") else 0
        return _too_much(schedule, itemsize, beside, firsts, seconds)

    return refusal


def _stored_bytes(body: ProductBody, itemsize: int) -> int:
    """Bytes of an element of the widest tile that is stored; one after the other passes through."""
    tiles = (o.dtype for o, access in body.layout.stores if {"m", "n"} <= set(extents_of(body, access)))
    return max((ITEMSIZE.get(dtype, itemsize) for dtype in tiles), default=itemsize)


def _loaded_tiles(body: ProductBody) -> int:
    """The tensors that the epilogue loads over rows and columns."""
    return sum({"m", "n"} <= set(extents_of(body, a)) for a in body.layout.accesses)


def _too_much(schedule: Schedule, itemsize: int, beside: int, firsts: int = 1, seconds: int = 1) -> str | None:
    """Why the tiles of so many factors in flight and so many bytes beside them are more than a program may have."""
    rows, cols, depth = (schedule.int(name) for name in ("BLOCK_M", "BLOCK_N", "BLOCK_K"))
    factors = (firsts * rows + seconds * cols) * depth * itemsize * max(schedule.int("num_stages"), 1)
    return f"tiles of more than {SHARED_BYTES} bytes of shared memory" if factors + beside > SHARED_BYTES else None


def _few_columns(body: ProductBody, **upto: int) -> Table:
    """The line of vectors by so few columns that programs of two columns are fewer than processors: more warps share a
    sum (H200, 8192 elements by 256 columns of int8 6.0 us, with two warps 9.9; 4096 by 256 of float16 3.4 and 3.7; but
    two products of 4096 elements by 28 columns 4.9 and 3.8). Several matrices have programs enough."""
    if len(body.dots) > 1:
        return ()
    return (table_row(_VECTOR.replace(num_warps=8), **{**upto, "N": 64 if body.extent("batch").runs else 512}),)


def _boxes_table(body: ProductBody) -> Table:
    """From H200 figures in float16: linear layers of 1 to 512 rows by 4096 and 8192 squared, squares of 512 to 8192; of
    thousands of rows what docs/benchmarks/contractions.md has."""
    small = _BOXES.replace(BLOCK_M=64, BLOCK_N=64, num_warps=4)
    if is_converted(body):
        small = small.replace(swap=True)
        return (
            *_few_columns(body, M=2), table_row(_VECTOR, M=2),
            table_row(_SPLIT.replace(BLOCK_N=32, BLOCK_K=256, swap=False), M=16, itemsize=2),
            table_row(_SPLIT.replace(BLOCK_M=64), M=64, itemsize=2),
            table_row(small, M=128, itemsize=2), table_row(small.replace(BLOCK_N=128), M=512, itemsize=2),
            table_row(_BOXES.replace(BLOCK_N=128), itemsize=2),
            table_row(_TILES.replace(BLOCK_K=32)),
        )  # fmt: skip
    if body.is_library and not _loaded_tiles(body):
        # of up to 16 rows parts took less time than torch's product, by a matrix whose columns lie side by side
        by_columns = any(extents_of(body, a) == ["k", "n"] for a in body.layout.accesses if a.load == body.seconds[0])
        few = table_row(_SPLIT, M=16 if by_columns else 4, itemsize=2)
        return (*_few_columns(body, M=2), table_row(_VECTOR, M=2), few, table_row(_LIBRARY))
    found = [
        *_few_columns(body, M=2),
        table_row(_VECTOR, M=2),
        table_row(_SPLIT, M=16, itemsize=2),
        table_row(_SPLIT.replace(BLOCK_M=64, swap=False), M=64, itemsize=2),
        table_row(small.replace(BLOCK_K=128), M=128, itemsize=2),
        table_row(small.replace(num_stages=5), M=1024, N=1024, itemsize=2),
        table_row(small.replace(BLOCK_N=128), M=512, itemsize=2),
        table_row(_BOXES.replace(num_stages=3), M=2048, N=2048, itemsize=2),
        table_row(_many_rows(body), itemsize=2),
    ]
    return (*found, table_row(_LIBRARY if body.library else _TILES.replace(BLOCK_K=_wide_depth(body))))


def _wide_depth(body: ProductBody) -> int:
    """Of what is summed at once in float32: deeper blocks were 1.07 times as fast where each is taken apart in three
    products, and have no room beside what factors are computed from."""
    computed = any(body.lowered.values[i].op != "load" for dot in body.dots for i in body.factors_of(dot))
    return 64 if body.in_three and not computed else 32


def _many_rows(body: ProductBody) -> Schedule:
    """Programs stay, but where a tile is loaded beside their factors: torch's product and a kernel after it is faster
    than programs that leave. Of products that share a factor pointers were 0.8 of the speed of torch's."""
    if len(body.dots) > 1:
        return _LIBRARY if body.library else _TILES
    return _LIBRARY if body.library and _loaded_tiles(body) else _fitting(body, _PERSISTENT)


def _parts_table(body: ProductBody) -> Table:
    """Few rows are the narrow side of the matrix units. Compiled and not measured."""
    wide = _wide(body, _TILES.replace(BLOCK_K=32))
    if not body.boxed:
        return (table_row(_TILES, itemsize=2), table_row(wide))
    few = _BOXES.replace(BLOCK_M=16, BLOCK_N=64, BLOCK_K=128, num_warps=4, swap=True)
    small = _BOXES.replace(BLOCK_M=64, BLOCK_N=128, num_warps=4)
    many = _fitting(body, _PERSISTENT)
    return (
        table_row(few, M=16, itemsize=2), table_row(small, M=512, itemsize=2), table_row(many, itemsize=2),
        table_row(wide),
    )  # fmt: skip


def _groups_table(body: ProductBody) -> Table:
    """Groups have a part of the rows each. Few rows: compiled and not measured."""
    wide = table_row(_TILES.replace(BLOCK_K=32))
    if not body.boxed:
        return (table_row(_TILES, itemsize=2), wide)
    small = _BOXES.replace(BLOCK_M=64, BLOCK_N=128, num_warps=4)
    few = small.replace(BLOCK_M=16, BLOCK_N=64, BLOCK_K=128, swap=True)
    return (
        table_row(few, M=128, itemsize=2), table_row(small, M=8192, itemsize=2),
        table_row(_BOXES, itemsize=2), wide,
    )  # fmt: skip


def is_unpacked(body: ProductBody) -> bool:
    """Whether several elements of the second factor are made of one that memory holds."""
    return any(
        1 < shared_elements(body, access, name) <= FEW and {"n", "k"} <= set(extents_of(body, access))
        for access in body.layout.accesses
        for name in ("n", "k")
    )


def _pointers_table(body: ProductBody) -> Table:
    """Where descriptors cannot copy the factors. What is unpacked is the operand that matrix units take from registers;
    that was compiled and not measured."""
    if is_unpacked(body):
        return (
            table_row(_SPLIT.replace(SPLITS=4, num_warps=2), M=16, itemsize=2),
            table_row(_SPLIT.replace(BLOCK_M=64), M=64, itemsize=2),
            table_row(_TILES.replace(swap=True), itemsize=2), table_row(_TILES.replace(BLOCK_K=32)),
        )  # fmt: skip
    small = _TILES.replace(BLOCK_M=64, BLOCK_N=64, num_warps=4, num_stages=4)
    found = (
        table_row(_SPLIT, M=16, itemsize=2), table_row(small, M=1024, N=1024, itemsize=2),
        table_row(_TILES, itemsize=2),
    )  # fmt: skip
    return (*found, table_row(_LIBRARY if body.library else _TILES.replace(BLOCK_K=32)))


def starts(body: ProductBody) -> tuple[Schedule, ...]:
    """One for every way to spread the work, the most likely first."""
    own = variants(body)
    if reduces(body):
        more = ([_few_whole(body)] if body.boxed else []) + ([_LIBRARY] if body.library else [])
        return tuple(dict.fromkeys([*(row.schedule for row in first_table(body)), *more]))
    found: dict[str, tuple[Schedule, ...]] = {BOXES: (_fitting(body, _PERSISTENT), _BOXES, _BOXES.replace(BLOCK_N=128))}
    found |= {WRITTEN: tuple(replace(s, variant=WRITTEN) for s in found[BOXES])}
    if body.in_three:
        small = _THREE.replace(BLOCK_M=64, num_warps=4, num_stages=2)
        found |= {WRITTEN: (_THREE, small, _THREE.replace(BLOCK_K=16, num_stages=5))}
    found |= {SPLIT: (_SPLIT, _SPLIT.replace(BLOCK_M=64, swap=False))}
    return tuple(dict.fromkeys(_fitted(body, s) for v in own for s in found.get(v, (_DEFAULTS[v],))))


def _is_held(body: ProductBody) -> bool:
    """Whether a tile may hold rows whole."""
    return all(isinstance(body.lowered.space.axes[a], int) for a in body.extent("n").axes) and (
        body.width <= LONGEST_ROW
    )


def check_rows(body: ProductBody) -> None:
    """Unlowerable where rows are reduced that a tile may not hold."""
    if has_reductions(body) and not _is_held(body):
        raise Unlowerable(f"a reduction of a product's rows of more than {LONGEST_ROW} columns, or any number of them")


def in_parts(body: ProductBody) -> bool:
    """Whether tiles reduce parts of rows, which a second kernel joins: of rows that no tile may hold. Unlowerable where
    these cannot be reduced so."""
    if not may_be_parts(body):
        check_rows(body)
    return has_reductions(body) and not _is_held(body)


def every(kernels: Kernels) -> tuple[Variant, ...]:
    """All variants, by what makes their kernels."""
    return tuple(
        Variant(PRINTED, MEANINGS[name], default, space(name), legal, kernels) for name, default in _DEFAULTS.items()
    )
