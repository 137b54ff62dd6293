"""Schedules of attention: what may be tuned, what a device can hold, and where to begin.

Sizes of tiles follow what was measured on an H200 (sm_90, 132 SMs) in float16; other devices begin there too.
"""

from __future__ import annotations

from dataclasses import replace

from kernelgen.families.attention.lowering import AttentionBody
from kernelgen.families.attention.writer import LONGEST_SPLIT, length, power
from kernelgen.families.family import LIBRARY as LIBRARY
from kernelgen.families.family import Kernels, Refusal, Table, Variant
from kernelgen.families.forms import PRINTED
from kernelgen.families.kernel import Body
from kernelgen.frontend.indices import Expr, leaves
from kernelgen.plan import Parameter, Schedule, table_row
from kernelgen.schedule.problem import served

TILES, BOXES, OVERLAPPED, SPLIT = "tiles", "boxes", "overlapped", "split"
MEANINGS = {
    TILES: "one tile of queries per program, which loops over blocks of visible keys, loaded through pointers",
    BOXES: "the same, with tiles copied by TMA (sm_90 and newer); otherwise as `tiles`",
    OVERLAPPED: "as `boxes`, software-pipelined: the product of a block's weights and values overlaps the next "
    "block's exponentials",
    SPLIT: "several programs per tile of queries, each over a part of the keys; a second kernel combines the parts",
    LIBRARY: "torch's attention, where it is faster",
}
_TILES = Schedule.make(TILES, BLOCK_M=64, BLOCK_N=64, num_warps=4, num_stages=3)
_BOXES = Schedule.make(BOXES, BLOCK_M=64, BLOCK_N=64, num_warps=4, num_stages=3)
_OVERLAPPED = Schedule.make(OVERLAPPED, BLOCK_M=64, BLOCK_N=64, num_warps=4, num_stages=2)
_SPLIT = Schedule.make(SPLIT, BLOCK_M=16, BLOCK_N=64, SPLITS=4, num_warps=4, num_stages=3)
_LIBRARY = Schedule.make(LIBRARY)
_DEFAULTS = {TILES: _TILES, BOXES: _BOXES, OVERLAPPED: _OVERLAPPED, SPLIT: _SPLIT, LIBRARY: _LIBRARY}
_ONE_TILE = 16
"""Queries that one tile holds: their keys are divided among programs, 4 a head for 512 heads of a batch (H200, 8192
keys: 505 us, 4.25 TB/s), more for fewer; of more heads a program each walks over all keys. Torch's attention of one
query is a candidate that no first table names: of 512 heads that share keys it took 468.9 us, the kernel here 471.7,
and its second call gave other bits than its first (H200, torch 2.11; docs/benchmarks/contractions.json)."""
_FEW_HEADS = 16
_OF_FEW_HEADS = _SPLIT.replace(BLOCK_M=64, BLOCK_N=32, SPLITS=32)
"""Of one query, for so many heads of a batch: 15.3 us of 8 heads that 64 queries share, torch's 15.4, and almost twice
that with the 16 rows of other tiles (H200, 8192 keys; docs/benchmarks/journals)."""
_FEW_KEYS = 1024
"""Keys up to which one program has all of them. 4 queries of 4 heads by 4096 keys took 36.8 us so, and 6.9 us where 32
programs share the keys (H200, docs/benchmarks/small.json); what is between was not measured."""
_GATHERED = 2
"""Blocks in flight of keys whose places are read: 0.88 of the time of three (H200, pages of 64 keys, 64 sequences of up
to 8192: docs/benchmarks/journals)."""
_SHORT = 256
"""Queries up to which tiles are loaded by pointers: of 17 and of 130 that took 0.89 of the time, of 1000 1.2 times as
long (H200, docs/benchmarks/contractions.json)."""
_FEW_PROGRAMS = 8
"""Heads of a batch of which cuDNN's larger tiles leave most processors idle (H200, 4 by 1024 by 128, causal: 16.2 us in
tiles of 64 queries, torch's call 20.3)."""
_SHORT_HEAD = 64
"""Elements of heads up to which tiles of float32 are large."""
_OF_ANY_HEAD = {"BLOCK_M": 16, "BLOCK_N": 16, "num_stages": 1, "num_warps": 8}
_SOME_HEADS = 32
"""Heads of a batch of which few queries are divided into the smallest tiles, so that every processor has one: 8 heads
of 64 and 130 queries took 8.8 us by 16 and 10.5 by 32 (H200, float32)."""
_LONG = 512
"""Queries from which on torch's attention is named where it can be told everything. Of 4096 queries of heads of 128 in
float16 the kernels here reach 0.84 (causal) and 0.83 (full) of cuDNN's speed, of heads of 64 0.92: cuDNN's kernels
give loads, products and exponentials to different warps, which Triton 3.6 does not for two loops (H200, 2026-11)."""


