"""The host side of a generated file as lines: input checks, sizes, outputs, the schedule table, launches."""

from __future__ import annotations

from dataclasses import dataclass

from kernelgen.families import ITEMSIZE, columns, key_bytes, module
from kernelgen.families.access import COLS, ROWS, group_sizes, is_contiguous
from kernelgen.families.kernel import Body, KernelText
from kernelgen.families.triton_text import HELPERS
from kernelgen.frontend.graph import REDUCTIONS
from kernelgen.plan import Parameter, Plan, Schedule
from kernelgen.spec.constraints import conjuncts, failing, message
from kernelgen.spec.model import ELLIPSIS, OperatorSpec, Size, TensorSpec


@dataclass(frozen=True)
class Check:
    """One condition under which a wrapper raises ValueError, and the f-string body of its message."""

    condition: str
    message: str


@dataclass(frozen=True)
class TableLine:
    """One line of the generated schedule table."""

    limit: int | None
    kernel: str
    options: tuple[tuple[str, int], ...]


@dataclass(frozen=True)
class Launch:
    """How one kernel is launched: the `kernel[grid](...)` arguments, without the options of the table."""

    kernel: str
    grid: str
    arguments: tuple[str, ...]


@dataclass(frozen=True)
class FileText:
    """Everything the templates of one operator's `_triton.py` print."""

    kernels: tuple[KernelText, ...]
    helpers: tuple[str, ...]
    table: tuple[TableLine, ...]
    key: str
    """The wrapper's expression for what the table is keyed by."""
    key_meaning: str
    prepare: tuple[str, ...]
    outputs: tuple[tuple[str, str], ...]
    """Each output with the expression that allocates it."""
    sizes: tuple[tuple[str, str], ...]
    views: tuple[tuple[str, str], ...]
    launches: tuple[Launch, ...]


def checks(spec: OperatorSpec) -> tuple[Check, ...]:
    """The input checks that the wrapper and the baseline share: dtypes, devices, ranks, sizes, then the constraints."""
    found = (*_dtype_checks(spec), *_shape_checks(spec), *_constraint_checks(spec))
    return tuple({check.condition: check for check in reversed(found)}.values())[::-1]


def _dtype_checks(spec: OperatorSpec) -> list[Check]:
    found, first = [], {}
    for tensor in spec.inputs:
        choices = dict(spec.dtypes).get(tensor.dtype, (tensor.dtype,))
        known = first.setdefault(tensor.dtype, tensor.name)
        if known != tensor.name:
            found.append(
                Check(
                    f"{tensor.name}.dtype != {known}.dtype",
                    f"{spec.name}: {tensor.name} must have the dtype of {known}, {{{known}.dtype}}, got {{{tensor.name}.dtype}}",
                )
            )
        elif len(choices) == 1:
            found.append(
                Check(
                    f"{tensor.name}.dtype != torch.{choices[0]}",
                    f"{spec.name}: {tensor.name} must be {choices[0]}, got {{{tensor.name}.dtype}}",
                )
            )
        else:
            listed = ", ".join(f"torch.{c}" for c in choices)
            found.append(
                Check(
                    f"{tensor.name}.dtype not in ({listed})",
                    f"{spec.name}: {tensor.name} must be {', '.join(choices[:-1])} or {choices[-1]}, got {{{tensor.name}.dtype}}",
                )
            )
    first_name = spec.inputs[0].name
    for tensor in spec.inputs[1:]:
        found.append(
            Check(
                f"{tensor.name}.device != {first_name}.device",
                f"{spec.name}: {tensor.name} must be on {{{first_name}.device}}, got {{{tensor.name}.device}}",
            )
        )
    return found


def _shape_checks(spec: OperatorSpec) -> list[Check]:
    found, known = [], {}
    for tensor in spec.inputs:
        elastic = ELLIPSIS in tensor.shape
        rank = len(tensor.shape) - elastic
        condition = f"{tensor.name}.ndim < {rank}" if elastic else f"{tensor.name}.ndim != {rank}"
        plural = "" if rank == 1 else "s"
        if not (elastic and rank == 0):
            found.append(
                Check(
                    condition,
                    f"{spec.name}: {tensor.name} must have {'at least ' if elastic else ''}{rank} dimension{plural}, got shape {{tuple({tensor.name}.shape)}}",
                )
            )
        for position, entry in enumerate(tensor.shape):
            place = _place(tensor, position)
            if isinstance(entry, int):
                found.append(
                    Check(
                        f"{place} != {entry}",
                        f"{spec.name}: {place} must be {entry}, got shape {{tuple({tensor.name}.shape)}}",
                    )
                )
            elif entry in known:
                origin, there = known[entry]
                found.append(
                    Check(
                        f"{place} != {there}",
                        f"{spec.name}: {place} must equal {there}, got shapes {{tuple({tensor.name}.shape)}} and {{tuple({origin}.shape)}}",
                    )
                )
            else:
                known[entry] = tensor.name, place
    return found


