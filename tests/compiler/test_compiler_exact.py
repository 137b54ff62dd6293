"""References with a corner each: the kernels of every variant agree with torch on small, odd and special inputs."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from references import Sample, failures, load, plan_of, sample, schedules

from kernelgen import families, render
from kernelgen.families import partials
from kernelgen.plan import TableRow
from kernelgen.spec.model import Case

X, OUT = {"x": "... D"}, {"out": "... D"}
SIZES: list[dict[str, Any]] = [{"...": (3,), "D": 37}, {"...": (), "D": 1}]
TWO = [{"A": 5, "B": 19}, {"A": 1, "B": 1}]


def named(count: int, shape: str = "... D") -> dict[str, str]:
    return {f"out{i}": shape for i in range(count)}


CORNERS: dict[str, Sample] = {
    # places that a reduction says
    "read at the place of the greatest": sample(
        "return y.gather(-1, x.argmax(-1, keepdim=True)) * 2", {"x": "A B", "y": "A B"}, {"out": "A 1"}, *TWO
    ),
    "columns read where a count says": sample(
        "c = (x > 0).long().sum(0, keepdim=True)\nreturn y.gather(0, (c - 1).clamp(min=0))",
        {"x": "A B", "y": "A B"}, {"out": "1 B"}, *TWO,
    ),
    # places of a dimension that follows another
    "first and others of a dimension": sample(
        "return a[:, 0] * 2, a[:, 0] + a[:, 2], a.narrow(1, 0, 1) - 1",
        {"a": "A 4"}, {"p": "A", "q": "A", "r": "A 1"}, {"A": 5}, {"A": 133}, {"A": 1},
    ),
    "first of a middle dimension": sample("return a[:, 0].relu()", {"a": "3 B D"}, {"p": "3 D"}, {"B": 5, "D": 19}, {"B": 1, "D": 1}),
    "first of the outer dimension": sample("return a[0] * a[1]", {"a": "3 B D"}, {"p": "B D"}, {"B": 5, "D": 19}, {"B": 1, "D": 1}),
    "first of the inner dimension": sample("return a[..., 0].exp()", {"a": "3 B D"}, {"p": "3 B"}, {"B": 5, "D": 19}, {"B": 1, "D": 1}),
    "channels of an image": sample(
        "return 0.25 * x[:, 0] + 0.5 * x[:, 1] + x[:, 2]", {"x": "B 3 H W"}, {"out": "B H W"},
        {"B": 2, "H": 5, "W": 19}, {"B": 1, "H": 1, "W": 1},
    ),
    "rows of all but one place": sample(
        "return x[:, :-1].amax(-1).sum()", {"x": "B S V"}, {"top": ""}, {"B": 3, "S": 5, "V": 37}, {"B": 1, "S": 2, "V": 1},
    ),
    "rows of two tensors": sample(
        "return torch.cat((x, y), 1).logsumexp(-1).mean()",
        {"x": "B S V", "y": "B T V"}, {"all": ""}, {"B": 3, "S": 5, "T": 2, "V": 37},
    ),
    "labels a place ahead": sample(
        "v = x.shape[-1]\nreturn F.cross_entropy(x[..., :-1, :].contiguous().view(-1, v), i[..., 1:].contiguous().view(-1))",
        {"x": "B S V", "i": "B S: int64 < V"}, {"loss": ""}, {"B": 3, "S": 5, "V": 37}, {"B": 2, "S": 2, "V": 3},
        constraints=("x.shape[1] >= 2",),
    ),
    "roots of sizes": sample(
        "return x / math.sqrt(x.shape[-1]), x * x.shape[-1] ** -0.5, x.sum(-1) * (1 / x.shape[-1])",
        X, {"a": "... D", "b": "... D", "c": "..."}, *SIZES,
    ),
    "numbers of sizes less one and of halves": sample(
        "return x / (x.shape[-1] - 1 + 0.5), x * (x.shape[-1] // 2 / 3), x.sum(-1) / (x.shape[-1] // 3 + 1.5)",
        X, {"a": "... D", "b": "... D", "c": "..."}, *SIZES,
    ),
    "powers of sizes and by sizes": sample(
        "return x * x.shape[-1] ** 0.25, x * 2.0 ** -(x.shape[-1] // 2)", X, {"a": "... D", "b": "... D"}, *SIZES,
    ),
    "einsum of no product of matrices": sample(
        "return torch.einsum('abc,ac->cab', x, w), torch.einsum('abc->b', x), torch.einsum('abc,abc->ab', x, x * 2)",
        {"x": "A B C", "w": "A C"}, {"a": "C A B", "b": "B", "c": "A B"}, {"A": 3, "B": 5, "C": 2}, {"A": 1, "B": 1, "C": 4},
    ),
    "einsum on a diagonal": sample(
        "return torch.einsum('ii->i', x), torch.einsum('ii', x)", {"x": "A A"}, {"a": "A", "b": ""}, {"A": 5}, {"A": 1},
    ),
    # NaN, infinities and extremes
    "clamps": sample("return torch.relu(x), x.clamp(-0.5, 0.5), F.relu6(x), F.hardtanh(x)", X, named(4), *SIZES),
    "functions": sample("return torch.tanh(x), torch.expm1(x), torch.log1p(x), torch.erf(x)", X, named(4), *SIZES),
    "small": sample("y = x * 1e-4\nreturn torch.tanh(y), torch.expm1(y), torch.log1p(y)", X, named(3), *SIZES),
    "huge": sample("y = x.float() * 3e37\nreturn torch.tanh(y), torch.log1p(y.abs())", X, named(2, "... D: float32"), *SIZES),
    "logsumexp": sample("return torch.logsumexp(x, -1)", X, {"out": "..."}, *SIZES),
    "exponentials of what is never negative": sample(
        "return torch.softmax(x.abs(), -1), torch.log_softmax(x * x, -1), torch.logsumexp(x.sigmoid(), -1)",
        X, {"a": "... D", "b": "... D", "c": "..."}, *SIZES,
    ),
    "own logsumexp": sample(
        "m = x.amax(-1, keepdim=True)\nreturn (m + torch.log(torch.exp(x - m).sum(-1, keepdim=True))).squeeze(-1)",
        X, {"out": "..."}, *SIZES,
    ),
    "maximum kept": sample(
        "m = x.amax(-1, keepdim=True)\ne = torch.exp(x - m)\nreturn e / e.sum(-1, keepdim=True), m.squeeze(-1)",
        X, {"out": "... D", "top": "..."}, *SIZES,
    ),
    "moments kept": sample(
        "m = x.mean(-1, keepdim=True)\nc = x - m\nreturn c * torch.rsqrt((c * c).mean(-1, keepdim=True) + 1e-5), c",
        X, named(2), *SIZES,
    ),
    "extremes of sums": sample(
        "return (x + b).amax(-1), (x + s[..., None]).amin(-1)",
        {"x": "... D", "b": "D", "s": "..."}, named(2, "..."), *SIZES,
    ),
    "quotients that decide": sample(
        "y = (x * 4).floor()\nm = y.abs().amax(-1, keepdim=True) + 1\nreturn torch.floor(y / 3), torch.floor(y / m), (y / m).int(), y / m >= 0.5",
        X, {"a": "... D", "b": "... D", "c": "... D: int32", "d": "... D: bool"}, *SIZES,
    ),
    # reductions
    "arg reductions": sample(
        "v, i = (x * 2).max(-1)\nu, j = x.min(dim=-1, keepdim=True)\nreturn v, i, x - u, (x + b).argmax(-1) + b.argmax(-1)",
        {"x": "... D", "b": "D"}, {"v": "...", "i": "...: int64", "c": "... D", "j": "...: int64"}, *SIZES,
    ),
    "selections": sample(
        "v, i = torch.topk(x * 2 + b, 5)\nreturn v.float(), i.int()",
        {"x": "... 37", "b": "37"}, {"v": "... 5: float32", "i": "... 5: int32"}, {"...": (3,)}, {"...": ()},
    ),
    "selections of probabilities": sample(
        "return torch.softmax(x, -1).topk(3).indices", {"x": "A 37"}, {"i": "A 3: int64"}, {"A": 5}, {"A": 1},
    ),
    "selections of columns": sample(
        "v, i = x.T.topk(8)\nreturn i, v", {"x": "8 A"}, {"i": "A 8: int64", "v": "A 8"}, {"A": 5}, {"A": 1},
    ),
    "selected in any order": sample(
        "v, i = (x * 2).topk(4, sorted=False)\nreturn v, i", {"x": "A 37"}, {"v": "A 4", "i": "A 4: int64"}, {"A": 5}, {"A": 1},
    ),
    "values selected in any order": sample("return x.topk(4, sorted=False).values.exp()", {"x": "A 400"}, {"v": "A 4"}, {"A": 5}),
    "one selected": sample("return x.topk(1).values", {"x": "A 37"}, {"v": "A 1"}, {"A": 5}, {"A": 1}),
    "bins": sample("return torch.bincount(x, minlength=7)", {"x": "A: int32 < 7"}, {"out": "7: int64"}, *TWO, dtypes=()),
    "many bins": sample(
        "return torch.bincount(x, minlength=3000)", {"x": "A: int64 < 3000"}, {"out": "3000: int64"}, {"A": 50}, dtypes=(),
    ),
    "rows added": sample(
        "return x.index_add(0, i, y)", {"x": "A 3 B", "i": "C: int32 < A", "y": "C 3 B"}, {"out": "A 3 B"},
        {"A": 5, "B": 19, "C": 12}, {"A": 1, "B": 1, "C": 2},
    ),
    "rows added to zeros": sample(
        "return torch.zeros_like(x).index_add(0, i, y)",
        {"x": "N B: int64", "i": "C: int64 < N", "y": "C B: int64"}, {"out": "N B: int64"}, {"N": 5, "B": 7, "C": 40}, dtypes=(),
    ),
    "elements added": sample(
        "return x.index_add(0, i, y)", {"x": "A: float32", "i": "C: int64 < A", "y": "C: float32"}, {"out": "A: float32"},
        {"A": 5, "C": 40}, {"A": 1, "C": 1}, dtypes=(),
    ),
    "elements of columns added": sample(
        "return torch.scatter_add(x, 0, i, y)",
        {"x": "A B 3: float32", "i": "C B 3: int64 < A", "y": "C B 3: float32"}, {"out": "A B 3: float32"},
        {"A": 5, "B": 4, "C": 40}, {"A": 1, "B": 1, "C": 1}, dtypes=(),
    ),
    "elements of rows added to zeros": sample(
        "return torch.zeros_like(x).scatter_add(-1, i, y)",
        {"x": "... A: int32", "i": "... C: int64 < A", "y": "... C: int32"}, {"out": "... A: int32"},
        {"...": (2, 3), "A": 5, "C": 40}, {"...": (), "A": 1, "C": 3}, dtypes=(),
    ),
    "rows added in any order": sample(
        "return torch.zeros_like(x).index_add(0, i, y)",
        {"x": "A 3 B", "i": "C: int32 < A", "y": "C 3 B"}, {"out": "A 3 B"},
        {"A": 5, "B": 19, "C": 40}, {"A": 1, "B": 1, "C": 2}, deterministic=False,
    ),
    "elements of columns added in any order": sample(
        "return x.scatter_add(0, i, y)", {"x": "A B", "i": "C B: int64 < A", "y": "C B"}, {"out": "A B"},
        {"A": 5, "B": 19, "C": 40}, {"A": 1, "B": 1, "C": 2}, deterministic=False,
    ),
    "elements added in any order": sample(
        "return x.index_add(0, i, y)", {"x": "A", "i": "C: int64 < A", "y": "C"}, {"out": "A"},
        {"A": 5, "C": 100}, {"A": 1, "C": 1}, deterministic=False,
    ),
    "counts": sample(
        "return (x > 1).any(-1), x.all(-1), x.count_nonzero(-1), x.nansum(-1)",
        X, {"a": "...: bool", "b": "...: bool", "c": "...: int64", "d": "..."}, *SIZES,
    ),
    "products": sample("return (x.abs() * 1.1).prod(-1), (x + 1).prod(-1)", X, named(2, "..."), *SIZES),
    "integers reduced": sample(
        "v, i = x.max(-1)\nreturn v, i, x.prod(-1), x.any(-1), x.argmin(-1), x.all(-1)", {"x": "A B: int8"},
        {"v": "A: int8", "i": "A: int64", "p": "A: int64", "n": "A: bool", "m": "A: int64", "l": "A: bool"}, *TWO, dtypes=(),
    ),
    "angles": sample(
        "return F.cosine_similarity(x, y, dim=-1), torch.linalg.norm(x, dim=-1), F.normalize(x, dim=-1)",
        {"x": "... D", "y": "... D"}, {"a": "...", "n": "...", "out": "... D"}, *SIZES,
    ),
    "leading dimension": sample(
        "return x.argmax(0), x.var(0), torch.softmax(x, 0), x - x.amax(0, keepdim=True) * w + s[:, None]",
        {"x": "A B", "w": "B", "s": "A"}, {"i": "B: int64", "v": "B", "out": "A B", "d": "A B"}, *TWO,
    ),
    "channels": sample(
        "n = x * torch.rsqrt(x.square().mean(1, keepdim=True) + 1e-5)\nreturn n * w[:, None, None]",
        {"x": "A B C D", "w": "B"}, {"out": "A B C D"}, {"A": 2, "B": 5, "C": 3, "D": 7}, {"A": 3, "B": 17, "C": 4, "D": 6},
    ),
    "two leading dimensions": sample(
        "return x.sum((0, 1)), x.logsumexp((0, 1))", {"x": "A B C"}, {"s": "C", "l": "C"}, {"A": 3, "B": 7, "C": 20},
    ),
    "all but channels": sample(
        "n = F.batch_norm(x, None, None, training=True)\nreturn n * w[:, None, None], x.amax((0, 2, 3)) * w + x.sum((0, 2, 3))",
        {"x": "A B C D", "w": "B"}, {"out": "A B C D", "g": "B"},
        {"A": 2, "B": 5, "C": 3, "D": 7}, {"A": 3, "B": 4, "C": 1, "D": 6},
    ),
    "groups of channels": sample(
        "return F.group_norm(x, 4) * w[:, None] + b[:, None]",
        {"x": "A 4*B C", "w": "4*B", "b": "4*B"}, {"out": "A 4*B C"}, {"A": 2, "B": 3, "C": 10},
    ),
    "every channel of an image": sample(
        "return F.instance_norm(x), (x - x.mean((2, 3), keepdim=True)).abs().amax((2, 3))",
        {"x": "A B C D"}, {"out": "A B C D", "g": "A B"}, {"A": 2, "B": 3, "C": 5, "D": 7},
    ),
    "everything": sample(
        "return x.sum(), (x * y).mean(), x.amax(), x - x.logsumexp((0, 1))",
        {"x": "A B", "y": "A B"}, {"s": "", "m": "", "g": "", "d": "A B"}, {"A": 7, "B": 20}, {"A": 1, "B": 1},
    ),
    "everything reduced in every way": sample(
        "y = x * s + b\nreturn y.sum() + s, y.amax(), y.abs().amin(), (y > 3).any(), (y < 9).all(), i.sum(), (x * 0.1 + 1).prod(), i.amin()",
        {"x": "A B", "b": "B", "s": "", "i": "A B: int32"},
        {"a": "", "b2": "", "c": "", "d": ": bool", "e": ": bool", "f": ": int64", "g": "", "h": ": int32"}, *TWO,
    ),
    "sums of everything in blocks": sample(
        "t = x - x.amax()\nreturn t.logsumexp((0, 1)), x.amax()", {"x": "A B"}, {"s": "", "g": ""}, {"A": 7, "B": 20}, {"A": 1, "B": 1},
    ),
    # rows are reduced first, then what they left
    "reduced twice": sample(
        "r = x.logsumexp(-1)\nreturn (r * w).mean(), r.amax(), r, torch.log_softmax(x, -1).sum()",
        {"x": "A B", "w": "A"}, {"m": "", "g": "", "r": "A", "s": ""}, {"A": 5, "B": 20}, {"A": 1, "B": 1},
    ),
    "a mean loss over a batch": sample(
        "return F.cross_entropy(x, i), F.cross_entropy(x, i, reduction='sum', label_smoothing=0.1)",
        {"x": "A B", "i": "A: int64 < B"}, {"loss": "", "total": ""}, {"A": 7, "B": 20},
    ),
    # losses
    "losses": sample(
        "e = F.mse_loss(x, y, reduction='none') + F.l1_loss(x, y, reduction='none')\n"
        "s = F.smooth_l1_loss(x, y, reduction='none', beta=0.5) + F.huber_loss(x, y, reduction='none', delta=0.7)\n"
        "return e, s, F.binary_cross_entropy_with_logits(x, y, reduction='none'), F.soft_margin_loss(x, y, reduction='none')",
        {"x": "... D", "y": "... D"}, named(4), *SIZES,
    ),
    "classes": sample(
        "a = F.cross_entropy(x, t, reduction='none', ignore_index=0, label_smoothing=0.1)\n"
        "return a, F.cross_entropy(x, t, reduction='none'), F.nll_loss(x, t, reduction='none', ignore_index=1)",
        {"x": "A B", "t": "A: int64 < B"}, named(3, "A"), *TWO,
    ),
    "divergence": sample(
        "return F.kl_div(x, y, reduction='none'), F.kl_div(x, y, reduction='none', log_target=True)",
        {"x": "... D", "y": "... D"}, named(2), *SIZES,
    ),
    "triplets": sample(
        "return F.triplet_margin_loss(x, y, z, reduction='none')", {"x": "A B", "y": "A B", "z": "A B"}, {"out": "A"}, *TWO
    ),
    # dtypes
    "integers": sample(
        "return i + j, i * 2 - j, i > j, i / 3", {"i": "A B: int32", "j": "B: int64"},
        {"a": "A B: int64", "b": "A B: int64", "c": "A B: bool", "d": "A B: float32"}, *TWO, dtypes=(),
    ),
    "short integers": sample(
        "return i + u, torch.maximum(i, i * 2), -i, u + 1, -u", {"i": "A B: int8", "u": "A B: uint8"},
        {"a": "A B: int16", "b": "A B: int8", "c": "A B: int8", "d": "A B: uint8", "e": "A B: uint8"}, *TWO, dtypes=(),
    ),
    "reduced integers": sample(
        "return i.sum(-1), i.amax(-1), i.amin(-1), i - i.amax(-1, keepdim=True)", {"i": "A B: int8"},
        {"a": "A: int64", "b": "A: int8", "c": "A: int8", "d": "A B: int8"}, *TWO, dtypes=(),
    ),
    "booleans": sample(
        "return x * m, m + m, m * 3, torch.where(m, 0.5, x), (x > 0).sum(-1)", {"x": "... D", "m": "... D: bool"},
        {"a": "... D", "b": "... D: bool", "c": "... D: int64", "d": "... D", "e": "...: int64"}, *SIZES,
    ),
    "logic": sample(
        "return torch.logical_and(x, x - 1), torch.logical_not(x), ~(x > 1) & (x > 0)", X, named(3, "... D: bool"), *SIZES
    ),
    "scalars in where": sample(
        "return torch.where(x > 0.25, x, 0.0), torch.where(x > 0.25, 1, 0)", X, {"a": "... D", "b": "... D: int64"}, *SIZES
    ),
    "rounding": sample("h = (x.float() * 1.1).to(x.dtype)\nreturn h * 3 - h", X, OUT, *SIZES),
    "two variables": sample(
        "return (x * w).to(w.dtype)", {"x": "A: T", "w": "A: U"}, {"out": "A: U"}, {"A": 70},
        dtypes=(("T", ("float16", "float32")), ("U", ("bfloat16", "float32"))),
    ),
    # shapes
    "no elements": sample(
        "return x.sum(-1), x * 2, x.var(-1)", {"x": "A B"}, {"s": "A", "out": "A B", "v": "A"},
        {"A": 4, "B": 0}, {"A": 0, "B": 4}, {"A": 4, "B": 1},
    ),
    "rows without elements beside their results": sample(
        "t = x.sum(-1)\nreturn x - t[:, None] + w, x * 2 - t[:, None], t + 1", {"x": "A D", "w": "D"},
        {"a": "A D", "b": "A D", "t": "A"}, {"A": 3, "D": 0}, {"A": 3, "D": 37},
    ),
    "no elements beside their sum": sample(
        "t = x.sum()\nreturn x - t, t + 1", {"x": "A"}, {"a": "A", "t": ""}, {"A": 0}, {"A": 37},
    ),
    "no dimensions": sample("return x * y", {"x": "", "y": ""}, {"out": ""}, {}),
    "everything reduced": sample("return x.sum(), x.mean()", {"x": "A B"}, named(2, ""), *TWO),
    "two dimensions reduced": sample(
        "return x / x.square().mean((-2, -1), keepdim=True).sqrt(), x.sum((1, 2))",
        {"x": "A B C"}, {"out": "A B C", "s": "A"}, {"A": 3, "B": 5, "C": 7},
    ),
    "turned": sample("return x.T + y, x.T.sum(-1)", {"x": "A B", "y": "B A"}, {"out": "B A", "s": "B"}, *TWO),
    "turned and not": sample("return x + x.T", {"x": "A A"}, {"out": "A A"}, {"A": 5}),
    "permuted": sample("return x.permute(2, 0, 1) * y", {"x": "A B C", "y": "B"}, {"out": "C A B"}, {"A": 3, "B": 5, "C": 7}),
    "channel": sample(
        "return x * w[:, None, None] + b.view(1, -1, 1, 1)", {"x": "K C H W", "w": "C", "b": "C"}, {"out": "K C H W"},
        {"K": 2, "C": 3, "H": 5, "W": 7},
    ),
    "columns reduced": sample("return x * w.sum() + w.amax() + x.sum(-1, True)", {"x": "... D", "w": "D"}, OUT, *SIZES),
    # scans
    "running sums": sample(
        "return x.cumsum(-1), x.cumsum(-1) - x, (x * m).cumsum(-1), torch.where(m, x, 0).cumsum(-1)",
        {"x": "... D", "m": "... D: bool"}, named(4), *SIZES,
    ),
    "sums from the end": sample(
        "from_end = (x * m).flip(-1).cumsum(-1).flip(-1)\nreturn from_end, from_end - x, torch.exp(x).flip(-1).cumsum(-1).flip(-1)",
        {"x": "... D", "m": "... D: bool"}, named(3), *SIZES,
    ),
    "running extremes": sample(
        "return torch.cummax(x, -1)[0], torch.cummin(x * 2, -1).values, torch.cummax(x, -1).values - x", X, named(3), *SIZES
    ),
    "places of running extremes": sample(
        "values, places = torch.cummax(x.round(), -1)\nreturn values, places, x.cummin(-1).indices",
        X, {"values": "... D", "a": "... D: int64", "b": "... D: int64"}, *SIZES,
    ),
    "places of integers": sample(
        "return i.cummin(-1).indices, i.cummax(-1)[1]", {"i": "A B: int8"}, named(2, "A B: int64"), *TWO, dtypes=(),
    ),
    "extremes from the end": sample(
        "y = x.flip(-1)\nreturn y.cummax(-1).values.flip(-1), y.abs().cummin(-1).values.flip(-1), y.logcumsumexp(-1).flip(-1)",
        X, named(3), *SIZES,
    ),
    "running products": sample(
        "return x.cumprod(-1), x - torch.cumprod(x * s[..., None], -1), torch.cumprod(x, -1, dtype=torch.float32) > 0.5",
        {"x": "... D", "s": "..."}, {"a": "... D", "b": "... D", "c": "... D: bool"}, *SIZES,
    ),
    "products from the end": sample(
        "y = (x * w).flip(-1).cumprod(-1).flip(-1)\nreturn y, y * x", {"x": "... D", "w": "D"}, named(2), *SIZES
    ),
    "running logsumexp": sample("return torch.logcumsumexp(x, -1), (x * 30).logcumsumexp(-1)", X, named(2), *SIZES),
    "scans of scans": sample(
        "y = x.cumsum(-1) * s[..., None] + w\nreturn y.cumsum(-1), torch.cummax(y, -1).values, s * 2, w.cumsum(0).expand(x.shape)",
        {"x": "... D", "s": "...", "w": "D"}, {"a": "... D", "b": "... D", "c": "...", "d": "... D"}, *SIZES,
    ),
    "scanned integers": sample(
        "return i.cumsum(-1), (i * 0 + 2).cumprod(-1), i.cummax(-1).values, i.cummin(-1).values, (i > 0).cumsum(-1), i.cumsum(-1, dtype=torch.float32)",
        {"i": "A B: int8"},
        {"a": "A B: int64", "b": "A B: int64", "c": "A B: int8", "d": "A B: int8", "e": "A B: int64", "f": "A B: float32"},
        *TWO, dtypes=(),
    ),
    "scanned integers of 64 bits": sample(
        "j = i.flip(-1)\nreturn j.cummax(-1).values.flip(-1), j.cumsum(-1).flip(-1), j.cummin(-1).values.flip(-1)",
        {"i": "A B: int64"}, named(3, "A B: int64"), *TWO, dtypes=(),
    ),
    "exclusive scans": sample(
        "zeros = torch.zeros_like(x[..., :1])\nreturn torch.cat((zeros, x[..., :-1]), -1).cumsum(-1), torch.cat((zeros, x.narrow(-1, 0, x.size(-1) - 1).cumsum(-1)), -1), F.pad(x.exp(), (1, 0))[..., :-1].cumsum(-1)",
        {"x": "A B"}, named(3, "A B"), *TWO,
    ),
    "a scan without its beginning": sample(
        "return F.pad(x.cumsum(-1)[..., 1:], (1, 0)), F.pad(x.cummax(-1)[0][..., 1:], (1, 0), value=2.0)", X, named(2), *SIZES
    ),
    "a scan from the end without its beginning": sample(
        "return F.pad(x.flip(-1).cumsum(-1).flip(-1)[..., :-1], (0, 1))", X, OUT, *SIZES
    ),
    "sums of what comes after": sample(
        "return F.pad(x.flip(-1).cumsum(-1).flip(-1)[..., 1:], (0, 1)), F.pad(x.exp().flip(-1).cumsum(-1).flip(-1)[..., 1:], (0, 1), value=3.0)",
        X, named(2), *SIZES,
    ),
    "a scan and something behind": sample("return F.pad(x.cumsum(-1), (0, 2))", X, {"out": "... D+2"}, *SIZES),
    "scans that end later": sample(
        "return F.pad(x.cumsum(-1), (2, 0)), F.pad(x.exp().cumsum(-1), (2, 0), value=3.0)",
        {"x": "A B"}, named(2, "A B+2"), *TWO,
    ),
    "scanned neighbours": sample(
        "return (x[..., 1:] - x[..., :-1]).cumsum(-1), x[..., 1:].logcumsumexp(-1)", {"x": "A B"}, named(2, "A B-1"), {"A": 3, "B": 40}
    ),
    "dimensions scanned together": sample(
        "return x.flatten(1).cumsum(-1).view(x.shape)", {"x": "A B C"}, {"out": "A B C"}, {"A": 3, "B": 5, "C": 7}
    ),
    "turned and scanned": sample("return x.T.cumsum(-1), x.T - y", {"x": "A B", "y": "B A"}, named(2, "B A"), *TWO),
    "scanned as a whole": sample("return x.cumsum(0), x.cummax(0).values", {"x": "D"}, named(2, "D"), {"D": 37}, {"D": 1}),
    # what is stored
    "identity": sample("return x", X, OUT, *SIZES),
    "stored twice": sample("y = x * 2\nreturn y, y, x", X, named(3), *SIZES),
    "constants": sample(
        "return torch.full_like(x, 2.0), x.sum(-1), torch.zeros_like(x) + 1", X, {"a": "... D", "b": "...", "c": "... D"}, *SIZES
    ),
    "rows spread": sample("return x.mean(-1, keepdim=True).expand(x.shape).contiguous()", X, OUT, *SIZES),
    "columns spread": sample(
        "return w.expand(x.shape).contiguous(), x.sum(-1)", {"x": "... D", "w": "D"}, {"a": "... D", "b": "..."}, *SIZES
    ),
    # names
    "names of the template": sample(
        "rows = row * 2\nmask = cols + rows\nnew_max = mask.amax(-1, keepdim=True)\nshare = torch.exp(mask - new_max)\n"
        "return share / share.sum(-1, keepdim=True)",
        {"row": "... D", "cols": "D"}, OUT, *SIZES,
    ),
    "names of helpers and strides": sample(
        "stride_x_n = x_ptr * 2\nfloat = stride_x_n + x\n_tanh = torch.tanh(float)\nreturn torch.relu(_tanh)",
        {"x": "... D", "x_ptr": "D"}, OUT, *SIZES,
    ),
}  # fmt: skip


SQUARE: list[dict[str, Any]] = [{"A": 2, "B": 19}, {"A": 1, "B": 1}]
IMAGE, IMAGES = "A C H W", [{"A": 2, "C": 3, "H": 5, "W": 19}, {"A": 1, "C": 1, "H": 1, "W": 1}]
INDEX = {"i": "A B: int64"}

CORNERS |= {
    # places that are computed
    "flips": sample("return x.flip(0, 1), x.roll((-2, 5), (0, 1))", {"x": "A B"}, named(2, "A B"), *TWO),
    "start of a dimension": sample("return x[:, :3].contiguous()", {"x": "A 8"}, {"out": "A 3"}, {"A": 5}, {"A": 1}),
    "triangles": sample("return torch.tril(x), x.triu(1)", {"x": "A B B"}, named(2, "A B B"), *SQUARE),
    "joined": sample(
        "return torch.cat((x * 2, torch.relu(y), x.flip(-1)), -1)", {"x": "A 3", "y": "A B"}, {"out": "A B+6"}, *TWO
    ),
    "rows of two joined": sample("return torch.cat((x, y), 0)", {"x": "A B", "y": "A B"}, {"out": "2*A B"}, *TWO),
    "stacked": sample("return torch.stack((x, -x), -1).flatten(-2)", {"x": "A B"}, {"out": "A 2*B"}, *TWO),
    # equal parts, each with a store of its own
    "halves": sample(
        "a, b = x.chunk(2, -1)\nreturn torch.cat((b.exp() * w, a + w), -1) * y",
        {"x": "... 2*D", "y": "... 2*D", "w": "D"}, {"out": "... 2*D"}, *SIZES,
    ),
    "neighbours": sample(
        "a, b = x[..., 0::2], x[..., 1::2]\nreturn torch.stack((a * w - b, b * s[..., None] + w), -1).flatten(-2)",
        {"x": "... 2*D", "w": "... D", "s": "..."}, {"out": "... 2*D"}, *SIZES,
    ),
    "heads rotated": sample(
        "a, b = q.chunk(2, -1)\nreturn q * cos + torch.cat((-b, a), -1) * cos.flip(-1)",
        {"q": "A B 2*C", "cos": "B 2*C"}, {"out": "A B 2*C"}, {"A": 3, "B": 5, "C": 19}, {"A": 1, "B": 1, "C": 1},
    ),
    "neighbours of heads": sample(
        "a, b = q[..., 0::2], q[..., 1::2]\nreturn torch.stack((a * w - b, a + b * w), -1).flatten(-2)",
        {"q": "A B 2*C", "w": "B C"}, {"out": "A B 2*C"}, {"A": 3, "B": 5, "C": 19}, {"A": 1, "B": 1, "C": 1},
    ),
    "neighbours exchanged": sample(
        "return torch.stack((x[..., 1::2], x[..., 0::2]), -1).flatten(-2)", {"x": "... 2*D"}, {"out": "... 2*D"}, *SIZES
    ),
    "neighbours of one row": sample(
        "return torch.stack((x[0::2] + 1, x[1::2]), -1).flatten()", {"x": "2*D"}, {"out": "2*D"}, {"D": 37}, {"D": 1}
    ),
    "pairs": sample("return torch.stack((x * y, x - y), -1)", {"x": "A B", "y": "A B"}, {"out": "A B 2"}, *TWO),
    "stacks": sample("return torch.stack((x, y, x), 1), torch.stack((y, y, x), 1)", {"x": "A B", "y": "A B"}, named(2, "A 3 B"), *TWO),
    "stacked outermost": sample("return torch.stack((x, y), 0)", {"x": "A B", "y": "A B"}, {"out": "2 A B"}, *TWO),
    "parts of rows": sample(
        "a, b = x.chunk(2, 0)\nreturn torch.cat((-b, a.abs()), 0)", {"x": "2*A B"}, {"out": "2*A B"}, *TWO
    ),
    "parts of whole numbers": sample(
        "a, b = i.chunk(2, -1)\nreturn torch.cat((b + 1, a), -1)", {"i": "A 2*B: int64"}, {"out": "A 2*B: int64"}, *TWO
    ),
    "a part that is constant": sample(
        "return torch.stack((x, torch.zeros_like(x)), -1).flatten(-2)", {"x": "A B"}, {"out": "A 2*B"}, *TWO
    ),
    "repeated twice over": sample("return x.repeat(2, 3)", {"x": "A B"}, {"out": "2*A 3*B"}, *TWO),
    "repeated along": sample("return x.repeat(1, 3) + 1", {"x": "A B"}, {"out": "A 3*B"}, *TWO),
    "each repeated": sample("return x.repeat_interleave(2, -1) * y", {"x": "A B", "y": "A 2*B"}, {"out": "A 2*B"}, *TWO),
    "rows repeated": sample("return x.repeat_interleave(3, 0)", {"x": "A B"}, {"out": "3*A B"}, *TWO),
    "split": sample("return x.reshape(x.shape[0], 4, -1).transpose(1, 2)", {"x": "A 24"}, {"out": "A 6 4"}, {"A": 5}),
    "mask under softmax": sample(
        "k = torch.arange(x.shape[-1], device=x.device)\nreturn torch.softmax(x.masked_fill(k > 3, -1e4), -1)",
        {"x": "A B"}, {"out": "A B"}, *TWO,
    ),
    "embedding": sample("return F.embedding(i & 7, w)", {"w": "8 D", **INDEX}, {"out": "A B D"}, {"A": 5, "B": 1, "D": 9}),
    "from the end": sample("return x[:, (j & 7) - 4]", {"x": "A 8", "j": "B: int64"}, {"out": "A B"}, *TWO),
    "gather": sample("return x.gather(1, i & 3)", {"x": "A 4", **INDEX}, {"out": "A B"}, *TWO),
    "one hot": sample("return F.one_hot(i & 7, 8)", INDEX, {"out": "A B 8: int64"}, *TWO),
    "mirrored": sample("return F.pad(x, (2, 1, 1, 2), mode='reflect')", {"x": "A 5 17"}, {"out": "A 8 20"}, {"A": 2}),
    "border repeated": sample(
        "return F.pad(x[None], (3, 1, 0, 2), mode='replicate')[0]", {"x": "A B C"}, {"out": "A B+2 C+4"},
        {"A": 2, "B": 3, "C": 17}, {"A": 1, "B": 1, "C": 1},
    ),
    "rows in the order of an input": sample(
        "return x.permute(0, 3, 2, 1) * w[:, None], y.permute(0, 3, 2, 1) + 1",
        {"x": "A B C D", "y": "A B C D", "w": "C"}, named(2, "A D C B"), {"A": 2, "B": 19, "C": 3, "D": 5}, {"A": 1, "B": 1, "C": 1, "D": 7},
    ),
    "all dimensions reversed": sample("return x.permute(2, 1, 0).contiguous()", {"x": "A B C"}, {"out": "C B A"}, {"A": 19, "B": 3, "C": 5}),
    "taken along": sample(
        "return torch.take_along_dim(x, i - 4, 1), torch.take_along_dim(y, j, dim=0)",
        {"x": "A 8", "i": "A B: int64 < 12", "y": "8 B", "j": "A B: int64 < 8"}, named(2, "A B"), *TWO,
    ),
    "one dimension": sample("return x.flip(0)", {"x": "A"}, {"out": "A"}, {"A": 37}, {"A": 1}),
    "sizes as numbers": sample("return x / x.shape[0] + x.shape[1], i * x.shape[1]", {"x": "A B", **INDEX}, {"a": "A B", "b": "A B: int64"}, *TWO),
    "window in planes": sample(
        "return F.conv2d(x, w, padding=2, dilation=2, groups=x.shape[1])", {"x": "A C H W", "w": "C 1 3 3"}, {"out": "A C H W"},
        {"A": 2, "C": 3, "H": 5, "W": 19}, {"A": 1, "C": 1, "H": 1, "W": 1}, {"A": 0, "C": 2, "H": 3, "W": 4},
    ),
    "lines kept in planes": sample(
        "return F.max_pool2d(x, (3, 2), (2, 1), (1, 1)) * 2",
        {"x": IMAGE}, {"out": "A C (H-1)//2+1 W+1"}, {"A": 1, "C": 2, "H": 37, "W": 9}, {"A": 1, "C": 1, "H": 1, "W": 1},
    ),
    "columns of a lane": sample(
        "return F.conv2d(x, w, padding=(0, 4), dilation=(1, 3), groups=x.shape[1])",
        {"x": "A C H W", "w": "C 1 2 3"}, {"out": "A C H-1 W+2"},
        {"A": 2, "C": 3, "H": 5, "W": 38}, {"A": 1, "C": 1, "H": 2, "W": 4},
    ),
    "columns of a lane two apart": sample(
        "return F.conv2d(x, w, stride=(1, 2), padding=(0, 1), groups=x.shape[1])",
        {"x": "A C H 2*W", "w": "C 1 2 4"}, {"out": "A C H-1 W"},
        {"A": 2, "C": 3, "H": 5, "W": 19}, {"A": 1, "C": 1, "H": 2, "W": 1},
    ),
    "columns of a lane beyond those of a row": sample(
        "return F.avg_pool2d(x, (2, 4), 1)", {"x": "A C H W"}, {"out": "A C H-1 W-3"},
        {"A": 1, "C": 2, "H": 3, "W": 8}, {"A": 1, "C": 1, "H": 5, "W": 20},
        constraints=("x.shape[2] >= 2", "x.shape[3] >= 4"),
    ),
    "lanes of a row": sample(
        "return F.avg_pool1d(x, 8, stride=1, padding=4)", {"x": "A B D"}, {"out": "A B D+1"},
        {"A": 2, "B": 3, "D": 37}, {"A": 1, "B": 1, "D": 1},
    ),
    "lanes of a row, places three apart": sample(
        "return F.max_pool1d(x, 8, stride=1, padding=4, dilation=3)", {"x": "A B D"}, {"out": "A B D-13"},
        {"A": 2, "B": 3, "D": 47}, {"A": 1, "B": 1, "D": 14}, constraints=("x.shape[2] >= 14",),
    ),
    "lanes of a row, columns two apart": sample(
        "return F.max_pool1d(x * 2, 5, stride=2, padding=2, dilation=1)", {"x": "A D"}, {"out": "A (D-1)//2+1"},
        {"A": 5, "D": 67}, {"A": 1, "D": 1}, {"A": 1, "D": 2},
    ),
    "lanes of a row, places two apart and none beyond it": sample(
        "return F.avg_pool1d(x, 3, 1) + y[:, :-2] + y[:, 2:] * w[2:]", {"x": "A D", "y": "A D", "w": "D"}, {"out": "A D-2"},
        {"A": 5, "D": 40}, {"A": 1, "D": 3}, constraints=("x.shape[1] >= 3",),
    ),
    "windows of two heights, their lines asked for rows before": sample(
        "return F.max_pool2d(x, 3, 1, 1)[:, :, 1:, 1:] + F.max_pool2d(y, 2, 1)", {"x": "A B C D", "y": "A B C D"},
        {"out": "A B C-1 D-1"}, {"A": 2, "B": 1, "C": 9, "D": 19}, {"A": 1, "B": 2, "C": 2, "D": 2},
        constraints=("x.shape[2] >= 2", "x.shape[3] >= 2"),
    ),
    "elements of a lane and places of the same name": sample(
        "return F.max_pool2d(torch.tanh(x), 2, 1, 1)", {"x": "A B C D"}, {"out": "A B C+1 D+1"}, {"A": 2, "B": 3, "C": 4, "D": 4},
    ),
    "neighbours in planes": sample(
        "return F.pixel_shuffle(x, 2) * 2, F.interpolate(F.pixel_shuffle(x, 2), scale_factor=(2, 1), mode='nearest')[:, :, ::2]",
        {"x": "A 4*C H W"}, named(2, "A C 2*H 2*W"), {"A": 2, "C": 2, "H": 3, "W": 19}, {"A": 1, "C": 1, "H": 1, "W": 1},
    ),
    "places and counts in planes": sample(
        "return F.interpolate(x, scale_factor=2, mode='nearest') + torch.arange(2 * x.shape[2], device=x.device)[:, None]",
        {"x": "A C H W"}, {"out": "A C 2*H 2*W"}, {"A": 2, "C": 2, "H": 5, "W": 9},
    ),
    # random masks: the same whichever way a kernel walks the elements
    "masks of rows": sample(
        "return F.softmax(torch.where(random_mask(seed, x.shape, 0.7), x, 0.0), -1)",
        {"x": "... D", "seed": ": int64"}, {"out": "... D"}, *SIZES,
    ),
    "masks of columns": sample(
        "return torch.where(random_mask(seed, x.shape, 0.3), x, s).sum(0)",
        {"x": "A B", "s": "B", "seed": ": int64"}, {"out": "B"}, *TWO,
    ),
    "masks turned": sample(
        "return torch.where(random_mask(seed, x.shape, 0.5), x, 0.0).t().contiguous()",
        {"x": "A B", "seed": ": int64"}, {"out": "B A"}, *TWO,
    ),
    "masks twice": sample(
        "return random_mask(seed, x.shape, 0.5), random_mask(seed + 1, x.shape, 0.25)",
        {"x": "... D", "seed": ": int64"}, named(2, "... D: bool"), *SIZES,
    ),
    "windows and borders of what is moved": sample(
        "return F.max_pool2d(x[:, :, 1:].flip(-1), 3, 1, 1), F.pad(x[:, :, 1:], (1, 0, 1, 0), value=3.0)[:, :, 1:, 1:]",
        {"x": "A C H W"}, named(2, "A C H-1 W"), {"A": 1, "C": 2, "H": 4, "W": 5}, {"A": 1, "C": 1, "H": 2, "W": 1},
        constraints=("x.shape[2] >= 2",),
    ),
    "windows of planes whose sizes are called what a kernel calls its own": sample(
        "return F.max_pool2d(x, 3, 1, 1)", {"x": "PLANE LINES TOP FIRST"}, {"out": "PLANE LINES TOP FIRST"},
        {"PLANE": 2, "LINES": 2, "TOP": 9, "FIRST": 19},
    ),
    "rows whose sizes are called what a kernel calls its own": sample(
        "return x * y[:, None]", {"x": "ROWS TILE COLS", "y": "ROWS COLS"}, {"out": "ROWS TILE COLS"},
        {"ROWS": 3, "TILE": 5, "COLS": 19},
    ),
    "windows of many elements, side by side": sample(
        "return F.max_pool2d(x, 11, 4, 5), F.avg_pool2d(x, 11, 4, 5)", {"x": "A C H W"}, named(2, "A C (H-1)//4+1 (W-1)//4+1"),
        {"A": 2, "C": 1, "H": 9, "W": 23}, {"A": 1, "C": 2, "H": 1, "W": 1},
    ),
    "window": sample("return F.max_pool2d(x, (1, 3), 1, (0, 1))", {"x": IMAGE}, {"out": IMAGE}, *IMAGES),
}  # fmt: skip


def test_nothing_beyond_the_end_of_a_row_is_read_for_columns_of_a_lane_that_it_does_not_have() -> None:
    """Elements 4 to 6 belong to the second to the fourth column's windows alone, which the last lane may not have."""
    plan = plan_of(CORNERS["columns of a lane beyond those of a row"].spec())
    schedule = families.family_of(plan).default("planes").replace(specialize=True)
    text = {n: render.triton_source(plan.with_table((TableRow((), schedule.replace(lane_columns=n)),))) for n in (2, 4)}
    assert "x_e_mask = first + 4 < N + 3\n" in text[2]
    assert "quad_mask = cols < N + 3\n" in text[4]
    assert "quads = cols + 4" in text[4]
    assert "quad_mask_2 = quads < N + 3\n" in text[4]


