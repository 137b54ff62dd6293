"""How every input is read: collapsed axes, strides, and what the wrapper passes for them."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from kernelgen.families.naming import RESERVED
from kernelgen.families.space import product
from kernelgen.families.values import Index, Lowered, Stored, Unlowerable, Value, axes_of, expressions
from kernelgen.frontend.graph import Atom, same_size
from kernelgen.frontend.indices import Expr, leaves, number
from kernelgen.frontend.operations import of_kind
from kernelgen.spec.constraints import facts_of
from kernelgen.spec.model import ELLIPSIS, OperatorSpec, TensorSpec
from kernelgen.spec.sizes import is_expression, names_in, renamed, size_text


@dataclass(frozen=True)
class Group:
    """Adjacent axes that every tensor runs over together, so that they count as one."""

    axes: tuple[int, ...]
    size: str
    """The kernel parameter, and wrapper variable, that holds its size."""
    index: str
    """The kernel variable that holds its index, where rows have to be taken apart."""


@dataclass(frozen=True)
class Access:
    """One load. `terms` are (index, stride) pairs, the index a variable or an expression; a stride of None is one."""

    load: int
    tensor: str
    terms: tuple[tuple[str | Expr, str | None], ...]
    strides: tuple[tuple[str, str], ...]
    """Kernel parameters and the wrapper's expressions for them."""
    view: tuple[str, str] | None
    """A wrapper variable and the reshape that makes it, where dimensions are merged."""


_POOLS = of_kind("pool")
WHOLE = {"batch": "batch", "m": "rows", "n": "cols", "k": "ks"}
"""What counts the elements of an extent, by its name."""


@dataclass(frozen=True)
class Extent:
    """Of a product: its batch, its rows, its columns, or what is summed over."""

    name: str
    """`batch`, `m`, `n` or `k`."""
    size: str
    """The kernel's parameter for its length."""
    runs: tuple[Group, ...]
    """What it is made of, from the outermost; one run where every tensor holds it together, none where it is one."""
    spans: tuple[Group, ...] = ()
    """Several of these runs that some tensor holds together."""

    @property
    def axes(self) -> tuple[int, ...]:
        return tuple(a for run in self.runs for a in run.axes)

    def counted(self, index: object) -> Group | None:
        """The run, or the span of several, that an index counts."""
        return next((run for run in (*self.runs, *self.spans) if run.index == index), None)

    def around(self, own: Group) -> tuple[tuple[Group, ...], tuple[Group, ...]]:
        """The runs before a run or a span and those behind it."""
        first, last = (next(i for i, g in enumerate(self.runs) if own.axes[end] in g.axes) for end in (0, -1))
        return self.runs[:first], self.runs[last + 1 :]


@dataclass(frozen=True)
class Layout:
    """The iteration space as rows and columns."""

    rows: tuple[Group, ...]
    columns: Group | None
    """None: the whole space is one run of elements."""
    parts: tuple[Group, ...]
    """What the columns are made of, from the outermost, where some tensor does not hold them together."""
    accesses: tuple[Access, ...]
    split: tuple[Group, ...]
    """The row groups whose index some load or store needs on its own."""
    stores: tuple[tuple[Stored, Access], ...] = ()
    """Where outputs are written that do not lie as rows and columns do."""
    sizes: tuple[tuple[str, str], ...] = ()
    """The size names that expressions mention, each with the kernel's parameter for it."""
    extents: tuple[Extent, ...] = ()
    """Of a product: batch, rows, columns and what is summed over."""

    def all(self) -> tuple[Access, ...]:
        """Loads, then stores."""
        return (*self.accesses, *(access for _, access in self.stores))


ROWS, COLS = "rows", "cols"


