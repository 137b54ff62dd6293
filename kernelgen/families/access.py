"""How every input is read: collapsed axes, strides, and what the wrapper passes for them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise

from kernelgen.families.values import Index, Lowered, Stored, Unlowerable, Value
from kernelgen.frontend.graph import Atom
from kernelgen.spec.model import ELLIPSIS, OperatorSpec, TensorSpec


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
    """One load. `terms` are (index, stride) pairs; a stride of None is one."""

    load: int
    tensor: str
    terms: tuple[tuple[str, str | None], ...]
    strides: tuple[tuple[str, str], ...]
    """Kernel parameters and the wrapper's expressions for them."""
    view: tuple[str, str] | None
    """A wrapper variable and the reshape that makes it, where dimensions are merged."""


@dataclass(frozen=True)
class Layout:
    """The iteration space as rows and columns."""

    rows: tuple[Group, ...]
    columns: Group | None
    """None: the whole space is one run of elements."""
    accesses: tuple[Access, ...]
    split: tuple[Group, ...]
    """The row groups whose index some load or store needs on its own."""
    stores: tuple[tuple[str, Access], ...] = ()
    """Where outputs are written that do not lie as rows and columns do."""

    def all(self) -> tuple[Access, ...]:
        """Loads, then stores."""
        return (*self.accesses, *(access for _, access in self.stores))


ROWS, COLS = "rows", "cols"


def is_contiguous(spec: OperatorSpec, name: str) -> bool:
    """Whether the spec's constraints promise that an input is contiguous."""
    return any(f"{name}.is_contiguous()" in c.text for c in spec.constraints)


def layout(spec: OperatorSpec, lowered: Lowered) -> Layout:
    """Collapse the space of a lowered graph into rows and columns."""
    space = lowered.space
    loads = [(i, v) for i, v in enumerate(lowered.values) if v.op == "load"]
    indices = [*(v.index for _, v in loads), *(o.index for o in lowered.outputs if _is_moved(o, len(space.axes)))]
    groups = _collapse(len(space.axes), space.outer, indices)
    inner = space.inner_axes()
    if inner and groups[-1] != inner:
        raise Unlowerable("a row whose dimensions an input does not hold together")
    if len(groups) <= 1 and not inner:
        rows: list[tuple[int, ...]] = []
        columns = None
    else:
        rows, columns = groups[:-1], Group(groups[-1], "N", COLS)
    taken = {t.name for t in (*spec.inputs, *spec.outputs)} | {"M", "N", "m", "n"}
    named = tuple(
        Group(axes, _size_name(space.axes, axes, taken), _index_name(space.axes, axes, taken)) for axes in rows
    )
    moved = [o for o in lowered.outputs if columns and _is_moved(o, len(space.axes))]
    written = [(o.value, Value("store", (), o.dtype, frozenset(), tensor=o.name, index=o.index)) for o in moved]
    accesses = _distinct([_access(spec, i, v, named, columns) for i, v in (*loads, *written)])
    used = {index for a in accesses for index, _ in a.terms}
    stores = tuple((o.name, access) for o, access in zip(moved, accesses[len(loads) :], strict=True))
    return Layout(named, columns, accesses[: len(loads)], tuple(g for g in named if g.index in used), stores)


def _is_moved(stored: Stored, count: int) -> bool:
    """Whether an output runs over everything, but in another order than rows and columns."""
    flat = [a for dim in stored.index for a in dim]
    return len(flat) == count and flat != sorted(flat)


def _distinct(accesses: list[Access]) -> tuple[Access, ...]:
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
        terms = tuple((index, stride and new[stride]) for index, stride in access.terms)
        found.append(replace(access, terms=terms, strides=strides, view=view))
    return tuple(found)


def _name(wanted: str, expression: str, names: dict[str, str]) -> str:
    if expression not in names:
        name, number = wanted, 2
        while name in names.values():
            name, number = f"{wanted}_{number}", number + 1
        names[expression] = name
    return names[expression]


def _collapse(count: int, outer: int, indices: list[Index]) -> list[tuple[int, ...]]:
    groups: list[list[int]] = [[0]] if count else []
    flat = [[a for dim in index for a in dim] for index in indices]
    for a, b in pairwise(range(count)):
        together = all((a in f) == (b in f) and (a not in f or f.index(b) == f.index(a) + 1) for f in flat)
        if together and b != outer:
            groups[-1].append(b)
        else:
            groups.append([b])
    return [tuple(g) for g in groups]


def _size_name(axes: tuple[Atom, ...], group: tuple[int, ...], taken: set[str]) -> str:
    name = "".join(str(axes[a]) if axes[a] != ELLIPSIS else "LEADING" for a in group)
    name = name if name.isidentifier() else f"SIZE_{group[0]}"
    while name in taken:
        name += "_SIZE"
    taken.add(name)
    return name


def _index_name(axes: tuple[Atom, ...], group: tuple[int, ...], taken: set[str]) -> str:
    atom = axes[group[-1]]
    name = f"{atom}".lower() if isinstance(atom, str) and atom != ELLIPSIS and len(group) == 1 else f"index_{group[0]}"
    while name in taken:
        name += "_index"
    taken.add(name)
    return name


