"""The kernels of a convolution in the IR, variant by variant.

A program computes a tile of pixels by output channels: for every tap of the window, and block after block of the
channels, the pixels of the input that the tap sees by the weights that it has for them, on the matrix units (implicit
GEMM). `gather` finds these pixels one by one, by pointers, whatever stride, layout and padding; `boxes` has the copy
engine of sm_90 bring them as a box of an input whose channels lie side by side, zero beyond its edges; `strips` does so
with a row of the window at once, whose taps lie side by side too; `folded` sums over taps and channels alike, for a few
channels.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from math import prod
from types import MappingProxyType

from kernelgen.families.convolution.lowering import ConvolutionBody
from kernelgen.families.convolution.phases import Phases, own_phase
from kernelgen.families.convolution.pooled import ending
from kernelgen.families.convolution.writer import ConvolutionWriter, block_of, cdiv, tiles_of
from kernelgen.families.matmul.writer import PRECISION, multiplies_float32
from kernelgen.plan import Schedule
from kernelgen.spec.model import OperatorSpec
from kernelgen.tile import ir
from kernelgen.tile.walk import trimmed


def own_tile(body: ConvolutionBody, tiles_m: ir.Expr, number: ir.Expr | None = None) -> tuple[ir.Let, ...]:
    """What finds a program's group, and its tile of pixels and channels within that. `number`: the program's."""
    tiles_n = cdiv("N", "BLOCK_N")
    number = number or ir.Program(0)
    found: tuple[ir.Let, ...] = ()
    if body.extent("batch").runs:
        tiles = ir.Apply("mul", (tiles_m, tiles_n), ())
        group = ir.Apply("int_div", (number, ir.Name("tiles")), ())
        found = ir.Let(("tiles",), tiles), ir.Let(("group",), ir.Cast(group, "int64"))
        number = ir.Apply("int_mod", (number, ir.Name("tiles")), ())
    return (*found, ir.Let(("tile_m", "tile_n"), ir.Call("tile_of", (number, tiles_m, tiles_n, ir.Name("GROUP_M")))))


def programs(body: ConvolutionBody, tiles: str, phases: Mapping[str, Phases] = MappingProxyType({})) -> str:
    """The wrapper's expression for the programs of all groups and phases."""
    groups, of_phases = body.extent("batch"), prod(p.stride for p in phases.values())
    tiles = f"{tiles} * {groups.size}" if groups.runs else tiles
    return f"{tiles} * {of_phases}" if phases else tiles


_TILES_N = ("tiles_n", 'cdiv(N, options["BLOCK_N"])')


def gather(
    spec: OperatorSpec, body: ConvolutionBody, schedule: Schedule, name: str, *, folded: bool = False
) -> ir.Kernel:
    """Pixels are loaded by pointers. `folded`: taps and channels are one run of what is summed."""
    writer = ConvolutionWriter(spec, body, folded=folded)
    phases, runs = writer.phases, body.extent("m").runs
    if not phases:
        own = own_tile(body, cdiv("M", "BLOCK_M"))
        counted = "M"
    else:
        places = writer.places_of(runs)
        tiles = ir.Apply("cdiv", (_product(places), ir.Name("BLOCK_M")), ())
        own = (*own_phase(tuple(phases.values())), ir.Let(("tiles_m",), tiles))
        own = (*own, *own_tile(body, ir.Name("tiles_m"), ir.Name("program")))
        hosts = {f"out_{d}": p.host_count for d, p in phases.items()}
        counted = " * ".join(hosts.get(run.index, run.size) for run in runs)
    counts = (("tiles_m", f'cdiv({counted}, options["BLOCK_M"])'), _TILES_N)
    return _kernel(writer, schedule, name, (*own, *writer.pixel_numbers()), ("BLOCK_M",), counts)