def layout(spec: OperatorSpec, lowered: Lowered) -> Layout:
    """Collapse the space of a lowered graph into rows and columns."""
    space = lowered.space
    loads = [(i, v) for i, v in enumerate(lowered.values) if v.op == "load"]
    moved = [o for o in lowered.outputs if _is_moved(o, len(space.axes))]
    found = [e for v in lowered.values for e in expressions(v)]
    found += [e for o in moved for e in o.index if isinstance(e, Expr)]
    alone = {a for e in found for a in axes_of(e)}
    indices = [*(v.index for _, v in loads), *(o.index for o in moved)]
    groups = collapse(len(space.axes), space.outer, indices, alone)
    inner = space.inner_axes()
    parts = [g for g in groups if set(g) <= set(inner)] if inner else []
    if len(parts) > 1:
        groups = [*groups[: -len(parts)], inner]
    if found and not groups:
        raise Unlowerable("an index whose result has no dimensions")
    places = [e for v in lowered.values if v.op == "place" for e in expressions(v)]
    numbers = sum(e.op == "axis" or (e.op == "size" and same_size(e.size, space.axes)) for e in places)
    if len(groups) <= 1 and not inner and numbers == len(found):  # nothing but an element's number is asked, or of all
        rows: list[tuple[int, ...]] = []
        columns = None
    else:
        rows, columns = groups[:-1], Group(groups[-1], "N", COLS)
        if len(columns.axes) > 1 and alone & set(columns.axes):
            raise Unlowerable("the index along one of several dimensions that are reduced together")
    taken = {t.name for t in (*spec.inputs, *spec.outputs)} | {"m", "n"} | RESERVED
    named = tuple(
        Group(axes, group_name(space.axes, axes, taken), _index_name(space.axes, axes, taken)) for axes in rows
    )
    inside = tuple(
        Group(axes, size := group_name(space.axes, axes, taken), _part_name(size, space.axes, axes, taken))
        for axes in (parts if len(parts) > 1 else [])
    )
    outer = tuple(a for g in named for a in g.axes)
    moved = moved if columns else []
    written = [(o.value, Value("store", (), o.dtype, frozenset(), tensor=o.name, index=o.index)) for o in moved]
    touched = (*loads, *written)
    through = {v.tensor for _, v in touched if any(isinstance(e, Expr) for e in v.index)}
    in_rows = {t: all(_holds(flat_axes(v.index), outer) for _, v in touched if v.tensor == t) for t in through}

    def accessed(value: Value, load: int) -> Access:
        return _access(spec, load, value, named, columns, inside, in_rows.get(value.tensor))

    picked = {t.name for t in spec.inputs for _, v in loads if v.tensor == t.name and _picks(t, v.index)}
    found_apart = viewed_differently(spec, [accessed(v, i) for i, v in touched], picked)
    in_rows |= dict.fromkeys(found_apart, False)
    apart = [(i, _counted_through(spec, v) if v.tensor in found_apart else v) for i, v in touched]
    accesses = distinct_strides([accessed(v, i) for i, v in apart])
    used = {index for a in accesses for index, _ in a.terms}
    split = tuple(g for g in named if g.index in used or (found and set(g.axes) & alone))
    stores = tuple((o, access) for o, access in zip(moved, accesses[len(loads) :], strict=True))
    stepped = columns is not None and any(isinstance(e, Expr) for o in moved for e in o.index)
    nameless = columns is not None and space.axes[columns.axes[0]] == ELLIPSIS
    sized = (*named, *([columns] if columns and (stepped or nameless) else []))
    sizes = size_parameters(found, space.axes, sized, taken) if columns else ()
    return Layout(named, columns, inside, accesses[: len(loads)], split, stores, sizes)


def viewed_differently(spec: OperatorSpec, accesses: Sequence[Access], picked: Collection[str] = ()) -> list[str]:
    """The inputs of which one access needs dimensions merged and another the strides of the tensor itself. Merged
    dimensions of what lies otherwise are a copy, in which those strides mean nothing. `picked`: inputs that are no run
    of elements, even if they are contiguous, where one place of a dimension is read."""
    views = {t.name: {a.view for a in accesses if a.tensor == t.name and a.strides} for t in spec.inputs}
    whole = facts_of(spec).contiguous - frozenset(picked)
    return [name for name, found in views.items() if len(found) > 1 and name not in whole]


