"""Hypothesis strategies that draw references which move elements, read windows of them, quantise, or compare."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st
from references import FLOATS, Sample, sample

DTYPES: list[tuple[str, ...]] = [FLOATS, ("float32",), ("float16",), ("bfloat16",)]

SIZES: list[dict[str, int]] = [
    {"A": 2, "B": 3, "C": 5, "D": 37}, {"A": 3, "B": 17, "C": 2, "D": 5}, {"A": 1, "B": 1, "C": 4, "D": 4},
    {"A": 5, "B": 34, "C": 3, "D": 4},
]  # fmt: skip
SMALL: list[dict[str, int]] = [
    {"A": 1, "B": 2, "C": 5, "D": 19}, {"A": 2, "B": 3, "C": 4, "D": 4}, {"A": 1, "B": 1, "C": 2, "D": 6},
]  # fmt: skip
"""Of windows: the interpreter reads every one of their places."""
NONE = {"A": 0, "B": 5, "C": 4, "D": 6}

BEFORE = ["{}", "{}", "torch.tanh({})", "({} * 0.7)", "(-{})", "torch.where({0} > 0, {0}, 0.25)", "F.silu({})"]
AFTER = ["{}", "{}", "{}.abs()", "{} + 1", "torch.sigmoid({})", "{}.flip(-1)", "{}.clamp(-1, 1)"]
REDUCED = ["{}.sum(-1)", "{}.amax(-1)", "{}.mean(-1)"]

MOVES = [
    ("A B", "{}.T", "B A"), ("A B C", "{}.transpose(1, 2)", "A C B"), ("A B C", "{}.permute(2, 0, 1)", "C A B"),
    ("A B C D", "{}.permute(0, 2, 3, 1)", "A C D B"), ("A B C D", "{}.permute(3, 2, 1, 0)", "D C B A"),
    ("A D", "{}.flip(-1)", "A D"), ("A B C", "{}.flip(0, 2)", "A B C"),
    ("A D", "{}.roll(3, -1)", "A D"), ("A B", "{}.roll((1, -2), (0, 1))", "A B"),
    ("A B D", "{}.tril()", "A B D"), ("A D", "{}.triu(1)", "A D"),
    ("A B", "F.pad({}, (2, 1))", "A B+3"), ("A B C", "F.pad({}, (0, 1, 2, 0), value=-1.0)", "A B+2 C+1"),
    ("A C D", "F.pad({}, (1, 2), mode='reflect')", "A C D+3"), ("A D", "F.pad({}, (2, 2), mode='replicate')", "A D+4"),
    ("A B", "torch.cat(({0}, y, -{0}), -1)", "A 3*B"), ("A B", "torch.cat(({}, y), 0)", "2*A B"),
    ("A B", "torch.stack(({}, y), 1)", "A 2 B"), ("A B", "torch.stack(({}, y), -1)", "A B 2"),
    ("A B", "torch.stack(({}, y), -1).flatten(-2)", "A 2*B"), ("A B C", "torch.stack(({}, y), 0)", "2 A B C"),
    ("A B C", "torch.einsum('abc,cab->bac', {}, y.permute(2, 0, 1))", "B A C"), ("A B", "torch.einsum('ab,ab->a', {}, y)", "A"),
    ("A B C", "torch.einsum('abc->cb', {})", "C B"), ("A A", "torch.einsum('aa->a', {})", "A"),
    ("A 2*D", "torch.cat({}.chunk(2, -1)[::-1], -1)", "A 2*D"), ("A 2*D", "{}[..., 0::2] * y[..., 1::2]", "A D"),
    ("A B", "{}.repeat(2, 3)", "2*A 3*B"), ("A B", "{}.repeat_interleave(2, -1)", "A 2*B"),
    ("A B", "{}[:, None].expand(-1, 4, -1)", "A 4 B"), ("A 4*B C D", "F.pixel_shuffle({}, 2)", "A B 2*C 2*D"),
    ("A B 6", "{}[..., 1:4]", "A B 3"), ("A 4", "{}[:, 0] * y[:, 2]", "A"), ("A 3 B", "{}[:, 0]", "A B"),
    ("A B 6", "{}[..., :1]", "A B 1"), ("3 A B", "{}[0] - y[2]", "A B"), ("A B C", "{}[:, :-1]", "A B-1 C"), ("A 24", "{}.reshape(-1, 4, 6).transpose(1, 2)", "A 6 4"),
]  # fmt: skip
"""The shape of x, what is made of it, and the shape of that; y is another tensor of x's shape."""

