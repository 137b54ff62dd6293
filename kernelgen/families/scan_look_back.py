"""Scans of long rows in one pass: a program holds a part of a row and waits for what the parts before it come to.

A program leaves what its part comes to, joins what those before it have left, always in the same order, and writes its
part: everything is read once. Programs wait for earlier ones alone, which have started before them and wait for earlier
ones themselves, so it does not matter how many run at once, and Triton's interpreter runs them one after the other.
After Merrill and Garland, Single-pass Parallel Prefix Scan with Decoupled Look-back, NVIDIA NVR-2016-002; that every
part looks at all that come before it, and not at what the last of them has joined, costs little of what memory takes.
"""

from __future__ import annotations

from dataclasses import replace

from kernelgen.families import cooperative
from kernelgen.families.access import output_groups
from kernelgen.families.forms import COOPERATIVE
from kernelgen.families.kernel import Body
from kernelgen.families.naming import ROW, SCALAR
from kernelgen.families.padding import identity
from kernelgen.families.values import REVERSE, is_scaled
from kernelgen.frontend.graph import REDUCTIONS
from kernelgen.plan import Schedule
from kernelgen.spec.model import OperatorSpec
from kernelgen.tile import ir
from kernelgen.tile.carries import PARTS
from kernelgen.tile.nest import Nest
from kernelgen.tile.scans import Running, behind, scans_of

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


def kernel(spec: OperatorSpec, body: Body, schedule: Schedule, name: str) -> tuple[ir.Kernel, ...]:
    """The kernel of a schedule's structure."""
    nest, (scan,) = Nest(spec, body, COOPERATIVE, schedule), scans_of(body)
    builder, made, columns = nest.builder, body.names.of[scan], nest.tile.columns
    carry, source = Running(nest, scan, ir.Name(f"{made}_carry")), builder.source(scan)
    behind(nest, [carry])
    still = [i for i, v in enumerate(body.names.levels) if v in (ROW, SCALAR) and builder.is_assigned(i)]
    text = [*nest.lets(still), *nest.lets([source])]
    if source not in builder.known:  # which is reduced and scanned
        block = ir.Name(f"{made}_block", nest.shape(source))
        text.append(ir.Let((block.text,), builder.value(source, nest.tile.shape)))
        builder.known[source] = block
    part = carry.reduced(builder.guarded(scan, builder.value(source, nest.tile.shape)), columns)
    words, split = cooperative.words_of(spec, made), ir.Name("split")
    numbers, before = ir.Name(PARTS.index, (PARTS,)), ir.Name("is_before", (PARTS,))
    places = (ir.Name("row"), "num_parts"), (numbers, None)
    waited = ir.Pointer(words, places, (PARTS,)), before, ir.Number(identity(carry.value.op, "float"))
    others = ir.Name(f"{made}_parts", (PARTS,))
    turn = (
        ir.Let((numbers.text,), ir.Range(PARTS, ir.Name("start"))),
        ir.Let((before.text,), ir.Apply("lt", (numbers, split), (PARTS,))),
        ir.Let((others.text, "_"), ir.Call("await", waited, (PARTS,))),
        *carry.accumulate(others, PARTS),
    )
    (begun,) = carry.begin()
    text += [
        ir.Let((f"{made}_part",), part),
        cooperative.left_word(words, ((ir.Program(0), None),), f"{made}_part", ir.Number(0.0)),
        replace(begun, comment="combined result of the preceding parts"),
        ir.For("start", ir.Number(0), split, ir.Name(PARTS.block), turn),
        *nest.lets([o.value for o in body.lowered.outputs]), *nest.stores(),
    ]  # fmt: skip
    said = ("num_parts programs share a row: each waits for the results of the preceding parts",)
    return (cooperative.kernel_of(nest, name, said, text, [words], f"min({cooperative.SPLITS}, {WORDS})"),)
