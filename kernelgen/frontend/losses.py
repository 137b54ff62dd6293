"""Losses, written out with the names a reader expects; formulas as in ATen's Loss.cpp and LossNLL.cpp."""

from __future__ import annotations

import math
from collections.abc import Callable

from kernelgen.frontend.build import Builder
from kernelgen.frontend.graph import Ref, broadcast
from kernelgen.frontend.reductions import as_float, dims_of, finish, mean_of
from kernelgen.frontend.rule import Call, Refused, Result, Rule

_NONE, _MEAN = 0, 1
"""torch's enumeration of reductions; what is neither is a sum."""


def _reduced(b: Builder, c: Call, loss: Ref, position: int) -> Ref:
    """The loss of every element, or their mean or sum."""
    how = c.get(position, "reduction", _MEAN)
    dims = dims_of(b, loss, None)
    if how == _NONE:
        return loss
    return finish(b, c, mean_of(b, loss, dims) if how == _MEAN else b.reduce("sum", loss, dims))


def _of_pair(element: Callable[[Builder, Call, Ref, Ref], Ref], position: int) -> Rule:
    """A loss of predictions and targets, element by element; `position` is that of the argument `reduction`."""

    def rule(b: Builder, c: Call) -> Ref:
        return _reduced(b, c, element(b, c, as_float(b, c.args[0]), as_float(b, c.args[1])), position)

    return rule


def _squared(b: Builder, c: Call, x: Ref, target: Ref) -> Ref:
    difference = b.map("sub", x, target, name="difference")
    return b.map("mul", difference, difference)


def _distance(b: Builder, x: Ref, target: Ref) -> Ref:
    return b.map("abs", b.map("sub", x, target), name="distance", attrs=("piecewise",))


def _absolute(b: Builder, c: Call, x: Ref, target: Ref) -> Ref:
    return b.map("abs", b.map("sub", x, target))


def _smooth(b: Builder, c: Call, x: Ref, target: Ref) -> Ref:
    beta = float(c.get(3, "beta", 1.0))
    if beta == 0:
        return _absolute(b, c, x, target)
    distance = _distance(b, x, target)
    square = b.map("mul", distance if beta == 0.5 else b.map("mul", 0.5 / beta, distance), distance)
    return b.map("where", b.map("lt", distance, beta), square, b.map("sub", distance, 0.5 * beta), attrs=("piecewise",))


def _huber(b: Builder, c: Call, x: Ref, target: Ref) -> Ref:
    distance, delta = _distance(b, x, target), float(c.get(3, "delta", 1.0))
    square = b.map("mul", b.map("mul", 0.5, distance), distance)
    line = b.map("sub", distance, 0.5 * delta)
    line = line if delta == 1 else b.map("mul", delta, line)
    return b.map("where", b.map("le", distance, delta), square, line, attrs=("piecewise",))


def _with_logits(b: Builder, c: Call, x: Ref, target: Ref) -> Ref:
    surprise = b.map("softplus", b.map("neg", x))  # -log(sigmoid(x))
    weight, positive = c.get(2, "weight"), c.get(3, "pos_weight")
    if positive is not None:
        log_weight = b.map("add", b.map("mul", b.map("sub", positive, 1.0), target), 1.0)
        surprise = b.map("mul", log_weight, surprise)
    loss = b.map("add", b.map("mul", b.map("sub", 1.0, target), x), surprise)
    if positive is None:
        b.shortcut(loss, "bce_with_logits", x, target)
    return loss if weight is None else b.map("mul", loss, weight)


def _divergence(b: Builder, c: Call, x: Ref, target: Ref) -> Ref:
    if c.kwargs.get("log_target"):
        return b.map("mul", b.map("exp", target), b.map("sub", target, x))
    entropy = b.map(
        "where", b.map("eq", target, 0.0), 0.0, b.map("mul", target, b.map("log", target)), attrs=("piecewise",)
    )
    b.shortcut(entropy, "entropy", target)
    return b.map("sub", entropy, b.map("mul", target, x))


def _soft_margin(b: Builder, c: Call, x: Ref, target: Ref) -> Ref:
    return b.map("log1p", b.map("exp", b.map("neg", b.map("mul", target, x))))


