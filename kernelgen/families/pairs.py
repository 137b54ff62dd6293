"""Parts that lie side by side: element by element, the even places one part and the odd places the other.

Both are read by one load of pairs, which is taken apart in registers, and put together again for one store, so that
every access runs over neighbours in memory.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace

from kernelgen.families.access import COLS, Access
from kernelgen.families.forms import Form
from kernelgen.families.kernel import Body
from kernelgen.families.naming import FULL
from kernelgen.families.sliding_window import chains, step_of
from kernelgen.families.values import Stored, axes_of
from kernelgen.frontend import indices as ix
from kernelgen.frontend.indices import Expr
from kernelgen.plan import Schedule
from kernelgen.spec.model import OperatorSpec
from kernelgen.tile import ir
from kernelgen.tile.nest import Nest, Tile

PAIRS = "pairs"
"""The kernel variable that numbers the elements of a tile's pairs, twice as many as columns."""


Pair = tuple[int, int, Access]
"""Of the even places, of the odd ones, and the access to both."""


PAIR = ir.Axis("pairs", PAIRS, "pair_mask", "2 * BLOCK_SIZE_N", "2 * N")


class PairNest(Nest):
    """Kernels that access even and odd places of one tensor together."""

    def __init__(
        self, spec: OperatorSpec, body: Body, form: Form, schedule: Schedule, tile: Tile | None = None
    ) -> None:
        super().__init__(spec, body, form, schedule, tile)
        self.read, self.written = paired_loads(body), paired_stores(body)
        self.builder.together = self.read_together

    @property
    def pair_shape(self) -> ir.Shape:
        return (*self.tile.shape[:-1], PAIR)

    def index(self, name: str) -> ir.Name:
        return ir.Name(name, (PAIR,)) if name == PAIRS else super().index(name)

    def pair_numbers(self) -> tuple[ir.Let, ...]:
        """What a kernel says before it reads and writes pairs, after its rows and columns."""
        if not self.read and not self.written:
            return ()
        (row, columns), said = self.tile.shape, "adjacent elements belong to both parts: loaded and stored together"
        start = ir.Apply("mul", (ir.Apply("mul", (ir.Number(2), ir.Name("pid_n")), ()), ir.Name(columns.block)), ())
        exist = ir.Apply("lt", (ir.Name(PAIRS, (PAIR,)), ir.Apply("mul", (ir.Number(2), ir.Name("N")), ())), (PAIR,))
        mask = ir.Apply("and", (ir.Name(row.mask, (row,)), exist), self.pair_shape)
        found = ir.Let((PAIRS,), ir.Range(PAIR, start), said), ir.Let((PAIR.mask,), mask)
        loads = self.body.layout.accesses
        plain = [a.tensor for a in loads if a.load not in self.read and self.level(a.load) == FULL]
        if not plain:
            return found
        why = "8 bytes per thread, half of its pairs: no exchange between threads"
        cols = self.index(COLS)
        return ir.Let((cols.text,), ir.Contiguous(cols, 8, plain[0]), why), *found

    def other(self, i: int) -> float | int | None:
        """What a load of pairs has beyond the end of a row; None where nobody looks at it."""
        return None

    def read_together(self, i: int) -> tuple[ir.Let, ...] | None:
        """The load of pairs; of two loads that are one, the later has nothing to add."""
        if i not in self.read:
            return None
        even, odd, access = self.read[i]
        if i == max(even, odd):
            return ()
        of = self.body.names.of
        pairs = ir.Name(f"{of[even]}_pairs", self.pair_shape)
        loaded = ir.Load(self.pointer(access, pairs.shape), self.mask(pairs.shape), self.other(i), self.policy(i))
        parts = ir.Let((of[even], of[odd]), ir.Unpaired(pairs, self.tile.shape))
        return ir.Let((pairs.text,), self.widened(i, loaded)), parts

    def mask(self, shape: ir.Shape) -> ir.Expr | None:
        return ir.Name(PAIR.mask, shape) if PAIR in shape else super().mask(shape)

    def stores(self, outputs: Sequence[Stored] | None = None) -> tuple[ir.Stmt, ...]:
        found: list[ir.Stmt] = []
        for number, stored in enumerate(self.body.lowered.outputs):
            if number not in self.written:
                found += super().stores([stored])
            elif number == min(self.written[number][:2]):
                found += self._stored(number)
        return tuple(found)

    def _stored(self, number: int) -> tuple[ir.Stmt, ...]:
        outputs = self.body.lowered.outputs
        even, odd, access = self.written[number]
        pairs = ir.Name(f"{outputs[even].name}_pairs", self.pair_shape)
        first, second = (self.stored_value(outputs[part], self.tile.shape) for part in (even, odd))
        joined = ir.Let((pairs.text,), ir.Paired(first, second, self.tile.shape, pairs.shape))
        streams = self.schedule.get("stores") == "streaming"
        return joined, ir.Store(self.pointer(access, pairs.shape), pairs, self.mask(pairs.shape), streams)


