"""What a function does with its arguments: which it writes into, where the spec has the results `into` these inputs,
and which it has for indices, and of what size."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from kernelgen.importer.rewrite import Input, Rewritten


def with_written(written: Rewritten, function: Any) -> Rewritten:
    """The reference with the inputs that its results lie in; one that returns nothing returns what it wrote into."""
    import torch

    made = [torch.empty(t.shape, dtype=getattr(torch, t.dtype), device="meta") for t in written.inputs]
    try:
        with torch.no_grad():
            results = function(*made)
    except Exception:  # whatever a user's reference raises: it is said where it is traced
        return written
    changed = [i for i, t in enumerate(written.inputs) if t.role == "data" and made[i]._version]
    text = written.text
    if results is None and changed:
        text = f"{text.rstrip()}\n    return {', '.join(written.inputs[i].name for i in changed)}"
        results = tuple(made[i] for i in changed)
    returned = results if isinstance(results, tuple | list) else (results,)
    into = tuple(next((written.inputs[i].name for i in changed if made[i] is value), "") for value in returned)
    return replace(written, text=text, into=into if any(into) else ())


_PLACES = {
    "index_select": (1, 2), "index_copy": (1, 2), "index_add": (1, 2), "index_fill": (1, 2), "gather": (1, 2),
    "scatter": (1, 2), "scatter_add": (1, 2), "scatter_reduce": (1, 2),
}  # fmt: skip
"""Operations that take a dimension and the indices along it, by where these stand among the arguments."""


def indexed(function: Any, inputs: Sequence[Input], shapes: Sequence[tuple[int, ...]]) -> list[int | None]:
    """For every input the least size of what it has the indices of, as it is or as a view; None where it has none.
    `shapes`: of the inputs."""
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode

    made = [
        torch.empty(shape, dtype=getattr(torch, t.dtype), device="meta")
        for t, shape in zip(inputs, shapes, strict=True)
    ]
    memory = {tensor.untyped_storage()._cdata: i for i, tensor in enumerate(made)}
    found: list[int | None] = [None] * len(made)

    def note(index: Any, size: int) -> None:
        i = memory.get(index.untyped_storage()._cdata) if isinstance(index, torch.Tensor) else None
        if i is not None and not index.is_floating_point() and index.dtype != torch.bool:
            found[i] = size if found[i] is None else min(size, found[i] or size)

    class Indexed(TorchDispatchMode):  # type: ignore[no-untyped-call]
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            name = func.overloadpacket.__name__.rstrip("_")
            if name == "embedding":
                note(args[1], args[0].shape[0])
            elif name in ("index", "index_put"):
                for d, index in enumerate(args[1]):
                    note(index, args[0].shape[d])
            elif name in _PLACES and args[0].ndim:
                dim, index = _PLACES[name]
                note(args[index], args[0].shape[args[dim]])
            return func(*args, **(kwargs or {}))

    try:
        with torch.no_grad(), Indexed():  # type: ignore[no-untyped-call]
            function(*made)
    except Exception:  # whatever a user's reference raises: nothing is known of its indices
        return [None] * len(made)
    return found


def results_of(called: Any, inputs: Sequence[Input], into: Sequence[str], values: Sequence[Any]) -> Any:
    """What a function gives that was called with copies of values: of one that returns nothing, what it wrote into."""
    copies = [value.clone() for value in values]
    results = called(*copies)
    names = [t.name for t in inputs]
    return tuple(copies[names.index(name)] for name in into) if results is None else results
