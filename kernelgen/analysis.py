"""What an operator must do at the least: bytes moved and operations done for one case, and the floor they set."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import expm1, prod

from kernelgen.devices.facts import Peaks
from kernelgen.families import elements, kept_inputs, products
from kernelgen.families.dtypes import ITEMSIZE
from kernelgen.families.kernel import Body, body_of
from kernelgen.families.padding import ancestors
from kernelgen.families.values import Use, Value, expressions
from kernelgen.frontend.graph import DOT, REDUCTIONS
from kernelgen.frontend.indices import leaves
from kernelgen.frontend.operations import OPERATIONS, RECURRENT
from kernelgen.plan import ChoicesPlan, Operand, Plan, Product, StepsPlan, TorchCall, WrittenPlan
from kernelgen.spec.model import Case, Size


@dataclass(frozen=True)
class CallWork:
    """The least a call of torch's must do for one case."""

    name: str
    """What the wrapper calls its result."""
    function: str
    bytes: int
    """Its operands read once, its result written once."""
    flops: int
    dtype: str
    """Of its first operand, which says on which units it may run."""

    def seconds(self, facts: Peaks, achievable: float = 1.0) -> float:
        """The least time at a device's peaks, or at a share of its bandwidth."""
        return max(self.bytes / (facts.dram_bytes_per_s * achievable), self.flops / matrix_peak(self, facts))


@dataclass(frozen=True)
class ProductWork:
    """Sums of products that a kernel computes in one case."""

    name: str
    batch: int
    rows: int
    columns: int
    summed: int
    dtype: str
    """Of what is multiplied, which says on which units that may run; `tf32` or `tf32x3` of float32 that is so split."""
    itemsize: int
    left: int | None = None
    """Of a batch's products those that masks leave; None: all."""
    at_most: bool = False
    """Whether masks leave out more of them than is known here."""

    @property
    def flops(self) -> int:
        """2 * M * N * K in every batch, or what masks leave of that: a product and a sum are two operations."""
        return 2 * self.batch * (self.rows * self.columns * self.summed if self.left is None else self.left)

    @property
    def on_matrix_units(self) -> bool:
        return self.dtype != "float32"

    def seconds(self, facts: Peaks) -> float:
        """The least time of the arithmetic; float32 at its own rate, as torch is set where nobody asks for TF32."""
        return self.flops / facts.product_flops(self.dtype)


@dataclass(frozen=True)
class Work:
    """The least that the kernels of an operator must do for one case, whatever their schedules."""

    bytes_read: int
    bytes_written: int
    flops: int
    """Operations but for those of `products`."""
    calls: tuple[CallWork, ...] = ()
    """What stays calls of torch's, which run beside the kernels, one after the other."""
    products: tuple[ProductWork, ...] = ()
    """Sums of products of the kernels' own."""

    @property
    def all_flops(self) -> int:
        return self.flops + sum(p.flops for p in self.products)

    @property
    def at_most(self) -> bool:
        """Whether masks leave out more of it than is known here, such as lengths do: it is the most then, and no
        bound."""
        return any(p.at_most for p in self.products)

    @property
    def intensity(self) -> float:
        """Operations a byte."""
        return self.all_flops / max(self.bytes_read + self.bytes_written, 1)

    def matrix_seconds(self, facts: Peaks) -> float:
        """The least time of the operations on the matrix units."""
        return sum(p.seconds(facts) for p in self.products if p.on_matrix_units)

    def lane_seconds(self, facts: Peaks) -> float:
        """The least time of all others."""
        return sum(p.seconds(facts) for p in self.products if not p.on_matrix_units) + self.flops / facts.fp32_flops

    def arithmetic_seconds(self, facts: Peaks) -> float:
        """The least time of all operations: those on the matrix units run beside the others."""
        return max(self.matrix_seconds(facts), self.lane_seconds(facts))


