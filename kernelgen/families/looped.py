"""The looped variants of row reductions: rows of any length, one or several a program, walked in blocks.

A row is walked once for every reduction that needs an earlier one's result; a sum of exp(x - max) is carried along
with its maximum (Milakov and Gimelshein, Online normalizer calculation for softmax, arXiv:1805.02867), which
saves a walk.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from types import MappingProxyType

from kernelgen.families.forms import WALKED
from kernelgen.families.kernel import Body, KernelText, Lines, Loop, at_levels
from kernelgen.families.moments import Moments, carried_moments
from kernelgen.families.naming import COLUMN, FULL, ROW, SCALAR
from kernelgen.families.online import Online, online_sums
from kernelgen.families.padding import ancestors, neutral
from kernelgen.families.specialize import specialized
from kernelgen.families.triton_text import number, triton_dtype
from kernelgen.families.values import Lowered, Stored, Use, axes_of
from kernelgen.frontend.graph import ARG_REDUCTIONS, REDUCTIONS
from kernelgen.plan import Schedule
from kernelgen.spec.model import OperatorSpec

LOWEST = "-3.4028234663852886e38"
"""The least finite float32: a running maximum that starts here keeps rows that begin with -inf free of NaN."""


def passes(lowered: Lowered) -> tuple[tuple[int, ...], tuple[Online, ...], tuple[tuple[int, ...], ...]]:
    """For every value the walk that can compute it, the sums computed online, and the reductions of every walk."""
    online = {o.total: o for o in online_sums(lowered)}
    beside = {m.squares: m.total for m in carried_moments(lowered)}
    depth: list[int] = []
    for i, value in enumerate(lowered.values):
        below = max((depth[a.value] for a in value.args if isinstance(a, Use)), default=0)
        if i in online:
            depth.append(depth[online[i].maximum])
        elif i in beside:
            depth.append(depth[beside[i]])
        else:
            depth.append(below + (value.op in REDUCTIONS))
    count = max((depth[i] for i, v in enumerate(lowered.values) if v.op in REDUCTIONS), default=0)
    walks = tuple(
        tuple(i for i, v in enumerate(lowered.values) if v.op in REDUCTIONS and depth[i] == p)
        for p in range(1, count + 1)
    )
    return tuple(depth), tuple(online.values()), walks


def looped(
    spec: OperatorSpec,
    body: Body,
    schedule: Schedule,
    name: str,
    helpers: dict[str, None],
    make: type[Lines] = Lines,
) -> KernelText:
    lines = make(spec, body, WALKED[schedule.variant], schedule, helpers)
    reductions = {i for i, v in enumerate(body.lowered.values) if v.op in REDUCTIONS}
    moments = {m.total: m for m in carried_moments(body.lowered)}
    # accumulators need a name
    lines.writer.named = body.names.assigned | reductions | {m.mean for m in moments.values()}
    _, online, walks = passes(body.lowered)
    done: set[int] = set()
    once = lines.row_indices() + lines.writer.lines(at_levels(body, (ROW, SCALAR)), done)
    outputs = body.lowered.outputs
    full = [o for o in outputs if stored_late(body, o)]
    loops = []
    for number_, walk in enumerate(walks):
        loops.append(
            _walk(
                body,
                lines,
                walk,
                online,
                moments,
                done,
                first=number_ == 0,
                last=not full and number_ == len(walks) - 1,
            )
        )
    if full:
        _policies(body, lines, schedule, "evict_first")
        if schedule["keep_row"]:  # what every row needs again stays, what is read for the last time goes
            lines.policies.update(dict.fromkeys(at_levels(body, (COLUMN,)), "evict_last"))
        inside = lines.writer.lines([o.value for o in full], set(done), late=False) + [lines.store(o) for o in full]
        rest = [o for o in outputs if o not in full]
        after = [lines.store(o) for o in rest]
        comment = ["the row again, now with what it was reduced to"]
        if schedule["backwards"]:
            comment.append("backwards: the end of the row was read last and may still be cached")
        loops.append(
            Loop(
                tuple(comment),
                (),
                tuple(lines.at_columns(inside)),
                tuple(after),
                bool(schedule["backwards"]),
            )
        )
    constexprs = ("BLOCK_SIZE_N", *(("NUM_STAGES",) if schedule.int("NUM_STAGES") > 1 else ()))
    constexprs = ("BLOCK_SIZE_M", *constexprs) if lines.two_d else constexprs
    arguments = lines.arguments(*(("M", "N") if lines.two_d else ("N",)))
    parts = {g.size for g in body.layout.parts}  # divided by as by constants
    arguments, constexprs, passed = specialized(schedule, arguments, constexprs, parts)
    return KernelText(
        name, lines.form, schedule, arguments, constexprs, tuple(once), (), tuple(loops),
        wide_strides=lines.wide_strides(), passed=passed,
    )  # fmt: skip


def stored_late(body: Body, stored: Stored) -> bool:
    """Whether an output is written element by element, for which the row is walked once more."""
    every = len({a for d in stored.index for a in axes_of(d)}) == len(body.lowered.space.axes)
    return every or body.names.levels[stored.value] in (FULL, COLUMN)


def _policies(body: Body, lines: Lines, schedule: Schedule, policy: str) -> None:
    kept = schedule["keep_row"] and policy != "default"
    lines.policies = dict.fromkeys(at_levels(body, (FULL,)), policy) if kept else {}


def _walk(
    body: Body,
    lines: Lines,
    walk: tuple[int, ...],
    online: tuple[Online, ...],
    moments: dict[int, Moments],
    done: set[int],
    *,
    first: bool,
    last: bool,
) -> Loop:
    """One walk and what follows from it: the row's other numbers, and the outputs where nothing is left to walk."""
    # a row that no other walk reads is not worth keeping
    _policies(body, lines, lines.schedule, "evict_last" if not last else "default" if first else "evict_first")
    found = reduced(body, lines, walk, online, moments, done)
    outputs = [o.value for o in body.lowered.outputs]
    live = set[int]().union(*(ancestors(body.lowered, o, short_of=done) for o in outputs))
    later = [j for j in sorted(live) if body.names.levels[j] in (ROW, SCALAR) and lines.writer.is_assigned(j)]
    ready = [j for j in later if j not in done and _ready(body, j, done)]
    after = [*found.after, *lines.writer.lines(ready, done)]
    if last:
        after += lines.stores()
    return replace(found, comment=() if first else ("the row again",), after=tuple(after))


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


def walked_values(
    body: Body, walk: tuple[int, ...], online: tuple[Online, ...], moments: dict[int, Moments]
) -> list[int]:
    """What the reductions of a walk run over; that of a reduction which is carried along follows from the other's."""
    carried = {o.total for o in online} | {m.squares for m in moments.values()}
    return [a.value for i in walk if i not in carried for a in body.lowered.values[i].args if isinstance(a, Use)]


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


def _ready(body: Body, i: int, done: set[int]) -> bool:
    """Whether a row value follows from values that are done, without another walk."""
    value = body.lowered.values[i]
    if i in done or value.op == "const":
        return True
    if value.op in (*REDUCTIONS, "load"):
        return False
    return all(_ready(body, a.value, done) for a in value.args if isinstance(a, Use))


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
        helper = "above" if op == "argmax" else "below"
        lines.writer.helpers[helper] = None
        better = f"_is_{helper}({text}, {name}_acc)"
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
