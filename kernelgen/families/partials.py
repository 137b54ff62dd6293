"""Tensors reduced as a whole, a block a program; one more program joins what the blocks were reduced to.

Programs start in the order of their numbers, so those that run together read memory that lies together, and a processor
that is done with a block is given the next. The blocks are joined in an order that never changes, without atomics.
"""

from __future__ import annotations

from dataclasses import replace

from kernelgen.families.family import Variant
from kernelgen.families.forms import PARTIALS
from kernelgen.families.kernel import LOADS, Body, output_values
from kernelgen.families.looped import passes, stored_late
from kernelgen.families.moments import carried_moments
from kernelgen.families.padding import neutral
from kernelgen.families.split import dtype_of_memory
from kernelgen.frontend.graph import ARG_REDUCTIONS, REDUCTIONS
from kernelgen.plan import Parameter, Schedule, TableRow, table_row
from kernelgen.spec.model import OperatorSpec
from kernelgen.tile import carries, grid, ir
from kernelgen.tile.carries import Carry
from kernelgen.tile.nest import LONE_N, Nest, Tile

_BLOCKS = ir.Axis("blocks", "parts", "mask", "BLOCK_SIZE", "num_parts")
"""What the blocks left."""
_SMALL_BLOCK = 1024
_SMALL_BYTES = 2**21
"""Of half precision: as many blocks as the last program then takes at once."""


def applies(body: Body) -> bool:
    """Whether everything is reduced in one walk, by reductions that a block can be reduced by alone."""
    if body.layout.rows or any(stored_late(body, o) for o in body.lowered.outputs):
        return False
    _, online, walks = passes(body.lowered)
    found = [v.op for v in body.lowered.values if v.op in REDUCTIONS]
    carried = bool(online or carried_moments(body.lowered))
    return len(walks) == 1 and not carried and not any(op in ARG_REDUCTIONS for op in found)


def default(whole: int = 1, others: int = 0) -> Schedule:
    """16 elements a thread, of all the tensors that are read as a whole (H200: the sum of 134 million float16 numbers
    70.2 us, 256 programs that walk a part each 75.2; the mean of the squares of what two of half that size differ by
    70.9, with 16 elements of each 73.9). Half the block where `others` are read, which tell rows or columns apart
    (hinge loss 37.2 us, 38.6)."""
    block, each = (4096, 16) if others else (8192, 16 if whole == 1 else 8)
    return Schedule.make(PARTIALS.name, BLOCK_SIZE_N=block, num_warps=block // (32 * each), loads="evict_first")


def small(schedule: Schedule) -> tuple[TableRow, ...]:
    """A line before that of a schedule, for tensors whose blocks would be few."""
    if schedule.int("BLOCK_SIZE_N") < 8192:
        return ()
    return (table_row(schedule.replace(BLOCK_SIZE_N=_SMALL_BLOCK, num_warps=4), row_bytes=_SMALL_BYTES),)


def _join_of(schedule: Schedule) -> tuple[str, str]:
    """The block and the warps of the last program: as large as one may be, but for the parts of small tensors."""
    return ("1024", "4") if schedule.int("BLOCK_SIZE_N") <= _SMALL_BLOCK else ("8192", "32")


def legal(schedule: Schedule, columns: int, itemsize: int) -> str | None:
    """Why a schedule makes no sense; None if it does."""
    each = schedule.int("BLOCK_SIZE_N") / (32 * schedule.int("num_warps"))
    return f"{each:g} elements per thread (1 to 128 are allowed)" if not 1 <= each <= 128 else None


def kernels(spec: OperatorSpec, body: Body, schedule: Schedule, name: str) -> tuple[ir.Kernel, ...]:
    """The kernel of the blocks and that which joins what they left."""
    _, _, (walk,) = passes(body.lowered)
    base = name.removesuffix("_kernel").removesuffix(f"_{PARTIALS.name}")
    memory = {i: f"{body.names.of[i]}_parts" for i in walk}
    return (
        _of_a_block(_nest(spec, body, schedule, memory), name, memory),
        _join(_nest(spec, body, schedule, memory, _BLOCKS), f"{base}_join_partials_kernel", memory),
    )


def _nest(spec: OperatorSpec, body: Body, schedule: Schedule, memory: dict[int, str], axis: ir.Axis = LONE_N) -> Nest:
    nest = Nest(spec, body, PARTIALS, schedule, Tile(None, axis))
    nest.builder.more, nest.memory = frozenset(memory), list(memory.values())
    return nest


def _of_a_block(nest: Nest, name: str, memory: dict[int, str]) -> ir.Kernel:
    part, values, names = ir.Name("part"), nest.body.lowered.values, nest.body.names.of
    stores = [ir.Store(ir.Pointer(own, ((part, None),), ()), ir.Name(names[i]), None) for i, own in memory.items()]
    text = (
        ir.Let((part.text,), ir.Program(0), "each program reduces one block of elements"),
        *grid.numbered(LONE_N, grid.block(part, LONE_N)), *nest.column_indices(), *nest.lets(memory), *stores,
    )  # fmt: skip
    scratch = tuple(
        ir.Scratch(own, "num_parts", dtype_of_memory(values[nest.builder.source(i)].dtype)) for i, own in memory.items()
    )
    made = nest.kernel(name, text, ("N",), ("BLOCK_SIZE_N",), left=tuple(memory.values()))
    sizes = (("num_parts", 'cdiv(N, options["BLOCK_SIZE_N"])'),)
    return replace(made, grid=("num_parts",), counts=sizes, scratch=scratch)


def _join(nest: Nest, name: str, memory: dict[int, str]) -> ir.Kernel:
    mask, parts, lowered = nest.mask((_BLOCKS,)), ir.Name(_BLOCKS.index, (_BLOCKS,)), nest.body.lowered
    found = []
    for i, own in memory.items():
        part = ir.Load(ir.Pointer(own, ((parts, None),), (_BLOCKS,)), mask, neutral(lowered, i))
        found.append(Carry(carries.started(nest, i), carries.taken_up(nest, i, part), (carries.finished(nest, i),)))
        nest.builder.known[i] = ir.Name(nest.body.names.of[i])
    carry = carries.together(found)
    walk = grid.walk((_BLOCKS,), carry.inside, (ir.Number(0), ir.Name(_BLOCKS.size)), stages="")
    text = (
        ir.Remark(("one program combines the partial results of all blocks",), apart=False), *carry.before, walk,
        *carry.after, *nest.lets(output_values(nest.body)), *nest.stores(),
    )  # fmt: skip
    block, warps = _join_of(nest.schedule)
    made = nest.kernel(name, text, (_BLOCKS.size,), ((_BLOCKS.block, block),))
    return replace(made, grid=("1",), options=(("num_warps", warps),))


VARIANT = Variant(
    PARTIALS, "one block of BLOCK_SIZE_N elements per program; one more program combines the results", default(),
    (
        Parameter(
            "BLOCK_SIZE_N", (1024, 2048, 4096, 8192, 16384, 32768), "block_size", "constexpr", "elements per program"
        ),
        Parameter("num_warps", (1, 2, 4, 8, 16, 32), "warp_stage", "launch", "warps per program"),
        LOADS,
    ),
    legal, kernels,
)  # fmt: skip
