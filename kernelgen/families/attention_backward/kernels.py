"""The kernels of attention's gradients in the IR.

A program has a tile of queries and walks over the keys that these see, or a tile of keys and walks over the queries
that see these; either way the weights of a block are computed again from the logsumexp of every row, and what the block
adds to the gradients is summed in registers, in one order. Heads that share keys are walked over one after the other.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from kernelgen.families.attention.writer import Writer
from kernelgen.families.attention_backward.lowering import GradientBody
from kernelgen.families.bounds import Bounds, plus, scalar
from kernelgen.families.values import Use
from kernelgen.plan import Schedule
from kernelgen.spec.model import OperatorSpec
from kernelgen.tile import ir
from kernelgen.tile.builder import dtype_of
from kernelgen.tile.walk import trimmed

_SCALE = ir.Name("scale_log2")
_LAST = "the partial last block"
_UNFUSED = (
    "+ 0.0 keeps the product apart from its split into TF32 parts: fused with that, one that overflows makes the sum "
    "NaN, not infinite"
)


class Walk:
    """The walk of one program, from its own tiles to its stores."""

    def __init__(self, writer: Writer, body: GradientBody) -> None:
        self.writer, self.builder, self.body = writer, writer.builder, body
        sides = {"m": writer.m, "n": writer.n}
        self.kept, self.walked = sides[body.kept], sides[body.walked]
        self.tile = (self.kept, self.walked)
        self.heads = tuple(dict.fromkeys((writer.d, writer.e)))
        self.values, self.names = body.lowered.values, body.names.of
        self.mask = body.mask()
        self.start = ir.Name("first_row" if body.kept == "m" else "first_key")
        writer.first |= {body.kept: self.start, body.walked: ir.Name("start")}
        end = ir.Name(self.walked.size)
        self.bounds = Bounds(writer.term, self.start, ir.Name(self.kept.block), end, *writer.rows(self.kept))
        self.scale: ir.Expr = _SCALE
        self.factors: dict[int, ir.Expr] = {}
        """The factors of products by value, as they are multiplied."""
        self.sums = {i: ir.Name(self._gradient(i), (self.kept, self._head(i))) for i in body.outer}
        """What every product that gives a gradient has come to."""

    def _gradient(self, product: int) -> str:
        """What the sum of a product is called: as the output that follows from it."""
        return next(o.name for o in self.body.lowered.outputs if product in self._needed([o.value]))

    def _head(self, product: int) -> ir.Axis:
        own = self.values[product].axes
        return next(x for n, x in (("d", self.writer.d), ("e", self.writer.e)) if own & set(self.body.extent(n).axes))

    def _needed(self, wanted: Iterable[int]) -> set[int]:
        """Values and all that they are made of."""
        found: set[int] = set()
        todo = list(wanted)
        while todo:
            i = todo.pop()
            if i not in found:
                found.add(i)
                todo += self._uses(i)
        return found

    def _uses(self, i: int) -> list[int]:
        return [a.value for a in self.values[i].args if isinstance(a, Use)]

    # Before the walk

    def begin(self) -> Iterator[ir.Stmt]:
        """The program's own tiles, what it knows of every row, and the sums."""
        yield from self._place()
        for product in self.body.inner:
            for i in self._uses(product):
                if self._is_along(i, self.body.kept):
                    yield from self._factor(i, self.kept)
        scale = self.body.weights.scale
        if scale.times or scale.over:
            yield from self.builder.lets((*scale.times, *scale.over), ())
            whole: ir.Expr = ir.Number(scale.number)
            for op, others in (("mul", scale.times), ("div", scale.over)):
                for i in others:
                    whole = scalar(op, whole, self.builder.value(i, ()))
            yield ir.Let((_SCALE.text,), whole, "the scale includes log2(e), as in the forward")
        else:
            self.scale = ir.Number(scale.number)
        yield from self._rows(self.body.kept)
        for total in self.sums.values():
            yield ir.Let((total.text,), ir.Zeros(total.shape))

    def _place(self) -> Iterator[ir.Stmt]:
        """The batch and the tile of a program, and the numbers of its elements."""
        w, kept = self.writer, self.kept
        batched = bool(self.body.extent("batch").runs)
        program: ir.Expr = ir.Program(0)
        long_first = any(limit.m > 0 for limit in self.mask.upper()) and not self.mask.lower()
        tile = scalar("int_mod", program, ir.Name("num_tiles")) if batched else program
        tile = scalar("sub", plus(ir.Name("num_tiles"), -1), tile) if long_first else tile
        number = ir.Name(f"tile_{kept.name}")
        yield ir.Let(("num_tiles",), scalar("cdiv", ir.Name(kept.size), ir.Name(kept.block)))
        if batched:
            yield ir.Let(("batch",), ir.Cast(scalar("int_div", program, ir.Name("num_tiles")), "int64"))
            yield from w.batches()
        yield ir.Let((number.text,), tile, "later rows see more keys: start with them" if long_first else "")
        yield ir.Let((self.start.text,), scalar("mul", number, ir.Name(kept.block)))
        yield from w.numbers(kept, self.start)
        yield from w.parts(self.body.kept, kept)
        for head in self.heads:
            yield from w.numbers(head, ir.Number(0))
        yield from dict.fromkeys((*w.parts("d", w.d), *w.parts("e", w.e)))

    def _rows(self, name: str) -> Iterator[ir.Stmt]:
        """What is known of every query, or what else does not change along the walk: of a block, where that is walked
        over."""
        along = (self.kept if name == self.body.kept else self.walked, *self.heads)
        own = [i for i in sorted(self._needed(self.body.outer)) if self._is_of(i, name)]
        for i in own:
            if self.values[i].op == "sum":  # beyond the end of a head its factors are 0
                (source,) = self._uses(i)
                yield from self.builder.lets([source], along)
                summed = self.builder.value(source, along)
                total = ir.Name(self.names[i], along[:1])
                yield ir.Let((total.text,), ir.Reduce("sum", summed, summed.shape[-1], keeps_nan=False))
                self.builder.known[i] = total
        yield from self.builder.lets((i for i in own if i not in self.factors), along)

    def _is_along(self, i: int, name: str) -> bool:
        return bool(self.values[i].axes & set(self.body.extent(name).axes))

    def _is_of(self, i: int, name: str) -> bool:
        """Whether a value varies along queries, or keys, alone, and is no factor of a product."""
        heads = {a for n in "de" for a in self.body.extent(n).axes}
        other = "n" if name == "m" else "m"
        return self._is_along(i, name) and not self._is_along(i, other) and not self.values[i].axes & heads

    def _factor(self, i: int, axis: ir.Axis) -> Iterator[ir.Stmt]:
        """A tile of a factor, which everything else takes in float32."""
        if i in self.factors:
            return
        head = next(x for n, x in (("d", self.writer.d), ("e", self.writer.e)) if self._is_along(i, n))
        lets, found = self.writer.factor(i, (axis, head), head)
        yield from lets
        self.factors[i] = found
        if self.values[i].op == "load" and not self._is_float32(i):
            self.builder.known[i] = ir.Cast(found, "float32")

    def _is_float32(self, i: int) -> bool:
        value = self.values[i]
        if value.op == "load":
            return self.writer.types[str(value.tensor)] == "float32"
        return value.op != "round" or value.attr == "float32"

    def _aligned(self, own: int, other: int) -> ir.Expr:
        """A factor in float32, where the one that it is multiplied by is."""
        widens = self._is_float32(other) and not self._is_float32(own)
        return ir.Cast(self.factors[own], "float32") if widens else self.factors[own]

    # The walk

    def blocks(self) -> tuple[ir.Stmt, ...]:
        """The blocks that the tile's queries see, or that see its keys: those that a mask cuts are masked."""
        upper, lower = self.mask.upper(), self.mask.lower()
        size, block = ir.Name(self.walked.size), ir.Name(self.walked.block)
        mentioned = [t.of for b in self.mask.bounds for t in b.limit.terms if isinstance(t.of, int)]
        found: list[ir.Stmt] = [*self.builder.lets(mentioned, ())]
        limits = [self.bounds.limit(limit, last=True) for limit in upper]
        end: ir.Expr = size
        if upper:
            found.append(ir.Let(("end",), self.bounds.least(limits)))
            end = ir.Name("end")
        first: ir.Expr = ir.Number(0)
        if lower:
            seen = self.bounds.greatest([self.bounds.limit(limit, last=False) for limit in lower])
            first = ir.Name("first")
            if any(t.of_row for limit in lower for t in limit.terms):
                found.append(ir.Let(("first",), seen))
                seen = first
            found.append(ir.Let(("first",), _begin_of(seen, block)))
        said = self._said()
        if self.mask.opaque or (lower and upper):
            loops = [self._loop(first, end, hides=True, ends=True, comment=said)]
        elif lower:
            full = self.bounds.greatest([self.bounds.limit(limit, last=True) for limit in lower])
            rounded = scalar("mul", scalar("cdiv", full, block), block)
            why = "from here on every row sees every key of the tile" if self.body.kept == "n" else ""
            found.append(ir.Let(("full_start",), scalar("whole_min", rounded, end), why))
            found.append(ir.Let(("full_end",), scalar("whole_max", _begin_of(end, block), ir.Name("full_start"))))
            edge, rest = "masked blocks at the edge of the mask", "blocks past the edge of the mask"
            loops = [
                self._loop(first, ir.Name("full_start"), hides=True, ends=True, comment=said or edge),
                self._loop(ir.Name("full_start"), ir.Name("full_end"), hides=False, ends=False, comment=rest),
                self._loop(ir.Name("full_end"), end, hides=False, ends=True, comment=_LAST),
            ]
        else:
            whole = self.bounds.least([self.bounds.limit(limit, last=False) for limit in upper])
            if any(limit.terms or limit.number < 0 or limit.m < 0 for limit in upper):
                whole = scalar("whole_max", whole, ir.Number(0))
            why = "every row of the tile sees every key before this one" if upper else ""
            found.append(ir.Let(("full_end",), _begin_of(whole, block), why))
            edge = "masked blocks: edge of the mask, and the partial last one" if upper else _LAST
            loops = [
                self._loop(first, ir.Name("full_end"), hides=False, ends=False, comment=said),
                self._loop(ir.Name("full_end"), end, hides=bool(upper), ends=True, comment=edge),
            ]
        runs = self.body.extent("shared").runs
        if runs:
            shared = ir.Name(runs[0].index)
            return (*found, ir.For(shared.text, ir.Number(0), ir.Name("SHARED"), ir.Number(1), tuple(loops)))
        return (*found, *loops)

    def _said(self) -> str:
        value = self.values[self.body.inner[0]]
        if value.statement is None or value.statement in self.builder.quoted:
            return ""
        self.builder.quoted.add(value.statement)
        return self.body.statements[value.statement].text

    def _loop(self, start: ir.Expr, stop: ir.Expr, *, hides: bool, ends: bool, comment: str) -> ir.For:
        """One walk over blocks. `hides`: a mask may hide some of a block; `ends`: a block may end behind the last."""
        w, builder = self.writer, self.builder
        known, factors, whole = dict(builder.known), dict(self.factors), set(w.whole)
        if not ends:
            w.whole.add(self.walked)
        numbers = (*w.numbers(self.walked, ir.Name("start")), *w.parts(self.body.walked, self.walked))
        body = (*numbers, *self._block(hides=hides, ends=ends))
        builder.known, self.factors, w.whole = known, factors, whole
        kept = frozenset(total.text for total in self.sums.values())
        return ir.For("start", start, stop, ir.Name(self.walked.block), trimmed(body, kept), comment=comment)

    def _block(self, *, hides: bool, ends: bool) -> Iterator[ir.Stmt]:
        first, second = self.body.inner
        yield from self._scores(first)
        yield from self._rows(self.body.walked)
        yield from self._weights(hides=hides)
        late = {i for i in self.body.outer if second in self._needed([i])}
        for i in sorted(self.body.outer, key=lambda i: (i in late, i)):
            if i in late and second not in self.builder.known:
                yield from self._scores(second)
            yield from self._added(i, hides=hides, ends=ends)

    def _scores(self, product: int) -> Iterator[ir.Stmt]:
        """A product for every query and key of the block."""
        (own,), (other,) = (
            [i for i in self._uses(product) if self._is_along(i, name)] for name in (self.body.kept, self.body.walked)
        )
        yield from self._factor(other, self.walked)
        made = ir.Name(self.names[product], self.tile)
        turned = ir.Transposed(self._aligned(other, own))
        yield ir.Let((made.text,), self.writer.product(self._aligned(own, other), turned))
        self.builder.known[product] = made

    def _weights(self, *, hides: bool) -> Iterator[ir.Stmt]:
        """The weights of the block, from its scores and the logsumexp of every row."""
        weights = self.body.weights
        yield from self.builder.lets([weights.logits], self.tile)
        logits = self.builder.value(weights.logits, self.tile)
        power: ir.Expr = ir.Apply("mul", (logits, self.scale), self.tile)
        for row in weights.rows:
            power = ir.Apply("sub", (power, self.builder.value(row, (self.writer.m,))), self.tile)
        made = ir.Name(self.names.get(weights.value) or "weights", self.tile)
        yield ir.Let((made.text,), ir.Apply("exp2_flushed", (power,), self.tile))
        if hides:
            yield from self._masked(made)
        hidden = dict(self.body.hidden)
        masked = {weights.value, *(i for i in hidden if hidden[i] == weights.value)}
        self.builder.known |= dict.fromkeys(masked | {i for i in hidden if hidden[i] in masked}, made)

    def _masked(self, made: ir.Name) -> Iterator[ir.Stmt]:
        """0 where a condition does not hold."""
        for condition in self.body.weights.conditions:
            yield from self.builder.lets([condition.value], self.tile)
            test = self.builder.value(condition.value, self.tile)
            sides = (made, ir.Number(0.0)) if condition.holds else (ir.Number(0.0), made)
            yield ir.Let((made.text,), ir.Apply("where", (test, *sides), self.tile))

    def _added(self, product: int, *, hides: bool, ends: bool) -> Iterator[ir.Stmt]:
        """What the block adds to a gradient. Of elements beyond the last the other factor is 0, and this one has to be
        too: infinite keys or values, or what is added to scores, may have made anything of it."""
        left, right = self._uses(product)
        source = left
        while self.values[source].op == "round" and self.values[source].attr == self.values[left].attr:
            (source,) = self._uses(source)
        hidden = dict(self.body.hidden)
        for i in sorted(self._needed([source]) & set(hidden)):
            if i not in self.builder.known:
                yield from self.builder.lets([hidden[i]], self.tile)
                inner = self.builder.value(hidden[i], self.tile)
                if hides:
                    made = inner if isinstance(inner, ir.Name) else ir.Name(self.names[i], self.tile)
                    yield from () if inner == made else (ir.Let((made.text,), inner),)
                    yield from self._masked(made)
                    inner = made
                self.builder.known[i] = inner
        yield from self.builder.lets([source], self.tile)
        yield from self._factor(right, self.walked)
        factor: ir.Expr = self.builder.value(source, self.tile)
        if ends:
            made = factor if isinstance(factor, ir.Name) else ir.Name(self.names[source], self.tile)
            exists = (ir.Name(self.walked.mask, (self.walked,)), factor, ir.Number(0.0))
            yield ir.Let((made.text,), ir.Apply("where", exists, self.tile))
            factor = made
        elif self._is_product(source) and self.writer.splits():
            made = factor if isinstance(factor, ir.Name) else ir.Name(self.names[source], self.tile)
            yield ir.Let((made.text,), ir.Apply("add", (factor, ir.Number(0.0)), self.tile), _UNFUSED)
            factor = made
        taken = self.factors[right]
        if self.values[left].op == "round":
            factor = ir.Cast(factor, dtype_of(self.values[left]))
        elif not self._is_float32(right):
            taken = ir.Cast(taken, "float32")
        total = self.sums[product]
        yield ir.Let((total.text,), self.writer.product(factor, taken, total))

    def _is_product(self, i: int) -> bool:
        """Whether a value is a product element by element, or one where no condition makes it 0."""
        hidden = dict(self.body.hidden)
        while i in hidden:
            i = hidden[i]
        return self.values[i].op == "mul"

    # After the walk

    def finish(self) -> Iterator[ir.Stmt]:
        """The gradients, and what is stored beside them."""
        self.builder.known |= self.sums
        tile = (self.kept, *self.heads)
        for stored, access in self.body.layout.stores:
            yield from self.builder.lets([stored.value], tile)
            yield self.writer.store(stored, access, tile)


def _begin_of(number: ir.Expr, block: ir.Expr) -> ir.Expr:
    """Where the block begins that an element is in."""
    return scalar("mul", scalar("int_div", number, block), block)


def walked(
    spec: OperatorSpec, body: GradientBody, schedule: Schedule, name: str, boxed: frozenset[str] = frozenset()
) -> ir.Kernel:
    """A program has a tile and walks over what it sees, or what sees it. `boxed`: what descriptors copy."""
    writer = Writer(spec, body, boxed)
    walk = Walk(writer, body)
    inside = trimmed((*walk.begin(), *walk.blocks(), *walk.finish()))
    grid = "tiles * BATCH" if body.extent("batch").runs else "tiles"
    counts = (("tiles", f'cdiv({walk.kept.size}, options["{walk.kept.block}"])'),)
    constexprs = writer.constexprs("BLOCK_M", "BLOCK_N")
    return ir.Kernel(name, schedule, writer.arguments(inside), constexprs, inside, (grid,), counts=counts)
