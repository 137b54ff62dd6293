"""The host side of kernels in the IR: what launches need as lines of the wrapper. A backend prints the kernels."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from kernelgen.backends import triton
from kernelgen.families import family_of
from kernelgen.families.access import group_sizes
from kernelgen.families.helpers import imports_of
from kernelgen.families.kernel import body_of
from kernelgen.plan import KernelPlan
from kernelgen.spec.model import ELLIPSIS
from kernelgen.tile import ir
from kernelgen.wrapper import launch
from kernelgen.wrapper.flavours import flavour, flavours, options
from kernelgen.wrapper.launch import (
    Branch,
    FileText,
    Printed,
    Reroute,
    TableLine,
    called_functions,
    check_beside,
    guard,
    output_allocations,
    refused_empty,
    size_places,
    table_key,
    table_keys,
)
from kernelgen.wrapper.own_names import own_names, with_own

_OTHERWISE = {
    "K": "num_summed",
    "BATCH": "num_products",
    "tiles_m": "row_tiles",
    "tiles_n": "column_tiles",
}
"""What the wrapper's variables that only products have are called where a tensor has their names."""
_DESCRIPTOR = "from triton.tools.tensor_descriptor import TensorDescriptor"
_INSTEAD = "no boxes in memory"


def file_text(plan: KernelPlan) -> FileText:
    """Decide the whole text of `_triton.py`, whoever makes its kernels."""
    return _of_ir(plan) if family_of(plan).build else launch.file_text(plan)


def _of_ir(plan: KernelPlan) -> FileText:
    spec, body, family = plan.spec, body_of(plan), family_of(plan)
    assert family.build is not None
    texts = flavours(plan)
    built = _once([family.build(spec, body, schedule, name) for schedule, name in texts.values()])
    of_flavour = dict(zip(texts, built, strict=True))
    sequences = tuple(built)
    launches = [k for sequence in sequences for k in sequence if isinstance(k, ir.Kernel)]
    kernels = tuple({k.name: k for k in launches}.values())
    check_beside(spec, {k.name for k in kernels})
    printed, helpers = triton.sources(kernels)
    own = own_names(spec, more=_OTHERWISE)
    keys = table_keys(plan)
    table = tuple(
        TableLine(
            tuple(row.limit(key.name) for key in keys), of_flavour[flavour(plan, row.schedule)][0].name,
            _read(options(plan, row.schedule), of_flavour[flavour(plan, row.schedule)]),
        )
        for row in plan.table
    )  # fmt: skip
    too_large = family.too_large(spec, body) if family.too_large else None
    launched = {s[0].name: s for s in sequences}
    plain = [k for s in sequences for k in s if k.when_unfit]
    launched |= {k.name: (k,) for k in plain if k.name not in launched}
    sizes, reroute = _named(_sizes(plan, launches), own), _reroute(sequences, own)
    given = {name: _options_of(table, name, reroute) for name in launched}
    branches = tuple(_branch(plan, sequence, own, given[name]) for name, sequence in launched.items())
    return FileText(
        kernels=tuple(Printed(name, source) for name, source in printed.items()),
        helpers=helpers, table=table, key=table_key(keys, own), prepare=(),
        outputs=output_allocations(plan), sizes=sizes,
        views=_named(dict.fromkeys(a.view for a in body.layout.all() if a.view), own),
        too_large=too_large and (with_own(too_large[0], own), _in_fields(too_large[1], own)),
        branches=branches, filled=refused_empty(plan), guard=guard(spec), own=own,
        functions=called_functions(sizes, branches, reroute, output_allocations(plan)), reroute=reroute,
        imports=((_DESCRIPTOR,) if "TensorDescriptor" in str(branches) else ()) + imports_of(helpers),
    )  # fmt: skip


def _options_of(table: Iterable[TableLine], kernel: str, reroute: Reroute | None) -> frozenset[str]:
    """The options of all lines that lead to a kernel."""
    to = {kernel, *(reroute.kernels if reroute and reroute.instead == kernel else ())}
    return frozenset(name for line in table if line.kernel in to for name, _ in line.options)


def _read(given: tuple[tuple[str, int | bool], ...], steps: tuple[ir.Step, ...]) -> tuple[tuple[str, int | bool], ...]:
    """The options that some launch reads."""
    kernels = [step for step in steps if isinstance(step, ir.Kernel)]
    mentioned = " ".join(text for k in kernels for text in (*k.grid, *(h or "" for _, h in k.constexprs)))
    mentioned += " ".join(text for k in kernels for _, text in k.counts)
    names = {name for k in kernels for name, host in k.constexprs if host is None} | launch.OPTIONS
    return tuple((name, value) for name, value in given if name in names or f'["{name}"]' in mentioned)


_Steps = tuple[ir.Step, ...]
"""What one schedule launches, in order."""