def work(plan: Plan, case: Case) -> Work:
    """Every input element that is read counted once, every output element once; one flop an elementary operation. Of
    what is written into an input where a mask says so nothing is counted: how many elements change is not known.

    An exponential counts as one operation like an addition: the floor is then a lower bound. Of a reference that no
    family has lowered the operations are not known, and the bytes alone set the floor. Where operations stay calls of
    torch's, what lies in memory between them and the kernels is written and read.
    """
    if isinstance(plan, ChoicesPlan):
        return work(plan.at(case), case)
    if isinstance(plan, StepsPlan):
        parts = [work(kernel, case) for kernel in plan.kernels]
        read, written, operations = (
            sum(getattr(p, n) for p in parts) for n in ("bytes_read", "bytes_written", "flops")
        )
        calls = tuple(call_work(call, case) for call in plan.calls)
        return Work(read, written, operations, calls, tuple(p for part in parts for p in part.products))
    sizes = {t.name: prod(case.shape(t.shape)) for t in (*plan.spec.inputs, *plan.spec.outputs)}
    if isinstance(plan, WrittenPlan):
        read, operations = {t.name: sizes[t.name] for t in plan.spec.inputs if t.role != "like"}, 0
        multiplied: tuple[ProductWork, ...] = ()
        kept: Mapping[str, str] = {}
    else:
        body, kept = body_of(plan), kept_inputs(plan)
        read = _read(body, case, sizes)
        multiplied = tuple(product_work(p, case) for p in products(plan))
        operations = flops(body, case, multiplied)
    inputs = [t for t in plan.spec.inputs if t.name in read.keys() - kept.keys()]
    outputs = [t for t in plan.spec.outputs if t.name not in kept.values()]
    return Work(
        sum(read[t.name] * ITEMSIZE[case.dtype(t.dtype)] for t in inputs),
        sum(sizes[t.name] * ITEMSIZE[case.dtype(t.dtype)] for t in outputs),
        operations,
        products=multiplied,
    )


def _read(body: Body, case: Case, sizes: Mapping[str, int]) -> dict[str, int]:
    """The elements that are read of every tensor: all, but of one that is looked up no more than are looked up. Where
    the places are data, as many as differ if these are drawn at random: of n elements an expected share of
    1 - (1 - 1 / n)**looked_up, which is near 1 - exp(-looked_up / n)."""
    found: dict[str, int] = {}
    at_random: dict[str, int] = {}
    for value in body.lowered.values:
        if value.op == "load":
            name = str(value.tensor)
            if _is_looked_up(body, value):
                at_random[name] = at_random.get(name, 0) + elements(body, case, value.axes)
            else:
                count = elements(body, case, value.axes) if _places(value) else sizes[name]
                found[name] = min(found.get(name, 0) + count, sizes[name])
    for name, count in at_random.items():
        differing = round(-sizes[name] * expm1(-count / sizes[name])) if sizes[name] else 0
        found[name] = min(found.get(name, 0) + differing, sizes[name])
    return found


def _places(value: Value) -> set[int]:
    """The values that say where a load reads."""
    return {leaf.number for e in expressions(value) for leaf in leaves(e) if leaf.op == "value"}


def _is_looked_up(body: Body, value: Value) -> bool:
    """Whether a load reads at places that are data."""
    sources = (j for i in _places(value) for j in ancestors(body.lowered, i))
    return value.op == "load" and any(body.lowered.values[j].op == "load" for j in sources)


def looked_up(plan: Plan) -> tuple[str, ...]:
    """The inputs that are read at places that are data, and nowhere else."""
    if isinstance(plan, WrittenPlan):
        return ()
    loads = [(body_of(k), v) for k in plan.kernels for v in body_of(k).lowered.values if v.op == "load"]
    whole = {str(v.tensor) for body, v in loads if not _is_looked_up(body, v)}
    found = dict.fromkeys(str(v.tensor) for body, v in loads if _is_looked_up(body, v))
    return tuple(t.name for t in plan.spec.inputs if t.name in found and t.name not in whole)


def product_work(product: Product, case: Case) -> ProductWork:
    """What sums of products come to in one case."""
    batch, rows, columns, summed = (
        prod(case.shape(factors)) for factors in (product.batch, product.rows, product.columns, product.summed)
    )
    dtype = case.dtype(product.dtype)
    split = dtype == "float32" and product.precision not in ("", "ieee")

    def size(dim: tuple[Size, ...]) -> int:
        return prod(case.shape(dim))

    return ProductWork(
        product.name, batch, rows, columns, summed, product.precision if split else dtype, ITEMSIZE[dtype],
        product.left(rows, columns, summed, size) if product.left else None,
        bool(product.hides_more and product.hides_more(size)),
    )  # fmt: skip


