"""The host side of a generated file: what its kernels need as lines of the wrapper. A backend prints the kernels."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from kernelgen.backends import ascend, triton
from kernelgen.errors import Mistake, UnsupportedError
from kernelgen.families import family_of
from kernelgen.families.access import group_sizes
from kernelgen.families.helpers import OF_LIBRARY, imports_of, with_called
from kernelgen.families.kernel import body_of
from kernelgen.plan import KernelPlan
from kernelgen.spec.model import ELLIPSIS, SCALAR, OperatorSpec
from kernelgen.spec.sizes import renamed
from kernelgen.tile import ir
from kernelgen.tile.in_place import overwriting
from kernelgen.tile.numbers import with_numbers
from kernelgen.wrapper import launch
from kernelgen.wrapper.flavours import flavour, flavours, options
from kernelgen.wrapper.launch import (
    Branch,
    FileText,
    Launch,
    Printed,
    Reroute,
    TableLine,
    called_functions,
    check_beside,
    copied_back,
    guard,
    named,
    output_allocations,
    overwritten,
    refused_empty,
    size_places,
    table_key,
    table_keys,
)
from kernelgen.wrapper.limits import too_large
from kernelgen.wrapper.own_names import own_names, with_own

_OTHERWISE = {
    "K": "num_summed",
    "BATCH": "num_products",
    "tiles_m": "row_tiles",
    "tiles_n": "column_tiles",
}
"""What the wrapper's variables that only products have are called where a tensor has their names."""
_DESCRIPTOR = "from triton.tools.tensor_descriptor import TensorDescriptor"
_INSTEAD = "no TMA descriptors"


def file_text(plan: KernelPlan, instead: Mapping[tuple[object, ...], tuple[ir.Step, ...]] | None = None) -> FileText:
    """Decide the whole text of `_triton.py`. `instead`: what is launched, by flavours, where that is not what the
    plan's family makes."""
    spec, body, family = plan.spec, body_of(plan), family_of(plan)
    texts = flavours(plan)
    made, last = [family.kernels(spec, body, schedule, name) for schedule, name in texts.values()], _last(plan)
    made = [instead[key] for key in texts] if instead else made
    over = overwritten(plan, [(*steps, *last) for steps in made])
    numbers = _numbers(spec)
    sequences = _once([_over(steps, over, numbers) for steps in made])
    of_flavour, last = dict(zip(texts, sequences, strict=True)), _over(last, over, numbers)
    launches = [step for step in (*itertools.chain(*sequences), *last) if isinstance(step, ir.Kernel)]
    kernels = tuple({k.name: k for k in launches}.values())
    check_beside(spec, {k.name for k in kernels})
    tensors = [t.name for t in plan.then.spec.inputs] if plan.then else []
    own = own_names(spec, tensors, more=_OTHERWISE if body.layout.extents else {})
    keys = table_keys(plan)
    table = tuple(
        TableLine(
            tuple(row.limit(key.name) for key in keys), of_flavour[flavour(plan, row.schedule)][0].name,
            _read(options(plan, row.schedule), of_flavour[flavour(plan, row.schedule)])
            + tuple((way, True) for way in _way(of_flavour[flavour(plan, row.schedule)], sequences)),
        )
        for row in plan.table
    )  # fmt: skip
    # a way is asked for by name, so that it comes before the function's other calls
    first = sorted(sequences, key=lambda s: not _way(s, sequences))
    launched = {
        " ".join([s[0].name, *(f'and {own["options"]}.get("{w}")' for w in _way(s, sequences))]): s for s in first
    }
    plain = {k.name: s[i:] for s in sequences for i, k in enumerate(s) if k.when_unfit}
    launched |= {name: steps for name, steps in plain.items() if name not in launched}
    reroutes, printed, helpers = _reroutes(sequences, own), *_printed(plan, kernels)
    sizes = named((_product_sizes if body.layout.extents else _row_sizes)(plan, launches), own)
    given = {name: _options_of(table, name, reroutes) for name in launched}
    branches = tuple(_branch(plan, name, sequence, own, given[name]) for name, sequence in launched.items())
    after = tuple(_launch_last(plan, kernel, own) for kernel in last if isinstance(kernel, ir.Kernel))
    outputs, waits = output_allocations(plan, over), any(branch.fits for branch in branches)
    return FileText(
        kernels=printed, helpers=with_called([family.own_helpers.get(h, h) for h in helpers]), table=table,
        key=table_key(keys, own), prepare=launch.prepared(plan), outputs=outputs, sizes=sizes,
        views=named(launch.views(body), own), too_large=too_large(plan, own), branches=branches,
        cores=plan.chip.cores if plan.chip else None, left=named(launch.left(plan), own), last=after,
        returned=launch.returned(plan),
        copies=copied_back(spec, over), filled=refused_empty(plan), guard=guard(spec, plan.chip), own=own,
        functions=called_functions(sizes, branches, after, reroutes, outputs, waits=waits),
        imports=((_DESCRIPTOR,) if "TensorDescriptor" in str(branches) else ()) + imports_of(helpers),
        reroutes=reroutes, waits=waits,
    )  # fmt: skip


