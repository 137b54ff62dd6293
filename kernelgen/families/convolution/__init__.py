"""Convolutions with what follows them, on the matrix units: products of windows by weights whose windows are nowhere in
memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod

from kernelgen.families.convolution import kernels, library, lowering, schedules
from kernelgen.families.convolution.lowering import ConvolutionBody
from kernelgen.families.dtypes import ITEMSIZE
from kernelgen.families.family import Family, Refusal, Table, refuses_nothing
from kernelgen.families.kernel import Body, body_of
from kernelgen.families.matmul.kernels import reduces
from kernelgen.families.matmul.schedules import check_rows
from kernelgen.families.matmul.writer import multiplies_float32
from kernelgen.families.values import Unlowerable, axes_of
from kernelgen.frontend.graph import DOT, Graph
from kernelgen.plan import Chip, KernelPlan, Product, Schedule
from kernelgen.schedule.problem import NamedSize
from kernelgen.spec.constraints import facts_of
from kernelgen.spec.model import Case, OperatorSpec
from kernelgen.tile import ir

NAME = "convolution"
FORMATS = {2: "channels_last", 3: "channels_last_3d"}
"""Torch's memory formats with channels last, by the dimensions of space."""


def takes(graph: Graph) -> bool:
    """Whether a reference is its own: one product, of windows, and neither scans nor what selects or scatters."""
    dots = [node for node in graph.nodes if node.op == DOT]
    return graph.kind == "product" and len(dots) == 1 and dots[0].convolution is not None


def _body(spec: OperatorSpec, graph: Graph) -> ConvolutionBody:
    body = lowering.body(spec, graph)
    check_rows(body)
    if body.pool and not schedules.may_pool(body):
        said = "a pool of what torch convolves, or of more pixels than a box has"
        raise Unlowerable(said, body.lowered.values[body.dot].statement)
    return replace(body, library=body.call.partition("(")[0], is_library=library.is_library(spec, body))


def _own(body: Body) -> ConvolutionBody:
    assert isinstance(body, ConvolutionBody)
    return body


def build(spec: OperatorSpec, body: Body, schedule: Schedule, name: str) -> tuple[ir.Step, ...]:
    """The kernels of a schedule in the order of their launches."""
    own = _own(body)
    if schedule.variant == schedules.LIBRARY:
        return library.by_library(spec, own, schedule, name)
    if schedule.variant not in schedules.BY_BOXES:
        folded = schedule.variant == schedules.FOLDED
        return (kernels.gather(spec, own, schedule, name, folded=folded),)
    plain = f"{spec.name}_pointers_kernel"
    strips = schedule.variant == schedules.STRIPS
    return kernels.boxes(spec, own, schedule, name, strips=strips), replace(
        kernels.gather(spec, own, schedule, plain), when_unfit=True
    )


def _sizes(spec: OperatorSpec, body: Body) -> tuple[NamedSize, ...]:
    """Pixels, output channels, what is summed over, and the bytes of an element."""
    own = _own(body)
    whats = {"m": ("pixels", "{} pixels"), "n": ("output channels", "{} output channels")}
    whats["k"] = "summed elements", "sums of {} elements"
    found = []
    for extent in (own.extent(name) for name in ("m", "n", "k")):
        factors = tuple(own.lowered.space.axes[a] for a in extent.axes)
        if factors:
            found.append(NamedSize(extent.size, factors, extent.size, *whats[extent.name]))
    channels = [run for run in own.extent("k").runs if run.index == "channels"]
    for run in channels:
        factors = tuple(own.lowered.space.axes[a] for a in run.axes)
        found.append(NamedSize("C", factors, run.size, "input channels", "{} input channels"))
    bytes_each = f"{own.factor.name}.element_size()"
    each = NamedSize("itemsize", (), bytes_each, "bytes of an element", "elements of {} bytes", own.factor.dtype)
    return (*found, each)


def _first_table(body: Body, shapes: Sequence[tuple[int, int]], chip: Chip | None = None) -> Table:
    return schedules.first_table(_own(body))


def _of_spec(plan: KernelPlan, table: Table) -> Table:
    spec, own = plan.spec, _own(body_of(plan))
    sizes = {size.name: size for size in _sizes(spec, own)}
    if reduces(own) or not {"M", "N", "C"} <= set(sizes):
        return table

    def timed(case: Case) -> schedules.Timed:
        names = ("C", "N", "M", "itemsize")
        channels, columns, pixels, itemsize = (sizes[name].of(case, ITEMSIZE.__getitem__) for name in names)
        return schedules.Timed(channels, columns, pixels, _width(own, case), itemsize)

    return schedules.for_cases(own, [timed(case) for case in spec.performance])


