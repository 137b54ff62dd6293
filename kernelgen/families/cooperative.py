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
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from kernelgen.families.forms import COOPERATIVE, LOOPED
from kernelgen.families.kernel import LOADS, STORES, Body, KernelText, Lines, Passed, Scratch
from kernelgen.families.looped import looped, passes, stored_late, walked_values
from kernelgen.families.moments import Moments, carried_moments
from kernelgen.families.naming import FULL, ROW, SCALAR
from kernelgen.families.online import Online
from kernelgen.families.padding import neutral
from kernelgen.families.reduced_lines import LOWEST
from kernelgen.families.specialize import SPECIALIZE, specialized
from kernelgen.families.split_lines import Split, joined_moments, joined_sums
from kernelgen.families.triton_text import number
from kernelgen.families.values import Lowered, Use
from kernelgen.frontend.graph import ARG_REDUCTIONS, REDUCTIONS
from kernelgen.plan import Parameter, Schedule
from kernelgen.spec.model import OperatorSpec

MOST_REGISTERS = 128 * 65536 // 2
"""Of all programs that share a row: half of what 128 SMs have (facts.py), each program's rounded to a power of two."""
SPLITS = "max(next_power_of_2(num_parts), 32)"
"""Words that a program reads, one a lane at least: lanes that read the same one need not see it at the same time."""
_REGISTERS = (64, 80, 96, 128)
"""Of a thread. The launch asks for so many at most, which is how many programs run at once for sure."""
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


@dataclass
class _Text:
    """What a kernel does, as it is written."""

    split: Split
    lines: Lines
    done: set[int] = field(default_factory=set)
    text: list[str] = field(default_factory=list)
    scratch: list[Scratch] = field(default_factory=list)
    local: list[str] = field(default_factory=list)
    """Of the text what a program does with its part alone."""
    later: list[str] = field(default_factory=list)
    """What is done with what the part was first computed from, once that of the row is known."""

    def of_part(self, lines: Iterable[str]) -> None:
        """Adds what a program does with its part alone."""
        made = list(lines)
        self.text += made
        self.local += made


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


