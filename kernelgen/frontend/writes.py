"""Operations that write to their first operand, as the ones that return a new tensor.

A trace lets later uses of the very tensor that was written to see the result; those of another tensor in the same
memory (a view, or what a view was made of) would still see what was there before. A write is lowered where there are no
such uses, and else refused.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from kernelgen.frontend.build import Builder
from kernelgen.frontend.constructors import number
from kernelgen.frontend.export import kind
from kernelgen.frontend.gathers import from_end
from kernelgen.frontend.graph import Ref
from kernelgen.frontend.moves import at_place, in_slice
from kernelgen.frontend.rule import Call, Refused, Rule
from kernelgen.frontend.scatters import masked_scatter, put_at
from kernelgen.spec.model import OperatorSpec

_PARTS = ("select", "slice", "narrow", "split", "split_with_sizes", "chunk", "unbind", "diagonal", "getitem")
_ASKED = ("sym_", "_assert_tensor_metadata")
"""Uses that do not read elements."""
_BY_INDEX = ("scatter", "index_copy", "index_put", "index_fill", "masked_fill", "masked_scatter", "put")
OVERWRITES = ("fill", "zero", "copy")
"""Operations that do not read what they write to."""


def functional(node: Any) -> str:
    """The name of an operation, for one that writes (`aten.add_.Tensor`) that of the one that does not."""
    name = str(node.target)
    if not written(node):
        return name
    _, _, rest = name.partition(".")
    op, _, overload = rest.partition(".")
    op = f"__{op[3:]}" if op.startswith("__i") else op.removesuffix("_")
    if op == "pow":
        overload = f"Tensor_{overload}"
    return f"aten.{op}.{overload}"


def is_by_index(node: Any) -> bool:
    """Whether an operation writes where indices, or a mask, say."""
    return str(node.target).removeprefix("aten.").partition(".")[0].rstrip("_") in _BY_INDEX


def written(node: Any) -> Any:
    """The node that an operation writes to, None where it writes to none."""
    arguments = _arguments(node)
    names = [a.name for a in arguments if a.alias_info is not None and a.alias_info.is_write]
    if not names:
        return None
    if names != [arguments[0].name]:
        raise Refused(f"{names[-1]}= (give the result a name)")
    return node.args[0]


def _arguments(node: Any) -> list[Any]:
    """What an operation declares of its arguments, aliases included."""
    return list(getattr(getattr(node.target, "_schema", None), "arguments", ()))


def check_write(node: Any, spec: OperatorSpec) -> None:
    """Refuse a write that others see: to an input that no output is written into, or to memory that another tensor is
    read from afterwards."""
    target = written(node)
    nodes = list(node.graph.nodes)
    position = {n: i for i, n in enumerate(nodes)}
    memory = _memory(nodes[: position[node]])
    shared = [n for n, own in memory.items() if own & memory[target]]
    inputs = [n for n in nodes if n.op == "placeholder"]
    for given, found in zip(spec.inputs, inputs, strict=False):
        if found in shared and given.name not in spec.written:
            way_out = f"write {given.name}.clone(), or declare the output that it becomes with into: {given.name}"
            raise Refused(f"an in-place change of {given.name}: a reference may not change its inputs ({way_out})")
    value = target.meta["val"]
    steps = zip(value.shape, value.stride(), strict=True)
    if any(type(step) is int and step == 0 and not (type(size) is int and size == 1) for size, step in steps):
        raise Refused("an in-place write to an expanded tensor")
    seen = parts_of(target)  # what lies in these is known after the write
    later = [n for n in shared if n not in seen and any(position[u] > position[node] and _reads(u) for u in n.users)]
    later += [n for n in node.all_input_nodes if n is not target and n in shared]  # which torch may read too late
    if not later:
        return
    if _is_part(target, memory):
        raise Refused("an in-place write to part of a tensor (write it with torch.where or torch.cat)")
    raise Refused("an in-place write to a tensor whose view is used afterwards (write to a clone())")


_PLACED: dict[str, Callable[[Builder, Call, Ref, Ref], Ref]] = {
    "aten.slice.Tensor": in_slice,
    "aten.select.int": at_place,
    "aten.alias.default": lambda b, c, whole, part: part,
}
"""What a tensor is whose part was written to, by how the part was taken."""


def parts_of(target: Any) -> list[Any]:
    """The tensors that the target of a write is a part of, a slice of a slice from the inside out; none where it is
    taken otherwise."""
    found: list[Any] = []
    while str(target.target) in _PLACED:
        target = target.args[0]
        found.append(target)
    return found


def is_part(node: Any) -> bool:
    return str(node.target) in _PLACED


def write_back(b: Builder, node: Any, result: Ref, values: dict[Any, Any], call: Callable[[Any], Call]) -> None:
    """What the tensors are, after a write, that its target is a part of. `call`: that of a node."""
    part = written(node)
    for whole in parts_of(part):
        result = values[whole] = _PLACED[str(part.target)](b, call(part), values[whole], result)
        part = whole


def is_assigned_to_itself(node: Any) -> bool:
    """Whether a copy writes what was just written there, as `y[0] += 1` assigns y[0] once more."""
    if functional(node).split(".")[1] != "copy":
        return False
    source = node.args[1]
    return source.op == "call_function" and written(source) is not None and _are_alike(written(source), node.args[0])


def _are_alike(one: Any, other: Any) -> bool:
    """Whether two nodes are the same part of one tensor."""
    one, other = (x.args[0] if str(x.target) == "aten.alias.default" else x for x in (one, other))
    if one is other:
        return True
    alike = str(one.target) == str(other.target) in _PLACED and one.args[1:] == other.args[1:]
    return alike and one.kwargs == other.kwargs and _are_alike(one.args[0], other.args[0])


def _reads(user: Any) -> bool:
    return not any(part in str(user.target) for part in _ASKED)


def _memory(nodes: list[Any]) -> dict[Any, frozenset[int]]:
    """The memory that every tensor may lie in: its own in the trace, and that of what it may be a view of.

    Whether contiguous() and reshape() copy depends on strides, which differ from call to call; whether to() does, on
    dtypes, which the trace has.
    """
    found: dict[Any, frozenset[int]] = {}
    for node in nodes:
        value = node.meta.get("val")
        tensors = [v for v in (value if isinstance(value, list | tuple) else [value]) if hasattr(v, "untyped_storage")]
        if not tensors:
            continue
        own = frozenset(v.untyped_storage()._cdata for v in tensors)
        for source in _viewed(node):
            own |= found.get(source, frozenset())
        found[node] = own
    return found


def _viewed(node: Any) -> list[Any]:
    if str(node.target).startswith("aten.to."):
        return []
    return [a for a, declared in zip(node.args, _arguments(node), strict=False) if declared.alias_info is not None]


def _is_part(node: Any, memory: dict[Any, frozenset[int]]) -> bool:
    """Whether a view leaves elements out of what it is a view of."""
    while True:
        name = str(node.target).removeprefix("aten.").partition(".")[0]
        if name in _PARTS or "getitem" in name:
            return True
        sources = [n for n in node.all_input_nodes if memory.get(n, frozenset()) & memory[node]]
        if not sources:
            return False
        node = sources[0]


def as_stored(b: Builder, node: Any, result: Any) -> Any:
    """The result of a write in the dtype of what is written to, which a wider operand does not change."""
    import torch

    value = node.meta["val"]
    if not isinstance(result, Ref) or b.node(result).dtype != kind(value.dtype):
        return b.convert(result, kind(value.dtype)) if isinstance(result, Ref) else result
    others = [n.meta["val"] for n in node.all_input_nodes if n is not node.args[0] and hasattr(n.meta["val"], "dtype")]
    wider = [o for o in others if o.dtype.is_floating_point and o.ndim >= min(value.ndim, 1)]
    if all(torch.promote_types(o.dtype, value.dtype) == value.dtype for o in wider):
        return result
    return b.round(result, str(value.dtype).removeprefix("torch."))


def _fill(b: Builder, c: Call) -> Ref:
    value = c.args[1]
    if isinstance(value, Ref):
        return b.view("expand", b.convert(value, c.dtype), c.shape)
    return number(b, value, c.shape, c.dtype)


def _copy(b: Builder, c: Call) -> Ref:
    return b.view("expand", b.convert(c.args[1], c.dtype), c.shape)


def _put(b: Builder, c: Call) -> Ref:
    """`y[index] = value`, or `y[mask] = value` with a value for all its elements."""
    x, places, value = c.args[:3]
    shape = b.node(x).shape
    used = [(d, i) for d, i in enumerate(places) if i is not None]
    if all(b.node(i).dtype != "bool" for _, i in used):
        return put_at(b, x, [(d, from_end(b, c, i, x, d)) for d, i in used], value, adds=c.get(3, "accumulate", False))
    if len(places) != 1 or c.get(3, "accumulate", False):
        raise Refused("an assignment to a mask combined with other indices, or with accumulate=True")
    mask = b.node(places[0]).shape
    chosen = b.view("reshape", places[0], (*mask, *((),) * (len(shape) - len(mask))))
    values, rest = b.node(value).shape, shape[len(mask) :]
    if len(values) > len(rest) and values[-len(rest) - 1] != ():  # one after the other, not the same everywhere
        value = b.view("expand", b.convert(value, c.dtype), (values[0], *rest))
        return masked_scatter(b, replace(c, args=(x, chosen, value), kwargs={}))
    if len(values) > len(rest):
        value = b.view("reshape", value, values[len(values) - len(rest) :])
    return b.map("where", chosen, value, x, dtype=c.dtype)


RULES: dict[str, Rule] = {
    "aten.fill.Scalar": _fill,
    "aten.fill.Tensor": _fill,
    "aten.zero.default": lambda b, c: number(b, 0, c.shape, c.dtype),
    "aten.copy.default": _copy,
    "aten.index_put.default": _put,
}
