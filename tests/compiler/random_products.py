"""Random sums of products with sizes in what stands before and after them: sizes that no dimension of a tile is."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st
from references import Sample, sample

from kernelgen.spec.model import PRECISIONS

_MATRICES: tuple[dict[str, Any], ...] = (
    {"A": 3, "B": 5, "C": 17, "D": 33, "...": (2, 3)}, {"A": 1, "B": 20, "C": 3, "D": 16, "...": ()},
)  # fmt: skip
_IMAGES: tuple[dict[str, Any], ...] = (
    {"A": 2, "B": 3, "C": 5, "H": 6, "W": 7},
    {"A": 1, "B": 17, "C": 4, "H": 5, "W": 4},
)
_HEADS: tuple[dict[str, Any], ...] = (
    {"A": 2, "B": 3, "S": 9, "L": 17, "D": 16},
    {"A": 1, "B": 2, "S": 18, "L": 5, "D": 8},
)
_QKV = {"x": "A B S D", "w": "A B L D", "v": "A B L D"}

_FORMS: tuple[tuple[str, dict[str, str], str, int, tuple[dict[str, Any], ...]], ...] = (
    ("{x} @ w", {"x": "B D", "w": "D C"}, "B C", 2, _MATRICES),
    ("{x} @ w", {"x": "A B D", "w": "A D C"}, "A B C", 2, _MATRICES),
    ("{x} @ w", {"x": "A B D", "w": "D"}, "A B", 1, _MATRICES),
    ("F.linear({x}, w)", {"x": "B D", "w": "C D"}, "B C", 2, _MATRICES),
    ("F.linear({x}, w, v)", {"x": "A B D", "w": "C D", "v": "C"}, "A B C", 2, _MATRICES),
    ("F.linear({x}, w)", {"x": "... D", "w": "C D"}, "... C", 1, _MATRICES),
    ("torch.einsum('abd,cd->acb', {x}, w)", {"x": "A B D", "w": "C D"}, "A C B", 2, _MATRICES),
    ("F.linear({x}, w.to(x.dtype))", {"x": "B D", "w": "C D: int8"}, "B C", 2, _MATRICES),
    ("F.conv2d({x}, w)", {"x": "A B H W", "w": "C B 1 1"}, "A C H W", 4, _IMAGES),
    ("F.conv2d({x}, w, padding=1)", {"x": "A B H W", "w": "C B 3 3"}, "A C H W", 4, _IMAGES),
    ("F.scaled_dot_product_attention({x}, w, v)", _QKV, "A B S D", 4, _HEADS),
    ("torch.softmax({x} @ w.mT, -1).to(x.dtype) @ v", _QKV, "A B S D", 4, _HEADS),
)
"""What is multiplied, its inputs, its result, how many last dimensions of x and of w have names, sizes."""
_SIZES = (
    "{}",
    "{} + 1",
    "{} // 2 + 1",
    "{} * {}",
    "{} + {}",
    "{} ** 0.5",
    "{} ** -0.5",
    "math.sqrt({})",
    "({} + 1) * {}",
)
_BEFORE = ("x / ({})", "x * ({})", "(x + ({}))")
_AFTER = (
    "{} / ({})", "{} * ({})", "{} + ({})", "torch.relu({} - ({}))", "torch.sigmoid({} / ({}))", "({}).clamp(max=({}) * 1.0)",
    "torch.tanh({}) * ({})",
)  # fmt: skip


@st.composite
def products(draw: st.DrawFn) -> Sample:
    """A product of matrices, a convolution or an attention, with sizes before and after it."""
    form, inputs, out, named, sizes = draw(st.sampled_from(_FORMS))

    def size() -> str:
        text = draw(st.sampled_from(_SIZES))
        tensors = [name for name in inputs if name in ("x", "w")]
        ranks = {name: min(named, len(inputs[name].partition(":")[0].split())) for name in tensors}
        places = [f"{name}.shape[{-1 - d}]" for name in tensors for d in range(ranks[name])]
        return text.format(*(draw(st.sampled_from(places)) for _ in range(text.count("{}"))))

    before = draw(st.none() | st.sampled_from(_BEFORE))
    x = "x" if before is None else f"({before.format(size())}).to(x.dtype)"
    if "x.dtype" not in form and draw(st.booleans()):  # factors of two dtypes, multiplied in float32
        x = f"{x}.float()"
        inputs = {name: shape if name == "x" else f"{shape}: float32" for name, shape in inputs.items()}
    lines = [f"y = {form.format(x=x)}"]
    for after in draw(st.lists(st.sampled_from(_AFTER), min_size=1, max_size=3)):
        lines.append(f"y = {after.format('y', size())}")
    precision = draw(st.sampled_from((None, *PRECISIONS))) if sizes is _MATRICES else None
    return sample("\n".join([*lines, "return y.to(x.dtype)"]), inputs, {"out": out}, *sizes, precision=precision)
