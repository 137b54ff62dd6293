"""The kernels of attention in the IR.

A program has a tile of queries and walks over the keys in blocks: the scores of a block, its part of the softmax, and
what that adds to the weighted sum of values. A mask that bounds the keys of a row ends the walk where no row of the
tile sees more, and only the blocks at its edge are masked element by element.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import log

from kernelgen.families.attention.lowering import AttentionBody
from kernelgen.families.attention.writer import Writer
from kernelgen.families.bounds import Bounds, plus, scalar
from kernelgen.families.masks import Affine, Condition
from kernelgen.families.padding import ancestors, finite
from kernelgen.families.values import Use
from kernelgen.plan import Schedule
from kernelgen.spec.model import OperatorSpec
from kernelgen.tile import ir
from kernelgen.tile.carries import LEAST, LOG2_E, OnlineSoftmax
from kernelgen.tile.walk import trimmed

_SCALE = ir.Name("scale_log2")
_BLOCK_M, _BLOCK_N = ir.Name("BLOCK_M"), ir.Name("BLOCK_N")


class Walk:
    """The walk of one program over the keys, from its queries to its stores."""

    def __init__(self, writer: Writer, *, divided: bool = False, joins: bool = False, overlapped: bool = False) -> None:
        """`divided`: it is a part of the keys, from `part_start` to `part_end`. `joins`: it is over such parts.
        `overlapped`: the weights of a block meet its values when the next one has its scores, so that this product runs
        beside the exponentials of the next block, which do not wait for it."""
        assert isinstance(writer.body, AttentionBody)
        self.writer = writer
        self.divided = divided
        self.joins = joins
        self.overlapped = overlapped
        self.body = writer.body
        self.softmax = writer.body.softmax
        self.m, self.n, self.d, self.e = writer.m, writer.n, writer.d, writer.e
        self.mask = self.body.mask()
        self.bounds = Bounds(writer.term, ir.Name("first_row"), _BLOCK_M, self._end, *writer.rows(self.m))
        names = self.body.names.of
        self.out = ir.Name(names[self.softmax.product], (self.m, self.e))
        self.scores = ir.Name(names[self.softmax.scores], (self.m, self.n))
        total = names[self.softmax.row_sums[0]] if self.softmax.row_sums else "row_sum"
        row_max = ir.Name(names[self.softmax.row_max], (self.m,))
        self.exponentials = ir.Name("exponentials", self.scores.shape)
        is_finite = finite(self.body.lowered, self.softmax.row_max) is not None
        self.carry = OnlineSoftmax(row_max, ir.Name(total, (self.m,)), is_finite=is_finite)
        self.correction = ir.Name(self.carry.correction, (self.m,))
        self.scale: ir.Expr = _SCALE
        self.query: ir.Expr = ir.Name("")

    @property
    def _end(self) -> ir.Name:
        """Where the keys end, whatever a mask says."""
        return ir.Name("part_end" if self.divided else "N")

    @property
    def is_longer_later(self) -> bool:
        """Whether later rows see more keys."""
        return any(limit.m > 0 for limit in self.mask.upper()) and not self.mask.lower()

    # Before the walk

    def begin(self) -> tuple[ir.Stmt, ...]:
        """The tile of queries and what the walk carries."""
        w, s = self.writer, self.softmax
        lets, query = w.factor(s.query, (self.m, self.d), self.d)
        self.query = self._aligned(s.query, s.key, query)
        total = None if s.hidden_is_zero or not s.divided else scalar("eq", ir.Name("N"), ir.Number(0))
        start, begun = self.carry.begin(total)
        if total is not None:  # a sum of 1 leaves zeros where there are no keys at all, as a product over none is
            begun = ir.Let(begun.names, begun.value, "a row without keys is 0: its sum becomes 1 before the division")
        zeros = ir.Let((self.out.text,), ir.Zeros(self.out.shape))
        return (*lets, *self._factors(), start, begun, *(self._before() if self.overlapped else ()), zeros)

    def _before(self) -> tuple[ir.Let, ir.Let]:
        """What the first block takes for the weights of one before it, whose values are zeros beyond the tensor."""
        said = "a block's weights meet its values when the next one has its scores; before the first there are none"
        return (
            ir.Let((self.exponentials.text,), ir.Zeros(self.exponentials.shape), said),
            ir.Let((self.correction.text,), ir.Full(ir.Number(1.0), "float32", self.correction.shape)),
        )

    def _aligned(self, own: int, other: int, factor: ir.Expr) -> ir.Expr:
        """A factor in float32, where the one that it is multiplied by is."""
        if self._is_float32(other) and not self._is_float32(own):
            return ir.Cast(factor, "float32")
        return factor

    def _is_float32(self, i: int) -> bool:
        value = self.body.lowered.values[i]
        if value.op == "load":
            return self.writer.types[str(value.tensor)] == "float32"
        return value.op != "round" or value.attr == "float32"

    def _factors(self) -> tuple[ir.Stmt, ...]:
        """What scores are multiplied by in the exponents of two."""
        scale = self.softmax.scale
        factor = 1.0 if self.softmax.of_two else LOG2_E
        if not scale.times and not scale.over:
            self.scale = ir.Number(scale.number * factor)
            return ()
        builder = self.writer.builder
        lets = builder.lets((*scale.times, *scale.over), ())
        whole: ir.Expr = ir.Number(scale.number * factor)
        for op, others in (("mul", scale.times), ("div", scale.over)):
            for i in others:
                whole = scalar(op, whole, builder.value(i, ()))
        self.scale = _SCALE
        return (*lets, ir.Let((_SCALE.text,), whole, "exp2 in place of exp: the scale includes log2(e)"))

    # The walk

    def blocks(self) -> tuple[ir.Stmt, ...]:
        """The blocks of keys that the rows of the tile see, and of these, where a mask bounds them, those that all
        rows see first."""
        upper, lower = self.mask.upper(), self.mask.lower()
        lets = self.writer.builder.lets((*self._mentioned(), *self._unmoving()), (self.m,))
        begin: ir.Expr = ir.Name("part_start") if self.divided else ir.Number(0)
        end = ir.Name("end") if upper else self._end
        statements: list[ir.Stmt] = [*lets]
        if upper:
            statements.append(
                ir.Let(("end",), self.bounds.least([self.bounds.limit(limit, last=True) for limit in upper]))
            )
        if lower:
            first = self.bounds.greatest([self.bounds.limit(limit, last=False) for limit in lower])
            moves = any(limit.m for limit in lower)
            first = scalar("mul", scalar("int_div", first, _BLOCK_N), _BLOCK_N) if moves else first
            statements.append(ir.Let(("first",), first))
            begin = ir.Name("first")
            if not moves and not self.mask.opaque:
                return (*statements, *self._between(upper, lower, end))
        if lower or self.mask.opaque:
            return (*statements, self.loop(begin, end, masked=True, comment=self._said()))
        full = self.bounds.least([self.bounds.limit(limit, last=False) for limit in upper])
        if self.divided or any(limit.terms or limit.number < 0 or limit.m < 0 for limit in upper):
            full = scalar("whole_max", full, begin)
        rounded = scalar("mul", scalar("int_div", full, _BLOCK_N), _BLOCK_N)
        inside = self.loop(begin, ir.Name("full_end"), masked=False, comment=self._said())
        edge = "masked blocks: edge of the mask, and the partial last one" if upper else "the partial last block"
        outside = self.loop(ir.Name("full_end"), end, masked=True, comment=edge)
        said = "every row of the tile sees every key before this one" if upper else ""
        return (*statements, ir.Let(("full_end",), rounded, said), inside, outside)

    def _between(self, upper: Sequence[Affine], lower: Sequence[Affine], end: ir.Expr) -> tuple[ir.Stmt, ...]:
        """The blocks from the first key that a row of the tile sees, of rows that see keys from the same one on."""
        first, full_end = ir.Name("first"), ir.Name("full_end")
        least = self.bounds.least([self.bounds.limit(limit, last=False) for limit in upper])
        count = scalar("whole_max", scalar("sub", full_end, first), ir.Number(0))
        full = scalar("add", first, scalar("mul", scalar("int_div", count, _BLOCK_N), _BLOCK_N))
        said = "every row of the tile sees every key before this one"
        lets = [ir.Let((full_end.text,), least, said), ir.Let((full_end.text,), full)]
        if any(t.of_row for limit in lower for t in limit.terms):
            last = self.bounds.greatest([self.bounds.limit(limit, last=True) for limit in lower])
            same = scalar("where", scalar("eq", last, first), full_end, first)
            lets.append(ir.Let((full_end.text,), same, "only if all rows start at the same key"))
        return (
            *lets,
            self.loop(first, full_end, masked=False, comment=self._said()),
            self.loop(
                full_end, end, masked=True, comment="masked blocks: keys of some rows, and the partial last block"
            ),
        )

    def _unmoving(self) -> list[int]:
        """What the logits and the conditions are computed from and what does not change from key to key."""
        values, keys = self.body.lowered.values, set(self.body.extent("n").axes)
        found: set[int] = set()
        todo = [self.softmax.logits, *(c.value for c in self.softmax.conditions)]
        while todo:
            i = todo.pop()
            if i not in found and i != self.softmax.scores:
                found.add(i)
                todo += [a.value for a in values[i].args if isinstance(a, Use)]
        return [i for i in sorted(found) if not values[i].axes & keys]

    def _said(self) -> str:
        value = self.body.lowered.values[self.softmax.scores]
        if value.statement is None or value.statement in self.writer.builder.quoted:
            return ""
        self.writer.builder.quoted.add(value.statement)
        return self.body.statements[value.statement].text

    def _mentioned(self) -> list[int]:
        return [t.of for b in self.mask.bounds for t in b.limit.terms if isinstance(t.of, int)]

    def _ends_with_mask(self) -> bool:
        """Whether the mask hides what is beyond the last key: of the last row it leaves no more keys than rows."""
        axes = self.body.lowered.space.axes
        sizes = [[axes[a] for a in self.body.extent(name).axes] for name in "mn"]
        within = [b for b in self.mask.upper() if b.m == 1 and not b.terms and b.number <= 1]
        return bool(within) and sizes[0] == sizes[1]

    def loop(self, start: ir.Expr, stop: ir.Expr, *, masked: bool, comment: str) -> ir.For:
        """One walk over blocks of keys. `masked`: a block may have keys that do not exist or that some rows do not
        see."""
        w, s, builder = self.writer, self.softmax, self.writer.builder
        known, whole = dict(builder.known), set(w.whole)
        if not masked:
            w.whole.add(self.n)
        key_lets, key = w.factor(s.key, (self.n, self.d), self.d)
        product = w.product(self.query, ir.Transposed(self._aligned(s.key, s.query, key)))
        builder.known[s.scores] = self.scores
        logits, elements = self._logits(masked=masked)
        softmax, _ = self.carry.step(elements, self.n, self.scale, self.exponentials)
        begun = (*w.numbers(self.n, ir.Name("start")), *w.parts("n", self.n), *key_lets)
        scored = ir.Let((self.scores.text,), product)
        if self.overlapped:
            before = self.weighed(scalar("sub", ir.Name("start"), _BLOCK_N))
            body = (*begun, scored, *before, *logits, *softmax, self.carry.end())
        else:
            body = (*begun, scored, *logits, *softmax, *self.weighed(ir.Name("start")), self.carry.end())
        builder.known, w.whole = known, whole
        kept = {self.out.text, self.carry.row_max.text, self.carry.row_sum.text}
        kept |= {self.exponentials.text, self.correction.text} if self.overlapped else set()
        return ir.For("start", start, stop, _BLOCK_N, trimmed(body, frozenset(kept)), comment=comment)

    def weighed(self, start: ir.Expr) -> tuple[ir.Stmt, ...]:
        """What the weights of the block that begins there add to the weighted sum of values."""
        w, s, known = self.writer, self.softmax, dict(self.writer.builder.known)
        w.first["n"] = start
        lets, value = w.factor(s.value, (self.n, self.e), self.n)
        w.first["n"], w.builder.known = ir.Name("start"), known
        value = ir.Cast(value, "float32") if s.weights is None and not self._is_float32(s.value) else value
        corrected = ir.Apply("mul", (self.out, self.correction), self.out.shape)
        dot = w.product(self._weights(self.exponentials), value, self.out)
        return (*lets, ir.Let((self.out.text,), corrected), ir.Let((self.out.text,), dot))

    def last(self) -> tuple[ir.Stmt, ...]:
        """What the weights of the last block add, where they come behind."""
        if not self.overlapped:
            return ()
        end = ir.Name("end") if self.mask.upper() else self._end
        blocks = scalar("cdiv", end, _BLOCK_N)
        return self.weighed(scalar("mul", plus(blocks, -1), _BLOCK_N))

    def _weights(self, exponentials: ir.Name) -> ir.Expr:
        """The weights as they are multiplied."""
        value = self.softmax.weights
        if value is None:
            return exponentials
        tensor, pointer, _ = value.partition("_ptr.dtype")
        return ir.Cast(exponentials, ir.ElementOf(tensor) if pointer else value)

    def _logits(self, *, masked: bool) -> tuple[tuple[ir.Stmt, ...], ir.Name]:
        """What exponentials are taken of, with the statements that compute it."""
        s, builder, tile = self.softmax, self.writer.builder, self.scores.shape
        found: list[ir.Stmt] = [*builder.lets([s.logits], tile)]
        current = builder.value(s.logits, tile)
        if not isinstance(current, ir.Name):
            found.append(ir.Let(("logits",), current))
            current = ir.Name("logits", tile)
        for condition in s.conditions if masked else ():
            found += builder.lets([condition.value], tile)
            found.append(ir.Let((current.text,), self._seen(condition, current), self._quoted(condition)))
        if masked and not self._ends_with_mask():
            exists = ir.Apply("where", (ir.Name(self.n.mask, (self.n,)), current, ir.Number(float("-inf"))), tile)
            found.append(ir.Let((current.text,), exists))
        return tuple(found), current

    def _seen(self, condition: Condition, current: ir.Name) -> ir.Expr:
        test = self.writer.builder.value(condition.value, self.scores.shape)
        hidden = ir.Number(float("-inf"))
        sides = (current, hidden) if condition.holds else (hidden, current)
        return ir.Apply("where", (test, *sides), self.scores.shape)

    def _quoted(self, condition: Condition) -> str:
        if condition.statement is None or condition.statement in self.writer.builder.quoted:
            return ""
        self.writer.builder.quoted.add(condition.statement)
        return self.body.statements[condition.statement].text

    # After the walk

    def greatest(self) -> ir.Expr:
        """The largest exponents of two."""
        row_max = self.carry.row_max
        return row_max if self.joins else ir.Apply("mul", (row_max, self.scale), row_max.shape)

    def finish(self) -> tuple[ir.Stmt, ...]:
        """The weighted sums divided by the weights' own, and what is computed from them."""
        s, builder = self.softmax, self.writer.builder
        row_max: ir.Expr = self.greatest()
        if not s.of_two:
            row_max = ir.Apply("mul", (row_max, ir.Number(log(2))), row_max.shape)
        named: tuple[ir.Stmt, ...] = ()
        if not isinstance(row_max, ir.Name) and self._mentions_of_row_max() > 1:
            # fused, a product less itself is its rounding error: of scores beyond 2**31 more than exp has numbers for
            rounded = ir.Apply("fmax", (row_max, ir.Number(LEAST)), row_max.shape)
            why = "the maximum has the product rounded first, not fused into an fma with what is subtracted"
            named = (ir.Let((self.carry.row_max.text,), rounded, why),)
            row_max = self.carry.row_max
        builder.known |= dict.fromkeys(s.row_sums, self.carry.row_sum) | {s.row_max: row_max, s.product: self.out}
        statement = self.body.lowered.values[s.product].statement
        builder.quoted |= {statement} if statement is not None else set()
        if not s.divided:
            return (*named, *self.writer.stores())
        total: ir.Expr = self.carry.row_sum
        if s.hidden_is_zero:
            is_zero = ir.Apply("eq", (total, ir.Number(0)), total.shape)
            total = ir.Apply("where", (is_zero, ir.Number(1.0), total), total.shape)
        divided = ir.Apply("div", (self.out, total), self.out.shape)
        comment = "rows that see no key are 0" if s.hidden_is_zero else ""
        return (*named, ir.Let((self.out.text,), divided, comment), *self.writer.stores())

    def _mentions_of_row_max(self) -> int:
        """How often what is computed after the walk reads the largest logits."""
        s, lowered = self.softmax, self.body.lowered
        walked = (s.product, s.row_max, *s.row_sums)
        after = set().union(*(ancestors(lowered, o.value, short_of=walked) for o in lowered.outputs))
        return sum(Use(s.row_max) in lowered.values[i].args for i in after)


