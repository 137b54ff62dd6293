"""Operations that are calls of torch's: dense convolutions, attention, and products of matrices that no family takes.

Torch's are better than what a template would make. A call is a node `call` of the graph, whose operands lie in memory;
what is around it is lowered as ever. Of products `products.py` makes nodes of their own.
"""

from __future__ import annotations

import types
from typing import Any

from kernelgen.frontend.build import Builder
from kernelgen.frontend.convolutions import CONVOLUTIONS, convolution
from kernelgen.frontend.export import kind
from kernelgen.frontend.graph import CALL, Arg, Node, Ref, SizeOf, seen_through
from kernelgen.frontend.operations import RECURRENT
from kernelgen.frontend.products import GROUPED, equation
from kernelgen.frontend.rule import Call, Refused, Result

_FUNCTIONAL = "torch.nn.functional"
_CONVOLUTIONS = [f"conv{kind}{d}d" for kind in ("", "_transpose") for d in (1, 2, 3)]
_KINDS = ("default", "padding", "input")
FUNCTIONS: dict[str, tuple[str, str]] = {
    "aten.linear.default": (f"{_FUNCTIONAL}.linear", "projected"),
    **{f"aten.{name}.default": (f"torch.{name}", "product") for name in ("matmul", "mm", "bmm", "addmm", "baddbmm")},
    **{f"aten.{name}.{kind}": (f"{_FUNCTIONAL}.{name}", "convolved") for name in _CONVOLUTIONS for kind in _KINDS},
    **{f"kernelgen_reference.{name}.default": (f"torch.{name}", "hidden") for name in RECURRENT},
    "aten.einsum.default": ("torch.einsum", "product"),
    "aten._grouped_mm.default": (GROUPED, "product"),
    "aten.scaled_dot_product_attention.default": (f"{_FUNCTIONAL}.scaled_dot_product_attention", "attended"),
}  # fmt: skip
"""What a person calls the operation, and a noun for its result where the reference has no name for it."""


WHOLE = ("aten.bucketize.Tensor", "aten.searchsorted.Tensor")
"""What stays whole although torch decomposes it: into as many steps as a search takes at the sizes that are traced."""


def any_call(b: Builder, node: Any, call: Call) -> Result:
    """An operation without a rule that torch does not decompose, as a call of torch's. Raises Refused as `torch_call`
    does, and for one that draws, that depends on values or that reads no tensor."""
    import torch  # a second, which whoever only looks at plans does not wait for

    op, _, overload = str(node.target).removeprefix("aten.").partition(".")
    unknown = (torch.Tag.nondeterministic_seeded, torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape)
    if any(tag in node.target.tags for tag in unknown) or not node.all_input_nodes:
        raise Refused(f"{op}.{overload}")
    text, operands = _written(b, node, call, _public(op))
    return _parts(b, node, call, operands, text, op.strip("_"))


def _public(op: str) -> str:
    """What a person calls an ATen operation: `torch.addmv`, or `torch.linalg.matrix_exp` for linalg_matrix_exp."""
    import torch

    module, _, name = op.partition("_")
    inner = getattr(torch, module, None) if module in ("linalg", "fft", "special") else None
    if isinstance(getattr(inner, name, None), types.BuiltinFunctionType):
        return f"torch.{module}.{name}"
    return f"torch.{op}" if isinstance(getattr(torch, op, None), types.BuiltinFunctionType) else f"torch.ops.aten.{op}"


def torch_call(b: Builder, node: Any, call: Call) -> Result:
    """The call as a node; raises Refused for one whose arguments are not tensors in memory and constants."""
    import torch

    function, noun = FUNCTIONS[str(node.target)]
    if call.dtype != "float":
        raise Refused(f"{function} of integers")
    if function == "torch.einsum" and "..." in call.args[0]:
        raise Refused("torch.einsum with an ellipsis in its equation")
    tensors_read = [found for source in node.all_input_nodes if isinstance(found := source.meta["val"], torch.Tensor)]
    dtypes = {str(found.dtype).removeprefix("torch.") for found in tensors_read} - {"bool"}
    dtypes -= {"int32"} if function == GROUPED else set()  # where groups end
    if len(dtypes) > 1:  # torch takes them of tensors without memory alone
        raise Refused(f"{function} of operands of different dtypes (cast them to one)")
    if any("float8" in dtype for dtype in dtypes):
        raise Refused(f"{function} of {dtypes.pop()} (cast the operands)")
    text, operands = _written(b, node, call, function)
    if call.shapes:
        return _parts(b, node, call, operands, text, noun)
    shapes = [b.node(ref).shape for ref in operands if isinstance(ref, Ref)]
    by_itself = len(operands) > 1 and operands[0] == operands[1]  # which no kernel of windows reads twice
    convolves = function in CONVOLUTIONS and not by_itself
    windows = convolution(function, call, shapes, whole=b.whole) if convolves else None
    attrs = (call.torch_dtype, text, noun)
    return b.torch_call(operands, call.shape, attrs, equation(text, shapes), convolution=windows)


