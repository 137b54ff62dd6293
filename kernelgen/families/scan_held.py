"""Scans of long rows in one pass: a program holds a part of a row and waits for what the parts before it come to.

A program leaves what its part comes to, joins what those before it have left, always in the same order, and writes its
part: everything is read once. Programs wait for earlier ones alone, which have started before them and wait for earlier
ones themselves, so it does not matter how many run at once, and Triton's interpreter runs them one after the other.
After Merrill and Garland, Single-pass Parallel Prefix Scan with Decoupled Look-back, NVIDIA NVR-2016-002; that every
part looks at all that come before it, and not at what the last of them has joined, costs little of what memory takes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from kernelgen.families import cooperative
from kernelgen.families.access import output_groups
from kernelgen.families.forms import COOPERATIVE
from kernelgen.families.kernel import Body, KernelText, Lines, Passed, Scratch
from kernelgen.families.naming import ROW, SCALAR
from kernelgen.families.padding import identity
from kernelgen.families.scan_lines import Carried, accumulated, reduced, scans_of
from kernelgen.families.specialize import specialized
from kernelgen.families.triton_text import Text, is_scaled, number
from kernelgen.families.values import REVERSE, Use
from kernelgen.frontend.graph import REDUCTIONS
from kernelgen.plan import Schedule
from kernelgen.spec.model import OperatorSpec

WORDS = 1024
"""Of the parts before its own, which a program reads at a time."""
MOST_PARTS = 2048
"""Of a row that a search sets out from: every program reads a word of each part before its own."""


def applies(body: Body) -> bool:
    """Whether there is one scan, from the beginning, of floats that one float stands for."""
    values = body.lowered.values
    scans = [values[i] for i in scans_of(body)]
    return (
        bool(body.layout.rows)
        and len(scans) == 1
        and all(v.dtype == "float" and v.attr != REVERSE and not is_scaled(v.op, v.dtype) for v in scans)
        and not any(v.op in REDUCTIONS for v in values)
        and all(output_groups(o, body.layout.columns) for o in body.lowered.outputs)
    )


def default() -> Schedule:
    """64 elements a thread (H200, 16 rows of 4 million in float16: 101 us, in parts of 4096 more than 104; divided and
    read twice 121)."""
    return cooperative.default().replace(maxnreg=128, stores="default")


def starts(columns: int) -> tuple[Schedule, ...]:
    """Where a search over rows of so many elements sets out."""
    small = default().replace(BLOCK_SIZE_N=4096, maxnreg=64)
    return tuple(s for s in (default(), small) if 2 <= columns / s.int("BLOCK_SIZE_N") <= MOST_PARTS)


def kernel(
    spec: OperatorSpec, body: Body, schedule: Schedule, name: str, helpers: dict[str, None]
) -> tuple[KernelText, ...]:
    """The kernel of a schedule's structure."""
    lines, done = Lines(spec, body, COOPERATIVE, schedule, helpers), set[int]()
    (scan,) = scans_of(body)
    made, writer = body.names.of[scan], lines.writer
    words, earlier = cooperative.words_of(spec, made), cooperative.words_of(spec)
    writer.named = body.names.assigned | {scan}
    writer.carries = {scan: f"{made}_carry"}
    still = [i for i, v in enumerate(body.names.levels) if v in (ROW, SCALAR) and writer.is_assigned(i)]
    neutral = number(identity(body.lowered.values[scan].op, "float")).text
    text = [*writer.lines(still, done), *writer.lines([writer.source(scan)], done)]
    helpers |= {"leave": None, "await": None}
    source, carry = writer.source(scan), Carried(scan, f"{made}_carry")
    if not writer.is_assigned(source):  # which is reduced and scanned
        text.append(f"{made}_block = {writer.operand(Use(source), body.names.levels[source]).text}")
        writer.substitutes = {source: Text(f"{made}_block")}
    text += [
        f"{made}_part = {reduced(lines, scan, writer.guarded(scan))}",
        f"_leave({words}_ptr + tl.program_id(0), {made}_part, 0.0)",
        "# what the parts before this one come to",
        f"{carry.carry} = {neutral}",
        "for start in range(0, split, SPLITS):",
        "    parts = start + tl.arange(0, SPLITS)",
        "    is_before = parts < split",
        f"    {earlier}_ptr = {words}_ptr + row * num_parts + parts",
        f"    {made}_parts, _ = _await({earlier}_ptr, is_before, {neutral})",
        *(f"    {line}" for line in accumulated(lines, carry, f"{made}_parts")),
        *writer.lines([o.value for o in body.lowered.outputs], done),
        *lines.stores(),
    ]
    left = (Scratch(words, "int64", "(M, num_parts)", zeros=True),)
    text = lines.at_columns(text)
    return (_kernel_text(lines, name, text, left, f"min({cooperative.SPLITS}, {WORDS})"),)


def _kernel_text(
    lines: Lines,
    name: str,
    text: Sequence[str],
    left: Sequence[Scratch],
    splits: str,
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