def boxes(
    spec: OperatorSpec, body: ConvolutionBody, schedule: Schedule, name: str, *, strips: bool = False
) -> ir.Kernel:
    """Pixels are loaded as boxes by descriptors, from channels that lie side by side. `strips`: with those of a row of
    the window."""
    writer = ConvolutionWriter(spec, body, boxes=True, strips=strips)
    own, extents, counts = own_box(writer, lambda extent: f'options["{extent}"]')
    counts += (_TILES_N,)
    kernel = _kernel(
        writer, schedule, name, (*own, *writer.box_numbers()), ("BLOCK_M", *extents), counts
    )  # fmt: skip
    given, weight = (writer.reads[i].tensor for i in (writer.given, writer.weight))
    constexprs = tuple((n, n.lower() if n in extents else host) for n, host in kernel.constexprs)
    return replace(kernel, constexprs=constexprs, fits=f"fit_channels({given}, {weight})")


def own_box(
    writer: ConvolutionWriter, block: Callable[[str], str]
) -> tuple[tuple[ir.Let, ...], tuple[str, ...], tuple[tuple[str, str], ...]]:
    """What finds a program's box of pixels, what its sides are called, and what the wrapper counts before the launch.
    `block`: the wrapper's expression for a side."""
    body, phases, runs = writer.body, writer.phases, writer.body.extent("m").runs
    each = [
        ir.Apply("cdiv", (size, ir.Name(block_of(run))), ())
        for size, run in zip(writer.places_of(runs), runs, strict=True)
    ]
    along = [ir.Let((tiles_of(run),), tiles) for tiles, run in zip(each[1:], runs[1:], strict=True)]
    whole_tiles = _product((each[0], *(ir.Name(tiles_of(run)) for run in runs[1:])))
    own = (*own_phase(tuple(phases.values())),) if phases else ()
    number = ir.Name("program") if phases else None
    own = (*own, *along, ir.Let(("tiles_m",), whole_tiles), *own_tile(body, ir.Name("tiles_m"), number))
    extents = tuple(block_of(run) for run in runs)
    inner = " * ".join(map(str.lower, extents[1:]))
    whole = f"{block('BLOCK_M')} // {f'({inner})' if len(extents) > 2 else inner}" if inner else block("BLOCK_M")
    hosts = {f"out_{d}": p.host_count for d, p in phases.items()}
    counts = [
        *((extent.lower(), block(extent)) for extent in extents[1:]), (extents[0].lower(), whole),
        *((tiles_of(run), f"cdiv({hosts.get(run.index, run.size)}, {block_of(run).lower()})") for run in runs),
        ("tiles_m", " * ".join(map(tiles_of, runs))),
    ]  # fmt: skip
    return own, extents, tuple(counts)


def _product(sizes: Sequence[ir.Expr]) -> ir.Expr:
    whole = sizes[0]
    for size in sizes[1:]:
        whole = ir.Apply("mul", (whole, size), ())
    return whole


def _kernel(
    writer: ConvolutionWriter,
    schedule: Schedule,
    name: str,
    before: tuple[ir.Let, ...],
    blocks: tuple[str, ...],
    counts: tuple[tuple[str, str], ...],
) -> ir.Kernel:
    """A program computes one tile, whose pixels `before` numbers."""
    spec, body = writer.spec, writer.body
    m, n, k = writer.m, writer.tiled.n, writer.tiled.k
    precision = multiplies_float32(spec, body)
    swap = bool(schedule.get("swap"))
    shape = (n, m) if swap else (m, n)
    numbers = (*before, *writer.numbers(body.extent("n"), n, "tile_n"))
    each = () if writer.folded else (ir.Let(("blocks",), cdiv(k.size, k.block)),)
    loop = writer.steps(precision=precision, swap=swap)
    writer.all_finished()
    inside = trimmed((*numbers, *each, *writer.begun(shape), loop, *writer.unswapped(swap=swap), *ending(writer)))
    names = (*blocks, "BLOCK_N", "BLOCK_K", "GROUP_M")
    constexprs: list[tuple[str, str | None]] = [(constexpr, None) for constexpr in names]
    if precision:
        constexprs.append((PRECISION, "convolution_precision()"))
    grid = (programs(body, "tiles_m * tiles_n", writer.phases),)
    return ir.Kernel(
        name, schedule, writer.arguments(inside), tuple(constexprs), inside, grid, counts=counts,
        made=writer.made() if writer.turns else (),
    )  # fmt: skip
