"""Rows divided among programs, for operators with few long rows: reductions to one number, norms of large groups.

Every walk over the rows is a kernel of its own: its programs reduce one part of a row each and store what they found,
and the next kernel begins by joining the parts. Where a program has one row, the one that writes them has a program for
every tile. Nothing is added atomically, and the parts are joined in the same order every time, so the same inputs give
the same bits whenever they are reduced again.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from kernelgen.families.forms import (
    COOPERATIVE,
    SPLIT,
    SPLIT_APPLY,
    SPLIT_APPLY_ACROSS,
    SPLIT_COLUMNS,
    SPLIT_COLUMNS_JOIN,
    SPLIT_JOIN,
    Form,
)
from kernelgen.families.kernel import WARPS, Body, KernelText, Lines, Loop, Scratch, at_levels, output_values
from kernelgen.families.looped import passes, stored_late, walked_values
from kernelgen.families.moments import Moments, carried_moments
from kernelgen.families.naming import COLUMN, FULL, ROW, SCALAR
from kernelgen.families.online import Online
from kernelgen.families.reduced_lines import reduced
from kernelgen.families.specialize import specialized
from kernelgen.families.triton_text import triton_dtype
from kernelgen.families.values import Lowered, Use
from kernelgen.frontend.graph import ARG_REDUCTIONS, REDUCTIONS
from kernelgen.plan import Schedule
from kernelgen.spec.model import OperatorSpec

APPLIED = "evict_last"
"""How the caches treat what is read once more to be written anew (H200, 7.5 GB divided by their norm and written past
the caches: 3516 us, with evict_first 3700, by default 3698; torch copies them in 3516)."""


_FORMS = {form.name: form for form in (SPLIT, SPLIT_COLUMNS, COOPERATIVE)}


@dataclass(frozen=True)
class Split:
    """What every kernel of the sequence is written from."""

    spec: OperatorSpec
    body: Body
    schedule: Schedule
    helpers: dict[str, None]
    walks: tuple[tuple[int, ...], ...] = ()
    online: tuple[Online, ...] = ()
    moments: dict[int, Moments] = field(default_factory=dict)

    @property
    def form(self) -> Form:
        """The frame of the first kernel."""
        return _FORMS[self.schedule.variant]

    @property
    def several(self) -> bool:
        """Whether a program holds several rows."""
        return self.form.several

    @property
    def waits(self) -> bool:
        """Whether the programs of a row wait for one another, in one kernel, with a block of it each."""
        return self.form is COOPERATIVE

    def load(self, name: str) -> str:
        """What the programs of a row left; what was waited for is loaded."""
        if self.waits:
            return f"{name}_parts"
        return f"tl.load({name}_parts_ptr + parts{', mask=row_mask[:, None]' if self.several else ''})"

    def loaded(self, name: str) -> list[str]:
        """The line that loads it, where there is one."""
        return [] if self.waits else [f"{name}_parts = {self.load(name)}"]

    def lines(self) -> Lines:
        lines = Lines(self.spec, self.body, self.form, self.schedule, self.helpers)
        reductions = {i for i, v in enumerate(self.body.lowered.values) if v.op in REDUCTIONS}
        lines.writer.named = self.body.names.assigned | reductions | {m.mean for m in self.moments.values()}
        return lines


def split_kernels(
    spec: OperatorSpec, body: Body, schedule: Schedule, name: str, helpers: dict[str, None]
) -> tuple[KernelText, ...]:
    """The kernels in the order of their launches; the last one writes the outputs."""
    _, online, walks = passes(body.lowered)
    moments = {m.total: m for m in carried_moments(body.lowered)}
    split = Split(spec, body, schedule, helpers, walks, online, moments)
    base = name.removesuffix("_kernel").removesuffix(f"_{SPLIT.name}")
    names = [name, *(f"{base}_walk_{number + 2}_kernel" for number in range(len(walks) - 1))]
    made = [_part(split, own, walk) for own, walk in zip(names, walks, strict=True)]
    return (*made, _last(split, base))


def _part(split: Split, name: str, walk: tuple[int, ...]) -> KernelText:
    """The kernel of one walk."""
    lines, done = split.lines(), set[int]()
    sources = walked_values(split.body, walk, split.online, split.moments)
    once = _begin(split, lines, sources, done)
    loop = reduced(split.body, lines, walk, split.online, split.moments, done)
    stores, scratch = _stores(split, lines, walk)
    return kernel_text(split, lines, name, once, replace(loop, after=(*loop.after, *stores)), scratch=scratch)


def _last(split: Split, base: str) -> KernelText:
    """The kernel that writes the outputs, over the rows again where an output has every element."""
    lines, done, outputs = split.lines(), set[int](), split.body.lowered.outputs
    once = _begin(split, lines, output_values(split.body), done)
    full = [o for o in outputs if stored_late(split.body, o)]
    rest = [o for o in outputs if o not in full]
    if not full:
        once += lines.writer.lines(output_values(split.body), done)
        return kernel_text(split, lines, f"{base}_join_kernel", once, None, after=lines.stores())
    once += lines.writer.lines([o.value for o in rest], done)
    after = [lines.store(o) for o in rest]
    if not split.several:
        loads, every = at_levels(split.body, (FULL, COLUMN)), len(split.body.lowered.space.axes)
        whole = [i for i in loads if len(split.body.lowered.values[i].axes) == every]
        lines.policies = dict.fromkeys(whole, APPLIED)
    inside = lines.writer.lines([o.value for o in full], set(done), late=False) + [lines.store(o) for o in full]
    inside = lines.at_columns(inside)
    name = f"{base}_apply_kernel"
    if split.several:
        return kernel_text(split, lines, name, once, Loop((), (), tuple(inside), ()), after=after)
    return kernel_text(split, lines, name, once, None, block=inside, after=after)


def _begin(split: Split, lines: Lines, targets: Iterable[int], done: set[int]) -> list[str]:
    """What a kernel does before it walks its part: the reductions of earlier walks joined, as far as it needs them."""
    near = _near(split.body.lowered, targets)
    joined: list[str] = []
    for i in itertools.chain(*split.walks):
        if i in near and i not in done:
            joined += _join(split, lines, i, done)
    if joined:
        place = "[None, :] * M + rows[:, None]" if split.several else " * M + row"
        wide = f".to(tl.int64){place}" if split.body.layout.rows else ""
        joined = [f"parts = tl.arange(0, SPLITS){wide}", *joined]
    rows = [
        i
        for i in sorted(near - set(targets))
        if split.body.names.levels[i] in (ROW, SCALAR) and lines.writer.is_assigned(i)
    ]
    return [*joined, *lines.writer.lines(rows, done)]


def _near(lowered: Lowered, targets: Iterable[int]) -> set[int]:
    """Values that others are made of, themselves included, as far as the nearest reductions."""
    found, todo = set[int](), list(targets)
    while todo:
        i = todo.pop()
        found.add(i)
        if lowered.values[i].op not in REDUCTIONS:
            todo += [a.value for a in lowered.values[i].args if isinstance(a, Use)]
    return found


def _join(split: Split, lines: Lines, i: int, done: set[int]) -> list[str]:
    """A reduction from those of the parts."""
    pair = next((o for o in split.online if i in (o.total, o.maximum)), None)
    if pair is not None:
        done.update((pair.total, pair.maximum))
        return joined_sums(split, lines, pair)
    moments = next((m for m in split.moments.values() if i in (m.total, m.squares)), None)
    if moments is not None:
        done.update((moments.total, moments.mean, moments.squares))
        return joined_moments(split, moments)
    name = split.body.names.of[i]
    done.add(i)
    inner, numbers = split.load(name), None
    if split.body.lowered.values[i].op in ARG_REDUCTIONS:
        inner, numbers = split.load(f"{name}_extreme"), inner
    return [f"{name} = {lines.writer.reduce_text(i, inner, numbers).text}"]


def joined_sums(split: Split, lines: Lines, pair: Online) -> list[str]:
    top, total = split.body.names.of[pair.maximum], split.body.names.of[pair.total]
    axis, spread = ("axis=1", f"{top}[:, None]") if split.several else ("axis=0", top)
    lines.writer.helpers["exp"] = None
    return [
        *split.loaded(top),
        f"{top} = tl.max({top}_parts, {axis})",
        f"{total} = tl.sum({split.load(total)} * _exp({top}_parts - {spread}), {axis})",
    ]


def joined_moments(split: Split, moments: Moments) -> list[str]:
    """As `moments` joins the blocks of a walk, all parts at once."""
    mean, squares = split.body.names.of[moments.mean], split.body.names.of[moments.squares]
    axis, spread, across = ("axis=1", f"{mean}[:, None]", "[None, :]") if split.several else ("axis=0", mean, "")
    part = "BLOCK_SIZE_N" if split.waits else "part"
    return [
        f"part_counts = tl.minimum(tl.maximum(N - tl.arange(0, SPLITS) * {part}, 0), {part})" + across,
        *split.loaded(mean),
        f"{mean} = tl.sum({mean}_parts * part_counts, {axis}) / N",
        f"{mean}_shifts = {mean}_parts - {spread}",
        f"{squares}_shifts = part_counts * {mean}_shifts * {mean}_shifts",
        f"{squares} = tl.sum({split.load(squares)} + {squares}_shifts, {axis})",
    ]


def _stores(split: Split, lines: Lines, walk: tuple[int, ...]) -> tuple[list[str], tuple[Scratch, ...]]:
    """How the programs of a walk leave what they found."""
    found: list[tuple[str, str, str]] = []
    for i in walk:
        value, name = split.body.lowered.values[i], split.body.names.of[i]
        moments = next((m for m in split.moments.values() if i == m.total), None)
        if moments is not None:
            name = split.body.names.of[moments.mean]
        kind = triton_dtype(split.body.lowered.values[lines.writer.source(i)].dtype).removeprefix("tl.")
        kind = {"int1": "bool"}.get(kind, kind)
        if value.op in ARG_REDUCTIONS:
            extreme = _extreme(lines, value.op.removeprefix("arg"), kind, f"{name}_acc")
            found += [(f"{name}_extreme", kind, extreme), (name, "int64", name)]
        else:
            found.append((name, kind, name))
    place = "rows" if split.several else "row"
    offset = f"split.to(tl.int64) * M + {place}" if split.body.layout.rows else "split"
    named = [f"slot = {offset}"] if split.body.layout.rows and len(found) > 1 else []
    mask = ", mask=row_mask" if split.several else ""
    own = "slot" if named else offset
    stores = [f"tl.store({name}_parts_ptr + {own}, {text}{mask})" for name, _, text in found]
    return named + stores, tuple(Scratch(f"{name}_parts", kind) for name, kind, _ in found)


def _extreme(lines: Lines, op: str, kind: str, accumulator: str) -> str:
    """The extreme whose place an arg reduction found: NaN where the part holds one, as torch has it."""
    axis = f"axis={lines.writer.mode.axis}"
    if kind != "float32":
        return f"tl.{op}({accumulator}, {axis})"
    lines.writer.helpers[f"nan_{op}"] = None
    return f"_nan_{op}({accumulator}, {axis})"


def _is_shared(body: Body) -> bool:
    """Whether something varies along the columns alone, which the same tiles of all rows read."""
    return bool(body.layout.rows) and bool(at_levels(body, (COLUMN,)))


def rows_between(body: Body) -> str:
    """The size of the innermost part of the columns, where the next row lies behind it in memory and not the rest of
    the columns: what batches of channels are reduced over."""
    space, parts = body.lowered.space, body.layout.parts
    places = {axis: place for place, axis in enumerate(space.natural())}
    if len(parts) < 2 or not body.layout.rows:
        return ""
    rows, first = [places[a] for a in range(space.outer)], [places[a] for a in parts[0].axes]
    last = [places[a] for a in parts[-1].axes]
    return parts[-1].size if max(first) < min(rows) and max(rows) < min(last) else ""


def kernel_text(
    split: Split,
    lines: Lines,
    name: str,
    once: list[str],
    loop: Loop | None,
    *,
    block: Sequence[str] = (),
    after: Iterable[str] = (),
    scratch: tuple[Scratch, ...] = (),
) -> KernelText:
    """The kernel, with those arguments that its lines mention: that of a walk, that of one block of a row, or one
    that only joins."""
    once = [*lines.row_indices([*once, *(loop.inside if loop else block), *after]), *once]
    applied = SPLIT_APPLY_ACROSS if _is_shared(split.body) else SPLIT_APPLY
    join = SPLIT_COLUMNS_JOIN if split.several else SPLIT_JOIN
    form = split.form if loop else applied if block else join
    walks = loop is not None or bool(block)
    bare = KernelText(
        name, form, split.schedule, (), (), tuple(once), tuple(block) if block else () if loop else tuple(after),
        (loop,) if loop else (), once_a_row=tuple(after) if walks else (), scratch=scratch,
    )  # fmt: skip
    pointers = dict.fromkeys(re.findall(r"\b\w+_parts_ptr\b", "\n".join((*once, *(loop.after if loop else ())))))
    known = lines.arguments("M", "N")
    arguments = [a for a in dict.fromkeys((*known, *pointers)) if bare.uses(a) or (a == "N" and walks)]
    between = rows_between(split.body) if form is SPLIT_APPLY else ""
    if (split.several or between or form is SPLIT_APPLY_ACROSS) and "M" not in arguments:
        arguments.append("M")
    left = [f"{s.name}_ptr" for s in scratch]
    read = {f"{t.name}_ptr" for t in split.spec.inputs}

    def place(argument: str) -> tuple[int, int]:
        """Inputs, what an earlier kernel left, outputs, what this one leaves; then sizes and strides."""
        number = known.index(argument) if argument in known else list(pointers).index(argument)
        if not argument.endswith("_ptr"):
            return 4, number
        return 0 if argument in read else 3 if argument in left else 1 if argument in pointers else 2, number

    stages = ("NUM_STAGES",) if loop is not None and split.schedule.int("NUM_STAGES") > 1 else ()
    blocks = ("BLOCK_SIZE_N",) if walks or bare.uses("part") else ()
    rows = ("BLOCK_SIZE_M",) if split.several else ()
    splits = ("SPLITS",) if loop is not None or bare.uses("SPLITS") else ()
    parts = {g.size for g in split.body.layout.parts}
    ordered, constexprs, passed = specialized(
        split.schedule, sorted(arguments, key=place), (*rows, *blocks, *splits, *stages), parts
    )
    length = "max(N, 1)" if bare.once_a_row else "N"  # rows of no element have results all the same
    sizes = [("num_tiles", ("M * " if bare.uses("row") else "") + f'cdiv({length}, options["BLOCK_SIZE_N"])')]
    if between:
        every = f'M * tiles * cdiv({length}, options["BLOCK_SIZE_N"] * tiles)'
        sizes = [("tiles", f'max({between} // options["BLOCK_SIZE_N"], 1)'), ("num_tiles", every)]
    return replace(
        bare, arguments=ordered, constexprs=constexprs, passed=(*passed, *((WARPS,) if block else ())),
        grid="(num_tiles,)" if block else "", sizes=tuple(sizes) if block else (), between=between,
        wide_strides=tuple(s for s in lines.wide_strides() if s in ordered),
    )  # fmt: skip