def _counted_through(spec: OperatorSpec, value: Value) -> Value:
    """A load with the place 0 of a longer dimension as an expression, as all other places are."""
    tensor = next(t for t in spec.inputs if t.name == value.tensor)
    pairs = zip(value.index, tensor.shape, strict=True)
    return replace(value, index=tuple(number(0) if _is_picked(dim, size) else dim for dim, size in pairs))


def _is_moved(stored: Stored, count: int) -> bool:
    """Whether an output runs over everything, but in another order than rows and columns, or is stored in parts."""
    flat = list(flat_axes(stored.index))
    parts = any(isinstance(entry, Expr) for entry in stored.index)
    return parts or (len(flat) == count and flat != sorted(flat))


def size_parameters(
    found: list[Expr], axes: tuple[Atom, ...], groups: tuple[Group, ...], taken: set[str]
) -> tuple[tuple[str, str], ...]:
    """A parameter for every size name that expressions mention; that of the rows or columns where it is theirs."""
    known = {axes[g.axes[0]]: g.size for g in groups if len(g.axes) == 1}
    mentioned = [n for e in found for leaf in leaves(e) for atom in leaf.size for n in names_in(atom)]
    names: dict[str, str] = {}
    for name in dict.fromkeys(mentioned):
        parameter = known.get(name, "REST" if name == ELLIPSIS else name)
        while name not in known and parameter in taken:
            parameter += "_SIZE"
        taken.add(parameter)
        names[name] = parameter
    return tuple(names.items())


def distinct_strides(accesses: list[Access]) -> tuple[Access, ...]:
    """An input that is read in two ways has two sets of strides: equal ones share a name, no others do."""
    names: dict[str, str] = {}
    """What every expression of the wrapper is called."""
    found = []
    for access in accesses:
        view = access.view
        if view is not None:
            view = _name(view[0], view[1], names), view[1]
        new: dict[str, str] = {}
        for stride, expression in access.strides:
            if view is not None and access.view is not None:
                expression = view[0] + expression.removeprefix(access.view[0])
            new[stride] = _name(stride, expression, names)
        strides = tuple(dict.fromkeys((name, next(e for e, n in names.items() if n == name)) for name in new.values()))
        terms = tuple((index, new.get(stride, stride) if stride else None) for index, stride in access.terms)
        found.append(replace(access, terms=terms, strides=strides, view=view))
    return tuple(found)


def _name(wanted: str, expression: str, names: dict[str, str]) -> str:
    if expression not in names:
        name, turn = wanted, 2
        while name in names.values():
            name, turn = f"{wanted}_{turn}", turn + 1
        names[expression] = name
    return names[expression]


def collapse(count: int, outer: int, indices: list[Index], alone: set[int]) -> list[tuple[int, ...]]:
    """The axes in runs that every tensor runs over together; `outer` begins a run, and so does each axis of `alone`."""
    groups: list[list[int]] = [[0]] if count else []
    flat = [list(flat_axes(index)) for index in indices]
    for a, b in pairwise(range(count)):
        together = all((a in f) == (b in f) and (a not in f or f.index(b) == f.index(a) + 1) for f in flat)
        if together and b != outer and not {a, b} & alone:
            groups[-1].append(b)
        else:
            groups.append([b])
    return [tuple(g) for g in groups]


def flat_axes(index: Index) -> tuple[int, ...]:
    """The axes that an index runs over; an expression counts as an axis of its own, numbered below zero."""
    return tuple(a for d, dim in enumerate(index) for a in ((-1 - d,) if isinstance(dim, Expr) else dim))


