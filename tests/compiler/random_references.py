"""Hypothesis strategies that draw references: pointwise trees, and chains of row reductions."""

from __future__ import annotations

import re
from typing import Any

import torch
from hypothesis import reject
from hypothesis import strategies as st
from random_moves import DTYPES
from references import Sample, tensor

UNARY = [
    *("torch.exp({})", "torch.tanh({})", "torch.sigmoid({})", "torch.expm1({})", "torch.log1p({})", "torch.erf({})"),
    *(
        "torch.relu({})",
        "{}.abs()",
        "-{}",
        "{}.square()",
        "F.silu({})",
        "F.gelu({})",
        "F.gelu({}.clamp(-3, 3), approximate='tanh')",
    ),
    *("F.softplus({})", "F.elu({})", "F.leaky_relu({}, 0.1)", "{}.clamp(-0.5, 0.75)", "torch.sin({})", "{} ** 3"),
    *("torch.sqrt({}.abs())", "torch.rsqrt({}.abs() + 0.5)", "torch.reciprocal({}.abs() + 1)", "F.hardswish({})"),
    *(
        "{} * 0.7",
        "1 - {}",
        "{}.to(x.dtype)",
        "{}.float()",
        "F.logsigmoid({})",
        "torch.masked_fill({0}, {0} > 1, 0.25)",
    ),
    *("torch.sign({}) * 0.5", "torch.nan_to_num({}, 0.5, 2.0, -2.0)", "({}.abs() + 0.5) ** 1.5", "torch.atan({})"),
    *("torch.asinh({})", "torch.erfc({})", "2 ** {}.clamp(-8, 8)", "F.celu({}, 0.5)", "torch.copysign({}, -1.0)"),
]
BINARY = [
    *("{} + {}", "{} - {}", "{} * {}", "torch.maximum({}, {})", "torch.minimum({}, {})", "{} / ({}.abs() + 1)"),
    *(
        "torch.where({0} > {1}, {0}, {1})",
        "torch.where({0} >= 0.5, {1}, 0.0)",
        "torch.lerp({}.float(), {}.float(), 0.7)",
    ),
    *("torch.addcmul({0}, {0}, {1}, value=0.5)", "torch.where({}.isnan(), 1.0, {})"),
    *("torch.hypot({}.float(), {}.float())", "torch.atan2({}.float(), {}.float().abs() + 1)"),
    *(
        "torch.logaddexp({}.float(), {}.float())",
        "torch.fmax({}, {})",
        "torch.lerp({0}.float(), {1}.float(), {0}.float())",
        "torch.stack(torch.broadcast_tensors({}.float(), {}.float())).logsumexp(0)",
        "torch.stack(torch.broadcast_tensors({}.float(), {}.float() * 2)).mean(0)",
    ),
]
BOOL = [
    "{} > {}",
    "{} <= 0.5 * {}",
    "~({0} == {1})",
    "torch.isinf({0}) | ({0} < {1})",
    "torch.logical_and({0} > 0, {0} - {1})",
    "torch.isfinite({0}) & ({0} < {1})",
]
OF_INT = [
    "{0} * 2 + i",
    "{0} - i",
    "torch.where({0} > i, {0}, i)",
    "torch.maximum({0}, i)",
    "({0} & 7) | (i ^ 1)",
    "-{0}",
    "{0}.abs()",
    "{0} % 5 + i // 3",
    "({0} >> 1) - (i << 2)",
    "{0} // (i.abs() | 1)",
    "torch.fmod({0}, 7) * i.sign()",
]
ROWS = [
    *(
        "{}.sum(-1, keepdim=True)",
        "{}.mean(-1, keepdim=True)",
        "{}.amax(-1, keepdim=True)",
        "{}.amin(-1, keepdim=True)",
    ),
    *("{}.var(-1, correction=0, keepdim=True)", "{}.abs().sum(-1, keepdim=True)", "{}.square().mean(-1, True)"),
    *("torch.logsumexp({}, -1, keepdim=True)", "{}.norm(dim=-1, keepdim=True)", "torch.exp({}).sum(-1, True)"),
    *("{}.norm(float('inf'), -1, True)", "({} > 0).sum(-1, keepdim=True)"),
    "({0}.sum(-1, keepdim=True) / (x.shape[-1] - 1 + 0.5))",
    "({0}.square().sum(-1, keepdim=True) * (x.shape[-1] // 2 / 3))",
]
CHAINS = [
    *("torch.softmax({}, -1)", "torch.log_softmax({}, dim=-1)", "F.layer_norm({}, {}.shape[-1:])"),
    *("F.layer_norm({0}, {0}.shape[-1:], w, b, 1e-3)", "F.rms_norm({0}, {0}.shape[-1:], w, 1e-5)"),
    *("{} + w", "{} * w + b", "{} + y", "torch.relu({})", "{} * s[..., None]", "torch.tanh({})", "{}.clamp(max=0.8)"),
    *("torch.where({0} > 0.1, {0}, y)", "{} * torch.rsqrt({}.square().mean(-1, keepdim=True) + 1e-5)"),
]