def _is_held(schedule: Schedule, columns: int) -> bool:
    """Whether all programs of a row run at once, with as many of another."""
    parts = -(-columns // schedule.int("BLOCK_SIZE_N"))
    registers = 32 * schedule.int("num_warps") * schedule.int("maxnreg")
    return parts << (registers - 1).bit_length() <= MOST_REGISTERS


SPACE = (
    Parameter("BLOCK_SIZE_N", _BLOCKS, "block_size", "constexpr", "elements of a row that a program holds"),
    Parameter("maxnreg", _REGISTERS, "warp_stage", "launch", "registers a thread, at most"),
    Parameter("num_warps", (1, 2, 4, 8, 16), "warp_stage", "launch", "warps a program"),
    LOADS, STORES, SPECIALIZE,
)  # fmt: skip


def legal(schedule: Schedule, columns: int, itemsize: int) -> str | None:
    """Why a schedule makes no sense for rows of `columns` elements; None if it does. Rows of more programs than run at
    once are served too: one program walks each."""
    block = schedule.int("BLOCK_SIZE_N")
    if block >= 2 * max(columns, 2048):
        return f"a block of {block} for rows of {columns}"
    each = block / (32 * schedule.int("num_warps"))
    return f"{each:g} elements a thread (from 4 to 128 make sense)" if not 4 <= each <= 128 else None


def kernels(
    spec: OperatorSpec, body: Body, schedule: Schedule, name: str, helpers: dict[str, None]
) -> tuple[KernelText, ...]:
    """The kernel, and the one that is launched where its programs would not run at once."""
    base = name.removesuffix("_kernel").removesuffix(f"_{COOPERATIVE.name}")
    alone = looped(spec, body, _ALONE.replace(stores=schedule["stores"]), f"{base}_alone_kernel")
    sizes = tuple(Passed(name, str(_ALONE[name])) for name in ("BLOCK_SIZE_N", "num_warps"))
    return _together(spec, body, schedule, name, helpers), replace(alone, passed=(*alone.passed, *sizes))


def _together(spec: OperatorSpec, body: Body, schedule: Schedule, name: str, helpers: dict[str, None]) -> KernelText:
    _, online, walks = passes(body.lowered)
    moments = {m.total: m for m in carried_moments(body.lowered)}
    split = Split(spec, body, schedule, helpers, walks, online, moments)
    made = _Text(split, split.lines())
    for walk in walks:
        _reduce(made, walk)
    lines, outputs = made.lines, body.lowered.outputs
    rest = [o for o in outputs if not stored_late(body, o)]
    made.text += lines.writer.lines([o.value for o in rest], made.done)  # no part is reduced again after these
    once_a_row = [lines.store(o) for o in rest]
    full = [o for o in outputs if o not in rest]
    made.text += lines.writer.lines([o.value for o in full], made.done) + [lines.store(o) for o in full]
    fits = f"0 < num_parts <= num_waiting({spec.inputs[0].name}.device, options)"
    return kernel_text(lines, name, made.text, made.scratch, once_a_row=once_a_row, fits=fits)


def kernel_text(
    lines: Lines,
    name: str,
    text: Sequence[str],
    left: Sequence[Scratch],
    splits: str = SPLITS,
    *,
    once_a_row: Sequence[str] = (),
    fits: str = "",
) -> KernelText:
    """The kernel with its signature: inputs, outputs, what its programs leave, sizes and strides. `splits`: the
    wrapper's expression for the words that a program reads at a time."""
    text = (*lines.row_indices([*text, *once_a_row]), *lines.at_columns(list(text)))
    bare = KernelText(name, COOPERATIVE, lines.schedule, (), (), lines=text, once_a_row=tuple(once_a_row))
    known = [a for a in lines.arguments("N") if bare.uses(a) or a == "N"]
    pointers = [a for a in known if a.endswith("_ptr")]
    sizes = [a for a in known if a not in pointers]
    arguments = (*pointers, *(f"{s.name}_ptr" for s in left), "num_parts", *sizes)
    parts = {g.size for g in lines.body.layout.parts}
    ordered, constexprs, passed = specialized(lines.schedule, arguments, ("BLOCK_SIZE_N", "SPLITS"), parts)
    return replace(
        bare, arguments=ordered, constexprs=constexprs, passed=(*passed, Passed("SPLITS", splits)),
        wide_strides=tuple(s for s in lines.wide_strides() if s in ordered), grid="(M * num_parts,)",
        sizes=(("num_parts", 'cdiv(N, options["BLOCK_SIZE_N"])'),), scratch=tuple(left), fits=fits,
    )  # fmt: skip


def _reduce(made: _Text, walk: tuple[int, ...]) -> None:
    """The reductions of one walk: of the part, then of the row."""
    split, writer = made.split, made.lines.writer
    made.of_part(writer.lines(walked_values(split.body, walk, split.online, split.moments), made.done))
    pairs = [o for o in split.online if o.total in walk]
    carried = {i for o in pairs for i in (o.maximum, o.total)}
    carried |= {i for m in split.moments.values() if m.total in walk for i in (m.total, m.squares)}
    left, joined = [_largest_and_sum(made, pair) for pair in pairs], list[str]()
    for pair in pairs:
        joined += joined_sums(split, made.lines, pair)
    for i in walk:
        if i in split.moments:
            left.append(_mean_and_squares(made, split.moments[i]))
            joined += joined_moments(split, split.moments[i])
        elif i not in carried:
            name = split.body.names.of[i]
            made.of_part([f"{name}_part = {writer.reduce_text(i, writer.guarded(i)).text}"])
            left.append((name, "", neutral(split.body.lowered, i)))
            joined.append(f"{name} = {writer.reduce_text(i, f'{name}_parts').text}")
    _exchange(made, left)
    made.text += joined
    made.of_part(made.later)
    made.later.clear()
    made.done.update(walk, (split.moments[i].mean for i in walk if i in split.moments))


def _exchange(made: _Text, left: Sequence[tuple[str, str, float]]) -> None:
    """Leaves what the part was reduced to and waits for what the others leave: words of a number each, and of a sum
    that is never negative where there is one. The last of each is what stands for programs that a row does not have."""
    made.lines.writer.helpers |= {"leave": None, "is_missing": None, "poll": None, "unpack": None}
    words = {name: words_of(made.split.spec, name) for name, _, _ in left}

    def leave(number: str) -> list[str]:
        seconds = {name: f"{total}_part" if total else "0.0" for name, total, _ in left}
        return [f"_leave({words[name]}_ptr + {number}, {name}_part, {second})" for name, second in seconds.items()]

    def poll(times: str) -> list[str]:
        return [f"{own} = _poll({own}_ptr + parts, is_part, {times})" for own in words.values()]

    made.text += leave("tl.program_id(0)")
    if not made.scratch:
        made.text += ["parts = row * num_parts + tl.arange(0, SPLITS)", "is_part = tl.arange(0, SPLITS) < num_parts"]
    made.text += [
        *poll(PATIENCE),
        f"if {' | '.join(f'_is_missing({own})' for own in words.values())}:",
        "    # others do not run at the same time: their parts are reduced here, its own last",
        "    for turn in range(1, num_parts + 1):",
        "        part = (split + turn) % num_parts",
        *(f"        {line}" for line in (*_of_another(made), *leave("row * num_parts + part"))),
        *(f"    {line}" for line in poll("2**30")),
    ]
    for name, total, other in left:
        both = f"{name}_parts, {f'{total}_parts' if total else '_'}"
        made.text.append(f"{both} = _unpack({words[name]}, is_part, {number(other).text})")
        made.scratch.append(Scratch(words[name], "int64", "(M, num_parts)", zeros=True))


def _of_another(made: _Text) -> list[str]:
    """What a program did with its part so far, done with the part of another; a row's own values are the same."""
    names, levels = made.split.body.names.of, made.split.body.names.levels
    once = {names[i] for i in range(len(levels)) if levels[i] in (ROW, SCALAR) and i in names}
    plain = (line.partition("#")[0].rstrip() for line in made.local)
    again = [line for line in plain if line and line.partition(" = ")[0] not in once]
    begins = any("N - first" in line for line in again)
    whole = " | (N % BLOCK_SIZE_N == 0)" if made.split.schedule["specialize"] else ""
    lines = [
        *(["first = part * BLOCK_SIZE_N"] if begins else []),
        f"cols = {'first' if begins else 'part * BLOCK_SIZE_N'} + tl.arange(0, BLOCK_SIZE_N)",
        f"mask = (cols < N){whole}" if whole else "mask = cols < N",
        *made.lines.at_columns(again),
    ]
    own = {"first", "cols", "mask", *(group.index for group in made.split.body.layout.parts)}
    prefix = "other_"
    while any(f"{prefix}{name}" in names.values() for name in own):
        prefix = f"an{prefix}"
    # not under the same names: what a program computes of them again costs no registers, what it kept would
    return [re.sub(rf"\b({'|'.join(own)})\b(?!=)", rf"{prefix}\1", line) for line in lines]


def words_of(spec: OperatorSpec, name: str = "") -> str:
    """What the words are called that programs leave, of one value where it is named: no tensor has that name."""
    words = f"{name}_words" if name else "words"
    while words in {t.name for t in (*spec.inputs, *spec.outputs)}:
        words += "_"
    return words


def _largest_and_sum(made: _Text, pair: Online) -> tuple[str, str, float]:
    """The greatest of the part and the sum of its exponentials. Those that are needed again are kept, and multiplied
    by what the greatest of the row makes of them."""
    lowered, names, writer = made.split.body.lowered, made.split.body.names.of, made.lines.writer
    top, total = names[pair.maximum], names[pair.total]
    source = writer.guarded(pair.maximum, neutral_alone=True)  # exp makes 0 of -inf alone
    greatest = f"tl.maximum(tl.max({source}, axis=0), {LOWEST})"
    # with infinities made zero the sum may be infinite, but it must not be inf - inf
    greatest = f"tl.minimum({greatest}, {LOWEST[1:]})" if pair.finite else greatest
    made.of_part(["# a part may be -inf throughout", f"{top}_part = {greatest}"])
    writer.helpers["exp"] = None
    atom = source if source.isidentifier() or source.startswith("tl.where(") else f"({source})"
    term, kept = f"_exp({atom} - {top}_part)", _exponential(lowered, pair)
    if writer.is_assigned(kept) and any(Use(kept) in v.args for i, v in enumerate(lowered.values) if i != pair.total):
        made.of_part([f"{names[kept]} = {term}"])
        made.later.append(f"{names[kept]} *= _exp({top}_part - {top})  # which was of the part's greatest")
        made.done.add(kept)
        term = names[kept]
    made.of_part([f"{total}_part = tl.sum({term}, axis=0)"])
    return top, total, -math.inf


def _exponential(lowered: Lowered, pair: Online) -> int:
    """What the sum of a pair is taken of."""
    (source,) = (a.value for a in lowered.values[pair.total].args if isinstance(a, Use))
    return source


def _mean_and_squares(made: _Text, moments: Moments) -> tuple[str, str, float]:
    """The mean of the part and the sum of the squares of what its elements differ from that."""
    names, writer = made.split.body.names.of, made.lines.writer
    mean, squares = names[moments.mean], names[moments.squares]
    source = writer.guarded(moments.total)
    plain = names[moments.source] if writer.is_assigned(moments.source) else f"({source})"
    made.of_part(
        [
            "part_count = tl.minimum(BLOCK_SIZE_N, N - first)",
            f"{mean}_part = tl.sum({source}, axis=0) / part_count",
            f"{mean}_shift = tl.where(mask, {plain} - {mean}_part, 0.0)",
            f"{squares}_part = tl.sum({mean}_shift * {mean}_shift, axis=0)",
        ]
    )
    return mean, squares, 0.0