def variants(body: AttentionBody) -> tuple[str, ...]:
    found = [BOXES, TILES] if body.boxed else [TILES]
    from_first = not body.mask().lower()
    found += [OVERLAPPED] if body.boxed and from_first else []  # before the first block there are zeros
    found += [SPLIT] if from_first else []
    return (*found, LIBRARY) if body.library else tuple(found)


def space(variant: str) -> tuple[Parameter, ...]:
    if variant == LIBRARY:
        return ()
    splits = Parameter("SPLITS", (1, 2, 4, 8, 16, 32), "grid_config", "constexpr", "programs that share a tile's keys")
    return (
        *((splits,) if variant == SPLIT else ()),
        Parameter("BLOCK_M", (16, 32, 64, 128, 256), "block_size", "constexpr", "queries of a tile"),
        Parameter("BLOCK_N", (16, 32, 64, 128), "block_size", "constexpr", "keys of a block"),
        Parameter("num_warps", (1, 2, 4, 8), "warp_stage", "launch", "warps per program"),
        Parameter("num_stages", (1, 2, 3, 4), "warp_stage", "launch", "blocks of keys and values in flight"),
    )


SHARED_BYTES = 232_448
"""What a program may have of shared memory on sm_90 (CUDA C++ Programming Guide, table of technical specifications)."""


def room(body: Body, itemsize: int) -> Refusal:
    """Why a program has no room for its blocks of keys and values in flight, and whatever else moves with both."""
    assert isinstance(body, AttentionBody)
    moving = {run.index: e.name for e in body.layout.extents for run in e.runs}
    width = 0
    for access in body.layout.accesses:
        along = {moving[name] for index, _ in access.terms for name in _mentioned(index, body)}
        width += max((power(body, name) or 128 for name in along & {"d", "e"}), default=0) if "n" in along else 0

    def refusal(schedule: Schedule) -> str | None:
        if schedule.variant == LIBRARY:
            return None
        taken = schedule.int("BLOCK_N") * width * itemsize * max(schedule.int("num_stages"), 1)
        return f"blocks of more than {SHARED_BYTES} bytes of shared memory" if taken > SHARED_BYTES else None

    return refusal


def _mentioned(index: str | Expr, body: AttentionBody) -> tuple[str, ...]:
    """The runs that a place is counted along."""
    if isinstance(index, str):
        return (index,)
    axes = {leaf.number for leaf in leaves(index) if leaf.op == "axis"}
    return tuple(run.index for e in body.layout.extents for run in e.runs if axes & set(run.axes))


def _fitting(body: AttentionBody, schedule: Schedule, itemsize: int) -> Schedule:
    """As many blocks in flight as there is room for."""
    fewer = (schedule.replace(num_stages=stages) for stages in (2, 1))
    refusal = room(body, itemsize)
    return next((s for s in (schedule, *fewer) if refusal(s) is None), schedule)


def legal(schedule: Schedule, columns: int, itemsize: int) -> str | None:
    if schedule.variant == LIBRARY:
        return None
    if schedule.int("BLOCK_M") * schedule.int("BLOCK_N") > 256 * 32 * schedule.int("num_warps"):
        return "more than 256 scores a thread"
    return None


