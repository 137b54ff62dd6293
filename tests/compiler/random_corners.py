"""Hypothesis strategies that draw references where kernels were once wrong: truth values and what is made of them,
slices from anywhere, operands of one element, gathers beside broadcasts, and names that kernels use themselves."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace

from hypothesis import reject
from hypothesis import strategies as st
from random_moves import _fill, _made, moves
from random_references import _declared, _mentions, pointwise, reductions
from references import Sample, tensor

from kernelgen.families.helpers import HELPERS

ONES = "torch.ones_like(x, dtype=torch.bool)"
TRUTHS = [
    "(x > 0)", "(x <= y)", "m", "m", "x.bool()", "i.bool()", "torch.isnan(x)", f"{ONES}.tril()", f"{ONES}.triu(1)", ONES,
    "torch.zeros_like(x, dtype=torch.bool)", "torch.where(x > 0, True, False)", "torch.where(m, x > 0, True)",
    "torch.eye(x.shape[0], x.shape[1], dtype=torch.bool, device=x.device)",
]  # fmt: skip
CHOICES = [
    "{}.tril()", "{}.triu(1)", "{}.masked_fill({}, 1)", "{}.masked_fill({}, False)", "torch.where({}, {}, True)",
    "F.pad({}, (-1, 1), value=True)", "torch.where({}, True, False)",
]  # fmt: skip
"""Truth values beside constants."""
OF_TRUTHS = [
    "(~{})", "(~{})", "({} & {})", "({} | {})", "({} ^ {})", "({} == {})", "({} != {})", "({} < {})", "({} * {})",
    "({} + {})", "({} ^ True)", "torch.where({}, {}, True)", "{}.masked_fill({}, False)", "{}.masked_fill({}, 1)",
    "{}.tril()", "{}.tril()", "{}.triu(1)", "{}.roll(1, -1)", "{}.flip(-1)", "F.pad({}, (-1, 1), value=True)", "{}.logical_not()",
    "torch.maximum({}, {})", "{}.int().bool()", "(torch.where({}, 1, 0) > 0)", "{}.any(-1, keepdim=True)",
    "{}.all(-1, keepdim=True)", "torch.cat([{}, {}], 0)[:x.shape[0]]", "torch.stack([{}, {}], 0)[1]",
]  # fmt: skip
FROM_TRUTHS = [
    ("x.masked_fill({}, -1.0)", "A B"), ("x.masked_fill(~{}, -1.0)", "A B"), ("torch.where({}, x, 0.5)", "A B"),
    ("x * {}", "A B"), ("(~{} & m)", "A B"), ("(~{} | m).sum(-1)", "A"), ("(x + ~{}).sum(-1)", "A"),
    ("torch.softmax(x.masked_fill(~{}, -3.0), -1)", "A B"), ("torch.where({}, 2**30, 1) * i", "A B"),
    ("~torch.where({}, 1, 0) - i", "A B"), ("({} & m).cumsum(-1)", "A B"), ("(i + {}) * 3", "A B"),
]  # fmt: skip
"""What is made of a truth value, and its shape."""

AROUND = ["{}", "{}", "torch.cat([{}, {}], -1)[:, :1]", "torch.tanh({})", "-{}", "{}.flip(-1)"]
ENDS = ["{}", "{}", "torch.softmax({}, -1)", "{}.cumsum(-1)", "({} - {}.amax(-1, keepdim=True))", "{} * 2"]
ENDINGS = ["{}.sum(-1)", "{}.amax(-1)", "{}.sum()", "{}.square().mean(-1)"]
OPERANDS = ["x", "x", "y", "s.expand(x.shape[0], 1)", "x.sum(-1, keepdim=True)", "x.amax(-1, keepdim=True)", "y * 0.5"]
"""Operands of as many rows as x: those but x have one column."""
FLAT = ["v", "v", "o", "s", "v.sum()[None]", "v.norm()[None]", "(o * 2)"]
"""Of one dimension: those but v have one element."""

BESIDE = [
    ("A", "t[i][:, None, :]", "C D"), ("A", "F.embedding(i, t)[:, None, :]", "C D"), ("B", "t[i]", "C D"),
    ("B", "F.embedding(i, t)", "C D"), ("D", "t[:, i]", "B C"), ("D", "t[i]", "C"), ("A", "t[i][:, :, None]", "C B"),
    ("A", "t[i][:, None, None]", "C"), ("A B", "t[i]", "C D"), ("A B", "t[i][..., None]", "C"),
    ("A", "t.index_select(0, i)[:, None]", "C D"), ("A", "t[torch.arange(x.shape[0], device=x.device), i][:, None]", "A C D"),
    ("A D", "t.gather(1, i)[:, None]", "A C"), ("1", "t[i][None]", "C D"), ("A", "t[u[i]][:, None, :]", "C D"),
    ("A", "t[i][:, None, :]", "C 1"), ("B", "(t > 0)[i]", "C D"),
]  # fmt: skip
"""The shape of indices, what they name in a table, as broad as x[A, B, D], and the shape of the table."""
WITH = ["x + {}", "x * {}", "torch.where({} > 0, x, 0.5)", "x - torch.tanh(x + {})", "torch.maximum(x, {}.to(x.dtype))"]
THEN = [
    ("{}", "A B D"), ("{}", "A B D"), ("{}.sum(-1)", "A B"), ("torch.softmax({}, -1)", "A B D"), ("{}.amax(1)", "A D"),
    ("{}.transpose(1, 2)", "A D B"), ("F.pad({}, (1, 2))", "A B D+3"), ("F.avg_pool1d({}, 3, 1, 1)", "A B D"),
    ("{}.flip(-1)", "A B D"),
]  # fmt: skip

ODD = [
    "kernel", "grid", "options", "M", "N", "inverse_x", "mean", "num_tiles", "size", "row", "cols", "mask",
    "rstd", "x_ptr", "BLOCK_SIZE", "device", "offsets", "denominator", "x_view", "stride_xm", "num_warps", "schedule",
]  # fmt: skip
VARIABLES = [f"_{name}" for name in HELPERS] + ["tile", "acc", "total", "row_max", "program", "start", "part", "tl_"]


@st.composite
def truths(draw: st.DrawFn) -> Sample:
    """Truth values of every origin, joined, moved and negated, and what is chosen, counted or summed by them."""
    lines, known = [], list(TRUTHS)
    for step in range(draw(st.integers(1, 3))):
        form = draw(st.sampled_from(OF_TRUTHS if step else CHOICES))
        operands = [draw(st.sampled_from(known)) for _ in range(form.count("{}"))]
        lines.append(f"t{step} = {form.format(*operands)}.expand(x.shape)")
        known += [f"t{step}"] * 8
    form, shape = draw(st.sampled_from(FROM_TRUTHS))
    result = form.format(draw(st.sampled_from([known[-1], f"(~{known[-1]})"])))
    inputs = [tensor("x", "A B"), tensor("y", "A B"), tensor("m", "A B", "bool"), tensor("i", "A B", "int64")]
    used = " ".join([*lines, result])
    inputs = [t for t in inputs if t.name == "x" or _mentions(used, t.name)]
    return _declared(draw, inputs, lines, [result], {result: shape})


@st.composite
def slices(draw: st.DrawFn) -> Sample:
    """Slices, places, rolls and pads of fixed dimensions, from anywhere and beyond either end."""
    columns, first = draw(st.integers(1, 6)), draw(st.booleans())
    lines, size = [], columns
    for step in range(draw(st.integers(1, 2))):
        near = st.integers(-size - 4, size + 4)
        what = draw(st.sampled_from(["slice", "slice", "slice", "roll", "pad", "narrow"]))
        value = "x" if not step else f"t{step - 1}"
        if what == "slice":
            start, end = draw(st.one_of(st.none(), near)), draw(st.one_of(st.none(), near))
            by = draw(st.sampled_from([1, 1, 2, 3]))
            shown = ":".join("" if n is None else str(n) for n in (start, end)) + (f":{by}" if by > 1 else "")
            made, size = f"{value}[{shown}]" if first else f"{value}[:, {shown}]", len(range(size)[start:end:by])
        elif what == "roll":
            made = f"{value}.roll({draw(near)}, {0 if first else 1})"
        elif what == "pad":
            widths = draw(st.integers(1 - size, 3)), draw(st.integers(0, 3))
            before, after = widths if draw(st.booleans()) else widths[::-1]
            shown = f"0, 0, {before}, {after}" if first else f"{before}, {after}"
            made, size = f"F.pad({value}, ({shown}), value=0.5)", size + before + after
        else:
            start = draw(st.integers(-size, size - 1))
            length = draw(st.integers(1, size - start % size))
            made, size = f"{value}.narrow({0 if first else 1}, {start}, {length})", length
        if not size:
            reject()
        lines.append(f"t{step} = {made}")
    shape, given_ = (f"{size} A", f"{columns} A") if first else (f"A {size}", f"A {columns}")
    after = draw(st.sampled_from(["{} * 2", "{}", "torch.tanh({})", "{}.sum(-1)"]))
    shape = shape.split()[0] if after.endswith("sum(-1)") else shape
    return _made(draw, [*lines, f"return {after.format(f't{step}')}"], {"x": given_}, {"made": shape})


@st.composite
def parts(draw: st.DrawFn) -> Sample:
    """Writes to slices and places of what the reference made, one after the other."""
    columns = draw(st.integers(2, 6))
    lines = [f"y = {draw(st.sampled_from(['x * 2', 'torch.zeros_like(x)', 'x.clone()', '-x']))}"]
    for _ in range(draw(st.integers(1, 3))):
        start = draw(st.integers(0, columns - 1))
        end, last = draw(st.integers(start + 1, columns)), draw(st.integers(1, columns))
        part = draw(
            st.sampled_from(["0", f":, {start}", f":, {start}:{end}", f":, -{last}:", f"..., :{end}", "-1:", "1:"])
        )
        value = draw(st.sampled_from(["= 0.5", "+= 1", "*= 0.5", f"= x[{part}]", f"= x[{part}].flip(-1) + 1", "-= w"]))
        lines.append(f"y[{part}] {'= 3' if 'w' in value and ',' in part else value}")
    after, shape = draw(st.sampled_from([("y", f"A {columns}"), ("y - x", f"A {columns}"), ("y.sum(-1)", "A")]))
    return _made(draw, [*lines, f"return {after}"], {"x": f"A {columns}", "w": f"{columns}"}, {"made": shape})


@st.composite
def single_elements(draw: st.DrawFn) -> Sample:
    """Operands of one element joined with longer ones, beside reductions and scans."""
    flat = draw(st.booleans())
    parts = draw(st.lists(st.sampled_from(FLAT if flat else OPERANDS), min_size=2, max_size=3))
    longer = sum(p in ("x", "v") for p in parts)
    name, rows = ("B", "") if flat else ("B", "A ")
    length = "".join([f"{longer}*{name}" if longer > 1 else name if longer else "", f"+{len(parts) - longer}"])
    length = length.removesuffix("+0").removeprefix("+")
    lines = [f"joined = torch.cat([{', '.join(parts)}], -1)", f"made = {_fill(draw(st.sampled_from(ENDS)), 'joined')}"]
    ending = draw(st.sampled_from(["{}", *ENDINGS]))
    shape = f"{rows}{length}" if ending == "{}" else "" if ending == "{}.sum()" else rows.strip()
    if not any(_mentions(" ".join(parts), n) for n in "xv"):
        lines.append("made = made * v.sum()" if flat else "made = made * x.sum()")
    inputs = {"x": "A B", "y": "A 1", "s": "1", "v": "B", "o": "1"}
    return _made(draw, [*lines, f"return {ending.format('made')}"], inputs, {"out": shape})


@st.composite
def beside_gathers(draw: st.DrawFn) -> Sample:
    """What indices name in a table, broadcast beside a tensor of more dimensions."""
    index, form, table = draw(st.sampled_from(BESIDE))
    below = (
        "B" if ":, i" in form and table == "B C" else table.split()[1 if "gather" in form or "arange" in form else 0]
    )
    below = "C" if ":, i" in form else below
    value = _fill(draw(st.sampled_from(WITH)), form)
    then, shape = draw(st.sampled_from(THEN))
    lines = [f"made = {value}", f"return {_fill(then, 'made')}"]
    inputs = {"x": "A B D", "t": table, "i": f"{index}: int64 < {below}", "u": f"{below}: int64 < {below}"}
    return _made(draw, lines, inputs, {"out": shape})


@st.composite
def names(draw: st.DrawFn) -> Sample:
    """Inputs and variables with names that kernels, their helpers or their wrappers have themselves."""
    kinds: list[Callable[[], st.SearchStrategy[Sample]]] = [pointwise, reductions, moves]
    found = draw(draw(st.sampled_from(kinds))())
    assigned = dict.fromkeys(m[1] for line in found.lines if (m := re.match(r"(\w+) = ", line)))
    inputs = dict.fromkeys(t.name for t in found.inputs)
    others = draw(st.permutations(ODD))[: len(inputs)], draw(st.permutations(VARIABLES))[: len(assigned)]
    new = dict(zip([*inputs, *assigned], [*others[0], *others[1]], strict=True))
    text = re.sub(r"(?<![\w.])(\w+)\b(?!\s*=[^=](?=[^()]*\)))", lambda m: new.get(m[1], m[1]), "\n".join(found.lines))
    renamed = tuple(replace(t, name=new[t.name]) for t in found.inputs)
    needs = tuple(re.sub(r"^\w+", lambda m: new.get(m[0], m[0]), c) for c in found.constraints)
    return replace(found, inputs=renamed, lines=tuple(text.splitlines()), constraints=needs)