def _place(tensor: TensorSpec, position: int) -> str:
    """One dimension of a tensor as the wrapper writes it; after "..." dimensions are counted from the end."""
    rank = len(tensor.shape)
    if tensor.shape[position] == ELLIPSIS:
        return f"{tensor.name}.shape" if rank == 1 else f"{tensor.name}.shape[:{1 - rank}]"
    return f"{tensor.name}.shape[{position - rank if ELLIPSIS in tensor.shape else position}]"


def _constraint_checks(spec: OperatorSpec) -> list[Check]:
    parts = [part for constraint in spec.constraints for part in conjuncts(constraint)]
    return [Check(failing(part), message(spec.name, part)) for part in parts]


def file_text(plan: Plan) -> FileText:
    """Decide the whole text of `_triton.py`."""
    body: Body = plan.body
    helpers: dict[str, None] = {}
    flavours = _flavours(plan)
    kernels = tuple(
        module(plan).kernel(plan.spec, body, schedule, name, helpers) for schedule, name in flavours.values()
    )
    table = tuple(
        TableLine(row.max_bytes, flavours[_flavour(plan, row.schedule)][1], _options(plan, row.schedule))
        for row in plan.table
    )
    flat = body.layout.columns is None
    outputs = tuple((o.name, _allocation(plan.spec, o)) for o in plan.spec.outputs)
    first = plan.spec.outputs[0].name
    key = f"{first}.numel() * {first}.element_size()" if flat else f"N * {first}.element_size()"
    return FileText(
        kernels, tuple(h for h in HELPERS if h in helpers), table, key, "the tensor" if flat else "a row",
        _prepare(plan, flat), outputs, _sizes(plan, kernels), _views(body), tuple(_launch(plan, k) for k in kernels),
    )  # fmt: skip


def _structure(plan: Plan, schedule: Schedule) -> dict[str, Parameter]:
    return {p.name: p for p in module(plan).space(schedule.variant) if p.kind == "structure"}


def _flavour(plan: Plan, schedule: Schedule) -> tuple[object, ...]:
    """What two schedules share if one kernel text serves both."""
    structure = _structure(plan, schedule)
    values = []
    for name, value in schedule.values:
        if name in structure:
            values.append((name, bool(value != 1) if name in ("ROW_TILES", "NUM_STAGES") else value))
    return (schedule.variant, *values)


def _flavours(plan: Plan) -> dict[tuple[object, ...], tuple[Schedule, str]]:
    """Every kernel text that the table needs, named after what tells it from the others."""
    found: dict[tuple[object, ...], Schedule] = {}
    for row in plan.table:
        found.setdefault(_flavour(plan, row.schedule), row.schedule)
    kinds = [s.variant for s in found.values()]
    names: dict[tuple[object, ...], tuple[Schedule, str]] = {}
    used: set[str] = set()
    main = next(iter(found), None)
    for key, schedule in found.items():
        parts = [plan.spec.name]
        if key != main and (kinds.count(schedule.variant) == 1 or schedule.variant != kinds[0]):
            parts.append(schedule.variant)
        name = "_".join([*parts, "kernel"])
        if name in used:
            name = "_".join([*parts, *_differences(plan, schedule), "kernel"])
        number = 2
        while name in used:
            name, number = "_".join([*parts, *_differences(plan, schedule), str(number), "kernel"]), number + 1
        used.add(name)
        names[key] = schedule, name
    return names


def _differences(plan: Plan, schedule: Schedule) -> list[str]:
    default = module(plan).default(schedule.variant)
    changed = [(n, v) for n, v in schedule.values if n in _structure(plan, schedule) and default[n] != v]
    return [n.lower() if isinstance(v, bool | int) else f"{v}_{n.lower()}" for n, v in changed] or ["plain"]


def _options(plan: Plan, schedule: Schedule) -> tuple[tuple[str, int], ...]:
    """The values of a schedule that are passed at the launch: constexprs first, then launch options."""
    structure = _structure(plan, schedule)
    passed = [(n, v) for n, v in schedule.values if n not in structure or (n in ("ROW_TILES", "NUM_STAGES") and v != 1)]
    return tuple((n, int(v)) for n, v in sorted(passed, key=lambda item: (item[0].islower(), item[0])))


