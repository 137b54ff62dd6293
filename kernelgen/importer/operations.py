"""One traced operation as a person writes it: `F.linear(x, weight)`, `x.view(b, -1)`, `a + b`, `x[:, -1]`.

What an operation is called follows from its schema and from where torch has a function of that name; a table says the
few that are written otherwise. Nothing here has to be right for sure: what was written is traced again and compared.
"""

from __future__ import annotations

import operator
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from kernelgen.importer.layers import call, literal, shown

ATOM, PRODUCT, SUM, COMPARISON = 3, 2, 1, 0
"""How tightly an expression binds."""


@dataclass(frozen=True)
class Text:
    """An expression and how tightly it binds."""

    text: str
    level: int = ATOM

    def within(self, level: int) -> str:
        """The expression where one that binds so tightly is needed."""
        return self.text if self.level >= level else f"({self.text})"


Operand = Callable[[Any], Text]
"""The text of an argument: of a node, a size, a constant."""

_INFIX: dict[str, tuple[str, int]] = {
    "add": ("+", SUM), "sub": ("-", SUM), "mul": ("*", PRODUCT), "div": ("/", PRODUCT),
    "floor_divide": ("//", PRODUCT), "remainder": ("%", PRODUCT), "matmul": ("@", PRODUCT),
    "eq": ("==", COMPARISON), "ne": ("!=", COMPARISON), "lt": ("<", COMPARISON), "le": ("<=", COMPARISON),
    "gt": (">", COMPARISON), "ge": (">=", COMPARISON),
    "bitwise_and": ("&", COMPARISON), "bitwise_or": ("|", COMPARISON), "__and__": ("&", COMPARISON),
    "__or__": ("|", COMPARISON),
}  # fmt: skip

_OF_SIZES: dict[Any, tuple[str, int]] = {
    operator.add: ("+", SUM), operator.sub: ("-", SUM), operator.mul: ("*", PRODUCT),
    operator.floordiv: ("//", PRODUCT), operator.mod: ("%", PRODUCT), operator.truediv: ("/", PRODUCT),
}  # fmt: skip

_METHODS = frozenset(
    ["chunk", "clone", "contiguous", "diagonal", "expand", "expand_as", "flatten", "flip", "masked_fill",
     "movedim", "permute", "repeat", "repeat_interleave", "reshape", "reshape_as", "roll", "scatter", "scatter_add",
     "split", "split_with_sizes", "squeeze", "t", "transpose", "type_as", "unbind", "unflatten", "unfold", "unsqueeze",
     "view", "view_as", "gather", "index_select", "clamp", "clamp_min", "clamp_max", "new_zeros", "new_ones"]
)  # fmt: skip
"""What is written behind a tensor."""

_STARRED = frozenset(["view", "reshape", "permute", "expand", "repeat"])
"""Methods whose sizes stand without brackets around them."""

_UNDER_TORCH = frozenset(["sigmoid", "tanh", "unfold", "normalize", "bilinear", "embedding_bag"])
"""What torch.nn.functional has too, and better under torch or not as the operation that is traced."""

_CALLED = {"cross_entropy_loss": "cross_entropy", "nll_loss_nd": "nll_loss"}
"""Operations that have another name in torch.nn.functional."""

_REDUCTIONS = ("none", "mean", "sum")
"""What the functions of torch.nn.functional call the reductions that operations number."""

INDEXING = ("aten.select.int", "aten.slice.Tensor", "aten.unsqueeze.default")

RECURRENT = ("lstm", "gru", "rnn_tanh", "rnn_relu")

_EVERYTHING = sys.maxsize


def plain_name(node: Any) -> str:
    """What an operation is called, without its overload and whether it writes in place."""
    name = str(node.target).split(".")[-2] if "." in str(node.target) else str(node.target)
    return name if name.startswith("__") else name.rstrip("_")


def argument(node: Any, index: int, name: str, default: Any = None) -> Any:
    """An argument of a node by its place or its name."""
    return node.args[index] if len(node.args) > index else node.kwargs.get(name, default)


def expression(node: Any, operand: Operand) -> Text:
    """The call or the operator that does what the node does."""
    if node.target in _OF_SIZES:
        sign, level = _OF_SIZES[node.target]
        return _infix(sign, level, operand(node.args[0]), operand(node.args[1]))
    if not hasattr(node.target, "_schema"):
        return _of_numbers(node, operand)
    name = plain_name(node)
    if name in _SPECIAL:
        return _SPECIAL[name](node, operand)
    if name in _INFIX and len(node.args) == 2 and not node.kwargs:
        sign, level = _INFIX[name]
        return _infix(sign, level, operand(node.args[0]), operand(node.args[1]))
    return _call(node, name, operand)


