"""What can be read of a spec that may still have mistakes, so that one mistake does not hide the next."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from pydantic_core import PydanticCustomError

from kernelgen.spec import leaves
from kernelgen.spec.model import ELLIPSIS, Place, Size
from kernelgen.spec.sizes import names_in
from kernelgen.spec.tree import Map, Seq, Text, Tree

_T = TypeVar("_T")


@dataclass(frozen=True)
class DeclaredTensor:
    """An entry of inputs or outputs; None stands for what cannot be read."""

    place: Place
    name: Text | None
    shape: tuple[tuple[Size, Place], ...] | None
    dtype: Text | None
    optional: bool = False


@dataclass(frozen=True)
class Declared:
    """The names a spec declares."""

    name: Text | None
    inputs: tuple[DeclaredTensor, ...]
    outputs: tuple[DeclaredTensor, ...]
    dtypes: dict[Text, tuple[str, ...]]
    """Each readable variable with its dtypes; with none where one of them cannot be read."""

    @property
    def input_names(self) -> tuple[Text, ...] | None:
        """The inputs' names, None where one of them cannot be read."""
        names = tuple(tensor.name for tensor in self.inputs if tensor.name is not None)
        return names if names and len(names) == len(self.inputs) else None

    @property
    def sizes(self) -> tuple[str, ...] | None:
        """The size names of the inputs in order of appearance, "..." included; None where a shape is unreadable."""
        if not self.inputs or any(tensor.shape is None for tensor in self.inputs):
            return None
        entries = [entry for tensor in self.inputs for entry, _ in tensor.shape or ()]
        return tuple(dict.fromkeys(name for entry in entries for name in names_in(entry)))

    def size_spellings(self) -> dict[str, str]:
        """How a constraint writes each named size: `D` is `x.shape[-1]`."""
        spellings: dict[str, str] = {}
        for tensor in self.inputs:
            entries = [entry for entry, _ in tensor.shape or ()]
            for i, entry in enumerate(entries):
                if isinstance(entry, str) and entry.isidentifier() and tensor.name is not None:
                    index = i - len(entries) if ELLIPSIS in entries[:i] or i == len(entries) - 1 else i
                    spellings.setdefault(entry, f"{tensor.name}.shape[{index}]")
        return spellings


def declared(tree: Map) -> Declared:
    """Everything readable in a spec."""
    dtypes: dict[Text, tuple[str, ...]] = {}
    for variable, values in tree.child("dtypes").items():
        readable = [_attempt(leaves.dtype_name, value) for value in values] if isinstance(values, Seq) else []
        if not variable.startswith("\0"):
            complete = tuple(value for value in readable if value is not None)
            dtypes[variable] = complete if len(complete) == len(readable) else ()
    return Declared(
        name=_name(tree, "name"),
        inputs=tuple(_tensor(entry) for entry in tree.entries("inputs")),
        outputs=tuple(_tensor(entry) for entry in tree.entries("outputs")),
        dtypes=dtypes,
    )


def _tensor(entry: Tree) -> DeclaredTensor:
    if not isinstance(entry, Map):
        return DeclaredTensor(entry.place, None, None, None)
    if entry.text("scalar") is not None:
        return DeclaredTensor(entry.place, _name(entry, "name"), (), Text("float32", entry.place))
    shape = entry.get(Text("shape", entry.place))
    dtype, optional = _name(entry, "dtype", leaves.tensor_dtype), entry.text("optional") == "true"
    return DeclaredTensor(entry.place, _name(entry, "name"), _shape(shape), dtype, optional)


def _shape(value: Tree | None) -> tuple[tuple[Size, Place], ...] | None:
    if not isinstance(value, Seq):
        return None
    sizes = [(_attempt(leaves.size, entry), entry.place) for entry in value]
    readable = tuple((size, place) for size, place in sizes if size is not None)
    return readable if len(readable) == len(value) else None


def _name(tree: Map, key: str, leaf: Callable[[object], str] = leaves.identifier) -> Text | None:
    value = tree.text(key)
    return value if value is not None and _attempt(leaf, value) is not None else None


def _attempt(leaf: Callable[[object], _T], value: object) -> _T | None:
    """What a leaf makes of a value, None where it refuses it: the schema reports that."""
    try:
        return leaf(value)
    except PydanticCustomError:
        return None