def _allocation(spec: OperatorSpec, output: TensorSpec) -> str:
    """Allocate like an input of the same shape where there is one, else from the shapes."""
    dtype = _dtype(spec, output)
    like = next((t for t in spec.inputs if t.shape == output.shape), None)
    if like is not None:
        extra = [] if like.dtype == output.dtype else [f"dtype={dtype}"]
        if not is_contiguous(spec, like.name):
            extra.append("memory_format=torch.contiguous_format")
        return f"torch.empty_like({', '.join([like.name, *extra])})"
    first = spec.inputs[0].name
    return f"torch.empty({_shape(spec, output.shape)}, dtype={dtype}, device={first}.device)"


def _dtype(spec: OperatorSpec, output: TensorSpec) -> str:
    carrier = next((t.name for t in spec.inputs if t.dtype == output.dtype), None)
    return f"{carrier}.dtype" if carrier and output.dtype in dict(spec.dtypes) else f"torch.{output.dtype}"


def _shape(spec: OperatorSpec, shape: tuple[Size, ...]) -> str:
    places: dict[Size, str] = {}
    for tensor in spec.inputs:
        for position, entry in enumerate(tensor.shape):
            places.setdefault(entry, _place(tensor, position))
    if shape == (ELLIPSIS,):
        return places[ELLIPSIS]
    entries = [f"*{places[e]}" if e == ELLIPSIS else str(e) if isinstance(e, int) else places[e] for e in shape]
    return f"({', '.join(entries)}{',' if len(entries) == 1 else ''})"


def _prepare(plan: Plan, flat: bool) -> tuple[str, ...]:
    if not flat:
        return ()
    read = {a.tensor for a in plan.body.layout.accesses}
    return tuple(
        f"{t.name} = {t.name}.contiguous()"
        for t in plan.spec.inputs
        if t.name in read and not is_contiguous(plan.spec, t.name)
    )


def _sizes(plan: Plan, kernels: tuple[KernelText, ...]) -> tuple[tuple[str, str], ...]:
    body: Body = plan.body
    if body.layout.columns is None:
        return (("n_elements", f"{plan.spec.outputs[0].name}.numel()"),)
    outer = tuple(a for g in body.layout.rows for a in g.axes)
    sizes = [("M", group_sizes(plan.spec, body.lowered, outer) if outer else "1")]
    sizes.append(("N", group_sizes(plan.spec, body.lowered, body.layout.columns.axes)))
    needed = {a for k in kernels for a in k.arguments} | {
        word for _, view in _views(body) for word in view.replace(",", " ").replace("(", " ").replace(")", " ").split()
    }
    sizes += [(g.size, group_sizes(plan.spec, body.lowered, g.axes)) for g in body.layout.rows if g.size in needed]
    return tuple(sizes)


def _views(body: Body) -> tuple[tuple[str, str], ...]:
    return tuple(dict.fromkeys(a.view for a in body.layout.accesses if a.view))


def _launch(plan: Plan, kernel: KernelText) -> Launch:
    body: Body = plan.body
    views = {a.tensor: a.view[0] for a in body.layout.accesses if a.view}
    strides = {s: e for a in body.layout.accesses for s, e in a.strides}
    arguments = []
    for argument in kernel.arguments:
        name = argument.removesuffix("_ptr")
        arguments.append(strides.get(argument) or (views.get(name, name) if argument.endswith("_ptr") else argument))
    if kernel.variant in ("row", "rows"):
        length = (
            "N"
            if all(len({a for d in o.index for a in d}) == len(body.lowered.space.axes) for o in body.lowered.outputs)
            else "max(N, 1)"
        )
        arguments.append(f"BLOCK_SIZE_N=triton.next_power_of_2({length})")
    return Launch(kernel.name, _grid(kernel), tuple(arguments))


def _grid(kernel: KernelText) -> str:
    if kernel.variant == "flat":
        return '(triton.cdiv(n_elements, options["BLOCK_SIZE"]),)'
    if kernel.variant in ("row", "looped"):
        return "(M,)"
    rows = 'triton.cdiv(M, options["BLOCK_SIZE_M"])'
    if kernel.variant == "rows":
        return f"({rows},)"
    if kernel.schedule.int("ROW_TILES") > 1:
        rows = 'triton.cdiv(M, options["BLOCK_SIZE_M"] * options["ROW_TILES"])'
    cols = 'triton.cdiv(N, options["BLOCK_SIZE_N"])'
    return f"({rows} * {cols},)" if kernel.schedule["grid"] == "1d" else f"({rows}, {cols})"


__all__ = ["COLS", "ITEMSIZE", "REDUCTIONS", "ROWS", "Check", "FileText", "checks", "columns", "file_text", "key_bytes"]
