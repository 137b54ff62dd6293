"""What walks carry, as lines: for the variants that are not in the IR yet. `tile/carries.py` is what these become."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from types import MappingProxyType

from kernelgen.families.kernel import Body, Lines, Loop
from kernelgen.families.looped import walked_values
from kernelgen.families.moments import Moments
from kernelgen.families.naming import FULL
from kernelgen.families.online import Online
from kernelgen.families.padding import neutral
from kernelgen.families.triton_text import number, triton_dtype
from kernelgen.frontend.graph import ARG_REDUCTIONS

LOWEST = "-3.4028234663852886e38"
"""The least finite float32: a running maximum that starts here keeps rows that begin with -inf free of NaN."""


def reduced(
    body: Body,
    lines: Lines,
    walk: tuple[int, ...],
    online: tuple[Online, ...],
    moments: dict[int, Moments],
    done: set[int],
) -> Loop:
    """The reductions of one walk: accumulators before, accumulation inside, results after; then they are done."""
    carried = {o.total: o for o in online if o.total in walk}
    maxima = {o.maximum for o in carried.values()}
    squares = {m.squares for m in moments.values()}
    names, writer = body.names.of, lines.writer
    sources = walked_values(body, walk, online, moments)
    before: list[str] = []
    for i in walk:
        before += accumulator(body, lines, i, maxima, {*carried, *squares}, moments)
    inside = writer.lines(sources, set(done), late=False)
    after: list[str] = []
    for i in walk:
        if i in carried:
            inside += _rescaled(body, lines, carried[i])
        elif i in moments:
            inside += _merged(body, lines, moments[i])
            done.update((i, moments[i].mean, moments[i].squares))
        elif i not in maxima and i not in squares:
            inside += accumulated(body, lines, i, writer.guarded(i))
            after.append(f"{names[i]} = {writer.reduce_text(i, f'{names[i]}_acc', f'{names[i]}_at').text}")
            done.add(i)
    done.update(maxima, carried)
    return Loop((), tuple(before), tuple(lines.at_columns(inside)), tuple(after))


def accumulator(
    body: Body,
    lines: Lines,
    i: int,
    maxima: Collection[int] = (),
    scalars: Collection[int] = (),
    moments: Mapping[int, Moments] = MappingProxyType({}),
) -> list[str]:
    """What a reduction starts from; `scalars`: sums that are one number a row from the first block on."""
    op, several, name = body.lowered.values[i].op, _several(body, lines, i), body.names.of[i]
    if i in maxima:
        start = f"tl.full([BLOCK_SIZE_M], {LOWEST}, tl.float32)" if several else LOWEST
        return ["# from the least finite float32 on: a row may begin with -inf", f"{name} = {start}"]
    if i in scalars or i in moments:
        name = body.names.of[moments[i].mean if i in moments else i]
        return [f"{name} = {'tl.zeros([BLOCK_SIZE_M], tl.float32)' if several else '0.0'}"]
    block = "[BLOCK_SIZE_M, BLOCK_SIZE_N]" if several else "[BLOCK_SIZE_N]"
    outside = number(neutral(body.lowered, i)).text
    kind = triton_dtype(body.lowered.values[lines.writer.source(i)].dtype)
    made = [f"{name}_acc = tl.full({block}, {outside}, {kind})"]
    return [*made, f"{name}_at = tl.zeros({block}, tl.int32)"] if op in ARG_REDUCTIONS else made


def accumulated(body: Body, lines: Lines, i: int, text: str) -> list[str]:
    """How an accumulator takes up `text`, another block of what is reduced."""
    value, name = body.lowered.values[i], body.names.of[i]
    if value.op in ("sum", "prod"):
        return [f"{name}_acc {'+' if value.op == 'sum' else '*'}= {text}"]
    if value.op in ARG_REDUCTIONS:
        return _located(lines, i, text)
    if i in lines.writer.keeps_nan or value.dtype != "float":
        return [f"{name}_acc = tl.{value.op}imum({name}_acc, {text})"]
    lines.writer.helpers[f"nan_{value.op}imum"] = None
    return [f"{name}_acc = _nan_{value.op}imum({name}_acc, {text})"]


def _located(lines: Lines, i: int, text: str) -> list[str]:
    """The extreme of every lane so far and where it stands: the first of equals, because columns ascend."""
    name, op = lines.body.names.of[i], lines.body.lowered.values[i].op
    made = []
    if not text.isidentifier():
        made, text = [f"{name}_block = {text}"], f"{name}_block"
    better = f"{text} {'>' if op == 'argmax' else '<'} {name}_acc"
    if lines.body.lowered.values[lines.writer.source(i)].dtype == "float":
        helper = "is_above" if op == "argmax" else "is_below"
        lines.writer.helpers[helper] = None
        better = f"_{helper}({text}, {name}_acc)"
    return [
        *made,
        f"{name}_moves = {better}",
        f"{name}_acc = tl.where({name}_moves, {text}, {name}_acc)",
        f"{name}_at = tl.where({name}_moves, {lines.writer.numbers(i)}, {name}_at)",
    ]


def _several(body: Body, lines: Lines, i: int) -> bool:
    """Whether a reduction has a result for every row; what varies along the columns alone has one for all."""
    return lines.two_d and body.names.levels[lines.writer.source(i)] == FULL


def _rescaled(body: Body, lines: Lines, online: Online) -> list[str]:
    """The running maximum and the running sum of exponentials, rescaled when the maximum grows."""
    top, total = body.names.of[online.maximum], body.names.of[online.total]
    source = lines.writer.guarded(online.maximum, neutral_alone=True)  # exp makes 0 of -inf alone
    atom = source if source.isidentifier() or source.startswith("tl.where(") else f"({source})"
    axis, spread = ("axis=1", "new_max[:, None]") if _several(body, lines, online.maximum) else ("axis=0", "new_max")
    greatest = f"tl.maximum({top}, tl.max({source}, {axis}))"
    lines.writer.helpers["exp"] = None
    return [
        # with infinities made zero the sum may be infinite, but it must not be inf - inf
        f"new_max = tl.minimum({greatest}, {LOWEST[1:]})" if online.finite else f"new_max = {greatest}",
        f"block_sum = tl.sum(_exp({atom} - {spread}), {axis})",
        f"{total} = {total} * _exp({top} - new_max) + block_sum",
        f"{top} = new_max",
    ]


def _merged(body: Body, lines: Lines, moments: Moments) -> list[str]:
    """The running mean and sum of squared deviations, joined with those of a block."""
    mean, squares = body.names.of[moments.mean], body.names.of[moments.squares]
    source = lines.writer.guarded(moments.total)
    several = _several(body, lines, moments.total)
    axis, spread = ("axis=1", "block_mean[:, None]") if several else ("axis=0", "block_mean")
    plain = body.names.of[moments.source] if lines.writer.is_assigned(moments.source) else f"({source})"
    divided = lines.form.divided
    before = "walked" if divided else "start"
    return [
        *(["walked = start - first"] if divided else []),
        "block_count = tl.minimum(BLOCK_SIZE_N, N - start)",
        f"block_mean = tl.sum({source}, {axis}) / block_count",
        f"block_centered = tl.where(mask, {plain} - {spread}, 0.0)",
        f"block_squares = tl.sum(block_centered * block_centered, {axis})",
        f"block_shift = block_mean - {mean}",
        f"block_share = block_count / ({before} + block_count)",
        f"{mean} += block_shift * block_share",
        f"{squares} += block_squares + block_shift * block_shift * {before} * block_share",
    ]