def flops(body: Body, case: Case, multiplied: Sequence[ProductWork] = ()) -> int:
    """Operations of the reference for one case: a map operation once an element of its result, a reduction once an
    element of its operand. Sums of products are counted apart, and of what has an element for each of these what masks
    leave of them."""
    seen = {
        batch * p.rows * side: p.left / (p.rows * p.columns * p.summed)
        for p in multiplied
        if p.left is not None and (side := max(p.columns, p.summed)) > min(p.columns, p.summed) > 0 < p.rows
        for batch in (1, p.batch)
    }
    total = 0.0
    for value in body.lowered.values:
        if value.op == DOT:
            continue
        axes: Iterable[int] = value.axes
        if value.op in REDUCTIONS and isinstance(value.args[0], Use):
            axes = body.lowered.values[value.args[0].value].axes
        count = elements(body, case, axes)
        total += OPERATIONS[value.op].flops * count * seen.get(count, 1.0)
    return round(total)


def step_works(plan: StepsPlan, case: Case) -> list[tuple[int, int]]:
    """The bytes and the operations of every working step of a plan with calls."""
    found = []
    for step in plan.working:
        if isinstance(step, TorchCall):
            one = call_work(step, case)
            found.append((one.bytes, one.flops))
        else:
            own = work(step, case)
            found.append((own.bytes_read + own.bytes_written, own.all_flops))
    return found


def call_work(call: TorchCall, case: Case) -> CallWork:
    """What a call of torch's does for one case; a product and a sum are two operations."""
    tensors = [(case.shape(o.tensor.shape), o.tensor) for o in call.operands] + [
        (case.shape(call.result.shape), call.result)
    ]
    moved = sum(prod(shape) * ITEMSIZE[case.dtype(tensor.dtype)] for shape, tensor in tensors)
    seen = [_seen(operand, case) for operand in call.operands]
    operations = _call_flops(call, seen, case.shape(call.result.shape))
    return CallWork(call.result.name, call.function, moved, operations, case.dtype(call.operands[0].tensor.dtype))


def _seen(operand: Operand, case: Case) -> tuple[int, ...]:
    """The shape in which a call sees a tensor."""
    shape = case.shape(operand.tensor.shape)
    for view in operand.views:
        shape = tuple(shape[int(d)] for d in view.sizes) if view.op == "permute" else case.shape(view.sizes)
    return shape


_PRODUCTS = ("linear", "matmul", "mm", "bmm", "addmm", "baddbmm")


def _call_flops(call: TorchCall, seen: list[tuple[int, ...]], result: tuple[int, ...]) -> int:
    kind = call.function.rpartition(".")[2]
    if kind == "scaled_dot_product_attention":  # query by key, and what that gives by value; half where it is causal
        query, key = seen[:2]
        whole = 2 * key[-2] * (prod(query) + prod(result))
        return whole // 2 if "is_causal=True" in call.text else whole
    if kind == "einsum":  # everything that an index names, once
        subscripts = call.text.split('"')[1].replace(" ", "").partition("->")[0].split(",")
        named = zip(subscripts, seen, strict=True)
        extents = {name: n for names, shape in named for name, n in zip(names, shape, strict=True)}
        return 2 * prod(extents.values())
    if kind.endswith(("_input", "_weight")) and kind.startswith("conv"):  # as the forward, whose result is seen last
        weight = result if kind.endswith("_weight") else seen[-2]
        return 2 * prod(seen[-1]) * prod(weight) // max(weight[0], 1)
    if kind.startswith("conv"):  # the weight once for every place of the result; transposed, of the input
        data, weight = seen[:2]
        return 2 * prod(data if "transpose" in kind else result) * prod(weight) // max(weight[0], 1)
    if kind not in (*_PRODUCTS, *RECURRENT):  # its bytes say what it costs
        return 0
    first = seen[1] if kind in ("addmm", "baddbmm") else seen[0]
    return 2 * prod(result) * first[-1]


def matrix_peak(call: CallWork, facts: Peaks) -> float:
    """Operations a second of the units that a call may run on.

    float16 and bfloat16: the matrix units. float32: torch's convolutions may use TF32, at half that rate; its products
    of matrices do not unless they are told to.
    """
    return facts.product_flops("tf32" if call.dtype == "float32" and ".conv" in call.function else call.dtype)


def floor_us(work: Work, facts: Peaks) -> float | None:
    """`floor_seconds` in microseconds; None where nothing is a bound, since masks leave out more."""
    return None if work.at_most else floor_seconds(work, facts) * 1e6


def floor_seconds(work: Work, facts: Peaks) -> float:
    """The least time physics allows: every byte moved once at the vendor's bandwidth, every operation at its peak.

    Calls of torch's come before or after the kernels: their floors are added.
    """
    kernels = max((work.bytes_read + work.bytes_written) / facts.dram_bytes_per_s, work.arithmetic_seconds(facts))
    return kernels + sum(call.seconds(facts) for call in work.calls)