GATHERS = [
    ("A B", "D: int64 < A", "F.embedding(i, {})", "D B"), ("A B", "D: int64 < A", "{}[i]", "D B"),
    ("A B", "C D: int32 < A", "F.embedding(i, {})", "C D B"), ("A B", "D: int64 < B", "{}.index_select(-1, i)", "A D"),
    ("A B C", "D: int32 < B", "{}.index_select(1, i)", "A D C"), ("A B", "A D: int64 < B", "{}.gather(1, i)", "A D"),
    ("A B", "D B: int64 < A", "torch.take_along_dim({}, i, 0)", "D B"),
    ("A B", "A: int64 < B", "{}.gather(1, i[:, None]).squeeze(1)", "A"),
    ("A", "A: int64 < 9", "F.one_hot(i, 9) * {}[:, None]", "A 9"),
    ("A B", "C", "torch.bucketize({}, i).to(x.dtype)", "A B"),
    ("A B", "A C", "torch.searchsorted(i, {}, right=True).to(x.dtype)", "A B"),
    ("A B", "A B: bool", "{}.masked_fill(i, -2.0)", "A B"), ("A B", "B: bool", "torch.where(i, {}, 0.5)", "A B"),
]  # fmt: skip

WINDOWS = [
    ("A B C D", "F.max_pool2d({}, 3, 2, 1)", "A B (C-1)//2+1 (D-1)//2+1"), ("A B D", "F.max_pool1d({}, 3, 1, 1)", "A B D"),
    ("A B C D", "F.max_pool2d({}, 2, 1, 1)", "A B C+1 D+1"), ("A B D", "F.avg_pool1d({}, 4, 1)", "A B D-3"),
    ("A B D", "F.avg_pool1d({}, 8, 1, 4)", "A B D+1"), ("A B D", "F.max_pool1d({}, 4, 2, 2)", "A B D//2+1"),
    ("A B C D", "F.avg_pool2d({}, 3, 1, 1)", "A B C D"), ("A B C D", "F.avg_pool2d({}, 2)", "A B C//2 D//2"),
    ("A B C D", "F.avg_pool2d({}, 3, 1, 1, count_include_pad=False)", "A B C D"),
    ("A B C D", "F.conv2d({}, w, padding=1, groups=x.shape[1])", "A B C D"),
    ("A B D", "F.conv1d({}, v, padding=2, dilation=2, groups=x.shape[1])", "A B D"),
    ("A B C D", "F.interpolate({}, scale_factor=2, mode='nearest')", "A B 2*C 2*D"),
    ("A B C D", "F.adaptive_avg_pool2d({}, 1)", "A B 1 1"),
]  # fmt: skip