def _numbers(spec: OperatorSpec) -> dict[str, str]:
    """The inputs that are numbers, each as a launch passes it."""
    return {t.name: f"float({t.name})" if t.kind == "int" else t.name for t in spec.inputs if t.role == SCALAR}


def prepared_steps(plan: KernelPlan, steps: tuple[ir.Step, ...]) -> tuple[ir.Step, ...]:
    """What a family launches, with numbers as arguments."""
    return _over(steps, {}, _numbers(plan.spec))


def _over(steps: tuple[ir.Step, ...], over: Mapping[str, str], numbers: Mapping[str, str]) -> tuple[ir.Step, ...]:
    """The kernels with what lies in inputs' memory, and with numbers as arguments."""
    return tuple(with_numbers(overwriting(s, over), numbers) if isinstance(s, ir.Kernel) else s for s in steps)


def _printed(plan: KernelPlan, kernels: Iterable[ir.Kernel]) -> tuple[tuple[Printed, ...], tuple[str, ...]]:
    """The kernels by the backend, and the device functions that they call."""
    helpers: dict[str, None] = {}
    printer = ascend.Printer if plan.chip else triton.Printer
    printed = tuple(Printed(kernel.name, printer(kernel, helpers).source()) for kernel in kernels)
    if plan.chip and (of_cuda := [h for h in helpers if h in OF_LIBRARY]):
        place = plan.spec.reference_place
        said = f"unsupported: {of_cuda[0]} on an NPU, which is a function of CUDA's library"
        raise UnsupportedError([Mistake(plan.spec.path, place.line, place.column, said)])
    return printed, tuple(helpers)


def _last(plan: KernelPlan) -> tuple[ir.Step, ...]:
    """The kernels that reduce what the rows left."""
    if plan.then is None:
        return ()
    name, then = f"{plan.spec.name}_finish_kernel", plan.then
    return family_of(then).kernels(then.spec, body_of(then), then.table[0].schedule, name)


def _launch_last(plan: KernelPlan, kernel: ir.Kernel, own: Mapping[str, str]) -> Launch:
    """Its elements are the rows of the kernels before."""
    assert plan.then is not None
    arguments = [own["M"] if a.name == "N" else a.host for a in kernel.arguments]
    arguments += [f"{name}={value}" for name, value in options(plan.then, kernel.schedule)]
    return Launch(kernel.name, launch.grid_text(kernel, own), tuple(arguments))


def _way(sequence: _Steps, sequences: Sequence[_Steps]) -> tuple[str, ...]:
    """What a line of the table says beside the function of torch's that a schedule calls, where another schedule has it
    called otherwise; () for anything else."""
    first = sequence[0]
    if not isinstance(first, ir.LibraryCall) or not first.way:
        return ()
    return (first.way,) if any(s[0].name == first.name and s[0] != first for s in sequences) else ()


def _options_of(table: Iterable[TableLine], kernel: str, reroutes: Sequence[Reroute]) -> frozenset[str]:
    """The options of all lines that lead to a kernel."""
    to = {kernel, *(name for one in reroutes if one.instead == kernel for name in one.kernels)}
    return frozenset(name for line in table if line.kernel in to for name, _ in line.options)


def _read(given: tuple[tuple[str, int | bool], ...], steps: tuple[ir.Step, ...]) -> tuple[tuple[str, int | bool], ...]:
    """The options that some launch reads."""
    kernels = [step for step in steps if isinstance(step, ir.Kernel)]
    told = [pair for k in kernels for pair in (*k.constexprs, *k.options)]
    texts = [text for k in kernels for text in (*k.grid, *(t for _, t in k.counts), *(s.shape for s in k.scratch))]
    mentioned = " ".join([*texts, *(host for _, host in told if host)])
    names = {name for name, host in told if host is None} | launch.OPTIONS
    return tuple((name, value) for name, value in given if name in names or f'["{name}"]' in mentioned)


_Steps = tuple[ir.Step, ...]
"""What one schedule launches, in order."""


