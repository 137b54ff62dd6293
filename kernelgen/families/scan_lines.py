"""What scans carry from block to block of a row that is walked.

A sum of floats is carried with what rounding took from it, so that its error does not grow with the number of blocks. A
product of floats is carried as it is, with the most that elements up to it multiply to; rows where that is too much are
walked again, with a mantissa and an exponent: a part of the product may pass what a float32 holds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from kernelgen.families.kernel import Body, Lines
from kernelgen.families.padding import identity
from kernelgen.families.triton_text import LARGEST_GROWTH, Text, is_scaled, number, operation, scan_join
from kernelgen.families.values import REVERSE, Value
from kernelgen.frontend.graph import SCANS

_REDUCED = {"cumsum": "tl.sum", "cummax": "tl.max", "cummin": "tl.min"}
_COMBINED = {"cumprod": "multiply", "logcumsumexp": "log_add_exp"}
"""What a scan's elements are joined with where Triton has no reduction for it."""


@dataclass(frozen=True)
class Carried:
    """The names of what one scan carries. The last three are empty where a scan is no sum or product of floats."""

    scan: int
    carry: str
    """Its result at the end of the block before; of a product its mantissa."""
    beside: str = ""
    """Of a sum what rounding took from it, of a product its exponent."""
    block: str = ""
    """The block's own results; of a product their mantissas."""
    exponents: str = ""
    """The exponents of a block's own products."""


@dataclass(frozen=True)
class Growing:
    """The names of what the plain products of one scan carry."""

    scan: int
    carry: str
    growth: str
    """The most that elements up to the end of the block before multiply to, wherever they begin."""
    parts: str
    """The same up to each element of the block."""
    most: str
    """The same anywhere in the row so far."""


def scans_of(body: Body) -> list[int]:
    return [i for i, v in enumerate(body.lowered.values) if v.op in SCANS]


def is_compensated(value: Value) -> bool:
    """Whether a scan is a sum of floats."""
    return value.op == "cumsum" and value.dtype == "float"


def carried(body: Body) -> tuple[Carried, ...]:
    """What every scan carries, under names that no value has."""
    return _named(body, scans_of(body), "carry")


def totals(body: Body, kept: Sequence[Carried]) -> tuple[Carried, ...]:
    """The same for what the elements of a part come to."""
    return _named(body, [c.scan for c in kept], "total")


def growing(body: Body, kept: Sequence[Carried]) -> tuple[Growing, ...]:
    """What plain products carry instead of mantissas and exponents."""
    beside = _namer(body, kept)
    return tuple(
        Growing(c.scan, c.carry, *(beside(c.scan, what) for what in ("growth", "parts", "most")))
        for c in kept
        if c.exponents
    )


def _namer(body: Body, kept: Sequence[Carried] = ()) -> Callable[[int, str], str]:
    """What names things beside a scan, as nothing else is called."""
    taken = {*body.names.of.values(), *(name for c in kept for name in (c.carry, c.beside, c.block, c.exponents))}

    def beside(i: int, what: str) -> str:
        name = f"{body.names.of[i]}_{what}"
        while name in taken:
            name += "_"
        taken.add(name)
        return name

    return beside


def _named(body: Body, scans: Sequence[int], what: str) -> tuple[Carried, ...]:
    beside, found = _namer(body), []
    for i in scans:
        value, carry = body.lowered.values[i], beside(i, what)
        if is_compensated(value):
            found.append(Carried(i, carry, beside(i, "lost"), beside(i, "block")))
        elif is_scaled(value.op, value.dtype):
            found.append(Carried(i, carry, beside(i, f"{what}_exponent"), beside(i, "block"), beside(i, "exponents")))
        else:
            found.append(Carried(i, carry))
    return tuple(found)