def group_name(axes: tuple[Atom, ...], group: tuple[int, ...], taken: set[str]) -> str:
    if len(group) == 1 and isinstance(axes[group[0]], int):
        return str(axes[group[0]])  # a number of the reference needs no parameter
    name = "".join(str(axes[a]) if axes[a] != ELLIPSIS else "REST" for a in group)
    mentioned = names_in(axes[group[0]]) if len(group) == 1 else ()
    if not name.isidentifier():
        name = f"OUT_{mentioned[0]}" if len(mentioned) == 1 else f"SIZE_{group[0]}"
    while name in taken:
        name += "_SIZE"
    taken.add(name)
    return name


def _index_name(axes: tuple[Atom, ...], group: tuple[int, ...], taken: set[str]) -> str:
    mentioned = names_in(axes[group[-1]]) if len(group) == 1 and axes[group[-1]] != ELLIPSIS else ()
    return _unused(mentioned[0].lower() if len(mentioned) == 1 else f"index_{group[0]}", taken)


def _part_name(size: str, axes: tuple[Atom, ...], group: tuple[int, ...], taken: set[str]) -> str:
    """What counts along a part of the columns: its size in small letters, unless that is a number."""
    return _index_name(axes, group, taken) if size.isdigit() else _unused(size.lower(), taken)


def _unused(name: str, taken: set[str]) -> str:
    while name in taken:
        name += "_index"
    taken.add(name)
    return name


def _holds(flat: tuple[int, ...], run: tuple[int, ...]) -> bool:
    """Whether a run of axes stands in an index in order and unbroken."""
    return bool(run) and run in [flat[i : i + len(run)] for i in range(len(flat))]


def _access(
    spec: OperatorSpec,
    load: int,
    value: Value,
    rows: tuple[Group, ...],
    columns: Group | None,
    parts: tuple[Group, ...],
    in_rows: bool | None,
) -> Access:
    """`in_rows`: of a tensor that is read through expressions, whether all its loads run over whole rows."""
    assert value.tensor is not None
    tensor = next(t for t in (*spec.inputs, *spec.outputs) if t.name == value.tensor)
    flat = flat_axes(value.index)
    if columns is None:
        return Access(load, tensor.name, (("offsets", None),) if flat else (), (), None)
    outer = tuple(a for g in rows for a in g.axes)
    runs: list[tuple[str | Expr, str, tuple[int, ...]]] = [
        (dim, _suffix(tensor, d), (-1 - d,)) for d, dim in enumerate(value.index) if isinstance(dim, Expr)
    ]
    if _holds(flat, outer) and in_rows is not False:
        runs.append((ROWS, "m", outer))
    else:
        runs += [(g.index, g.index, g.axes) for g in rows if set(g.axes) <= set(flat)]
    if _holds(flat, columns.axes):
        runs.append((COLS, "n", columns.axes))
    else:
        runs += [(g.index, g.index, g.axes) for g in parts if set(g.axes) <= set(flat)]
    one_run = not rows and runs == [(COLS, "n", flat)]
    if one_run and value.op == "load":  # the wrapper makes it contiguous
        return Access(load, tensor.name, ((COLS, None),), (), None)
    if (
        tensor.name in facts_of(spec).contiguous
        and not _picks(tensor, value.index)
        and not any(isinstance(index, Expr) for index, _, _ in runs)
    ):
        terms = _contiguous_terms(runs, flat)
        if terms is not None:
            return Access(load, tensor.name, terms, (), None)
    named = (*rows, *parts) if in_rows is None else None
    stepped = value.op == "store" and any(isinstance(e, Expr) for e in value.index)
    view = _unused(f"{tensor.name}_view", {t.name for t in (*spec.inputs, *spec.outputs)})
    return strided_access(tensor, value.index, load, runs, flat, named, view, in_parts=stepped)


def _picks(tensor: TensorSpec, index: Index) -> bool:
    """Whether one place of a longer dimension is read: what is left of a contiguous tensor then has gaps."""
    return any(_is_picked(dim, size) for dim, size in zip(index, tensor.shape, strict=False))


