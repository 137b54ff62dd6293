"""What the wrapper of a generated file is made of: sizes, outputs, the schedule table, launches."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from kernelgen.errors import Mistake, SpecError
from kernelgen.families import family_of, named_sizes
from kernelgen.families.access import COLS
from kernelgen.families.kernel import Body, body_of
from kernelgen.plan import Chip, KernelPlan, OnePlan
from kernelgen.schedule.problem import NamedSize
from kernelgen.spec.constraints import facts_of, failing, message
from kernelgen.spec.model import ELLIPSIS, SCALAR, Constraint, OperatorSpec, Size, TensorSpec
from kernelgen.spec.sizes import is_expression, is_multiple, multiple, renamed
from kernelgen.tile import ir
from kernelgen.tile.in_place import may_overwrite
from kernelgen.wrapper.checks import Check, dimension
from kernelgen.wrapper.own_names import with_own

OPTIONS = {"num_warps", "num_stages", "maxnreg", "multibuffer"}
"""What a launch passes that is no argument of a kernel."""


@dataclass(frozen=True)
class TableLine:
    """One line of the generated schedule table."""

    limits: tuple[int | None, ...]
    """The most of every key that it serves; None: any."""
    kernel: str
    options: tuple[tuple[str, int], ...]


@dataclass(frozen=True)
class TableKey:
    """What the lines of a schedule table are told apart by: one named size, or several."""

    names: tuple[str, ...]
    """What `pick_schedule` calls them."""
    sizes: tuple[str, ...]
    """The wrapper's expressions for them."""
    meaning: str
    """What the limits of a line count, such as `bytes of a row`."""
    call: str
    """What one size is picked for: "a row of `size` bytes"."""


@dataclass(frozen=True)
class Launch:
    """How one kernel is launched: the `kernel[grid](...)` arguments."""

    kernel: str
    """What the wrapper calls the kernel: the one of the table's line by its variable."""
    grid: str
    arguments: tuple[str, ...]
    before: tuple[tuple[str, str], ...] = ()
    """What is called of torch's just before, with its expression; unnamed where it is written to an output."""


@dataclass(frozen=True)
class Branch:
    """What the wrapper does where the table names a kernel: scratch memory, then the launches in their order."""

    kernel: str
    sizes: tuple[tuple[str, str], ...]
    """What the others need, with the wrapper's expressions for it."""
    scratch: tuple[tuple[str, str], ...]
    """Each buffer with the expression that allocates it."""
    launches: tuple[Launch, ...]
    fits: str = ""
    """Under which condition, if not always."""
    instead: tuple[Launch, ...] = ()
    """The launches where that does not hold."""
    last: tuple[tuple[str, str], ...] = ()
    """What is called of torch's behind the launches."""


@dataclass(frozen=True)
class Reroute:
    """Which kernel is launched instead of some where a condition does not hold."""

    kernels: tuple[str, ...]
    condition: str
    instead: str
    reason: str


@dataclass(frozen=True)
class Printed:
    """A kernel that a backend has printed."""

    name: str
    source: str


@dataclass(frozen=True)
class FileText:
    """Everything the templates of one operator's `_triton.py` print."""

    kernels: tuple[Printed, ...]
    helpers: tuple[str, ...]
    table: tuple[TableLine, ...]
    key: TableKey
    prepare: tuple[str, ...]
    outputs: tuple[tuple[str, str], ...]
    """Each output with the expression that allocates it."""
    sizes: tuple[tuple[str, str], ...]
    views: tuple[tuple[str, str], ...]
    too_large: tuple[str, str] | None
    """Where an index that the kernels keep in int32 would overflow: the condition and what to say of it."""
    branches: tuple[Branch, ...]
    cores: int | None = None
    """Programs of a launch where no driver says how many cores there are; None: a launch has one for every tile."""
    left: tuple[tuple[str, str], ...] = ()
    """What the rows leave for the kernel that reduces them, with the expressions that allocate it."""
    last: tuple[Launch, ...] = ()
    """The launches that follow whatever branch was taken."""
    copies: tuple[str, ...] = ()
    """What the outputs are copied by into inputs, where kernels may not write there."""
    returned: str = ""
    """What is returned, where that is not the outputs as they are."""
    filled: tuple[Check, ...] = ()
    """What is refused of inputs without elements where a result would have some."""
    guard: str = ""
    """The context manager around the launches; empty where the caller of the function has entered it."""
    own: Mapping[str, str] = field(default_factory=dict)
    """What the wrapper calls its own variables."""
    functions: tuple[str, ...] = ()
    """The functions of `host.py.jinja` that launches call."""
    imports: tuple[str, ...] = ()
    reroutes: tuple[Reroute, ...] = ()
    waits: bool = False
    """Whether programs of a kernel wait for one another."""


