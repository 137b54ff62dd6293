"""Sizes as a backward reference reads them from its inputs."""

from __future__ import annotations

from collections.abc import Iterable

from kernelgen.frontend.build import Refused
from kernelgen.frontend.graph import Dim, Node
from kernelgen.spec.model import ELLIPSIS, TensorSpec
from kernelgen.spec.sizes import is_expression

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
        return " * ".join(self._atom(atom) for atom in dim) or "1"

    def _atom(self, atom: int | str) -> str:
        if isinstance(atom, int):
            return str(atom)
        for tensor in self.inputs:
            if atom in tensor.shape and atom != ELLIPSIS:
                place = tensor.shape.index(atom)
                return f"{tensor.name}.shape[{place - len(tensor.shape) if ELLIPSIS in tensor.shape else place}]"
            if atom == ELLIPSIS and tensor.shape == (ELLIPSIS,):
                return f"{tensor.name}.numel()"
        raise Refused(f"the size {atom} in a gradient")

    def each(self, shape: Shape) -> list[str]:
        """The entries of a reshape, one of which torch can find itself."""
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

    def counted(self, node: Node) -> str:
        """The numbers along a dimension."""
        dim = int(node.attrs[0])
        count = f"torch.arange({self.number(node.shape[dim])}, device={self.inputs[0].name}.device)"
        return count if dim == -1 else f"{count}.reshape(-1, {', '.join(['1'] * (-dim - 1))})"


def _shape(tensor: TensorSpec) -> Shape | None:
    """The shape of a declared tensor as the graph has it; None where it is not made of plain sizes."""
    if any(is_expression(entry) for entry in tensor.shape):
        return None
    return tuple(() if entry == 1 else (entry,) for entry in tensor.shape)
