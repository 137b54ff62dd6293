"""One traced node at a time: looked up in the ATen table and added to the graph."""

from __future__ import annotations

import contextlib
import difflib
import re
from collections.abc import Callable, Sequence
from typing import Any

from kernelgen.frontend import convolution_gradients, writes
from kernelgen.frontend.aten import TABLE, supported
from kernelgen.frontend.build import Builder, converted
from kernelgen.frontend.calls import FUNCTIONS, WHOLE, any_call, in_memory, torch_call
from kernelgen.frontend.constructors import check_device, check_fill, is_unset
from kernelgen.frontend.export import dim, dims, kind
from kernelgen.frontend.graph import Atom, Ref, SizeOf
from kernelgen.frontend.mistakes import FROM_VALUE, line_of, named, unsupported
from kernelgen.frontend.numbers_of_sizes import number_of
from kernelgen.frontend.reference import Reference
from kernelgen.frontend.rule import Call, Refused, Result, StaysCall
from kernelgen.frontend.taken import check_slice
from kernelgen.spec.model import SCALAR, OperatorSpec

_SYMBOLIC = ("SymInt", "SymFloat", "SymBool")
_IGNORED = ("_assert_tensor_metadata", "_assert_scalar", "sym_", "_guards", "sym_constrain")


def _check_results(node: Any, results: Sequence[Any]) -> None:
    if any(result is None for result in results):
        raise Refused(f"{node.target}, which gives None among its results")
    if results[0].dtype.is_complex:
        raise Refused("complex numbers (use separate tensors for real and imaginary parts)")


def lower_node(
    spec: OperatorSpec, reference: Reference, b: Builder, node: Any, values: dict[Any, Any], symbols: dict[Any, Atom]
) -> None:
    name = str(node.target)
    if any(part in name for part in _IGNORED):
        meta = node.meta.get("val")
        if meta is not None and not hasattr(meta, "shape"):
            values[node] = _size_value(b, meta, symbols)
        return
    try:
        if "getitem" in name:
            values[node] = values[node.args[0]][node.args[1]]
            return
        meta = node.meta["val"]
        if name == "aten.item.default" and (number := _number(spec, b, values.get(node.args[0]))):
            values[node] = b.numbers[meta.node.expr] = number
            return
        if not hasattr(meta, "shape") and not isinstance(meta, list | tuple):
            values[node] = _size_value(b, meta, symbols)
            return
        check_device(node)
        check_slice(spec, node, symbols)
        if _is_of_nothing(b, node, values, symbols):
            return
        if name == convolution_gradients.OPERATION:
            in_memory(b, node, values)
            values[node] = convolution_gradients.gradient(b, node, values, symbols)
            return
        overwrites = False
        if writes.written(node) is not None:
            if writes.is_assigned_to_itself(node):
                values[node] = values[node.args[0]]
                return
            writes.check_write(node, spec)
            overwrites = writes.functional(node).split(".")[1] in writes.OVERWRITES
        several = tuple(meta) if isinstance(meta, list | tuple) else ()
        first = several[0] if several else meta
        _check_results(node, several or (meta,))
        check_fill(spec, node, first.dtype)
        shape, dtype = dims(first.shape, symbols), str(first.dtype).removeprefix("torch.")
        shapes = tuple(dims(m.shape, symbols) for m in several)

        def call() -> Call:
            args = tuple(None if overwrites and not i else _argument(a, values) for i, a in enumerate(node.args))
            kwargs = {k: _argument(v, values) for k, v in node.kwargs.items()}
            return Call(args, kwargs, shape, kind(first.dtype), dtype, shapes)

        def taken(part: Any) -> Call:
            args = tuple(_argument(a, values) for a in part.args)
            return Call(args, dict(part.kwargs), shape, kind(first.dtype), dtype, shapes)

        result = _result(b, node, call, values, symbols)
        if writes.written(node) is not None:
            result = writes.as_stored(b, node, result)
            writes.write_back(b, node, result, values, taken)
        values[node] = result
    except Refused as refusal:
        found = unsupported(spec, line_of(reference, node), named(str(refusal), symbols))
        found.condition = refusal.condition
        raise found from None


def _is_of_nothing(b: Builder, node: Any, values: dict[Any, Any], symbols: dict[Any, Atom]) -> bool:
    """Whether nobody has set its elements, or those that it repeats; what reads them is refused, unless some are
    written."""
    if str(node.target) == "aten.expand.default":
        return is_unset(node.args[0]) and node.args[0] not in values
    if is_unset(node) and any(writes.is_by_index(user) or writes.is_part(user) for user in node.users):
        meta = node.meta["val"]
        b.note("elements of torch.empty that are never written are 0, which torch leaves unspecified")
        values[node] = b.full(converted(0, kind(meta.dtype)), dims(meta.shape, symbols), kind(meta.dtype))
    return is_unset(node)