def _infix(sign: str, level: int, left: Text, right: Text) -> Text:
    inner = level if level > COMPARISON else SUM
    return Text(f"{left.within(inner)} {sign} {right.within(inner + (level > COMPARISON))}", level)


def _of_numbers(node: Any, operand: Operand) -> Text:
    """A function of Python's numbers that follow from sizes, such as `math.sqrt` of one."""
    name = getattr(node.target, "__name__", str(node.target)).lstrip("_")
    values = ", ".join(operand(value).text for value in node.args)
    if name == "neg":
        return Text(f"-{operand(node.args[0]).within(ATOM)}", PRODUCT)
    if name == "pow":
        return Text(f"{operand(node.args[0]).within(ATOM)} ** {operand(node.args[1]).within(ATOM)}", PRODUCT)
    if name == "sym_sum":
        return Text(" + ".join(operand(value).within(SUM) for value in node.args[0]), SUM)
    known = {"sym_max": "max", "sym_min": "min", "sym_int": "int", "sym_float": "float", "trunc": "int"}
    return Text(f"{known.get(name) or 'math.' + name.removeprefix('sym_')}({values})")


def _call(node: Any, name: str, operand: Operand) -> Text:
    """A call by the schema: what has no default by place, tensors too, all else by name where it differs."""
    import torch

    positional: list[str] = []
    keywords: dict[str, str] = {}
    by_place = True
    for i, parameter in enumerate(node.target._schema.arguments):
        has_default = parameter.has_default_value()
        default = parameter.default_value if has_default else None
        value = argument(node, i, parameter.name, default)
        if (has_default and _equal(value, default)) or parameter.name in _IGNORED:
            by_place = False
        elif by_place and not parameter.kwarg_only and (not has_default or _is_tensor(value)):
            positional.append(written(value, operand, parameter.N))
        else:
            by_place = False
            name_of = "input" if parameter.name == "self" else parameter.name
            value = _REDUCTIONS[value] if name_of == "reduction" else value
            keywords[name_of] = written(value, operand, parameter.N)
    if name in _METHODS and node.target._schema.arguments[0].name == "self":
        receiver = operand(node.args[0]).within(ATOM)
        if name in _STARRED and isinstance(node.args[1], list | tuple):
            positional[1:] = [operand(value).text for value in node.args[1]]
        return Text(call(f"{receiver}.{name}", positional[1:], keywords))
    name = _CALLED.get(name, name)
    if hasattr(torch.nn.functional, name) and name not in _UNDER_TORCH:
        return Text(call(f"F.{name}", positional, keywords))
    for module, prefix in ((torch, "torch"), (torch.linalg, "torch.linalg"), (torch.special, "torch.special")):
        short = name.removeprefix(prefix.split(".")[-1] + "_")
        if hasattr(module, short):
            return Text(call(f"{prefix}.{short}", positional, keywords))
    if hasattr(torch.Tensor, name):
        return Text(call(f"{operand(node.args[0]).within(ATOM)}.{name}", positional[1:], keywords))
    return Text(call(f"torch.ops.{node.target}", positional, keywords))


_IGNORED = ("cudnn_enable", "cudnn_enabled", "pin_memory", "layout", "non_blocking", "implicit")


def _equal(value: Any, default: Any) -> bool:
    """Whether an argument says what its default does: `[1, 1]` where that is 1."""
    if isinstance(value, list | tuple) and type(default) is int:
        return bool(value) and all(type(v) is int and v == default for v in value)
    if isinstance(value, list | tuple) and isinstance(default, list):
        return list(value) == default or (len(default) == 1 and all(v == default[0] for v in value) and bool(value))
    return type(value) is type(default) and bool(value == default)


def _is_tensor(value: Any) -> bool:
    return hasattr(value, "op") and hasattr(value.meta.get("val"), "shape")


def written(value: Any, operand: Operand, count: int | None = None) -> str:
    """An argument: a node, a constant, or several of them. `count`: how many equal ones may be written as one."""
    if isinstance(value, list | tuple):
        if all(type(v) in (int, float, bool) for v in value):
            return shown(tuple(value)) if len(value) == count else literal(tuple(value))
        texts = [operand(v).text for v in value]
        return f"({texts[0]},)" if len(texts) == 1 else f"({', '.join(texts)})"
    return operand(value).text


@dataclass(frozen=True)
class Spelled:
    """An argument that is written otherwise than as the constant that it is in a trace."""

    text: str


def constant(value: Any) -> str:
    """A constant of a graph as Python."""
    import torch

    if isinstance(value, Spelled):
        return value.text
    if isinstance(value, torch.dtype | torch.memory_format):
        return str(value)
    return literal(value)


