"""Writes the statements of a convolution's kernels: the numbers of pixels, what a tap sees of the input, the walk over
taps and channels."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import prod

from kernelgen.families.access import Access, Group
from kernelgen.families.bounds import scalar
from kernelgen.families.convolution.lowering import (
    NARROW,
    NARROW_PART_CHANNELS,
    PART_CHANNELS,
    SPACE,
    ConvolutionBody,
    may_have_parts,
)
from kernelgen.families.convolution.phases import Phases, phases_of
from kernelgen.families.matmul.writer import PRECISION, Tiled, Writer, multiplies_float32
from kernelgen.families.values import Value
from kernelgen.frontend import indices as ix
from kernelgen.frontend.indices import Condition, Expr
from kernelgen.spec.model import OperatorSpec
from kernelgen.tile import ir
from kernelgen.tile.walk import used_names

_OPERATIONS = {"+": "add", "-": "sub", "*": "mul", "//": "int_div", "%": "int_mod"}
_COMPARED = {"<": "lt", ">=": "ge"}

_OF_A_ROW = "TURNED_C counts the channels of a whole row of the window"
TURNED_CHANNELS = "TURNED_C"
"""The channels of an input whose elements may stand as several TF32 numbers side by side."""


def tiled(body: ConvolutionBody, *, folded: bool = False, parts: bool = False) -> Tiled:
    """Tiles of pixels, output channels, and input channels, or all that is summed."""
    m = ir.Axis("m", "rows", "row_mask", "BLOCK_M", "M")
    n = ir.Axis("n", "cols", "col_mask", "BLOCK_N", "N")
    if folded:
        return Tiled(m, n, ir.Axis("k", "ks", "k_mask", "BLOCK_K", "K"))
    own = next((run.size for run in body.extent("k").runs if run.index == "channels"), "1")
    size = TURNED_CHANNELS if parts else own
    return Tiled(m, n, ir.Axis("k", "channels", "k_mask", "BLOCK_K", size))


class ConvolutionWriter(Writer):
    """Writes one kernel of a convolution."""

    body: ConvolutionBody

    def __init__(
        self,
        spec: OperatorSpec,
        body: ConvolutionBody,
        *,
        folded: bool = False,
        boxes: bool = False,
        strips: bool = False,
        turns: bool = True,
        m: ir.Axis | None = None,
    ) -> None:
        """`strips`: a step sums a row of the window; its tiles are boxes. `m`: the axis of its tiles along pixels, if
        it is not the usual one."""
        self.folded = folded
        self.boxes = boxes
        self.strips = strips
        self.walked = body.taps[:-1] if strips and _is_of_row(body) else body.taps
        """The variables of the taps that are walked over one by one."""
        self.turns = turns and not folded
        """Whether it reads a turned input and a packed weight, which the wrapper makes."""
        self.tf32 = self.turns and multiplies_float32(spec, body)
        """Whether these may hold TF32 numbers."""
        made = tiled(body, folded=folded, parts=strips or (self.tf32 and may_have_parts(body)))
        super().__init__(spec, body, replace(made, m=m) if m else made)
        self.given, self.weight = self.factors()
        self.phases: dict[str, Phases] = {p.d: p for p in phases_of(body)} if turns else {}
        """By the dimension of space."""
        self.places: dict[Expr, ir.Name] = {}
        """Places of the input that have a name."""
        axes = body.lowered.space.axes
        self.wholes = {
            ix.linear(tuple(map(ix.axis, run.axes)), tuple((axes[a],) for a in run.axes)): run
            for run in body.extent("m").runs
            if len(run.axes) > 1
        }
        """What counts pixels along a dimension whose size is a product."""
        self.inside: ir.Expr | None = None
        """Where windows are inside the input, of the pixels that there are."""

    @property
    def m(self) -> ir.Axis:
        assert self.tiled.m is not None
        return self.tiled.m

    def value(self, i: int) -> Value:
        return self.body.lowered.values[i]

    # Where elements are

    def index(self, run: str) -> ir.Expr:
        extent = next(e for e in self.body.layout.extents if any(g.index == run for g in e.runs))
        if extent.name == "m" or (extent.name == "k" and self.folded):
            return ir.Name(run, (self.m if extent.name == "m" else self.tiled.k,))
        if extent.name == "k":
            return ir.Name(run, (self.tiled.k,) if run == "channels" else ())
        return ir.Name("group") if extent.name == "batch" else super().index(run)

    def position(self, expr: Expr) -> ir.Expr:
        """A place that is counted from the numbers of runs."""
        if expr in self.places:
            return self.places[expr]
        if expr in self.wholes:
            return self.index(self.wholes[expr].index)
        match expr.op:
            case "axis":
                run = next(g for e in self.body.layout.extents for g in e.runs if expr.number in g.axes)
                return self.index(run.index)
            case "number" | "size":
                return self.builder.place(expr)
        left, right = (self.position(arg) for arg in expr.args)
        return ir.Apply(_OPERATIONS[expr.op], (left, right), self.together(left, right))

    def together(self, *parts: ir.Expr) -> ir.Shape:
        """The axes along which several values vary."""
        return tuple(a for a in self.tiled.all if any(a in part.shape for part in parts))

    def pointer(self, access: Access, shape: ir.Shape) -> ir.Pointer:
        """Terms that vary along one axis first, the innermost last: few places are added before they are spread."""
        terms = [(self.position(i) if isinstance(i, Expr) else self.index(i), stride) for i, stride in access.terms]
        terms.sort(key=lambda term: (len(term[0].shape), self.tiled.k in term[0].shape))
        return ir.Pointer(access.tensor, tuple(terms), shape)

    def _loaded(self, access: Access, shape: ir.Shape) -> ir.Expr:
        if access.load == self.weight and not self.folded:
            return self.packed(access, shape)
        if self.boxes and access.load == self.given:
            return self.window_box(access)
        if access.load != self.given or self.inside is None:
            return super()._loaded(access, shape)
        rest = [ir.Name(axis.mask, (axis,)) for axis in shape if axis not in self.inside.shape]
        return ir.Load(self.pointer(access, shape), self.all_of([self.inside, *rest], shape), 0.0)

    def window_box(self, access: Access) -> ir.Box:
        """What a tap sees of a box of images: the same box of the input, moved. Of strips: what a row of taps sees."""
        image, *space = self.box_offsets()
        if self.strips:
            taps = (f"tap_{d}" for d in SPACE[self.body.rank][:-1])
            rows = (ir.Name(tap) if tap in self.walked else ir.Number(0) for tap in taps)
            offsets = (image, *rows, *space, ir.Name("first_channel"))
            return ir.Box(f"{access.tensor}_desc", offsets, (self.m, self.tiled.k))
        moved = [named for named, _ in self.moved()]
        return ir.Box(f"{access.tensor}_desc", (image, *moved, ir.Name("first_channel")), (self.m, self.tiled.k))

    def moved(self) -> list[tuple[ir.Expr, ir.Expr]]:
        """Where what a tap sees of a box begins in every dimension of space: a name, and what it is."""
        found: list[tuple[ir.Expr, ir.Expr]] = []
        _, *space = self.box_offsets()
        of_space = zip(
            self.value(self.given).index[2:], space, self.axes_of_space(), SPACE[self.body.rank], strict=True
        )
        for entry, first, axis, d in of_space:
            if d in self.phases:
                found.append((ir.Name(f"in_{d}"), self.seen(d, first)))
            elif isinstance(entry, Expr):
                found.append((ir.Name(f"in_{d}"), self.placed(entry, {axis: first})))
            else:
                found.append((first, first))
        return found

    def seen(self, d: str, place: ir.Expr) -> ir.Expr:
        """What a tap brings to a pixel, by the number of that in its phase."""
        tap = ir.Name(f"tap_{d}") if f"tap_{d}" in self.body.taps else ir.Number(0)
        return self.phases[d].seen(place, tap)

    def packed(self, access: Access, shape: ir.Shape) -> ir.Expr:
        """The weights of a step, by output channel: steps follow one another as what they read does, or taps do of
        which a step skips some."""
        k, n = self.tiled.k, self.tiled.n
        start: ir.Expr = ir.Apply("mul", (ir.Name("step"), ir.Name(k.block)), ())
        start = ir.Name("first_weight") if self.skips else start
        if self.boxes:
            return ir.Transposed(ir.Box(f"{access.tensor}_desc", (ir.Name("first_col"), start), (n, k)))
        row = self.value(access.load).index[0]
        if self.body.windows.transposed:
            channel = self.channel()
        else:
            channel = self.position(row) if isinstance(row, Expr) else self.index(self.body.extent("n").runs[0].index)
        terms = (channel, f"stride_{access.tensor}_row"), (ir.Range(k, start), None)
        return ir.Load(ir.Pointer(access.tensor, terms, shape), ir.Name(n.mask, (n,)), 0.0)

    def channel(self) -> ir.Expr:
        """The output channel, counted through all groups."""
        runs, n = self.body.extent("n").runs, self.tiled.n
        own = self.index(runs[0].index) if len(runs) == 1 else ir.Name(n.index, (n,))
        if not self.body.extent("batch").runs:
            return own
        first = ir.Apply("mul", (ir.Name("group"), ir.Name(n.size)), ())
        return ir.Apply("add", (first, own), (n,))

    @property
    def skips(self) -> bool:
        """Whether steps are of some taps alone."""
        return bool(self.phases and self.body.taps)

    def first_weight(self) -> ir.Let:
        """Where the packed weights of a step begin, by the place of its tap in the window."""
        first, *rest = self.body.taps
        place: ir.Expr = ir.Name(first)
        for tap in rest:
            place = ir.Apply("mul", (place, size_of(self.body.run(tap))), ())
            place = ir.Apply("add", (place, ir.Name(tap)), ())
        start = ir.Apply("mul", (ir.Apply("mul", (place, ir.Name("blocks")), ()), ir.Name(self.tiled.k.block)), ())
        return ir.Let(("first_weight",), ir.Apply("add", (start, ir.Name("first_channel")), ()))

    def made(self) -> tuple[tuple[str, str], ...]:
        """What the wrapper makes of the input and the weight before the launch."""
        given, weight = (self.reads[i].tensor for i in (self.given, self.weight))
        groups, by_output = self.body.windows.groups, weight
        if self.body.windows.transposed:
            parted = f"{weight}.unflatten(0, ({groups}, -1)).transpose(1, 2).flatten(0, 1)"
            by_output = parted if groups > 1 else f"{weight}.transpose(0, 1)"
        parts = f", tf32_parts({given}{self._most_parted(weight)})" if self.tf32 else ""
        if self.strips:
            how = self.body.windows
            ends = tuple(zip(how.padding, how.behind, strict=True))
            rows = f"window_rows({given}, {self.body.window}, {how.stride}, {ends}, {how.dilation}{parts})"
            packed = f'packed_rows({by_output}, options["BLOCK_K"]{parts})'
            return (self.turned(given), rows), (self.turned(weight), packed)
        packed = f'packed_weight({by_output}, options["BLOCK_K"]{parts})'
        return (self.turned(given), f"channels_last({given}{parts})"), (self.turned(weight), packed)

    def _most_parted(self, weight: str) -> str:
        """What `tf32_parts` is told of the channels that are multiplied in parts, if those are not the usual ones."""
        how = self.body.windows
        if how.groups > 1:
            return f", groups={how.groups}"
        if self.body.rank < 3 or how.transposed:
            return ""
        return f", most={PART_CHANNELS} if {weight}.shape[0] > {NARROW} else {NARROW_PART_CHANNELS}"

    def turned(self, tensor: str) -> str:
        """What the wrapper calls a tensor whose channels it has lie side by side."""
        own = "windows" if self.strips else "last"
        name = f"{tensor}_{own}" if tensor == self.reads[self.given].tensor else f"{tensor}_rows"
        return f"launch_{name}" if name in self.types else name

    def arguments(self, body: tuple[ir.Stmt, ...]) -> tuple[ir.Argument, ...]:
        """Those of the statements; what is read by taps is read of the turned input and the packed weight."""
        found = super().arguments(body)
        if not self.turns:
            return found
        given, weight = (self.reads[i].tensor for i in (self.given, self.weight))
        row = f"stride_{weight}_row"
        used = used_names(body)
        strides = [ir.Argument(row, "number", f"{self.turned(weight)}.stride(0)")] if row in used else []
        if TURNED_CHANNELS in used:
            channels = -1 if self.strips else 1
            strides.append(ir.Argument(TURNED_CHANNELS, "number", f"{self.turned(given)}.shape[{channels}]"))
        hosts = {t: self.turned(t) for t in (given, weight)}
        return (
            *(replace(a, host=re.sub(rf"^({given}|{weight})(?=$|\.)", lambda m: hosts[m[1]], a.host)) for a in found),
            *strides,
        )

    def box_offsets(self) -> tuple[ir.Expr, ...]:
        """Where a box of the result begins: its image, and its place in every dimension of space."""
        named = dict(zip(self.body.pixels, self.body.pixels, strict=True))
        names = ["images", *(f"out_{d}" for d in SPACE[self.body.rank])]
        return tuple(ir.Name(first_of(name)) if name in named else ir.Number(0) for name in names)

    def axes_of_space(self) -> tuple[int | None, ...]:
        """The axis of every dimension of space; None for one of one element."""
        own = {g.index: g.axes[0] for g in self.body.extent("m").runs}
        return tuple(own.get(f"out_{d}") for d in SPACE[self.body.rank])

    def placed(self, expr: Expr, known: Mapping[int | None, ir.Expr]) -> ir.Expr:
        """A place with some axes at numbers of their own."""
        axis = self.wholes[expr].axes[0] if expr in self.wholes else expr.number if expr.op == "axis" else None
        if axis is not None and axis in known:
            return known[axis]
        if not expr.args:
            return self.position(expr)
        left, right = (self.placed(arg, known) for arg in expr.args)
        return ir.Apply(_OPERATIONS[expr.op], (left, right), self.together(left, right))

    def all_of(self, parts: Sequence[ir.Expr], shape: ir.Shape) -> ir.Expr:
        whole = parts[0]
        for part in parts[1:]:
            whole = ir.Apply("and", (whole, part), tuple(a for a in shape if a in self.together(whole, part)))
        return whole

    def condition(self, condition: Condition) -> ir.Expr:
        left, right = self.position(condition.left), self.position(condition.right)
        return ir.Apply(_COMPARED[condition.op], (left, right), self.together(left, right))

    def _descriptor(self, name: str) -> ir.Argument:
        """Of the turned input or the packed weight."""
        if name == self.reads[self.weight].tensor:
            return ir.Argument(f"{name}_desc", "descriptor", name, ("BLOCK_N", "BLOCK_K"))
        names = ["BLOCK_B", *(f"BLOCK_{d.upper()}" for d in SPACE[max(self.body.rank, 2)][-self.body.rank :])]
        own = {block_of(run) for run in self.body.extent("m").runs}
        block = (*(b if b in own else "1" for b in names), "BLOCK_K")
        if self.strips:
            rows = ["1"] * (self.body.rank - 1)
            return ir.Argument(f"{name}_desc", "descriptor", name, (block[0], *rows, *block[1:]))
        return ir.Argument(f"{name}_desc", "descriptor", f"{name}.movedim(1, -1)", block)

    # The parts of a kernel

    def pixel_numbers(self) -> tuple[ir.Let, ...]:
        """The numbers of a tile's pixels, taken apart into image and place in int32, which divides faster."""
        m, extent = self.m, self.body.extent("m")
        if self.body.pool:
            return self._pixels_of_windows()
        rows = ir.Name(m.index, (m,))
        first = ir.Let(("first_row",), ir.Apply("mul", (ir.Name("tile_m"), ir.Name(m.block)), ()))
        found = [
            first, ir.Let((m.index,), ir.Range(m, ir.Name("first_row"))),
            ir.Let((m.mask,), ir.Apply("lt", (rows, ir.Name(m.size)), (m,))),
        ]  # fmt: skip
        sizes = self.places_of(extent.runs)
        for position, run in enumerate(extent.runs):
            found += self.numbered_pixel(run, taken_apart(rows, sizes, position))
        return tuple(found) if not self.phases else self._within(found, extent.runs)

    def _pixels_of_windows(self) -> tuple[ir.Let, ...]:
        """The numbers of a tile's pixels, those of a window one after the other."""
        m, runs, count = self.m, self.body.extent("m").runs, prod(self.body.pool)
        rows, windows, within = (ir.Name(name, (m,)) for name in (m.index, "windows", "within"))
        found = [
            ir.Let(("first_row",), ir.Apply("mul", (ir.Name("tile_m"), ir.Name(m.block)), ())),
            ir.Let((m.index,), ir.Range(m, ir.Name("first_row"))),
            ir.Let(("windows",), ir.Apply("int_div", (rows, ir.Number(count)), (m,)), "of one window after the other"),
            ir.Let(("within",), ir.Apply("int_mod", (rows, ir.Number(count)), (m,))),
        ]
        sides = {run: ir.Number(self.side_of(run)) for run in runs if self.side_of(run) > 1}
        along = self.windows_along(runs)
        for position, run in enumerate(runs):
            number = taken_apart(windows, along, position)
            if not position:
                exists = ir.Apply("lt", (number, along[0]), (m,))
            if run in sides:
                side, place = sides[run], taken_apart(within, tuple(sides.values()), [*sides].index(run))
                number = ir.Apply("add", (ir.Apply("mul", (number, side), (m,)), place), (m,))
            found.append(ir.Let((run.index,), ir.Cast(number, "int64")))
        return (*found, ir.Let((m.mask,), exists))

    def side_of(self, run: Group) -> int:
        """The pixels of a window of a pool along a run of pixels."""
        return 1 if run.index == "images" else self.body.pool[self.body.space_of(run.index)]

    def windows_along(self, runs: Sequence[Group]) -> tuple[ir.Expr, ...]:
        """How many windows of a pool there are along runs of pixels."""
        sizes = ((size_of(run), self.side_of(run)) for run in runs)
        return tuple(scalar("int_div", size, ir.Number(side)) if side > 1 else size for size, side in sizes)

    def places_of(self, runs: Sequence[Group]) -> tuple[ir.Expr, ...]:
        """How many places of runs of pixels a program's own number counts: of phases, those of the longest."""
        by_run = {f"out_{d}": p.count for d, p in self.phases.items()}
        return tuple(by_run.get(run.index) or size_of(run) for run in runs)

    def numbered_pixel(self, run: Group, number: ir.Expr) -> list[ir.Let]:
        """The number of a pixel along a run, by that among those of a program's own phase."""
        own = self.phases.get(run.index.removeprefix("out_"))
        if own is None:
            return [ir.Let((run.index,), ir.Cast(number, "int64"))]
        place = ir.Name(f"place_{own.d}", (self.m,))
        return [ir.Let((place.text,), ir.Cast(number, "int64")), ir.Let((run.index,), own.pixel(place))]

    def _within(self, numbers: list[ir.Let], runs: Sequence[Group]) -> tuple[ir.Let, ...]:
        """The numbers of the pixels of a phase, and which of them exist: those of the first run that it has, and of
        phases, which may have one pixel fewer than the longest."""
        m = self.m
        tests = [
            ir.Apply("lt", (ir.Name(run.index, (m,)), size_of(run)), (m,))
            for run in runs
            if run is runs[0] or run.index.removeprefix("out_") in self.phases
        ]
        rest = [let for let in numbers if let.names != (m.mask,)]
        return (*rest, ir.Let((m.mask,), self.all_of(tests, (m,))))

    def box_numbers(self) -> tuple[ir.Let, ...]:
        """The numbers of a box's pixels."""
        m, runs = self.m, self.body.extent("m").runs
        found: list[ir.Let] = []
        whole: ir.Expr = ir.Name("tile_m")
        for run in reversed(runs):
            tiles = ir.Name(tiles_of(run))
            number = whole if run is runs[0] else ir.Apply("int_mod", (whole, tiles), ())
            start = ir.Apply("mul", (number, ir.Name(block_of(run))), ())
            found.insert(0, ir.Let((first_of(run.index),), start))
            whole = ir.Apply("int_div", (whole, tiles), ())
        found.append(ir.Let(("pixels",), ir.Range(m, ir.Number(0))))
        pixels = ir.Name("pixels", (m,))
        inside: ir.Expr | None = None
        for position, run in enumerate(runs):
            place: ir.Expr = pixels
            for inner in reversed(runs[position + 1 :]):
                place = ir.Apply("int_div", (place, ir.Name(block_of(inner))), (m,))
            if position:
                place = ir.Apply("int_mod", (place, ir.Name(block_of(run))), (m,))
            place = ir.Apply("add", (ir.Name(first_of(run.index)), place), (m,))
            found += self.numbered_pixel(run, place)
            test = ir.Apply("lt", (ir.Name(run.index, (m,)), size_of(run)), (m,))
            inside = test if inside is None else ir.Apply("and", (inside, test), (m,))
        assert inside is not None
        return (*found, ir.Let((m.mask,), inside))

    def windows(self) -> tuple[ir.Let, ...]:
        """Where the taps of a step see the input, and whether that is inside."""
        if self.strips:
            return ()
        if self.boxes:
            return tuple(ir.Let((str(n.text),), p) for n, p in self.moved() if isinstance(n, ir.Name) and n != p)
        value = self.value(self.given)
        found = []
        spaces = [e for e in value.index[2:] if isinstance(e, Expr)]
        of_space = dict(zip((i for i, e in enumerate(value.index[2:]) if isinstance(e, Expr)), spaces, strict=True))
        for d, expr in of_space.items():
            letter = SPACE[self.body.rank][d]
            name = f"in_{letter}"
            own = letter in self.phases
            place = self.seen(letter, ir.Name(f"place_{letter}", (self.m,))) if own else self.position(expr)
            found.append(ir.Let((name,), place))
            self.places[expr] = ir.Name(name, place.shape)
        # the taps of a phase are those that reach its pixels
        conditions = [c for c in value.conditions if c.left.op != "%" or not self.phases]
        if conditions:
            tests = [self.condition(c) for c in conditions]
            shape = self.together(ir.Name(self.m.mask, (self.m,)), *tests)
            # beyond the last tap elements of the input may be infinite, which a weight of 0 does not hide
            inside = self.all_of([*(ir.Name(axis.mask, (axis,)) for axis in shape), *tests], shape)
            found.append(ir.Let(("inside",), inside))
            self.inside = ir.Name("inside", shape)
        return tuple(found)

    def taps(self, number: ir.Expr) -> tuple[ir.Let, ...]:
        """The place in the window of one tap."""
        runs = tuple(self.body.run(tap) for tap in self.walked)
        whole, found = (number, []) if len(runs) == 1 else (ir.Name("tap"), [ir.Let(("tap",), number)])
        for i, run in enumerate(runs):
            place = taken_apart(whole, self.taps_of(runs), i)
            own = self.phases.get(run.index.removeprefix("tap_"))
            found.append(ir.Let((run.index,), own.tap(place) if own else place))
        return tuple(found)

    def taps_of(self, runs: Sequence[Group]) -> tuple[ir.Expr, ...]:
        """How many taps of a program's own there are along each of some runs."""
        by_run = {f"tap_{d}": p.taps for d, p in self.phases.items()}
        return tuple(by_run.get(run.index) or size_of(run) for run in runs)

    def steps(self, *, precision: bool, swap: bool) -> ir.For:
        """The walk over the taps of the window, and for each over the channels."""
        k = self.tiled.k
        if self.folded:
            before: tuple[ir.Let, ...] = self._everything_summed()
            ends: tuple[ir.Expr, ir.Expr, ir.Expr] = ir.Number(0), ir.Name(k.size), ir.Name(k.block)
        else:
            blocks, step = ir.Name("blocks"), ir.Name("step")
            taps = self.taps(ir.Apply("int_div", (step, blocks), ()))
            first = ir.Apply("mul", (ir.Apply("int_mod", (step, blocks), ()), ir.Name(k.block)), ())
            before = (
                *taps,
                ir.Let(("first_channel",), first, _OF_A_ROW if self.strips else ""),
                *([self.first_weight()] if self.skips else []),
                ir.Let((k.index,), ir.Cast(ir.Range(k, ir.Name("first_channel")), "int64")),
                ir.Let((k.mask,), ir.Apply("lt", (ir.Name(k.index, (k,)), ir.Name(k.size)), (k,))),
            )
            ends = ir.Number(0), self.count(blocks), ir.Number(1)
        known = dict(self.builder.known)
        places = self.windows()
        a_lets, a = self.factor(self.given, (self.m, k))
        b_lets, b = self.factor(self.weight, (k, self.tiled.n))
        self.builder.known = known
        carry = ir.Name(self.carry().text, (self.tiled.n, self.m) if swap else (self.m, self.tiled.n))
        sides = (ir.Transposed(b), ir.Transposed(a)) if swap else (a, b)
        dot = ir.Let((carry.text,), ir.Dot(*sides, carry, PRECISION if precision else None))
        inside = (*before, *places, *a_lets, *b_lets, dot)
        return ir.For("start" if self.folded else "step", *ends, inside, comment=self.said())

    def count(self, blocks: ir.Expr) -> ir.Expr:
        """The steps of all taps."""
        sizes = list(self.taps_of([self.body.run(tap) for tap in self.walked]))
        # a window of one tap reaches one phase
        sizes += [p.taps for d, p in self.phases.items() if f"tap_{d}" not in self.body.taps]
        numbers = prod(int(size.value) for size in sizes if isinstance(size, ir.Number))
        named = [size for size in sizes if not isinstance(size, ir.Number)]
        whole = blocks
        for factor in (*reversed(named), *([ir.Number(numbers)] if numbers > 1 else [])):
            whole = ir.Apply("mul", (factor, whole), ())
        return whole

    def _everything_summed(self) -> tuple[ir.Let, ...]:
        """Taps and channels by the number of a product among all of a sum."""
        k, runs = self.tiled.k, self.body.extent("k").runs
        ks = ir.Name(k.index, (k,))
        return (
            ir.Let((k.index,), ir.Range(k, ir.Name("start"))),
            ir.Let((k.mask,), ir.Apply("lt", (ks, ir.Name(k.size)), (k,))),
            *(ir.Let((r.index,), taken_apart(ks, tuple(map(size_of, runs)), i)) for i, r in enumerate(runs)),
        )


