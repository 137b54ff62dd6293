"""Transposed convolutions with strides, phase by phase.

Pixels whose numbers leave the same remainder by the stride are a phase. The same taps reach all of a phase, and what
one tap brings to neighbours of a phase are neighbours in the input: a phase is a convolution with stride 1. A program
computes pixels of one; programs of different phases with the same numbers follow one another, because they read the
same input and write the same lines of memory.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd, prod

from kernelgen.families.convolution.lowering import SPACE, ConvolutionBody
from kernelgen.tile import ir


@dataclass(frozen=True)
class Phases:
    """The phases along one dimension of space."""

    d: str
    """What the dimension is called."""
    size: str
    """How the size of the result is called along it."""
    stride: int
    padding: int
    dilation: int
    window: int

    @property
    def phase(self) -> ir.Name:
        """The number of a program's own."""
        return ir.Name(f"phase_{self.d}")

    @property
    def count(self) -> ir.Name:
        """How many pixels the longest phase has."""
        return ir.Name(f"places_{self.d}")

    @property
    def host_count(self) -> str:
        """The same as the wrapper computes it."""
        return f"cdiv({self.size}, {self.stride})"

    @property
    def common(self) -> int:
        """Dilated taps reach no more than every so-manieth phase."""
        return gcd(self.stride, self.dilation)

    @property
    def step(self) -> int:
        """Every so-manieth tap reaches a phase."""
        return self.stride // self.common

    @property
    def first_tap(self) -> ir.Expr:
        """The first tap that reaches the phase."""
        if self.step == 1:
            return ir.Number(0)
        return ir.Name(f"first_tap_{self.d}")

    @property
    def taps(self) -> ir.Expr:
        """How many reach it."""
        same = self.common == 1 and self.window % self.step == 0
        return ir.Number(self.window // self.step) if same else ir.Name(f"taps_{self.d}")

    def lets(self) -> tuple[ir.Let, ...]:
        """What a program knows of its phase: the first tap, and how many."""
        begun = _add(self.phase, self.padding)
        found = [ir.Let((self.count.text,), ir.Apply("cdiv", (ir.Name(self.size), ir.Number(self.stride)), ()))]
        if isinstance(self.first_tap, ir.Name):
            part = _scalar("int_div", begun, self.common) if self.common > 1 else begun
            inverse = pow(self.dilation // self.common, -1, self.step)
            part = _scalar("mul", part, inverse) if inverse > 1 else part
            found.append(ir.Let((self.first_tap.text,), _scalar("int_mod", part, self.step)))
        if isinstance(self.taps, ir.Name):
            rest: ir.Expr = ir.Number(self.window)
            if isinstance(self.first_tap, ir.Name):
                rest = ir.Apply("sub", (rest, self.first_tap), ())
                rest = ir.Apply("cdiv", (rest, ir.Number(self.step)), ())
            if self.common > 1:
                reached = ir.Apply("eq", (_scalar("int_mod", begun, self.common), ir.Number(0)), ())
                rest = ir.Apply("where", (reached, rest, ir.Number(0)), ())
            found.append(ir.Let((self.taps.text,), rest))
        return tuple(found)

    def tap(self, number: ir.Expr) -> ir.Expr:
        """A tap of the window by its number among those that reach the phase."""
        if self.taps == ir.Number(1):
            return self.first_tap
        place = _scalar("mul", number, self.step) if self.step > 1 else number
        return place if self.first_tap == ir.Number(0) else ir.Apply("add", (self.first_tap, place), ())

    def pixel(self, place: ir.Expr) -> ir.Expr:
        """A pixel by its number within the phase."""
        scaled = ir.Apply("mul", (place, ir.Number(self.stride)), place.shape)
        return ir.Apply("add", (scaled, self.phase), place.shape)

    def seen(self, place: ir.Expr, tap: ir.Expr) -> ir.Expr:
        """The element of the input that a tap brings to a pixel of the phase."""
        moved = _add(self.phase, self.padding)
        if tap != ir.Number(0):
            across = _scalar("mul", tap, self.dilation) if self.dilation > 1 else tap
            moved = ir.Apply("sub", (moved, across), ())
        # exact, so that it does not matter which way a negative number is rounded
        return ir.Apply("add", (place, _scalar("int_div", moved, self.stride)), place.shape)


def phases_of(body: ConvolutionBody) -> tuple[Phases, ...]:
    """Those of every dimension of space with a stride, of a transposed convolution."""
    windows = body.windows
    if not windows.transposed:
        return ()
    sizes = {run.index: run.size for run in body.extent("m").runs}
    return tuple(
        Phases(d, sizes[f"out_{d}"], stride, windows.padding[i], windows.dilation[i], body.window[i])
        for i, (d, stride) in enumerate(zip(SPACE[body.rank], windows.stride, strict=True))
        if stride > 1
    )


def own_phase(phases: tuple[Phases, ...]) -> tuple[ir.Let, ...]:
    """What finds a program's phase along every dimension, and its number among the programs of that phase."""
    whole = prod(p.stride for p in phases)
    said = "pixels of one phase per program, which the same taps reach; consecutive programs take the other phases"
    found = [ir.Let(("program",), _scalar("int_div", ir.Program(0), whole), said)]
    number: ir.Expr = ir.Program(0)
    if len(phases) > 1:
        found.append(ir.Let(("phase",), _scalar("int_mod", number, whole)))
        number = ir.Name("phase")
    rest = whole
    for p in phases:
        before, rest = rest, rest // p.stride
        own = _scalar("int_div", number, rest) if rest > 1 else number
        own = _scalar("int_mod", own, p.stride) if before < whole or number != ir.Name("phase") else own
        found.append(ir.Let((p.phase.text,), own))
    return (*found, *(let for p in phases for let in p.lets()))


def _scalar(op: str, left: ir.Expr, right: int) -> ir.Expr:
    return ir.Apply(op, (left, ir.Number(right)), ())


def _add(left: ir.Expr, right: int) -> ir.Expr:
    return _scalar("add", left, right) if right else left