def _is_picked(dim: object, size: object) -> bool:
    return dim == () and size not in (1, ELLIPSIS)


def _contiguous_terms(
    runs: list[tuple[str | Expr, str, tuple[int, ...]]], flat: tuple[int, ...]
) -> tuple[tuple[str | Expr, str | None], ...] | None:
    order = tuple(a for _, _, axes in runs for a in axes)
    if order != flat:
        return None
    names: list[str | Expr] = [index for index, _, _ in runs]
    if names == [ROWS, COLS]:
        return ((ROWS, "N"), (COLS, None))
    return ((names[0], None),) if len(names) == 1 else () if not names else None


def strided_access(
    tensor: TensorSpec,
    index: Index,
    load: int,
    runs: list[tuple[str | Expr, str, tuple[int, ...]]],
    flat: tuple[int, ...],
    rows: tuple[Group, ...] | None,
    view_name: str,
    *,
    in_parts: bool,
) -> Access:
    """`rows`: the row groups that sizes are named after; None where strides and sizes are named after the tensor's
    dimensions, because its loads share them. `view_name`: what the wrapper calls the tensor with dimensions merged."""
    own: tuple[tuple[int, ...], ...] = tuple(
        flat_axes(index[: d + 1])[len(flat_axes(index[:d])) :] for d in range(len(index))
    )
    own = tuple((-1 - d,) if isinstance(index[d], Expr) else axes for d, axes in enumerate(own))
    dims = {axes: [d for d, dim in enumerate(own) if dim and set(dim) <= set(axes)] for _, _, axes in runs}
    elastic = ELLIPSIS in tensor.shape
    # a dimension may also lie partly in one run and partly in the next
    merged = elastic or any(len(d) != 1 or own[d[0]] != axes for axes, d in dims.items())
    prefix = tensor.name if len(tensor.name) == 1 else f"{tensor.name}_"
    terms: list[tuple[str | Expr, str | None]] = []
    strides = []
    ordered = sorted(runs, key=lambda run: flat.index(run[2][0]))
    view = None
    if merged:
        if tuple(a for _, _, axes in ordered for a in axes) != flat or (rows is None and not all(dims.values())):
            raise Unlowerable(f"{tensor.name} is read with dimensions both merged and permuted")
        view = view_name, _viewed(tensor, [dims[axes] for _, _, axes in ordered], [
            _extent(tensor, run, dims[run[2]], rows) for run in ordered
        ])  # fmt: skip
    suffixes = [
        _suffix(tensor, dims[axes][0]) if rows is None and len(dims[axes]) == 1 else suffix
        for _, suffix, axes in ordered
    ]
    if len(set(suffixes)) < len(suffixes):  # two dimensions that would be called the same
        suffixes = [f"{position}" for position in range(len(ordered))]
    for position, ((variable, _, axes), suffix) in enumerate(zip(ordered, suffixes, strict=True)):
        stride = f"stride_{prefix}{suffix}"
        dim = position if merged else dims[axes][0]
        if in_parts and dims[axes][-1] == len(index) - 1:  # the wrapper makes outputs, contiguous ones
            terms.append((variable, None))
            continue
        strides.append((stride, f"{view[0] if view else tensor.name}.stride({dim})"))
        terms.append((variable, stride))
    return Access(load, tensor.name, tuple(terms), tuple(strides), view)


def _suffix(tensor: TensorSpec, dim: int) -> str:
    """What the stride of a dimension is called after: its size where it has a name that no other dimension has."""
    entry = tensor.shape[dim]
    own = isinstance(entry, str) and entry.isidentifier() and tensor.shape.count(entry) == 1
    return f"{entry}".lower() if own and f"{entry}" not in ("M", "N") else f"{dim}"


