"""Rows too long for one program's registers, each held by several programs that wait for one another.

A program reduces its part of a row, leaves what it found, and waits until all programs of the row have done so; then it
joins what they left and writes its part, which it has kept. The row is read once where all programs of a row run at
once, so a device that is too small for a row has each row walked by one program, and so has Triton's interpreter, whose
programs run one after the other. Programs start in the order of their numbers, as the scans of CUB rely on as well
(Merrill and Garland, Single-pass Parallel Prefix Scan with Decoupled Look-back, NVIDIA NVR-2016-002): of the rows that
were begun only the last can lack programs, and the others do not wait for these.

No launch hangs for all that: a program that has waited in vain reduces every part of the row itself, as those programs
would, and then waits for nothing but its own writes.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import reduce

from kernelgen.families.family import Table
from kernelgen.families.forms import COOPERATIVE, LOOPED
from kernelgen.families.kernel import LOADS, STORES, Body
from kernelgen.families.looped import looped, passes, stored_late, walked_values
from kernelgen.families.moments import Moments, carried_moments
from kernelgen.families.naming import FULL, ROW, SCALAR
from kernelgen.families.online import Online
from kernelgen.families.padding import neutral
from kernelgen.families.specialize import SPECIALIZE
from kernelgen.families.values import Use
from kernelgen.frontend.graph import ARG_REDUCTIONS, REDUCTIONS
from kernelgen.plan import Parameter, Schedule, table_row
from kernelgen.spec.model import OperatorSpec
from kernelgen.tile import carries, grid, ir
from kernelgen.tile.carries import PARTS
from kernelgen.tile.nest import Nest
from kernelgen.tile.walk import renamed, used_names

_BLOCK, _FIRST, _IS_PART = ir.Name("BLOCK_SIZE_N"), ir.Name("first"), ir.Name(PARTS.mask, (PARTS,))
MOST_REGISTERS = 128 * 65536 // 2
"""Of all programs that share a row: half of what 128 SMs have (facts.py), each program's rounded to a power of two."""
SPLITS = "max(next_power_of_2(num_parts), 32)"
"""Words that a program reads, one a lane at least: lanes that read the same one need not see it at the same time."""
_REGISTERS = (64, 80, 96, 128)
"""Of a thread. The launch asks for so many at most, which is how many programs run at once for sure."""
AT_ONCE = 1024
"""Elements that 128 threads load at once, 16 bytes of half precision each."""
LONGEST_ALONE = 2**15
"""Rows of so many elements are held by one program."""
_ALONE = Schedule.make(
    LOOPED.name, BLOCK_SIZE_N=16384, num_warps=8, NUM_STAGES=1, backwards=True, keep_row=True, specialize=False,
    loads="default", stores="default",
)  # fmt: skip
"""How a program walks a row that it has to itself."""
PATIENCE = "2**14"
"""How often a program looks for the words of the others before it reduces their parts itself. A look is a read of the
second-level cache, 0.6 us or so, all of them 10 ms; a row takes some 10 us."""
_BLOCKS = (2048, 4096, 8192, 16384, 32768)


def applies(body: Body) -> bool:
    """Whether elements of rows are needed again after the rows have been reduced."""
    values, levels = body.lowered.values, body.names.levels
    found = [v for v in values if v.op in REDUCTIONS]
    sources = [a.value for v in found for a in v.args if isinstance(a, Use)]
    return (
        bool(body.layout.rows and found)
        and all(levels[s] == FULL for s in sources)
        and not any(v.op in ARG_REDUCTIONS or v.dtype != "float" for v in found)
        and any(stored_late(body, o) for o in body.lowered.outputs)
    )


def default() -> Schedule:
    """64 elements a thread, and as few registers beside them as do (H200, softmax of 131072 in float16: 76.0 us, in
    parts of 16384 79.8, of 4096 79.2; a prototype 74.8, and 82.8 with as many registers as it takes)."""
    return Schedule.make(
        COOPERATIVE.name, BLOCK_SIZE_N=8192, maxnreg=80, num_warps=4, specialize=True, loads="default",
        stores="streaming",
    )  # fmt: skip


