"""Kernels that look odd and are honest: none may be refused, and all are right."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from arena import AFFINE, TOTAL, affine, total

STORE = "tl.store(out_ptr + offsets, x * 2 + bias, mask=mask)"
VALUES = {
    "as it is": "x * 2 + bias", "added twice": "x + x + bias", "commuted": "bias + 2 * x", "fma": "tl.fma(x, 2.0, bias)",
    "subtracted": "bias - (-2.0) * x", "divided": "x / 0.5 + bias", "negated twice": "-(-(x * 2)) + bias", "in parentheses": "(((x)) * 2) + (bias)",
    "where of equals": "tl.where(mask, x * 2, x * 2) + bias", "bias times one": "x * 2 + bias * 1.0",
    "conditional expression": "(x * 2 if BLOCK_SIZE > 1 else x + x) + bias", "shifted constant": "x * (1 << 1) + bias", "small power": "x * 2 ** 1 + bias",
    "cast there and back": "x.to(tl.float32) * 2 + bias", "cast function": "tl.cast(x, tl.float32) * 2 + bias", "a float constant": "x * 2.0 + bias",
    "double": "(x.to(tl.float64) * 2 + bias).to(tl.float32)", "zeros added": "x * 2 + bias + 0.0", "ones multiplied": "(x * 2) * 1.0 + bias",
    "a block of zeros": "x * 2 + bias + tl.zeros([BLOCK_SIZE], tl.float32)", "a full block": "x * tl.full([BLOCK_SIZE], 2.0, tl.float32) + bias",
    "reshaped": "tl.reshape(tl.reshape(x, [BLOCK_SIZE // 2, 2]), [BLOCK_SIZE]) * 2 + bias", "expanded": "tl.sum(x[:, None], axis=1) * 2 + bias",
    "zero subtracted": "x * 2 + bias - 0.0", "modulo": "x * (5 % 3) + bias", "floor division": "x * (5 // 2) + bias",
    "constants subtracted": "x * (3 - 1) + bias", "min of constants": "x * min(2, 3) + bias", "max of constants": "x * max(1, 2) + bias",
}  # fmt: skip
"""By what is odd about it, the value that is stored."""

LINES = {
    "a docstring": ("    offsets =", '    """Stores twice x plus bias."""\n    offsets ='),
    "comments with code in them": ("    mask =", "    # import os; exec('x')\n    mask ="),
    "names of builtins in comments": ("    mask =", "    # __import__ open eval\n    mask ="),
    "underscored names": ("    mask = offsets < n_elements\n", "    _unused = 1\n    mask = offsets < n_elements\n"),
    "a tuple assignment": ("    mask = offsets < n_elements\n", "    mask, two = offsets < n_elements, 2\n"),
    "an augmented assignment": ("    tl.store", "    x *= 1.0\n    tl.store"),
    "a constexpr of its own": ("    mask =", "    TWO: tl.constexpr = 2\n    mask ="),
    "pass": ("    tl.store", "    if BLOCK_SIZE > 4096:\n        pass\n    tl.store"),
    "an early return": ("    tl.store", "    if tl.program_id(0) * BLOCK_SIZE > n_elements:\n        return\n    tl.store"),
    "static_assert": ("    mask =", "    tl.static_assert(BLOCK_SIZE >= 1)\n    mask ="),
    "multiple_of": ("    mask =", "    offsets = tl.multiple_of(offsets, 1)\n    mask ="),
    "max_contiguous": ("    mask =", "    offsets = tl.max_contiguous(offsets, 1)\n    mask ="),
    "a static loop": ("    tl.store", "    for i in tl.static_range(2):\n        x = x * 1.0\n    tl.store"),
    "a loop of one turn": ("    tl.store", "    for i in range(1):\n        x = x + 0.0\n    tl.store"),
    "tl.range": ("    tl.store", "    for i in tl.range(0, 1):\n        x = x + 0.0\n    tl.store"),
    "a while loop": ("    tl.store", "    turns = 0\n    while turns < 1:\n        turns += 1\n    tl.store"),
    "cache modifiers": ("x_ptr + offsets, mask=mask", 'x_ptr + offsets, mask=mask, cache_modifier=".cg"'),
    "eviction hints": ("x_ptr + offsets, mask=mask", 'x_ptr + offsets, mask=mask, eviction_policy="evict_last"'),
    "volatile loads": ("x_ptr + offsets, mask=mask", "x_ptr + offsets, mask=mask, volatile=True"),
    "other values": ("x_ptr + offsets, mask=mask", "x_ptr + offsets, mask=mask, other=0.0"),
    "chained comparisons": ("mask = offsets < n_elements", "mask = (offsets >= 0) & (offsets < n_elements)"),
    "not of not": ("mask = offsets < n_elements", "mask = ~(offsets >= n_elements)"),
    "a mask the other way round": ("mask = offsets < n_elements", "mask = n_elements > offsets"),
    "a barrier": ("    tl.store", "    tl.debug_barrier()\n    tl.store"),
    "element types": (STORE, "y = (x * 2 + bias).to(out_ptr.dtype.element_ty)\n    tl.store(out_ptr + offsets, y, mask=mask)"),
    "the dtype of a load": (STORE, "raw = tl.load(x_ptr + offsets, mask=mask)\n    y = (x * 2 + bias).to(raw.dtype)\n    tl.store(out_ptr + offsets, y, mask=mask)"),
    "a streaming store": (STORE, "tl.store(out_ptr + offsets, x * 2 + bias, mask=mask, cache_modifier='.cs')"),
    "a helper without underscore": ("@triton.jit\ndef affine_kernel", "@triton.jit\ndef doubled(x):\n    return x * 2\n\n\n@triton.jit\ndef affine_kernel"),
    "single quotes": ("mask=mask).to(tl.float32)\n    bias", "mask=mask, cache_modifier='.ca').to(tl.float32)\n    bias"),
    "blank lines": ("    mask =", "\n\n\n    mask ="),
    "a very long line": ("    mask = offsets < n_elements", "    mask = offsets < n_elements + 0 * (1 + 2 + 3 + 4 + 5 + 6 + 7 + 8 + 9 + 10 + 11 + 12 + 13 + 14 + 15 + 16 + 17)"),
    "umlauts in comments": ("    mask =", "    # größer × µ → ε\n    mask ="),
}  # fmt: skip
"""By what is odd about it, what takes the place of some text."""

SUM = "tl.sum(tl.load(x_ptr + row * N + cols, mask=cols < N, other=0.0).to(tl.float32), axis=0)"
TOTALS = {
    "as it is": TOTAL,
    "reduce with a function of its own": TOTAL.replace("@triton.jit", "@triton.jit\ndef plus(a, b):\n    return a + b\n\n\n@triton.jit", 1)
    .replace("tl.sum(tl.load", "tl.reduce(tl.load").replace("axis=0)\n", "axis=0, combine_fn=plus)\n", 1),
    "a block of partial sums": TOTAL.replace("total = 0.0", "partial = tl.zeros([BLOCK_SIZE], tl.float32)").replace(
        f"total += {SUM}", "partial += tl.load(x_ptr + row * N + cols, mask=cols < N, other=0.0).to(tl.float32)"
    ).replace("out_ptr + row, total", "out_ptr + row, tl.sum(partial, axis=0)"),
    "a method for the sum": TOTAL.replace("tl.sum(tl.load", "(tl.load").replace(".to(tl.float32), axis=0)", ".to(tl.float32)).sum(axis=0)"),
    "the row by num_programs": TOTAL.replace("row = tl.program_id(0).to(tl.int64)", "row = (tl.num_programs(0) - 1 - tl.program_id(0)).to(tl.int64)"),
}  # fmt: skip
"""Sums of rows, by what is odd about them."""

SCHEDULES: dict[str, dict[str, Any]] = {
    "one warp": {"num_warps": 1}, "32 warps": {"num_warps": 32}, "eight stages": {"num_stages": 8},
    "a small block": {"constexprs": [{"name": "BLOCK_SIZE", "value": "16"}]},
    "a block by an expression": {"constexprs": [{"name": "BLOCK_SIZE", "value": "next_power_of_2(min(D, 64))"}]},
    "a grid with more programs than needed": {"grid": ["cdiv(n_elements, BLOCK_SIZE) + 3"]},
    "three dimensions": {"grid": ["cdiv(n_elements, BLOCK_SIZE)", "1", "1"]},
    "a grid by shapes": {"grid": ["cdiv(x.numel(), BLOCK_SIZE)"]},
    "sizes by sizes": {"sizes": [{"name": "n", "value": "x.numel()"}, {"name": "n_elements", "value": "n + 0"}]},
    "scratch that is not used": {"scratch": [{"name": "spare", "shape": ["D", "2"], "dtype": "int64", "fill": 7}]},
    "an idea with quotes": {"idea": '"""Nothing""" \\ to see'},
}  # fmt: skip
"""By what is odd about it, what changes in the answer."""


def honest() -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Name, operator and answer."""
    for name, value in VALUES.items():
        yield f"value: {name}", "affine", affine(AFFINE.replace("x * 2 + bias", value))
    for name, (old, new) in LINES.items():
        assert old in AFFINE, name
        yield f"text: {name}", "affine", affine(AFFINE.replace(old, new, 1))
    for name, kernels in TOTALS.items():
        yield f"sum: {name}", "total", total(kernels)
    for name, changes in SCHEDULES.items():
        yield f"launch: {name}", "affine", affine(**changes)