def _is_of_row(body: ConvolutionBody) -> bool:
    """Whether a window has several taps along the last dimension of space."""
    return bool(body.taps) and body.taps[-1] == f"tap_{SPACE[body.rank][-1]}"


def size_of(run: Group) -> ir.Expr:
    return ir.Number(int(run.size)) if run.size.isdigit() else ir.Name(run.size)


def taken_apart(whole: ir.Expr, sizes: tuple[ir.Expr, ...], position: int) -> ir.Expr:
    """The number along one of some dimensions from that of an element of them all."""
    found: ir.Expr = whole
    for size in reversed(sizes[position + 1 :]):
        found = ir.Apply("int_div", (found, size), whole.shape)
    return ir.Apply("int_mod", (found, sizes[position]), whole.shape) if position else found


def cdiv(size: str, block: str) -> ir.Expr:
    return ir.Apply("cdiv", (ir.Name(size), ir.Name(block)), ())


def first_of(run: str) -> str:
    """Where a run of pixels begins in a program's box."""
    return "first_image" if run == "images" else f"first_{run.removeprefix('out_')}"


def block_of(run: Group) -> str:
    """The constexpr that says how many of a run a box has."""
    names = {"images": "BLOCK_B", "out_l": "BLOCK_W"}
    return names.get(run.index) or f"BLOCK_{run.index.removeprefix('out_').upper()}"


def tiles_of(run: Group) -> str:
    """How many boxes there are along a run of pixels."""
    return f"tiles_{run.index.removeprefix('out_')}"
