"""Scans of few long rows, each divided among programs: reduce, then scan.

A kernel leaves what every part of a row comes to; the next begins with what the parts before its own came to, joined in
a fixed order, and scans its part block by block. A scan of what another scan has made needs a kernel more: what its
parts come to is known when the first is. Nothing is added atomically, so the same inputs give the same bits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kernelgen.families.access import output_groups
from kernelgen.families.forms import SPLIT
from kernelgen.families.kernel import Body, KernelText, Lines, Loop, Scratch
from kernelgen.families.line import LINE
from kernelgen.families.naming import ROW, SCALAR
from kernelgen.families.padding import identity
from kernelgen.families.scan_lines import (
    Carried,
    carried,
    comments,
    ends,
    joined,
    last_lane,
    prepare,
    scans_of,
    starts_of,
    totals,
)  # fmt: skip
from kernelgen.families.split_lines import Split, kernel_text
from kernelgen.families.triton_text import Text, number, operation, scan_join, triton_dtype
from kernelgen.families.values import REVERSE, Use
from kernelgen.plan import Schedule
from kernelgen.spec.model import OperatorSpec

_REDUCED = {"cumsum": "tl.sum", "cummax": "tl.max", "cummin": "tl.min"}
_COMBINED = {"cumprod": "multiply", "logcumsumexp": "log_add_exp"}
"""What a scan's elements are joined with where Triton has no reduction for it."""


@dataclass(frozen=True)
class _Scans:
    """What every kernel of the sequence is written from."""

    split: Split
    kept: tuple[Carried, ...]
    depths: dict[int, int]
    """How many scans lie on the way to each, itself included."""


def split_scans(
    spec: OperatorSpec, body: Body, schedule: Schedule, name: str, helpers: dict[str, None]
) -> tuple[KernelText, ...]:
    """The kernels in the order of their launches; the last one writes the outputs."""
    scans = _Scans(Split(spec, body, schedule, helpers), carried(body), _depths(body))
    base = name.removesuffix("_kernel").removesuffix(f"_{SPLIT.name}")
    most = max(scans.depths[c.scan] for c in scans.kept)
    names = [name, *(f"{base}_walk_{depth}_kernel" for depth in range(2, most + 1))]
    return (*(_totals(scans, own, depth) for depth, own in enumerate(names, 1)), _apply(scans, f"{base}_apply_kernel"))


def _depths(body: Body) -> dict[int, int]:
    depth: list[int] = []
    found = set(scans_of(body))
    for i, value in enumerate(body.lowered.values):
        below = max((depth[a.value] for a in value.args if isinstance(a, Use)), default=0)
        depth.append(below + (i in found))
    return {i: depth[i] for i in found}


def _totals(scans: _Scans, name: str, depth: int) -> KernelText:
    """The kernel that leaves what every part comes to of the scans of one depth."""
    body = scans.split.body
    lines = Lines(scans.split.spec, body, scans.split.form, scans.split.schedule, scans.split.helpers)
    own, done = totals(body, [c for c in scans.kept if scans.depths[c.scan] == depth]), set[int]()
    sources = [lines.writer.source(c.scan) for c in own]
    needed = lines.writer.needs(sources, done)
    kept = [c for c in scans.kept if c.scan in needed]
    prepare(lines, kept)
    once = _once(lines, kept, [i for i in sorted(needed) if body.names.levels[i] in (ROW, SCALAR)], done)
    before = [*([last_lane(lines)] if kept else []), *starts_of(body, own)]
    inside = lines.writer.lines(sources, done, late=False)
    for c in own:
        source, block = lines.writer.guarded(c.scan), f"{body.names.of[c.scan]}_block"
        made = accumulated(lines, c, source)
        short = all(len(line) <= LINE - 8 for line in made)
        inside += made if short or source.isidentifier() else [f"{block} = {source}", *accumulated(lines, c, block)]
    inside += ends(lines, kept)
    comment = [*_order(body), *comments(body, kept), *comments(body, own, "over the part so far")]
    stores, scratch = _stores(lines, own)
    loop = Loop(tuple(comment), tuple(before), tuple(lines.at_columns(inside)), tuple(stores), _backwards(body))
    return kernel_text(scans.split, lines, name, once, loop, scratch=scratch)