OVER = [
    *("{}.sum({dims}, keepdim=True)", "{}.mean({dims}, True)", "{}.amax({dims}, True)"),
    *(
        "{}.logsumexp({dims}, True)",
        "{}.var({dims}, correction=0, keepdim=True)",
        "{}.square().mean({dims}, True).sqrt()",
    ),
]
"""Reductions over the dimensions `dims`."""

SCANS = ["cumsum(-1)", "cumsum(-1)", "cummax(-1).values", "cummin(-1).values", "logcumsumexp(-1)", "cumprod(-1)"]
BEFORE_SCANS = [
    *("torch.tanh({})", "torch.where(m, {}, 0).clamp(-1, 1)", "torch.sigmoid({} * m)", "({} + w).clamp(-1.5, 1)"),
    *("torch.tanh({} * s[..., None])", "torch.sin({} - y)"),
]
AFTER_SCANS = [
    "{} - x",
    "{} * w",
    "torch.where(m, {}, y)",
    "{} + s[..., None]",
    "{}.to(x.dtype)",
    "torch.exp(-{}.abs())",
]

BEFORE_SELECTIONS = ["x", "-x", "x.abs()", "x.clamp(-1, 1)", "torch.maximum(x, y)", "torch.where(x > 0, x, y)", "x + w"]
"""Steps of which a tie is one, or none, however they are rounded."""

SCATTERS = {
    "x.index_add(0, i, y)": [("A B", "D", "D B"), ("A B C", "D", "D B C"), ("A 3", "B", "B 3")],
    "torch.zeros_like(x).index_add(0, i, y)": [("A B", "D", "D B")],
    "x.scatter_add(0, i, y)": [("A B", "D B", "D B"), ("A B C", "D B C", "D B C"), ("A", "D", "D")],
    "x.scatter_add(-1, i, y)": [("... A", "... D", "... D"), ("B C A", "B C D", "B C D")],
    "x.scatter(0, i, y)": [("A B", "D B", "D B"), ("A", "D", "D")],
    "x.scatter_reduce(-1, i, y, 'amax')": [("B A", "B D", "B D"), ("A", "D", "D")],
    "x.scatter_reduce(0, i, y, 'amin', include_self=False)": [("A B", "D B", "D B")],
    "x.index_copy(0, i, y)": [("A B", "D", "D B")],
}
"""The shapes of x, i and y, whose indices are below A."""

_SIZES: list[dict[str, Any]] = [
    {"...": (3,), "A": 5, "B": 7, "C": 2, "D": 37}, {"...": (), "A": 1, "B": 19, "C": 3, "D": 1},
    {"...": (2, 2), "A": 3, "B": 1, "C": 4, "D": 16}, {"...": (0,), "A": 2, "B": 17, "C": 1, "D": 33},
]  # fmt: skip


def _fill(form: str, *names: str) -> str:
    """A form with its operands, the first repeated where only one is meant."""
    return form.format(*names) if "{0}" in form else form.format(*(names * 2)[: form.count("{}")])


@st.composite
def pointwise(draw: st.DrawFn) -> Sample:
    """A tree over one full input and up to three that broadcast against it."""
    full = draw(st.sampled_from(["... D", "A B", "A B D", "D", "A 4 D"]))
    sizes = full.split()
    inputs = [tensor("x", full)]
    for name in draw(st.sampled_from([(), ("y",), ("y", "z"), ("y", "z", "w")])):
        kept = sizes[draw(st.integers(0, len(sizes))) :]
        shape = [s if s == "..." or draw(st.booleans()) else "1" for s in kept]
        inputs.append(tensor(name, " ".join(shape), draw(st.sampled_from(["T", "T", "float32", "bool", "int32"]))))
    with_ints = draw(st.booleans())
    if with_ints:
        inputs.append(tensor("i", " ".join(sizes[-1:]), draw(st.sampled_from(["int32", "int64", "int8"]))))
    floats = [t.name if t.dtype in ("T", "float32") else f"{t.name}.float()" for t in inputs if t.name != "i"]
    lines, results = [], []
    for step in range(draw(st.integers(1, 5))):
        a, b = draw(st.sampled_from(floats)), draw(st.sampled_from(floats))
        forms = draw(st.sampled_from([UNARY, BINARY, BINARY, BOOL]))
        lines.append(f"t{step} = {_fill(draw(st.sampled_from(forms)), a, b)}")
        floats.append(f"t{step}.to(x.dtype)" if forms is BOOL else f"t{step}")
        results.append(f"t{step}")
    if with_ints:
        lines.append(f"n = {_fill(draw(st.sampled_from(OF_INT)), '(i * 3)')}")
        results.append("n")
    kept = [*results[-1:], *draw(st.lists(st.sampled_from(results), max_size=2, unique=True))]
    chosen = [f"{name}.expand(x.shape)" for name in dict.fromkeys(kept)]
    return _declared(draw, inputs, lines, chosen, dict.fromkeys(chosen, full))