LEVELS = ["x", "-x", "x.abs()", "torch.relu(x)", "x * 2", "torch.maximum(x, y)"]
"""What rounding leaves as it is: one step less in what is rounded to a level moves it to another."""
QUANTISED = [
    ("A D", "A D: int8", "A: float32", ["wide = {}.float()",
     "scale = wide.abs().amax(-1, keepdim=True).clamp(min=1e-12) / 127",
     "return (wide / scale).round().clamp(-128, 127).to(torch.int8), scale.squeeze(-1)"]),
    ("A 32*B", "A 32*B: int8", "A B: float32", ["blocks = {}.float().unflatten(-1, (-1, 32))",
     "scale = blocks.abs().amax(-1, keepdim=True).clamp(min=1e-12) / 127",
     "return (blocks / scale).round().clamp(-128, 127).to(torch.int8).flatten(-2), scale.squeeze(-1)"]),
    ("A D", "A D: float8_e4m3fn", "A: float32", ["wide = {}.float()",
     "scale = wide.abs().amax(-1, keepdim=True).clamp(min=1e-12) / 448",
     "return (wide / scale).clamp(-448, 448).to(torch.float8_e4m3fn), scale.squeeze(-1)"]),
    ("A B", "A B: float8_e4m3fn", "A B", ["wide = {}",
     "return (wide * 3).clamp(-448, 448).to(torch.float8_e4m3fn), wide"]),
    ("A B", "A B: float8_e4m3fn", "A B", ["wide = {}",
     "level = wide.clamp(-448, 448).to(torch.float8_e4m3fn)", "return level, wide - level.to(x.dtype)"]),
]  # fmt: skip
RESTORED = ["{}.float() * s[:, None]", "({}.float() - 3) * s[:, None]", "{}.float() * 0.25 + s[:, None]"]

PAIRS = [
    "F.mse_loss({}, y, reduction=R)", "F.l1_loss({}, y, reduction=R)", "F.smooth_l1_loss({}, y, reduction=R, beta=0.5)",
    "F.huber_loss({}, y, reduction=R, delta=0.7)", "F.binary_cross_entropy_with_logits({}, y, reduction=R)",
    "F.soft_margin_loss({}, y, reduction=R)", "F.kl_div({}, y, reduction=R)", "F.kl_div({}, y, reduction=R, log_target=True)",
]  # fmt: skip
CLASSES = [
    "F.cross_entropy({}, t, reduction=R)", "F.cross_entropy({}, t, reduction=R, label_smoothing=0.1)",
    "F.cross_entropy({}, t, reduction=R, ignore_index=0)", "F.nll_loss({}, t, reduction=R)",
    "F.nll_loss(torch.log_softmax({}, -1), t, reduction=R, ignore_index=1)",
    "F.cross_entropy({}, t, c, reduction=R)", "F.cross_entropy({}, t, weight=c, reduction=R, label_smoothing=0.1)",
    "F.nll_loss({}, t, c.abs(), reduction=R, ignore_index=0)",
]  # fmt: skip
ROWS = ["F.triplet_margin_loss({}, y, z, reduction=R)", "F.cosine_similarity({}, y, dim=-1)"]


def _fill(form: str, value: str) -> str:
    return form.format(value) if "{0}" in form else form.format(*[value] * form.count("{}"))


def _made(
    draw: st.DrawFn,
    lines: list[str],
    inputs: dict[str, str],
    outputs: dict[str, str],
    *,
    known: list[dict[str, int]] = SIZES,
    **more: Any,
) -> Sample:
    """The sample at two of the sizes, with the inputs that its lines mention."""
    text = "\n".join(lines)
    kept = {name: shape for name, shape in inputs.items() if name in _names(text)}
    shapes = " ".join([*kept.values(), *outputs.values()])
    sizes = [{k: v for k, v in s.items() if k in shapes} for s in known]
    dtypes = (("T", draw(st.sampled_from(DTYPES))),) if any(":" not in shape for shape in kept.values()) else ()
    return sample(text, kept, outputs, *draw(st.permutations(sizes))[:2], dtypes=dtypes, **more)


def _names(text: str) -> set[str]:
    return set("".join(c if c.isalnum() or c == "_" else " " for c in text).split())