def _once(sequences: Sequence[_Steps]) -> list[_Steps]:
    """The kernels with equal ones under one name: that of the schedule which is named after it. What a line of the
    table names is equal only with all that follows it."""
    names: dict[object, str] = {}
    for sequence in sequences:
        names.setdefault(_equals(sequence), sequence[0].name)
    for step in itertools.chain(*(sequence[1:] for sequence in sequences)):
        names.setdefault(_equals((step,)) if step.when_unfit else _nameless(step, chosen=False), step.name)

    def once(sequence: _Steps, i: int, step: ir.Step) -> ir.Step:
        if isinstance(step, ir.LibraryCall):
            return step
        same = _equals((step,)) if step.when_unfit else _nameless(step, chosen=False)
        return replace(step, name=names[_equals(sequence) if i == 0 else same])

    return [tuple(once(sequence, i, step) for i, step in enumerate(sequence)) for sequence in sequences]


def _equals(sequence: _Steps) -> tuple[ir.Step, ...]:
    return tuple(_nameless(step, chosen=True) for step in sequence)


def _nameless(kernel: ir.Step, *, chosen: bool) -> ir.Step:
    """What equal kernels have in common; of one that is `chosen` by the table's line also its launch."""
    if isinstance(kernel, ir.LibraryCall):
        return kernel
    same = replace(kernel, name="", schedule=ir.NO_SCHEDULE, when_unfit=False)
    if chosen:
        return same
    return replace(
        same, constexprs=tuple((n, None) for n, _ in same.constexprs), grid=(), scratch=(), counts=(), made=()
    )  # fmt: skip


def _said(size: str, places: Mapping[str, str]) -> str:
    """The wrapper's expression for a size by its name, or for what follows from several."""
    return places[size] if size in places else renamed(size, places)


def _product_sizes(plan: KernelPlan, kernels: Sequence[ir.Kernel]) -> tuple[tuple[str, str], ...]:
    """The sizes that launches and views need, with the wrapper's expressions for them."""
    body, places = body_of(plan), size_places(plan.spec)
    sizes = {g.size: g.axes for e in body.layout.extents for g in (*e.runs, *e.spans) if g.size.isidentifier()}
    sizes |= {e.size: e.axes for e in body.layout.extents if e.runs}
    views = " ".join(a.view[1] for a in body.layout.all() if a.view)
    family = family_of(plan)
    limits = " ".join(family.too_large(plan.spec, body) or () if family.too_large else ())
    hosts = " ".join(a.host for k in kernels for a in k.arguments)
    counts = [text for k in kernels for _, text in k.counts]
    grids = " ".join([*counts, *(text for k in kernels for text in (*k.grid, *(s.shape for s in k.scratch)))])
    keys = " ".join(key.expression for key in table_keys(plan))
    needed = set(re.findall(r"[A-Za-z_]\w*", " ".join([views, limits, hosts, grids, keys])))
    found = [
        (name, group_sizes(plan.spec, body.lowered, axes, places)) for name, axes in sizes.items() if name in needed
    ]
    places |= {ELLIPSIS: f"{places[ELLIPSIS]}.numel()"} if ELLIPSIS in places else {}
    return (*found, *((p, _said(name, places)) for name, p in body.layout.sizes if p in needed and p not in sizes))


def _branch(
    plan: KernelPlan, name: str, sequence: _Steps, own: Mapping[str, str], given_options: frozenset[str]
) -> Branch:
    first = sequence[0]
    together = [first, *(step for step in sequence[1:] if not step.when_unfit)]
    fits = isinstance(first, ir.Kernel) and len(together) == len(sequence) and with_own(first.fits, own)
    scratch: list[tuple[str, str]] = []
    counts: list[tuple[str, str]] = []
    launches: list[Launch] = []
    calls: list[tuple[str, str]] = []
    for step in together:
        if isinstance(step, ir.LibraryCall):
            called = with_own(step.statement, own)
            calls.append((step.result, f"{called[:-1]}, out={launch.host(step.out, own)})" if step.out else called))
            continue
        scratch += _memory(plan, step, own)
        counts += step.counts
        made = launch.launched(_with_boxes(plan, step), own, given_options, chosen=step is first)
        arguments = launch.unpacked(made.arguments, launch.ranks(plan))
        launches.append(replace(made, arguments=arguments, before=tuple(calls)))
        calls = []
    count = 1 if fits else len(launches)
    return Branch(
        name, named(dict.fromkeys(counts), own), tuple(scratch), tuple(launches[:count]), fits or "",
        tuple(launches[count:]), tuple(calls),
    )  # fmt: skip


