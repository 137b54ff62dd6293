"""The derivative of every map operation: what each operand gets of the gradient of the result.

Formulas and what happens at ties as in PyTorch's derivatives.yaml.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from kernelgen.backward import elementary
from kernelgen.backward.elementary import Parts, Rule, Whole, of_operand, ref
from kernelgen.backward.tape import Tape
from kernelgen.frontend.build import Refused
from kernelgen.frontend.graph import Arg, Node, Ref


def _of_result(factor: Callable[[Tape, Ref], Arg]) -> Rule:
    """The gradient times a function of the result."""
    return lambda t, node, y, g: (t.times(g, factor(t, y)),)


def _mul(t: Tape, node: Node, y: Ref, g: Ref) -> Parts:
    a, b = node.args
    if a == b:
        return t.times(t.times(2.0, g), a), None
    return t.times(g, b), t.times(g, a)


def _div(t: Tape, node: Node, y: Ref, g: Ref) -> Parts:
    quotient = t.over(g, node.args[1])
    return quotient, t.minus(t.times(quotient, y)) if isinstance(node.args[1], Ref) else None


def _abs(t: Tape, node: Node, y: Ref, g: Ref) -> Parts:
    x = ref(node.args[0])
    if "piecewise" in node.attrs:  # of another function, whose pieces keep a NaN
        rest = t.map("where", t.map("lt", x, 0.0), t.minus(g), t.times(g, x))
        return (t.map("where", t.map("gt", x, 0.0), g, rest),)
    sign = t.map("where", t.map("gt", x, 0.0), 1.0, t.map("where", t.map("lt", x, 0.0), -1.0, 0.0))
    t.call(sign, "sign")  # 0 at NaN, as torch's
    return (t.times(g, sign),)


def _where(t: Tape, node: Node, y: Ref, g: Ref) -> Parts:
    condition = ref(node.args[0])
    parts = t.map("where", condition, g, 0.0), t.map("where", condition, 0.0, g)
    if "otherwise" in node.attrs:
        opposite = t.map("le", *t.node(condition).args)
        parts = t.map("where", opposite, 0.0, g), t.map("where", opposite, g, 0.0)
    if "piecewise" in node.attrs:
        t.pieces.update(parts)
    return None, *parts


def _extreme(beyond: str, short: str) -> Rule:
    """maximum and minimum. `beyond`: the comparison by which an operand is the result, `short`: by which it is not."""

    def rule(t: Tape, node: Node, y: Ref, g: Ref) -> Parts:
        a, b = node.args
        if "open" in node.attrs:  # relu, hardtanh: nothing at the bound itself
            known = a if t.node(y).op == node.op else y  # what is stored says it too, and is not computed again
            return t.map("where", t.map(f"{short[0]}e", known, b), 0.0, g), None
        if "closed" in node.attrs or not isinstance(b, Ref):  # clamp: all of it at the bound
            return t.map("where", t.map(f"{beyond[0]}e", a, b), g, 0.0), t.map("where", t.map(short, a, b), g, 0.0)
        halved = t.map("where", t.map("eq", a, b), t.times(0.5, g), g)  # two that are equal share it
        return t.map("where", t.map(short, a, b), 0.0, halved), t.map("where", t.map(beyond, a, b), 0.0, halved)

    return rule


def _sqrt(t: Tape, node: Node, y: Ref, g: Ref) -> Parts:
    return (t.over(g, t.times(2.0, y)),)


def _cube(t: Tape, y: Ref) -> Ref:
    return t.times(t.times(-0.5, y), t.times(y, y))


def _mish_slope(t: Tape, x: Ref) -> Ref:
    """Of x * h, h = tanh(softplus(x)): h + x * (1 - h * h) * sigmoid(x)."""
    h = t.map("tanh", t.map("softplus", x))
    return t.map("add", h, t.times(x, t.times(t.map("sub", 1.0, t.times(h, h)), t.map("sigmoid", x))))


def _step(t: Tape, node: Node, y: Ref, g: Ref) -> Parts:
    raise Refused(f"the gradient of {node.op}, which is zero wherever it exists")


RULES: dict[str, Rule] = {
    **elementary.RULES,
    "add": lambda t, node, y, g: (g, g),
    "sub": lambda t, node, y, g: (g, t.minus(g)),
    "mul": _mul,
    "div": _div,
    "neg": lambda t, node, y, g: (t.minus(g),),
    "abs": _abs,
    "where": _where,
    "maximum": _extreme("gt", "lt"),
    "minimum": _extreme("lt", "gt"),
    "exp": _of_result(lambda t, y: y),
    "exp2": _of_result(lambda t, y: t.times(math.log(2), y)),
    "expm1": _of_result(lambda t, y: t.map("add", y, 1.0)),
    "sigmoid": _of_result(lambda t, y: t.times(y, t.map("sub", 1.0, y))),
    "tanh": _of_result(lambda t, y: t.map("sub", 1.0, t.times(y, y))),
    "sqrt": _sqrt,
    "rsqrt": _of_result(_cube),
    "erf": of_operand(lambda t, x: t.times(2 / math.sqrt(math.pi), t.map("exp", t.minus(t.times(x, x))))),
    "sin": of_operand(lambda t, x: t.map("cos", x)),
    "cos": of_operand(lambda t, x: t.minus(t.map("sin", x))),
    "log": lambda t, node, y, g: (t.over(g, node.args[0]),),
    "log2": lambda t, node, y, g: (t.over(g, t.times(math.log(2), node.args[0])),),
    "softplus": of_operand(lambda t, x: t.map("sigmoid", x)),
    "mish": of_operand(_mish_slope),
    "log1p": lambda t, node, y, g: (t.over(g, t.map("add", node.args[0], 1.0)),),
    **dict.fromkeys(("rint", "floor", "ceil", "trunc"), _step),
}
"""By the name of the operation."""


def _log_sigmoid(t: Tape, operands: Sequence[Ref], y: Ref, g: Ref) -> Parts:
    return (t.times(g, t.map("sub", 1.0, t.map("sigmoid", operands[0]))),)


def _gelu_tanh(t: Tape, operands: Sequence[Ref], y: Ref, g: Ref) -> Parts:
    """Of x * s, s = sigmoid(2 * u): s + x * s * (1 - s) * 2 * u', u = sqrt(2 / pi) * (x + 0.044715 * x**3)."""
    (x,), scale = operands, 2 * math.sqrt(2 / math.pi)
    s = ref(t.node(y).args[1])
    steepness = t.map("add", scale, t.times(3 * 0.044715 * scale, t.times(x, x)))
    slope = t.map("add", s, t.times(t.times(x, t.times(s, t.map("sub", 1.0, s))), steepness))
    t.call(slope, "slope")
    return (t.times(g, slope),)


