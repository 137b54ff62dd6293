"""Attention: two products and the softmax between them in one kernel, which never writes the scores to memory.

What queries, keys and values are computed from element by element comes before it, what is computed from the scores in
between, what is computed from the result after it, where all of these are still in registers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from kernelgen.families.attention import kernels, library, lowering, schedules, sets
from kernelgen.families.attention.lowering import AttentionBody, TilesBody
from kernelgen.families.attention.writer import boxable, multiplied_as, multiplied_dtype, reached, said_of_products
from kernelgen.families.family import Family, Table
from kernelgen.families.kernel import Body
from kernelgen.families.masks import seen, total
from kernelgen.frontend.graph import DOT, Dim, Graph
from kernelgen.plan import Chip, Product, Schedule
from kernelgen.schedule.problem import NamedSize
from kernelgen.spec.model import OperatorSpec, Size
from kernelgen.tile import ir

NAME = "attention"


def takes(graph: Graph) -> bool:
    """Whether a reference may be its own: two products with a maximum between them."""
    products = [i for i, node in enumerate(graph.nodes) if node.op == DOT]
    if graph.kind != "product" or len(products) != 2:
        return False
    return any(node.op == "max" for node in graph.nodes[products[0] : products[1]])


def _body(spec: OperatorSpec, graph: Graph) -> AttentionBody:
    body = lowering.body(spec, graph)
    factors = body.softmax.query, body.softmax.key, body.softmax.value
    torchs = "" if spec.precision else library.call(spec, body)
    return replace(body, boxed=boxable(spec, body, factors), library=torchs, precision=multiplied_as(spec, body))


def _own(body: Body) -> AttentionBody:
    assert isinstance(body, AttentionBody)
    return body


def build(spec: OperatorSpec, body: Body, schedule: Schedule, name: str) -> tuple[ir.Step, ...]:
    """The kernels of a schedule in the order of their launches; of boxes also the one that needs no descriptors."""
    own = _own(body)
    match schedule.variant:
        case schedules.LIBRARY:
            return (library.by_library(spec, own),)
        case schedules.BOXES | schedules.OVERLAPPED:
            plain = f"{spec.name}_pointers_kernel"
            overlapped = schedule.variant == schedules.OVERLAPPED
            boxes = kernels.walked(spec, own, schedule, name, own.boxed, overlapped=overlapped)
            return boxes, replace(kernels.walked(spec, own, schedule, plain), when_unfit=True)
        case schedules.SPLIT:
            return kernels.split(spec, own, schedule, name)
    return (kernels.walked(spec, own, schedule, name),)


def sizes_of(spec: OperatorSpec, body: Body) -> tuple[NamedSize, ...]:
    """Queries, keys, problems of a batch, the size of a head, and the bytes of an element."""
    assert isinstance(body, TilesBody)
    whats = {
        "m": ("queries", "{} queries"), "n": ("keys", "{} keys"), "batch": ("heads of a batch", "{} heads of a batch"),
        "d": ("elements of a head", "heads of {} elements"),
        "e": ("elements of a head's values", "values of {} elements"),
    }  # fmt: skip
    found: list[NamedSize] = []
    for name, said in whats.items():
        extent = body.extent(name)
        factors = tuple(body.lowered.space.axes[a] for a in extent.axes)
        if factors and all(size.name != extent.size for size in found):
            found.append(NamedSize(extent.size, factors, extent.size, *said))
    each = f"{body.factor.name}.element_size()"
    return (*found, NamedSize("itemsize", (), each, "bytes of an element", "elements of {} bytes", body.factor.dtype))


def _first_table(body: Body, shapes: Sequence[tuple[int, int]], chip: Chip | None = None) -> Table:
    return reached(_own(body), schedules.first_table(_own(body)))


def _starts(body: Body, rows: int, columns: int, chip: Chip | None = None) -> tuple[Schedule, ...]:
    return schedules.starts(_own(body))


def _notes(spec: OperatorSpec, body: Body) -> tuple[str, ...]:
    own = _own(body)
    said = [
        "online softmax: a running maximum and sum over blocks of keys; the accumulator is divided by the sum once, at "
        "the end"
    ]
    if own.softmax.weights is not None:
        said.append(
            "weights are rounded, as in the reference, but divided by their sum only after they multiplied the values"
        )
    return (*said, *said_of_products(spec, own))


def _products(spec: OperatorSpec, body: Body) -> tuple[Product, ...]:
    own = _own(body)
    batch, rows, columns, keys, heads = (
        tuple(own.lowered.space.axes[a] for a in own.extent(name).axes) for name in ("batch", "m", "e", "n", "d")
    )
    names, softmax, mask = own.names.of, own.softmax, own.mask()

    def pairs(rows: int, keys: int, size: Callable[[Dim], int]) -> int:
        lines = mask.lines(size)
        return total(lambda row: seen(lines, row, keys), rows, lines, (0, keys))

    return (
        Product(
            names[softmax.scores], batch, rows, keys, heads, multiplied_dtype(own),
            precision=multiplied_as(spec, own), hides_more=mask.hides_more,
            left=lambda rows, keys, summed, size: pairs(rows, keys, size) * summed,
        ),
        Product(
            names[softmax.product], batch, rows, columns, keys, multiplied_dtype(own),
            precision=multiplied_as(spec, own), hides_more=mask.hides_more,
            left=lambda rows, columns, keys, size: pairs(rows, keys, size) * columns,
        ),
    )  # fmt: skip


def _too_large(spec: OperatorSpec, body: Body) -> tuple[str, str]:
    return too_large(spec, body, _longest(spec))


def limits(body: Body, longest: int) -> tuple[tuple[Size, int], ...]:
    """How many elements of a head, and of its values, a tile holds at most: `longest`."""
    assert isinstance(body, TilesBody)
    heads = [body.extent(name).axes for name in ("d", "e")]
    return tuple(dict.fromkeys((body.lowered.space.axes[axis], longest) for axes in heads for axis in axes))


def _longest(spec: OperatorSpec) -> int:
    return LONGEST_WITH_GRADIENTS if spec.backward else LONGEST_HEAD


def too_large(spec: OperatorSpec, body: Body, longest: int) -> tuple[str, str]:
    """Tiles are counted in int32, and so is what begins the last of them; a tile holds all elements of a head, of which
    there are `longest` at most."""
    extents = [e for e in body.layout.extents if e.runs]
    sizes = list(dict.fromkeys(e.size for e in extents))
    heads = list(dict.fromkeys(e.size for e in extents if e.name in ("d", "e")))
    large = f"max({', '.join(sizes)}) > 2**30"
    for size in heads:
        large += f" or {size} > {longest}"
    got = ", ".join(f"{{{size}}}" for size in sizes)
    return large, f"{spec.name}: at most 2**30 queries or keys and {longest} elements per head, got {got}"


LONGEST_HEAD = 1024
"""Elements; a tile of 16 keys has 16,384 of them then, far below the 2**20 that Triton lets a tile have."""
LONGEST_WITH_GRADIENTS = 512
"""Of these, where gradients are wanted: four of their tiles are in shared memory at once, whose 16 rows of float32, the
fewest that a product takes, have 128 KiB then. Of 1024 elements they would have 256, more than the 227 of sm_90."""


FAMILY = Family(
    NAME, takes, schedules.every(build), lambda body: schedules.variants(_own(body)), _first_table, _starts,
    body=_body, notes=_notes, too_large=_too_large, limits=lambda spec, body: limits(body, _longest(spec)),
    sizes=sizes_of, products=_products,
    room=schedules.room, of_nothing=True, sets=lambda body: sets.sets(_own(body)),
)  # fmt: skip