def _viewed(tensor: TensorSpec, dims: list[list[int]], extents: list[str]) -> str:
    """A tensor with runs of its dimensions merged: itself where it has that many, which spares the host a view."""
    merged = f"{tensor.name}.reshape({', '.join(extents)})"
    elastic = tensor.shape.index(ELLIPSIS) if ELLIPSIS in tensor.shape else None
    fixed = sorted(d for own in dims for d in own) == list(range(len(tensor.shape)))
    if fixed and elastic is not None and all(len(own) == 1 or elastic in own for own in dims):
        return f"{tensor.name} if {tensor.name}.ndim == {len(dims)} else {merged}"
    return merged


def _extent(
    tensor: TensorSpec,
    run: tuple[str | Expr, str, tuple[int, ...]],
    dims: list[int],
    rows: tuple[Group, ...] | None,
) -> str:
    """The size of one dimension of a reshaped tensor, as the wrapper writes it."""
    if rows is None:
        return _span(tensor, dims)
    sizes = {g.axes: g.size for g in rows}
    return {"m": "M", "n": "N"}.get(run[1], sizes.get(run[2], run[1]))


def group_sizes(spec: OperatorSpec, lowered: Lowered, axes: tuple[int, ...], places: Mapping[str, str]) -> str:
    """The wrapper's expression for the product of some axes' sizes; `places`: where it finds each named size."""
    for tensor in sorted(spec.inputs, key=lambda t: -len(t.shape)):
        value = next((v for v in lowered.values if v.op == "load" and v.tensor == tensor.name), None)
        index = value.index if value else _index_of_like(tensor, lowered)
        spans = [d for d, dim in enumerate(index) if isinstance(dim, tuple) and dim and set(dim) <= set(axes)]
        if tuple(a for d in spans for a in axes_of(index[d])) != axes or (
            spans and spans != list(range(spans[0], spans[-1] + 1))
        ):
            continue
        if not all(_is_whole(tensor, d, index, lowered) for d in spans):
            continue
        return _span(tensor, spans)
    if len(axes) > 1:
        return product([group_sizes(spec, lowered, (a,), places) for a in axes])
    outputs = {t.name: t for t in spec.outputs}
    for stored in lowered.outputs:
        if stored.name in outputs and axes in stored.index:
            tensor = outputs[stored.name]
            if not _is_whole(tensor, stored.index.index(axes), stored.index, lowered):
                continue
            return _span(tensor, [stored.index.index(axes)])
    atom = str(lowered.space.axes[axes[0]])
    return renamed(atom, places) if is_expression(atom) and atom not in places else places.get(atom, atom)


def _is_whole(tensor: TensorSpec, dim: int, index: Index, lowered: Lowered) -> bool:
    """Whether a dimension of a tensor counts what its axes do, and not windows of a pool."""
    pooled = any(v.op in _POOLS for v in lowered.values)
    sizes = tuple(lowered.space.axes[a] for a in axes_of(index[dim]))
    return not pooled or str(tensor.shape[dim]) == size_text(sizes)


def _index_of_like(tensor: TensorSpec, lowered: Lowered) -> Index:
    """The index of an input that is never read: its sizes matched with the axes by name, in order."""
    axes, position = lowered.space.axes, 0
    index: list[tuple[int, ...] | Expr] = []
    for entry in tensor.shape:
        if position < len(axes) and axes[position] == entry:
            index.append((position,))
            position += 1
        else:
            index.append(())
    return tuple(index)


def _span(tensor: TensorSpec, dims: list[int]) -> str:
    """A run of dimensions of a tensor as one number."""
    first, last = dims[0], dims[-1]
    if first == last and tensor.shape[first] != ELLIPSIS:
        return f"{tensor.name}.shape[{tensor.dim(first)}]"
    if (first, last) == (0, len(tensor.shape) - 1):
        return f"{tensor.name}.numel()"
    return f"{tensor.name}.shape[{tensor.span(first, last)}].numel()"


def output_groups(stored: Stored, columns: Group | None) -> bool:
    """Whether an output runs over the columns too."""
    flat = {a for dim in stored.index for a in axes_of(dim)}
    return columns is None or set(columns.axes) <= flat