@st.composite
def reductions(draw: st.DrawFn) -> Sample:
    """A chain over rows with a residual, weights and a scalar for each row."""
    outer = draw(st.sampled_from(["...", "A", "A B", ""]))
    full = f"{outer} D"
    inputs = [
        tensor("x", full), tensor("y", full), tensor("w", "D"), tensor("b", "D"),
        tensor("s", outer, draw(st.sampled_from(["T", "float32"]))),
    ]  # fmt: skip
    lines, value, rows = [], "x", []
    for step in range(draw(st.integers(1, 4))):
        row = draw(st.booleans())
        text = _fill(draw(st.sampled_from(ROWS if row else CHAINS)), value, value)
        lines.append(f"t{step} = {text}")
        if row:
            rows.append(f"t{step}")
            combine = draw(st.sampled_from(["{} - t{}", "{} / (t{}.abs() + 1)", "{} + t{}", "{} * t{}"]))
            lines.append(f"u{step} = {combine.format(value, step)}")
        value = f"u{step}" if row else f"t{step}"
    if not rows:
        lines.append(f"last = {_fill(draw(st.sampled_from(ROWS)), value, value)}")
        rows.append("last")
    outputs = {f"{row}.squeeze(-1)": outer for row in draw(st.lists(st.sampled_from(rows), max_size=2, unique=True))}
    if draw(st.booleans()) or not outputs:
        outputs[value] = full
    if outer in ("A", "A B") and draw(st.booleans()):
        outputs[f"{rows[-1]}.{draw(st.sampled_from(['mean()', 'sum()', 'amax()']))}"] = ""
    used = " ".join([*lines, *outputs])
    inputs = [t for t in inputs if t.name == "x" or _mentions(used, t.name)]
    return _declared(draw, inputs, lines, list(outputs), outputs)


@st.composite
def over_dimensions(draw: st.DrawFn) -> Sample:
    """Reductions over any dimensions, one after the other, between steps that broadcast their results."""
    sizes = draw(st.sampled_from(["A B", "A B D", "A B C D"])).split()
    dims = sorted(draw(st.lists(st.integers(0, len(sizes) - 1), min_size=1, unique=True)))
    kept = " ".join(s for d, s in enumerate(sizes) if d not in dims)
    weight = draw(st.sampled_from(sizes))
    place = "".join(", None" for _ in sizes[sizes.index(weight) + 1 :])
    inputs = [tensor("x", " ".join(sizes)), tensor("w", weight)]
    lines, value, outputs = [], "x", {}
    for step in range(draw(st.integers(1, 2))):
        form = draw(st.sampled_from(OVER)).format(value, dims=tuple(dims))
        back = draw(st.sampled_from(["{} - t{}", "{} / (t{}.abs() + 1)"])).format(value, step)
        lines += [f"t{step} = {form}", f"u{step} = {back}"]
        value = f"u{step}"
        outputs[
            f"t{step}.reshape({', '.join(f'x.shape[{d}]' for d in range(len(sizes)) if d not in dims) or '()'})"
        ] = kept
    if draw(st.booleans()):
        outputs[f"{value} * w[:{place}]"] = " ".join(sizes)
    used = " ".join([*lines, *outputs])
    inputs = [t for t in inputs if t.name == "x" or _mentions(used, t.name)]
    return _declared(draw, inputs, lines, list(outputs), outputs)


@st.composite
def scans(draw: st.DrawFn) -> Sample:
    """Scans of a row in one direction, with pointwise steps before, between and after them."""
    outer = draw(st.sampled_from(["...", "A", "A B", ""]))
    full = f"{outer} D"
    inputs = [tensor("x", full), tensor("y", full), tensor("m", full, "bool"), tensor("w", "D"), tensor("s", outer)]
    form = draw(st.sampled_from(["{}", "{}.flip(-1).SCAN.flip(-1)"]))
    lines, value, results = [], "x", []
    for step in range(draw(st.integers(1, 3))):
        lines.append(f"t{step} = {_fill(draw(st.sampled_from(BEFORE_SCANS)), value)}")
        scan = draw(st.sampled_from(SCANS))
        text = form.replace("SCAN", scan) if "SCAN" in form else f"{{}}.{scan}"
        lines.append(f"u{step} = {text.format(f't{step}')}")
        results.append(f"u{step}")
        if draw(st.booleans()):
            lines.append(f"v{step} = {_fill(draw(st.sampled_from(AFTER_SCANS)), f'u{step}')}")
            results.append(f"v{step}")
        value = results[-1]
    chosen = list(dict.fromkeys([value, *draw(st.lists(st.sampled_from(results), max_size=2, unique=True))]))
    used = " ".join([*lines, *chosen])
    inputs = [t for t in inputs if t.name == "x" or _mentions(used, t.name)]
    return _declared(draw, inputs, lines, chosen, dict.fromkeys(chosen, full))