def test_nothing_above_a_tensor_is_read_for_a_taller_window_of_another() -> None:
    """A walk's lines begin two rows above its first, where the window of two lines has none."""
    plan = plan_of(CORNERS["windows of two heights, their lines asked for rows before"].spec())
    (early,) = (s for s in schedules(plan) if s.get("LINES_AHEAD", 1) != 1)
    text = render.triton_source(plan.with_table((TableRow((), early),)))
    assert "y_c = c + 1\n" in text
    assert text.count("(y_c >= 0)") == 2  # of a lane's block and of the element beside it
    assert "(x_c >= 0)" not in text


def test_a_border_costs_no_choice_where_an_input_is_only_reshaped_before() -> None:
    plan = plan_of(CORNERS["lanes of a row, places three apart"].spec())
    texts = [render.triton_source(plan.with_table((TableRow((), schedule),))) for schedule in schedules(plan)]
    borders = ("other=-infinity", 'other=float("-inf")')
    assert all(any(border in text for border in borders) and "tl.where" not in text for text in texts)


@pytest.mark.parametrize("name", CORNERS)
def test_a_corner(name: str) -> None:
    found = failures(CORNERS[name], thorough=False)
    assert not found, "\n\n".join([CORNERS[name].source(), *found])


def test_an_operator_may_have_the_name_of_a_helper() -> None:
    spec = replace(CORNERS["functions"].spec(), name="tanh", reference="def tanh(x):\n    return torch.tanh(x)\n")
    plan = plan_of(replace(spec, outputs=spec.outputs[:1]))
    kernel = load(render.triton_source(plan)).tanh
    x = torch.linspace(-3, 3, 100, device="cuda" if torch.cuda.is_available() else "cpu")
    torch.testing.assert_close(kernel(x), torch.tanh(x))


