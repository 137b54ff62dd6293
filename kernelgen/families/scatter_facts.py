"""What the kernels of a scatter are told, whose texts a backend has written by hand."""

from __future__ import annotations

from collections.abc import Iterable

from kernelgen.families.family import Kernels
from kernelgen.families.kernel import Body, passed
from kernelgen.plan import Schedule
from kernelgen.spec.model import OperatorSpec
from kernelgen.spec.sizes import evaluate
from kernelgen.tile import ir

PLACES_ALONE = ("bincount", "last_place", "times_named")
"""Scatters that read no more than the index."""
OF_INTEGERS = ("scatter_max", "last_place", "times_named")
"""Those of integers, which atomics bring to one result in whatever order, along one dimension of several."""
FROM_END = "from end"
"""The attribute of an index of which negative numbers count from the end."""


def told(spec: OperatorSpec, body: Body, text: str) -> ir.Scatter:
    """What the kernel that a backend calls `text` is told."""
    scatter, loads = body.lowered.values[-1], [v for v in body.lowered.values if v.op == "load"]
    names = [str(v.tensor) for v in loads]
    *base, index, source = [*names, ""] if scatter.op in PLACES_ALONE else names
    reads_base = scatter.op == "index_add" or body.starts_itself
    dtypes = {t.name: t.dtype for t in spec.inputs}
    bins = scatter.args[-1] if scatter.op == "bincount" else 0
    return ir.Scatter(
        text, spec.outputs[0].name, index, source, base[0] if base and reads_base else "", _limit(spec, body),
        "float32" if scatter.dtype == "float" else scatter.dtype,
        frozenset(name for name in names if _is_narrow(spec, dtypes[name])),
        "" if scatter.statement is None else body.statements[scatter.statement].text,
        slots=1 << (bins - 1).bit_length() if isinstance(bins, int) and bins else 0,
        from_end=any(v.tensor == index and v.attr == FROM_END for v in loads), is_long=dtypes[index] == "int64",
        atomic="max" if scatter.op in ("scatter_max", "last_place") else "add", counts=scatter.op == "times_named",
        along_last=scatter.attr == "-1", has_rows=bool(body.layout.rows), starts_itself=body.starts_itself,
    )  # fmt: skip


def _limit(spec: OperatorSpec, body: Body) -> str:
    """What indices stay below: a number, or the kernel's parameter for a size."""
    sizes = body.layout.sizes
    length = spec.outputs[0].shape[int(body.lowered.values[-1].attr or 0)]
    return sizes[0][1] if sizes else str(evaluate(str(length), {}))


def _is_narrow(spec: OperatorSpec, dtype: str) -> bool:
    """Whether a float32 is made of what a load reads."""
    kinds = dict(spec.dtypes).get(dtype, (dtype,))
    return any("float" in k for k in kinds) and kinds != ("float32",)


def arguments(scatter: ir.Scatter, *tensors: str, counted: tuple[str, ...] = ("M", "N")) -> tuple[str, ...]:
    """Pointers to the tensors that there are, sizes, and what indices stay below."""
    sized = () if scatter.size.isdigit() else (scatter.size,)
    return (*(f"{tensor}_ptr" for tensor in tensors if tensor), *counted, *sized)


def at_most(elements: int, schedule: Schedule) -> str | None:
    """Why so many elements are too many for the threads of a program; None if they are not."""
    each = elements / (32 * schedule.int("num_warps"))
    return f"{each:g} elements per thread (at most 128 are allowed)" if each > 128 else None


def kernel(
    body: Body,
    name: str,
    schedule: Schedule,
    arguments: Iterable[str],
    constexprs: Iterable[str | ir.Given],
    scatter: ir.Scatter,
    grid: tuple[str, ...],
) -> ir.Kernel:
    """A kernel of a scatter, and its launch. `constexprs`: names alone where the table's line says them."""
    given = tuple((c, None) if isinstance(c, str) else c for c in constexprs)
    return ir.Kernel(name, schedule, passed(body, dict.fromkeys(arguments)), given, (scatter,), grid)


def one_kernel(text: str, constexprs: tuple[str, ...], grid: str, counted: tuple[str, ...] = ("M", "N")) -> Kernels:
    """What makes the one kernel of a variant; `{size}` in its grid is what indices stay below."""

    def kernels(spec: OperatorSpec, body: Body, schedule: Schedule, name: str) -> tuple[ir.Kernel, ...]:
        made = told(spec, body, text)
        tensors = arguments(made, made.base, made.index, made.source, made.out, counted=counted)
        launched = grid.replace("{size}", made.size)
        return (kernel(body, name, schedule, tensors, constexprs, made, (launched,)),)

    return kernels
