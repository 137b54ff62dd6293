"""Results in the memory of an input: whether kernels may leave them there, and the kernels that do.

A place may be written by the one program that reads it, and by that only behind its reads. Of kernels that read it
elsewhere (neighbours, other rows, tiles that descriptors copy) nothing is shown here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace

from kernelgen.tile import ir
from kernelgen.tile.walk import assigned_names, trimmed, used_names


def may_overwrite(steps: Sequence[ir.Step], output: str, into: str) -> bool:
    """Whether these launches, one after the other, leave the same where an output lies in the memory of an input."""
    written = False
    for step in steps:
        if isinstance(step, ir.LibraryCall):
            return False
        found = _Reader(step.body)
        reads, writes = ([p for p in found.places if p.tensor == name] for name in (into, output))
        other = found.elsewhere & {into, output}
        if other or (written and (reads or writes)) or any(p.is_write for p in reads):
            return False
        if not all(p.is_write and _is_own(step, p) and all(_is_behind(p, r) for r in reads) for p in writes):
            return False
        written = written or bool(writes)
    return written


def overwriting(kernel: ir.Kernel, into: Mapping[str, str]) -> ir.Kernel:
    """The kernel with some outputs in the memory of inputs, by the outputs' names. An element that keeps its value, as
    `torch.where(mask, new, old)` says, is neither read nor written."""
    if not into:
        return kernel
    names = {f"{output}_ptr": f"{given}_ptr" for output, given in into.items()}
    body = trimmed(_over(kernel.body, into, {}, waits=_waits(kernel, into)))
    used, arguments = used_names(body), dict[str, ir.Argument]()
    read = {a.name for a in kernel.arguments} & used
    for argument in kernel.arguments:
        name = names.get(argument.name, argument.name)
        if name == argument.name and argument.name in names.values() and name not in read:
            continue  # nobody reads it any more: its place is the result's
        argument = replace(argument, name=name, host=name.removesuffix("_ptr")) if name != argument.name else argument
        arguments.setdefault(name, argument)
    return replace(kernel, body=body, arguments=tuple(arguments.values()))


_Loop = tuple[int, object]
"""Where a loop begins in the text, and what tells one of its turns."""


@dataclass(frozen=True)
class _Place:
    """Where a statement reads or writes elements of a tensor."""

    tensor: str
    terms: tuple[tuple[object, str | None], ...]
    """What its numbers are made of, without the names of variables, and their strides."""
    shape: ir.Shape
    number: int
    """Of the statement, in the order of the text."""
    loops: tuple[_Loop, ...]
    """Those that it stands in, outermost first."""
    is_write: bool


class _Reader:
    """Finds the places that the statements of a kernel read and write, in the order of the text."""

    def __init__(self, body: Sequence[ir.Stmt]) -> None:
        self.places: list[_Place] = []
        self.elsewhere: set[str] = set()
        """Tensors of which nothing is known of where they are read or written."""
        self.known: dict[str, object] = {}
        self.clock = 0
        self._walk(body, ())

    def _walk(self, body: Sequence[ir.Stmt], loops: tuple[_Loop, ...]) -> None:
        for statement in body:
            self.clock += 1
            if isinstance(statement, ir.For | ir.While | ir.If):
                self._within(statement, loops)
                continue
            self._note(statement, loops)
            if isinstance(statement, ir.Let):
                value = self._made_of(statement.value)
                self.known.update({name: (value, i) for i, name in enumerate(statement.names)})
            if isinstance(statement, ir.Update):
                before = self.known.get(statement.name, statement.name)
                self.known[statement.name] = (statement.op, before, self._made_of(statement.value))

    def _within(self, statement: ir.For | ir.While | ir.If, loops: tuple[_Loop, ...]) -> None:
        self._note(replace(statement, body=()), loops)
        ends = [self._made_of(e) for e in (statement.start, statement.stop, statement.step)] if isinstance(
            statement, ir.For) else [self.clock]  # fmt: skip
        changed = tuple(dict.fromkeys([*assigned_names(statement.body), *_updated(statement.body)]))
        self._forget(*changed)
        turn = ("turn", len(loops), *ends)
        if isinstance(statement, ir.For):
            self.known[statement.index] = turn
        self._walk(statement.body, loops if isinstance(statement, ir.If) else (*loops, (self.clock, turn)))
        self._forget(*changed)

    def _forget(self, *names: str) -> None:
        self.known.update({name: ("changed", name, self.clock) for name in names})

    def _note(self, node: object, loops: tuple[_Loop, ...]) -> None:
        """The reads within a statement, and what it writes."""
        if isinstance(node, ir.Store):
            self._add(node.pointer, loops, is_write=True)
            self._note((node.value, node.mask, tuple(e for e, _ in node.pointer.terms)), loops)
        elif isinstance(node, ir.Load):
            self._add(node.pointer, loops, is_write=False)
            self._note((node.mask, node.within, tuple(e for e, _ in node.pointer.terms)), loops)
        elif isinstance(node, ir.Scatter):
            self.elsewhere |= {node.out, node.index, node.source, node.base}
        elif isinstance(node, ir.Pointer | ir.Box):
            self.elsewhere.add(node.tensor)
        elif isinstance(node, ir.Name) and node.text.endswith("_ptr"):
            self.elsewhere.add(node.text.removesuffix("_ptr"))
        elif isinstance(node, tuple):
            for part in node:
                self._note(part, loops)
        elif is_dataclass(node) and not isinstance(node, ir.Axis | ir.ElementOf):
            for field in fields(node):
                self._note(getattr(node, field.name), loops)

    def _add(self, pointer: ir.Pointer, loops: tuple[_Loop, ...], *, is_write: bool) -> None:
        if pointer.base is not None:
            self.elsewhere.add(pointer.tensor)
        terms = tuple((self._made_of(e), stride) for e, stride in pointer.terms)
        self.places.append(_Place(pointer.tensor, terms, pointer.shape, self.clock, loops, is_write))

    def _made_of(self, node: object) -> object:
        """An expression without the names of variables, casts and what names parts of it."""
        if isinstance(node, ir.Name):
            return self.known.get(node.text, node.text)
        if isinstance(node, ir.Part):
            return self._made_of(node.value)
        if isinstance(node, ir.Cast | ir.Contiguous):
            return self._made_of(node.arg)
        if isinstance(node, ir.Axis):
            return node.block
        if isinstance(node, tuple):
            return tuple(map(self._made_of, node))
        if is_dataclass(node):
            kept = (f.name for f in fields(node) if f.name not in ("shape", "policy"))
            return (type(node).__name__, *(self._made_of(getattr(node, name)) for name in kept))
        return node


def _updated(body: Sequence[ir.Stmt]) -> Iterator[str]:
    for statement in body:
        if isinstance(statement, ir.For | ir.While | ir.If):
            yield from _updated(statement.body)
        elif isinstance(statement, ir.Update):
            yield statement.name


def _is_behind(write: _Place, read: _Place) -> bool:
    """Whether a program writes a place after it has read it, and reads none that another writes: the two are made of
    the same numbers, or within what the program alone has of any. Every turn of a loop that has both has its own."""
    if read.number >= write.number or len(read.terms) != len(write.terms):
        return False
    common = [loop for loop in write.loops if loop in read.loops]
    if common:
        return read.terms == write.terms and all(_has(write.terms, turn) for _, turn in common)
    pairs = zip(read.terms, write.terms, strict=True)
    return all(r == w or (r[1] == w[1] and not _has(r[0], "Program") and not _has(w[0], "Program")) for r, w in pairs)


def _is_own(kernel: ir.Kernel, write: _Place) -> bool:
    """Whether no two programs write one place: its numbers tell them apart along every dimension of the grid."""
    return all(_tells(write.terms, ("Program", d)) for d, size in enumerate(kernel.grid) if size != "1")


def _tells(terms: object, program: object) -> bool:
    """Whether a program's number goes in whole: as it is, or as what a division leaves and what it gives."""
    parts = set(_parts(terms, program))
    return "" in parts or {"int_div", "int_mod"} <= parts