def test_erf_is_within_eight_units_in_the_last_place_and_one_far_out() -> None:
    plan = plan_of(sample("return torch.erf(x)", {"x": "A: float32"}, {"out": "A: float32"}, dtypes=()).spec())
    kernel = load(render.triton_source(plan)).op
    x = torch.cat([torch.linspace(-6, 6, 120_001), torch.logspace(-30, 0, 1000), torch.tensor([1e38, float("inf")])])
    x = x.to("cuda" if torch.cuda.is_available() else "cpu")
    got, want = kernel(x), torch.erf(x.double())
    ulp = torch.exp2(torch.frexp(want).exponent - 24.0).clamp(min=2.0**-149)
    assert float(((got - want).abs() / ulp).max()) <= 8
    far = x[x.abs() > 3.93]
    assert torch.equal(kernel(far), torch.sign(far))
    assert kernel(x[:1] * float("nan")).isnan().all()


def test_rows_too_long_for_an_index_are_refused() -> None:
    kernel = load(render.triton_source(plan_of(CORNERS["columns reduced"].spec()))).op
    row = torch.ones(1, dtype=torch.float16).expand(2**30 + 1)
    with pytest.raises(ValueError, match=r"^op: at most 2\*\*30 rows and columns, got 1 and 1073741825$"):
        kernel(row, row)