def prepare(lines: Lines, kept: Sequence[Carried], plain: Sequence[Growing] = ()) -> None:
    """Let a writer join the scans of a block with what came before it; all scans get a name. `plain`: the products that
    are no pairs, which are not among `kept`."""
    lines.writer.growing = {g.scan: (g.growth, g.parts) for g in plain}
    lines.writer.named = lines.body.names.assigned | set(scans_of(lines.body))
    lines.writer.carries = {c.scan: c.carry for c in kept} | {g.scan: g.carry for g in plain}
    lines.writer.lost = {c.scan: (c.beside, c.block) for c in kept if c.block and not c.exponents}
    lines.writer.scales = {c.scan: (c.beside, c.block, c.exponents) for c in kept if c.exponents}


def starts_of(body: Body, kept: Sequence[Carried], *, across: bool = False) -> list[str]:
    """What does not change the first block. Integers must begin in the dtype that the walk carries. `across`: of every
    row of a tile."""
    lines = []
    for c in kept:
        value = body.lowered.values[c.scan]
        neutral, is_float = number(identity(value.op, value.dtype)).text, value.dtype == "float"
        if across:  # a column, which joins a block without being turned
            start = f"tl.full([BLOCK_SIZE_M, 1], {neutral}, tl.{'float32' if is_float else value.dtype})"
        else:
            start = neutral if is_float else f"tl.cast({neutral}, tl.{value.dtype})"
        lines.append(f"{c.carry} = {start}")
    nothing = "tl.full([BLOCK_SIZE_M, 1], 0.0, tl.float32)" if across else "0.0"
    return lines + [f"{c.beside} = {'tl.cast(0, tl.int64)' if c.exponents else nothing}" for c in kept if c.beside]


def comments(body: Body, kept: Sequence[Carried], where: str = "at the end of the block before") -> list[str]:
    """What the carried names mean."""
    lines = []
    for c in kept:
        own = f"{c.carry} * 2**{c.beside}" if c.exponents else c.carry
        lines.append(f"{own}: {body.names.of[c.scan]} {where}")
    return lines + [f"{c.beside}: what rounding took from {c.carry}" for c in kept if c.block and not c.exponents]


def last_lane(lines: Lines) -> str:
    """Which lane of a block a scan reaches last."""
    backwards = lines.body.lowered.values[scans_of(lines.body)[0]].attr == REVERSE
    end = "BLOCK_SIZE_N - 8" if lines.writer.turned else "0" if backwards else "BLOCK_SIZE_N - 1"
    return f"is_last = tl.arange(0, BLOCK_SIZE_N){'[None, :]' if lines.two_d else ''} == {end}"


def ends(lines: Lines, kept: Sequence[Carried]) -> list[str]:
    """From a block to what the next one begins with."""
    body, found = lines.body, []
    for c in [c for c in kept if not c.block]:
        found.append(f"{c.carry} = {_end(lines, c.scan, body.names.of[c.scan])}")
    for c in [c for c in kept if c.block]:
        end = f"{body.names.of[c.scan]}_end"
        found.append(f"{end} = {_end(lines, c.scan, c.block)}")
        if c.exponents:
            found.append(f"{end}_exponent = tl.sum(tl.where(is_last, {c.exponents}, 0), axis=0)")
        found.append(joined(lines, c, end))
    return found


def plain_starts(plain: Sequence[Growing]) -> list[str]:
    return [f"{name} = 1.0" for g in plain for name in (g.carry, g.growth, g.most)]


def plain_comments(body: Body, plain: Sequence[Growing]) -> list[str]:
    lines = []
    for g in plain:
        lines.append(f"{g.carry}: {body.names.of[g.scan]} at the end of the block before, a plain product")
        lines.append(f"{g.growth}: the most that elements up to there multiply to")
        lines.append(f"{g.most}: the most that any elements in a row do")
    return lines