def _triplet(b: Builder, c: Call) -> Ref:
    anchor, near, far = (as_float(b, x) for x in c.args[:3])
    if float(c.get(4, "p", 2)) != 2 or c.get(6, "swap", False):
        raise Refused("triplet_margin_loss with swap or another p than 2")
    eps, distances = float(c.get(5, "eps", 1e-6)), []
    for other, name in ((near, "positive_distance"), (far, "negative_distance")):
        difference = b.map("add", b.map("sub", anchor, other), eps)
        total = b.reduce("sum", b.map("mul", difference, difference), (-1,))
        distances.append(b.map("sqrt", total, name=name))
    margin = b.map("add", b.map("sub", *distances), float(c.get(3, "margin", 1.0)))
    loss = b.map("maximum", margin, 0.0)
    return _reduced(b, c, b.view("reshape", loss, b.node(loss).shape[:-1]), 7)


def _poisson(b: Builder, c: Call, x: Ref, target: Ref) -> Ref:
    log_input, full, eps = c.get(2, "log_input"), c.get(3, "full"), float(c.get(4, "eps"))
    if log_input:
        loss = b.map("sub", b.map("exp", x), b.map("mul", target, x))
    else:
        loss = b.map("sub", x, b.map("mul", target, b.map("log", b.map("add", x, eps))))
    if not full:
        return loss
    log_root = b.map("mul", 0.5, b.map("log", b.map("mul", 2 * math.pi, target)))
    stirling = b.map("add", b.map("sub", b.map("mul", target, b.map("log", target)), target), log_root)
    return b.map("add", loss, b.map("where", b.map("le", target, 1.0), 0.0, stirling))


def _hinge(b: Builder, c: Call, x: Ref, target: Ref) -> Ref:
    short = b.map("maximum", b.map("sub", float(c.get(2, "margin", 1.0)), x), 0.0)
    apart = b.map("where", b.map("ne", target, 1.0), short, 0.0)
    return b.map("add", apart, b.map("where", b.map("ne", target, -1.0), x, 0.0))


def _ranking(b: Builder, c: Call) -> Ref:
    one, other, target = (as_float(b, x) for x in c.args[:3])
    behind = b.map("mul", b.map("neg", target), b.map("sub", one, other))
    return _reduced(b, c, b.map("maximum", b.map("add", behind, float(c.get(3, "margin", 0.0))), 0.0), 4)


_COSINE_EPS = 1e-12
"""What ATen's cosine_embedding_loss adds to the squares of both norms."""


def _cosine_embedding(b: Builder, c: Call) -> Ref:
    one, other, target = (as_float(b, x) for x in c.args[:3])

    def dot(x: Ref, y: Ref) -> Ref:
        return b.reduce("sum", b.map("mul", x, y), (-1,))

    squares = [b.map("add", dot(x, x), _COSINE_EPS) for x in (one, other)]
    cosine = b.map("div", dot(one, other), b.map("sqrt", b.map("mul", *squares)), name="cosine")
    cosine = b.view("reshape", cosine, b.node(cosine).shape[:-1])
    near = b.map("where", b.map("eq", target, 1.0), b.map("sub", 1.0, cosine), 0.0)
    beyond = b.map("maximum", b.map("sub", cosine, float(c.get(3, "margin", 0.0))), 0.0)
    far = b.map("where", b.map("eq", target, -1.0), beyond, 0.0)
    return _reduced(b, c, b.map("add", near, far), 4)


# class indices


def _classes(b: Builder, x: Ref) -> int:
    """The dimension of the classes, counted from the end."""
    return 1 - b.rank(x) if b.rank(x) > 1 else -1


def _indices(b: Builder, x: Ref, target: Ref) -> Ref:
    """The target's class indices, with a dimension of size one where x has its classes."""
    if b.node(target).dtype == "float":
        raise Refused("a loss with class probabilities (supported: class indices)")
    b.note("an out-of-range class index, for which torch raises, gives a wrong loss here unless it is ignore_index")
    shape = list(b.node(target).shape)
    shape.insert(len(shape) + 1 + _classes(b, x), ())
    return b.view("reshape", target, tuple(shape))


def _picked(b: Builder, x: Ref, target: Ref, name: str, of: Ref | None = None) -> Ref:
    """x, or what `of` has for every class, at the target's class: the sum over the row of what stands there and zeros
    elsewhere."""
    dim = _classes(b, x)
    is_target = b.map("eq", b.iota(x, dim), target)
    return b.reduce("sum", b.map("where", is_target, x if of is None else of, 0.0), (dim,), name)


def _weights(b: Builder, x: Ref, weight: Ref | None) -> Ref | None:
    """The weight of every class where x has its classes."""
    if weight is None:
        return None
    after = -1 - _classes(b, x)
    return b.view("reshape", as_float(b, weight), (*b.node(weight).shape, *((),) * after))