def _parts(terms: object, program: object, within: str = "") -> Iterator[str]:
    if terms == program:
        yield within
    elif isinstance(terms, tuple):
        if len(terms) > 2 and terms[0] == "Apply" and terms[1] in ("int_div", "int_mod"):
            within = str(terms[1])
        for part in terms:
            yield from _parts(part, program, within)


def _has(terms: object, part: object) -> bool:
    return terms == part or (isinstance(terms, tuple) and any(_has(t, part) for t in terms))


def _waits(kernel: ir.Kernel, into: Mapping[str, str]) -> bool:
    """Whether threads that write have to wait for others that read: all read where a tile is smaller than their number,
    or what one reads goes into another's results."""
    found = _Reader(kernel.body).places
    whole = max(len(p.shape) for p in found)
    small = any(len(p.shape) < whole or not p.shape for p in found if p.tensor in into.values())
    return small or _reduces(kernel.body)


def _reduces(node: object) -> bool:
    if isinstance(node, ir.Reduce | ir.Scan):
        return True
    if isinstance(node, tuple):
        return any(map(_reduces, node))
    return is_dataclass(node) and any(_reduces(getattr(node, f.name)) for f in fields(node))


def _over(
    body: Sequence[ir.Stmt], into: Mapping[str, str], values: dict[str, ir.Expr], *, waits: bool
) -> tuple[ir.Stmt, ...]:
    """Statements that write over inputs. `values`: what variables hold; `waits`: a barrier stands before the first."""
    found: list[ir.Stmt] = []
    for statement in body:
        within = isinstance(statement, ir.For | ir.While | ir.If)
        inside = waits and within and _reduces(statement)
        if waits and not inside and _writes(statement, into):
            found.append(ir.Barrier("what is written over has been read by every thread"))
            waits = False
        if isinstance(statement, ir.For | ir.While | ir.If):
            found.append(replace(statement, body=_over(statement.body, into, dict(values), waits=inside)))
            continue
        if isinstance(statement, ir.Let) and len(statement.names) == 1:
            values[statement.names[0]] = statement.value
        if isinstance(statement, ir.Store) and statement.pointer.tensor in into:
            statement = _kept(statement, into[statement.pointer.tensor], values)
        found.append(_renamed(statement, into))
    return tuple(found)


