"""The lines of scatters: every variant of `scatter.py` as one kernel."""

from __future__ import annotations

from collections.abc import Callable

from kernelgen.families.family import Kernels
from kernelgen.families.forms import PRINTED
from kernelgen.families.kernel import Body, KernelText
from kernelgen.plan import Schedule
from kernelgen.spec.model import OperatorSpec

FROM_END = "from end"
"""The attribute of an index of which negative numbers count from the end."""
Made = tuple[tuple[str, ...], tuple[str, ...], list[str], str]
"""Arguments, constexprs, lines and the wrapper's grid of a kernel."""


def tensors(body: Body) -> list[str]:
    """The inputs in the order of the arguments: what is added to (if not zeros), integers, what is added."""
    return [str(v.tensor) for v in body.lowered.values if v.op == "load"]


def quoted(body: Body) -> list[str]:
    statement = body.lowered.values[-1].statement
    return [] if statement is None else [f"# {body.statements[statement].text}"]


def limit(body: Body, shape: tuple[int | str, ...], dim: int) -> str:
    """What indices stay below: a number, or the kernel's parameter for a size."""
    sizes = body.layout.sizes
    return sizes[0][1] if sizes else str(shape[dim])


def widened(spec: OperatorSpec, tensor: str) -> str:
    """What makes a float32 of what a load of a tensor reads."""
    dtype = next(t.dtype for t in spec.inputs if t.name == tensor)
    kinds = dict(spec.dtypes).get(dtype, (dtype,))
    return ".to(tl.float32)" if any("float" in k for k in kinds) and kinds != ("float32",) else ""


def loaded(body: Body, index: str, offsets: str, mask: str, size: str) -> list[str]:
    """An index for every element: -1 or the size where there is none, which is the place of nothing."""
    from_end = wraps(body, index)
    lines = [f"{index} = tl.load({index}_ptr + {offsets}, mask={mask}, other={size if from_end else -1})"]
    return [*lines, *([f"{index} = tl.where({index} < 0, {index} + {size}, {index})"] if from_end else [])]


def wraps(body: Body, index: str) -> bool:
    """Whether negative numbers of an index count from the end."""
    return any(v.tensor == index and v.attr == FROM_END for v in body.lowered.values)


def zero(body: Body) -> str:
    return "0.0" if body.lowered.values[-1].dtype == "float" else "0"


def histogram(spec: OperatorSpec, body: Body) -> Made:
    (x,), out = tensors(body), spec.outputs[0].name
    bins = int(limit(body, spec.outputs[0].shape, 0))
    slots = 1 << (bins - 1).bit_length()
    lines = [
        "# a program counts its part in registers",
        "first = tl.program_id(0).to(tl.int64) * (TILES * BLOCK_SIZE)",
        f"counts = tl.zeros([{slots}], tl.int32)",
        "for tile in range(TILES):",
        "    offsets = first + tile * BLOCK_SIZE + tl.arange(0, BLOCK_SIZE)",
        f"    {x} = tl.load({x}_ptr + offsets, mask=offsets < N, other=-1)",
        f"    is_bin = {x} >= 0",
        f"    is_bin &= {x} < {bins}",
        f"    counts += tl.histogram({x}.to(tl.int32), {slots}, mask=is_bin)",
        "# integer atomics come to the same sums in whatever order",
        *quoted(body),
        f"bins = tl.arange(0, {slots})",
        f'tl.atomic_add({out}_ptr + bins, counts.to(tl.int64), mask=counts > 0, sem="relaxed")',
    ]
    grid = '(cdiv(N, options["BLOCK_SIZE"] * options["TILES"]),)'
    return (f"{x}_ptr", f"{out}_ptr", "N"), ("BLOCK_SIZE", "TILES"), lines, grid


def atomics(spec: OperatorSpec, body: Body) -> Made:
    (x,), out = tensors(body), spec.outputs[0].name
    bins = limit(body, spec.outputs[0].shape, 0)
    lines = [
        "offsets = tl.program_id(0).to(tl.int64) * BLOCK_SIZE + tl.arange(0, BLOCK_SIZE)",
        f"{x} = tl.load({x}_ptr + offsets, mask=offsets < N, other=-1)",
        "# integer atomics come to the same sums in whatever order",
        *quoted(body),
        f"is_bin = {x} >= 0",
        f"is_bin &= {x} < {bins}",
        f'tl.atomic_add({out}_ptr + {x}, 1, mask=is_bin, sem="relaxed")',
    ]
    return (f"{x}_ptr", f"{out}_ptr", "N"), ("BLOCK_SIZE",), lines, '(cdiv(N, options["BLOCK_SIZE"]),)'