def _apply(scans: _Scans, name: str) -> KernelText:
    """The kernel that writes the outputs."""
    body = scans.split.body
    lines = Lines(scans.split.spec, body, scans.split.form, scans.split.schedule, scans.split.helpers)
    prepare(lines, scans.kept)
    done: set[int] = set()
    once = _once(lines, scans.kept, [i for i, v in enumerate(body.names.levels) if v in (ROW, SCALAR)], done)
    full = [o for o in body.lowered.outputs if output_groups(o, body.layout.columns)]
    rest = [o for o in body.lowered.outputs if o not in full]
    inside = lines.writer.lines([*(o.value for o in full), *(c.scan for c in scans.kept)], done, late=False)
    inside += [*(lines.store(o) for o in full), *ends(lines, scans.kept)]
    comment = [*_order(body), *comments(body, scans.kept)]
    loop = Loop(tuple(comment), (last_lane(lines),), tuple(lines.at_columns(inside)), (), _backwards(body))
    return kernel_text(scans.split, lines, name, once, loop, after=[lines.store(o) for o in rest])


def _backwards(body: Body) -> bool:
    return body.lowered.values[scans_of(body)[0]].attr == REVERSE


def _order(body: Body) -> list[str]:
    return ["from the end of the row to its beginning; the first part is the row's last"] if _backwards(body) else []


def _once(lines: Lines, kept: Sequence[Carried], rows: Sequence[int], done: set[int]) -> list[str]:
    """What a program does before it walks: what the parts before its own came to, and the numbers of its row."""
    found = lines.writer.lines([i for i in rows if lines.writer.is_assigned(i)], done)
    if not kept:
        return found
    place = ".to(tl.int64) * M + row" if lines.body.layout.rows else ""
    return [
        *found,
        "# what the parts before this one come to",
        f"parts = tl.arange(0, SPLITS){place}",
        "is_before = tl.arange(0, SPLITS) < split",
        *(line for c in kept for line in _joined_parts(lines, c)),
    ]


def _joined_parts(lines: Lines, c: Carried) -> list[str]:
    value, name = lines.body.lowered.values[c.scan], lines.body.names.of[c.scan]

    def load(what: str, other: float | int) -> str:
        return f"tl.load({what}_ptr + parts, mask=is_before, other={number(other).text})"

    neutral = identity(value.op, value.dtype)
    if c.exponents:
        return [
            f"{name}_totals = {load(f'{name}_parts', neutral)}",
            f"{name}_total_exponents = {load(f'{name}_exponent_parts', 0)}",
            f"{c.carry}, {c.beside} = {_product(lines, f'({name}_totals, {name}_total_exponents)')}",
        ]
    carry = f"{c.carry} = {reduced(lines, c.scan, load(f'{name}_parts', neutral))}"
    return [carry, *([f"{c.beside} = 0.0"] if c.beside else [])]


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


def _stores(lines: Lines, own: Sequence[Carried]) -> tuple[list[str], tuple[Scratch, ...]]:
    """How the programs leave what their parts come to."""
    found: list[tuple[str, str, str]] = []
    for c in own:
        value, name = lines.body.lowered.values[c.scan], lines.body.names.of[c.scan]
        kind = triton_dtype(value.dtype).removeprefix("tl.")
        lost = f" + {c.beside}" if c.beside and not c.exponents else ""
        found.append((f"{name}_parts", kind, f"{c.carry}{lost}"))
        found += [(f"{name}_exponent_parts", "int64", c.beside)] if c.exponents else []
    offset = "split.to(tl.int64) * M + row" if lines.body.layout.rows else "split"
    named = [f"slot = {offset}"] if lines.body.layout.rows and len(found) > 1 else []
    place = "slot" if named else offset
    stores = [f"tl.store({name}_ptr + {place}, {text})" for name, _, text in found]
    return named + stores, tuple(Scratch(name, kind) for name, kind, _ in found)
