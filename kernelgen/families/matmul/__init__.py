"""Products of matrices with what stands before and after them, on the matrix units.

One product a kernel, or several that share a factor, as the two of a gated layer do. What their factors are computed
from element by element comes before, what is computed from them after, where the sums are still in registers: a bias,
an activation, a residual, a scale; a reduction of the rows too, where a tile holds them whole. An operator of other
products is cut between them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from kernelgen.families.dtypes import SAID_OF_PRECISION
from kernelgen.families.family import Family, Table
from kernelgen.families.kernel import Body
from kernelgen.families.matmul import kernels, library, lowering, row_parts, schedules, vectors, written
from kernelgen.families.matmul.lowering import ProductBody
from kernelgen.families.matmul.writer import multiplies_float32
from kernelgen.frontend.graph import DOT, Graph, Ref, in_turn
from kernelgen.plan import Chip, Product, Schedule
from kernelgen.schedule.problem import NamedSize
from kernelgen.spec.model import OperatorSpec
from kernelgen.tile import ir

NAME = "matmul"


def takes(graph: Graph) -> bool:
    """Whether a reference may be its own: one product, or several that have an operand in common and do not wait for
    one another."""
    if graph.kind != "product":
        return False
    dots = [node for node in graph.nodes if node.op == DOT]
    shared = set.intersection(*({a for a in node.args if isinstance(a, Ref)} for node in dots))
    return len(dots) == 1 or (bool(shared) and not in_turn(graph) and all(n.convolution is None for n in dots))


def _body(spec: OperatorSpec, graph: Graph) -> ProductBody:
    body = lowering.body(spec, graph)
    body = replace(body, in_parts=schedules.in_parts(body))
    body = replace(body, may_be_wide=multiplies_float32(spec, body), in_three=spec.precision == "tf32x3")
    made = written.written(spec, body)
    if made is not None:
        body = replace(body, written=replace(made, body=_with_calls(made.spec, made.body)))
    return _with_calls(spec, body)


def _with_calls(spec: OperatorSpec, body: ProductBody) -> ProductBody:
    """A body that knows what descriptors copy, and torch's function for it."""
    body = replace(body, boxed=kernels.boxable(spec, body))
    torchs = library.library(spec, body)
    if torchs is None:
        return body
    return replace(body, library=torchs.function, called=torchs.value, is_library=torchs.is_all)


def _own(body: Body) -> ProductBody:
    assert isinstance(body, ProductBody)
    return body


def build(spec: OperatorSpec, body: Body, schedule: Schedule, name: str) -> tuple[ir.Step, ...]:
    """The kernels of a schedule in the order of their launches; of boxes also the one that needs no descriptors."""
    own = _own(body)
    match schedule.variant:
        case schedules.TILES:
            return kernels.by_pointers(spec, own, schedule, name), *_joined(spec, own, schedule)
        case schedules.BOXES:
            plain = f"{spec.name}_pointers_kernel"
            boxes = kernels.by_boxes(spec, own, schedule, name)
            pointers = replace(kernels.by_pointers(spec, own, schedule, plain), when_unfit=True)
            return boxes, pointers, *_joined(spec, own, schedule)
        case schedules.WRITTEN:
            turned = schedule.replace(swap=schedules.is_converted(own))
            instead = kernels.by_pointers(spec, own, turned, f"{spec.name}_pointers_kernel")
            return *written.by_boxes(spec, own, schedule, name), replace(instead, when_unfit=True)
        case schedules.LIBRARY if own.written is not None:
            return written.by_library(spec, own, schedule, name)
        case schedules.LIBRARY:
            return library.by_library(spec, own, schedule, name)
        case schedules.SPLIT:
            return kernels.split(spec, own, schedule, name)
    return (vectors.by_vectors(spec, own, schedule, name),)


def _joined(spec: OperatorSpec, body: ProductBody, schedule: Schedule) -> tuple[ir.Step, ...]:
    """What follows where tiles reduce parts of rows."""
    return (row_parts.joined(spec, body, schedule, f"{spec.name}_join_kernel"),) if body.in_parts else ()