def _around(draw: st.DrawFn, form: str, shape: str) -> tuple[list[str], str, str]:
    """A form between pointwise steps, and a reduction of its last dimension perhaps: lines, result, its shape."""
    moved = _fill(form, _fill(draw(st.sampled_from(BEFORE)), "x"))
    lines = [f"m = {moved}", f"out = {_fill(draw(st.sampled_from(AFTER)), 'm')}"]
    entries = shape.split()
    if draw(st.integers(0, 3)) == 0 and len(entries) > 1 and entries[-1].isidentifier():
        lines.append(f"out = {draw(st.sampled_from(REDUCED)).format('out')}")
        shape = " ".join(entries[:-1])
    return lines, "out", shape


@st.composite
def moves(draw: st.DrawFn) -> Sample:
    """Elements in another order, joined, repeated or padded, between pointwise steps."""
    given, form, shape = draw(st.sampled_from(MOVES))
    lines, result, shape = _around(draw, form, shape)
    inputs = {"x": given, "y": given}
    needs = ("x.shape[-1] >= 3",) if "reflect" in form else ()
    some = "pad" in form or any("amax" in line for line in lines)  # the maximum of no elements is an error of torch's
    known = SIZES if some else [*SIZES, NONE]
    return _made(draw, [*lines, f"return {result}"], inputs, {"made": shape}, known=known, constraints=needs)


@st.composite
def gathers(draw: st.DrawFn) -> Sample:
    """Elements or rows that integers name, and those that a mask chooses."""
    given, index, form, shape = draw(st.sampled_from(GATHERS))
    lines, result, shape = _around(draw, form, shape)
    return _made(draw, [*lines, f"return {result}"], {"x": given, "i": index}, {"made": shape})


@st.composite
def windows(draw: st.DrawFn) -> Sample:
    """Pools, depthwise convolutions and resized images, between pointwise steps."""
    given, form, shape = draw(st.sampled_from(WINDOWS))
    lines, result, shape = _around(draw, form, shape)
    inputs = {"x": given, "w": "B 1 3 3", "v": "B 1 3"}
    needs = ("x.shape[-1] >= 4", "x.shape[-2] >= 2") if "pool" in form and "adaptive" not in form else ()
    needs = needs[: 1 + ("C" in given)]
    return _made(draw, [*lines, f"return {result}"], inputs, {"made": shape}, known=SMALL, constraints=needs)


@st.composite
def quantisation(draw: st.DrawFn) -> Sample:
    """Elements to levels with scales of rows or blocks, and levels to elements."""
    if draw(st.integers(0, 2)) == 0:
        kind = draw(st.sampled_from(["int8", "uint8", "float8_e4m3fn"]))
        lines = [f"return ({draw(st.sampled_from(RESTORED)).format('q')}).to(torch.float16)"]
        return _made(draw, lines, {"q": f"A D: {kind}", "s": "A: float32"}, {"made": "A D: float16"})
    given, levels, scale, lines = draw(st.sampled_from(QUANTISED))
    lines = [line.format(f"({draw(st.sampled_from(LEVELS))})") if "{}" in line else line for line in lines]
    return _made(draw, lines, {"x": given, "y": given}, {"levels": levels, "scale": scale})


@st.composite
def losses(draw: st.DrawFn) -> Sample:
    """Losses of elements, of classes and of rows, as they are, summed or averaged."""
    kind, how = draw(st.sampled_from([PAIRS, PAIRS, CLASSES, ROWS])), draw(st.sampled_from(["none", "mean", "sum"]))
    value = _fill(draw(st.sampled_from(BEFORE)), "x")
    form = draw(st.sampled_from(kind))
    each = "A B" if kind is PAIRS else "A"
    shape = each if how == "none" or "reduction" not in form else ""
    line = _fill(form, value).replace("reduction=R", f"reduction='{how}'")
    inputs = {"x": "A B", "y": "A B", "z": "A B", "c": "B", "t": "A: int64 < B"}
    return _made(draw, [f"return {line}"], inputs, {"loss": shape}, known=[*SIZES, NONE] if kind is PAIRS else SIZES)