_FUNCTIONS = (
    "cdiv", "next_power_of_2", "num_programs", "precision", "attention_precision", "convolution_precision",
    "has_copy_engine", "fit_descriptors", "fit_channels", "tf32_parts", "channels_last", "window_rows",
    "packed_weight", "packed_rows", "memory_format_of",
)  # fmt: skip
"""The functions of the generated file that expressions of the wrapper may call, in its order."""
_CALLED = {
    "fit_descriptors": "has_copy_engine(", "fit_channels": "has_copy_engine(", "channels_last": "cdiv(",
    "packed_weight": "channels_last(cdiv(", "window_rows": "channels_last(cdiv(",
    "packed_rows": "channels_last(cdiv(", "tf32_parts": "convolution_precision(",
}  # fmt: skip
"""What these call themselves."""


def called_functions(*parts: object, waits: bool = False) -> tuple[str, ...]:
    """Those that the expressions in some parts of a file's text call. `waits`: its functions for programs that wait for
    one another are printed too."""
    text = " ".join(map(str, parts))
    text += " ".join(inner for name, inner in _CALLED.items() if f"{name}(" in text)
    return tuple(f for f in _FUNCTIONS if re.search(rf"(?<![\w.]){f}\(", text) or (waits and f == "next_power_of_2"))


def table_keys(plan: KernelPlan) -> tuple[NamedSize, ...]:
    """The named sizes that some line of the table limits; the usual one where none does."""
    known = named_sizes(plan)
    limited = {name for row in plan.table for name, _ in row.upto}
    return tuple(size for size in known if size.name in limited) or known[:1]


def table_key(keys: tuple[NamedSize, ...], own: Mapping[str, str]) -> TableKey:
    names = tuple(key.name for key in keys) if len(keys) > 1 else ("size",)
    sizes = tuple(with_own(key.expression, own) for key in keys)
    meaning = " and ".join(filter(None, [", ".join(key.meaning for key in keys[:-1]), keys[-1].meaning]))
    return TableKey(names, sizes, meaning, keys[0].call.format(f"`{names[0]}`"))


def overwritten(plan: KernelPlan, sequences: Iterable[Sequence[ir.Step]]) -> dict[str, str]:
    """The outputs that every schedule's launches may write into the memory of an input, each with that."""
    if plan.chip is not None or _widened(plan):
        return {}
    found = {o.name: o.into for o in plan.spec.outputs if o.into is not None and _is_bare(plan, o)}
    return {o: into for o, into in found.items() if all(may_overwrite(steps, o, into) for steps in sequences)}


def _is_bare(plan: KernelPlan, output: TensorSpec) -> bool:
    """Whether nothing is done with an output's memory but that kernels write it by its numbers."""
    viewed = {name for name, _ in views(body_of(plan))}
    read = {t.name for t in plan.spec.inputs}
    return not family_of(plan).begin(body_of(plan)) and output.into in read and not {output.name, output.into} & viewed


