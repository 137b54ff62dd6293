"""Scatters as Triton, written by hand: their loops follow indices, buckets and lists, and not the axes of a tile.

Each is a function of what a kernel is told (`ir.Scatter`), and gives the lines of its body.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from kernelgen.families.helpers import HELPERS
from kernelgen.families.line import fit
from kernelgen.tile import ir

_WORDS = re.compile(r"(?<![\w.])[A-Za-z]\w*\b(?!=(?!=))")  # not the name of an argument: mask=...
_LOST = "# accumulated rounding error of the sums (compensated summation)"


def body(scatter: ir.Scatter, indent: int, helpers: dict[str, None]) -> list[str]:
    """The lines of a kernel; `helpers` collects the device functions that they call."""
    names = dict(scatter.names)
    lines = []
    for line in _TEXTS[scatter.text](scatter):
        code = line.lstrip()
        if not code.startswith("#"):  # comments quote the reference
            helpers.update(dict.fromkeys(h for h in re.findall(r"(?<!\w)_([a-z]\w*)\(", code) if h in HELPERS))
            code = _WORDS.sub(lambda found: names.get(found[0], found[0]), code)
        lines.append(fit(code, indent + len(line) - len(line.lstrip())))
    return lines


def _quoted(s: ir.Scatter) -> list[str]:
    return [f"# {s.said}"] if s.said else []


def _wide(s: ir.Scatter, tensor: str) -> str:
    """What makes a float32 of what a load of a tensor reads."""
    return ".to(tl.float32)" if tensor in s.narrow else ""


def _zero(s: ir.Scatter) -> str:
    return "0.0" if s.is_float else "0"


def _indented(lines: list[str], by: int) -> list[str]:
    return [" " * by + line for line in lines]


def _loaded(s: ir.Scatter, offsets: str, mask: str) -> list[str]:
    """An index for every element, and whether it is a place: -1 or the size where there is none."""
    index, size = s.index, s.size
    lines = [f"{index} = tl.load({index}_ptr + {offsets}, mask={mask}, other={size if s.from_end else -1})"]
    lines += [f"{index} = tl.where({index} < 0, {index} + {size}, {index})"] if s.from_end else []
    return [*lines, f"is_place = {index} >= 0", f"is_place &= {index} < {size}"]


def _begun(s: ir.Scatter, shape: str, offsets: str) -> list[str]:
    """What a tile of sums is added to; of floats what rounding takes from these beside it."""
    start = f"{s.out} = tl.zeros([{shape}], tl.{s.dtype})"
    if s.base:
        start = f"{s.out} = tl.load({s.base}_ptr + {offsets}, mask=mask){_wide(s, s.base)}"
    return [start, *([_LOST, f"lost = tl.zeros([{shape}], tl.float32)"] if s.is_float else [])]


def _stored(s: ir.Scatter, offsets: str) -> str:
    return f"tl.store({s.out}_ptr + {offsets}, {s.out}{' + lost' * s.is_float}, mask=mask)"


def _histogram(s: ir.Scatter) -> list[str]:
    return [
        "# histogram of TILES blocks per program, in registers",
        "first = tl.program_id(0).to(tl.int64) * (TILES * BLOCK_SIZE)",
        f"counts = tl.zeros([{s.slots}], tl.int32)",
        "for tile in range(TILES):",
        "    offsets = first + tile * BLOCK_SIZE + tl.arange(0, BLOCK_SIZE)",
        f"    {s.index} = tl.load({s.index}_ptr + offsets, mask=offsets < N, other=-1)",
        f"    is_bin = {s.index} >= 0",
        f"    is_bin &= {s.index} < {s.size}",
        f"    counts += tl.histogram({s.index}.to(tl.int32), {s.slots}, mask=is_bin)",
        "# integer atomics: the sums do not depend on their order",
        *_quoted(s),
        f"bins = tl.arange(0, {s.slots})",
        f'tl.atomic_add({s.out}_ptr + bins, counts.to(tl.int64), mask=counts > 0, sem="relaxed")',
    ]


def _count_by_atomics(s: ir.Scatter) -> list[str]:
    return [
        "offsets = tl.program_id(0).to(tl.int64) * BLOCK_SIZE + tl.arange(0, BLOCK_SIZE)",
        f"{s.index} = tl.load({s.index}_ptr + offsets, mask=offsets < N, other=-1)",
        "# integer atomics: the sums do not depend on their order",
        *_quoted(s),
        f"is_bin = {s.index} >= 0",
        f"is_bin &= {s.index} < {s.size}",
        f'tl.atomic_add({s.out}_ptr + {s.index}, 1, mask=is_bin, sem="relaxed")',
    ]


def _owners(s: ir.Scatter) -> list[str]:
    out, source, index = s.out, s.source, s.index
    added = [f"        {out} = tl.where(rows[:, None] == row, {out} + {source}[None, :], {out})"]
    if s.is_float:  # by an owner one after the other, where torch's errors grow with their number
        added = [
            "        is_named = rows[:, None] == row",
            f"        total, error = _two_sum({out}, {source}[None, :])",
            f"        {out} = tl.where(is_named, total, {out})",
            "        lost += tl.where(is_named, error, 0.0)",
        ]
    return [
        "# one tile of the result per program, added to in the order of the index",
        "num_tiles_n = tl.cdiv(N, BLOCK_SIZE_N)",
        "first = (tl.program_id(0) // num_tiles_n).to(tl.int64) * BLOCK_SIZE_V",
        "rows = first + tl.arange(0, BLOCK_SIZE_V)",
        "cols = tl.program_id(0) % num_tiles_n * BLOCK_SIZE_N + tl.arange(0, BLOCK_SIZE_N)",
        "col_mask = cols < N",
        f"mask = (rows < {s.size})[:, None] & col_mask[None, :]",
        "offsets = rows[:, None] * N + cols[None, :]",
        *_begun(s, "BLOCK_SIZE_V, BLOCK_SIZE_N", "offsets"),
        *_quoted(s),
        "for start in range(0, M, BLOCK_SIZE_M):",
        "    places = start + tl.arange(0, BLOCK_SIZE_M)",
        f"    {index} = tl.load({index}_ptr + places, mask=places < M, other=-1)",
        f"    is_own = {index} >= first",
        f"    is_own &= {index} < first + BLOCK_SIZE_V",
        "    left = tl.where(is_own, places, M)",
        "    place = tl.min(left, axis=0)",
        "    while place < M:",
        f"        row = tl.load({index}_ptr + place)",
        f"        {source} = tl.load({source}_ptr + place.to(tl.int64) * N + cols, mask=col_mask){_wide(s, source)}",
        *added,
        "        left = tl.where(left == place, M, left)",
        "        place = tl.min(left, axis=0)",
        _stored(s, "offsets"),
    ]


def _source(s: ir.Scatter, offsets: str) -> list[str]:
    """What an atomic adds."""
    if not s.source:
        return []
    return [f"{s.source} = tl.load({s.source}_ptr + {offsets}, mask=is_place){_wide(s, s.source)}"]


def _atomic(s: ir.Scatter, pointers: str, place: str) -> str:
    """The atomic of an element, or of where it stands where nothing else is added."""
    value = s.source or ("1" if s.counts else f"{place} + 1")
    return f'tl.atomic_{s.atomic}({pointers}, {value}, mask=is_place, sem="relaxed")'


def _taken(s: ir.Scatter, what: str) -> str:
    if s.counts or s.atomic == "max":
        return f"# {what} per program; integer atomics: the result does not depend on their order"
    return f"# {what} per program, added by atomics in no fixed order"


def _atomics(s: ir.Scatter) -> list[str]:
    return [
        _taken(s, "a run of elements"),
        "offsets = tl.program_id(0).to(tl.int64) * BLOCK_SIZE + tl.arange(0, BLOCK_SIZE)",
        *_loaded(s, "offsets", "offsets < N"),
        *_source(s, "offsets"),
        *_quoted(s),
        _atomic(s, f"{s.out}_ptr + {s.index}", "offsets"),
    ]


def _atomic_rows(s: ir.Scatter) -> list[str]:
    return [
        "# BLOCK_SIZE_M rows per program, added to by atomics in no fixed order",
        *_own_rows(s),
        "# threads add to elements that other threads initialized",
        "tl.debug_barrier()",
        "for start in range(0, N, BLOCK_SIZE_N):",
        "    cols = start + tl.arange(0, BLOCK_SIZE_N)",
        "    mask = is_row & (cols < N)[None, :]",
        "    offsets = rows[:, None] * N + cols[None, :]",
        *_indented(_loaded(s, "offsets", "mask"), 4),
        f"    {s.source} = tl.load({s.source}_ptr + offsets, mask=is_place){_wide(s, s.source)}",
        f"    pointers = {s.out}_ptr + rows[:, None] * {s.size} + {s.index}",
        *_indented(_quoted(s), 4),
        f'    tl.atomic_add(pointers, {s.source}, mask=is_place, sem="relaxed")',
    ]


def _atomic_tiles(s: ir.Scatter) -> list[str]:
    offsets, place = "cols[None, :].to(tl.int64) * M + rows[:, None]", f"{s.index} * M + rows[:, None]"
    if s.along_last:
        offsets, place = "rows[:, None] * N + cols[None, :]", f"rows[:, None] * {s.size} + {s.index}"
    return [
        _taken(s, "a tile" if s.counts or s.atomic == "max" else "a tile to where the index says"),
        "num_tiles_n = tl.cdiv(N, BLOCK_SIZE_N)",
        "first = (tl.program_id(0) // num_tiles_n).to(tl.int64) * BLOCK_SIZE_M",
        "rows = first + tl.arange(0, BLOCK_SIZE_M)",
        "cols = tl.program_id(0) % num_tiles_n * BLOCK_SIZE_N + tl.arange(0, BLOCK_SIZE_N)",
        "mask = (rows < M)[:, None] & (cols < N)[None, :]",
        f"offsets = {offsets}",
        *_loaded(s, "offsets", "mask"),
        *_source(s, "offsets"),
        *_quoted(s),
        _atomic(s, f"{s.out}_ptr + {place}", "cols[None, :]"),
    ]


def _own_rows(s: ir.Scatter) -> list[str]:
    """The rows of a program; where it starts them itself, BLOCK_SIZE_V places at a time."""
    rows = [
        "rows = tl.program_id(0).to(tl.int64) * BLOCK_SIZE_M + tl.arange(0, BLOCK_SIZE_M)",
        "is_row = (rows < M)[:, None]",
    ]
    if not s.starts_itself:
        return rows
    offsets = f"rows[:, None] * {s.size} + places[None, :]" if s.along_last else "places[None, :] * M + rows[:, None]"
    return [
        *rows,
        f"for start in range(0, {s.size}, BLOCK_SIZE_V):",
        f"    places = start + tl.arange(0, BLOCK_SIZE_V){'' if s.along_last else '.to(tl.int64)'}",
        f"    mask = is_row & (places < {s.size})[None, :]",
        f"    offsets = {offsets}",
        *([f"    {s.out} = tl.load({s.base}_ptr + offsets, mask=mask){_wide(s, s.base)}"] if s.base else []),
        f"    tl.store({s.out}_ptr + offsets, {s.out if s.base else _zero(s)}, mask=mask)",
    ]


def _blocks(s: ir.Scatter) -> list[str]:
    index, source, out, size = s.index, s.source, s.out, s.size
    offsets, pointers = "rows[:, None] * N + cols[None, :]", f"{out}_ptr + rows[:, None] * {size} + place"
    if not s.along_last:
        offsets, pointers = "cols[None, :] * M + rows[:, None]", f"{out}_ptr + place.to(tl.int64) * M + rows[:, None]"
    if not s.has_rows:
        offsets, pointers = "cols[None, :]", f"{out}_ptr + place"
    lanes = f"tl.arange(0, BLOCK_SIZE_N){'' if s.along_last else '.to(tl.int64)'}"
    read = [
        "mask = is_row & (cols < N)[None, :]",
        f"offsets = {offsets}",
        f"next_{index} = tl.load({index}_ptr + offsets, mask=mask, other={size if s.from_end else -1})",
        f"next_{source} = tl.load({source}_ptr + offsets, mask=mask, other={_zero(s)})",
    ]
    own = f"next_{index}"
    if s.from_end:
        own = f"tl.where(next_{index} < 0, next_{index} + {size}, next_{index})"
    return [
        "# BLOCK_SIZE_M rows per program, each scattered on its own",
        *_own_rows(s),
        f"cols = {lanes}",
        *read,
        *(["# threads read elements that other threads initialized", "tl.debug_barrier()"] if s.starts_itself else []),
        "for start in range(BLOCK_SIZE_N, N + BLOCK_SIZE_N, BLOCK_SIZE_N):",
        f"    {index} = {own}",
        f"    {source} = next_{source}{_wide(s, source)}",
        "    # prefetch the next block while this one is added",
        f"    cols = start + {lanes}",
        *_indented(read, 4),
        f"    is_place = {index} >= 0",
        f"    is_place &= {index} < {size}",
        f"    place = tl.where(is_place, {index}, -1).to(tl.int32)",
        "    # every lane that names a place has the block's total for it: all store the same value",
        "    is_same = place[:, :, None] == place[:, None, :]",
        f"    total = tl.sum(tl.where(is_same, {source}[:, :, None], {_zero(s)}), axis=1)",
        f"    pointers = {pointers}",
        *_indented(_quoted(s), 4),
        f"    {out} = tl.load(pointers, mask=is_place) + total",
        "    tl.debug_barrier()",
        f"    tl.store(pointers, {out}, mask=is_place)",
        "    # the next block reads what this one stored",
        "    tl.debug_barrier()",
    ]


def _places(s: ir.Scatter) -> list[str]:
    block, place = "[BLOCK_SIZE_V, BLOCK_SIZE_N]", f"tl.where(is_place, {s.index}, -1)"
    place = f"{place}.to(tl.int32)" if s.is_long else place
    own = [f"{s.out} = tl.load({s.base}_ptr + offsets, mask=mask){_wide(s, s.base)} + {s.out}"] if s.base else []
    return [
        "# BLOCK_SIZE_V places of one row per program, which looks at all elements of the row",
        f"parts = tl.cdiv({s.size}, BLOCK_SIZE_V)",
        "row = (tl.program_id(0) // parts).to(tl.int64)",
        "places = tl.program_id(0) % parts * BLOCK_SIZE_V + tl.arange(0, BLOCK_SIZE_V)",
        f"total = tl.zeros({block}, tl.{s.dtype})",
        *_quoted(s),
        "for start in range(0, N, BLOCK_SIZE_N):",
        "    cols = start + tl.arange(0, BLOCK_SIZE_N)",
        *_indented(_loaded(s, "row * N + cols", "cols < N"), 4),
        f"    place = {place}",
        *_indented(_source(s, "row * N + cols"), 4),
        f"    total += tl.where(place[None, :] == places[:, None], {s.source}[None, :], {_zero(s)})",
        f"{s.out} = tl.sum(total, axis=1)",
        f"offsets = row * {s.size} + places",
        f"mask = places < {s.size}",
        *own,
        f"tl.store({s.out}_ptr + offsets, {s.out}, mask=mask)",
    ]


def _columns() -> list[str]:
    return [
        "cols = tl.program_id(0) % num_tiles_n * BLOCK_SIZE_N + tl.arange(0, BLOCK_SIZE_N)",
        "mask = cols < N",
    ]


def _buckets(s: ir.Scatter) -> list[str]:
    wide = "" if s.is_long else ".to(tl.int64)"  # times the places of a bucket it may pass 2**31
    return [
        "# puts the places of the index into the buckets of their rows, in no fixed order",
        "places = tl.program_id(0) * BLOCK_SIZE_M + tl.arange(0, BLOCK_SIZE_M)",
        f"{s.index} = tl.load({s.index}_ptr + places, mask=places < M, other=-1){wide}",
        f"is_row = {s.index} >= 0",
        f"is_row &= {s.index} < {s.size}",
        f'slot = tl.atomic_add(counts_ptr + {s.index}, 1, mask=is_row, sem="relaxed")',
        "# places that overflow a bucket are only counted",
        f"tl.store(buckets_ptr + {s.index} * SLOTS + slot, places, mask=is_row & (slot < SLOTS))",
    ]


def _bucket_sums(s: ir.Scatter) -> list[str]:
    return [
        "# one tile of columns of one row per program, summed in the order of the index",
        "num_tiles_n = tl.cdiv(N, BLOCK_SIZE_N)",
        "row = (tl.program_id(0) // num_tiles_n).to(tl.int64)",
        *_columns(),
        *_begun(s, "BLOCK_SIZE_N", "row * N + cols"),
        "count = tl.load(counts_ptr + row)",
        *_quoted(s),
        "if count <= SLOTS:",
        "    slots = tl.arange(0, SLOTS)",
        "    places = tl.load(buckets_ptr + row * SLOTS + slots, mask=slots < count, other=M)",
        "    # buckets are unsorted: the rank of a place is the number of smaller ones",
        "    rank = tl.sum((places[None, :] < places[:, None]).to(tl.int32), axis=1)",
        f"    {_ranked(s, 'count')}",
        f"    {_stored(s, 'row * N + cols')}",
    ]


def _bucket_rest(s: ir.Scatter) -> list[str]:
    return [
        "# the few rows whose bucket overflowed search the whole index",
        "num_tiles_n = tl.cdiv(N, BLOCK_SIZE_N)",
        f"num_parts = tl.cdiv({s.size}, BLOCK_SIZE_V)",
        "part = tl.program_id(0) // num_tiles_n",
        *_columns(),
        "# rows are strided across programs, since adjacent ones are often equally frequent",
        "rows = part + tl.arange(0, BLOCK_SIZE_V) * num_parts",
        f"counts = tl.load(counts_ptr + rows, mask=rows < {s.size}, other=0)",
        "if tl.max(counts) > SLOTS:",
        "    for number in range(BLOCK_SIZE_V):",
        "        row = tl.cast(part + number * num_parts, tl.int64)",
        f"        if tl.load(counts_ptr + row, mask=row < {s.size}, other=0) > SLOTS:",
        *_indented(_begun(s, "BLOCK_SIZE_N", "row * N + cols"), 12),
        *_indented(_quoted(s), 12),
        "            for start in range(0, M, BLOCK_SIZE_L):",
        "                places = start + tl.arange(0, BLOCK_SIZE_L)",
        f"                {s.index} = tl.load({s.index}_ptr + places, mask=places < M, other=-1)",
        f"                is_own = ({s.index} == row).to(tl.int32)",
        "                rank = tl.where(is_own > 0, tl.cumsum(is_own, axis=0) - 1, -1)",
        "                found = tl.sum(is_own, axis=0)",
        f"                {_ranked(s, 'found')}",
        f"            {_stored(s, 'row * N + cols')}",
    ]


def _ranked(s: ir.Scatter, count: str) -> str:
    """The statement that adds the rows at the places that were found, in the order of their ranks."""
    sums, helper = (f"{s.out}, lost", "_add_rows") if s.is_float else (s.out, "_add_whole_rows")
    return f"{sums} = {helper}({sums}, {s.source}_ptr, places, rank, {count}, cols, mask, N, BLOCK_SIZE_K)"


def _lists(s: ir.Scatter) -> list[str]:
    index = s.index
    read = f"{index} = tl.load({index}_ptr + places, mask=places < M, other=-1)"
    return [
        "# lists the places that name BLOCK_SIZE_V rows of the result, in the order of the index",
        "part = tl.program_id(0).to(tl.int64)",
        "first = part * BLOCK_SIZE_V",
        "lanes = tl.arange(0, BLOCK_SIZE_M)",
        "# this list starts after those of the preceding parts",
        "before = tl.zeros([BLOCK_SIZE_M], tl.int32)",
        "for start in range(0, M, BLOCK_SIZE_M):",
        "    places = start + lanes",
        f"    {read}",
        f"    is_before = {index} >= 0",
        f"    is_before &= {index} < first",
        "    before += is_before.to(tl.int32)",
        "end = tl.sum(before, axis=0)",
        "bounds = bounds_ptr + 2 * part",
        "tl.store(bounds, end)",
        "for start in range(0, M, BLOCK_SIZE_M):",
        "    places = start + lanes",
        f"    {read}",
        f"    is_own = {index} >= first",
        f"    is_own &= {index} < first + BLOCK_SIZE_V",
        "    rank = tl.cumsum(is_own.to(tl.int32), axis=0)",
        "    # packs the place and the row within the part",
        f"    number = places.to(tl.int64) * BLOCK_SIZE_V + ({index} - first)",
        "    tl.store(listed_ptr + end + rank - 1, number, mask=is_own)",
        "    end += tl.sum(is_own.to(tl.int32), axis=0)",
        "tl.store(bounds + 1, end)",
    ]


def _list_sums(s: ir.Scatter) -> list[str]:
    added = [f"        {s.out} += {s.source}"]
    if s.is_float:
        added = [f"        {s.out}, error = _two_sum({s.out}, {s.source})", "        lost += error"]
    return [
        "# one tile of columns of one row per program, summed in the order of its part's list",
        "num_tiles_n = tl.cdiv(N, BLOCK_SIZE_N)",
        "row = (tl.program_id(0) // num_tiles_n).to(tl.int64)",
        *_columns(),
        *_begun(s, "BLOCK_SIZE_N", "row * N + cols"),
        "bounds = bounds_ptr + row // BLOCK_SIZE_V * 2",
        "end = tl.load(bounds + 1)",
        *_quoted(s),
        "for start in range(tl.load(bounds), end, BLOCK_SIZE_L):",
        "    slots = start + tl.arange(0, BLOCK_SIZE_L)",
        "    number = tl.load(listed_ptr + slots, mask=slots < end, other=-1)",
        "    is_own = number % BLOCK_SIZE_V == row % BLOCK_SIZE_V  # -1 is no row's",
        "    left = tl.where(is_own, (number // BLOCK_SIZE_V).to(tl.int32), M)",
        "    place = tl.min(left, axis=0)",
        "    while place < M:",
        f"        {s.source} = tl.load({s.source}_ptr + place.to(tl.int64) * N + cols, mask=mask){_wide(s, s.source)}",
        *added,
        "        left = tl.where(left == place, M, left)",
        "        place = tl.min(left, axis=0)",
        _stored(s, "row * N + cols"),
    ]


_TEXTS: dict[str, Callable[[ir.Scatter], list[str]]] = {
    "histogram": _histogram, "count_by_atomics": _count_by_atomics, "owners": _owners, "atomics": _atomics,
    "atomic_rows": _atomic_rows, "atomic_tiles": _atomic_tiles, "blocks": _blocks, "buckets": _buckets,
    "bucket_sums": _bucket_sums, "bucket_rest": _bucket_rest, "lists": _lists, "list_sums": _list_sums,
    "places": _places,
}  # fmt: skip