def plain_ends(lines: Lines, plain: Sequence[Growing]) -> list[str]:
    """From a block of plain products to what the next one begins with."""
    found = []
    for g in plain:
        found.append(f"{g.most} = tl.maximum({g.most}, tl.max({g.parts}, axis=0))")
        found.append(f"{g.carry} = {_end(lines, g.scan, lines.body.names.of[g.scan])}")
        found.append(f"{g.growth} = tl.sum(tl.where(is_last, {g.parts}, 0.0), axis=0)")
    return found


def outgrown(plain: Sequence[Growing]) -> str:
    """The condition under which plain products will not do."""
    tests = [f"{g.most} > {number(LARGEST_GROWTH).text}" for g in plain]
    return tests[0] if len(tests) == 1 else " | ".join(f"({test})" for test in tests)


def joined(lines: Lines, c: Carried, end: str) -> str:
    """What is carried of a sum or product of floats, joined with what a block came to."""
    if c.exponents:
        arguments = f"{c.carry}, {c.beside}, {end}, {end}_exponent"
        return f"{c.carry}, {c.beside} = _multiply_scaled({arguments})"
    lines.writer.helpers["two_sum"] = None
    return f"{c.carry}, {c.beside} = _two_sum({c.carry}, {c.beside} + {end})"


def _end(lines: Lines, scan: int, name: str) -> str:
    """A scan's last element of the block. Triton sums short integers as int32; a zero keeps its sign where a product
    goes on from it."""
    value = lines.body.lowered.values[scan]
    if is_scaled(value.op, value.dtype):
        lines.writer.helpers["last_of"] = None
        return f"_last_of({name}, is_last)"
    along = "axis=1, keep_dims=True" if lines.two_d else "axis=0"
    last = f"tl.sum(tl.where(is_last, {name}, {'0.0' if value.dtype == 'float' else '0'}), {along})"
    return last + (f".to(tl.{value.dtype})" if value.dtype in ("int8", "uint8", "int16") else "")


def accumulated(lines: Lines, c: Carried, source: str) -> list[str]:
    """A block's share in what the part comes to, or that of parts in what comes before one."""
    value, name = lines.body.lowered.values[c.scan], lines.body.names.of[c.scan]
    if c.exponents:
        lines.writer.helpers["frexp"] = None
        block = _product(lines, f"_frexp({source})", *([value.attr] if value.attr else []))
        return [f"{name}_end, {name}_end_exponent = {block}", joined(lines, c, f"{name}_end")]
    block = reduced(lines, c.scan, source)
    if c.beside:
        return [f"{name}_end = {block}", joined(lines, c, f"{name}_end")]
    join = scan_join(value.op, value.dtype)
    if join in ("add", "mul"):
        return [f"{c.carry} {'+' if join == 'add' else '*'}= {block}"]
    text, helpers = operation(join, (Text(c.carry), Text(block)))
    lines.writer.helpers.update(dict.fromkeys(helpers))
    return [f"{c.carry} = {text.text}"]


def reduced(lines: Lines, i: int, inner: str) -> str:
    """What the elements of a block, or of the parts of a row, come to."""
    value, helpers = lines.body.lowered.values[i], lines.writer.helpers
    if value.op in _COMBINED:
        combine = _COMBINED[value.op]
        needed = operation(combine, (Text(""), Text("")))[1] if combine == "log_add_exp" else (combine,)
        helpers.update(dict.fromkeys(needed))
        return f"tl.reduce({inner}, axis=0, combine_fn=_{combine})"
    function = _REDUCED[value.op]
    if value.dtype == "float" and function != "tl.sum":
        function = f"_nan_{function.removeprefix('tl.')}"
        helpers[function.removeprefix("_")] = None
    narrow = f".to(tl.{value.dtype})" if value.dtype in ("int8", "uint8", "int16") else ""
    return f"{function}({inner}, axis=0){narrow}"


def _product(lines: Lines, *arguments: str) -> str:
    lines.writer.helpers["product"] = None
    return f"_product({', '.join(arguments)})"