def merged(nodes: Sequence[Any], operand: Operand) -> Text:
    """Selections and slices, one of the other's result, the innermost first, as one index: `x[:, 0, ::2]`."""
    base = nodes[0].args[0]
    entries = [":"] * len(base.meta["val"].shape)
    places = list(range(len(entries)))
    """Which entry every dimension of the result belongs to."""
    for node in nodes:
        name, rank = plain_name(node), len(places)
        dim = argument(node, 1, "dim", 0)
        if name == "unsqueeze":
            dim += rank + 1 if dim < 0 else 0
            at = places[dim] if dim < rank else len(entries)
            entries.insert(at, "None")
            places = [p + (p >= at) for p in places]
            places.insert(dim, at)
            continue
        dim += rank if dim < 0 else 0
        at = places[dim]
        if name == "select":
            entries[at] = operand(argument(node, 2, "index")).text
            del places[dim]
            continue
        start, end = argument(node, 2, "start"), argument(node, 3, "end")
        step = argument(node, 4, "step", 1)
        first = "" if start in (None, 0) else operand(start).text
        last = "" if end is None or (isinstance(end, int) and end >= _EVERYTHING) else operand(end).text
        entries[at] = f"{first}:{last}" + (f":{operand(step).text}" if step != 1 else "")
    while len(entries) > 1 and entries[-1] == ":":
        entries.pop()
    receiver = operand(base)
    return receiver if entries in ([], [":"]) else Text(f"{receiver.within(ATOM)}[{', '.join(entries)}]")


def indexable(nodes: Sequence[Any]) -> bool:
    """Whether selections and slices can stand in one index, which Python applies from left to right."""
    places = list(range(len(nodes[0].args[0].meta["val"].shape)))
    last = -1
    for node in nodes:
        name, dim = plain_name(node), argument(node, 1, "dim", 0)
        if name == "unsqueeze":
            dim += len(places) + 1 if dim < 0 else 0
            at = places[dim] if dim < len(places) else (places[-1] + 1 if places else last + 1)
            places = [p + (p >= at) for p in places]
            places.insert(dim, at)
        else:
            dim += len(places) if dim < 0 else 0
            at = places[dim]
            if name == "select":
                del places[dim]
        if at <= last:
            return False
        last = at
    return True


def is_whole(node: Any) -> bool:
    """Whether a slice leaves nothing out."""
    if str(node.target) != "aten.slice.Tensor":
        return False
    end, step = argument(node, 3, "end"), argument(node, 4, "step", 1)
    everything = end is None or (isinstance(end, int) and end >= _EVERYTHING)
    return argument(node, 2, "start") in (None, 0) and everything and step == 1


def _batch_norm(node: Any, operand: Operand) -> Text:
    x, weight, bias, mean, variance, training, _, eps = node.args[:8]
    statistics = ["None", "None"] if training or mean is None else [operand(mean).text, operand(variance).text]
    keywords = {key: operand(value).text for key, value in (("weight", weight), ("bias", bias)) if value is not None}
    keywords |= {"training": "True"} if training or mean is None else {}
    keywords |= {"eps": literal(eps)} if eps != 1e-5 else {}
    return Text(call("F.batch_norm", [operand(x).text, *statistics], keywords))


def _instance_norm(node: Any, operand: Operand) -> Text:
    x, weight, bias, mean, variance, training, _, eps = node.args[:8]
    pairs = [("weight", weight), ("bias", bias)]
    pairs += [] if training else [("running_mean", mean), ("running_var", variance)]
    keywords = {key: operand(value).text for key, value in pairs if value is not None}
    keywords |= {} if training else {"use_input_stats": "False"}
    keywords |= {"eps": literal(eps)} if eps != 1e-5 else {}
    return Text(call("F.instance_norm", [operand(x).text], keywords))


def _layer_norm(node: Any, operand: Operand) -> Text:
    """Over `weight.shape`, so that the sizes stay free."""
    x, shape = node.args[:2]
    weight, bias = argument(node, 2, "weight"), argument(node, 3, "bias")
    rms = plain_name(node) == "rms_norm"
    over = written(shape, operand) if weight is None else f"{operand(weight).text}.shape"
    over = over if weight is not None or over.startswith("(") else f"({over},)"
    tensors = [operand(value).text for value in (weight, None if rms else bias) if value is not None]
    eps = argument(node, 3 if rms else 4, "eps", None if rms else 1e-5)
    keywords = {} if eps in (None, 1e-5) else {"eps": literal(eps)}
    if bias is not None and weight is None and not rms:
        keywords = {"bias": operand(bias).text, **keywords}
        tensors = []
    name = "F.rms_norm" if rms else "F.layer_norm"
    return Text(call(name, [operand(x).text, over, *tensors], keywords))