def _place(writer: Writer, *, long_first: bool) -> tuple[ir.Stmt, ...]:
    """The batch and the tile of a program, and the numbers of its elements."""
    batched = bool(writer.body.extent("batch").runs)
    program: ir.Expr = ir.Program(0)
    tile = scalar("int_mod", program, ir.Name("num_tiles")) if batched else program
    tile = scalar("sub", plus(ir.Name("num_tiles"), -1), tile) if long_first else tile
    batch = ir.Cast(scalar("int_div", program, ir.Name("num_tiles")), "int64")
    return (
        ir.Let(("num_tiles",), scalar("cdiv", ir.Name("M"), _BLOCK_M)),
        *((ir.Let(("batch",), batch), *writer.batches()) if batched else ()),
        ir.Let(("tile_m",), tile, "later rows see more keys: start with them" if long_first else ""),
        ir.Let(("first_row",), scalar("mul", ir.Name("tile_m"), _BLOCK_M)),
        *writer.numbers(writer.m, ir.Name("first_row")), *writer.parts("m", writer.m),
        *dict.fromkeys((*writer.numbers(writer.d, ir.Number(0)), *writer.numbers(writer.e, ir.Number(0)))),
        *dict.fromkeys((*writer.parts("d", writer.d), *writer.parts("e", writer.e))),
    )  # fmt: skip