def test_tensors_of_other_devices_shapes_and_dtypes_are_refused_by_kernel_and_baseline_alike() -> None:
    spec = CORNERS["columns reduced"].spec()
    kernel, baseline = load(render.triton_source(plan_of(spec))).op, load(render.baseline_source(spec)).op
    x, w = torch.ones(3, 8), torch.ones(8)
    for inputs in [(x.double(), w), (x, w.half()), (x, w[:4]), (x, x), (torch.tensor(1.0), w), (x, w.to("meta"))]:
        for function in (kernel, baseline):
            with pytest.raises(ValueError, match=r"^op: "):
                function(*inputs)


def test_thousands_of_partial_results_are_joined_in_several_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    few = ("4", "1")
    monkeypatch.setattr(partials, "_join_of", lambda schedule: few)
    found = sample(
        "return x.sum(), x.amax(), (x > 0).sum()", {"x": "A"}, {"s": "", "m": "", "n": ": int64"}, {"A": 200}
    )
    assert not failures(found, thorough=False)


def test_many_rows_added_to_one_lose_nothing_to_rounding() -> None:
    """2050 rows added one by one to one of two were seen to be 2.8 times as wrong as torch."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    found = sample("return x.index_add(0, i, y)", {"x": "A B", "i": "C: int64 < A", "y": "C B"}, {"out": "A B"})
    x = torch.tensor([[2.0**24, -(2.0**24)], [math.inf, 0.0]], device=device)
    y, index = torch.ones(33, 2, device=device), torch.arange(33, device=device) % 2
    want = torch.tensor([[2.0**24 + 17, -(2.0**24) + 17], [math.inf, 16.0]])
    assert torch.equal(load(render.triton_source(plan_of(found.spec()))).op(x, index, y).cpu(), want.float())


def test_a_row_that_no_bucket_can_hold_finds_its_places_itself() -> None:
    """Of 1100 places 1094 name one of 300 rows, which has a bucket for 16; six name another, whose bucket holds them."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    index = torch.full((1100,), 7, device=device)
    index[::200] = 255
    for dtype in (torch.float32, torch.int64):
        kind = str(dtype).removeprefix("torch.")
        found = sample(
            "return x.index_add(0, i, y)",
            {"x": f"A B: {kind}", "i": "C: int64 < A", "y": f"C B: {kind}"}, {"out": f"A B: {kind}"}, dtypes=(),
        )  # fmt: skip
        op = load(render.triton_source(plan_of(found.spec()))).op
        y = torch.arange(1100 * 3, device=device).reshape(1100, 3).to(dtype) % 4096
        x = torch.arange(900, device=device).reshape(300, 3).to(dtype)
        x[7] = 2**24 if dtype == torch.float32 else 2**40
        assert torch.equal(op(x, index, y), x.double().index_add(0, index, y.double()).to(dtype))