def fitted(columns: int) -> Schedule | None:
    """The first schedule of rows of so many elements, if these are worth it: smaller parts where there are not too
    many (H200, float32, with as many registers each: rows of 262144 normalized 467 us, 472 in parts of 8192; rows of
    65535 542 and 551)."""
    schedule = _small() if columns <= 128 * 4096 else default()
    return schedule if columns > LONGEST_ALONE and _is_held(schedule, columns) else None


def starts(columns: int) -> tuple[Schedule, ...]:
    """Where a search over such rows sets out."""
    return tuple(s for s in (default(), _small()) if columns >= 2 * s.int("BLOCK_SIZE_N") and _is_held(s, columns))


def _small() -> Schedule:
    return default().replace(BLOCK_SIZE_N=4096, num_warps=2, maxnreg=96)


def most_row_bytes(schedule: Schedule, longest: int) -> int:
    """The bytes of the longest row whose programs run at once, where rows of up to `longest` elements are timed: of
    float32 if that is more than half as long, else of half precision, of which as many bytes are twice the programs."""
    held = schedule.int("BLOCK_SIZE_N") * (MOST_REGISTERS // _registers(schedule))
    return held * (4 if held < 2 * longest <= 2 * held else 2)


def of_planes(table: Table, longest: int, planes: Sequence[int]) -> Table:
    """A table of rows that consist of planes, each with values of its own. Where the elements that a program loads at
    once are of several planes, each four of them look these up at places of their own, for which a thread that holds
    half as many elements has the registers (group_norm of 100 by 100 in float32, compiled for sm_90: 616 bytes of
    spills, with half as many none; of 96 by 96, 9 * 1024, 72)."""
    if all(plane % AT_ONCE == 0 for plane in planes):
        return table
    half = default().replace(BLOCK_SIZE_N=4096, maxnreg=128)
    held = table_row(half, row_bytes=most_row_bytes(half, longest))
    return tuple(held if row.schedule.variant == COOPERATIVE.name else row for row in table)


def _is_held(schedule: Schedule, columns: int) -> bool:
    """Whether all programs of a row run at once, with as many of another."""
    return -(-columns // schedule.int("BLOCK_SIZE_N")) * _registers(schedule) <= MOST_REGISTERS


def _registers(schedule: Schedule) -> int:
    """Of a program, rounded to a power of two."""
    return 1 << (32 * schedule.int("num_warps") * schedule.int("maxnreg") - 1).bit_length()


SPACE = (
    Parameter("BLOCK_SIZE_N", _BLOCKS, "block_size", "constexpr", "elements of a row that a program holds"),
    Parameter("maxnreg", _REGISTERS, "warp_stage", "launch", "registers a thread, at most"),
    Parameter("num_warps", (1, 2, 4, 8, 16), "warp_stage", "launch", "warps per program"),
    LOADS, STORES, SPECIALIZE,
)  # fmt: skip


def legal(schedule: Schedule, columns: int, itemsize: int) -> str | None:
    """Why a schedule makes no sense for rows of `columns` elements; None if it does. Rows of more programs than run at
    once are served too: one program walks each."""
    block = schedule.int("BLOCK_SIZE_N")
    if block >= 2 * max(columns, 2048):
        return f"a block of {block} for rows of {columns}"
    each = block / (32 * schedule.int("num_warps"))
    return f"{each:g} elements per thread (4 to 128 are allowed)" if not 4 <= each <= 128 else None


def kernels(spec: OperatorSpec, body: Body, schedule: Schedule, name: str) -> tuple[ir.Kernel, ...]:
    """The kernel, and the one that is launched where its programs would not run at once."""
    base = name.removesuffix("_kernel").removesuffix(f"_{COOPERATIVE.name}")
    alone = looped(spec, body, _ALONE.replace(stores=schedule["stores"]), f"{base}_alone_kernel")
    sizes = (("BLOCK_SIZE_N", str(_ALONE["BLOCK_SIZE_N"])),)
    alone = replace(alone, constexprs=sizes, options=(("num_warps", str(_ALONE["num_warps"])),))
    return _together(spec, body, schedule, name), alone


def _together(spec: OperatorSpec, body: Body, schedule: Schedule, name: str) -> ir.Kernel:
    nest = Nest(spec, body, COOPERATIVE, schedule)
    _, online, walks = passes(body.lowered)
    together = _Together(nest, online, tuple(carried_moments(body.lowered)))
    for walk in walks:
        together.reduce(walk)
    outputs = body.lowered.outputs
    rest = [o for o in outputs if not stored_late(body, o)]
    full = [o for o in outputs if o not in rest]
    text = [*together.text, *nest.lets([o.value for o in rest]), *nest.lets([o.value for o in full])]
    text += [*nest.stores(full), *grid.first_only(ir.Name("split"), nest.stores(rest))]
    said = "num_parts programs share a row: each holds a part in registers, publishes its partial result,"
    fits = f"0 < num_parts <= num_waiting({spec.inputs[0].name}.device, options)"
    more = "waits for those of the others, and writes its part"
    return replace(kernel_of(nest, name, (said, more), text, together.words), fits=fits)


def kernel_of(
    nest: Nest, name: str, said: tuple[str, ...], text: Sequence[ir.Stmt], words: Sequence[str], splits: str = SPLITS
) -> ir.Kernel:
    """The kernel of programs that have a block of a row each, and leave `words`. `splits`: the wrapper's expression for
    the words that a program reads at a time."""
    row = grid.lone_row(of=ir.Apply("int_div", (ir.Program(0), ir.Name("num_parts")), ()))
    split = ir.Let(("split",), ir.Apply("int_mod", (ir.Program(0), ir.Name("num_parts")), ()))
    inside = [*nest.row_indices(), *nest.column_indices(), *text]
    nest.memory = list(words)
    made = nest.kernel(
        name, (ir.Remark(said, apart=False), *row, split, *_block(nest, ir.Name("split"), inside), *inside),
        ("num_parts", "N"), ("BLOCK_SIZE_N", ("SPLITS", splits)), {g.size for g in nest.body.layout.parts}, words,
    )  # fmt: skip
    return replace(
        made, grid=("M * num_parts",), counts=(("num_parts", 'cdiv(N, options["BLOCK_SIZE_N"])'),),
        scratch=tuple(ir.Scratch(own, "(M, num_parts)", "int64", zeros=True) for own in words),
    )  # fmt: skip


def _block(nest: Nest, part: ir.Name, inside: Sequence[ir.Stmt]) -> tuple[ir.Let, ...]:
    """The columns of a part of the row, of which that is what follows."""
    columns, start = nest.tile.columns, grid.block(part, nest.tile.columns)
    first = (ir.Let((_FIRST.text,), start),) if _FIRST.text in used_names(tuple(inside)) else ()
    cols, mask = grid.numbered(columns, _FIRST if first else start)
    if nest.schedule["specialize"]:
        left = ir.Apply("int_mod", (ir.Name(columns.size), ir.Name(columns.block)), ())
        fits = ir.Apply("eq", (left, ir.Number(0)), ())
        exist = ir.Apply("or", (mask.value, fits), (columns,))
        mask = ir.Let(mask.names, exist, aside="no mask if blocks divide N")
    return (*first, cols, mask)


class _Together:
    """What the programs of a row do: reduce their parts, and join what all of them have left."""

    def __init__(self, nest: Nest, online: Sequence[Online], moments: Sequence[Moments]) -> None:
        self.nest = nest
        self.body = nest.body
        self.online = online
        self.moments = moments
        self.text: list[ir.Stmt] = []
        self.local: list[ir.Stmt] = []
        """Of the text what a program does with its part alone."""
        self.words: list[str] = []
        nest.builder.more = frozenset(m.mean for m in moments)

    def _of_part(self, statements: Iterable[ir.Stmt]) -> None:
        """Adds what a program does with its part alone."""
        made = list(statements)
        self.text += made
        self.local += made

    def reduce(self, walk: tuple[int, ...]) -> None:
        """The reductions of one walk: of the part, then of the row."""
        nest, names, known = self.nest, self.body.names.of, self.nest.builder.known
        moments = {m.total: m for m in self.moments}
        carried = [o for o in self.online if o.total in walk]
        beside = {i for o in carried for i in (o.maximum, o.total)} | {m.squares for m in self.moments}
        self._of_part(nest.lets(walked_values(self.body, walk, self.online, moments)))
        left: list[tuple[str, str, float]] = []
        later: list[ir.Stmt] = []
        for pair in carried:
            later += self._largest_and_sum(pair)
            left.append((names[pair.maximum], names[pair.total], -math.inf))
        for i in walk:
            if i in moments:
                self._mean_and_squares(moments[i])
                left.append((names[moments[i].mean], names[moments[i].squares], 0.0))
            elif i not in beside:
                own = nest.builder.reduced(i, nest.builder.operand(i))
                self._of_part([ir.Let((f"{names[i]}_part",), own)])
                left.append((names[i], "", neutral(self.body.lowered, i)))
        self._exchange(left)
        first = [i for o in carried for i in (o.maximum,)]
        for i in (*first, *walk):
            if i not in known:
                self.text += carries.joined(nest, i, self.online, self.moments, _BLOCK, _parts)
        self._of_part(later)

    def _largest_and_sum(self, pair: Online) -> list[ir.Stmt]:
        """The greatest of the part and the sum of its exponentials. Those that are needed again are kept; returned is
        what multiplies them by what the greatest of the row makes of them."""
        nest, names = self.nest, self.body.names.of
        (kept,) = (a.value for a in self.body.lowered.values[pair.total].args if isinstance(a, Use))
        others = (v for i, v in enumerate(self.body.lowered.values) if i != pair.total)
        again = nest.builder.is_assigned(kept) and any(Use(kept) in v.args for v in others)
        softmax, axis = carries.softmax_of(nest, pair, "_part"), nest.tile.columns
        exponentials = ir.Name(names[kept], nest.tile.shape) if again else None
        self._of_part(softmax.whole(carries.softmax_source(nest, pair), axis, exponentials))
        if exponentials is None:
            return []
        nest.builder.known[kept] = exponentials
        less = ir.Apply("sub", (softmax.row_max, ir.Name(names[pair.maximum])), ())
        return [
            ir.Update(exponentials.text, "mul", ir.Apply("exp", (less,), ()), aside="from the part's max to the row's")
        ]

    def _mean_and_squares(self, moments: Moments) -> None:
        """The mean of the part and the sum of the squares of what its elements differ from that."""
        carry = carries.welford_of(self.nest, moments, "_part")
        mean = self.body.names.of[moments.mean]
        own = "part_count", carry.mean.text, carry.squares.text, f"{mean}_shift"
        self._of_part(carry.block(self.nest, moments, _FIRST, own)[0])

    def _exchange(self, left: Sequence[tuple[str, str, float]]) -> None:
        """Leaves what the part was reduced to and waits for what the others leave: words of a number each, and of a sum
        that is never negative where there is one. The last of each is what stands for programs that a row does not
        have."""
        row, part, count = ir.Name("row"), ir.Name("part"), ir.Name("num_parts")
        own = {name: words_of(self.nest.spec, name) for name, _, _ in left}
        words = [ir.Name(name, (PARTS,)) for name in own.values()]

        def leave(*terms: tuple[ir.Expr, str | None]) -> list[ir.Stmt]:
            return [
                left_word(own[name], terms, f"{name}_part", ir.Name(f"{total}_part") if total else ir.Number(0.0))
                for name, total, _ in left
            ]

        def poll(times: str) -> list[ir.Stmt]:
            places = ((ir.Name("parts", (PARTS,)), None),)
            args = [(ir.Pointer(w.text, places, (PARTS,)), _IS_PART, ir.Size(times)) for w in words]
            return [ir.Let((w.text,), ir.Call("poll", a, (PARTS,))) for w, a in zip(words, args, strict=True)]

        self.text += leave((ir.Program(0), None))
        if not self.words:
            numbers = ir.Range(PARTS, ir.Number(0))
            self.text += [
                ir.Let(("parts",), ir.Apply("add", (ir.Apply("mul", (row, count), ()), numbers), (PARTS,))),
                ir.Let((_IS_PART.text,), ir.Apply("lt", (numbers, count), (PARTS,))),
            ]
        missing: list[ir.Expr] = [ir.Call("is_missing", (word,)) for word in words]
        of_turn = ir.Apply("add", (ir.Name("split"), ir.Name("turn")), ())
        again = leave((row, count.text), (part, None))
        if len(left) > 1:
            slot = ir.Name("slot")
            at = ir.Let((slot.text,), ir.Apply("add", (ir.Apply("mul", (row, count), ()), part), ()))
            again = [at, *leave((slot, None))]
        turn = (ir.Let((part.text,), ir.Apply("int_mod", (of_turn, count), ())), *self._of_another(part), *again)
        said = "timed out: other programs may not be resident. Reduce every part here, its own last"
        turns = ir.For(
            "turn", ir.Number(1), ir.Apply("add", (count, ir.Number(1)), ()), ir.Number(1), turn, comment=said
        )
        condition = reduce(lambda one, other: ir.Apply("or", (one, other), ()), missing)
        self.text += [*poll(PATIENCE), ir.If(condition, (turns, *poll("2**30")))]
        for (name, total, other), word in zip(left, words, strict=True):
            both = f"{name}_parts", f"{total}_parts" if total else "_"
            self.text.append(ir.Let(both, ir.Call("unpack", (word, _IS_PART, ir.Number(other)), (PARTS,))))
        self.words += own.values()

    def _of_another(self, part: ir.Name) -> tuple[ir.Stmt, ...]:
        """What a program did with its part so far, done with the part of another; a row's own values are the same."""
        names, levels = self.body.names.of, self.body.names.levels
        once = {names[i] for i in range(len(levels)) if levels[i] in (ROW, SCALAR) and i in names}
        again = [replace(s, comment="", aside="") for s in self.local if isinstance(s, ir.Let | ir.Update)]
        again = [s for s in again if isinstance(s, ir.Update) or s.names[0] not in once]
        inside = (*self.nest.column_indices(), *again)
        own = [_FIRST.text, "cols", "mask", *(group.index for group in self.body.layout.parts)]
        prefix = "other_"
        while any(f"{prefix}{name}" in names.values() for name in own):
            prefix = f"an{prefix}"
        # not under the same names: what a program computes of them again costs no registers, what it kept would
        numbers = (replace(let, aside="") for let in _block(self.nest, part, inside))
        return renamed((*numbers, *inside), {name: f"{prefix}{name}" for name in own})


def left_word(words: str, terms: tuple[tuple[ir.Expr, str | None], ...], value: str, total: ir.Expr) -> ir.Do:
    """A program leaves a number, and a sum that is never negative."""
    return ir.Do(ir.Call("leave", (ir.Pointer(words, terms, ()), ir.Name(value), total)))


def words_of(spec: OperatorSpec, name: str = "") -> str:
    """What the words are called that programs leave, of one value where it is named: no tensor has that name."""
    words = f"{name}_words" if name else "words"
    while words in {t.name for t in (*spec.inputs, *spec.outputs)}:
        words += "_"
    return words


def _parts(name: str) -> ir.Name:
    """What was waited for."""
    return ir.Name(f"{name}_parts", (PARTS,))