def first_table(body: AttentionBody) -> Table:
    """Of heads whose size is no number, the table is one of up to 128 elements; what holds all others follows."""
    found = _table(body)
    if not body.extent("batch").runs:  # one head alone has as few as there can be
        found = served(table_row(row.schedule, **{n: m for n, m in row.upto if n != "BATCH"}) for row in found)
    if _gathers(body):
        shallow = (
            row.schedule.replace(num_stages=min(row.schedule.int("num_stages"), _GATHERED))
            if row.schedule.variant == SPLIT
            else row.schedule
            for row in found
        )
        found = tuple(replace(row, schedule=s) for row, s in zip(found, shallow, strict=True))
    sizes = {body.extent(name).size: 128 for name in "de" if power(body, name) is None}
    if not sizes:
        return found
    last = _SPLIT if found[-1].schedule.variant == SPLIT else _TILES
    calls = found[-1].schedule == _LIBRARY and _calls_torch(body, 1024)
    known = found[:-1] if calls else found
    rows = tuple(table_row(row.schedule, **{**sizes, **dict(row.upto)}) for row in known)
    if calls:
        return (*rows, table_row(_LIBRARY))
    of_long = table_row(_of_long_heads(last), **dict.fromkeys(sizes, LONGEST_SPLIT))
    long = () if body.precision == "ieee" else (of_long,)
    return (*rows, *long, table_row(last.replace(**_OF_ANY_HEAD)))


def _of_long_heads(schedule: Schedule) -> Schedule:
    """Of more than 128 elements, and up to 256: 616 us in float32, 1079 by tiles of 16 by 16, 4928 without matrix units
    (H200, 16 heads of 256, 1024 keys)."""
    return schedule.replace(BLOCK_M=16 if schedule.variant == SPLIT else 32, BLOCK_N=32, num_stages=1)


def _gathers(body: AttentionBody) -> bool:
    """Whether keys lie at places that are read themselves, as the pages of a cache do."""
    places = (index for access in body.layout.accesses for index, _ in access.terms if isinstance(index, Expr))
    return any(leaf.op == "value" for place in places for leaf in leaves(place))


def _calls_torch(body: AttentionBody, head: int) -> bool:
    """Whether torch's attention is named for long heads of that size. Beyond 128 none was measured, and what
    torch falls back to adds minus infinity to hidden scores: of infinite or NaN ones that is NaN, where a mask hides
    them."""
    return bool(body.library) and not _shares_keys(body) and (head <= 128 or not body.mask().bounds)


def _shares_keys(body: AttentionBody) -> bool:
    """Whether several heads have the same keys."""
    return not set(body.extent("batch").axes) <= body.lowered.values[body.softmax.key].axes


def _table(body: AttentionBody) -> Table:
    """Heads beyond 128 take half of the block."""
    head = max(power(body, "d") or 128, power(body, "e") or 128)
    best = _BOXES if body.boxed else _TILES
    best = best if head <= 128 else best.replace(BLOCK_N=32, num_stages=2)
    best = _fitting(body, best, 2)
    few = table_row(best.replace(BLOCK_M=16), M=_ONE_TILE, itemsize=2)
    some = ((16, 32), (64, 16), (256, 8))
    short = [table_row(_TILES, M=_SHORT, itemsize=2)] if best == _BOXES else []
    if (length(body, "m") or _ONE_TILE + 1) <= _ONE_TILE:
        stages = {} if head <= 128 else {"BLOCK_N": 32, "num_stages": 2} if head <= LONGEST_SPLIT else _OF_ANY_HEAD
        rows = [table_row(_SPLIT.replace(SPLITS=n, **stages), BATCH=heads) for heads, n in some]
        if head <= 128 and best == _BOXES:
            rows = [table_row(_OF_FEW_HEADS, BATCH=_FEW_HEADS, itemsize=2), *rows]
        # more heads than programs run at once; keys of float8 are converted, and split all the same
        whole = [table_row(best, itemsize=2)] if best == _BOXES and head <= LONGEST_SPLIT else []
        return (*rows, *whole, table_row(_SPLIT.replace(**stages)))
    if SPLIT in variants(body) and not body.mask().bounds:  # of few heads a program each leaves most of a GPU idle
        by_keys = table_row(few.schedule, M=_ONE_TILE, N=_FEW_KEYS, itemsize=2)
        split = _fitting(body, _SPLIT.replace(BLOCK_N=best.int("BLOCK_N")), 2)
        rows = [table_row(split.replace(SPLITS=n), M=_ONE_TILE, BATCH=heads, itemsize=2) for heads, n in some[:2]]
        short = [*rows, few, *short]
        few = by_keys
    if _calls_torch(body, head):
        some_heads = table_row(best, M=2 * _LONG, BATCH=_FEW_PROGRAMS, itemsize=2)
        usual = table_row(best, M=_LONG, itemsize=2), table_row(_LIBRARY, itemsize=2)
        return (few, *short, some_heads, *usual, *_float32(body, head, calls=True))
    if _shares_keys(body) and body.library and head <= 128:  # in float32 torch writes the keys out for every head
        usual = table_row(best, M=_LONG, itemsize=2), table_row(_LIBRARY, itemsize=2)
        return (few, *short, *usual, *_float32(body, head))
    return (few, *short, table_row(best, itemsize=2), *_float32(body, head))


