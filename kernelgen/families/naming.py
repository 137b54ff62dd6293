"""Which values of a kernel get a name of their own, and what each is called.

A value is written out where it is used unless a reader or the hardware profits from a name: loads, reductions,
variables of the reference, values used twice, and values that change rank.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Sequence, Set
from dataclasses import dataclass

from kernelgen.families.helpers import DEVICE_FUNCTIONS
from kernelgen.families.values import Lowered, Use, Value
from kernelgen.frontend.graph import ARG_REDUCTIONS, REDUCTIONS, SCANS, Statement
from kernelgen.frontend.operations import NOUNS, OPERATIONS

SCALAR, COLUMN, ROW, FULL = "scalar", "column", "row", "full"
INFINITY = "infinity"
"""The kernel argument that stands for an infinity that windows read beyond an edge."""
RESERVED = {
    "row", "rows", "cols", "mask", "offsets", "block_start", "row_mask", "col_mask", "start", "tile", "pid_m", "pid_n",
    "M", "N", "n_elements", "tl", "triton", "torch", "block_sum", "new_max", "block_count",
    "block_share", "block_shift", "block_mean", "block_centered", "block_squares", "num_tiles_n", "float", "range",
    "num_tiles_m", "tiles", "plane", "run", "lane_mask", "pair", "quad", "octet",
    "BLOCK_SIZE", "BLOCK_SIZE_M", "BLOCK_SIZE_N", "ROW_TILES", "NUM_STAGES", "LINES_AHEAD", "lines",
    *DEVICE_FUNCTIONS,
    "is_last", "rest", "slots", "top", "top_at", "kept", "kept_at", "least", "last", "leaves",
    "is_tie", "is_before", "rank",
    "split", "part", "first", "end", "parts", "part_counts", "slot", "walked", "SPLITS", "num_parts",
    "is_part", "part_count", "_", "words_ptr", "turn", INFINITY,
}  # fmt: skip

_DERIVED = ("acc", "at", "block", "carry", "end", "extreme", "moves", "part", "parts", "shift", "shifts", "words")
"""What names end with that kernels make of the names of reductions, scans and what follows from these in a row."""


@dataclass(frozen=True)
class Names:
    """The name of every value that has one; shared by all kernels of a file so that they read alike."""

    of: dict[int, str]
    levels: tuple[str, ...]
    assigned: frozenset[int]


def level(value: Value, columns: frozenset[int], fixed: frozenset[int]) -> str:
    """Whether a value varies along the columns, along the rows, both or neither; `fixed` axes are a program's own."""
    along, across = bool(value.axes & columns), bool(value.axes - columns - fixed)
    return FULL if along and across else COLUMN if along else ROW if across else SCALAR


def name_values(
    lowered: Lowered,
    statements: Sequence[Statement],
    columns: frozenset[int],
    taken: Iterable[str],
    fixed: frozenset[int] = frozenset(),
    reserved: Set[str] = RESERVED,
) -> Names:
    """Decide which values are named, and how. `reserved`: what kernels call values of their own."""
    levels = tuple(level(v, columns, fixed) for v in lowered.values)
    uses = Counter(a.value for v in lowered.values for a in v.args if isinstance(a, Use))
    uses.update(o.value for o in lowered.outputs)
    outputs = {o.value for o in lowered.outputs}
    assigned = set()
    for i, value in enumerate(lowered.values):
        consumers = [j for j, u in enumerate(lowered.values) if Use(i) in u.args and u.op not in REDUCTIONS]
        crosses = any(levels[j] != levels[i] for j in consumers)
        if value.op == "const":
            continue
        located = any(Use(i) in u.args and u.op in ARG_REDUCTIONS for u in lowered.values)
        located |= any(Use(i) in u.args and u.op in ("load", "place") for u in lowered.values)
        shared = uses[i] > (1 if value.name else 2)
        variable = _is_variable(value, statements)
        if value.op == "place" and not (i in outputs or variable or shared or located):
            continue
        if value.op in ("load", "iota", "dot") or located or i in outputs or variable or uses[i] > 1 or crosses:
            assigned.add(i)
    taken = frozenset(taken)
    used = {*reserved, *taken}
    names: dict[int, str] = {}
    chains = _chains(lowered, uses) if not lowered.space.inner_axes() else []
    for chain in chains:
        names |= dict.fromkeys(chain, unique(NOUNS[lowered.values[chain[0]].op], used))
    assigned |= names.keys()
    for i in sorted(range(len(levels)), key=lambda i: (i not in assigned, lowered.values[i].name is None, i)):
        value = lowered.values[i]
        if i in names:
            continue
        if value.op == "iota":
            names[i] = "cols"
        elif i in assigned or value.name or value.op in (*REDUCTIONS, *SCANS):
            name = value.name or NOUNS.get(value.op, "value")
            if not lowered.space.outer and value.op in REDUCTIONS and not value.name:
                name = OPERATIONS[value.op].whole or name
            names[i] = unique(f"{name}_tile" if value.op == "load" and name in reserved else name, used)
    return Names(_beside_derived(lowered, levels, names, used, taken), levels, frozenset(assigned))


def _is_variable(value: Value, statements: Sequence[Statement]) -> bool:
    """Whether its own statement calls it so, and not a composite, whose name may be that of another variable."""
    return value.statement is not None and value.name is not None and statements[value.statement].target == value.name


def _beside_derived(
    lowered: Lowered, levels: tuple[str, ...], names: dict[int, str], used: set[str], taken: frozenset[str]
) -> dict[int, str]:
    """The names, other ones where kernels make the same of the names of what they reduce or scan to, or pass memory of
    what is `taken`."""
    made = [n for i, n in names.items() if levels[i] in (ROW, SCALAR) or lowered.values[i].op in (*REDUCTIONS, *SCANS)]
    derived = {f"{name}_{ending}" for name in made for ending in _DERIVED}
    passed = {n for n in made if not taken.isdisjoint(f"{n}_{ending}_ptr" for ending in _DERIVED)}
    others = {name: unique(f"{name}_", used | derived) for name in sorted(set(names.values()) & derived | passed)}
    return {i: others.get(name, name) for i, name in names.items()}


def _chains(lowered: Lowered, uses: Counter[int]) -> list[list[int]]:
    """Long sums and maxima of one statement, link by link and short of the last: one variable that is added to."""
    chains: dict[int, list[int]] = {}
    for i, value in enumerate(lowered.values):
        first = value.args[0] if value.args else None
        if value.op not in ("add", "maximum") or not isinstance(first, Use) or uses[first.value] > 1:
            continue
        before = lowered.values[first.value]
        if before.op == value.op and before.statement == value.statement:
            chains[i] = [*chains.pop(first.value, []), first.value]
    return [chain for chain in chains.values() if len(chain) > 2]


def unique(name: str, used: set[str]) -> str:
    """A name that is not yet used, which it then is."""
    candidates = itertools.chain([name], (f"{name}_{n}" for n in itertools.count(2)))
    chosen = next(c for c in candidates if c not in used)
    used.add(chosen)
    return chosen