@pytest.mark.parametrize(
    ("kinds", "variant", "block"), [(("float16", "float32"), "looped", 2048), (("float16",), "row", None)]
)
def test_sums_of_float32_are_scanned_in_short_blocks(kinds: tuple[str, ...], variant: str, block: int | None) -> None:
    """KernelBench's 89: of a row of 4099 equal numbers in one block, torch's bound was missed in every second case."""
    found = sample("return x.cumsum(-1)", {"x": "A B"}, {"out": "A B"}, dtypes=(("T", kinds),))
    table = plan_of(found.spec()).table
    schedule = next(row.schedule for row in table if (row.limit("row_bytes") or 2**63) >= 4 * 4099)
    assert (schedule.variant, dict(schedule.values).get("BLOCK_SIZE_N")) == (variant, block)


def test_blocks_of_a_running_sum_lose_nothing_to_rounding() -> None:
    """A row of 4099 equal numbers was seen to be 17 ulp wrong, where torch was 2."""
    found = sample("return x.cumsum(-1)", {"x": "A B: float32"}, {"out": "A B: float32"}, dtypes=())
    plan = plan_of(found.spec())
    looped = next(s for s in schedules(plan) if s.variant == "looped")
    device = "cuda" if torch.cuda.is_available() else "cpu"
    x = torch.zeros(4, 16 * 33, device=device)
    x[:, 0] = torch.tensor([2.0**24, -(2.0**24), math.inf, math.nan])
    x[:, 16::16] = 1.0
    out = load(render.triton_source(plan.with_table((TableRow((), looped),)))).op(x)
    assert torch.equal(out[:3], x[:3].double().cumsum(-1).float())
    assert out[3].isnan().all()


