"""Single sizes that a trace leaves out, and whether the reference does the same there.

torch asks of a slice `x[:, -5:]` whether it is the whole dimension, and of what a convolution returns whether a size is
one: the trace then holds for all sizes but one, at which the reference is traced again. Python's own
`if x.shape[1] == 5` leaves the same condition, so that only the operations tell.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from kernelgen.errors import SpecError
from kernelgen.frontend.export import (
    Binding,
    called,
    export,
    failing_guards,
    inputs_at,
    left_out,
    refuse_guard,
)
from kernelgen.frontend.graph import Atom
from kernelgen.frontend.reference import Reference
from kernelgen.spec.model import OperatorSpec

_MOST = 8
"""Sizes to trace again at."""
_DEEP = 3
"""Sizes to fix at once, before another is."""
_MOVES = ("view", "_unsafe_view", "reshape", "expand", "slice", "alias", "detach", "lift_fresh")
"""Operations that do nothing where the shape stays."""
_COPIES = ("clone", "contiguous")
"""Operations that do nothing but where something is written later."""


def check_guards(
    spec: OperatorSpec,
    reference: Reference,
    exported: Any,
    names: dict[Any, Atom],
    binding: Binding,
    leading: int,
    fixed: Mapping[str, int] | None = None,
) -> None:
    """Refuse a reference whose trace does not hold for all sizes, unless it leaves out single ones at which the
    reference does the same. `fixed`: what is a number in this trace already."""
    fixed = dict(fixed or {})
    for condition in failing_guards(spec, exported, names):
        values = left_out(spec, condition, names)
        if values is None or len(values) > _MOST or len(fixed) > _DEEP:
            refuse_guard(spec, condition, names)
            return
        for sizes in values:
            if not _does_the_same(spec, reference, exported, binding, leading, fixed | sizes):
                refuse_guard(spec, condition, names)


def _does_the_same(
    spec: OperatorSpec, reference: Reference, exported: Any, binding: Binding, leading: int, fixed: Mapping[str, int]
) -> bool:
    """Whether at these sizes the reference calls the operations that the trace has, whatever the other sizes."""
    import torch

    try:
        again = export(spec, reference, binding, leading, fixed)
        check_guards(spec, reference, again, _names(spec, again, leading), binding, leading, fixed)
    except SpecError:
        return False
    for turned in (0, 5):
        inputs = inputs_at(spec, binding, leading, fixed, turned)
        with contextlib.suppress(Exception):  # what fails at these sizes is not what the trace does
            traced = _Operations(torch.fx.Interpreter(exported.graph_module).run, inputs)
            own = _Operations(lambda *given: called(spec, reference, given), inputs)
            if traced.rows() == own.rows():
                continue
        return False
    return True


def _names(spec: OperatorSpec, exported: Any, leading: int) -> dict[Any, Atom]:
    from kernelgen.frontend.export import entries_of

    placeholders = [n for n in exported.graph.nodes if n.op == "placeholder"]
    return {
        size.node.expr: entry
        for tensor, node in zip(spec.inputs, placeholders, strict=True)
        for entry, size in zip(entries_of(tensor, leading), node.meta["val"].shape, strict=True)
        if not isinstance(size, int)
    }


class _Operations:
    """The operations that a function of tensors calls, each with numbers for the tensors that it reads."""

    def __init__(self, function: Callable[..., Any], inputs: Sequence[Any]) -> None:
        import torch
        from torch.utils._python_dispatch import TorchDispatchMode

        heard: list[tuple[Any, Any, Any, Any]] = []

        class Hears(TorchDispatchMode):  # type: ignore[no-untyped-call]
            def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
                result = func(*args, **(kwargs or {}))
                heard.append((func, args, kwargs or {}, result))
                return result

        with torch.no_grad(), Hears():  # type: ignore[no-untyped-call]
            self._result = function(*inputs)
        self._heard, self._inputs = heard, inputs

    def rows(self) -> list[Any]:
        """What must agree: no operation that does nothing, and every one with the tensors that it reads."""
        from torch.utils._pytree import tree_leaves, tree_map

        writes = any(func._schema.is_mutable for func, *_ in self._heard)
        numbers: dict[int, object] = {id(x): f"input {i}" for i, x in enumerate(self._inputs)}
        rows: list[Any] = []

        def shown(x: Any) -> Any:
            if not hasattr(x, "untyped_storage"):
                return str(x)
            return numbers[id(x)]

        for func, args, kwargs, result in self._heard:
            name = func.overloadpacket.__name__
            if not any(hasattr(x, "untyped_storage") for x in tree_leaves(result)):
                continue  # a size
            if name in (*_MOVES, *(() if writes else _COPIES)) and _stays(args, result):
                numbers[id(result)] = shown(args[0])
                continue
            name = "view" if name in _MOVES[:3] else name
            kept = [name, tree_map(shown, list(args)), tree_map(shown, dict(kwargs))]
            for i, x in enumerate(tree_leaves(result)):
                numbers[id(x)] = (len(rows), i)
            rows.append(kept)
        return [*rows, [shown(x) for x in tree_leaves(self._result)]]


def _stays(args: Any, result: Any) -> bool:
    """Whether what an operation returns has the shape and dtype of what it reads, of which it takes every element."""
    source = args[0]
    if (source.shape, source.dtype) != (result.shape, result.dtype):
        return False
    return len(args) < 5 or args[4] == 1  # a slice's step