class RowPairNest(PairNest):
    """Kernels that hold whole rows, of which they read even and odd places together."""

    def __init__(self, spec: OperatorSpec, body: Body, form: Form, schedule: Schedule) -> None:
        super().__init__(spec, body, form, schedule)
        self.written = {}
        alike = {i: pair for i, pair in self.read.items() if self.beyond(pair[0]) == self.beyond(pair[1])}
        self.read = {} if self.builder.is_turned else alike

    def other(self, i: int) -> float | int | None:
        return self.beyond(i)

    def pair_numbers(self) -> tuple[ir.Let, ...]:
        if not self.read:
            return ()
        *rows, _ = self.tile.shape
        exist: ir.Expr = ir.Apply(
            "lt", (ir.Name(PAIRS, (PAIR,)), ir.Apply("mul", (ir.Number(2), ir.Name("N")), ())), (PAIR,)
        )
        for row in rows:
            exist = ir.Apply("and", (ir.Name(row.mask, (row,)), exist), self.pair_shape)
        said = "neighbours are the even and the odd element of a place: loaded together"
        return ir.Let((PAIRS,), ir.Range(PAIR, ir.Number(0)), said), ir.Let((PAIR.mask,), exist)


def paired_loads(body: Body) -> dict[int, Pair]:
    """By either load. A window whose lines are kept, or that has more than two places, reads them in other ways."""
    if chains(body) or _is_wide(body):
        return {}
    values = body.lowered.values
    plain = [
        (a.load, a)
        for a in body.layout.accesses
        if body.names.levels[a.load] == FULL and not values[a.load].conditions and not values[a.load].args
    ]
    return {number: pair for pair in _matched(plain, body) for number in pair[:2]}


def _is_wide(body: Body) -> bool:
    """Whether more than two places of a line are read for every column, and neighbouring columns read two apart."""
    columns = body.layout.columns
    if columns is None or len(columns.axes) != 1:
        return False
    found: Counter[tuple[object, ...]] = Counter()
    for access in body.layout.accesses:
        for position, (index, _) in enumerate(access.terms):
            step = step_of(index, columns.axes[0]) if isinstance(index, Expr) else None
            if step is not None and step[0] == 2:
                found[access.tensor, position, *access.terms[:position], *access.terms[position + 1 :]] += 1
    return any(count > 2 for count in found.values())


def is_paired(body: Body) -> bool:
    """Whether anything is read or written in pairs."""
    return bool(paired_loads(body) or paired_stores(body))


def paired_stores(body: Body) -> dict[int, Pair]:
    """By the number of either output."""
    values, outputs = body.lowered.values, body.lowered.outputs
    stores = dict(body.layout.stores)
    found = _matched([(i, stores[o]) for i, o in enumerate(outputs) if o in stores], body)
    kinds = [None if values[o.value].op == "const" else values[o.value].dtype for o in outputs]
    return {n: pair for pair in found if kinds[pair[0]] == kinds[pair[1]] is not None for n in pair[:2]}


def _matched(accesses: Iterable[tuple[int, Access]], body: Body) -> list[Pair]:
    """Accesses to even and to odd places along the columns that are else the same."""
    columns = body.layout.columns
    if columns is None or not body.layout.rows or len(columns.axes) != 1:
        return []
    found: dict[tuple[object, ...], dict[bool, tuple[int, Access]]] = {}
    for number, access in accesses:
        for position, (index, stride) in enumerate(access.terms):
            halved = _halved(index, columns.axes[0]) if isinstance(index, Expr) else None
            if halved is not None:
                before, is_even = halved
                own = ((PAIRS, stride),) if before is None else ((before, stride), (PAIRS, stride))
                terms = (*access.terms[:position], *own, *access.terms[position + 1 :])
                found.setdefault((access.tensor, terms), {})[is_even] = number, replace(access, terms=terms)
    return [(both[True][0], both[False][0], both[True][1]) for both in found.values() if len(both) == 2]


def _halved(index: Expr, column: int) -> tuple[Expr | None, bool] | None:
    """Of the even or the odd places along the columns, those of pairs from where a row begins: twice what is added to
    the column, and whether the places are the even ones."""
    own, two = ix.axis(column), ix.number(2)
    is_even = index.op == "*"
    if not is_even:
        if index.op != "+" or index.args[1] != ix.number(1):
            return None
        index = index.args[0]
    if index.op != "*" or index.args[1] != two:
        return None
    place = index.args[0]
    if place == own:
        return None, is_even
    if place.op == "+" and place.args[1] == own and column not in axes_of(place.args[0]):
        return ix.times(place.args[0], two), is_even
    return None