def _float32(body: AttentionBody, head: int, *, calls: bool = False) -> Table:
    """Multiplied as three products of TF32, tiles are what registers and shared memory hold of both parts (H200: 64
    heads of 64, 1024 keys 310 us, torch's attention 519, without matrix units 2917 on an H100; 32 heads of 128, 2048
    keys 1542, 1542 and 10957). Where scores are masked, or something is computed of them, tiles of 64 queries took 0.68
    to 0.79 of the time of 128 (causal, alibi; plain: 1.28). Without matrix units a thread holds what it multiplies in
    registers: compiled for sm_90, tiles of 64 queries by 32 keys had 7 KB a thread in local memory. `calls`: torch's
    attention is called for long heads beyond 64 elements."""
    wide = _fitting(body, _TILES.replace(BLOCK_M=32, num_stages=2), 4)
    if body.precision == "ieee" or head > LONGEST_SPLIT:
        wide = _TILES.replace(**{**_OF_ANY_HEAD, "BLOCK_M": 32 if head <= 128 else 16})
    elif head > 128:
        wide = _of_long_heads(_TILES)
    last = (table_row(wide, M=_LONG), table_row(_LIBRARY)) if calls else (table_row(wide),)
    if body.precision == "ieee" or head > 128:
        return last
    short = table_row(_fitting(body, _TILES.replace(BLOCK_M=16, num_stages=1), 4), M=_SHORT, BATCH=_SOME_HEADS)
    if max(power(body, "d") or 0, power(body, "e") or 0) > _SHORT_HEAD:
        return (short, *last)
    unknown = {body.extent(name).size: _SHORT_HEAD for name in "de" if power(body, name) is None}
    is_plain = body.softmax.logits == body.softmax.scores and not body.softmax.conditions
    tall = 128 if is_plain else 64
    narrow = table_row(wide.replace(BLOCK_M=tall, num_stages=1), **unknown)
    return (short, narrow, *last) if unknown else (short, narrow)


def starts(body: AttentionBody) -> tuple[Schedule, ...]:
    """One for every way to bring tiles, the most likely first."""
    larger = {"BLOCK_M": 128, "BLOCK_N": 128, "num_warps": 8, "num_stages": 2}
    found = {name: (_DEFAULTS[name], _DEFAULTS[name].replace(**larger)) for name in (TILES, BOXES)}
    found[SPLIT] = (_SPLIT, _SPLIT.replace(SPLITS=32))  # for many heads of a batch, and for few
    return tuple(s for v in variants(body) for s in found.get(v, (_DEFAULTS[v],)))


def every(kernels: Kernels) -> tuple[Variant, ...]:
    """All variants, by what makes their kernels."""
    return tuple(
        Variant(PRINTED, MEANINGS[name], default, space(name), legal, kernels) for name, default in _DEFAULTS.items()
    )
