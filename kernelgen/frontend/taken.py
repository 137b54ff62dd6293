"""Slices of dimensions whose size may be 1: torch traces as if no size were, and does not ask whether they fit then."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

from kernelgen.frontend.graph import Atom
from kernelgen.frontend.rule import Refused
from kernelgen.spec.cases import admits
from kernelgen.spec.model import ELLIPSIS, OperatorSpec, SizeValue
from kernelgen.spec.sizes import evaluate, is_expression, names_in

_LARGE = 129


def check_slice(spec: OperatorSpec, node: Any, symbols: Mapping[Any, Atom]) -> None:
    """Raises Refused where a slice such as `x[:, -2:]` has fewer elements where a size is 1 than the trace has it, and
    the constraints admit that size."""
    if str(node.target) == "aten.select.int":
        _check_select(spec, node, symbols)
    if str(node.target) != "aten.slice.Tensor":
        return
    x, dim, start, end, step = (arg.meta["val"] if hasattr(arg, "meta") else arg for arg in (*node.args, None, 1)[:5])
    traced = x.shape[dim], start, end, step, node.meta["val"].shape[dim]
    names = {s: str(symbols[s]) for value in traced for s in _free(value) if str(symbols.get(s)).isidentifier()}
    others: dict[str, SizeValue] = {str(name): _LARGE for name in symbols.values()} | {ELLIPSIS: (3,)}
    known = dict.fromkeys(names.values())
    for values in itertools.product((1, _LARGE), repeat=len(known)):
        sizes: dict[str, SizeValue] = dict(zip(known, values, strict=True))
        if 1 in values and not _fits(traced, names, sizes) and admits(spec, tuple((others | sizes).items())):
            small = [name for name, value in sizes.items() if value == 1]
            enough = (n for n in range(2, _LARGE) if _fits(traced, names, {**sizes, small[0]: n}))
            raise _short(
                f"a slice that is shorter with {' and '.join(f'{n} = 1' for n in small)}",
                _least(spec, small[0], next(enough)) if len(known) == 1 else "",
            )


def _check_select(spec: OperatorSpec, node: Any, symbols: Mapping[Any, Atom]) -> None:
    """Raises Refused where `x[:, 1]` names a place that a dimension lacks where its size is 1."""
    x, dim, place = (arg.meta["val"] if hasattr(arg, "meta") else arg for arg in node.args[:3])
    size = x.shape[dim]
    names = [str(symbols[s]) for s in _free(size) if str(symbols.get(s)).isidentifier()]
    if not isinstance(place, int) or place in (0, -1) or len(names) != 1 or not size.node.expr.is_Symbol:
        return
    sizes: dict[str, SizeValue] = {str(name): _LARGE for name in symbols.values()}
    sizes |= {ELLIPSIS: (3,), names[0]: 1}
    if admits(spec, tuple(sizes.items())):
        raise _short(
            f"index {place} of a dimension that has one element with {names[0]} = 1", _least(spec, names[0], 2)
        )


def _fits(traced: tuple[Any, ...], names: Mapping[Any, str], sizes: Mapping[str, Any]) -> bool:
    """Whether a slice has at sizes as many elements as the trace has it; where one of these divides by zero, torch's
    own call fails. `names`: of torch's symbols; those of two inputs may differ and mean one size."""
    try:
        size, start, end, step, made = (_at(value, {s: sizes[name] for s, name in names.items()}) for value in traced)
    except ZeroDivisionError:
        return True
    return bool(len(range(size)[start:end:step]) == made)


def _free(value: Any) -> set[Any]:
    return set(value.node.expr.free_symbols) if hasattr(value, "node") else set()


def _at(value: Any, sizes: Mapping[Any, int]) -> Any:
    """A traced size at sizes."""
    return int(value.node.expr.subs({**dict.fromkeys(_free(value), _LARGE), **sizes})) if _free(value) else value


def _short(message: str, needed: str) -> Refused:
    return Refused(f"{message} (write the constraint {needed})" if needed else message, needed)


def _least(spec: OperatorSpec, name: str, least: int) -> str:
    """The constraint that keeps a size from being smaller."""
    for tensor in spec.inputs:
        for d, entry in enumerate(tensor.shape):
            if isinstance(entry, str) and names_in(entry) == (name,):
                size = evaluate(entry, {name: least}) if is_expression(entry) else least
                return f"{tensor.name}.shape[{tensor.dim(d)}] >= {size}"
    return ""
