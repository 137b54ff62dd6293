"""Sizes as a backward reference reads them from its inputs."""

from __future__ import annotations

from collections.abc import Iterable

from kernelgen.frontend.build import Refused
from kernelgen.frontend.graph import Dim, Node
from kernelgen.spec.model import ELLIPSIS, TensorSpec
from kernelgen.spec.sizes import is_multiple, multiple

Shape = tuple[Dim, ...]


class Sizes:
    """Where the sizes of some tensors are found; `inputs` are those that a function has."""

    def __init__(self, inputs: Iterable[TensorSpec]) -> None:
        self.inputs = tuple(inputs)

    def number(self, dim: Dim) -> str:
        """A product of sizes as a whole number."""
        whole = next((t for t in self.inputs if dim and _shape(t) == tuple((a,) for a in dim)), None)
        if whole is not None and len(dim) > 1:
            return f"{whole.name}.numel()"
        for tensor in self.inputs if len(dim) == 2 else ():
            for place, entry in enumerate(tensor.shape):
                if isinstance(entry, str) and is_multiple(entry) and multiple(entry) == dim:
                    return f"{tensor.name}.shape[{tensor.dim(place)}]"
        return " * ".join(self._atom(atom) for atom in dim) or "1"

    def _atom(self, atom: int | str) -> str:
        if isinstance(atom, int):
            return str(atom)
        for tensor in self.inputs:
            if atom in tensor.shape and atom != ELLIPSIS:
                return f"{tensor.name}.shape[{tensor.dim(tensor.shape.index(atom))}]"
            if atom == ELLIPSIS and tensor.shape == (ELLIPSIS,):
                return f"{tensor.name}.numel()"
        for tensor in self.inputs:
            for place, entry in enumerate(tensor.shape):
                if isinstance(entry, str) and is_multiple(entry) and multiple(entry)[1] == atom:
                    return f"{tensor.name}.shape[{tensor.dim(place)}] // {multiple(entry)[0]}"
        raise Refused(f"the size {atom} in a gradient")

    def each(self, shape: Shape) -> list[str]:
        """The entries of a reshape: the shape of an input where that is longer than a row, or sizes, one of which torch
        can find itself."""
        if len(shape) > 1 and any(_shape(t) == shape for t in self.inputs):
            return [self.whole(shape)]
        named = [i for i, dim in enumerate(shape) if any(isinstance(a, str) for a in dim)]
        return ["-1" if named == [i] else self.number(dim) for i, dim in enumerate(shape)]

    def rows(self, shape: Shape) -> list[str]:
        """The entries of a reshape that makes one dimension of all that lead."""
        return ["-1", *(self.number(dim) for dim in shape[1:])]

    def whole(self, shape: Shape) -> str:
        """A shape, as that of an input where one has it."""
        tensor = next((t for t in self.inputs if _shape(t) == shape), None)
        if tensor is not None:
            return f"{tensor.name}.shape"
        if (ELLIPSIS,) in shape:
            raise Refused("a gradient of the leading dimensions of no input")
        return ", ".join(self.number(dim) for dim in shape)

    def like(self, shape: Shape) -> str:
        """A tensor of a shape."""
        tensor = next((t for t in self.inputs if _shape(t) == shape), None)
        if tensor is None:
            raise Refused("a gradient of the shape of no input")
        return tensor.name

    def counted(self, node: Node, dim: int) -> str:
        """The numbers along a dimension, which is counted from the end."""
        count = f"torch.arange({self.number(node.shape[dim])}, device={self.inputs[0].name}.device)"
        return count if dim == -1 else f"{count}.reshape(-1, {', '.join(['1'] * (-dim - 1))})"


def _shape(tensor: TensorSpec) -> Shape:
    """The shape of a declared tensor as the graph has it."""
    return tuple(
        multiple(str(entry)) if is_multiple(str(entry)) else () if entry == 1 else (entry,) for entry in tensor.shape
    )