@st.composite
def selections(draw: st.DrawFn) -> Sample:
    """The greatest of every row, of a tensor that is computed and has few or many equal elements."""
    outer, length = draw(st.sampled_from(["...", "A", "A B"])), draw(st.sampled_from([33, 64]))
    k = draw(st.sampled_from([1, 2, 7, 8, 32]))
    line = f"values, indices = ({draw(st.sampled_from(BEFORE_SELECTIONS))}).topk({k}, dim=-1)"
    inputs = [tensor(name, f"{outer} {length}") for name in "xy"] + [tensor("w", str(length))]
    inputs = [t for t in inputs if t.name == "x" or _mentions(line, t.name)]
    results = draw(st.sampled_from([("values", "indices"), ("indices", "values"), ("values",), ("indices",)]))
    return _declared(draw, inputs, [line], list(results), dict.fromkeys(results, f"{outer} {k}"))


@st.composite
def scatters(draw: st.DrawFn) -> Sample:
    """Rows or elements added to where indices say, of which some are named often and some never."""
    form = draw(st.sampled_from(list(SCATTERS)))
    x, i, y = draw(st.sampled_from(SCATTERS[form]))
    deterministic = draw(st.booleans())
    stored = deterministic and ("scatter_add" in form or len(x.split()) == 1)
    whole = ["int32", *([] if "reduce" in form else ["int64"])]
    dtype = draw(st.sampled_from(["float32", *whole, *([] if stored else ["T", "T"])]))
    index = draw(st.sampled_from(["int32", "int64"])) if "index_add" in form else "int64"
    inputs = (tensor("x", x, dtype), tensor("i", i, index, below="A"), tensor("y", y, dtype))
    sizes = [{k: v for k, v in s.items() if any(k in t.shape for t in inputs)} for s in _SIZES]
    chosen = tuple(draw(st.permutations(sizes))[:2])
    dtypes = (("T", draw(st.sampled_from(DTYPES))),) if dtype == "T" else ()
    return Sample(inputs, (tensor("out", x, dtype),), (f"return {form}",), chosen, dtypes, deterministic=deterministic)


def _mentions(text: str, name: str) -> bool:
    return re.search(rf"\b{name}\b", text) is not None


def _declared(
    draw: st.DrawFn, inputs: list[Any], lines: list[str], results: list[str], shapes: dict[str, str]
) -> Sample:
    """The sample with outputs declared as torch makes them, those whose dtype follows no variable cast."""
    sizes = [{k: v for k, v in s.items() if any(k in t.shape for t in inputs)} for s in _SIZES]
    chosen = tuple(draw(st.permutations(sizes))[:2])
    made = []
    for dtype in (torch.float16, torch.float32):
        scope: dict[str, Any] = {"torch": torch, "F": torch.nn.functional}
        body = "".join(f"    {line}\n" for line in [*lines, f"return ({', '.join(results)},)"])
        exec(f"def op({', '.join(t.name for t in inputs)}):\n{body}", scope)
        try:
            made.append([t.dtype for t in scope["op"](*(_example(t, dtype) for t in inputs))])
        except RuntimeError:  # no reference: torch itself refuses it, such as the mean of integers
            reject()
    returned, outputs = [], []
    for i, (result, half, single) in enumerate(zip(results, *made, strict=True)):
        name = str(half).removeprefix("torch.")
        if half != single:
            name = "T"
        elif half in (torch.float16, torch.float32) and draw(st.booleans()):
            result, name = f"({result}).to(x.dtype)", "T"
        returned.append(result)
        outputs.append(tensor(f"out{i}", shapes[results[i]], name))
    dtypes = (("T", draw(st.sampled_from(DTYPES))),)
    return Sample(tuple(inputs), tuple(outputs), (*lines, f"return {', '.join(returned)}"), chosen, dtypes)


def _example(declared: Any, dtype: torch.dtype) -> torch.Tensor:
    values = {"...": (3,), "A": (5,), "B": (7,), "C": (2,), "D": (9,)}
    shape = [s for entry in declared.shape for s in ((entry,) if isinstance(entry, int) else values[entry])]
    return torch.ones(shape, dtype=dtype if declared.dtype == "T" else getattr(torch, declared.dtype))