def _width(body: ConvolutionBody, case: Case) -> int | None:
    """The pixels along the last dimension of space that lie side by side; None where they are not counted alone."""
    last = f"out_{lowering.SPACE[body.rank][-1]}"
    run = next((run for run in body.extent("m").runs if run.index == last), None)
    if run is None:
        return None
    sizes = [case.size(body.lowered.space.axes[a]) for a in run.axes]
    width = prod(size for size in sizes if isinstance(size, int))
    return -(-width // body.windows.stride[-1]) if body.windows.transposed else width


def _starts(body: Body, rows: int, columns: int, chip: Chip | None = None) -> tuple[Schedule, ...]:
    return schedules.starts(_own(body))


def _notes(spec: OperatorSpec, body: Body) -> tuple[str, ...]:
    said = ["products are accumulated in float32, tap by tap of the window, in a fixed order"]
    if multiplies_float32(spec, _own(body)):
        few = ", of up to 8 input channels as float32" if lowering.may_have_parts(_own(body)) else ""
        said.append(f"float32 products follow torch: TF32 where torch.backends.cudnn.conv allows it{few}")
    return tuple(said)


def _precise(spec: OperatorSpec, body: Body, case: Case) -> Refusal:
    """Of so few channels that torch's call multiplies them in float32 though TF32 is allowed."""
    own = _own(body)
    sizes = {size.name: size for size in _sizes(spec, own)}
    channels, columns = (sizes[n].of(case, ITEMSIZE.__getitem__) if n in sizes else 1 for n in ("C", "N"))
    if not multiplies_float32(spec, own) or sizes["itemsize"].of(case, ITEMSIZE.__getitem__) < 4:
        return refuses_nothing
    return schedules.multiplies_as_torch(own, channels, columns)


def _products(spec: OperatorSpec, body: Body) -> tuple[Product, ...]:
    own = _own(body)
    batch, rows, columns, summed = (
        tuple(own.lowered.space.axes[a] for a in extent.axes) for extent in own.layout.extents
    )
    if own.windows.transposed:  # every element of the input is multiplied by all taps
        given = str(own.lowered.values[own.factors[0]].tensor)
        images, _, *space = next(t.shape for t in spec.inputs if t.name == given)
        rows = (images, *space)
    # torch allows TF32 in convolutions unless it is told otherwise, and nothing is faster
    return (Product(own.names.of[own.dot], batch, rows, columns, summed, own.factor.dtype, precision="tf32"),)


def _too_large(spec: OperatorSpec, body: Body) -> tuple[str, str]:
    """Tiles and pixels are counted in int32, and so is what begins the last tile."""
    sizes = [e.size for e in _own(body).layout.extents if e.runs and e.name != "batch"]
    got = ", ".join(f"{{{size}}}" for size in sizes)
    said = f"{spec.name}: at most 2**30 pixels, output channels or summed elements, got {got}"
    return f"max({', '.join(sizes)}) > 2**30", said


def _memory_format(spec: OperatorSpec, body: Body, output: str) -> str:
    """An output in the order of torch's result lies as that does: channels last where the input has them last. What
    another kernel reads lies as that wants it."""
    own = _own(body)
    facts = facts_of(spec)
    if output in facts.channels_last:
        return f"torch.{FORMATS[own.rank]}"
    if output in facts.contiguous:
        return ""
    given = facts.laid_as or str(own.lowered.values[own.factors[0]].tensor)
    stored = next(o for o in own.lowered.outputs if o.name == output)
    in_order = (
        own.rank > 1 and not own.contiguous and tuple(map(axes_of, stored.index)) == tuple(map(axes_of, own.result))
    )
    return f"memory_format_of({given})" if in_order else ""


FAMILY = Family(
    NAME, takes, schedules.every(build), lambda body: schedules.variants(_own(body)), _first_table, _starts,
    body=_body, memory_format=_memory_format, notes=_notes, too_large=_too_large, sizes=_sizes, products=_products,
    room=schedules.room, precise=_precise, of_spec=_of_spec, as_torch_lays=lambda body: True,
)  # fmt: skip