@pytest.mark.parametrize("timed", [(), (Case((("A", 64), ("B", 9000), ("C", 100)), ()),)])
@pytest.mark.parametrize("base", ["x", "torch.zeros_like(x)"])
def test_rows_of_elements_are_started_by_their_program_or_all_at_once(base: str, timed: tuple[Case, ...]) -> None:
    """Rows far longer than what is added to them are copied by the wrapper; the rows here take three blocks of places."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    x, index = torch.randn(3, 2500, device=device), torch.randint(0, 2500, (3, 70), device=device)
    index[0], y = 2499, torch.randint(1, 99, (3, 70), device=device).float()
    found = sample(
        f"return {base}.scatter_add(-1, i, y)",
        {"x": "A B: float32", "i": "A C: int64 < B", "y": "A C: float32"}, {"out": "A B: float32"}, dtypes=(),
    )  # fmt: skip
    want = (x if base == "x" else torch.zeros_like(x)).double().scatter_add(-1, index, y.double())
    for deterministic in (True, False):
        spec = replace(replace(found, deterministic=deterministic).spec(), performance=timed)
        source = render.triton_source(plan_of(spec))
        assert ("BLOCK_SIZE_V" in source) == (not timed)
        assert (load(source).op(x, index, y) - want).abs().max() < 0.5


def test_indices_outside_their_range_add_nothing() -> None:
    device = "cuda" if torch.cuda.is_available() else "cpu"
    index = torch.tensor([-1, 2, 7, 5, 2, -(2**40), 2**40], device=device)
    x, y = torch.ones(5, 3, device=device), torch.full((7, 3), 2.0, device=device)
    want = x.index_add(0, index[[1, 4]], y[:2])
    rows = sample("return x.index_add(0, i, y)", {"x": "A B", "i": "C: int64 < A", "y": "C B"}, {"out": "A B"})
    for one in (rows, replace(rows, deterministic=False)):
        assert torch.equal(load(render.triton_source(plan_of(one.spec()))).op(x, index, y), want)
    columns = sample(
        "return x.scatter_add(0, i, y)",
        {"x": "A B: float32", "i": "C B: int64 < A", "y": "C B: float32"}, {"out": "A B: float32"}, dtypes=(),
    )  # fmt: skip
    for one in (columns, replace(columns, deterministic=False)):
        by_columns = load(render.triton_source(plan_of(one.spec()))).op
        assert torch.equal(by_columns(x, index[:, None].expand(7, 3), y), want)
    lines = ("return x.scatter_add(0, torch.where(i < 0, i + x.shape[0], i), y)",)
    from_end = load(render.triton_source(plan_of(replace(columns, lines=lines).spec()))).op
    assert torch.equal(from_end(x, index[:, None].expand(7, 3), y), x.index_add(0, index[[0, 1, 4]] % 5, y[:3]))
    for bins in (5, 3000):
        counts = sample(f"return torch.bincount(x, minlength={bins})", {"x": "A: int64"}, {"out": f"{bins}: int64"})
        found = load(render.triton_source(plan_of(counts.spec()))).op(index)
        assert torch.equal(found, torch.bincount(index[index.abs() < bins].clamp(min=-1) + 1, minlength=bins + 1)[1:])


GROUPED = {
    "F.silu(F.group_norm(x, 4, w, b))": "N 12 2 W",
    "F.hardtanh(F.group_norm(x, 3, w, b))": "N 12",
    "F.group_norm(x, 12, w, b) * 2": "N 12 W",
    "F.group_norm(x, 1, w, b) + x": "N 12 W",
    "F.group_norm(x, 2, w, b).mean(dim=(1, 2))": "N 12 W",
    "x.view(-1, 4, 3, x.shape[-1]).softmax(2).view(x.shape) * w[:, None]": "N 12 W",
}
"""Operators that take a literal number of channels apart, by the shape of x."""


@pytest.mark.parametrize("code", GROUPED)
def test_a_literal_number_of_channels_is_divided_into_groups(code: str) -> None:
    inputs = {
        name: shape
        for name, shape in (("x", GROUPED[code]), ("w", "12"), ("b", "12"))
        if name in code.replace("group_norm", "")
    }
    shape = "N" if "mean" in code else GROUPED[code]
    sizes = [{n: s[n] for n in GROUPED[code].split() if n in s} for s in ({"N": 3, "W": 5}, {"N": 1, "W": 19})]
    assert not failures(sample(f"return {code}", inputs, {"out": shape}, *sizes), thorough=False)


@pytest.mark.parametrize(
    ("code", "out"),
    [
        ("x.tile(2)", "A 2*D"),
        ("torch.tile(x, ())", "A D"),
        ("x.tile((3, 1, 2))", "3 A 2*D"),
        ("F.dropout(x, 0.0) * 2", "A D"),
        ("F.dropout(x, p=0.0, training=True) + x", "A D"),
    ],
)
def test_counts_of_fewer_dimensions_and_a_dropout_of_nothing(code: str, out: str) -> None:
    assert not failures(sample(f"return {code}", {"x": "A D"}, {"out": out}, {"A": 3, "D": 7}), thorough=False)


@pytest.mark.parametrize(
    ("lines", "inputs", "out"),
    [
        ("return x.to(y.dtype).float() * 3.0", {"x": "... D: float32", "y": "... D"}, "... D: float32"),
        ("return x.to(y.dtype).float().sum(-1)", {"x": "A D: float32", "y": "D"}, "A: float32"),
        ("return x.to(y.dtype).float().sum(0)", {"x": "A D: float32", "y": "D"}, "D: float32"),
        ("return x.to(y.dtype).float() @ w", {"x": "A D: float32", "y": "D", "w": "D N: float32"}, "A N: float32"),
        ("return x.float() @ w + y.float().sum()", {"x": "A D", "y": "D", "w": "D N: float32"}, "A N: float32"),
        ("return F.max_pool2d(x.to(y.dtype).float(), 2)", {"x": "A N 2*H 2*W: float32", "y": "N"}, "A N H W: float32"),
    ],
)
def test_casts_that_only_a_dtype_asks_for(lines: str, inputs: dict[str, str], out: str) -> None:
    found = sample(lines, inputs, {"out": out}, {"A": 3, "D": 5, "N": 2, "H": 4, "W": 5, "...": (3,)})
    assert not failures(found, thorough=False)


@pytest.mark.parametrize(
    "lines",
    [
        "return x.masked_fill(m, torch.finfo(x.dtype).min)",
        "return torch.softmax(x.masked_fill(m, torch.finfo(x.dtype).min), -1)",
        "return x + torch.triu(torch.full_like(x, torch.finfo(x.dtype).min), 1)",
        "return (x / (x.float().norm(dim=-1, keepdim=True) + torch.finfo(x.dtype).eps)).to(x.dtype)",
        "y = x.float()\ny = y.masked_fill(m, torch.finfo(y.dtype).min)\nreturn y.clamp(torch.finfo(x.dtype).min).to(x.dtype)",
    ],
)
def test_numbers_that_a_dtype_says_are_those_of_each_dtype(lines: str) -> None:
    found = sample(lines, {"x": "A D", "m": "A D: bool"}, {"out": "A D"}, {"A": 5, "D": 9})
    for dtype in ("float16", "bfloat16", "float32"):
        sampled = replace(found, dtypes=(("T", (dtype,)),))
        assert not failures(sampled, thorough=False), dtype
    assert not failures(found, thorough=False)