def _number(spec: OperatorSpec, b: Builder, value: Any) -> Ref | None:
    """A value that is an input, and a number of Python's; None for any other."""
    names = {t.name for t in spec.inputs if t.role == SCALAR}
    return value if isinstance(value, Ref) and b.node(value).op == "input" and b.node(value).name in names else None


def _result(
    b: Builder, node: Any, call: Callable[[], Call], values: dict[Any, Any], symbols: dict[Any, Atom]
) -> Result:
    """What the table makes of a call; one that it has no rule for, or refuses, may stay a call of torch's, or is what
    torch decomposes it into."""
    name = writes.functional(node)
    rule, before = TABLE.get(name), b.state()
    refusal = None if rule else Refused(_unknown(name))
    if rule is not None:
        try:
            return rule(b, call())
        except Refused as refused:
            refusal = refused
            b.back_to(before)
        except TypeError:
            if not b.numbers:
                raise
            said = f"{name.removeprefix('aten.')} of a number that is an input (write out its formula)"
            raise Refused(said) from None
    if name in FUNCTIONS:
        in_memory(b, node, values)
        return torch_call(b, node, call())
    if name in WHOLE:
        in_memory(b, node, values)
        return any_call(b, node, call())
    assert refusal is not None
    if writes.written(node) is not None or not name.startswith("aten."):
        raise refusal
    try:
        return _decomposed(b, node, values, symbols)
    except Refused as deeper:
        if rule is not None and not isinstance(refusal, StaysCall):
            raise refusal from None
        try:
            in_memory(b, node, values)
            return any_call(b, node, call())
        except Refused:
            computed = f"{name.removeprefix('aten.')}, which torch computes by {deeper}"
            raise Refused(computed) if str(deeper) else refusal from None


def _decomposed(b: Builder, node: Any, values: dict[Any, Any], symbols: dict[Any, Atom]) -> Result:
    def traced(value: Any) -> Any:
        if isinstance(value, list | tuple):
            return [traced(v) for v in value]
        return value.meta["val"] if hasattr(value, "meta") else value

    def valued(value: Any) -> Any:
        if isinstance(value, list | tuple):
            return [valued(v) for v in value]
        return _size_value(b, value, symbols) if type(value).__name__ in _SYMBOLIC else value

    def lower(name: str, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> Result:
        rule = TABLE[name]
        several = isinstance(result, list | tuple)
        first = result[0] if several else result
        shapes = tuple(dims(m.shape, symbols) for m in result) if several else ()
        dtype = str(first.dtype).removeprefix("torch.")
        given = {k: valued(v) for k, v in kwargs.items()}
        return rule(
            b, Call(tuple(map(valued, args)), given, dims(first.shape, symbols), kind(first.dtype), dtype, shapes)
        )

    known = {id(n.meta["val"]): values[n] for n in node.all_input_nodes if isinstance(values.get(n), Ref)}
    args, kwargs = tuple(map(traced, node.args)), {k: traced(v) for k, v in node.kwargs.items()}
    from kernelgen.frontend.decompositions import decomposed  # imports torch

    return decomposed(b, node.target, args, kwargs, known, lower)


_DRAWN = frozenset(
    ["alpha_dropout", "bernoulli", "dropout", "feature_dropout", "multinomial", "normal", "rand", "rand_like",
     "randint", "randint_like", "randn", "randn_like", "randperm", "rrelu", "uniform"]
)  # fmt: skip
"""Operations whose results are random."""


def _unknown(name: str) -> str:
    """An operation that has no rule, with those that are called nearly like it."""
    plain, known = name.split(".")[1], supported()
    if plain in _DRAWN:
        return f"{name.removeprefix('aten.')}, which draws from torch's generator (supported: random_mask with a seed)"
    near = difflib.get_close_matches(plain.strip("_"), known, n=3, cutoff=0.75)
    named = f"the nearest: {', '.join(near)}; " if near else ""
    return f"{name.removeprefix('aten.')} (supported: {named}`kernelgen docs spec` lists all {len(known)})"


def _size_value(b: Builder, meta: Any, symbols: dict[Any, Atom]) -> Any:
    """A size as a product of declared ones, or another number that follows from sizes; what is neither is refused
    where it is used."""
    if isinstance(meta, int | float | bool) or meta is None:
        return meta
    whole = type(meta).__name__ == "SymInt"
    with contextlib.suppress(Refused):
        return SizeOf(dim(meta, symbols)) if whole else number_of(b, meta.node.expr, symbols)
    return meta


def _argument(value: Any, values: dict[Any, Any]) -> Any:
    if hasattr(value, "op") and hasattr(value, "meta"):
        if value not in values:
            raise Refused("elements of torch.empty that are never written")
        result = values[value]
        if re.search(r"\b(u|zuf)\d", str(result)) and not isinstance(result, Ref):
            raise Refused(FROM_VALUE)
        if isinstance(result, tuple):
            raise Refused("a value that is a list of tensors")
        return result
    if isinstance(value, list | tuple):
        return [_argument(v, values) for v in value]
    return value