def _over_rows(b: Builder, c: Call, loss: Ref, target: Ref, ignored: int, weight: Ref | None) -> Ref:
    """Rows whose class is ignored count as zero, and not among those that a mean is taken of, in which each counts as
    much as the weight of its class."""
    is_ignored = b.map("eq", target, ignored)
    loss = b.map("where", is_ignored, 0.0, loss)
    how, dims = c.get(3, "reduction", _MEAN), dims_of(b, loss, None)
    if how == _NONE:  # torch's shape on tensors without memory is not that of the target
        return b.view("reshape", loss, b.node(c.args[1]).shape)
    b.rename(loss, "row_losses")
    total = b.reduce("sum", loss, dims, "loss_sum")
    if how == _MEAN:
        counted = b.convert(b.map("ne", target, ignored), "float")
        counted = counted if weight is None else b.map("where", is_ignored, 0.0, weight)
        b.rename(counted, "row_counts")
        total = b.map("div", total, b.reduce("sum", counted, dims, "count"))
    return finish(b, c, total)


def nll_loss(b: Builder, c: Call) -> Ref:
    x = as_float(b, c.args[0])
    target, weights = _indices(b, x, c.args[1]), _weights(b, x, c.get(2, "weight"))
    loss, weight = b.map("neg", _picked(b, x, target, "target_log_probability")), None
    if weights is not None:
        weight = _picked(b, x, target, "target_weight", weights)
        loss = b.map("mul", weight, loss)
    return _over_rows(b, c, loss, target, int(c.get(4, "ignore_index", -100)), weight)


def cross_entropy(b: Builder, c: Call) -> Ref:
    x = as_float(b, c.args[0])
    target, weights, weight = _indices(b, x, c.args[1]), _weights(b, x, c.get(2, "weight")), None
    dims, smoothing = (_classes(b, x),), float(c.get(5, "label_smoothing", 0.0))
    row_max = b.hold(b.reduce("max", x, dims, "row_max"))
    numerator = b.map("exp", b.map("sub", x, row_max), name="numerator")
    log_sum = b.map("log", b.reduce("sum", numerator, dims, "denominator"), name="log_denominator")
    target_logit = _picked(b, x, target, "target_logit")
    loss = b.map("sub", log_sum, b.map("sub", target_logit, row_max), name="row_loss")
    if weights is not None:
        weight = _picked(b, x, target, "target_weight", weights)
        loss = b.map("mul", weight, loss)
    if smoothing and weights is not None:
        surprise = b.map("sub", log_sum, b.map("sub", x, row_max))
        uniform = mean_of(b, b.map("mul", weights, surprise), dims, "mean_loss")
        loss = b.map("add", b.map("mul", 1 - smoothing, loss), b.map("mul", smoothing, uniform))
    elif smoothing:
        mean_logit = mean_of(b, x, dims, "mean_logit")
        uniform = b.map("sub", log_sum, b.map("sub", mean_logit, row_max))
        loss = b.map("add", b.map("mul", 1 - smoothing, loss), b.map("mul", smoothing, uniform))
    return _over_rows(b, c, loss, target, int(c.get(4, "ignore_index", -100)), weight)


def broadcast_tensors(b: Builder, c: Call) -> Result:
    shape = broadcast(*(b.node(x).shape for x in c.args[0]))
    return tuple(b.view("expand", x, shape) for x in c.args[0])


TABLE: dict[str, Rule] = {
    "aten.mse_loss.default": _of_pair(_squared, 2),
    "aten.l1_loss.default": _of_pair(_absolute, 2),
    "aten.smooth_l1_loss.default": _of_pair(_smooth, 2),
    "aten.huber_loss.default": _of_pair(_huber, 2),
    "aten.binary_cross_entropy_with_logits.default": _of_pair(_with_logits, 4),
    "aten.kl_div.default": _of_pair(_divergence, 2),
    "aten.soft_margin_loss.default": _of_pair(_soft_margin, 2),
    "aten.triplet_margin_loss.default": _triplet,
    "aten.poisson_nll_loss.default": _of_pair(_poisson, 5),
    "aten.hinge_embedding_loss.default": _of_pair(_hinge, 3),
    "aten.margin_ranking_loss.default": _ranking,
    "aten.cosine_embedding_loss.default": _cosine_embedding,
    "aten.nll_loss_nd.default": nll_loss,
    "aten.cross_entropy_loss.default": cross_entropy,
    "kernelgen_reference.nll_loss.default": nll_loss,
    "kernelgen_reference.cross_entropy_loss.default": cross_entropy,
    "aten.broadcast_tensors.default": broadcast_tensors,
}
"""The rules of the losses, by overload."""