def _tiles(body: AttentionBody) -> tuple[str, tuple[tuple[str, str], ...]]:
    """The wrapper's number of programs, and what it counts for that."""
    grid = "tiles_m * BATCH" if body.extent("batch").runs else "tiles_m"
    return grid, (("tiles_m", 'cdiv(M, options["BLOCK_M"])'),)


def walked(
    spec: OperatorSpec, body: AttentionBody, schedule: Schedule, name: str, boxed: frozenset[str] = frozenset(),
    *, overlapped: bool = False,
) -> ir.Kernel:  # fmt: skip
    """A program has a tile of queries and walks over the keys that these see. `boxed`: what descriptors copy.
    `overlapped`: see `Walk`."""
    writer = Writer(spec, body, boxed)
    walk = Walk(writer, overlapped=overlapped)
    place = _place(writer, long_first=walk.is_longer_later)
    inside = trimmed((*place, *walk.begin(), *walk.blocks(), *walk.last(), *walk.finish()))
    grid, counts = _tiles(body)
    constexprs = writer.constexprs("BLOCK_M", "BLOCK_N")
    return ir.Kernel(name, schedule, writer.arguments(inside), constexprs, inside, (grid,), counts=counts)


def split(spec: OperatorSpec, body: AttentionBody, schedule: Schedule, name: str) -> tuple[ir.Kernel, ir.Kernel]:
    """Every program walks over a part of the keys; the second kernel joins the parts in their order, so that results
    repeat."""
    writer = Writer(spec, body)
    walk = Walk(writer, divided=True)
    names = {what: _memory(spec, what) for what in ("parts", "part_maxima", "part_sums")}
    blocks = scalar("cdiv", scalar("cdiv", ir.Name("N"), _BLOCK_N), ir.Name("SPLITS"))
    start = scalar("mul", ir.Name("part"), ir.Name("length"))
    end = scalar("whole_min", scalar("add", ir.Name("part_start"), ir.Name("length")), ir.Name("N"))
    walked = *walk.begin(), *walk.blocks()
    # a scale beyond 1 makes minus infinity of the least number, and that less itself is NaN
    greatest = ir.Apply("fmax", (walk.greatest(), ir.Number(LEAST)), walk.carry.row_max.shape)
    left: tuple[ir.Expr, ...] = (walk.out, walk.carry.capped(greatest), walk.carry.row_sum)
    kept = tuple(zip(names.values(), left, strict=True))
    inside = trimmed((
        *_place(writer, long_first=False), ir.Let(("part",), ir.Program(1)),
        ir.Let(("length",), scalar("mul", blocks, _BLOCK_N)), ir.Let(("part_start",), start),
        ir.Let(("part_end",), end), *walked,
        *(ir.Store(_of_part(walk, tensor, ir.Name("part"), v.shape), v, writer.mask(v.shape)) for tensor, v in kept),
    ))  # fmt: skip
    grid, counts = _tiles(body)
    splits = 'options["SPLITS"]'
    rows = ", ".join([splits, *(["BATCH"] if body.extent("batch").runs else []), "M"])
    scratch = tuple(
        ir.Scratch(tensor, f"({rows}, {writer.e.size})" if what == "parts" else f"({rows})")
        for what, tensor in names.items()
    )
    passed = tuple(ir.Argument(f"{tensor}_ptr", "pointer", tensor) for tensor in names.values())
    first = ir.Kernel(
        name, schedule, (*writer.arguments(inside), *passed), writer.constexprs("BLOCK_M", "BLOCK_N", "SPLITS"),
        inside, (grid, splits), scratch, counts,
    )  # fmt: skip
    return first, _joined(spec, body, schedule, name.replace("_kernel", "_join_kernel"), names, passed)