def owners(spec: OperatorSpec, body: Body) -> Made:
    *base, index, source = tensors(body)
    out, size = spec.outputs[0].name, limit(body, spec.outputs[0].shape, 0)
    start = f"{out} = tl.zeros([BLOCK_SIZE_V, BLOCK_SIZE_N], tl.{accumulated(body)})"
    if base:
        start = f"{out} = tl.load({base[0]}_ptr + offsets, mask=mask){widened(spec, base[0])}"
    read = f"tl.load({source}_ptr + place.to(tl.int64) * N + cols, mask=col_mask)"
    is_float = accumulated(body) == "float32"
    lines = [
        "# a program owns a tile of the result, and adds to it in the order of the index",
        "num_tiles_n = tl.cdiv(N, BLOCK_SIZE_N)",
        "first = (tl.program_id(0) // num_tiles_n).to(tl.int64) * BLOCK_SIZE_V",
        "rows = first + tl.arange(0, BLOCK_SIZE_V)",
        "cols = tl.program_id(0) % num_tiles_n * BLOCK_SIZE_N + tl.arange(0, BLOCK_SIZE_N)",
        "col_mask = cols < N",
        f"mask = (rows < {size})[:, None] & col_mask[None, :]",
        "offsets = rows[:, None] * N + cols[None, :]",
        start,
        *_LOST * is_float,
        *quoted(body),
        "for start in range(0, M, BLOCK_SIZE_M):",
        "    places = start + tl.arange(0, BLOCK_SIZE_M)",
        f"    {index} = tl.load({index}_ptr + places, mask=places < M, other=-1)",
        f"    is_own = {index} >= first",
        f"    is_own &= {index} < first + BLOCK_SIZE_V",
        "    left = tl.where(is_own, places, M)",
        "    place = tl.min(left, axis=0)",
        "    while place < M:",
        f"        row = tl.load({index}_ptr + place)",
        f"        {source} = {read}{widened(spec, source)}",
        *(_added_exactly(out, source) if is_float else _added(out, source)),
        "        left = tl.where(left == place, M, left)",
        "        place = tl.min(left, axis=0)",
        f"tl.store({out}_ptr + offsets, {out}{' + lost' * is_float}, mask=mask)",
    ]
    pointers = [f"{t}_ptr" for t in (*base, index, source, out)]
    sizes = ["M", "N", *([size] if not size.isdigit() else [])]
    constexprs = ("BLOCK_SIZE_M", "BLOCK_SIZE_N", "BLOCK_SIZE_V")
    rows = f'cdiv({size}, options["BLOCK_SIZE_V"])'
    return (*pointers, *sizes), constexprs, lines, f'({rows} * cdiv(N, options["BLOCK_SIZE_N"]),)'


_LOST = (
    "# what rounding takes from the sums, which many additions would show",
    "lost = tl.zeros([BLOCK_SIZE_V, BLOCK_SIZE_N], tl.float32)",
)


def _added(out: str, source: str) -> list[str]:
    return [f"        {out} = tl.where(rows[:, None] == row, {out} + {source}[None, :], {out})"]


def _added_exactly(out: str, source: str) -> list[str]:
    """The addition of a float: by an owner one after the other, where torch's errors grow with their number."""
    return [
        "        is_named = rows[:, None] == row",
        f"        total, error = _two_sum({out}, {source}[None, :])",
        f"        {out} = tl.where(is_named, total, {out})",
        "        lost += tl.where(is_named, error, 0.0)",
    ]


def at_most(elements: int, schedule: Schedule) -> str | None:
    """Why so many elements are too many for the threads of a program; None if they are not."""
    each = elements / (32 * schedule.int("num_warps"))
    return f"{each:g} elements a thread (at most 128 make sense)" if each > 128 else None


def accumulated(body: Body) -> str:
    dtype = body.lowered.values[-1].dtype
    return "float32" if dtype == "float" else dtype


def one_kernel(make: Callable[[OperatorSpec, Body], Made]) -> Kernels:
    """What makes the one kernel of a variant."""

    def kernels(
        spec: OperatorSpec, body: Body, schedule: Schedule, name: str, helpers: dict[str, None]
    ) -> tuple[KernelText, ...]:
        arguments, constexprs, lines, grid = make(spec, body)
        return (KernelText(name, PRINTED, schedule, arguments, constexprs, (), tuple(lines), grid=grid),)

    return kernels