def _access(spec: OperatorSpec, load: int, value: Value, rows: tuple[Group, ...], columns: Group | None) -> Access:
    assert value.tensor is not None
    tensor = next(t for t in (*spec.inputs, *spec.outputs) if t.name == value.tensor)
    flat = tuple(a for dim in value.index for a in dim)
    if columns is None:
        return Access(load, tensor.name, (("offsets", None),) if flat else (), (), None)
    outer = tuple(a for g in rows for a in g.axes)
    runs: list[tuple[str, str, tuple[int, ...]]] = []
    if outer and outer in [flat[i : i + len(outer)] for i in range(len(flat))]:
        runs.append((ROWS, "m", outer))
    else:
        runs += [(g.index, g.index, g.axes) for g in rows if set(g.axes) <= set(flat)]
    if set(columns.axes) <= set(flat):
        runs.append((COLS, "n", columns.axes))
    if is_contiguous(spec, tensor.name):
        terms = _contiguous_terms(runs, flat)
        if terms is not None:
            return Access(load, tensor.name, terms, (), None)
    return _strided(tensor, value.index, load, runs, flat, {g.index: g.size for g in rows} | {"m": "M", "n": "N"})


def _contiguous_terms(
    runs: list[tuple[str, str, tuple[int, ...]]], flat: tuple[int, ...]
) -> tuple[tuple[str, str | None], ...] | None:
    order = tuple(a for _, _, axes in runs for a in axes)
    if order != flat:
        return None
    names = [index for index, _, _ in runs]
    if names == [ROWS, COLS]:
        return ((ROWS, "N"), (COLS, None))
    return ((names[0], None),) if len(names) == 1 else () if not names else None


def _strided(
    tensor: TensorSpec,
    index: Index,
    load: int,
    runs: list[tuple[str, str, tuple[int, ...]]],
    flat: tuple[int, ...],
    sizes: dict[str, str],
) -> Access:
    dims = {axes: [d for d, dim in enumerate(index) if dim and set(dim) <= set(axes)] for _, _, axes in runs}
    elastic = ELLIPSIS in tensor.shape
    merged = elastic or any(len(d) != 1 for d in dims.values())
    prefix = tensor.name if len(tensor.name) == 1 else f"{tensor.name}_"
    terms, strides = [], []
    ordered = sorted(runs, key=lambda run: flat.index(run[2][0]))
    view = None
    if merged:
        if tuple(a for _, _, axes in ordered for a in axes) != flat:
            raise Unlowerable(f"{tensor.name} is read with dimensions merged and moved at once")
        view = (
            f"{tensor.name}_view",
            f"{tensor.name}.reshape({', '.join(sizes[n] for _, n, _ in ordered)})",
        )
    for position, (variable, suffix, axes) in enumerate(ordered):
        stride = f"stride_{prefix}{suffix}"
        dim = position if merged else dims[axes][0]
        strides.append((stride, f"{view[0] if view else tensor.name}.stride({dim})"))
        terms.append((variable, stride))
    return Access(load, tensor.name, tuple(terms), tuple(strides), view)


def group_sizes(spec: OperatorSpec, lowered: Lowered, axes: tuple[int, ...]) -> str:
    """The wrapper's expression for the product of some axes' sizes."""
    for tensor in sorted(spec.inputs, key=lambda t: -len(t.shape)):
        value = next((v for v in lowered.values if v.op == "load" and v.tensor == tensor.name), None)
        index = value.index if value else _index_of_like(tensor, lowered)
        spans = [d for d, dim in enumerate(index) if dim and set(dim) <= set(axes)]
        if tuple(a for d in spans for a in index[d]) != axes or (
            spans and spans != list(range(spans[0], spans[-1] + 1))
        ):
            continue
        return _span(tensor, spans)
    return (
        " * ".join(group_sizes(spec, lowered, (a,)) for a in axes)
        if len(axes) > 1
        else str(lowered.space.axes[axes[0]])
    )


def _index_of_like(tensor: TensorSpec, lowered: Lowered) -> Index:
    """The index of an input that is never read: its sizes matched with the axes by name, in order."""
    axes, position = lowered.space.axes, 0
    index: list[tuple[int, ...]] = []
    for entry in tensor.shape:
        if position < len(axes) and axes[position] == entry:
            index.append((position,))
            position += 1
        else:
            index.append(())
    return tuple(index)


def _span(tensor: TensorSpec, dims: list[int]) -> str:
    """A run of dimensions of a tensor as one number; dimensions after "..." are counted from the end."""
    rank, elastic = len(tensor.shape), ELLIPSIS in tensor.shape
    first, last = dims[0], dims[-1]
    if first == last and tensor.shape[first] != ELLIPSIS:
        return f"{tensor.name}.shape[{first - rank if elastic else first}]"
    if first == 0:
        if last == rank - 1:
            return f"{tensor.name}.numel()"
        return f"{tensor.name}.shape[:{last + 1 - rank if elastic else last + 1}].numel()"
    if last == rank - 1:
        return f"{tensor.name}.shape[{first - rank}:].numel()"
    return (
        f"{tensor.name}.shape[{first - rank if elastic else first}:{last + 1 - rank if elastic else last + 1}].numel()"
    )


def output_groups(stored: Stored, columns: Group | None) -> bool:
    """Whether an output runs over the columns too."""
    flat = {a for dim in stored.index for a in dim}
    return columns is None or set(columns.axes) <= flat