_PARTS = ir.Axis("parts", "part", "is_part", "SPLITS", "SPLITS")
"""The programs that share a tile's keys."""


def _joined(
    spec: OperatorSpec, body: AttentionBody, schedule: Schedule, name: str, names: dict[str, str],
    passed: tuple[ir.Argument, ...],
) -> ir.Kernel:  # fmt: skip
    """What follows the walk, from what its parts came to. A program has all parts of one row at once: a program with
    several rows that took one part after the other would wait for memory as often as there are parts."""
    writer = Writer(spec, body)
    walk = Walk(writer, joins=True)
    numbers = ir.Name(_PARTS.index, (_PARTS,))

    def loaded(what: str, name: str, shape: ir.Shape, other: float = 0.0) -> tuple[ir.Let, ir.Name]:
        to = ir.Name(name, (_PARTS, *shape))
        load = ir.Load(_of_part(walk, names[what], numbers, to.shape), writer.mask(shape), other)
        return ir.Let((name,), load), to

    load_maxima, maxima = loaded("part_maxima", "part_max", (writer.m,), LEAST)
    load_sums, sums = loaded("part_sums", "part_sum", (writer.m,))
    load_parts, parts = loaded("parts", "part_out", walk.out.shape)
    shares = ir.Name("shares", maxima.shape)
    out = ir.Reduce("sum", ir.Apply("mul", (parts, shares), parts.shape), _PARTS)
    inside = trimmed((
        *_place(writer, long_first=False), ir.Let((numbers.text,), ir.Cast(ir.Range(_PARTS, ir.Number(0)), "int64")),
        load_maxima, load_sums, load_parts, *walk.carry.of_parts(maxima, sums, _PARTS, shares),
        ir.Let((walk.out.text,), out), *walk.finish(),
    ))  # fmt: skip
    own = {"BLOCK_M": "1", "SPLITS": 'options["SPLITS"]'}
    constexprs = tuple((n, host) for n, host in writer.constexprs() if n == writer.e.block)
    grid = "M * BATCH" if body.extent("batch").runs else "M"
    return ir.Kernel(name, schedule, (*passed, *writer.arguments(inside)), (*constexprs, *own.items()), inside, (grid,))


def _memory(spec: OperatorSpec, name: str) -> str:
    """What a buffer between two kernels is called."""
    while name in {t.name for t in (*spec.inputs, *spec.outputs)}:
        name = f"launch_{name}"
    return name


def _of_part(walk: Walk, tensor: str, part: ir.Name, shape: ir.Shape) -> ir.Pointer:
    """Where what a part came to lies, or what several did."""
    slot: ir.Expr = part if part.shape else ir.Cast(part, "int64")
    if walk.body.extent("batch").runs:
        first = ir.Apply("mul", (slot, ir.Name("BATCH")), part.shape)
        slot = ir.Apply("add", (first, ir.Name("batch")), part.shape)
    rows = (*part.shape, walk.m)
    first = ir.Apply("mul", (slot, ir.Name("M")), part.shape)
    row = ir.Apply("add", (first, ir.Name(walk.m.index, (walk.m,))), rows)
    if walk.e not in shape:
        return ir.Pointer(tensor, ((row, None),), shape)
    return ir.Pointer(tensor, ((row, walk.e.size), (ir.Name(walk.e.index, (walk.e,)), None)), shape)