def _rsub(node: Any, operand: Operand) -> Text:
    if argument(node, 2, "alpha", 1) != 1:
        return _call(node, "rsub", operand)
    return _infix("-", SUM, operand(node.args[1]), operand(node.args[0]))


def _prefix(sign: str) -> Callable[[Any, Operand], Text]:
    def make(node: Any, operand: Operand) -> Text:
        return Text(f"{sign}{operand(node.args[0]).within(ATOM)}", PRODUCT)

    return make


def _pow(node: Any, operand: Operand) -> Text:
    base, exponent = operand(node.args[0]), operand(node.args[1])
    return Text(f"{base.within(ATOM)} ** {exponent.within(ATOM)}", PRODUCT)


def _to(node: Any, operand: Operand) -> Text:
    import torch

    given = (*node.args[1:], node.kwargs.get("dtype"))
    dtype = next((a for a in given if isinstance(a, torch.dtype | Spelled)), None)
    receiver = operand(node.args[0])
    return receiver if dtype is None else Text(f"{receiver.within(ATOM)}.to({constant(dtype)})")


def indexed(node: Any, operand: Operand) -> Text:
    """`x[:, places]`, of `index` and `index_put`."""
    entries = [":" if entry is None else operand(entry).text for entry in node.args[1]]
    return Text(f"{operand(node.args[0]).within(ATOM)}[{', '.join(entries)}]")


def _embedding(node: Any, operand: Operand) -> Text:
    """The operation has the table first."""
    return Text(call("F.embedding", [operand(node.args[1]).text, operand(node.args[0]).text], {}))


def _flattened(node: Any, operand: Operand) -> Text:
    """`view` and `reshape`: one size that is no single one of the inputs is what is left, -1."""
    if not isinstance(node.args[1], list | tuple):  # the same bits as another dtype
        return Text(f"{operand(node.args[0]).within(ATOM)}.view({constant(node.args[1])})")
    sizes = list(node.args[1])
    computed = [i for i, size in enumerate(sizes) if hasattr(size, "op") and not is_size(size)]
    texts = ["-1" if computed[:1] == [i] and -1 not in sizes else operand(size).text for i, size in enumerate(sizes)]
    return Text(call(f"{operand(node.args[0]).within(ATOM)}.{plain_name(node)}", texts, {}))


def is_size(node: Any) -> bool:
    """Whether a node is the size of a tensor."""
    return str(node.target).startswith("aten.sym_size")


def _size(node: Any, operand: Operand) -> Text:
    return Text(f"{operand(node.args[0]).within(ATOM)}.shape[{node.args[1]}]")


def _recurrent(node: Any, operand: Operand) -> Text:
    """`torch.lstm` and its kin take everything by place."""
    return Text(call(f"torch.{plain_name(node)}", [written(value, operand) for value in node.args], {}))


def _made(node: Any, operand: Operand) -> Text:
    """`torch.arange`, `torch.zeros`: on the device of the inputs, with their dtype."""
    values = [written(value, operand) for value in node.args]
    keywords = {k: operand(v).text for k, v in node.kwargs.items() if k in ("dtype", "device") and v is not None}
    return Text(call(f"torch.{plain_name(node)}", values, keywords))


def _broadcast(node: Any, operand: Operand) -> Text:
    return Text(call("torch.broadcast_tensors", [operand(v).text for v in node.args[0]], {}))


def _einsum(node: Any, operand: Operand) -> Text:
    return Text(call("torch.einsum", [repr(node.args[0]), *(operand(v).text for v in node.args[1])], {}))


_SPECIAL: dict[str, Callable[[Any, Operand], Text]] = {
    "batch_norm": _batch_norm, "instance_norm": _instance_norm, "layer_norm": _layer_norm, "rms_norm": _layer_norm,
    "rsub": _rsub, "neg": _prefix("-"), "bitwise_not": _prefix("~"), "pow": _pow, "to": _to, "_to_copy": _to,
    "index": indexed, "embedding": _embedding, "view": _flattened, "reshape": _flattened, "sym_size": _size,
    "einsum": _einsum, "broadcast_tensors": _broadcast,
    **dict.fromkeys(RECURRENT, _recurrent),
    **dict.fromkeys(("arange", "zeros", "ones", "full", "eye", "linspace", "randn", "rand", "randint"), _made),
}  # fmt: skip


def target_noun(node: Any) -> str:
    """A name for a result that has none in the source."""
    if "getitem" in str(node.target):
        several, at = node.args
        schema = getattr(several.target, "_schema", None)
        named = schema.returns[at].name if schema is not None and at < len(schema.returns) else None
        return named or f"{target_noun(several)}_{at}"
    return re.sub(r"\d?d?$", "", plain_name(node)).strip("_") or "value"