def _writes(node: ir.Stmt, into: Mapping[str, str]) -> bool:
    if isinstance(node, ir.For | ir.While | ir.If):
        return any(_writes(inner, into) for inner in node.body)
    return isinstance(node, ir.Store) and node.pointer.tensor in into


def _kept(store: ir.Store, given: str, values: Mapping[str, ir.Expr]) -> ir.Store:
    """A store of the elements that change, where the value says which do."""
    pointer = replace(store.pointer, tensor=given)
    value = _looked_up(store.value, values)
    if isinstance(value, ir.Apply) and value.op == "where":
        condition, new, old = value.args
        read = _looked_up(old, values)
        if isinstance(read, ir.Load) and read.pointer.terms == pointer.terms and not read.within:
            mask = condition if store.mask is None else ir.Apply("and", (store.mask, condition), pointer.shape)
            return replace(store, pointer=pointer, value=new, mask=mask)
    return replace(store, pointer=pointer)


def _looked_up(value: ir.Expr, values: Mapping[str, ir.Expr]) -> ir.Expr:
    """What a variable, a part or a float that was widened stands for."""
    while True:
        if isinstance(value, ir.Name) and value.text in values:
            value = values[value.text]
        elif isinstance(value, ir.Part):
            value = value.value
        elif isinstance(value, ir.Cast) and value.dtype == "float32":
            value = value.arg
        else:
            return value


def _renamed(node: ir.Stmt, into: Mapping[str, str]) -> ir.Stmt:
    """Where an output's element type is asked for, it is the input's."""
    if not isinstance(node, ir.Store) or not isinstance(node.value, ir.Full):
        return node
    dtype = node.value.dtype
    if isinstance(dtype, ir.ElementOf) and dtype.tensor in into:
        return replace(node, value=replace(node.value, dtype=ir.ElementOf(into[dtype.tensor])))
    return node