def output_allocations(plan: KernelPlan, over: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    """Each output with the expression that allocates it, or begins it. `over`: those that lie in inputs' memory."""
    return tuple((o.name, over.get(o.name) or _start(plan, o)) for o in plan.spec.outputs)


def check_beside(spec: OperatorSpec, kernels: Collection[str]) -> None:
    """Raise SpecError where a tensor of the wrapper would hide a kernel that it launches."""
    for tensor in (*spec.inputs, *spec.outputs):
        if tensor.name in kernels:
            message = f"a kernel of the generated code is called {tensor.name}; choose another name"
            raise SpecError([Mistake(spec.path, tensor.place.line, tensor.place.column, message)])


def named(assigned: Iterable[tuple[str, str]], own: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    """Assignments of the wrapper, each a name with its expression, by the names that its variables have."""
    return tuple((own.get(name, name), with_own(expression, own)) for name, expression in assigned)


def guard(spec: OperatorSpec, chip: Chip | None = None) -> str:
    """The context manager that makes the device of the inputs the current one, on which Triton launches; it does
    nothing for tensors of the CPU. A device's index and not `device_of`, which torch.compile cannot trace."""
    first = spec.inputs[0].name
    return f"npu_of({first})" if chip else f"torch.cuda.device({first}.get_device())"


def refused_empty(plan: KernelPlan) -> tuple[Check, ...]:
    """The refusals that are reached: where every output has a size, there is nothing to compute without it."""
    if family_of(plan).of_nothing:
        return ()
    outputs = [t.shape for t in plan.spec.outputs]
    return tuple(
        check for size, check in filled(plan) if not all(any(_has(entry, size) for entry in shape) for shape in outputs)
    )


def _has(entry: Size, size: str) -> bool:
    """Whether an entry of a shape is 0 where a size is."""
    return entry == size or (isinstance(entry, str) and is_multiple(entry) and multiple(entry)[1] == size)


def filled(plan: OnePlan) -> tuple[tuple[str, Check], ...]:
    """The sizes that must not be 0, as torch refuses to take the greatest or the least of no elements."""
    places = size_places(plan.spec)
    found = {size: f"{places[size]}.numel()" if size == ELLIPSIS else _place(size, places) for size in plan.filled}
    needed = {size: Constraint(f"{place} >= 1") for size, place in found.items()}
    return tuple((size, Check(failing(need), message(plan.spec.name, need))) for size, need in needed.items())


def _allocation(spec: OperatorSpec, output: TensorSpec, laid: str = "") -> str:
    """Allocate like an input of the same shape where there is one, else from the shapes. `laid`: the wrapper's
    expression for its memory format, where it is no usual one."""
    dtype = _dtype(spec, output)
    if laid:
        shape, first = _shape(spec, output.shape), spec.inputs[0].name
        return f"torch.empty({shape}, dtype={dtype}, device={first}.device, memory_format={laid})"
    like = next((t for t in spec.inputs if t.shape == output.shape), None)
    if like is not None:
        extra = [] if like.dtype == output.dtype else [f"dtype={dtype}"]
        if like.name not in facts_of(spec).contiguous:
            extra.append("memory_format=torch.contiguous_format")
        return f"torch.empty_like({', '.join([like.name, *extra])})"
    first = spec.inputs[0].name
    return f"torch.empty({_shape(spec, output.shape)}, dtype={dtype}, device={first}.device)"


def _start(plan: KernelPlan, output: TensorSpec) -> str:
    """What an output holds before the kernels: nothing in particular, zeros, or what an input holds."""
    begin = family_of(plan).begin(body_of(plan))
    if begin and begin != "zeros":
        copied = "to(torch.float32, copy=True)" if _widened(plan) else "clone(memory_format=torch.contiguous_format)"
        return f"{begin}.{copied}"
    laid = family_of(plan).memory_format(plan.spec, body_of(plan), output.name)
    allocation = _allocation(plan.spec, replace(output, dtype="float32") if _widened(plan) else output, laid)
    return allocation.replace("torch.empty", "torch.zeros", 1) if begin else allocation


def _widened(plan: KernelPlan) -> bool:
    """Whether kernels leave the output in float32, whatever its dtype."""
    return family_of(plan).widened(plan.spec, body_of(plan))


def returned(plan: KernelPlan) -> str:
    """What is returned, where that is not the outputs as they are."""
    (output, *_) = plan.spec.outputs
    if plan.spec.written:
        return results(plan.spec)
    return f"{output.name}.to({_dtype(plan.spec, output)})" if _widened(plan) else ""


def results(spec: OperatorSpec) -> str:
    """What is returned: outputs, and the inputs that some were written into."""
    return ", ".join(o.into or o.name for o in spec.outputs)


def copied_back(spec: OperatorSpec, over: Collection[str] = ()) -> tuple[str, ...]:
    """The statements that copy outputs into inputs. `over`: those that lie there."""
    return tuple(f"{o.into}.copy_({o.name})" for o in spec.outputs if o.into is not None and o.name not in over)


def _dtype(spec: OperatorSpec, output: TensorSpec) -> str:
    carrier = next((t.name for t in spec.inputs if t.dtype == output.dtype), None)
    return f"{carrier}.dtype" if carrier and output.dtype in dict(spec.dtypes) else f"torch.{output.dtype}"


def _shape(spec: OperatorSpec, shape: tuple[Size, ...]) -> str:
    places = size_places(spec)
    if shape == (ELLIPSIS,):
        return places[ELLIPSIS]
    entries = [f"*{places[e]}" if e == ELLIPSIS else _place(e, places) for e in shape]
    return f"({', '.join(entries)}{',' if len(entries) == 1 else ''})"


def size_places(spec: OperatorSpec) -> dict[str, str]:
    """Where the wrapper finds every named size; one that stands only in a product is that size divided. A size that a
    call of torch's has made is found as the expression that it is."""
    found: dict[str, str] = {}
    for tensor in spec.inputs:
        for position, entry in enumerate(tensor.shape):
            if isinstance(entry, str) and not is_expression(entry):
                found.setdefault(entry, dimension(tensor, position))
    for tensor in spec.inputs:
        for position, entry in enumerate(tensor.shape):
            if isinstance(entry, str) and is_multiple(entry):
                factor, name = multiple(entry)
                found.setdefault(name, f"{dimension(tensor, position)} // {factor}")
            elif is_expression(entry):
                found.setdefault(str(entry), dimension(tensor, position))
    return found


def _place(entry: Size, places: dict[str, str]) -> str:
    """A size of an output in terms of the inputs' shapes."""
    if isinstance(entry, int) or entry in places:
        return str(places.get(str(entry), entry))
    return renamed(entry, places) if is_expression(entry) else places[entry]


def prepared(plan: KernelPlan) -> tuple[str, ...]:
    """Where everything is one run of elements, an input is read as one too."""
    packed = family_of(plan).packed
    layout = body_of(plan).layout
    if layout.rows and not packed:
        return ()
    run = {a.tensor for a in layout.accesses if packed or a.terms in ((("offsets", None),), ((COLS, None),))}
    return tuple(
        f"{t.name} = {t.name}.contiguous()"
        for t in plan.spec.inputs
        if t.name in run and t.role != SCALAR and t.name not in facts_of(plan.spec).contiguous
    )


def divided(spec: OperatorSpec, sizes: list[tuple[str, str]]) -> list[tuple[str, str]]:
    """The rows as a quotient, where no output without elements comes this far: a slice of a shape takes the host three
    times as long."""
    first = spec.inputs[0]
    last = str(first.shape[-1]) if first.shape else ""
    if dict(sizes) != {"M": f"{first.name}.shape[:-1].numel()", "N": f"{first.name}.shape[-1]"} or not all(
        o.shape and _has(o.shape[-1], last) for o in spec.outputs
    ):
        return sizes
    return [("N", f"{first.name}.shape[-1]"), ("M", f"{first.name}.numel() // N")]


def words(text: str) -> list[str]:
    """The names in an expression."""
    return re.findall(r"[A-Za-z_]\w*", text)


def views(body: Body) -> tuple[tuple[str, str], ...]:
    """Inputs and outputs whose dimensions are merged."""
    return tuple(dict.fromkeys(a.view for a in body.layout.all() if a.view))


def scratch(plan: KernelPlan, kernel: ir.Kernel, own: Mapping[str, str]) -> list[tuple[str, str]]:
    """The memory that a kernel leaves for the next, with the expressions that allocate it."""
    device = f"{plan.spec.inputs[0].name}.device"
    made = [(s, f"torch.{'zeros' if s.zeros else 'empty'}({with_own(s.shape, own)}") for s in kernel.scratch]
    dtypes = {s: s.dtype if "." in s.dtype else f"torch.{s.dtype}" for s in kernel.scratch}
    return [(own.get(s.name, s.name), f"{begun}, dtype={dtypes[s]}, device={device})") for s, begun in made]


def launched(kernel: ir.Kernel, own: Mapping[str, str], given: frozenset[str], *, chosen: bool) -> Launch:
    """`given`: the options of the lines that lead to it; `chosen`: the kernel is that of the table's line."""
    passed = [with_own(a.host, own) if a.kind == "number" else host(a.host, own) for a in kernel.arguments]
    both = (*kernel.constexprs, *kernel.options)
    passed += [f"{name}={with_own(value, own)}" for name, value in both if value]
    rest = [name for name, value in kernel.constexprs if value is None]
    if given - OPTIONS <= set(rest):
        passed += [f"**{own['options']}"] if given else []
    else:
        rest += [name for name, value in kernel.options if value is None]
        rest += sorted(given & OPTIONS - dict(kernel.options).keys()) if chosen else []
        passed += [f'{name}={own["options"]}["{name}"]' for name in rest]
    return Launch(own["kernel"] if chosen else kernel.name, grid_text(kernel, own), tuple(passed))


def ranks(plan: KernelPlan) -> dict[str, int]:
    """How many dimensions the tensors and views of the wrapper have, where that is known."""
    found = {t.name: len(t.shape) for t in (*plan.spec.inputs, *plan.spec.outputs) if ELLIPSIS not in t.shape}
    return found | {a.view[0]: len(a.terms) for a in body_of(plan).layout.all() if a.view}


def unpacked(arguments: Sequence[str], known: Mapping[str, int]) -> tuple[str, ...]:
    """The arguments, all strides of a tensor in their order as `*x.stride()`: one call of the host's instead of one for
    each."""
    found: list[str] = []
    for argument in arguments:
        found.append(argument)
        name, dot, _ = argument.rpartition(".stride(")
        count = known.get(name, 0) if dot else 0
        if count and found[-count:] == [f"{name}.stride({n})" for n in range(count)]:
            found[-count:] = [f"*{name}.stride()"]
    return tuple(found)


def one_by_one(argument: str, known: Mapping[str, int]) -> tuple[str, ...]:
    """The strides that `*x.stride()` unpacks; any other argument as it is."""
    name = argument.removeprefix("*").removesuffix(".stride()")
    if name not in known or argument != f"*{name}.stride()":
        return (argument,)
    return tuple(f"{name}.stride({n})" for n in range(known[name]))


def grid_text(kernel: ir.Kernel, own: Mapping[str, str]) -> str:
    """The grid of a launch as a tuple."""
    return with_own(f"({', '.join(kernel.grid)}{',' if len(kernel.grid) == 1 else ''})", own)


def host(expression: str, own: Mapping[str, str]) -> str:
    """The expression for a tensor, which may be called as the wrapper calls a variable otherwise."""
    return expression if expression.isidentifier() else with_own(expression, own)


def left(plan: KernelPlan) -> tuple[tuple[str, str], ...]:
    """What the rows leave for the kernel that reduces them."""
    device = f"{plan.spec.inputs[0].name}.device"
    tensors = plan.then.spec.inputs if plan.then else ()
    return tuple((t.name, f"torch.empty(M, dtype=torch.{t.dtype}, device={device})") for t in tensors)