def _hardswish(t: Tape, operands: Sequence[Ref], y: Ref, g: Ref) -> Parts:
    """0 up to -3, a straight line to 3, then 1, and 1 at NaN."""
    (x,) = operands
    inside = t.times(g, t.map("add", t.map("div", x, 3.0), 0.5))
    return (t.map("where", t.map("le", x, -3.0), 0.0, t.map("where", t.map("lt", x, 3.0), inside, g)),)


def _bce_with_logits(t: Tape, operands: Sequence[Ref], y: Ref, g: Ref) -> Parts:
    x, target = operands
    return t.times(g, t.map("sub", t.map("sigmoid", x), target)), t.minus(t.times(g, x))


def _norm(t: Tape, operands: Sequence[Ref], y: Ref, g: Ref) -> Parts:
    """Nothing flows to zeros, where the norm has no derivative; where a bound keeps it from them, that is enough."""
    bounded = t.node(g)
    if bounded.op == "where" and bounded.args[2] == 0.0 and t.node(ref(bounded.args[0])).args[0] == y:
        ratio = t.map("where", bounded.args[0], t.over(ref(bounded.args[1]), y), 0.0)
    else:
        ratio = t.map("where", t.map("eq", y, 0.0), 0.0, t.over(g, y))
    return (t.times(ratio, operands[0]),)


def _cosine_similarity(t: Tape, operands: Sequence[Ref], y: Ref, g: Ref) -> Parts:
    """As torch has it, of the sum of the products of unit vectors: the bound of a norm lets everything through."""
    ratio, second = (ref(arg) for arg in t.node(y).args)
    dot, first = (ref(arg) for arg in t.node(ratio).args)
    dims = tuple(int(d) for d in t.node(dot).attrs)
    units = [t.over(x, bound) for x, bound in zip(operands, (first, second), strict=True)]
    for unit, name in zip(units, ("unit_1", "unit_2"), strict=True):
        t.call(unit, name)
    total = t.reduce("sum", t.times(g, t.times(*units)), dims, "grad_scale")
    parts = []
    for x, bound, other in zip(operands, (first, second), reversed(units), strict=True):
        norm = ref(t.node(bound).args[0])
        through_norm = t.map("where", t.map("eq", norm, 0.0), 0.0, t.over(t.over(total, bound), norm))
        parts.append(t.map("sub", t.over(t.times(g, other), bound), t.times(through_norm, x)))
    return tuple(parts)


def _entropy(t: Tape, operands: Sequence[Ref], y: Ref, g: Ref) -> Parts:
    """Of xlogy(x, x), as torch has it: NaN at 0."""
    (x,) = operands
    logarithm = t.map("where", t.map("eq", g, 0.0), 0.0, t.times(g, t.map("log", x)))
    return (t.map("add", logarithm, t.over(t.times(g, x), x)),)


def _special_embedding(t: Tape, operands: Sequence[Ref], y: Ref, g: Ref) -> Parts:
    raise Refused("the gradient of an embedding with padding_idx or scale_grad_by_freq")


def _clamp(t: Tape, operands: Sequence[Ref], y: Ref, g: Ref) -> Parts:
    """Between two tensors, of which the upper one is the result where they are the wrong way round
    (tools/autograd/derivatives.yaml, clamp.Tensor)."""
    x, low, high = operands
    inside = t.map("where", t.map("ge", x, low), t.map("where", t.map("le", x, high), g, 0.0), 0.0)
    below = t.map("where", t.map("lt", low, high), t.map("where", t.map("lt", x, low), g, 0.0), 0.0)
    crossed = t.map("where", t.map("lt", high, low), g, 0.0)
    return inside, below, t.map("where", t.map("gt", x, high), g, crossed)


SHORTCUTS: dict[str, Whole] = {
    **elementary.SHORTCUTS,
    "log_sigmoid": _log_sigmoid,
    "gelu_tanh": _gelu_tanh,
    "hardswish": _hardswish,
    "clamp": _clamp,
    "bce_with_logits": _bce_with_logits,
    "norm": _norm,
    "cosine_similarity": _cosine_similarity,
    "entropy": _entropy,
    "special_embedding": _special_embedding,
}
"""By the name of a composite: what its operands get, from them, the result and the gradient of the result."""