def _memory(plan: KernelPlan, kernel: ir.Kernel, own: Mapping[str, str]) -> list[tuple[str, str]]:
    """The buffers and descriptors of a launch, each with the expression that makes it."""
    made = [*named(kernel.made, own), *launch.scratch(plan, kernel, own)]
    hosts = dict(kernel.constexprs)
    for box in (a for a in kernel.arguments if a.kind == "descriptor"):
        extents = ", ".join(b if b.isdigit() else hosts.get(b) or f'{own["options"]}["{b}"]' for b in box.block)
        made.append((_variable(plan, box), f"TensorDescriptor.from_tensor({launch.host(box.host, own)}, [{extents}])"))
    return made


def _variable(plan: KernelPlan, box: ir.Argument) -> str:
    """What the wrapper calls a descriptor."""
    tensors = {t.name for t in (*plan.spec.inputs, *plan.spec.outputs)}
    return f"launch_{box.name}" if box.name in tensors else box.name


def _reroutes(sequences: Iterable[_Steps], own: Mapping[str, str]) -> tuple[Reroute, ...]:
    """Where descriptors cannot copy the tensors' tiles; kernels that say themselves when they fit ask for no more."""
    boxed: dict[str, list[tuple[list[ir.Kernel], ir.Step]]] = {}
    for steps in sequences:
        for plain in steps[1:]:
            if isinstance(steps[0], ir.Kernel) and plain.when_unfit:
                kernels = [k for k in steps if isinstance(k, ir.Kernel) and not k.when_unfit]
                boxed.setdefault(with_own(kernels[0].fits, own), []).append((kernels, plain))
    found = []
    for fits, group in boxed.items():
        boxes = ", ".join(dict.fromkeys(launch.host(host, own) for kernels, _ in group for host in _given(kernels)))
        condition = " and ".join([*([f"fit_descriptors({boxes})"] if boxes else []), *([fits] if fits else [])])
        found.append(Reroute(tuple(kernels[0].name for kernels, _ in group), condition, group[0][1].name, _INSTEAD))
    return tuple(found)


def _given(kernels: Sequence[ir.Kernel]) -> list[str]:
    """What descriptors copy tiles of, where no kernel makes it and none says itself when it fits."""
    made = {s.name for k in kernels for s in k.scratch}
    boxes = (a.host for k in kernels if not k.fits for a in k.arguments if a.kind == "descriptor")
    return [host for host in boxes if host not in made]


def _with_boxes(plan: KernelPlan, kernel: ir.Kernel) -> ir.Kernel:
    """A kernel whose launch passes descriptors by what the wrapper calls them."""
    boxes = (replace(a, host=_variable(plan, a)) if a.kind == "descriptor" else a for a in kernel.arguments)
    return replace(kernel, arguments=tuple(boxes))


def _row_sizes(plan: KernelPlan, kernels: Sequence[ir.Kernel]) -> tuple[tuple[str, str], ...]:
    body = body_of(plan)
    if body.layout.columns is None:
        return (("n_elements", f"{plan.spec.outputs[0].name}.numel()"),)
    outer, places = tuple(a for g in body.layout.rows for a in g.axes), size_places(plan.spec)
    sizes = [("M", group_sizes(plan.spec, body.lowered, outer, places))] if outer else []
    sizes += [("M", "1")] if not outer and any(a.name == "M" for k in kernels for a in k.arguments) else []
    sizes.append(("N", group_sizes(plan.spec, body.lowered, body.layout.columns.axes, places)))
    sizes = launch.divided(plan.spec, sizes)
    needed = {name for k in kernels for name in (*(a.name for a in k.arguments), *(c for c, _ in k.constexprs))}
    needed |= {word for _, view in launch.views(body) for word in launch.words(view)}
    needed |= {
        word for k in kernels for text in (*k.grid, *(s.shape for s in k.scratch)) for word in launch.words(text)
    }
    groups = (*body.layout.rows, *body.layout.parts)
    sizes += [
        (g.size, group_sizes(plan.spec, body.lowered, g.axes, places))
        for g in groups
        if g.size.isidentifier() and g.size in needed
    ]
    sizes += [("n_elements", "M * N")] if "n_elements" in needed else []
    known = {name for name, _ in sizes}
    places |= {ELLIPSIS: f"{places[ELLIPSIS]}.numel()"} if ELLIPSIS in places else {}
    own = [*body.layout.sizes, *(body_of(plan.then).layout.sizes if plan.then else ())]
    named = dict.fromkeys([*own, *(size for k in kernels for size in k.named_sizes)])
    sizes += [(p, _said(name, places)) for name, p in named if p in needed and p not in known]
    return tuple(dict.fromkeys(sizes))