def _written(b: Builder, node: Any, call: Call, function: str) -> tuple[str, tuple[Arg, ...]]:
    """A call as text with a place for every operand, and the operands."""
    operands: list[Arg] = []
    words: list[str] = []
    positional = True

    def tensor(ref: Ref) -> str:
        operands.append(ref)
        return f"{{{len(operands) - 1}}}"

    for i, parameter in enumerate(node.target._schema.arguments):
        default = parameter.default_value if parameter.has_default_value() else None
        value = call.get(i, parameter.name, default)
        if value is None or (parameter.has_default_value() and value == default and not isinstance(value, Ref)):
            positional = False
            continue
        positional = positional and not parameter.kwarg_only
        if parameter.name == "dropout_p":
            raise Refused("attention with dropout")
        if isinstance(value, SizeOf) and (place := b.place_of(value.dim, operands)):
            words.append(f"{parameter.name}={place}")
            positional = False
            continue
        tensors = value if isinstance(value, list) and any(isinstance(v, Ref) for v in value) else [value]
        if all(isinstance(v, Ref) for v in tensors):
            word = ", ".join(map(tensor, tensors))
            word = f"({word})" if isinstance(value, list) and not function.endswith("einsum") else word
        else:
            word, positional = _constant(value, parameter.name), positional and not parameter.has_default_value()
        words.append(word if positional else f"{parameter.name}={word}")
    return f"{function}({', '.join(words)})", tuple(operands)


def _parts(b: Builder, node: Any, call: Call, operands: tuple[Arg, ...], text: str, noun: str) -> Result:
    """The result of a call; of one that returns several one call for each that is read."""
    if not call.shapes:
        return b.torch_call(operands, call.shape, (call.torch_dtype, text, noun), kind=call.dtype)
    read = {user.args[1] for user in node.users if "getitem" in str(user.target)}
    dtypes = [result.dtype for result in node.meta["val"]]
    made = {
        i: b.torch_call(
            operands, shape, (str(dtypes[i]).removeprefix("torch."), f"{text}[{i}]", noun), kind=kind(dtypes[i])
        )
        for i, shape in enumerate(call.shapes) if i in read
    }  # fmt: skip
    return tuple(made.get(i, next(iter(made.values()))) for i in range(len(call.shapes)))


def _constant(value: Any, name: str) -> str:
    """A constant as a person writes it: one number for a list of equal ones."""
    if isinstance(value, list) and value and all(type(v) is int for v in value):
        return str(value[0]) if len(set(value)) == 1 else str(tuple(value))
    if type(value) not in (int, float, bool, str):
        raise Refused(f"{name}, which is neither a tensor nor a constant")
    return f'"{value}"' if isinstance(value, str) else repr(value)


def in_memory(b: Builder, node: Any, values: dict[Any, Any]) -> None:
    """Have what a call reads rounded to the dtype it is stored in, once: what else reads it reads the same."""
    for source in node.all_input_nodes:
        ref = values.get(source)
        if not isinstance(ref, Ref) or is_stored(b.nodes, ref):
            continue
        dtype = str(source.meta["val"].dtype).removeprefix("torch.")
        made = b.node(ref)
        if made.dtype == "float" and not (made.op == "round" and made.attrs[0] == dtype):
            now, b.statement = b.statement, made.statement
            values[source] = b.round(ref, dtype)
            b.statement = now


def is_stored(nodes: list[Node], ref: Ref) -> bool:
    """Whether a value is an input, the result of a call, or a view of one."""
    return nodes[seen_through(nodes, ref.node)].op in ("input", CALL)