def _sizes(spec: OperatorSpec, body: Body) -> tuple[NamedSize, ...]:
    """Rows, columns, what is summed over, products of a batch, and the bytes of a factor's element."""
    own = _own(body)
    whats = {"m": ("rows", "{} rows"), "n": ("columns", "{} columns"), "k": ("summed elements", "sums of {} elements")}
    whats["batch"] = "products", "{} products"
    found = []
    for extent in (own.extent(name) for name in ("m", "n", "k", "batch")):
        factors = tuple(own.lowered.space.axes[a] for a in extent.axes)
        if factors:
            found.append(NamedSize(extent.size, factors, extent.size, *whats[extent.name]))
    bytes_each = f"{own.factor.name}.element_size()"
    each = NamedSize("itemsize", (), bytes_each, "bytes of an element", "elements of {} bytes", own.factor.dtype)
    return (*found, each)


def _first_table(body: Body, shapes: Sequence[tuple[int, int]], chip: Chip | None = None) -> Table:
    return schedules.first_table(_own(body))


def _starts(body: Body, rows: int, columns: int, chip: Chip | None = None) -> tuple[Schedule, ...]:
    return schedules.starts(_own(body))


_AS_TORCHS = "float32 products follow torch: TF32 where torch.backends.cuda.matmul.fp32_precision is tf32"


def _notes(spec: OperatorSpec, body: Body) -> tuple[str, ...]:
    said = ["products are accumulated in float32, block by block along K, in a fixed order"]
    if any(_own(body).scales_of(dot) for dot in _own(body).dots):
        said.append("a scale per group along K multiplies the partial sum of the group, not each element")
    if multiplies_float32(spec, _own(body)):
        said.append(SAID_OF_PRECISION[spec.precision] if spec.precision else _AS_TORCHS)
    return tuple(said)


def _products(spec: OperatorSpec, body: Body) -> tuple[Product, ...]:
    own = _own(body)
    batch, rows, columns, summed = (
        tuple(own.lowered.space.axes[a] for a in extent.axes) for extent in own.layout.extents
    )
    kept = _KEPT if "float8" in own.factor.dtype else ""
    batch = () if own.ends is not None else batch
    left, more = (own.triangles.left, own.triangles.hides_more) if own.triangles else (None, None)
    common = batch, rows, columns, summed, own.factor.dtype, kept, spec.precision or ""
    return tuple(Product(own.names.of[dot], *common, left, more) for dot in own.dots)


_KEPT = "float32"
"""As what products of float8 are judged: float32 whose operands are read as TF32. Matrix units of sm_90 keep some 14
bits of a sum and cut the rest off (DeepSeek-V3 Technical Report, 3.3.2), 2**-13 of it an instruction. Of 128 products,
which four instructions sum before that is added in float32, 2.5 * 2**-13 of the sum is lost at most where all have one
sign: less than the 1.5 * 2**-11 that operands of 11 bits lose."""


def _too_large(spec: OperatorSpec, body: Body) -> tuple[str, str]:
    """Tiles are counted in int32, and so is what begins the last of them. One tile has a number for every group, or for
    every tile of a row that is joined: Triton's tiles have at most 2**20 elements, and these are 16 columns or more."""
    own = _own(body)
    sizes = [e.size for e in own.layout.extents if e.runs]
    got = ", ".join(f"{{{size}}}" for size in sizes)
    short = {"batch": "2**20"} if own.ends is not None else {"n": "2**24"} if own.in_parts else {}
    batch = "products" if own.ends is None else "groups"
    things = {"m": "rows", "n": "columns", "batch": batch, "k": "summed elements"}
    fewer = [(own.extent(name).size, most, things.pop(name)) for name, most in short.items() if own.extent(name).runs]
    others = [size for size in sizes if size not in {size for size, _, _ in fewer}]
    largest = f"max({', '.join(others)})" if len(others) > 1 else others[0]
    condition = " or ".join((*(f"{size} > {most}" for size, most, _ in fewer), f"{largest} > 2**30"))
    *first, last = things.values()
    said = "".join(f"{most} {what}, " for _, most, what in fewer) + f"2**30 {', '.join(first)} or {last}"
    return condition, f"{spec.name}: at most {said}, got {got}"


FAMILY = Family(
    NAME, takes, schedules.every(build), lambda body: schedules.variants(_own(body)), _first_table, _starts,
    body=_body, notes=_notes, too_large=_too_large, sizes=_sizes, products=_products,
    room=schedules.room,
)  # fmt: skip