def _once(sequences: Sequence[_Steps]) -> list[_Steps]:
    """The kernels with equal ones under one name: that of the schedule which is named after it."""
    names: dict[ir.Kernel, str] = {}
    for first in (True, False):
        for sequence in sequences:
            for step in sequence[:1] if first else sequence[1:]:
                if isinstance(step, ir.Kernel):
                    names.setdefault(_nameless(step, first or step.when_unfit), step.name)
    return [
        tuple(
            replace(k, name=names[_nameless(k, not i or k.when_unfit)]) if isinstance(k, ir.Kernel) else k
            for i, k in enumerate(sequence)
        )
        for sequence in sequences
    ]  # fmt: skip


def _nameless(kernel: ir.Kernel, chosen: bool) -> ir.Kernel:
    """What equal kernels have in common; of one that is `chosen` by the table's line also its launch."""
    same = replace(kernel, name="", schedule=ir.NO_SCHEDULE, when_unfit=False)
    if chosen:
        return same
    return replace(
        same, constexprs=tuple((n, None) for n, _ in same.constexprs), grid=(), scratch=(), counts=(), made=()
    )  # fmt: skip


def _named(assigned: Iterable[tuple[str, str]], own: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    return tuple((own.get(name, name), with_own(expression, own)) for name, expression in assigned)


def _in_fields(message: str, own: Mapping[str, str]) -> str:
    return re.sub(r"\{[^}]*\}", lambda said: with_own(said[0], own), message)


def _sizes(plan: KernelPlan, kernels: Iterable[ir.Kernel]) -> tuple[tuple[str, str], ...]:
    """The sizes that launches and views need, with the wrapper's expressions for them."""
    body, places = body_of(plan), size_places(plan.spec)
    sizes = {g.size: g.axes for e in body.layout.extents for g in e.runs if g.size.isidentifier()}
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
    return (*found, *((p, places[name]) for name, p in body.layout.sizes if p in needed and p not in sizes))


def _branch(plan: KernelPlan, sequence: _Steps, own: Mapping[str, str], given_options: frozenset[str]) -> Branch:
    first = sequence[0]
    together = [first, *(step for step in sequence[1:] if not step.when_unfit)]
    scratch: list[tuple[str, str]] = []
    if isinstance(first, ir.LibraryCall):
        called = with_own(first.statement, own)
        scratch.append((first.result, f"{called[:-1]}, out={launch.host(first.out, own)})" if first.out else called))
    kernels = [step for step in together if isinstance(step, ir.Kernel)]
    for kernel in kernels:
        scratch += _memory(plan, kernel, own)
    sizes = tuple(dict.fromkeys(c for k in kernels for c in k.counts))
    launches = tuple(launch.launched(_with_boxes(plan, k), own, given_options, chosen=k is first) for k in kernels)
    return Branch(first.name, _named(sizes, own), tuple(scratch), launches)


def _memory(plan: KernelPlan, kernel: ir.Kernel, own: Mapping[str, str]) -> list[tuple[str, str]]:
    """The buffers and descriptors of a launch, each with the expression that makes it."""
    made = [*_named(kernel.made, own), *launch.scratch(plan, kernel, own)]
    hosts = dict(kernel.constexprs)
    for box in (a for a in kernel.arguments if a.kind == "descriptor"):
        extents = ", ".join(b if b.isdigit() else hosts.get(b) or f'{own["options"]}["{b}"]' for b in box.block)
        made.append((_variable(plan, box), f"TensorDescriptor.from_tensor({launch.host(box.host, own)}, [{extents}])"))
    return made


def _variable(plan: KernelPlan, box: ir.Argument) -> str:
    """What the wrapper calls a descriptor."""
    tensors = {t.name for t in (*plan.spec.inputs, *plan.spec.outputs)}
    return f"launch_{box.name}" if box.name in tensors else box.name


def _reroute(sequences: Iterable[_Steps], own: Mapping[str, str]) -> Reroute | None:
    """Where descriptors cannot copy the tensors' tiles."""
    boxed = [
        (first, plain) for first, *rest in sequences for plain in rest
        if isinstance(first, ir.Kernel) and plain.when_unfit
    ]  # fmt: skip
    if not boxed:
        return None
    boxes = ", ".join(launch.host(a.host, own) for a in boxed[0][0].arguments if a.kind == "descriptor")
    condition = with_own(boxed[0][0].fits, own) or f"fit_descriptors({boxes})"
    return Reroute(tuple(first.name for first, _ in boxed), condition, boxed[0][1].name, _INSTEAD)


def _with_boxes(plan: KernelPlan, kernel: ir.Kernel) -> ir.Kernel:
    """A kernel whose launch passes descriptors by what the wrapper calls them."""
    boxes = (replace(a, host=_variable(plan, a)) if a.kind == "descriptor" else a for a in kernel.arguments)
    return replace(kernel, arguments=tuple(boxes))
