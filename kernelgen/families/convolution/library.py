"""Torch's own convolution, where it is faster, and what follows it."""

from __future__ import annotations

from kernelgen.families.convolution.kernels import own_box, own_tile, programs
from kernelgen.families.convolution.lowering import SPACE, ConvolutionBody, place_of
from kernelgen.families.convolution.pooled import ending
from kernelgen.families.convolution.schedules import has_bias
from kernelgen.families.convolution.writer import ConvolutionWriter
from kernelgen.families.matmul.kernels import reduces
from kernelgen.families.values import Stored, Use, axes_of
from kernelgen.plan import Schedule
from kernelgen.spec.constraints import facts_of
from kernelgen.spec.model import OperatorSpec
from kernelgen.tile import ir
from kernelgen.tile.walk import trimmed

_BLOCK = 64
"""Pixels and channels of a tile of what follows: a run of either is a few cache lines, whichever lie side by side."""
_COLUMNS = 32
_BOX = {"BLOCK_D": 1, "BLOCK_H": 4, "BLOCK_W": 32}
"""Channels and pixels of a box of what follows."""
_SUMS = 4096
"""Elements of a tile that holds all channels."""


def by_library(spec: OperatorSpec, body: ConvolutionBody, schedule: Schedule, name: str) -> tuple[ir.Step, ...]:
    """Torch's convolution, then what follows it."""
    writer = ConvolutionWriter(spec, body, folded=True)  # no tile of what is summed
    function = body.call.partition("(")[0]
    hosts = [f"{writer.reads[i].tensor}.detach()" for i in (writer.given, writer.weight)]
    way = "channels_last" if schedule["channels_last"] else ""
    if way:
        hosts[0] += f".contiguous(memory_format=torch.{'channels_last_3d' if body.rank == 3 else 'channels_last'})"
    if way or not body.is_library:
        # without its bias: torch's call adds that in a pass of its own over the result, what follows in the one it is
        result = _result_of(spec)
        after = _after(spec, body, schedule, name.replace("_kernel", "_after_kernel"), result)
        called = without_bias(body).format(*hosts)
        return ir.LibraryCall(function, called, result, way=way), after
    (stored,) = body.lowered.outputs
    bias = added_bias(body, stored)
    call = body.call
    if bias is not None:
        hosts.append(f"{body.lowered.values[bias].tensor}.detach()")
    else:
        call = without_bias(body)
    # torch lays its result out as the input; what kernels read is contiguous, the end of a chain lies as its beginning
    facts = facts_of(spec)
    given = f"memory_format=memory_format_of({facts.laid_as})" if facts.laid_as and body.rank > 1 else ""
    ordered = f".contiguous({given})" if stored.name in facts.contiguous or given else ""
    return (ir.LibraryCall(function, call.format(*hosts) + ordered, stored.name, way=way),)


def without_bias(body: ConvolutionBody) -> str:
    return body.call.replace(", {2}", "")


def is_library(spec: OperatorSpec, body: ConvolutionBody) -> bool:
    """Whether torch's call computes all there is."""
    if len(body.lowered.outputs) != 1:
        return False
    (stored,) = body.lowered.outputs
    same = next(o.dtype for o in spec.outputs if o.name == stored.name) == body.factor.dtype
    in_order = tuple(axes_of(entry) for entry in stored.index) == tuple(map(axes_of, body.result))
    return (
        same
        and in_order
        and not body.contiguous
        and (added_bias(body, stored) is not None if has_bias(body) else stored.value == body.dot)
    )


def added_bias(body: ConvolutionBody, stored: Stored) -> int | None:
    """The load of the call's own bias, where an output is its sum with the product."""
    value = body.lowered.values[stored.value]
    if not has_bias(body) or value.op != "add" or Use(body.dot) not in value.args:
        return None
    (other,) = (a.value for a in value.args if isinstance(a, Use) and a.value != body.dot)
    return other if body.lowered.values[other].op == "load" else None


def _result_of(spec: OperatorSpec) -> str:
    """What the result of torch's call is called."""
    name = "convolved"
    while name in {t.name for t in (*spec.inputs, *spec.outputs)}:
        name = f"launch_{name}"
    return name


def _after(spec: OperatorSpec, body: ConvolutionBody, schedule: Schedule, name: str, result: str) -> ir.Kernel:
    """What follows the call, by the strides of its result and of the outputs: a box of pixels per program, of which
    the compiler knows that they are neighbours, or any run of them where they are pooled or channels reduced."""
    boxed = _falls_into_boxes(body)
    writer = ConvolutionWriter(spec, body, folded=True, turns=False)
    m, n = writer.m, writer.tiled.n
    channel = writer.channel()
    runs = body.extent("m").runs
    images = [run.index for run in runs if set(run.axes) <= set(axes_of(body.result[0]))]
    several = place_of(axes_of(body.result[0]), runs, body.lowered.space.axes)
    image = [(writer.position(several), 0)] if several else [(writer.index(p), 0) for p in images]
    space = [(writer.index(p), 2 + body.space_of(p)) for p in body.pixels if p not in images]
    terms = tuple((expr, f"stride_{result}_{d}") for expr, d in (*image, *space, (channel, 1)))
    pointer = ir.Pointer(result, terms, (m, n))
    loaded = ir.Cast(ir.Load(pointer, writer.mask((m, n))), "float32")
    carry = writer.carry()
    writer.all_finished()
    writer.builder.known[body.dot] = carry
    width = body.width if reduces(body) else _COLUMNS if boxed else _BLOCK
    rows = max(1, _SUMS // width)
    extents: tuple[str, ...] = ()
    counts: tuple[tuple[str, str], ...] = ()
    if boxed:
        sides = _BOX | {"BLOCK_M": rows}
        own, extents, counts = own_box(writer, lambda extent: str(sides[extent]))
        own += writer.box_numbers()
        tiles = f"tiles_m * cdiv(N, {width})"
    else:
        own = *own_tile(body, ir.Apply("cdiv", (ir.Name("M"), ir.Name("BLOCK_M")), ())), *writer.pixel_numbers()
        tiles = f"cdiv(M, {rows}) * cdiv(N, {width})"
    lets = (*own, *writer.numbers(body.extent("n"), n, "tile_n"), ir.Let((carry.text,), loaded))
    inside = trimmed((*lets, *ending(writer)))
    arguments = [ir.Argument(f"{result}_ptr", "pointer", result), *writer.arguments(inside)]
    arguments += [ir.Argument(stride, "number", f"{result}.stride({stride.rpartition('_')[2]})") for _, stride in terms]
    sizes = (("BLOCK_M", str(rows)), *((e, e.lower()) for e in extents), ("BLOCK_N", str(width)), ("GROUP_M", "1"))
    return ir.Kernel(name, schedule, tuple(arguments), sizes, inside, (programs(body, tiles),), counts=counts)


def _falls_into_boxes(body: ConvolutionBody) -> bool:
    """Whether pixels are counted along every dimension of space alone, and each is an element of the result."""
    whole = {"images", *(f"out_{d}" for d in SPACE[body.rank])}
    return not body.pool and not reduces(body) and set(body.pixels) == {r.index for r in body.extent("m").runs} <= whole
