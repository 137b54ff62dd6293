"""Tensors reduced as a whole, a block a program; one more program joins what the blocks were reduced to.

Programs start in the order of their numbers, so those that run together read memory that lies together, and a processor
that is done with a block is given the next. The blocks are joined in an order that never changes, without atomics.
"""

from __future__ import annotations

from kernelgen.families.family import Variant
from kernelgen.families.forms import PARTIALS, PARTIALS_JOIN
from kernelgen.families.kernel import LOADS, Body, KernelText, Lines, Loop, Passed, Scratch, output_values
from kernelgen.families.looped import passes, stored_late
from kernelgen.families.moments import carried_moments
from kernelgen.families.padding import neutral
from kernelgen.families.reduced_lines import accumulated, accumulator
from kernelgen.families.triton_text import number, triton_dtype
from kernelgen.frontend.graph import ARG_REDUCTIONS, REDUCTIONS
from kernelgen.plan import Parameter, Schedule, TableRow, table_row
from kernelgen.spec.model import OperatorSpec

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


def _join_of(schedule: Schedule) -> tuple[Passed, ...]:
    """How the last program is launched: as large as one may be, but for the parts of small tensors."""
    block, warps = ("1024", "4") if schedule.int("BLOCK_SIZE_N") <= _SMALL_BLOCK else ("8192", "32")
    return Passed("BLOCK_SIZE", block), Passed("num_warps", warps)


def legal(schedule: Schedule, columns: int, itemsize: int) -> str | None:
    """Why a schedule makes no sense; None if it does."""
    each = schedule.int("BLOCK_SIZE_N") / (32 * schedule.int("num_warps"))
    return f"{each:g} elements a thread (from 1 to 128 make sense)" if not 1 <= each <= 128 else None


def kernels(
    spec: OperatorSpec, body: Body, schedule: Schedule, name: str, helpers: dict[str, None]
) -> tuple[KernelText, ...]:
    """The kernel of the blocks and that which joins what they left."""
    _, _, (walk,) = passes(body.lowered)
    base = name.removesuffix("_kernel").removesuffix(f"_{PARTIALS.name}")
    return (
        _of_a_block(spec, body, schedule, name, helpers, walk),
        _join(spec, body, schedule, f"{base}_join_partials_kernel", helpers, walk),
    )


def _lines(
    spec: OperatorSpec, body: Body, schedule: Schedule, helpers: dict[str, None], walk: tuple[int, ...]
) -> Lines:
    lines = Lines(spec, body, PARTIALS, schedule, helpers)
    lines.writer.named = body.names.assigned | set(walk)
    return lines


def _of_a_block(
    spec: OperatorSpec, body: Body, schedule: Schedule, name: str, helpers: dict[str, None], walk: tuple[int, ...]
) -> KernelText:
    lines, names = _lines(spec, body, schedule, helpers, walk), body.names.of
    text = lines.at_columns(lines.writer.lines(walk, set()))
    text += [f"tl.store({names[i]}_parts_ptr + part, {names[i]})" for i in walk]
    bare = KernelText(name, PARTIALS, schedule, (), ("BLOCK_SIZE_N",), (), tuple(text))
    known = [a for a in lines.arguments("N") if bare.uses(a) or a == "N"]
    pointers = [f"{names[i]}_parts_ptr" for i in walk]
    read = [a for a in known if a.endswith("_ptr")]
    return KernelText(
        name, PARTIALS, schedule, (*read, *pointers, *(a for a in known if a not in read)), ("BLOCK_SIZE_N",), (),
        tuple(text), wide_strides=tuple(s for s in lines.wide_strides() if s in known), grid="(num_parts,)",
        sizes=(("num_parts", 'cdiv(N, options["BLOCK_SIZE_N"])'),),
        scratch=tuple(Scratch(f"{names[i]}_parts", _torch_dtype(lines, i), "num_parts") for i in walk),
    )  # fmt: skip


def _torch_dtype(lines: Lines, i: int) -> str:
    """What a reduction of a block is kept in."""
    kind = _kind(lines, i).removeprefix("tl.")
    return {"int1": "bool"}.get(kind, kind)


def _kind(lines: Lines, i: int) -> str:
    return triton_dtype(lines.body.lowered.values[lines.writer.source(i)].dtype)


def _join(
    spec: OperatorSpec, body: Body, schedule: Schedule, name: str, helpers: dict[str, None], walk: tuple[int, ...]
) -> KernelText:
    lines, names = _lines(spec, body, schedule, helpers, walk), body.names.of
    before, inside, after = [], [], []
    for i in walk:
        outside = number(neutral(body.lowered, i)).text
        before += [line.replace("[BLOCK_SIZE_N]", "[BLOCK_SIZE]") for line in accumulator(body, lines, i)]
        part = f"tl.load({names[i]}_parts_ptr + parts, mask=mask, other={outside})"
        inside += accumulated(body, lines, i, part)
        after.append(f"{names[i]} = {lines.writer.reduce_text(i, f'{names[i]}_acc').text}")
    after += lines.writer.lines(output_values(body), set(walk)) + lines.stores()
    loop = Loop((), tuple(before), tuple(inside), tuple(after))
    bare = KernelText(name, PARTIALS_JOIN, schedule, (), ("BLOCK_SIZE",), (), (), (loop,))
    known = [a for a in lines.arguments("N") if bare.uses(a)]
    outputs = [a for a in known if a.endswith("_ptr")]
    rest = [a for a in known if a not in outputs]
    return KernelText(
        name, PARTIALS_JOIN, schedule, (*(f"{names[i]}_parts_ptr" for i in walk), *outputs, "num_parts", *rest),
        ("BLOCK_SIZE",), (), (), (loop,), grid="(1,)", passed=_join_of(schedule),
    )  # fmt: skip


VARIANT = Variant(
    PARTIALS, "a block of BLOCK_SIZE_N elements a program; one more joins what the blocks were reduced to", default(),
    (
        Parameter(
            "BLOCK_SIZE_N", (1024, 2048, 4096, 8192, 16384, 32768), "block_size", "constexpr", "elements a program"
        ),
        Parameter("num_warps", (1, 2, 4, 8, 16, 32), "warp_stage", "launch", "warps a program"),
        LOADS,
    ),
    legal, kernels,
)  # fmt: skip
