"""References as users write them, of which every one was refused or computed wrong before: planned, and judged."""

import pytest
from references import Sample, failures, sample

_LEAST = {"constraints": ("x.shape[-1] >= 3",)}
_COUNT = "n = w.shape[0]\nreturn torch.bincount(a * n + b, minlength=n * n).reshape(n, n)"
_LABELS = {"a": "M: int64 < C", "b": "M: int64 < C", "w": "C"}
_SHIFTED = """\
fold = x.shape[2] // 8
out = torch.zeros_like(x)
out[:, :-1, :fold] = x[:, 1:, :fold]
out[:, 1:, fold:] = x[:, :-1, fold:]
return out"""
_ROWS = {"N": 3, "D": 70}

REFERENCES: dict[str, Sample] = {
    "nan_to_num": sample("return torch.nan_to_num(x)", {"x": "N D"}, {"out": "N D"}, _ROWS),
    "nan_to_num of the other 16-bit float": sample(
        "return torch.nan_to_num(x, neginf=-3.0)",
        {"x": "N D"},
        {"out": "N D"},
        _ROWS,
        dtypes=(("T", ("bfloat16", "float32")),),
    ),
    "nan_to_num of a product": sample("return torch.nan_to_num(x * 2 + 1)", {"x": "N D"}, {"out": "N D"}, _ROWS),
    "amax of booleans": sample("return (x > 0).amax(-1)", {"x": "N D"}, {"out": "N: bool"}, _ROWS),
    "min of all booleans": sample("return (x > -100).min()", {"x": "N D"}, {"out": ": bool"}, _ROWS),
    "max and its place of booleans": sample(
        "return x.max(-1)", {"x": "N D: bool"}, {"out": "N: bool", "i": "N: int64"}, _ROWS
    ),
    "the least of a row": sample(
        "return torch.topk(x, 3, dim=-1, largest=False)", {"x": "N D"}, {"out": "N 3", "i": "N 3: int64"},
        _ROWS, {"N": 9, "D": 3}, {"N": 5, "D": 4}, **_LEAST,
    ),
    "the least of one row": sample(
        "return torch.topk(x, 3, largest=False)", {"x": "D"}, {"out": "3", "i": "3: int64"}, {"D": 70}, {"D": 3}, **_LEAST
    ),
    "topk of integers on the way": sample(
        "return torch.topk(x, 3, dim=-1).values * 2", {"x": "N D: int32"}, {"out": "N 3: int32"}, _ROWS, **_LEAST
    ),
    "a confusion matrix": sample(_COUNT, _LABELS, {"out": "C C: int64"}, {"M": 50, "C": 4}),
    "bincount with weights": sample(
        "return torch.bincount(a, w.float(), y.shape[0])", {"a": "M: int64 < C", "w": "M", "y": "C"},
        {"out": "C: float32"}, {"M": 50, "C": 4},
    ),
    "interleaved by writes": sample(
        "out = torch.empty_like(x)\nout[:, ::2] = -x[:, 1::2]\nout[:, 1::2] = x[:, ::2]\nreturn out",
        {"x": "N 2*D"}, {"out": "N 2*D"}, {"N": 3, "D": 35},
    ),
    "every third": sample(
        "out = x.clone()\nout[:, 1::3] *= 2\nreturn out", {"x": "N D"}, {"out": "N D"}, _ROWS, {"N": 3, "D": 71},
        {"N": 3, "D": 4}, constraints=("x.shape[1] >= 2",),
    ),
    "a step between two numbers": sample(
        "out = x.clone()\nout[:, 1:40:3] = y\nreturn out", {"x": "N 64", "y": "N 13"}, {"out": "N 64"}, {"N": 3}
    ),
    "two dimensions with steps": sample(
        "out = x.new_zeros(x.shape[0], 2 * x.shape[1], 2 * x.shape[2])\nout[:, ::2, ::2] = x\nreturn out",
        {"x": "N H W"}, {"out": "N 2*H 2*W"}, {"N": 3, "H": 9, "W": 5},
    ),
    "a temporal shift": sample(
        _SHIFTED, {"x": "B T 8*C"}, {"out": "B T 8*C"}, {"B": 2, "T": 3, "C": 2}, constraints=("x.shape[1] >= 2",)
    ),
    "kron": sample("return torch.kron(a, b)", {"a": "M N", "b": "P Q"}, {"out": "M*P N*Q"}, {"M": 3, "N": 4, "P": 5, "Q": 2}),
    "a power by a size": sample(
        "return x * 0.9 ** x.shape[1]", {"x": "N D"}, {"out": "N D"}, {"N": 3, "D": 1}, {"N": 2, "D": 801}
    ),
    "a power near one by half a size": sample(
        "return x / (1 - 0.999 ** (x.shape[0] // 2))", {"x": "N D"}, {"out": "N D"}, {"N": 30, "D": 7}, {"N": 501, "D": 3}
    ),
    "rows against columns of one input": sample(
        "return ids[:, :, None] == ids[:, None, :]", {"ids": "B S: int64"}, {"out": "B S S: bool"}, {"B": 3, "S": 9}
    ),
    "two places of one input": sample(
        "return torch.cat([c[0, ..., :8], c[1, ..., 8:]], dim=-1)", {"c": "3 B S 32"}, {"out": "B S 32"}, {"B": 2, "S": 5}
    ),
    "two places of a contiguous input": sample(
        "return torch.cat([c[0, ..., :8], c[1, ..., 8:]], dim=-1)", {"c": "3 B S 32"}, {"out": "B S 32"}, {"B": 2, "S": 5},
        constraints=("c.is_contiguous()",),
    ),
    "a search in sorted rows": sample(
        "s = torch.sort(x, dim=-1).values\nreturn torch.searchsorted(s, v)", {"x": "N D", "v": "N K"},
        {"out": "N K: int64"}, {"N": 3, "D": 9, "K": 5},
    ),
    "multi_margin_loss": sample(
        "return F.multi_margin_loss(x, t, p=2, margin=0.5, weight=w, reduction='none')",
        {"x": "N C", "t": "N: int64 < C", "w": "C"}, {"out": "N"}, {"N": 3, "C": 70},
        dtypes=(("T", ("float32",)),),
    ),
    "multi_margin_loss of one row": sample(
        "return F.multi_margin_loss(x, t)", {"x": "C", "t": ": int64 < C"}, {"out": ""}, {"C": 70},
        dtypes=(("T", ("float32",)),),
    ),
    "kron of a vector": sample("return a.kron(b)", {"a": "M N", "b": "P"}, {"out": "M N*P"}, {"M": 3, "N": 4, "P": 5}),
}  # fmt: skip

REFERENCES |= {
    f"grid_sample, {mode}, {padding}": sample(
        f"return F.grid_sample(x, g, mode='{mode}', padding_mode='{padding}', align_corners={mode == 'nearest'})",
        {"x": "N C H W", "g": "N P Q 2"}, {"out": "N C P Q"}, {"N": 2, "C": 3, "H": 6, "W": 7, "P": 6, "Q": 10},
        dtypes=(("T", ("float32",)),),
    )
    for mode, padding in (("bilinear", "zeros"), ("bilinear", "border"), ("bilinear", "reflection"), ("nearest", "reflection"))
}  # fmt: skip


@pytest.mark.parametrize("name", REFERENCES)
def test_a_reference_is_taken_and_right(name: str) -> None:
    most = 1 if name.startswith("grid_sample") else 3
    assert failures(REFERENCES[name], most=most) == []
